"""Checks of what users give, on the host, before anything is built.

Each raises :class:`cojax.errors.InputError`, a ValueError, with one line: what, what was expected,
what was found. The command line prints that line and exits with status 2.
"""

from __future__ import annotations

import dataclasses
from typing import TypeVar

import numpy as np

from cojax import linalg
from cojax.errors import InputError

SYMMETRY_TOLERANCE = 1e-12  # of the largest entry; rounding, not modelling
DEFINITENESS_TOLERANCE = 1e-12  # of the largest eigenvalue


def number(
    name: str,
    value: object,
    low: float = -np.inf,
    high: float = np.inf,
    *,
    low_open: bool = False,
    high_open: bool = False,
) -> float:
    """A finite real number in [low, high], or with open ends."""
    interval = f"{'(' if low_open else '['}{low:g}, {high:g}{')' if high_open else ']'}"
    expected = "a finite number" if interval == "[-inf, inf]" else f"a number in {interval}"
    if isinstance(value, bool) or not isinstance(value, int | float | np.number):
        array = np.asarray(value) if hasattr(value, "dtype") else None
        if array is None or array.ndim or array.dtype.kind not in "iuf":
            raise InputError(f"{name}: expected {expected}, got {value!r}")
    try:
        result = float(value)  # pyright: ignore[reportArgumentType]
    except OverflowError:  # a whole number of hundreds of digits
        raise InputError(f"{name}: expected {expected}, got one beyond 1e308") from None
    inside = (result > low if low_open else result >= low) and (
        result < high if high_open else result <= high
    )
    if not np.isfinite(result) or not inside:
        raise InputError(f"{name}: expected {expected}, got {result:g}")
    return result


def discount(name: str, value: object, *, one: bool = False) -> float:
    """γ in (0, 1), or in (0, 1] where ``one`` is allowed."""
    return number(name, value, 0.0, 1.0, low_open=True, high_open=not one)


def whole(name: str, value: object, low: int) -> int:
    """A whole number >= low."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < low:
        raise InputError(f"{name}: expected a whole number >= {low}, got {value!r}")
    return int(value)


def vector(name: str, value: object, dim: int) -> np.ndarray:
    """A finite float64 vector of length dim; a number stands for a constant vector."""
    array = _floats(name, value)
    if array.ndim == 0:
        array = np.full(dim, float(array))
    if array.shape != (dim,):
        raise InputError(f"{name}: expected {dim} numbers, got shape {array.shape}")
    return array


def symmetric(name: str, value: object, dim: int) -> np.ndarray:
    """A finite symmetric float64 matrix: (d, d); or (d,) for a diagonal, given as one, as a full
    matrix that is diagonal, or as a number for a multiple of the identity.
    """
    array = _floats(name, value)
    if array.ndim == 0:
        return np.full(dim, float(array))
    if array.ndim == 1 and array.shape == (dim,):
        return array
    if array.ndim != 2 or array.shape[0] != array.shape[1]:
        raise InputError(f"{name}: expected a square matrix, got shape {array.shape}")
    if array.shape != (dim, dim):
        raise InputError(f"{name}: expected shape ({dim}, {dim}), got {array.shape}")
    difference = np.abs(array - array.T)
    if difference.max() > SYMMETRY_TOLERANCE * np.abs(array).max():
        i, j = np.unravel_index(np.argmax(difference), difference.shape)
        raise InputError(
            f"{name}: expected a symmetric matrix, got {array[i, j]:g} at [{i}, {j}] "
            f"and {array[j, i]:g} at [{j}, {i}]"
        )
    diagonal = np.diagonal(array)
    if np.array_equal(array, np.diag(diagonal)):
        return diagonal.copy()
    return 0.5 * (array + array.T)


def positive_definite(name: str, value: object, dim: int) -> np.ndarray:
    """A symmetric positive definite matrix, in the form :func:`symmetric` gives."""
    array = symmetric(name, value, dim)
    low, high = linalg.extreme_eigenvalues(array)
    if low <= DEFINITENESS_TOLERANCE * max(high, 0.0) or high <= 0.0:
        raise InputError(
            f"{name}: expected a positive definite matrix, got smallest eigenvalue {low:g}"
        )
    return array


def positive_semidefinite(name: str, value: object, dim: int) -> np.ndarray:
    """A symmetric positive semidefinite matrix, in the form :func:`symmetric` gives."""
    array = symmetric(name, value, dim)
    low, high = linalg.extreme_eigenvalues(array)
    if low < -DEFINITENESS_TOLERANCE * abs(high):
        raise InputError(
            f"{name}: expected a positive semidefinite matrix, got smallest eigenvalue {low:g}"
        )
    return array


def above(name: str, P: np.ndarray, Q: np.ndarray) -> np.ndarray:
    """P - Q, refused where Q, called ``name``, is not ⪯ P."""
    difference, word = linalg.subtract(P, Q), name.rpartition(".")[2]
    low = linalg.extreme_eigenvalues(difference)[0]
    if low < -DEFINITENESS_TOLERANCE * linalg.extreme_eigenvalues(P)[1]:
        raise InputError(
            f"{name}: expected {word} ⪯ P, got P - {word} with smallest eigenvalue {low:g}"
        )
    return difference


T = TypeVar("T")


def guarded(cls: type[T]) -> type[T]:
    """Class decorator, over that of a dataclass: ``__post_init__`` is told what is replaced.

    The class has a pseudo-field ``origin: dataclasses.InitVar[object]``, None by default.
    ``dataclasses.replace``, ``copy.replace`` and flax's ``replace`` read a pseudo-field from the
    object they start from. Here that is the object itself, so ``__post_init__(origin)`` can refuse
    or derive; a constructor, and a pytree that is unflattened, leave it None and cost nothing.
    """

    def origin(self: object) -> object:
        """The object itself, from which a replacement starts: see :func:`cojax.inputs.guarded`."""
        return self

    cls.origin = property(origin)  # pyright: ignore[reportAttributeAccessIssue]
    return cls


def replaced(new: object, old: object) -> list[str]:
    """Names of the fields of a dataclass in which ``new`` does not hold what ``old`` holds."""
    names = [field.name for field in dataclasses.fields(old)]  # pyright: ignore
    return [name for name in names if getattr(new, name) is not getattr(old, name)]


def swapped(value: T, **changes: object) -> T:
    """A dataclass with fields exchanged as they are: nothing is refused, and nothing derived."""
    return type(value)(**(vars(value) | changes))


def _floats(name: str, value: object) -> np.ndarray:
    """A float64 array of finite numbers, from nested sequences of numbers alone."""
    try:
        array = np.asarray(value)
    except ValueError:
        raise InputError(f"{name}: expected rows of equal length") from None
    if array.dtype.kind not in "iuf":
        raise InputError(f"{name}: expected numbers, got {_first_bad(value)!r}")
    array = array.astype(np.float64)
    if not np.isfinite(array).all():
        raise InputError(f"{name}: expected finite numbers, got {array[~np.isfinite(array)][0]}")
    return array


def _first_bad(value: object) -> object:
    """The first entry of a nested sequence that is not a number."""
    for item in np.asarray(value, dtype=object).ravel():
        if isinstance(item, bool) or not isinstance(item, int | float | np.number):
            return item
    return value
