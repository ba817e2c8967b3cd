"""Double precision in a scope of its own: the package never changes a global JAX flag."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import DTypeLike

from cojax.errors import InputError


def x64() -> AbstractContextManager[None]:
    """Scope in which JAX computes in float64; the setting outside is untouched.

    Arrays made inside keep their dtype outside, but traced work belongs inside the scope.
    """
    return _x64(True)


def _x64(value: bool) -> AbstractContextManager[None]:
    if hasattr(jax, "enable_x64"):
        return jax.enable_x64(value)
    from jax.experimental import enable_x64  # pyright: ignore  # older jax

    return enable_x64(value)


@contextmanager
def x32() -> Iterator[None]:
    """Scope, or decorator, in which JAX computes in float32 and int32, also where double precision
    is switched on outside. Free where it is off.
    """
    if not jax.config.jax_enable_x64:  # pyright: ignore[reportAttributeAccessIssue]
        yield  # another context of the same value would compile everything again
    else:
        with _x64(False):
            yield


@contextmanager
def any_number() -> Iterator[None]:
    """Scope, or decorator, in which NaN and infinity are answers, where ``jax_debug_nans`` and
    ``jax_debug_infs`` would stop: of checks whose business it is to find them.
    """
    if jax.config.jax_debug_nans or jax.config.jax_debug_infs:  # pyright: ignore
        with jax.debug_nans(False), jax.debug_infs(False):
            yield
    else:
        yield


def default_float() -> np.dtype:
    """The float dtype JAX computes in here: float64 inside :func:`x64`, float32 elsewhere."""
    return np.dtype(jnp.zeros(()).dtype)


def usable_float(dtype: DTypeLike | None = None) -> np.dtype:
    """A float dtype that can be computed in here; by default :func:`default_float`.

    Raises InputError for float64 outside :func:`x64`, where JAX would cut it to float32.
    """
    result = np.dtype(default_float() if dtype is None else dtype)
    if result not in (np.float32, np.float64):
        raise InputError(f"dtype: expected float32 or float64, got {result}")
    if result == np.float64 and default_float() != np.float64:
        raise InputError("dtype: float64 works inside `with cojax.precision.x64():` only")
    return result
