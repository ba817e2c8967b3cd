"""Learners for any gymnax environment with a Box action space; none can see the oracle.

Installed packages add algorithms by the entry point ``cojax.algorithms``, and networks by
``cojax.networks`` (:mod:`cojax.plugins`).
"""

from cojax import plugins
from cojax.agents.algorithm import RenamedWarning
from cojax.agents.checkpoint import load_policy, save_policy
from cojax.agents.own_networks import NETWORKS, problem
from cojax.agents.run import Run
from cojax.agents.training import ALGORITHMS, DiscountWarning, Job, prepare, train

__all__ = [
    "ALGORITHMS",
    "NETWORKS",
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
NETWORKS.update(plugins.load("cojax.networks", problem, NETWORKS))
