"""Learners for any gymnax environment with a Box action space; none can see the oracle."""

from cojax.agents.training import ALGORITHMS, Run, train

__all__ = ["ALGORITHMS", "Run", "train"]
