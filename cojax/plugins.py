"""Plug-ins: packages that add families, algorithms and networks by entry points.

In the ``pyproject.toml`` of such a package:

    [project.entry-points."cojax.families"]
    Rotor = "my_package.rotor:Rotor"

    [project.entry-points."cojax.algorithms"]
    reinforce = "my_package.reinforce:ALGORITHM"

    [project.entry-points."cojax.networks"]
    transformer = "my_package.networks:transformer"  # number of outputs -> flax.linen module

A plug-in that cannot be used is left out with one warning, one line, and the rest goes on.
"""

from __future__ import annotations

import importlib.metadata
import warnings
from collections.abc import Callable, Mapping
from typing import TypeVar

T = TypeVar("T")


class PluginWarning(UserWarning):
    """A plug-in that cannot be used, and why."""


def names(group: str) -> list[str]:
    """Names of the plug-ins installed for a group, without importing any."""
    return sorted(entry.name for entry in importlib.metadata.entry_points(group=group))


def load(
    group: str, check: Callable[[str, object], str | None], taken: Mapping[str, T]
) -> dict[str, T]:
    """Import the plug-ins of a group.

    Args:
        group: "cojax.families", "cojax.algorithms" or "cojax.networks".
        check: ``(name, object) -> why it cannot be used``, or None where it can.
        taken: what there is already; a plug-in cannot replace it.

    Warns PluginWarning, one line each, for those that cannot be imported or used.
    """
    found: dict[str, T] = {}
    for entry in sorted(importlib.metadata.entry_points(group=group), key=lambda e: e.name):
        value: T | None = None
        try:
            value = entry.load()
            reason = check(entry.name, value)
        except Exception as error:  # whatever a stranger's module raises
            first = (str(error).strip() or type(error).__name__).splitlines()[0]
            reason = f"it fails with {type(error).__name__}: {first}"
        if value is not None and taken.get(entry.name) is value:
            continue
        if reason is None and (entry.name in taken or entry.name in found):
            reason = "the name is taken"
        if reason is None and value is not None:
            found[entry.name] = value
        else:
            message = f"{group}: {entry.name} = {entry.value} is left out: {reason}"
            warnings.warn(message, PluginWarning, stacklevel=2)
    return found
