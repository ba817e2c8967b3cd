"""The oracle: optimal action, value, Q-value and advantage of a system at one state.

    a*(s) = argmin_a Q*(s, a)          V*(s) = min_a Q*(s, a)
    Q*(s, a) = c(s, a) + γ E V*(f(s) + G(s) a + w)
    A*(s, a) = Q*(s, a) - V*(s) >= 0

Costs are minimised, so a reward is -c and a gap is positive. All are pure functions of
(system, s[, a]) for jit, vmap and grad; called by themselves they are one compiled call.
Source: paper eqs. (1)-(3) and Section V.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from cojax import linalg
from cojax import system as systems
from cojax.errors import InputError
from cojax.system import System
from cojax.types import Array, Float


@jax.jit
def action(system: System, s: Float[Array, "d"]) -> Float[Array, "m"]:
    """Optimal action a*(s) of a ``system`` at one state s.

    In the QG case a* = -γ p B(s)⁻¹ gᵀ P f_p(s), B = R + γ p² gᵀ P g (paper, Section V), computed
    as a* = -p R⁻¹ gᵀ y from y = M^{-1/2} u, without a solve.
    """
    return system.optimum(s).action


@jax.jit
def value(system: System, s: Float[Array, "d"]) -> Float[Array, ""]:
    """Optimal value V*(s) of a ``system``, in units of cost, offset b included.

    In the QG case V*(s) = sᵀP s + γ/(1-γ) tr(P Σ) (paper, Section V).
    """
    return system.value(s)


@jax.jit
def q_value(system: System, s: Float[Array, "d"], a: Float[Array, "m"]) -> Float[Array, ""]:
    """Q*(s, a) = c(s, a) + γ E V*(f(s) + G(s) a + w) of a ``system``."""
    z = systems.mean_next_state(system, s, a)
    return system.stage_cost(s, a) + system.gamma * system.expected_value(s, z, a)


@jax.jit
def advantage(system: System, s: Float[Array, "d"], a: Float[Array, "m"]) -> Float[Array, ""]:
    """A*(s, a) = Q*(s, a) - V*(s) >= 0 of a ``system``.

    Computed without the cancellation of that difference: in the QG case
    A* = |a - a*|²_R + γ p² |g (a - a*)|²_P, exactly 0 at a = a*.
    """
    optimum = system.optimum(s)
    return system.excess_cost(s, a - optimum.action, optimum)


@jax.jit
def drift(system: System, s: Float[Array, "d"]) -> Float[Array, "d"]:
    """Drift f(s) of a ``system``."""
    return system.optimum(s).drift


@jax.jit
def mean_next_state(
    system: System, s: Float[Array, "d"], a: Float[Array, "m"]
) -> Float[Array, "d"]:
    """z(s, a) = f(s) + G(s) a of a ``system``."""
    return systems.mean_next_state(system, s, a)


@jax.jit
def stage_cost(system: System, s: Float[Array, "d"], a: Float[Array, "m"]) -> Float[Array, ""]:
    """c(s, a) = q(s) + ρ(a) of a ``system``, in units of cost."""
    return system.stage_cost(s, a)


# --- the soft optimum ----------------------------------------------------------------------------


@jax.jit
def soft_action(
    system: System, s: Float[Array, "d"], temperature: Float[Array, ""] | float
) -> tuple[Float[Array, "m"], Float[Array, "m m"]]:
    """Mean and covariance of the optimal policy where entropy earns α, the ``temperature`` > 0:

        π(·|s) = N(a*(s), α/2 B⁻¹),   A*(s, a) = (a - a*)ᵀB (a - a*)

    which minimises E Σ γᵏ (c(s_k, a_k) + α log π(a_k|s_k)). There is no bound on actions in it.
    Raises InputError for a ``system`` whose B depends on the state: no more is known there.
    """
    B = _curvature(system, s)
    inverse = linalg.solve_spd(B, jnp.eye(B.shape[0], dtype=B.dtype))
    return system.optimum(s).action, 0.5 * temperature * inverse


@jax.jit
def soft_value(
    system: System, s: Float[Array, "d"], temperature: Float[Array, ""] | float
) -> Float[Array, ""]:
    """The value that :func:`soft_action` has, in units of cost, α being the ``temperature`` > 0:

        V(s) = V*(s) - α (m log(πα) - log det B) / (2 (1 - γ)),

    the fixed point of V(s) = -α log ∫ exp(-(c(s, a) + γ E V(s'))/α) da, since
    ∫ exp(-A*/α) da = (πα)^{m/2} det(B)^{-1/2} at every state. Raises InputError as it does.
    """
    B = _curvature(system, s)
    volume = B.shape[0] * jnp.log(jnp.pi * jnp.asarray(temperature, B.dtype))
    volume = volume - linalg.log_det_spd(B)
    return system.value(s) - 0.5 * temperature * volume / (1.0 - system.gamma)


def _curvature(system: System, s: Float[Array, "d"]) -> Float[Array, "m m"]:
    """B, where it is the same at every state."""
    if not system.constant_curvature:
        name = getattr(getattr(system, "geometry", None), "family", type(system).__name__)
        raise InputError(
            f"system: expected A* = δᵀB δ with one B for all states, which {name} has not; "
            "its soft optimum is not known"
        )
    zero = jnp.zeros(system.action_dim, s.dtype)
    return 0.5 * jax.hessian(lambda delta: system.excess_cost(s, delta))(zero)
