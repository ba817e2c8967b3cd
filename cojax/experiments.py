"""Experiments: studies of kind "run", algorithms beside reference policies, and a report."""

from __future__ import annotations

from pathlib import Path

from cojax.agents.tuned import Profile
from cojax.studies import Outcome, Study, load_study, run_study, shipped_studies

__all__ = ["Experiment", "load_experiment", "run_experiment", "shipped_experiments"]

Experiment = Study


def shipped_experiments() -> list[str]:
    """Names of the experiments in the package."""
    return shipped_studies("run")


def load_experiment(
    path_or_name: str | Path, scale: str | None = None, profile: Profile | None = None
) -> Study:
    """Read an experiment, see :func:`cojax.studies.load_study`."""
    return load_study(path_or_name, "run", scale=scale, profile=profile)


def run_experiment(experiment: Study, folder: str | Path, *, resume: bool = False) -> Outcome:
    """Run an experiment and write ``folder``, see :func:`cojax.studies.run_study`."""
    return run_study(experiment, folder, resume=resume)
