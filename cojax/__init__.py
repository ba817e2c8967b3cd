"""cojax: continuous-control benchmarks whose optimal policy and value are known.

Names load what they need when they are first used, so that importing cojax, or asking the command
line for help, does not wait for JAX.
"""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.util
import sys
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

_NAMES = {
    "make": "cojax.envs",
    "registered": "cojax.envs",
    "stack": "cojax.envs",
    "load_fixture": "cojax.fixtures",
    "validate": "cojax.fixtures",
    "generate": "cojax.fixtures",
    "rebuild": "cojax.quadratic",
    "evaluate": "cojax.evaluation",
    "train": "cojax.agents",
}
_MODULES = (
    "adapters",
    "agents",
    "envs",
    "evaluation",
    "families",
    "fixtures",
    "oracle",
    "quadratic",
    "streams",
    "testing",
)

__all__ = ["__version__", *_NAMES, *_MODULES]  # pyright: ignore[reportUnsupportedDunderAll]

if TYPE_CHECKING:
    from cojax import adapters as adapters
    from cojax import agents as agents
    from cojax import envs as envs
    from cojax import evaluation as evaluation
    from cojax import families as families
    from cojax import fixtures as fixtures
    from cojax import oracle as oracle
    from cojax import quadratic as quadratic
    from cojax import streams as streams
    from cojax import testing as testing
    from cojax.agents import train as train
    from cojax.envs import make as make
    from cojax.envs import registered as registered
    from cojax.envs import stack as stack
    from cojax.evaluation import evaluate as evaluate
    from cojax.fixtures import generate as generate
    from cojax.fixtures import load_fixture as load_fixture
    from cojax.fixtures import validate as validate
    from cojax.quadratic import rebuild as rebuild


def __getattr__(name: str) -> Any:
    if name in _NAMES:
        value = getattr(importlib.import_module(_NAMES[name]), name)
        globals()[name] = value
        return value
    if name in _MODULES:
        return importlib.import_module(f"cojax.{name}")
    raise AttributeError(f"module 'cojax' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)


class _RegisterAfter(importlib.abc.MetaPathFinder):
    """Register our environments as soon as somebody imports a library, without importing it here.

    Importing ``module`` registers; it does so when it runs for the first time.
    """

    def __init__(self, library: str, module: str):
        self.library, self.module = library, module

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> Any:
        """Let the others find the library, and add a step after it has run."""
        if fullname != self.library:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(fullname)
        if spec is not None and spec.loader is not None:
            run = spec.loader.exec_module

            def run_and_register(module: Any) -> None:
                run(module)
                importlib.import_module(self.module)

            spec.loader.exec_module = run_and_register
        return spec


for _library, _module in (
    ("gymnax", "cojax.envs"),
    ("gymnasium", "cojax.adapters.registration"),
):
    if sys.modules.get(_library) is not None:
        importlib.import_module(_module)
    else:
        sys.meta_path.insert(0, _RegisterAfter(_library, _module))
