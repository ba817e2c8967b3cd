"""Plug-ins: packages that add families, algorithms and networks by entry points.

In the ``pyproject.toml`` of such a package:

    [project.entry-points."cojax.families"]
    Rotor = "my_package.rotor:Rotor"

    [project.entry-points."cojax.algorithms"]
    reinforce = "my_package.reinforce:ALGORITHM"

    [project.entry-points."cojax.networks"]
    transformer = "my_package.networks:transformer"  # number of outputs -> flax.linen module

A plug-in that cannot be used is left out with one warning, one line, and the rest goes on.

A module that registers its own is imported first by ``--import MODULE`` of every command.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import os
import sys
import warnings
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TypeVar

from cojax.errors import InputError, one_line

ALGORITHMS = ("ppo", "a2c", "sac", "td3", "ddpg", "crossq", "shac", "risk_ppo")  # ours, by name
asked: list[str] = []  # modules that a command was told to import

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


def algorithms() -> list[str]:
    """Names of all algorithms; of those of plug-ins without importing any."""
    training = sys.modules.get("cojax.agents.training")
    more = names("cojax.algorithms") if training is None else list(training.ALGORITHMS)
    return list(dict.fromkeys((*ALGORITHMS, *more)))


def import_asked() -> None:
    """Import what ``--import`` named: see :func:`import_modules`."""
    import_modules(asked)


def import_modules(words: Iterable[str]) -> None:
    """Import modules that register their own: ``words`` are names of them, or FILE.py.

    One that is there already stays. Raises InputError, one line, for one that cannot be imported.
    """
    for word in words:
        try:
            _import_file(Path(word)) if word.endswith(".py") else _import_name(word)
        except InputError as error:
            raise InputError(f"--import {word}: {error}") from None
        except Exception as error:  # whatever a stranger's module raises
            raise InputError(
                f"--import {word}: it fails with {type(error).__name__}: {one_line(error)}"
            ) from error


def _import_name(name: str) -> None:
    _findable(os.getcwd())
    try:
        importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise  # one that it needs
        raise InputError("no such module; expected a name, or a file ending in .py") from None


def _import_file(path: Path) -> None:
    path = path.absolute()
    if not path.is_file():
        raise InputError("no such file")
    name = path.stem
    if (there := sys.modules.get(name)) is not None:
        file = getattr(there, "__file__", None)
        if file is None or not os.path.samefile(file, path):
            raise InputError(f"another module is called {name}; rename the file")
        return
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    _findable(str(path.parent))  # what lies beside it
    sys.modules[name] = module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise


def _findable(folder: str) -> None:
    if folder not in sys.path:
        sys.path.append(folder)
