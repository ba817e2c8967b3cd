"""A ring buffer of transitions, one row each, written and read in bulk."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax


class Sample(NamedTuple):
    """Transitions, shapes (..., d) and (...); ``next_obs`` is from before any reset."""

    obs: jax.Array  # (..., d)
    u: jax.Array  # (..., m), the action in units of the box
    reward: jax.Array  # (...)
    terminated: jax.Array  # (...), 1.0 where the state after the step is terminal
    next_obs: jax.Array  # (..., d)


def pack(sample: Sample) -> jax.Array:
    """Rows of width 2d + m + 2: one gather reads a whole transition."""
    columns = (sample.reward[..., None], sample.terminated[..., None].astype(jnp.float32))
    return jnp.concatenate([sample.obs, sample.u, *columns, sample.next_obs], axis=-1)


def unpack(rows: jax.Array, dim: int) -> Sample:
    """Inverse of ``pack`` for observations of size ``dim``."""
    m = rows.shape[-1] - 2 * dim - 2
    obs, u, reward, terminated, next_obs = jnp.split(
        rows, [dim, dim + m, dim + m + 1, dim + m + 2], axis=-1
    )
    return Sample(obs, u, reward[..., 0], terminated[..., 0], next_obs)


def capacity(wanted: int, block: int) -> int:
    """Rows of the buffer: ``wanted`` rounded up to a multiple of the block written at a time."""
    return -(-wanted // block) * block


def create(rows: int, dim: int, num_actions: int) -> jax.Array:
    """Return an empty buffer, shape (rows, 2·dim + num_actions + 2)."""
    return jnp.zeros((rows, 2 * dim + num_actions + 2), jnp.float32)


def write(buffer: jax.Array, rows: jax.Array, blocks_before: jax.Array) -> jax.Array:
    """Write a block of rows over the oldest, in place under ``jit``.

    ``blocks_before`` blocks of the same size were written before: it is a counter that a whole
    population shares, so the pointer stays unbatched under ``vmap``.
    """
    start = (blocks_before % (buffer.shape[0] // rows.shape[0])) * rows.shape[0]
    return lax.dynamic_update_slice(buffer, rows, (start, jnp.zeros_like(start)))


def sample(
    key: jax.Array, buffer: jax.Array, blocks: jax.Array, block: int, shape: tuple[int, ...]
) -> jax.Array:
    """Rows drawn uniformly with replacement from those written, shape (*shape, width).

    ``blocks`` blocks of ``block`` rows have been written so far; at least one.
    """
    filled = jnp.minimum(blocks, buffer.shape[0] // block) * block
    return buffer[jax.random.randint(key, shape, 0, filled, jnp.int32)]
