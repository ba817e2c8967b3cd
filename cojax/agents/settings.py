"""The hyperparameters that describe one run of an algorithm: fields, checks and stacks of them."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np

from cojax.agents.algorithm import MOST_UPDATES
from cojax.errors import InputError, nearest
from cojax.types import Content, PyTree

INF = float("inf")
LARGEST = float(np.finfo(np.float32).max)  # finite in the precision of the learners
RENAMED = {  # hyperparameters, from the names that the last version had
    "value_rate": "popart_rate",
    "average_rate": "actor_ema_rate",
    "random_phase": "stagger_episodes",
}

Given: TypeAlias = object  # None, a mapping or an instance: the hyperparameters of one run
Settings: TypeAlias = object  # the same, or a sequence of those


class RenamedWarning(FutureWarning):
    """A hyperparameter is given by the name it had before; the next version will refuse it."""


def traced(
    default: float | None,
    low: float = -LARGEST,
    high: float = LARGEST,
    *,
    optional: bool | None = None,
) -> Any:
    """Return a field for a hyperparameter that may be batched, with its closed range.

    Bounds that infinity turns off have the range up to ``INF``. ``optional`` ones may be None: by
    default those that are.
    """
    optional = default is None if optional is None else optional
    metadata = {"pytree_node": True, "range": (low, high), "optional": optional}
    return dataclasses.field(default=default, metadata=metadata)


def static(default: object, low: float = -INF, high: float = MOST_UPDATES) -> Any:
    """Return a field for a hyperparameter that decides shapes or structure: one value per run."""
    return dataclasses.field(default=default, metadata={"pytree_node": False, "range": (low, high)})


def hyperparameters(
    cls: type, given: Given, overrides: Mapping[str, object] | None = None
) -> PyTree:
    """Build the hyperparameters of one run: ``given`` is None, a mapping or an instance.

    Raises ValueError in one line for an unknown name, a wrong type or a value out of range.
    """
    h = host_hyperparameters(cls, given, overrides or {})
    return jax.tree.map(lambda x: jnp.asarray(x, jnp.float32), h)


def current_names(cls: type, given: Mapping[str, object]) -> Content:
    """The same values, in the same order, by the names that hyperparameters of ``cls`` have now.

    Warns RenamedWarning, one line, for a name of before; raises InputError where both are given.
    """
    fields = {f.name for f in dataclasses.fields(cls)}
    found = {}
    for name, value in given.items():
        new = RENAMED.get(name, name)
        if name in fields or new not in fields:  # a plug-in may use the name for its own
            new = name
        if new != name:
            told = f"{cls.__name__}: {name} is now called {new}"
            if new in given:
                raise InputError(f"{told}; give one of them")
            warnings.warn(f"{told}; the old name will be refused", RenamedWarning, stacklevel=2)
        found[new] = value
    return found


def host_hyperparameters(cls: type, given: Given, overrides: Mapping[str, object]) -> PyTree:
    """``hyperparameters`` with leaves as they were given, so that thousands are quick to make."""
    if isinstance(given, cls):
        given = {f.name: getattr(given, f.name) for f in dataclasses.fields(cls)}
    if given is not None and not isinstance(given, Mapping):
        raise InputError(
            f"hyperparameters: expected a mapping or {cls.__name__}, got {type(given).__name__}"
        )
    values = current_names(cls, given or {}) | current_names(cls, overrides)
    fields = {f.name: f for f in dataclasses.fields(cls)}
    for name, value in values.items():
        if name not in fields:
            raise InputError(
                f"{cls.__name__}: unknown hyperparameter {name!r}{nearest(name, fields, 0.0)}"
            )
        values[name] = checked(cls.__name__, fields[name], value)
    return cls(**values)


def checked(owner: str, field: dataclasses.Field, value: Any) -> object:
    """Return ``value`` as the field of an ``owner`` keeps it, or raise ValueError."""
    low, high = field.metadata["range"]
    where = f"{owner}.{field.name}"
    if "check" in field.metadata:
        return field.metadata["check"](where, value)
    if field.metadata["pytree_node"]:
        if value is None and field.metadata.get("optional", field.default is None):
            return None
        try:
            if value is None or isinstance(value, bool | str) or np.ndim(value) != 0:
                raise TypeError
            inside = low <= float(value) <= high
        except TypeError:
            raise InputError(f"{where}: expected one number, got {value!r}") from None
        except OverflowError:  # an integer beyond float64
            inside = False
        if not inside:
            ends = ("(-inf" if low == -LARGEST else f"[{low:g}") + ", "
            ends += "inf)" if high == LARGEST else f"{high:g}]"
            raise InputError(f"{where}: expected a number in {ends}, got {value!r}")
        return value
    if isinstance(field.default, tuple):
        if not isinstance(value, Sequence) or not all(
            type(v) is int and 0 < v <= high for v in value
        ):
            raise InputError(f"{where}: expected positive integers, got {value!r}")
        return tuple(value)
    if type(value) is not type(field.default):
        raise InputError(
            f"{where} decides shapes: expected one {type(field.default).__name__}, got {value!r}"
        )
    if isinstance(value, int) and value < low:
        raise InputError(f"{where}: expected at least {low:g}, got {value!r}")
    if isinstance(value, int) and value > high:
        raise InputError(f"{where}: expected at most {high:,}, got {value!r}")
    return value


def stack_hyperparameters(
    cls: type, given: Sequence[Given], overrides: Mapping[str, object]
) -> PyTree:
    """Stack several settings: every leaf gets a leading axis; static values must agree."""
    settings = [host_hyperparameters(cls, g, overrides) for g in given]
    if not settings:
        raise InputError("hyperparameters: the list is empty")
    for f in dataclasses.fields(cls):
        values = [getattr(s, f.name) for s in settings]
        if not f.metadata["pytree_node"] and any(v != values[0] for v in values):
            told = f"{cls.__name__}.{f.name} decides shapes and cannot vary in one run: {values}"
            raise InputError(" ".join(told.split()))  # networks say themselves in several lines
        if len({v is None for v in values}) > 1:
            raise InputError(f"{cls.__name__}.{f.name}: give it in every setting or in none")
    # on the host: stacking thousands of device arrays would be a program of thousands of inputs
    return jax.tree.map(lambda *leaves: jnp.asarray(np.asarray(leaves, np.float32)), *settings)


def one_or_several(
    cls: type, given: Settings, overrides: Mapping[str, object]
) -> tuple[PyTree, int | None]:
    """Hyperparameters of one setting and None, or of a sequence, stacked, and its length."""
    if isinstance(given, Sequence) and not isinstance(given, str):
        return stack_hyperparameters(cls, given, overrides), len(given)
    return hyperparameters(cls, given, overrides), None
