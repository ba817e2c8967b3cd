"""Common random numbers: every draw is a function of (root, instance, episode, step) alone.

    stream key   = fold_in(key(root), instance)
    episode key  = fold_in(stream key, episode)
    initial key  = fold_in(episode key, 0)                      draws s_0
    noise key    = fold_in(fold_in(episode key, 1), step)       draws w_step
    policy key   = fold_in(fold_in(episode key, 2), step)       draws what a policy draws itself

Neither the algorithm, nor the batch size, nor the order of evaluation enters, so every policy
meets the same initial states and the same disturbances. The generator is pinned to threefry:
under ``rbg`` a vmapped draw differs from a loop over the same keys. Settings of JAX that would
change the draws of a seed (``jax_threefry_partitionable``, ``jax_random_seed_offset``,
``jax_enable_x64``) do not change these: see :func:`pinned` and :func:`seed_key`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import UInt

from cojax.errors import InputError
from cojax.types import Array, Int, Key, PRNGKeyArray

Integer: TypeAlias = Int[Array, ""] | UInt[Array, ""]

IMPLEMENTATION = "threefry2x32"


@contextmanager
def pinned() -> Iterator[None]:
    """A scope, or decorator, in which threefry draws in its partitionable form.

    It is JAX's default and what every promise about streams is made of: the form decides the
    numbers. Draws keep the form of the scope they are traced in. Free where it is set already.
    """
    if jax.config.jax_threefry_partitionable:  # pyright: ignore[reportAttributeAccessIssue]
        yield  # another context of the same value would compile everything again
    else:
        with jax.threefry_partitionable(True):
            yield


def seed_key(seed: int | Integer) -> PRNGKeyArray:
    """The threefry key of a seed modulo 2³², as ``jax.random.key`` gives it by default.

    ``seed`` is a whole number, or a () uint32 array that may be traced. Neither a seed offset
    nor double precision changes it.
    """
    low = jnp.asarray(seed if isinstance(seed, jax.Array) else np.uint32(seed % 2**32))
    data = jnp.stack([jnp.zeros((), jnp.uint32), low.astype(jnp.uint32)])
    return jax.random.wrap_key_data(data, impl=IMPLEMENTATION)


def root_key(root: int) -> PRNGKeyArray:
    """The key of a root seed, a whole number >= 0 and < 2³², always threefry.

    Raises ValueError for anything else.
    """
    if isinstance(root, bool) or not isinstance(root, int | np.integer) or root < 0:
        raise InputError(f"root: expected a whole number >= 0, got {root!r}")
    if root >= 2**32:  # in 32 bits it would be another root
        raise InputError(f"root: expected a whole number < 2**32, got {root!r}")
    return seed_key(int(root))


def to_words(keys: Key[Array, "*batch"]) -> UInt[Array, "*batch 2"]:
    """Keys (…,) as words (…, 2), to be scanned over: where vmap moves the axes of keys,
    ``jax_debug_key_reuse`` takes them for used.
    """
    return jax.random.key_data(keys)


def of_words(words: UInt[Array, "*batch 2"]) -> Key[Array, "*batch"]:
    """Inverse of :func:`to_words`, of threefry keys."""
    return jax.random.wrap_key_data(words, impl=IMPLEMENTATION)


def choose(mask: jax.Array | np.ndarray, x: jax.Array, y: jax.Array) -> jax.Array:
    """Entries of ``x`` where the ``mask`` (N,) holds, else of ``y``: arrays or keys, (N, …)."""
    if jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
        data = choose(mask, jax.random.key_data(x), jax.random.key_data(y))
        return jax.random.wrap_key_data(data, impl=jax.random.key_impl(x))
    return jnp.where(mask.reshape(mask.shape + (1,) * (x.ndim - 1)), x, y)


def require_threefry(key: PRNGKeyArray) -> None:
    """Refuse a key of another generator; raises ValueError. Costs nothing at run time."""
    if jnp.issubdtype(key.dtype, jax.dtypes.prng_key):
        implementation = str(jax.random.key_impl(key))
    else:
        implementation = str(jax.config.jax_default_prng_impl)  # pyright: ignore
    if implementation != IMPLEMENTATION:
        raise InputError(
            f"key: expected the {IMPLEMENTATION} generator, got {implementation}; "
            "its draws would depend on the batch size"
        )


def stream_key(root: int | PRNGKeyArray, instance: int | Integer) -> PRNGKeyArray:
    """The key of one instance (an environment, or an evaluation trial) under a root.

    ``root`` is a seed or a threefry key.
    """
    key = root if isinstance(root, jax.Array) else root_key(root)
    require_threefry(key)
    return jax.random.fold_in(key, instance)


def stream_keys(root: int | PRNGKeyArray, num: int, first: int = 0) -> Key[Array, "N"]:
    """Keys of instances first … first + num - 1 under ``root``, a seed or a key."""
    return jax.vmap(lambda i: stream_key(root, i))(jnp.arange(first, first + num, dtype=jnp.uint32))


def episode_key(stream: PRNGKeyArray, episode: int | Integer) -> PRNGKeyArray:
    """The key of one episode, its number, of the instance whose key is ``stream``."""
    return jax.random.fold_in(stream, episode)


def initial_key(episode: PRNGKeyArray) -> PRNGKeyArray:
    """The key that draws s_0 of an episode."""
    return jax.random.fold_in(episode, 0)


def noise_root(episode: PRNGKeyArray) -> PRNGKeyArray:
    """The key from which all noise of an episode descends; fold in the step."""
    return jax.random.fold_in(episode, 1)


def noise_key(episode: PRNGKeyArray, step: int | Integer) -> PRNGKeyArray:
    """The key that draws w_k, k = ``step``, in the episode whose key is ``episode``."""
    return jax.random.fold_in(noise_root(episode), step)


def policy_root(episode: PRNGKeyArray) -> PRNGKeyArray:
    """The key from which all keys of a policy descend in an episode; fold in the step."""
    return jax.random.fold_in(episode, 2)


def policy_key(episode: PRNGKeyArray, step: int | Integer) -> PRNGKeyArray:
    """The key a stochastic policy is given at a step of an episode; independent of the noise."""
    return jax.random.fold_in(policy_root(episode), step)


@pinned()
def fingerprint() -> str:
    """Hash of a fixed set of draws: equal fingerprints mean equal streams.

    It covers the key derivation, the generator, and the prefix property on which stacking
    systems of different noise dimension rests (threefry's partitionable form).
    """

    def bits(key):
        return jax.random.bits(key, (5,), jnp.uint32)

    keys = stream_keys(0, 4)
    noise = jax.vmap(lambda k: bits(noise_key(episode_key(k, 2), 3)))(keys)
    starts = jax.vmap(lambda k: bits(initial_key(episode_key(k, 2))))(keys)
    content = np.concatenate([np.asarray(noise), np.asarray(starts)])
    return hashlib.sha256(content.astype("<u4").tobytes()).hexdigest()[:16]
