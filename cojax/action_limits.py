"""Hard limits on the actions for which value, policy and drift stay exact.

The paper clips actions to ±2, and where that binds its V* is no longer the optimum. Here the
construction knows the limit: with ŷ = M^{-1/2} u, v = p gᵀŷ and Q, R, P as they are,

    y = t ŷ      a* = nearest feasible action to -R⁻¹ t v, in |·|_R      f = M0 t ŷ - p g a*

where t >= 1 is the root of a*(t)ᵀR a*(t) + t² ŷᵀM0 ŷ = |u|². Then V* = sᵀP s + b is the optimal
value of the limited problem: Q*(s, ·) is convex, a* meets its optimality conditions, and what f
spends is the energy as before. Where no action is at its limit t = 1, which is the paper's system.
A feasible a = a* + δ has A* = δᵀB δ + 2 (R a* + γ p gᵀP z*)ᵀδ, both terms >= 0.

With an effective cost R̂ the same holds with R̂ for R.
"""

from __future__ import annotations

import abc
from typing import ClassVar

import jax.numpy as jnp
import numpy as np
from flax import struct

from cojax import linalg
from cojax.distinct import Distinct
from cojax.linalg import Symmetric, dot, matvec, quadratic_form
from cojax.types import Array, Float

NEAR = 1e-5  # relative, of an action that is at its limit up to rounding


class ActionLimit(Distinct, abc.ABC):
    """A convex set of feasible actions, the origin inside."""

    word: ClassVar[str]

    @abc.abstractmethod
    def stretched(
        self, v: Float[Array, "m"], free: Float[Array, "m"], *, rest: Float[Array, ""], R: Symmetric
    ) -> tuple[Float[Array, ""], Float[Array, "m"]]:
        """t and a* from v = p gᵀŷ, the action ``free`` = -R⁻¹v without a limit, and ŷᵀM0 ŷ."""

    @abc.abstractmethod
    def feasible(self, a: Float[Array, "m"], R: Symmetric) -> Float[Array, "m"]:
        """The feasible action nearest to a, in |·|_R."""

    @abc.abstractmethod
    def at_limit(self, a: Float[Array, "m"], R: Symmetric) -> Float[Array, "*m"]:
        """Which entries of a feasible action are at the limit."""

    @abc.abstractmethod
    def box(self, R_inverse: np.ndarray) -> np.ndarray:
        """The smallest box [-limit, limit], (m,), around the feasible actions."""


@struct.dataclass
class Box(ActionLimit):
    """|a_i| <= bound_i, with a diagonal R.

    The energy is piecewise linear and concave in x = t²: x ŷᵀM0 ŷ + Σ_i min(x v_i²/R_i, R_i ū_i²).
    So x is the largest of m + 1 candidates: none at its limit, or those that come to it no later
    than action i.
    """

    bound: Float[Array, "*batch m"]
    word = "box"

    def stretched(self, v, free, *, rest, R):
        """The largest candidate; 1 where all actions are inside."""
        most, spent = R * self.bound**2, -v * free
        held = most[None] * spent[:, None] <= most[:, None] * spent[None]  # j, where i comes to it
        kept = jnp.sum(jnp.where(held, most[None], 0.0), axis=1)
        slope = rest + jnp.sum(jnp.where(held, 0.0, spent[None]), axis=1)
        x = (rest + jnp.sum(spent) - kept) / jnp.where(slope > 0.0, slope, 1.0)
        x = jnp.max(jnp.where(slope > 0.0, x, 1.0))
        inside = jnp.all(jnp.abs(free) <= self.bound)
        t = jnp.where(inside, 1.0, jnp.sqrt(jnp.maximum(x, 1.0)))
        return t, jnp.clip(t * free, -self.bound, self.bound)

    def feasible(self, a, R):
        """Each entry clipped."""
        bound = jnp.broadcast_to(self.bound, a.shape)
        return jnp.clip(a, -bound, bound)

    def at_limit(self, a, R):
        """Those at their bounds, up to rounding."""
        return jnp.abs(a) >= (1.0 - NEAR) * self.bound

    def box(self, R_inverse):
        """Itself."""
        return np.asarray(self.bound, np.float64)


@struct.dataclass
class Ball(ActionLimit):
    """|a|_R <= bound: a budget of the power that all actions spend together."""

    bound: Float[Array, "*batch"]
    word = "ball"

    def stretched(self, v, free, *, rest, R):
        """t² = (|u|² - ū²)/ŷᵀM0 ŷ where the free action is outside; 1 inside."""
        spent = -dot(v, free)
        outside = spent > self.bound**2
        norm = jnp.sqrt(jnp.where(outside, spent, 1.0))
        x = (spent + rest - self.bound**2) / jnp.where(rest > 0.0, rest, 1.0)
        t = jnp.where(outside, jnp.sqrt(jnp.maximum(x, 1.0)), 1.0)
        return t, free * jnp.where(outside, self.bound / norm, 1.0)

    def feasible(self, a, R):
        """Scaled to the ball from outside; what is on it up to rounding stays."""
        square, most = quadratic_form(R, a), self.bound**2
        outside = square > (1.0 + 8.0 * jnp.finfo(a.dtype).eps) * most
        return a * jnp.where(outside, self.bound / jnp.sqrt(jnp.where(outside, square, 1.0)), 1.0)

    def at_limit(self, a, R):
        """All entries together."""
        return quadratic_form(R, a) >= (1.0 - NEAR) * self.bound**2

    def box(self, R_inverse):
        """ū sqrt((R⁻¹)_ii)."""
        diagonal = R_inverse if R_inverse.ndim == 1 else np.diagonal(R_inverse)
        return float(self.bound) * np.sqrt(diagonal)


LIMITS: dict[str, type[ActionLimit]] = {kind.word: kind for kind in (Box, Ball)}


def linear_excess(
    limit: ActionLimit,
    action: Float[Array, "m"],
    delta: Float[Array, "m"],
    *,
    R: Symmetric,
    future: Float[Array, "m"],
) -> Float[Array, ""]:
    """2 (R a* + γ p gᵀP z*)ᵀδ >= 0 for a feasible a* + δ, ``future`` = γ p gᵀP z*.

    0 to the bit where a* is inside, as rounding would not have it.
    """
    pull = matvec(R, action) + future
    held = limit.at_limit(action, R)
    if jnp.ndim(held):
        return 2.0 * jnp.sum(jnp.where(held, jnp.maximum(pull * delta, 0.0), 0.0))
    return 2.0 * jnp.where(held, jnp.maximum(linalg.dot(pull, delta), 0.0), 0.0)
