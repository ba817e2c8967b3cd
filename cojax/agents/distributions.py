"""Log-densities and samples of the two policies: diagonal Gaussian, tanh-squashed Gaussian.

Both live in units of the action box, u = (a - centre) / half_range per dimension, so that a
standard deviation of 0.1 is a tenth of the half range in every dimension.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp

from cojax.agents.algorithm import Space
from cojax.linalg import lift
from cojax.types import Array, Float

LOG_2PI = math.log(2.0 * math.pi)


class ActionBox(NamedTuple):
    """Bounds of the actions, per dimension: a ∈ [low, high]; and the unit they are measured in.

    Attributes:
        low: lower bounds.
        high: upper bounds.
        unit: fraction of the half range.
    """

    low: Float[Array, " m"]
    high: Float[Array, " m"]
    unit: Float[Array, ""] | float = 1.0

    @classmethod
    def of(cls, space: Space, unit: Float[Array, ""] | float = 1.0) -> ActionBox:
        """Bounds of a gymnax Box, broadcast to its shape."""
        low = jnp.broadcast_to(jnp.asarray(space.low, jnp.float32), space.shape)
        high = jnp.broadcast_to(jnp.asarray(space.high, jnp.float32), space.shape)
        return cls(low, high, unit)

    def half_range(self) -> Float[Array, " m"]:
        """unit · (high - low) / 2, and the unit where a bound is infinite."""
        finite = jnp.isfinite(self.low) & jnp.isfinite(self.high)
        return self.unit * jnp.where(finite, 0.5 * (self.high - self.low), 1.0)

    def squash(self, x: Float[Array, "*batch m"]) -> Float[Array, "*batch m"]:
        """u = tanh(unit · x)/unit: x where it is small, inside the box where it is not."""
        return jnp.tanh(self.unit * x) / self.unit

    def inside(self, u: Float[Array, "*batch m"]) -> Float[Array, "*batch m"]:
        """Nearest u in the box."""
        return jnp.clip(u, -1.0 / self.unit, 1.0 / self.unit)

    def to_action(self, u: Float[Array, "*batch m"]) -> Float[Array, "*batch m"]:
        """a = centre + half_range · u, unclipped."""
        finite = jnp.isfinite(self.low) & jnp.isfinite(self.high)
        centre = jnp.where(finite, 0.5 * (self.high + self.low), 0.0)
        return lift(centre, u) + lift(self.half_range(), u) * u

    def clip(self, action: Float[Array, "*batch m"]) -> Float[Array, "*batch m"]:
        """Nearest action inside the box, per dimension; what is not finite stays as it is."""
        low, high = lift(self.low, action), lift(self.high, action)
        return jnp.where(jnp.isfinite(action), jnp.clip(action, low, high), action)


def gaussian_log_prob(
    u: Float[Array, "*batch m"], mean: Float[Array, "*batch m"], log_std: Float[Array, "*#batch m"]
) -> Float[Array, "*batch"]:
    """log N(u; mean, diag exp(2 log_std)) = -Σ_i ½((u_i-μ_i)/σ_i)² + log σ_i + ½ log 2π."""
    log_std = lift(log_std, u)
    z = (u - mean) * jnp.exp(-log_std)
    return -jnp.sum(0.5 * z**2 + log_std + 0.5 * LOG_2PI, axis=-1)


def gaussian_entropy(log_std: Float[Array, "*batch m"]) -> Float[Array, "*batch"]:
    """Σ_i log σ_i + ½ log 2πe."""
    return jnp.sum(log_std + 0.5 * (LOG_2PI + 1.0), axis=-1)


def log_tanh_slope(x: Float[Array, "*batch"]) -> Float[Array, "*batch"]:
    """log(1 - tanh²x) = 2(log 2 - x - softplus(-2x)), exact where tanh x rounds to ±1."""
    return 2.0 * (math.log(2.0) - x - jax.nn.softplus(-2.0 * x))


def tanh_gaussian_log_prob(
    x: Float[Array, "*batch m"],
    mean: Float[Array, "*batch m"],
    log_std: Float[Array, "*#batch m"],
    half_range: Float[Array, " m"],
    *,
    unit: Float[Array, ""] | float = 1.0,
) -> Float[Array, "*batch"]:
    """Log-density of the action a = centre + half_range · tanh(x), from its pre-tanh sample x.

    log π(a) = log N(x; μ, σ²) - Σ_i log(1 - tanh²x_i) - Σ_i log half_range_i

    The last sum makes it a density in the environment's action units, so the target entropy -m of
    Haarnoja et al. (2018, arXiv:1812.05905, appendix C) means what it says there. Of actions in
    another unit, a = centre + half_range · tanh(unit x)/unit, the slope is that at unit · x.
    """
    volume = log_tanh_slope(unit * x) + lift(jnp.log(half_range), x)
    return gaussian_log_prob(x, mean, log_std) - jnp.sum(volume, axis=-1)
