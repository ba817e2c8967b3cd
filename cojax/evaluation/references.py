"""Reference policies: what a learner is measured against, and canaries of known order.

A reference is given the optimum at the state, computed once by the evaluator, so that the oracle
plays exactly the action it is compared with. A :class:`cojax.policy.Policy` sees observations only.

    oracle                   a = a*(s)
    zero                     a = 0
    random                   a ~ U(-limit, limit)
    lqr                      a = -K s, K of the linearisation at the origin
    receding-horizon:STEPS   first action of an optimal plan along the mean dynamics, by iLQR
    dithered-oracle:STD      a = a*(s) + ξ, Cov ξ = STD² I; gap tr(B C)(1-γᵀ)/(1-γ) for constant B
    detuned-oracle:FACTOR    a = FACTOR · a*(s)
"""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp

from cojax import errors, inputs
from cojax.envs import EnvParams
from cojax.errors import InputError
from cojax.evaluation import planning
from cojax.evaluation.linearised import lqr_gain
from cojax.io.described import described
from cojax.system import Optimum
from cojax.types import Array, PRNGKeyArray, PyTree

Act = Callable[[PyTree, Optimum, Array, PRNGKeyArray], Array]


@described(lambda reference: (f"ReferencePolicy {reference.name!r}", {}))
@dataclasses.dataclass(frozen=True)
class ReferencePolicy:
    """A policy that may see the optimum.

    Attributes:
        name: how tables call it.
        act: ``(params, optimum, obs, key) -> a`` for one state, a of shape (m,); a function of a
            module, so that equal references share one compilation.
        make_params: ``env_params -> params`` on the host, for one system.
    """

    name: str
    act: Act
    make_params: Callable[[EnvParams], PyTree]


def act_oracle(params: PyTree, optimum: Optimum, obs: Array, key: PRNGKeyArray) -> Array:
    """a = a*(s)."""
    return optimum.action


def act_zero(params: PyTree, optimum: Optimum, obs: Array, key: PRNGKeyArray) -> Array:
    """a = 0."""
    return jnp.zeros_like(optimum.action)


def act_random(limit: Array, optimum: Optimum, obs: Array, key: PRNGKeyArray) -> Array:
    """a ~ U(-limit, limit); drawn in float32 and cast, as the noise is."""
    u = jax.random.uniform(key, optimum.action.shape, jnp.float32, -1.0, 1.0)
    return limit * u.astype(limit.dtype)


def act_dithered(std: Array, optimum: Optimum, obs: Array, key: PRNGKeyArray) -> Array:
    """a = a*(s) + std ξ, ξ ~ N(0, I)."""
    xi = jax.random.normal(key, optimum.action.shape, jnp.float32)
    return optimum.action + std * xi.astype(std.dtype)


def act_detuned(factor: Array, optimum: Optimum, obs: Array, key: PRNGKeyArray) -> Array:
    """a = factor · a*(s)."""
    return factor * optimum.action


def act_linear(K: Array, optimum: Optimum, obs: Array, key: PRNGKeyArray) -> Array:
    """a = -K s."""
    return -jnp.matmul(K, obs, precision=jax.lax.Precision.HIGHEST)


def _nothing(env_params: EnvParams) -> tuple[()]:
    return ()


def _constant(value: float, env_params: EnvParams) -> Array:
    return jnp.asarray(value, env_params.system.gamma.dtype)


def _lqr_gain(env_params: EnvParams) -> Array:
    return jnp.asarray(lqr_gain(env_params.system), env_params.system.gamma.dtype)


ORACLE = ReferencePolicy("oracle", act_oracle, _nothing)
ZERO = ReferencePolicy("zero", act_zero, _nothing)
RANDOM = ReferencePolicy("random", act_random, operator.attrgetter("action_limit"))
LQR = ReferencePolicy("lqr", act_linear, _lqr_gain)


def dithered_oracle(std: float) -> ReferencePolicy:
    """a = a* + ξ, Cov ξ = std² I.

    Where B is constant its expected suboptimality over T steps is known exactly,
    std² tr(B) (1 - γᵀ)/(1 - γ), from every initial state (performance-difference identity).

    Raises ValueError unless std is a finite number >= 0.
    """
    std = inputs.number("dithered-oracle", std, 0.0)
    return ReferencePolicy(f"dithered-oracle:{std:g}", act_dithered, partial(_constant, std))


def detuned_oracle(factor: float) -> ReferencePolicy:
    """a = factor · a*; factor 1 is the oracle. Raises ValueError unless factor is finite."""
    factor = inputs.number("detuned-oracle", factor)
    return ReferencePolicy(f"detuned-oracle:{factor:g}", act_detuned, partial(_constant, factor))


def receding_horizon(horizon: int = planning.HORIZON) -> ReferencePolicy:
    """Plan ``horizon`` steps along the mean dynamics, play the first action, and plan again.

    The plan ends in the value of the LQR at the origin: nothing is taken from the optimum
    (:mod:`cojax.evaluation.planning`). Raises ValueError unless horizon is a whole
    number >= 1.
    """
    horizon = inputs.whole("receding-horizon", horizon, 1)
    make = partial(planning.make_planner, horizon)
    return ReferencePolicy(f"receding-horizon:{horizon}", planning.act, make)


_PLAIN = {reference.name: reference for reference in (ORACLE, ZERO, RANDOM, LQR)}
_NUMBERED = {
    "dithered-oracle": ("STD", "a finite number >= 0", "0.05", float, dithered_oracle),
    "detuned-oracle": ("FACTOR", "a finite number", "0.8", float, detuned_oracle),
    "receding-horizon": ("STEPS", "a whole number >= 1", "8", int, receding_horizon),
}
NAMES = (*_PLAIN, *_NUMBERED)


def parse_policy(text: str) -> ReferencePolicy:
    """The reference a text names: "oracle", "lqr", "dithered-oracle:0.05", "receding-horizon", …

    Raises ValueError, one line, suggesting the nearest name.
    """
    name, colon, number = text.partition(":")
    errors.one_of("policy", name, NAMES)
    if name in _PLAIN:
        if colon:
            raise InputError(f"policy {text!r}: expected {name} alone, it takes no number")
        return _PLAIN[name]
    unit, expected, example, convert, factory = _NUMBERED[name]
    if name == "receding-horizon" and not colon:
        return factory()
    try:
        return factory(convert(number))
    except ValueError:
        raise InputError(
            f"policy {text!r}: expected {name}:{unit} with {expected}, e.g. {name}:{example}"
        ) from None
