"""Double precision in a scope of its own: the package never changes a global JAX flag."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from cojax.inputs import InputError


def x64() -> AbstractContextManager[None]:
    """Scope in which JAX computes in float64; the setting outside is untouched.

    Arrays made inside keep their dtype outside, but traced work belongs inside the scope.
    """
    if hasattr(jax, "enable_x64"):
        return jax.enable_x64(True)
    from jax.experimental import enable_x64  # pyright: ignore  # older jax

    return enable_x64()


def default_float() -> np.dtype:
    """The float dtype JAX computes in here: float64 inside :func:`x64`, float32 elsewhere."""
    return np.dtype(jnp.zeros(()).dtype)


def usable_float(dtype: Any = None) -> np.dtype:
    """A float dtype that can be computed in here; by default :func:`default_float`.

    Raises InputError for float64 outside :func:`x64`, where JAX would cut it to float32.
    """
    result = np.dtype(default_float() if dtype is None else dtype)
    if result not in (np.float32, np.float64):
        raise InputError(f"dtype: expected float32 or float64, got {result}")
    if result == np.float64 and default_float() != np.float64:
        raise InputError("dtype: float64 works inside `with cojax.precision.x64():` only")
    return result
