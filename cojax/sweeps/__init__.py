"""Sweeps: algorithms × hyperparameters × fixtures × seeds, on one core or a cluster."""

from __future__ import annotations

import importlib
from typing import Any

_HOME = {
    "Sweep": "config",
    "load_sweep": "config",
    "sweep": "config",
    "Swept": "runner",
    "run_sweep": "runner",
    "use_cores": "cores",
}
__all__ = sorted(_HOME)


def __getattr__(name: str) -> Any:
    """Import on first use, so that ``use_cores`` can be called before gymnax is imported."""
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"cojax.sweeps.{_HOME[name]}"), name)
