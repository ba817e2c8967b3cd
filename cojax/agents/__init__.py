"""Learners for any gymnax environment with a Box action space; none can see the oracle."""

from cojax.agents.checkpoint import load_policy, save_policy
from cojax.agents.training import ALGORITHMS, Run, train

__all__ = ["ALGORITHMS", "Run", "load_policy", "save_policy", "train"]
