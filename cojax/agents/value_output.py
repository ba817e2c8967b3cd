"""What a critic's output o says of a value: Q = sinh(o)/κ, which spans orders of magnitude.

An error that is relative where |Q| is above 1/κ, and absolute below, is measured by

    (Q - y)²/(1 + (κ Q)²)

with the denominator held constant: the weight does not see the target y, so that its mean stays the
aim (a squared error of transformed targets, Pohlen et al. 2018, arXiv:1805.11593, has another). As
dQ/do = √(1 + (κ Q)²)/κ, the slope of the root of that error to o is 1/κ at every Q. With κ = 0 the
output is Q itself and the weight 1.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from cojax.agents.algorithm import Number
from cojax.types import Array, Float

MOST = 30.0  # of |o|; sinh of it is 5e12


def value(out: Float[Array, "*batch"], kappa: Number) -> Float[Array, "*batch"]:
    """Q = sinh(o)/κ, or o where κ = 0."""
    safe = jnp.where(kappa > 0, kappa, 1.0)
    return jnp.where(kappa > 0, jnp.sinh(jnp.clip(out, -MOST, MOST)) / safe, out)


def error_weight(q: Float[Array, "*batch"], kappa: Number) -> Float[Array, "*batch"]:
    """1/(1 + (κ Q)²), constant to gradients: what a squared error counts."""
    return 1.0 / (1.0 + (kappa * jax.lax.stop_gradient(q)) ** 2)


def state_weight(q: Float[Array, "*batch"], kappa: Number) -> Float[Array, "*batch"]:
    """1/√(1 + (κ Q)²), constant to gradients: what a state counts for an actor.

    What is best in a state does not depend on it. Without it the states where most is lost would
    be all that an actor learns from.
    """
    return jnp.sqrt(error_weight(q, kappa))
