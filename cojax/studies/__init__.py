"""Studies: systems × algorithms × settings × seeds, from one configuration to one results folder.

config -> systems -> members in groups -> chunks placed and trained -> rows -> results
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cojax.studies.config import load_study, shipped_studies, study
    from cojax.studies.cores import use_cores
    from cojax.studies.learners import load_agent
    from cojax.studies.results import Outcome
    from cojax.studies.runner import run_study
    from cojax.studies.schema import Study

__all__ = [
    "Outcome",
    "Study",
    "load_agent",
    "load_study",
    "run_study",
    "shipped_studies",
    "study",
    "use_cores",
]
HOME = {
    **dict.fromkeys(("load_study", "shipped_studies", "study"), "config"),
    "Study": "schema",
    "Outcome": "results",
    "load_agent": "learners",
    "run_study": "runner",
    "use_cores": "cores",
}


def __getattr__(name: str):
    """Import on first use, so that ``use_cores`` can be called before gymnax is imported."""
    if name not in HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"cojax.studies.{HOME[name]}"), name)
