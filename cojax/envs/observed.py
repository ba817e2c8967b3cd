"""An environment that shows a map of its observation."""

from __future__ import annotations

# As in environment.py: gymnax types its fields as int and its methods as jitted.
# pyright: reportIncompatibleVariableOverride=false
import jax
import jax.numpy as jnp
from gymnax.environments import environment, spaces

from cojax import labels
from cojax.envs.environment import Info
from cojax.envs.wrapper import Wrapper
from cojax.errors import InputError
from cojax.observation_maps import ObservationMap
from cojax.types import PyTree


class Observed(Wrapper):
    """A wrapper that shows m(obs) where the environment shows obs, final observations included.

    State, reward and what ends an episode are those of the environment. Made by
    :func:`cojax.envs.observed`.

    Args:
        env: what is wrapped.
        map: m, an :class:`cojax.observation_maps.ObservationMap`.

    Methods take ``key``, a key of JAX; ``state`` and ``action`` of the wrapped environment; and its
    ``params``, by default its own.
    """

    def __init__(self, env: environment.Environment, map: ObservationMap):
        super().__init__(env)
        self.map = map

    @property
    def parts(self):
        """The environment and m."""
        return self.env, self.map

    def reset(self, key, params=None):
        """A fresh episode: m(obs) and the state."""
        obs, state = self.env.reset(key, self._params(params))
        return self.map(obs), state

    def step(self, key, state, action, params=None):
        """One transition under ``action`` (m,), with a reset where the episode ends."""
        out = self.env.step(key, state, action, self._params(params))
        obs, state, reward, terminated, truncated, info = out
        told = {"final_observation": self.map(info["final_observation"])}
        aside = info.aside if isinstance(info, Info) else {}
        info = Info({**info, **told}, aside)
        return self.map(obs), state, reward, terminated, truncated, info

    def step_env(self, key, state, action, params):
        """One transition without the reset."""
        obs, state, reward, terminated, info = self.env.step_env(key, state, action, params)
        return self.map(obs), state, reward, terminated, info

    def reset_env(self, key, params):
        """Draw a first state."""
        obs, state = self.env.reset_env(key, params)
        return self.map(obs), state

    def observe(self, key, state, action, params):
        """m of what the environment shows."""
        return self.map(self.env.observe(key, state, action, params))

    def get_obs(self, state, params=None, key=None):
        """m of what the environment shows."""
        return self.map(self.env.get_obs(state, self._params(params), key))

    def is_terminated(self, state, params):
        """That of the wrapped environment."""
        return self.env.is_terminated(state, params)

    def is_truncated(self, state, params):
        """That of the wrapped environment."""
        return self.env.is_truncated(state, params)

    def action_space(self, params=None):
        """That of the wrapped environment."""
        return self.env.action_space(self._params(params))

    def observation_space(self, params=None):
        """The box [-high, high]^k around m(obs) for every obs of the space."""
        space = self.env.observation_space(self._params(params))
        high = jnp.maximum(jnp.abs(space.low), jnp.abs(space.high))
        high = self.map.box(jnp.broadcast_to(high, space.shape))
        bound = high[0] if high.shape == (1,) else high
        return spaces.Box(-bound, bound, high.shape, high.dtype)

    def state_space(self, params=None):
        """That of the wrapped environment."""
        return self.env.state_space(self._params(params))

    def labels(self, params: PyTree = None) -> labels.Labels:
        """Names of the entries of m(obs), and of an action."""
        states, actions = self.env.labels(self._params(params))  # pyright: ignore
        return self.map.labels(states), actions

    @property
    def num_actions(self):
        """That of the wrapped environment."""
        return self.env.num_actions

    def _params(self, params: PyTree) -> PyTree:
        return self.env.default_params if params is None else params


def observed(env: environment.Environment, map: ObservationMap) -> Observed:
    """The environment ``env`` showing m(obs), m the ``map``: see :mod:`cojax.observation_maps`.

    Raises InputError for what is no environment or no map, and, where the environment has params
    of its own, for a map of another number of states.
    """
    if not isinstance(env, environment.Environment):
        raise InputError(f"env: expected a gymnax environment, got {type(env).__name__}")
    if not isinstance(map, ObservationMap):
        raise InputError(f"map: expected an ObservationMap, got {type(map).__name__}")
    try:
        params = env.default_params
    except ValueError:  # it was made without any
        return Observed(env, map)
    shape = env.observation_space(params).shape
    jax.eval_shape(map, jax.ShapeDtypeStruct(shape, jnp.float32))
    return Observed(env, map)
