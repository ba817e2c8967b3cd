"""Learners for any gymnax environment with a Box action space; none can see the oracle."""

from cojax.agents.checkpoint import load_policy, save_policy
from cojax.agents.run import Run
from cojax.agents.training import ALGORITHMS, DiscountWarning, Job, prepare, train

__all__ = [
    "ALGORITHMS",
    "DiscountWarning",
    "Job",
    "Run",
    "load_policy",
    "prepare",
    "save_policy",
    "train",
]
