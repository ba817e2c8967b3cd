"""Learners for any gymnax environment with a Box action space; none can see the oracle.

Installed packages add algorithms by the entry point ``cojax.algorithms`` (:mod:`cojax.plugins`).
"""

from cojax import plugins
from cojax.agents.algorithm import RenamedWarning
from cojax.agents.checkpoint import load_policy, save_policy
from cojax.agents.run import Run
from cojax.agents.training import ALGORITHMS, DiscountWarning, Job, prepare, train

__all__ = [
    "ALGORITHMS",
    "DiscountWarning",
    "Job",
    "RenamedWarning",
    "Run",
    "load_policy",
    "prepare",
    "save_policy",
    "train",
]

ALGORITHMS.update(plugins.load("cojax.algorithms", plugins.algorithm_problem, ALGORITHMS))
