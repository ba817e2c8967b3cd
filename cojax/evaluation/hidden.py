"""What a policy pays for not knowing, and what for inferring or acting badly.

    V^π - V_inf = price of not knowing + suboptimality     V_inf: z is seen (:mod:`cojax.hidden`)
    price = V* - V_inf = r(b_0)                            the same for every policy
    suboptimality = E Σ γᵏ A*(s_k, b_k; a_k)               0 for the Bayes optimum, in every trial

Exact where the informed problem is solved, which is where gᵀP g is constant; elsewhere
Σ γᵏ |a - (a_s - E z)|² has another mean for every policy, and nothing is split. After k steps the
first part is the regret that no learner avoids, :func:`unavoidable`.

Two canaries of known gap, for constant B: :func:`memoryless`, a_s(s), which a belief that is not
used costs Σ γᵏ tr(B E Ẑ_k Eᵀ), Ẑ_k = E ẑ_k ẑ_kᵀ; and :func:`trusting`, a_s(s) - κ E ẑ, a linear
filter that is wrong by a factor, (1 - κ)² times that.
"""

from __future__ import annotations

import dataclasses
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from cojax import inputs
from cojax.belief import Constant, Kalman
from cojax.coordinates import innermost
from cojax.envs import EnvParams
from cojax.errors import InputError
from cojax.evaluation.named_systems import named_systems, scope
from cojax.evaluation.references import ReferencePolicy
from cojax.evaluation.result import Evaluation
from cojax.policy import Policy
from cojax.pushed import Hidden
from cojax.quadratic_gaussian import QuadraticGaussian
from cojax.system import Optimum
from cojax.types import Array, Float, Option, PRNGKeyArray, PyTree, Row


def split(evaluation: Evaluation, systems: object, **options: Option) -> list[Row]:
    """One row for each fixture and policy: ``optimal_value`` V*, ``informed_value`` V_inf,
    ``price_of_not_knowing``, ``suboptimality`` with its interval, and ``regret``, their sum.

    Args:
        evaluation: of :func:`cojax.evaluate`.
        systems: the fixtures or params it is of, as they were given to it.
        options: of :func:`cojax.evaluation.intervals.interval_of_mean`.

    Raises InputError, one line, for a system without a hidden part, one whose informed problem is
    not solved, and where ``systems`` are not those of the evaluation.
    """
    known = {one.name: one.params for one in named_systems(systems)}
    missing = [name for name in evaluation.fixtures if name not in known]
    if missing:
        raise InputError(f"systems: expected those of the evaluation, got none for {missing[0]}")
    values = {(row["fixture"], row["policy"]): row for row in evaluation.rows(**options)}
    rows: list[Row] = []
    for (fixture, policy), row in values.items():
        price = price_of_not_knowing(known[fixture], fixture)
        gap, optimal = row["suboptimality"], row["optimal_value"]
        optimal = optimal["mean"] if isinstance(optimal, dict) else optimal
        regret = {end: None if x is None else x + price for end, x in gap.items()}
        rows.append({
            "fixture": fixture, "policy": policy, "optimal_value": optimal,
            "informed_value": optimal - price, "price_of_not_knowing": price,
            "suboptimality": gap, "regret": regret,
        })  # fmt: skip
    return rows


def price_of_not_knowing(params: EnvParams, name: str = "params") -> float:
    """V* - V_inf = r(b_0) of ``params``, called ``name`` in messages. Raises InputError for a
    system without a hidden part, or whose informed problem is not solved.
    """
    system = _hidden(params, name)
    with scope(params):
        return float(jax.jit(lambda s, x: s.price_of_not_knowing(x))(system, _at_first(system)))


def unavoidable(params: EnvParams, num_steps: int) -> Float[np.ndarray, " T"]:
    """Σ_{k<T} γᵏ tr(B E Π_k Eᵀ) for T = 0 … ``num_steps``, of ``params``: regret to the informed
    that nobody avoids. Raises InputError as :func:`price_of_not_knowing`, and for two
    hypotheses, whose chances are random.
    """
    system, steps = _hidden(params), inputs.whole("num_steps", num_steps, 1)
    price_of_not_knowing(params)
    return _summed(params, _prices(system, steps))


def known_gap(params: EnvParams, num_steps: int, share: float = 0.0) -> float:
    """The mean gap over ``num_steps`` of a_s(s) - κ E ẑ with κ = ``share``, 0 being
    :func:`memoryless`, in closed form. Raises InputError as :func:`unavoidable`.
    """
    system, steps = _hidden(params), inputs.whole("num_steps", num_steps, 1)
    price_of_not_knowing(params)
    filter, B = system.filter, _curvature(system)
    if not isinstance(filter, Kalman | Constant):
        raise InputError("params: expected a belief with a covariance, got two hypotheses")
    E, start = _host(filter.effect).T, _host(filter.start)
    moment, costs = np.outer(start, start), []
    for k in range(steps):
        if isinstance(filter, Constant):
            W, kappa = _host(filter.outward).T, _host(filter.kappa)
            gained = (W * (k * kappa / (1.0 + k * kappa))) @ W.T
            costs.append(np.sum(B * (E @ (np.outer(start, start) + gained) @ E.T)))
        else:
            costs.append(np.sum(B * (E @ moment @ E.T)))
            Phi, L = _host(filter.transition).T, _host(filter.gain).T
            moment = Phi @ moment @ Phi.T + L @ _host(filter.S) @ L.T
    return float((1.0 - share) ** 2 * _summed(params, np.array(costs))[-1])


@dataclasses.dataclass(frozen=True)
class Memoryless:
    """a = a_s(s) of the system without z, from the first entries of an observation."""

    def __call__(
        self, params: QuadraticGaussian, obs: Float[Array, "d"], key: PRNGKeyArray
    ) -> Float[Array, "m"]:
        """Act at one ``obs``; ``params`` is the system, and no ``key`` is used."""
        return params.optimum(obs[: params.state_dim]).action


def memoryless(params: EnvParams) -> Policy:
    """a_s(s), optimal where nothing pushes, for one problem, ``params``: what a policy without
    memory can do with the model at hand, if not the best of its kind: s itself tells of z. Raises
    InputError for a system without a hidden part.
    """
    return Policy(_hidden(params).inner, Memoryless(), "memoryless")


def trusting(share: float) -> ReferencePolicy:
    """a_s(s) - κ E ẑ, κ = ``share``: 1 is the optimum, 0 :func:`memoryless`; as a reference it is
    given the belief by the optimum. Raises InputError for a share that is not finite.
    """
    share = inputs.number("trusting", share)
    return ReferencePolicy(f"trusting:{share:g}", _act_trusting, partial(_trust, share))


def _trust(share: float, params: EnvParams) -> PyTree:
    inner = _hidden(params).inner
    return jnp.asarray(share, inner.gamma.dtype), inner


def _act_trusting(params: PyTree, optimum: Optimum, obs: Array, key: PRNGKeyArray) -> Array:
    share, inner = params
    alone = inner.optimum(obs[: inner.state_dim]).action
    return alone + share * (optimum.action - alone)


def _hidden(params: EnvParams, name: str = "params") -> Hidden:
    """The system of ``params``; raises InputError for one in which nothing is hidden."""
    system = innermost(params.system)[0]
    if not isinstance(system, Hidden):
        raise InputError(
            f"{name}: expected a system with a hidden part (cojax.hidden), got "
            f"{type(system).__name__}"
        )
    return system


def _at_first(system: Hidden) -> Float[Array, "n"]:
    """A state with the belief b_0."""
    s = jnp.zeros(system.inner.state_dim, system.gamma.dtype)
    return jnp.concatenate([s, system.filter.initial()])


def _prices(system: Hidden, steps: int) -> Float[np.ndarray, " T"]:
    """tr(B E Π_k Eᵀ)."""
    filter, B = system.filter, _curvature(system)
    E, k = _host(filter.effect).T, np.arange(steps)
    if isinstance(filter, Kalman):
        return np.full(steps, np.sum(B * (E @ _host(filter.root_Pi) @ _host(filter.root_Pi) @ E.T)))
    if isinstance(filter, Constant):
        pushed = E @ _host(filter.outward).T
        weights = np.sum(pushed * (B @ pushed), axis=0)
        return np.sum(weights / (1.0 + k[:, None] * _host(filter.kappa)), axis=1)
    raise InputError("params: expected a belief with a covariance, got two hypotheses")


def _summed(params: EnvParams, costs: np.ndarray) -> Float[np.ndarray, " T"]:
    """Σ_{k<T} γᵏ costs_k for T = 0 …"""
    discounted = float(params.system.gamma) ** np.arange(len(costs)) * costs
    return np.concatenate([[0.0], np.cumsum(discounted)])


def _curvature(system: Hidden) -> Float[np.ndarray, "m m"]:
    """B = R + γp²gᵀP g of a constant g."""
    R = _host(system.inner.R)
    R = np.diag(R) if R.ndim == 1 else R
    return R + float(system.gamma) * _host(system.spent)


def _host(x: Array) -> np.ndarray:
    return np.asarray(x, np.float64)
