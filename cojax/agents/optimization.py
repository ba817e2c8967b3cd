"""Gradient steps: clipped by the global norm, then Adam, with rates that may be traced."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import optax


def optimizer(max_grad_norm: Any, eps: Any) -> optax.GradientTransformation:
    """Gradient clipped by its global norm, then Adam's direction; the rate is applied outside."""
    return optax.chain(optax.clip_by_global_norm(max_grad_norm), optax.scale_by_adam(eps=eps))


def descend(
    opt: optax.GradientTransformation, params: Any, grads: Any, opt_state: Any, rate: Any
) -> tuple[Any, Any]:
    """θ ← θ - rate · direction; returns parameters and optimiser state."""
    direction, opt_state = opt.update(grads, opt_state)
    return jax.tree.map(lambda p, d: p - rate * d, params, direction), opt_state


def global_norm(tree: Any) -> jax.Array:
    """√Σ x² over all entries of all leaves; non-finite if any entry is."""
    return jnp.sqrt(sum(jnp.sum(x**2) for x in jax.tree.leaves(tree)))


def polyak(target: Any, online: Any, rate: Any) -> Any:
    """θ̄ ← (1-rate) θ̄ + rate θ."""
    return jax.tree.map(lambda t, o: t + rate * (o - t), target, online)
