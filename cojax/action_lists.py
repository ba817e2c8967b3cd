"""Finite sets of actions: lists (k, m) with 0 among them, named by their indices."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
from numpy.typing import ArrayLike

from cojax import inputs
from cojax.errors import InputError
from cojax.types import Array, Float, Int


def chosen(actions: Float[Array, "k m"], index: Int[Array, "*batch"]) -> Float[Array, "*batch m"]:
    """Those of the ``actions`` that an ``index`` or several name; one outside is the nearest."""
    return actions[jnp.clip(index, 0, len(actions) - 1)]


def nearest(actions: Float[Array, "k m"], a: Float[Array, "m"]) -> Float[Array, "m"]:
    """The one of the ``actions`` that is nearest to ``a``, the first of them."""
    apart = actions - a[None]
    return actions[jnp.argmin(jnp.sum(apart * apart, axis=-1))]


# --- on the host ---------------------------------------------------------------------------------


def grid(k: int, limit: ArrayLike, m: int = 1) -> Float[np.ndarray, "k m"]:
    """All actions of ``k`` equal steps in [-limit, limit] an entry, kᵐ in ``m`` entries.

    Raises InputError unless k is odd, as 0 must be among them.
    """
    k = inputs.whole("k", k, 3)
    if k % 2 == 0:
        raise InputError(f"k: expected an odd number, so that 0 is on the grid, got {k}")
    axis = np.linspace(-1.0, 1.0, k)
    axis[k // 2] = 0.0
    mesh = np.meshgrid(*[axis * high for high in inputs.vector("limit", limit, m)], indexing="ij")
    return np.stack([one.ravel() for one in mesh], axis=1)


def checked(actions: ArrayLike, m: int) -> Float[np.ndarray, "k m"]:
    """A list of ``actions`` of ``m`` entries each, 0 among them; (k,) where m is 1.

    Raises InputError, one line, for what is none.
    """
    try:
        array = np.asarray(actions, np.float64)
    except (TypeError, ValueError):
        raise InputError(f"actions: expected a list of numbers, got {actions!r}") from None
    if m == 1 and array.ndim == 1:
        array = array[:, None]
    if array.ndim != 2 or array.shape[1] != m or len(array) < 2 or not np.isfinite(array).all():
        raise InputError(
            f"actions: expected at least two of {m} finite numbers each, got shape {array.shape}"
        )
    if not (array == 0.0).all(axis=1).any():
        raise InputError("actions: expected 0 among them, which costs nothing, got none")
    if len(np.unique(array, axis=0)) < len(array):
        raise InputError("actions: expected no action twice")
    if not array.any(axis=0).all():
        empty = int(np.argmin(array.any(axis=0)))
        raise InputError(f"actions: expected some that use entry {empty}, got 0 in all")
    return array
