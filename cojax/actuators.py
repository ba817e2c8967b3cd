"""Systems whose actuators are not linear: the action ν becomes u = ν + η ν³, and V* stays as it is.

    s' = f_p(s) + p g(s) u + w,    c = sᵀQ s + uᵀR u,    u = φ(ν) = ν + η ν³ for each action, η >= 0

φ is one to one, so the best ν is the one that does what the best u does: with a*(s) of the system
in u (:mod:`cojax.quadratic`),

    ν*(s) = φ⁻¹(a*(s))        V* as before        A*(s, ν* + δ) = A*(s, a* + e),
    e = φ(ν* + δ) - φ(ν*) = δ (1 + η (3 ν*² + 3 ν* δ + δ²))

without a difference of near numbers. Q*(s, ·) need not be convex in ν, and has no minimum but ν*.
Actions, bounds on them and everything a learner sees are in ν.
"""

from __future__ import annotations

import math
from typing import ClassVar

import jax.numpy as jnp
import numpy as np
from flax import struct

from cojax import inputs, precision, quadratic
from cojax.action_limits import Ball
from cojax.distinct import of_another
from cojax.errors import InputError
from cojax.geometry import Knob
from cojax.quadratic import Geometry, QuadraticGaussian
from cojax.types import Array, Float, Option


class CubicGeometry(Geometry):
    """A family whose actuators have a knob ``eta``: η, 0 for none. Its g maps u, not ν."""

    eta: Knob
    limits: ClassVar = {"eta": (0.0, math.inf)}

    def assemble(self, **options: Option) -> QuadraticGaussian:
        """The system from ``options``, all stated: those of :func:`cojax.quadratic.build`. A limit
        is one of u; raises InputError for a ball.
        """
        if isinstance(options.get("limit"), Ball):
            raise InputError("action_limit: expected a box of u = ν + η ν³, got a ball")
        return CubicGaussian(**of_another(quadratic.build(self, **options)))


@inputs.guarded
@struct.dataclass(repr=False)
class CubicGaussian(QuadraticGaussian):
    """A QG system that receives ν: ``R``, ``push`` and B are of u."""

    @property
    def constant_curvature(self):
        """No: A* is not quadratic in ν."""
        return False

    @property
    def eta(self) -> Knob:
        """η."""
        geometry = self.geometry
        assert isinstance(geometry, CubicGeometry)
        return geometry.eta

    def optimum(self, s):
        """That in u, with ν* = φ⁻¹(a*)."""
        found = super().optimum(s)
        return found._replace(action=uncubed(found.action, self.eta))

    def actuate(self, s, a):
        """p g(s) φ(ν)."""
        return self.push(s, cubed(a, self.eta))

    def next_mean(self, s, a, optimum):
        """z* + p g(s) e."""
        return optimum.next_mean + self.push(s, self._moved(a - optimum.action, optimum.action))

    def stage_cost(self, s, a):
        """c = sᵀQ s + φ(ν)ᵀR φ(ν)."""
        return super().stage_cost(s, cubed(a, self.eta))

    def excess_cost(self, s, delta, optimum=None):
        """A* = eᵀB(s) e, and what a limit adds."""
        at = self.optimum(s) if optimum is None else optimum
        moved = self._moved(delta, at.action)
        return super().excess_cost(s, moved, at._replace(action=cubed(at.action, self.eta)))

    def noise_price(self, s, a):
        """Of u."""
        return super().noise_price(s, cubed(a, self.eta))

    def sample_noise(self, s, key, a=None):
        """With noise on u."""
        return super().sample_noise(s, key, None if a is None else cubed(a, self.eta))

    def feasible(self, a):
        """ν of the feasible u that is nearest to φ(ν), where a limit is on u."""
        if self.limit is None:
            return a
        return uncubed(super().feasible(cubed(a, self.eta)), self.eta)

    def feasible_box(self):
        """φ⁻¹ of that of u."""
        box = super().feasible_box()
        if box is None:
            return None
        with precision.x64():
            return np.asarray(uncubed(jnp.asarray(box), jnp.asarray(np.asarray(self.eta, float))))

    def reach(self, radius, start, limit):
        """As for actions within φ(limit)."""
        return super().reach(radius, start, cubed(limit, self.eta))

    def _moved(self, delta: Array, action: Array) -> Array:
        """e."""
        more = 3.0 * action * action + 3.0 * action * delta + delta * delta
        return delta * (1.0 + self.eta * more)


def cubed(nu: Float[Array, "m"], eta: Knob) -> Float[Array, "m"]:
    """φ(ν) = ν + η ν³."""
    return nu * (1.0 + eta * nu * nu)


def uncubed(u: Float[Array, "m"], eta: Knob) -> Float[Array, "m"]:
    """φ⁻¹(u): the real root of η ν³ + ν = u, ν = 2 sinh(asinh(k u 3/2)/3)/k with k = sqrt(3η), and
    two steps of Newton's method, which take off what rounding left; u for η = 0.
    """
    k = jnp.sqrt(3.0 * jnp.asarray(eta, u.dtype))
    curved = k > 0.0
    safe = jnp.where(curved, k, 1.0)
    nu = 2.0 * jnp.sinh(jnp.arcsinh(1.5 * safe * u) / 3.0) / safe
    nu = jnp.where(curved, nu, u)
    for _ in range(2):
        nu = nu - (cubed(nu, eta) - u) / (1.0 + 3.0 * eta * nu * nu)
    return nu
