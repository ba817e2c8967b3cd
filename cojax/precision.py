"""Double precision in a scope of its own: the package never changes a global JAX flag."""

from __future__ import annotations

from contextlib import AbstractContextManager

import jax
import jax.numpy as jnp
import numpy as np


def x64() -> AbstractContextManager[None]:
    """Scope in which JAX computes in float64; the setting outside is untouched.

    Arrays made inside keep their dtype outside, but traced work belongs inside the scope.
    """
    if hasattr(jax, "enable_x64"):
        return jax.enable_x64(True)
    from jax.experimental import enable_x64  # jax < 0.8

    return enable_x64()


def default_float() -> np.dtype:
    """The float dtype JAX computes in here: float64 inside :func:`x64`, float32 elsewhere."""
    return np.dtype(jnp.zeros(()).dtype)
