"""Derivatives to the states of environments: which leaves have one, and what bounds it."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from cojax.linalg import lift
from cojax.types import Array, Float, PyTree


def inexact(state: PyTree) -> list[Array]:
    """Those leaves of an environment's state that have derivatives."""
    return [x for x in jax.tree.leaves(state) if jnp.issubdtype(x.dtype, jnp.inexact)]


def moved(state: PyTree, by: list[Array]) -> PyTree:
    """The state with ``by`` added to its inexact leaves."""
    return replaced(state, [x + y for x, y in zip(inexact(state), by, strict=True)])


def replaced(state: PyTree, leaves: list[Array]) -> PyTree:
    """The state with others in place of its inexact leaves."""
    new = iter(leaves)
    return jax.tree.map(lambda x: next(new) if jnp.issubdtype(x.dtype, jnp.inexact) else x, state)


@jax.custom_vjp
def bounded(x: list[Array], scale: list[Array], most: Float[Array, ""]) -> list[Array]:
    """x of N environments; the derivative of each to scale · x is at most ``most`` in norm."""
    return x


def _bound(scale, slopes):
    scale, most = scale

    def rows(x):
        return x.reshape(x.shape[0], -1)

    square = sum(jnp.sum(rows(g * lift(r, g)) ** 2, -1) for g, r in zip(slopes, scale, strict=True))
    norm = jnp.sqrt(square)
    finite = jnp.isfinite(norm)
    factor = jnp.where(finite, jnp.minimum(1.0, most / (norm + 1e-30)), 0.0)

    def shrunk(g):
        f = factor.reshape(-1, *(1,) * (g.ndim - 1))
        return jnp.where(jnp.isfinite(g), g, 0.0) * f

    return [shrunk(g) for g in slopes], jax.tree.map(jnp.zeros_like, scale), jnp.zeros_like(most)


bounded.defvjp(lambda x, scale, most: (x, (scale, most)), _bound)
