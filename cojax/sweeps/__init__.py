"""Sweeps: algorithms × hyperparameters × fixtures × seeds, on one core or a cluster."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cojax.sweeps.config import Sweep, load_sweep, shipped_sweeps, sweep
    from cojax.sweeps.cores import use_cores
    from cojax.sweeps.runner import Swept, run_sweep

__all__ = ["Sweep", "Swept", "load_sweep", "run_sweep", "shipped_sweeps", "sweep", "use_cores"]
HOME = {
    "Sweep": "config",
    "load_sweep": "config",
    "shipped_sweeps": "config",
    "sweep": "config",
    "Swept": "runner",
    "run_sweep": "runner",
    "use_cores": "cores",
}


def __getattr__(name: str) -> Any:
    """Import on first use, so that ``use_cores`` can be called before gymnax is imported."""
    if name not in HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"cojax.sweeps.{HOME[name]}"), name)
