"""What Gymnasium was asked for and does not pass on to the environment, read from who calls it."""

from __future__ import annotations

import dataclasses
import multiprocessing
import sys

import gymnasium
from gymnasium.envs.registration import EnvSpec
from gymnasium.vector import AsyncVectorEnv

from cojax import inputs
from cojax.adapters.batch import Batch
from cojax.envs.params import MAX_HORIZON
from cojax.errors import InputError
from cojax.types import Options


def stating_limit(spec: EnvSpec | None, batch: Batch) -> EnvSpec | None:
    """A spec that states the time limit of its environments, where it states none."""
    if spec is None or spec.max_episode_steps is not None:
        return spec
    return dataclasses.replace(spec, max_episode_steps=batch.horizon)


def require_spawn() -> None:
    """Raise InputError where Gymnasium's ``AsyncVectorEnv`` is about to fork: it makes an
    environment, which starts JAX, and then its processes, where JAX would wait for ever.
    """
    frame = sys._getframe(1)
    while frame is not None and frame.f_code is not AsyncVectorEnv.__init__.__code__:
        frame = frame.f_back
    if frame is None:
        return
    if multiprocessing.get_context(frame.f_locals["context"]).get_start_method() == "fork":
        raise InputError(
            "AsyncVectorEnv: expected vector_kwargs={'context': 'spawn'}, since JAX cannot be "
            "forked; VectorEnv steps all in one call"
        )


def with_limit(options: Options, limit: int | None) -> Options:
    """Options of an environment whose time limit Gymnasium calls ``max_episode_steps``.

    None leaves the system's own, -1 takes it away. Raises InputError where
    ``max_steps_in_episode`` is among the options and would end episodes before it.
    """
    own = options.get("max_steps_in_episode")
    if limit is None or (limit == -1 and own is not None):
        return options
    limit = MAX_HORIZON if limit == -1 else inputs.whole("max_episode_steps", limit, 1)
    if own is not None and inputs.whole("max_steps_in_episode", own, 1) < limit:
        raise InputError(f"max_episode_steps: expected at most max_steps_in_episode, got {limit}")
    return {**options, "max_steps_in_episode": limit}


def asked_limit() -> int | None:
    """The ``max_episode_steps`` of the call of ``gymnasium.make`` that calls our caller.

    Gymnasium tells only a wrapper around the environment, which cannot make episodes longer.
    """
    frame = sys._getframe(2)
    if frame.f_code is not gymnasium.make.__code__:
        return None
    limit = frame.f_locals["max_episode_steps"]
    return frame.f_locals["env_spec"].max_episode_steps if limit is None else limit
