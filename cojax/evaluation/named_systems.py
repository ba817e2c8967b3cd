"""From what a user calls fixtures to named systems, and groups of them of one shape."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from cojax import precision
from cojax.envs import EnvParams, num_instances, unstack
from cojax.envs.batching import shape
from cojax.errors import InputError


class NamedSystem(NamedTuple):
    """One system to evaluate on."""

    name: str
    params: EnvParams
    floor: float | None  # resolution floor of the certificate, a fraction of V*
    sha256: str | None  # of the fixture


def named_systems(params: Any, names: Sequence[str] | None = None) -> list[NamedSystem]:
    """Name and line up systems from params, stacked batches, fixtures, and lists or dicts of them.

    Raises ValueError for an empty list, something that is no system, or too few names.
    """
    if isinstance(params, Mapping):
        pairs = [(str(name), value) for name, value in params.items()]
    elif isinstance(params, list | tuple):
        pairs = [(None, value) for value in params]
    else:
        pairs = [(None, params)]
    subjects = [subject for name, value in pairs for subject in _named_systems(name, value)]
    if not subjects:
        raise InputError("params: expected at least one system, got an empty list")
    if names is not None:
        if len(names) != len(subjects):
            raise InputError(f"names: expected {len(subjects)} names, got {len(names)}")
        subjects = [s._replace(name=str(n)) for s, n in zip(subjects, names, strict=True)]
    labels = [subject.name for subject in subjects]
    seen: dict[str, int] = {}
    out = []
    for subject in subjects:
        k = seen[subject.name] = seen.get(subject.name, -1) + 1
        repeated = labels.count(subject.name) > 1
        out.append(subject._replace(name=f"{subject.name}#{k}") if repeated else subject)
    return out


def _named_systems(name: str | None, value: Any) -> list[NamedSystem]:
    if isinstance(value, str):
        from cojax.fixtures import load_fixture

        value = load_fixture(value)
    name = name or getattr(value, "id", None)
    floor, sha256 = getattr(value, "resolution_floor", None), getattr(value, "sha256", None)
    if hasattr(value, "make_params"):
        value = value.make_params()
    if not isinstance(value, EnvParams):
        raise InputError(f"params: expected EnvParams or a fixture, got {type(value).__name__}")
    batched = num_instances(value) is not None
    out = []
    with scope(value):
        singles = unstack(value)
    for k, one in enumerate(singles):
        label = _describe(one) if name is None else f"{name}[{k}]" if batched else name
        out.append(NamedSystem(label, one, floor, sha256))
    return out


def _describe(params: EnvParams) -> str:
    """A name for a system that has none: family, dimension and p."""
    system = params.system
    geometry = getattr(system, "geometry", system)
    p = getattr(system, "p", None)
    strength = "" if p is None else f"-p{float(p):.2f}"
    return f"{type(geometry).__name__}-d{system.state_dim}{strength}"


def scope(params: EnvParams) -> contextlib.AbstractContextManager[None]:
    """The precision that the systems are in, whatever is set outside."""
    return precision.x64() if params.system.gamma.dtype == np.float64 else precision.x32()


def group_by_shape(systems: Sequence[EnvParams]) -> list[list[int]]:
    """Indices of systems that stack, in groups, in order of first appearance."""
    groups: dict[Any, list[int]] = {}
    for index, params in enumerate(systems):
        groups.setdefault(shape(params), []).append(index)
    return list(groups.values())
