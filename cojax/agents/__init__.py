"""Learners for any gymnax environment with a Box action space; none can see the oracle.

An algorithm of your own is an :class:`cojax.agents.algorithm.Algorithm`; ``register`` adds it.
Installed packages add algorithms by the entry point ``cojax.algorithms``, and networks by
``cojax.networks`` (:mod:`cojax.plugins`).
"""

from cojax import plugins
from cojax.agents import contract
from cojax.agents.checkpoint import load_policy, save_policy
from cojax.agents.own_networks import NETWORKS, problem
from cojax.agents.run import Run
from cojax.agents.settings import RenamedWarning
from cojax.agents.training import ALGORITHMS, DiscountWarning, Job, prepare, register, train

__all__ = [
    "ALGORITHMS",
    "NETWORKS",
    "DiscountWarning",
    "Job",
    "RenamedWarning",
    "Run",
    "load_policy",
    "prepare",
    "register",
    "save_policy",
    "train",
]

ALGORITHMS.update(plugins.load("cojax.algorithms", contract.problem, ALGORITHMS))
NETWORKS.update(plugins.load("cojax.networks", problem, NETWORKS))
