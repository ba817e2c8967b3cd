"""cojax: continuous-control benchmarks whose optimal policy and value are known.

Names load what they need when they are first used, so that importing cojax, or asking the command
line for help, does not wait for JAX.
"""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import sys
from typing import TYPE_CHECKING

__version__ = "0.1.0"

_NAMES = {
    "make": "cojax.registration",
    "registered": "cojax.registration",
    "stack": "cojax.envs",
    "load_fixture": "cojax.fixtures",
    "validate": "cojax.fixtures",
    "generate": "cojax.fixtures",
    "rebuild": "cojax.quadratic",
    "evaluate": "cojax.evaluation",
    "compare": "cojax.evaluation",
    "train": "cojax.agents",
    "curriculum": "cojax.agents.curriculum",
}
_MODULES = (
    "action_lists",
    "adapters",
    "agents",
    "average_cost",
    "budgets",
    "converse",
    "delay",
    "disturbance",
    "envs",
    "evaluation",
    "experiments",
    "families",
    "fixtures",
    "free_drift",
    "markov_jump",
    "memory",
    "observation_maps",
    "oracle",
    "orbits",
    "precision",
    "quadratic",
    "report",
    "streams",
    "studies",
    "sweeps",
    "termination",
    "testing",
)

__all__ = ["__version__", *_NAMES, *_MODULES]  # pyright: ignore[reportUnsupportedDunderAll]

if TYPE_CHECKING:
    from cojax import action_lists as action_lists
    from cojax import adapters as adapters
    from cojax import agents as agents
    from cojax import average_cost as average_cost
    from cojax import budgets as budgets
    from cojax import converse as converse
    from cojax import delay as delay
    from cojax import disturbance as disturbance
    from cojax import envs as envs
    from cojax import evaluation as evaluation
    from cojax import experiments as experiments
    from cojax import families as families
    from cojax import fixtures as fixtures
    from cojax import free_drift as free_drift
    from cojax import markov_jump as markov_jump
    from cojax import memory as memory
    from cojax import observation_maps as observation_maps
    from cojax import oracle as oracle
    from cojax import orbits as orbits
    from cojax import precision as precision
    from cojax import quadratic as quadratic
    from cojax import report as report
    from cojax import streams as streams
    from cojax import studies as studies
    from cojax import sweeps as sweeps
    from cojax import termination as termination
    from cojax import testing as testing
    from cojax.agents import train as train
    from cojax.agents.curriculum import curriculum as curriculum
    from cojax.envs import stack as stack
    from cojax.evaluation import compare as compare
    from cojax.evaluation import evaluate as evaluate
    from cojax.fixtures import generate as generate
    from cojax.fixtures import load_fixture as load_fixture
    from cojax.fixtures import validate as validate
    from cojax.quadratic import rebuild as rebuild
    from cojax.registration import make as make
    from cojax.registration import registered as registered


def __getattr__(name: str) -> object:
    if name in _NAMES:
        value = getattr(importlib.import_module(_NAMES[name]), name)
        globals()[name] = value
        return value
    if name in _MODULES:
        return importlib.import_module(f"cojax.{name}")
    raise AttributeError(f"module 'cojax' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)


def _register(library: str) -> None:
    """Tell a library the names of our environments."""
    getattr(importlib.import_module("cojax.adapters.registration"), f"with_{library}")()


class _RegisterAfter(importlib.abc.MetaPathFinder):
    """Registers as soon as somebody imports a library, without importing it here."""

    def __init__(self, library: str):
        self.library = library

    def find_spec(
        self, fullname: str, path: object = None, target: object = None
    ) -> importlib.machinery.ModuleSpec | None:
        """Let the others find the library, and add a step after it has run."""
        if fullname != self.library:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(fullname)
        if spec is not None and spec.loader is not None:
            run = spec.loader.exec_module

            def run_and_register(module):
                run(module)
                _register(self.library)

            spec.loader.exec_module = run_and_register
        return spec


for _library in ("gymnax", "gymnasium"):
    if sys.modules.get(_library) is not None:
        _register(_library)
    else:
        sys.meta_path.insert(0, _RegisterAfter(_library))
