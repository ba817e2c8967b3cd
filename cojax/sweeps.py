"""Sweeps: studies of kind "sweep", many settings of algorithms, from a space or by a search."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import TYPE_CHECKING

from cojax.studies.cores import use_cores
from cojax.types import Content

if TYPE_CHECKING:
    from cojax.studies.results import Outcome as Swept
    from cojax.studies.runner import run_study as run_sweep
    from cojax.studies.schema import Study as Sweep

__all__ = ["Sweep", "Swept", "load_sweep", "run_sweep", "shipped_sweeps", "sweep", "use_cores"]
HOME = {"Sweep": "Study", "Swept": "Outcome", "run_sweep": "run_study"}


def shipped_sweeps() -> list[str]:
    """Names of the sweeps in the package."""
    return _studies("shipped_studies")("sweep")


def load_sweep(path_or_name: str | Path) -> Sweep:
    """Read a sweep, see :func:`cojax.studies.load_study`."""
    return _studies("load_study")(path_or_name, "sweep")


def sweep(content: Content, where: str = "sweep") -> Sweep:
    """A sweep of the content of a file, see :func:`cojax.studies.study`."""
    return _studies("study")(content, "sweep", where)


def _studies(name: str):
    """Of ``cojax.studies``, on first use: ``use_cores`` is called before gymnax is imported."""
    return getattr(importlib.import_module("cojax.studies"), name)


def __getattr__(name: str):
    """``Sweep``, ``Swept`` and ``run_sweep`` have other names in ``cojax.studies``."""
    if name not in HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return _studies(HOME[name])
