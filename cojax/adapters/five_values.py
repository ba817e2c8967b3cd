"""For learners written for gymnax before 1.0, where ``step`` returns five values.

    env, params = five_values("ConverseArm-v0", n=4, p=0.8)
    obs, state, reward, done, info = env.step(key, state, action, params)

rejax 0.1.3 is such a learner: ``rejax.PPO.create(env=env, env_params=params, ...)``.
"""

from __future__ import annotations

import math
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from gymnax.environments import spaces
from gymnax.environments.environment import Environment

from cojax import streams
from cojax.adapters.batch import box, resolve
from cojax.errors import InputError
from cojax.types import Option, PyTree


class FiveValues:
    """A gymnax 1.0 environment behind the interface that gymnax had before.

    ``done`` is terminated or truncated: such learners do not know the difference, and treat the
    time limit as the end of the world. Systems made with ``terminal_value="optimal"`` are posed
    so that this is right. ``info["truncated"]`` tells, for those who ask.

    Spaces have Python floats as bounds, which such learners keep in static fields; they are those
    of the params that the adapter was made with, in the units of the system.

    Args:
        env: an environment on the gymnax 1.0 contract.
        params: its params, and the default of every ``params`` below.

    ``key``, ``state`` and ``action`` (m,) are those of :class:`cojax.envs.ConverseEnv`.

    Raises InputError, one line, for an action space that is no Box with one bound.
    """

    def __init__(self, env: Environment, params: PyTree):
        self.env = env
        self.default_params = params
        low, high = box(env.action_space(params))
        if len(np.unique(low)) > 1 or len(np.unique(high)) > 1:
            raise InputError("action_limit: expected one number for all actions")
        obs_low, obs_high = box(env.observation_space(params))
        self._action = spaces.Box(float(low.flat[0]), float(high.flat[0]), low.shape)
        self._observation = spaces.Box(float(obs_low.min()), float(obs_high.max()), obs_low.shape)

    def __getattr__(self, name: str) -> PyTree:
        if name == "env":  # while unpickling or copying
            raise AttributeError(name)
        return getattr(self.env, name)

    def __deepcopy__(self, memo: dict) -> FiveValues:
        return self  # immutable, and static to whoever compiles with it

    @partial(jax.jit, static_argnums=0)
    @streams.pinned()
    def step(self, key, state, action, params=None):
        """obs (d,), state, reward (), done (), info; a fresh episode where one ended."""
        params = self.default_params if params is None else params
        if jnp.size(action) == math.prod(self._action.shape):
            action = jnp.reshape(action, self._action.shape)  # rejax drops an axis of length 1
        obs, state, reward, terminated, truncated, info = self.env.step(key, state, action, params)
        return obs, state, reward, terminated | truncated, info

    @partial(jax.jit, static_argnums=0)
    @streams.pinned()
    def reset(self, key, params=None):
        """Draw s_0: observation (d,) and state."""
        return self.env.reset(key, self.default_params if params is None else params)

    def action_space(self, params: PyTree = None) -> spaces.Box:
        """Box [-limit, limit]^m."""
        return self._action

    def observation_space(self, params: PyTree = None) -> spaces.Box:
        """Box that holds the observations, shape (d,)."""
        return self._observation


def five_values(system: object, **options: Option) -> tuple[FiveValues, PyTree]:
    """(env, params) for a learner of the older interface.

    Args:
        system: a name of :func:`cojax.make` with its options, ``EnvParams``, a fixture, or
            (env, params) of a gymnax 1.0 environment with a Box of actions.

    Raises InputError, one line, for anything else.
    """
    env, params = resolve(system, options)
    return FiveValues(env, params), params
