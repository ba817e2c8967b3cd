"""Experiments: fixtures -> training -> paired evaluation -> a folder of results."""

from cojax.experiments.config import Experiment, load_experiment, shipped_experiments
from cojax.experiments.runner import run_experiment

__all__ = ["Experiment", "load_experiment", "run_experiment", "shipped_experiments"]
