"""Environments on the gymnax 1.0 contract."""

from cojax.envs.batching import num_instances, stack, unstack
from cojax.envs.common_streams import CommonStreams
from cojax.envs.constrained import Constrained, constrained
from cojax.envs.discrete import Discrete, environment_of
from cojax.envs.environment import ConverseEnv, EnvState
from cojax.envs.observed import Observed, observed
from cojax.envs.params import EnvParams, env_params

__all__ = [
    "CommonStreams",
    "Constrained",
    "ConverseEnv",
    "Discrete",
    "EnvParams",
    "EnvState",
    "Observed",
    "constrained",
    "env_params",
    "environment_of",
    "num_instances",
    "observed",
    "stack",
    "unstack",
]
