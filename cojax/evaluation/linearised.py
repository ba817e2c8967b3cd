"""The linearisation at the origin, and the discounted linear-quadratic regulator of it."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from cojax import precision
from cojax.errors import InputError
from cojax.fixtures.linear import riccati
from cojax.system import System
from cojax.types import Array, Float


def linearisation(
    system: System,
) -> tuple[
    Float[np.ndarray, "n n"],
    Float[np.ndarray, "n m"],
    Float[np.ndarray, "n n"],
    Float[np.ndarray, "m m"],
]:
    """A, B, Q, R of s' ≈ A s + B a, c ≈ sᵀQ s + 2 sᵀN a + aᵀR a at the origin, in float64.

    A comes from central differences of the mean next state over a step of 1e-5, since the SR
    drift is homogeneous there and has no derivative; the others are derivatives, exact.
    """
    A, B, Q, R, _ = _matrices(system)
    return A, B, Q, R


def _matrices(system: System) -> list[np.ndarray]:
    """A, B, Q, R, N."""
    with precision.x64():
        return [np.asarray(x) for x in _linearisation(jax.tree.map(_to_float64, system))]


@jax.jit
def _linearisation(system: System) -> tuple[jax.Array, ...]:
    d, m = system.state_dim, system.action_dim
    s, a, step = jnp.zeros(d), jnp.zeros(m), 1e-5
    ahead, behind = jax.vmap(lambda x: system.optimum(x).drift)(
        step * jnp.concatenate([jnp.eye(d), -jnp.eye(d)])
    ).reshape(2, d, d)
    A = (ahead - behind).T / (2.0 * step)
    B = jax.jacfwd(lambda x: system.actuate(s, x))(a)
    Q = 0.5 * jax.hessian(lambda x: system.stage_cost(x, a))(s)
    R = 0.5 * jax.hessian(lambda x: system.stage_cost(s, x))(a)
    cross = jax.jacfwd(jax.grad(system.stage_cost, 1), 0)(s, a).T
    return A, B, Q, R, 0.5 * cross


def regulator(system: System) -> tuple[Float[np.ndarray, "n n"], Float[np.ndarray, "m n"]]:
    """X and K, float64: value sᵀX s and action a = -K s of the regulator.

    X = Q + γAᵀXA - Kᵀ(R + γBᵀXB)K,  K = (R + γBᵀXB)⁻¹(γBᵀXA + Nᵀ), with what is in
    :func:`linearisation` (Bertsekas, Dynamic Programming and Optimal Control, vol. 1, sec. 3.1).

    Raises ValueError where the equation has no stabilising solution.
    """
    A, B, Q, R, N = _matrices(system)
    solution = riccati(A, B, Q, R, gamma=float(system.gamma), N=N)
    if solution is None:
        raise InputError(
            "lqr: the discounted Riccati equation of the linearisation at the origin has no "
            "stabilising solution"
        )
    return solution


def lqr_gain(system: System) -> Float[np.ndarray, "m n"]:
    """K, float64: a = -K s is the discounted LQR of a system at the origin.

    K is that of :func:`regulator`, and ValueError is raised as there. Of a system with hidden parts
    it is that of what can be known, less the columns of what is not seen.
    """
    return regulator(system.known)[1][:, : system.observed_dim]


def _to_float64(leaf: Array) -> Array:
    host = np.asarray(leaf)
    return jnp.asarray(host.astype(np.float64) if host.dtype.kind == "f" else host)
