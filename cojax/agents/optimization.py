"""Gradient steps: clipped by the global norm, then Adam, with rates that may be traced."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
import optax
from jax.flatten_util import ravel_pytree

from cojax.agents.algorithm import Number, Scalar
from cojax.types import Array, Int, PRNGKeyArray, PyTree

PACKED = 50_000  # entries, from which parameters stay a tree


def optimizer(
    max_grad_norm: Number, eps: Number, beta1: Number = 0.9
) -> optax.GradientTransformation:
    """Gradient clipped by its global norm, then Adam's direction; the rate is applied outside.

    ``beta1`` is the decay of Adam's mean of gradients. Where a gradient is 0 the direction is, too.
    """
    return optax.chain(
        optax.clip_by_global_norm(max_grad_norm), optax.scale_by_adam(b1=beta1, eps=eps)
    )


def pack(params: PyTree) -> tuple[PyTree, Callable[[PyTree], PyTree]]:
    """Parameters as one vector, where they are few, and the way back.

    An optimiser of a vector is a few operations and not a few for each layer, which is what small
    networks wait for. From ``PACKED`` entries on the copies would cost more.
    """
    if sum(x.size for x in jax.tree.leaves(params)) >= PACKED:
        return params, lambda params: params
    return ravel_pytree(params)


def descend(
    opt: optax.GradientTransformation,
    params: PyTree,
    grads: PyTree,
    opt_state: PyTree,
    *,
    rate: Number | PyTree,
) -> tuple[PyTree, PyTree]:
    """θ ← θ - rate · direction; returns parameters and optimiser state. ``rate`` is one number or
    a tree like θ.
    """
    with jax.numpy_dtype_promotion("standard"):  # optax counts on it
        direction, opt_state = opt.update(grads, opt_state)
    if jax.tree.structure(rate) != jax.tree.structure(params):
        rate = jax.tree.map(lambda _: rate, params)
    return jax.tree.map(lambda p, d, r: p - r * d, params, direction, rate), opt_state


def of_each(params: dict[str, PyTree], rates: dict[str, Scalar], other: Scalar) -> PyTree:
    """A rate for every parameter, as ``pack`` has them: by the names of the parts, or ``other``."""

    def spread(name):
        rate = rates.get(name, other)
        return jax.tree.map(lambda x: jnp.broadcast_to(rate, x.shape), params[name])

    return pack({name: spread(name) for name in params})[0]


def global_norm(tree: PyTree) -> Scalar:
    """√Σ x² over all entries of all leaves; non-finite if any entry is."""
    return jnp.sqrt(sum(jnp.sum(x**2) for x in jax.tree.leaves(tree)))


def polyak(target: PyTree, online: PyTree, rate: Number) -> PyTree:
    """θ̄ ← (1-rate) θ̄ + rate θ."""
    return jax.tree.map(lambda t, o: t + rate * (o - t), target, online)


def permutation(key: PRNGKeyArray, n: int) -> Int[Array, " n"]:
    """Random permutation of 0..n-1 by one sort of one array.

    The low bits hold the index and the high bits are random, so ties (rare while n < 2¹⁶) are
    broken by index: close to uniform, and several times cheaper than ``jax.random.permutation``.
    """
    bits = max(n - 1, 1).bit_length()
    mask = jnp.uint32((1 << bits) - 1)
    words = jax.random.bits(key, (n,), jnp.uint32) & ~mask
    return (jnp.sort(words | jnp.arange(n, dtype=jnp.uint32)) & mask).astype(jnp.int32)
