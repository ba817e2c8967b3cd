"""Reference policies: what a learner is measured against, and canaries of known order.

A reference is given the optimum at the state, computed once by the evaluator, so that the oracle
plays exactly the action it is compared with. A :class:`cojax.policy.Policy` sees observations only.

    oracle                   a = a*(s)
    zero                     a = 0
    random                   a ~ U(-limit, limit)
    lqr                      a = -K s, K of the linearisation at the origin
    dithered-oracle:STD      a = a*(s) + ξ, Cov ξ = STD² I; gap tr(B C)(1-γᵀ)/(1-γ) for constant B
    detuned-oracle:FACTOR    a = FACTOR · a*(s)
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import scipy.linalg

from cojax import inputs, precision
from cojax.envs import EnvParams
from cojax.inputs import InputError
from cojax.system import Optimum, System

Act = Callable[[Any, Optimum, jax.Array, jax.Array], jax.Array]


@dataclasses.dataclass(frozen=True)
class Reference:
    """A policy that may see the optimum.

    Attributes:
        name: how tables call it.
        act: ``(params, optimum, obs, key) -> a`` for one state, a of shape (m,); a function of a
            module, so that equal references share one compilation.
        make_params: ``env_params -> params`` on the host, for one system.
    """

    name: str
    act: Act
    make_params: Callable[[EnvParams], Any]


# --- how they act --------------------------------------------------------------------------------


def act_oracle(params: Any, optimum: Optimum, obs: jax.Array, key: jax.Array) -> jax.Array:
    """a = a*(s)."""
    return optimum.action


def act_zero(params: Any, optimum: Optimum, obs: jax.Array, key: jax.Array) -> jax.Array:
    """a = 0."""
    return jnp.zeros_like(optimum.action)


def act_random(limit: jax.Array, optimum: Optimum, obs: jax.Array, key: jax.Array) -> jax.Array:
    """a ~ U(-limit, limit); drawn in float32 and cast, as the noise is."""
    u = jax.random.uniform(key, optimum.action.shape, jnp.float32, -1.0, 1.0)
    return limit * u.astype(limit.dtype)


def act_dithered(std: jax.Array, optimum: Optimum, obs: jax.Array, key: jax.Array) -> jax.Array:
    """a = a*(s) + std ξ, ξ ~ N(0, I)."""
    xi = jax.random.normal(key, optimum.action.shape, jnp.float32)
    return optimum.action + std * xi.astype(std.dtype)


def act_detuned(factor: jax.Array, optimum: Optimum, obs: jax.Array, key: jax.Array) -> jax.Array:
    """a = factor · a*(s)."""
    return factor * optimum.action


def act_linear(K: jax.Array, optimum: Optimum, obs: jax.Array, key: jax.Array) -> jax.Array:
    """a = -K s."""
    return -jnp.matmul(K, obs, precision=jax.lax.Precision.HIGHEST)


# --- how they are made ---------------------------------------------------------------------------


def _nothing(env_params: EnvParams) -> tuple[()]:
    return ()


def _limit(env_params: EnvParams) -> jax.Array:
    return env_params.action_limit


def _constant(value: float, env_params: EnvParams) -> jax.Array:
    return jnp.asarray(value, env_params.system.gamma.dtype)


def _lqr_gain(env_params: EnvParams) -> jax.Array:
    return jnp.asarray(lqr_gain(env_params.system), env_params.system.gamma.dtype)


ORACLE = Reference("oracle", act_oracle, _nothing)
ZERO = Reference("zero", act_zero, _nothing)
RANDOM = Reference("random", act_random, _limit)
LQR = Reference("lqr", act_linear, _lqr_gain)


def dithered_oracle(std: float) -> Reference:
    """a = a* + ξ, Cov ξ = std² I.

    Where B is constant its expected suboptimality over T steps is known exactly,
    std² tr(B) (1 - γᵀ)/(1 - γ), from every initial state (performance-difference identity).

    Raises ValueError unless std is a finite number >= 0.
    """
    std = inputs.number("dithered-oracle", std, 0.0)
    return Reference(f"dithered-oracle:{std:g}", act_dithered, partial(_constant, std))


def detuned_oracle(factor: float) -> Reference:
    """a = factor · a*; factor 1 is the oracle. Raises ValueError unless factor is finite."""
    factor = inputs.number("detuned-oracle", factor)
    return Reference(f"detuned-oracle:{factor:g}", act_detuned, partial(_constant, factor))


_PLAIN = {reference.name: reference for reference in (ORACLE, ZERO, RANDOM, LQR)}
_NUMBERED = {
    "dithered-oracle": ("STD", "0.05", dithered_oracle),
    "detuned-oracle": ("FACTOR", "0.8", detuned_oracle),
}
NAMES = (*_PLAIN, *_NUMBERED)


def parse_policy(text: str) -> Reference:
    """The reference a text names: "oracle", "lqr", "dithered-oracle:0.05", …

    Raises ValueError, one line, suggesting the nearest name.
    """
    name, colon, number = text.partition(":")
    inputs.one_of("policy", name, NAMES)
    if name in _PLAIN:
        if colon:
            raise InputError(f"policy {text!r}: expected {name} alone, it takes no number")
        return _PLAIN[name]
    unit, example, factory = _NUMBERED[name]
    try:
        return factory(float(number))
    except ValueError:
        raise InputError(
            f"policy {text!r}: expected {name}:{unit} with a finite number"
            f"{' >= 0' if unit == 'STD' else ''}, e.g. {name}:{example}"
        ) from None


# --- LQR -----------------------------------------------------------------------------------------


def linearisation(system: System) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """A, B, Q, R of s' ≈ A s + B a, c ≈ sᵀQ s + aᵀR a at the origin, in float64.

    A comes from central differences of the mean next state over a step of 1e-5, since the SR
    drift is homogeneous there and has no derivative; the others are derivatives, exact.
    """
    with precision.x64():
        A, B, Q, R = map(np.asarray, _linearisation(jax.tree.map(_to_float64, system)))
    return A, B, Q, R


@jax.jit
def _linearisation(system: System) -> tuple[jax.Array, ...]:
    d, m = system.state_dim, system.action_dim
    s, a, step = jnp.zeros(d), jnp.zeros(m), 1e-5
    ahead, behind = jax.vmap(lambda x: system.optimum(x).drift)(
        step * jnp.concatenate([jnp.eye(d), -jnp.eye(d)])
    ).reshape(2, d, d)
    A = (ahead - behind).T / (2.0 * step)
    B = jax.vmap(lambda x: system.actuate(s, x), out_axes=1)(jnp.eye(m))
    Q = 0.5 * jax.hessian(lambda x: system.stage_cost(x, a))(s)
    R = 0.5 * jax.hessian(lambda x: system.stage_cost(s, x))(a)
    return A, B, Q, R


def lqr_gain(system: System) -> np.ndarray:
    """K, shape (m, d), float64, of the discounted linear-quadratic regulator a = -K s.

    X = Q + γAᵀXA - γ²AᵀXB (R + γBᵀXB)⁻¹ BᵀXA,  K = γ (R + γBᵀXB)⁻¹ BᵀXA, with A, B, Q, R of
    :func:`linearisation` (Bertsekas, Dynamic Programming and Optimal Control, vol. 1, sec. 3.1).

    Raises ValueError where the equation has no stabilising solution.
    """
    A, B, Q, R = linearisation(system)
    gamma = float(system.gamma)
    root = np.sqrt(gamma)
    try:
        X = scipy.linalg.solve_discrete_are(root * A, root * B, Q, R)
        K = gamma * np.linalg.solve(R + gamma * B.T @ X @ B, B.T @ X @ A)
    except (np.linalg.LinAlgError, ValueError) as error:
        raise InputError(
            "lqr: the discounted Riccati equation of the linearisation at the origin has no "
            f"stabilising solution ({error})"
        ) from None
    return K


def _to_float64(leaf: Any) -> jax.Array:
    leaf = np.asarray(leaf)
    return jnp.asarray(leaf.astype(np.float64) if leaf.dtype.kind == "f" else leaf)
