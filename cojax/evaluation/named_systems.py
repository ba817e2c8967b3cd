"""From what a user calls fixtures to named systems, and groups of them of one shape."""

from __future__ import annotations

import collections
import contextlib
from collections.abc import Hashable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from cojax import precision
from cojax.envs import EnvParams, num_instances, unstack
from cojax.envs.batching import shape
from cojax.errors import InputError
from cojax.fixtures import load_fixture


class NamedSystem(NamedTuple):
    """One system to evaluate on."""

    name: str
    params: EnvParams
    floor: float | None  # resolution floor of the certificate, a fraction of V*
    sha256: str | None  # of the fixture


def named_systems(params: object, names: Sequence[str] | None = None) -> list[NamedSystem]:
    """Name and line up systems from params, stacked batches, fixtures, and lists or dicts of them.

    Raises ValueError for an empty list, something that is no system, or too few names.
    """
    subjects = [one for name, value in pairs(params) for one in _named_systems(name, value)]
    if not subjects:
        raise InputError("params: expected at least one system, got an empty list")
    labels = [subject.name for subject in subjects] if names is None else list(map(str, names))
    if len(labels) != len(subjects):
        raise InputError(f"names: expected {len(subjects)} names, got {len(labels)}")
    seen = collections.Counter()
    out = []
    for subject, label in zip(subjects, labels, strict=True):
        repeated = f"#{seen[label]}" if labels.count(label) > 1 else ""
        out.append(subject._replace(name=label + repeated))
        seen[label] += 1
    return out


def pairs(values: object) -> list[tuple[str | None, object]]:
    """Names and values of a dict; of a list, or one thing alone, values without a name."""
    if isinstance(values, Mapping):
        return [(str(name), value) for name, value in values.items()]
    return [(None, value) for value in (values if isinstance(values, list | tuple) else [values])]


def _named_systems(name: str | None, value: object) -> list[NamedSystem]:
    value = load_fixture(value) if isinstance(value, str) else value
    name = name or getattr(value, "id", None)
    floor, sha256 = getattr(value, "resolution_floor", None), getattr(value, "sha256", None)
    made = getattr(value, "make_params", None)
    value = value if made is None else made()
    if not isinstance(value, EnvParams):
        raise InputError(f"params: expected EnvParams or a fixture, got {type(value).__name__}")
    batched = num_instances(value) is not None
    with scope(value):
        singles = unstack(value)
    out = []
    for k, one in enumerate(singles):
        label = _describe(one) if name is None else f"{name}[{k}]" if batched else name
        out.append(NamedSystem(label, one, floor, sha256))
    return out


def _describe(params: EnvParams) -> str:
    """A name for a system that has none: family, dimension and p."""
    system = params.system
    geometry, p = getattr(system, "geometry", system), getattr(system, "p", None)
    strength = "" if p is None else f"-p{float(p):.2f}"
    return f"{type(geometry).__name__}-d{system.state_dim}{strength}"


def scope(params: EnvParams) -> contextlib.AbstractContextManager[None]:
    """The precision that the systems are in, whatever is set outside."""
    return precision.x64() if params.system.gamma.dtype == np.float64 else precision.x32()


def group_by_shape(systems: Sequence[EnvParams]) -> list[list[int]]:
    """Indices of systems that stack, in groups, in order of first appearance."""
    groups: dict[Hashable, list[int]] = {}
    for index, params in enumerate(systems):
        groups.setdefault(shape(params), []).append(index)
    return list(groups.values())
