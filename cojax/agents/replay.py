"""A ring buffer of transitions, one row each, written and read in bulk."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from cojax.types import Array, Bool, Float, Int, PRNGKeyArray


class Sample(NamedTuple):
    """Transitions; ``next_obs`` is from before any reset."""

    obs: Float[Array, "*batch o"]
    u: Float[Array, "*batch m"]  # the action in units of the box
    reward: Float[Array, "*batch"]
    terminated: Bool[Array, "*batch"] | Float[Array, "*batch"]  # the state after it is terminal
    next_obs: Float[Array, "*batch o"]


def pack(sample: Sample) -> Float[Array, "*batch width"]:
    """Rows of width 2o + m + 2: one gather reads a whole transition."""
    columns = (sample.reward[..., None], sample.terminated[..., None].astype(jnp.float32))
    return jnp.concatenate([sample.obs, sample.u, *columns, sample.next_obs], axis=-1)


def unpack(rows: Float[Array, "*batch width"], dim: int) -> Sample:
    """Inverse of ``pack`` for observations of size ``dim``."""
    m = rows.shape[-1] - 2 * dim - 2
    obs, u, reward, terminated, next_obs = jnp.split(
        rows, [dim, dim + m, dim + m + 1, dim + m + 2], axis=-1
    )
    return Sample(obs, u, reward[..., 0], terminated[..., 0], next_obs)


def capacity(wanted: int, block: int) -> int:
    """Rows of the buffer: ``wanted`` rounded up to a multiple of the block written at a time."""
    return -(-wanted // block) * block


def create(rows: int, dim: int, num_actions: int) -> Float[Array, "{rows} width"]:
    """Return an empty buffer; rows have 2·dim + num_actions + 2 entries."""
    return jnp.zeros((rows, 2 * dim + num_actions + 2), jnp.float32)


def write(
    buffer: Float[Array, "rows width"],
    rows: Float[Array, "block width"],
    blocks_before: Int[Array, ""],
) -> Float[Array, "rows width"]:
    """Write a block of rows over the oldest, in place under ``jit``.

    ``blocks_before`` blocks of the same size were written before: it is a counter that a whole
    population shares, so the pointer stays unbatched under ``vmap``.
    """
    start = (blocks_before % (buffer.shape[0] // rows.shape[0])) * rows.shape[0]
    return lax.dynamic_update_slice(buffer, rows, (start, jnp.zeros_like(start)))


def sample(
    key: PRNGKeyArray,
    buffer: Float[Array, "rows width"],
    blocks: Int[Array, ""],
    block: int,
    *,
    shape: tuple[int, ...],
) -> Float[Array, "*shape width"]:
    """Rows drawn uniformly with replacement from those written.

    ``blocks`` blocks of ``block`` rows have been written so far; at least one.
    """
    filled = jnp.minimum(blocks, buffer.shape[0] // block) * block
    return buffer[jax.random.randint(key, shape, 0, filled, jnp.int32)]
