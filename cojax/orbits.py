"""Orbits: unseen twins of a problem, equally difficult, by changes of coordinates.

    env, params = cojax.make("ConverseArm-v0", n=3)
    twins = cojax.orbits.orbit(params, 8, seed=0)               # one stacked batch
    cojax.orbits.spread("ppo", params, 8, seed=0).highest       # the worst gap over the orbit

A twin (:mod:`cojax.coordinates`) has its states and actions in another order, with other signs, or
turned; V*, π* and every trial are carried along. The policy that is carried along too has the same
gap, trial by trial. A learner that starts anew on each twin need not: what tells its gaps apart,
beyond its seeds, is what it owes to the axes.
"""

from __future__ import annotations

import contextlib
import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import ArrayLike

from cojax import agents, errors, evaluation, inputs, linalg, precision, streams
from cojax.agents import Run
from cojax.coordinates import (
    Coordinates,
    Linear,
    Transformed,
    TransformedLaw,
    innermost,
    linear,
    signed_permutation,
)
from cojax.envs import EnvParams, num_instances, stack
from cojax.envs.params import with_observation_limit
from cojax.errors import InputError
from cojax.evaluation import Evaluation
from cojax.policy import Apply, Policy
from cojax.types import Array, Float, Option, PRNGKeyArray, PyTree

KINDS = ("signed", "rotation")


# --- twins ---------------------------------------------------------------------------------------


def carried(
    params: EnvParams,
    *,
    state: Coordinates | ArrayLike | None = None,
    action: Coordinates | ArrayLike | None = None,
) -> EnvParams:
    """The problem with states T s and actions U a.

    The initial law, the box of actions and the limit of observations go along; horizon, guard and
    noise are the same. An enforced box goes into a box under a signed permutation alone; one that
    is not enforced keeps its scale, sqrt((U∘U) limit²).

    Args:
        params: of one system.
        state: T, an invertible (d, d) matrix, or :class:`cojax.coordinates.Coordinates`; None for
            the identity.
        action: U, (m, m), likewise.

    Raises InputError, one line, for a stacked batch, a system with hidden parts, a matrix that is
    singular or of another shape, and a U under which an enforced box of actions is none.
    """
    if not isinstance(params, EnvParams):
        raise InputError(f"params: expected EnvParams, got {type(params).__name__}")
    if num_instances(params) is not None:
        raise InputError("params: expected those of one system, got a stacked batch")
    system = params.system
    if system.observed_dim < system.state_dim:
        raise InputError("params: expected a system of which all is observed")
    dtype = system.gamma.dtype
    with precision.x64() if dtype == np.float64 else contextlib.nullcontext():
        T = _coordinates("state", state, system.state_dim, dtype)
        U = _coordinates("action", action, system.action_dim, dtype)
        moved = Transformed(system, T, U)
        if isinstance(U, Linear) and params.clip_actions and not system.constrained:
            raise InputError(
                "action: expected a signed permutation, since the box of actions is enforced and "
                "no other keeps it a box; make params with action_limit=None"
            )
        own = moved.feasible_box()
        limit = np.asarray(params.action_limit, np.float64)
        if own is None:
            matrix = np.asarray(jax.vmap(U.to)(jnp.eye(U.dim, dtype=dtype)), np.float64).T
            own = np.sqrt(matrix**2 @ np.broadcast_to(limit, (U.dim,)) ** 2)
        return with_observation_limit(
            inputs.swapped(
                params,
                system=moved,
                initial_state=TransformedLaw(params.initial_state, T),
                action_limit=linalg.to_device(own, dtype),
            )
        )


def _coordinates(
    name: str, given: Coordinates | ArrayLike | None, dim: int, dtype: np.dtype
) -> Coordinates:
    """A change of ``dim`` coordinates, of whatever was given; raises InputError."""
    if given is None:
        return signed_permutation(np.arange(dim), np.ones(dim), dtype)
    found = given if isinstance(given, Coordinates) else linear(given, dtype, name=name)
    if found.dim != dim:
        raise InputError(f"{name}: expected a change of {dim} coordinates, got {found.dim}")
    return found


@streams.pinned()
def twin(params: EnvParams, seed: int | PRNGKeyArray, *, kind: str = "signed") -> EnvParams:
    """The problem in coordinates that a ``seed``, or a threefry key, draws.

    Args:
        params: of one system.
        seed: of T and U; a whole number in [0, 2³²), or a key.
        kind: "signed": T and U are signed permutations, and a twin is exact to the bit but for
            sums over the entries of actions. "rotation": T is orthogonal, by the Haar measure,
            and so is U where no box of actions is enforced; else U is a signed permutation.

    Raises InputError as :func:`carried` does, and for another kind.
    """
    errors.one_of("kind", kind, KINDS)
    key = seed if isinstance(seed, jax.Array) else streams.root_key(seed)
    streams.require_threefry(key)
    if not isinstance(params, EnvParams):
        raise InputError(f"params: expected EnvParams, got {type(params).__name__}")
    system = params.system
    boxed = params.clip_actions and not system.constrained
    T = _drawn(jax.random.fold_in(key, 0), system.state_dim, kind == "rotation")
    U = _drawn(jax.random.fold_in(key, 1), system.action_dim, kind == "rotation" and not boxed)
    return carried(params, state=T, action=U)


def _drawn(key: PRNGKeyArray, dim: int, turned: bool) -> np.ndarray:
    """A random signed permutation as a matrix, or orthogonal matrix, float64."""
    keys = jax.random.split(key)
    if turned and dim > 1:
        normal = np.asarray(jax.random.normal(keys[0], (dim, dim), jnp.float32), np.float64)
        Q, R = np.linalg.qr(normal)
        return Q * np.sign(np.diagonal(R))
    order = np.argsort(np.asarray(jax.random.uniform(keys[0], (dim,), jnp.float32)))
    up = np.asarray(jax.random.uniform(keys[1], (dim,), jnp.float32)) < 0.5
    return np.eye(dim)[order] * np.where(up, 1.0, -1.0)[:, None]


def orbit(
    params: EnvParams, num: int, seed: int | PRNGKeyArray = 0, *, kind: str = "signed"
) -> EnvParams:
    """``num`` twins, one stacked batch that costs one compilation; number i is the twin of the key
    fold_in(``seed``, i).

    Raises InputError as :func:`twin` does, and unless num is a whole number >= 1.
    """
    num = inputs.whole("num", num, 1)
    key = seed if isinstance(seed, jax.Array) else streams.root_key(seed)
    return stack([twin(params, jax.random.fold_in(key, i), kind=kind) for i in range(num)])


# --- policies ------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class CarriedApply:
    """b = U a(T⁻¹x) for a policy's ``apply``; params are (changes, those of the policy)."""

    apply: Apply

    def __call__(self, params: PyTree, obs: Array, key: PRNGKeyArray) -> Array:
        """The action for one observation, (m,)."""
        changes, own = params
        for state, _ in changes:
            obs = state.back(obs)
        a = self.apply(own, obs, key)
        for _, action in reversed(changes):
            a = action.to(a)
        return a


def carried_policy(policy: Policy, params: EnvParams) -> Policy:
    """The equivariant copy on a twin: π_b(x) = U π(T⁻¹x), whose gap is that of ``policy`` on the
    problem the twin was made of.

    Args:
        policy: acts on that problem. It may have axes, but no "fixture" where twins are stacked.
        params: a twin, or a stacked batch of twins; the copy then has the axis "fixture" in front.

    Raises InputError, one line, for params of no twin, and for axes that do not fit.
    """
    changes = innermost(params.system)[1]
    if not changes:
        raise InputError("params: expected those of a twin (cojax.orbits.twin), got others")
    twins = num_instances(params)
    if twins is not None and "fixture" in policy.axes:
        raise InputError(
            f"policy {policy.name}: expected no axis 'fixture' for {twins} stacked twins; take one "
            "with policy.member(fixture=0)"
        )
    leaves = jax.tree.leaves(policy.params)
    lead = np.shape(leaves[0])[: len(policy.axes)] if leaves else ()
    front = () if twins is None else (twins,)

    def spread_out(x):  # (*front, …) to (*front, *lead, …)
        x = jnp.asarray(x)
        rest = x.shape[len(front) :]
        x = x.reshape(*front, *(1 for _ in lead), *rest)
        return jnp.broadcast_to(x, (*front, *lead, *rest))

    def repeated(x):
        x = jnp.asarray(x)
        return jnp.broadcast_to(x.reshape(*(1 for _ in front), *x.shape), (*front, *x.shape))

    own = (jax.tree.map(spread_out, changes), jax.tree.map(repeated, policy.params))
    axes = policy.axes if twins is None else ("fixture", *policy.axes)
    return dataclasses.replace(policy, params=own, apply=CarriedApply(policy.apply), axes=axes)


# --- learners ------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Spread:
    """How far an algorithm's gap differs over an orbit.

    Attributes:
        gaps: relative gap of each twin and seed, the mean of its trials; infinite with a failure.
        run: the training.
        evaluation: of its last policies on the orbit.
    """

    gaps: Float[np.ndarray, "F M"]
    run: Run
    evaluation: Evaluation

    @property
    def by_twin(self) -> Float[np.ndarray, " F"]:
        """The median over seeds on each twin."""
        return np.median(self.gaps, axis=1)

    @property
    def median(self) -> float:
        """Of the twins' gaps."""
        return float(np.median(self.by_twin))

    @property
    def lowest(self) -> float:
        """On the twin that suits it best."""
        return float(self.by_twin.min())

    @property
    def highest(self) -> float:
        """On the twin that suits it least."""
        return float(self.by_twin.max())


def spread(
    algorithm: str,
    params: EnvParams,
    num: int = 8,
    seed: int | PRNGKeyArray = 0,
    *,
    kind: str = "signed",
    key: PRNGKeyArray | None = None,
    num_trials: int = 256,
    root: int = 0,
    **options: Option,
) -> Spread:
    """Train anew on each of ``num`` twins, with the same seeds, and measure every gap.

    Args:
        algorithm: as :func:`cojax.train` takes it.
        params: of one system.
        num: twins; at least 1.
        seed: of the orbit.
        kind: of the twins.
        key: of training; None for that of seed 0.
        num_trials: of each policy on its twin.
        root: of the streams of evaluation.
        options: others of :func:`cojax.train`, such as ``total_timesteps`` and ``num_seeds``.

    Returns:
        A :class:`Spread`, with ``median``, ``lowest`` and ``highest``. Twins differ by the luck
        of training too: have several seeds.

    Raises InputError as :func:`orbit`, :func:`cojax.train` and :func:`cojax.evaluate` do.
    """
    twins = orbit(params, num, seed, kind=kind)
    run = agents.train(algorithm, twins, streams.root_key(0) if key is None else key, **options)
    names = [f"twin {i}" for i in range(num)]
    found = evaluation.evaluate(run.policy, twins, num_trials, root, names=names, progress=None)
    gaps = found.trials["relative_suboptimality"].mean(axis=-1)
    return Spread(gaps=gaps, run=run, evaluation=found)
