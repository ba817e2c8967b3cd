"""The average cost of policies, and its gap: the average of A*, with an interval by batch means.

    gap = lim E Σ_{k<T} A*(s_k, a_k)/T = average cost - λ*

on a system of :mod:`cojax.average_cost`. Trials run side by side on the common streams, the same
for all policies; after a burn-in each is cut into batches. Batch means of a chain that forgets are
nearly independent (Law, Simulation Modeling and Analysis, ch. 9): their autocorrelation is
reported, and where it is not small, batches are too short for the interval.
"""

from __future__ import annotations

import dataclasses
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import scipy.linalg
from scipy import stats

from cojax import inputs, linalg, precision, streams
from cojax.average_cost import AverageCost
from cojax.envs import EnvParams
from cojax.errors import InputError
from cojax.evaluation.host import HostPolicy
from cojax.evaluation.linearised import linearisation
from cojax.evaluation.members import as_policy, player, singles
from cojax.evaluation.named_systems import pairs
from cojax.evaluation.references import Act
from cojax.evaluation.rollout import Sum
from cojax.system import next_mean
from cojax.types import Array, Float, PyTree, Row

LINEAR = 1e-6  # of a drift that is linear: how far differences over 1e-5 are off


@dataclasses.dataclass(frozen=True)
class AverageEvaluation:
    """Average costs of M policies over N trials of B batches each.

    Attributes:
        names: of the policies.
        optimum: λ*.
        gaps: (M, N, B), batch means of A*; inf in trials that failed.
        costs: (M, N, B), batch means of c - λ* with what h rose by over the batch: the same mean
            and noisier. λ* is added back in :meth:`rows`.
        length: steps of a batch.
        confidence: of the intervals.
    """

    names: tuple[str, ...]
    optimum: float
    gaps: Float[np.ndarray, "M N B"]
    costs: Float[np.ndarray, "M N B"]
    length: int
    confidence: float = 0.95

    def rows(self) -> list[Row]:
        """Of each policy: the gap of its average cost with its interval, its average cost, the
        share of trials that failed, and the autocorrelation of neighbouring batch means.
        """
        return [self._row(i) for i in range(len(self.names))]

    def _row(self, i: int) -> Row:
        gaps = self.gaps[i]
        failed = ~np.isfinite(gaps).all(axis=1)
        row: Row = {"policy": self.names[i], "failed": float(failed.mean())}
        if failed.any():
            nothing = dict.fromkeys(("gap", "low", "high", "cost"), np.inf)
            return row | nothing | {"autocorrelation": np.nan}
        mean, spread = gaps.mean(), gaps.std(ddof=1) / np.sqrt(gaps.size)
        half = stats.t.ppf(0.5 + 0.5 * self.confidence, gaps.size - 1) * spread
        off, power = gaps - mean, gaps.var()
        near = np.mean(off[:, 1:] * off[:, :-1]) / power if power > 0.0 else 0.0
        row |= {"gap": float(mean), "low": float(mean - half), "high": float(mean + half)}
        return row | {"cost": self.optimum + float(mean), "autocorrelation": float(near)}


@streams.pinned()
def evaluate_average(
    policies: object,
    params: EnvParams,
    num_steps: int = 4000,
    root: int = 0,
    *,
    num_trials: int = 32,
    burn_in: int | None = None,
    batches: int = 10,
    confidence: float = 0.95,
) -> AverageEvaluation:
    """Run policies for long, and average A*.

    Args:
        policies: as :func:`cojax.evaluate` takes them, but those of the host.
        params: of one system of the average cost, :func:`cojax.average_cost.averaged`.
        num_steps: of a trial after its burn-in, cut down to a multiple of ``batches``.
        root: seed of the streams.
        num_trials: N.
        burn_in: steps that are not counted; a tenth of ``num_steps`` unless given.
        batches: B >= 2, of a trial.
        confidence: of the intervals, in (0, 1).

    Raises InputError, one line, for another system, a policy of the host, and unusable numbers.
    """
    system = params.system
    if not isinstance(system, AverageCost) or jnp.ndim(system.gamma):
        kind = type(system).__name__
        raise InputError(f"params: expected one system of the average cost, got {kind}")
    num_trials, batches = (
        inputs.whole("num_trials", num_trials, 1),
        inputs.whole("batches", batches, 2),
    )
    length = inputs.whole("num_steps", num_steps, batches) // batches
    burn_in = num_steps // 10 if burn_in is None else inputs.whole("burn_in", burn_in, 0)
    confidence = inputs.number("confidence", confidence, 0.0, 1.0, low_open=True, high_open=True)
    names, gaps, costs = [], [], []
    keys = streams.stream_keys(root, num_trials)
    asked = [as_policy(name, value) for name, value in pairs(policies)]
    if not asked:
        raise InputError("policies: expected at least one policy, got an empty list")
    for policy in asked:
        if isinstance(policy, HostPolicy):
            raise InputError(f"policy {policy.name}: expected one of JAX, got one of the host")
        for one in singles(policy):
            act, own = player(one, params)
            shape = {"burn_in": burn_in, "batches": batches, "length": length}
            found = _run(act, own, params, keys, **shape)
            gap, cost = (np.asarray(x, np.float64).T for x in found)
            names.append(one.name)
            gaps.append(gap)
            costs.append(cost)
    average = float(system.average)
    return AverageEvaluation(
        tuple(names), average, np.stack(gaps), np.stack(costs), length, confidence
    )


@partial(jax.jit, static_argnames=("act", "burn_in", "batches", "length"))
def _run(
    act: Act,
    own: PyTree,
    params: EnvParams,
    keys: Array,
    *,
    burn_in: int,
    batches: int,
    length: int,
) -> tuple[Float[Array, "B N"], Float[Array, "B N"]]:
    """Batch means of A*, and of c - λ* and the rise of h, of all trials."""
    system = params.system
    assert isinstance(system, AverageCost)
    episodes = jax.vmap(lambda key: streams.episode_key(key, 0))(keys)

    def step(k, carry):
        s, optimum, alive, gap, cost = carry
        draws = jax.vmap(lambda key: streams.policy_key(key, k))(episodes)
        noises = jax.vmap(lambda key: streams.noise_key(key, k))(episodes)
        a = jax.vmap(act, (None, 0, 0, 0))(own, optimum, s, draws).astype(s.dtype)
        a = params.clip(a)
        excess = jax.vmap(system.excess_cost)(s, a - optimum.action, optimum)
        paid = jax.vmap(system.stage_cost)(s, a) - system.average
        following = jax.vmap(partial(next_mean, system))(s, a, optimum)
        following = following + jax.vmap(system.sample_noise)(s, noises, a)
        h = jax.vmap(system.value)(following)
        inside = jnp.isfinite(a).all(axis=-1) & (h <= params.divergence_radius**2)
        alive = alive & inside
        s = jnp.where(alive[:, None], following, s)
        optimum = jax.vmap(system.optimum)(s)
        return s, optimum, alive, gap.add(excess), cost.add(paid)

    def batch(carry, i):
        s, optimum, alive = carry
        before, zero = jax.vmap(system.value)(s), jnp.zeros(len(keys), s.dtype)
        first = burn_in + i * length
        sums = Sum(zero, zero), Sum(zero, zero)
        carry = (s, optimum, alive, *sums)
        s, optimum, alive, gap, cost = jax.lax.fori_loop(first, first + length, step, carry)
        rose = jax.vmap(system.value)(s) - before
        means = (gap.high + gap.low) / length, (cost.high + cost.low + rose) / length
        return (s, optimum, alive), means

    s = jax.vmap(lambda key: params.initial_state.sample(streams.initial_key(key)))(episodes)
    zero = jnp.zeros(len(keys), s.dtype)
    sums = Sum(zero, zero), Sum(zero, zero)
    start = (s, jax.vmap(system.optimum)(s), jnp.ones(len(keys), bool), *sums)
    begun = jax.lax.fori_loop(0, burn_in, step, start)[:3]
    (_, _, alive), (gaps, costs) = jax.lax.scan(batch, begun, jnp.arange(batches))
    return jnp.where(alive[None], gaps, jnp.inf), jnp.where(alive[None], costs, jnp.inf)


def linear_average(
    system: AverageCost, K: Float[np.ndarray, "m d"]
) -> tuple[float, Float[np.ndarray, "d d"]]:
    """The average cost tr((Q + KᵀR K) X) of a = -K s, and X = F X Fᵀ + Σ, F = A - G K, in float64.

    Raises InputError for a ``system`` whose drift is not linear, a ``K`` of another shape, and a
    loop that is not stable.
    """
    A, G, Q, R = linearisation(system)
    K = np.asarray(K, np.float64)
    if K.shape != G.T.shape:
        raise InputError(f"K: expected shape {G.T.shape}, got {K.shape}")
    with precision.x64():
        exact = jax.tree.map(lambda x: jnp.asarray(np.asarray(x, np.float64)), system)
        s = jnp.asarray(np.random.default_rng(0).normal(size=(16, len(A))))
        f = np.asarray(jax.vmap(lambda x: exact.optimum(x).drift)(s))
        Sigma = linalg.to_full(np.asarray(exact.inner.noise.covariance()))
    off = np.abs(f - np.asarray(s) @ A.T).max() / np.abs(f).max()
    if not off <= LINEAR:
        raise InputError(f"system: expected a linear drift, got one that is off by {off:.2g}")
    F = A - G @ K
    radius = float(np.abs(np.linalg.eigvals(F)).max())
    if not radius < 1.0:
        raise InputError(f"K: expected a stable loop, got spectral radius {radius:.4g}")
    X = scipy.linalg.solve_discrete_lyapunov(F, Sigma)
    return float(np.trace((Q + K.T @ R @ K) @ X)), X
