"""Environments on the gymnax 1.0 contract. Importing this registers them with gymnax."""

from cojax.envs.batching import num_instances, stack, unstack
from cojax.envs.common_streams import CommonStreams
from cojax.envs.environment import ConverseEnv, EnvState
from cojax.envs.params import EnvParams, env_params
from cojax.envs.registration import make, register_with_gymnax, registered

register_with_gymnax()

__all__ = [
    "CommonStreams",
    "ConverseEnv",
    "EnvParams",
    "EnvState",
    "env_params",
    "make",
    "num_instances",
    "registered",
    "stack",
    "unstack",
]
