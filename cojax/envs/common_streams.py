"""Common random numbers for any gymnax environment."""

from __future__ import annotations

# As in environment.py: gymnax types its fields as int and its methods as jitted.
# pyright: reportIncompatibleVariableOverride=false
from functools import partial

import jax
import jax.numpy as jnp
from flax import struct
from gymnax.environments import environment

from cojax import streams
from cojax.envs.environment import autoreset
from cojax.envs.wrapper import Wrapper
from cojax.types import Array, Int, Key, PRNGKeyArray, PyTree


@struct.dataclass
class StreamState(environment.EnvState):
    """The state of the environment, and where in its stream it is."""

    time: Int[Array, "*batch"]
    env: PyTree
    stream: Key[Array, "*batch"]  # of (root, instance)
    episode: Int[Array, "*batch"]


class CommonStreams(Wrapper):
    """A wrapper under which s_0 and w depend on (root, instance, episode, step) alone.

    ``reset`` takes the instance's key, ``cojax.streams.stream_key(root, instance)``; from then on
    the keys given to ``step`` are ignored. Whatever learns, and however many environments run
    side by side, instance i meets the same initial states and the same noise.

        env = CommonStreams(env)
        obs, state = jax.vmap(env.reset, (0, None))(cojax.streams.stream_keys(root, 64), params)
    """

    def get_obs(self, state, params=None, key=None):
        """What the wrapped environment shows of its state."""
        return self.env.get_obs(state.env, self.default_params if params is None else params, key)

    def reset(self, key, params=None):
        """Start episode 0 of the instance whose stream key this is."""
        streams.require_threefry(key)
        return _reset(self, key, self.default_params if params is None else params)

    def step(self, key, state, action, params=None):
        """One transition under ``action`` (m,); ``key`` is ignored."""
        del key
        return _step(self, state, action, self.default_params if params is None else params)

    def action_space(self, params=None):
        """That of the wrapped environment."""
        return self.env.action_space(self.default_params if params is None else params)

    def observation_space(self, params=None):
        """That of the wrapped environment."""
        return self.env.observation_space(self.default_params if params is None else params)

    def state_space(self, params=None):
        """That of the wrapped environment; the stream is not part of it."""
        return self.env.state_space(self.default_params if params is None else params)


@partial(jax.jit, static_argnames=("wrapper",))
@streams.pinned()
def _reset(wrapper: CommonStreams, key: PRNGKeyArray, params: PyTree) -> tuple:
    first = streams.initial_key(streams.episode_key(key, 0))
    obs, inner = wrapper.env.reset_env(first, params)
    return obs, StreamState(
        time=inner.time, env=inner, stream=key, episode=jnp.zeros((), jnp.int32)
    )


@partial(jax.jit, static_argnames=("wrapper",))
@streams.pinned()
def _step(wrapper: CommonStreams, state: StreamState, action: jax.Array, params: PyTree) -> tuple:
    now = streams.episode_key(state.stream, state.episode)
    following = streams.episode_key(state.stream, state.episode + 1)
    obs, inner, reward, terminated, truncated, info = autoreset(
        wrapper.env,
        (streams.noise_key(now, state.env.time), streams.initial_key(following)),
        state.env,
        action,
        params=params,
    )
    episode = state.episode + (terminated | truncated).astype(jnp.int32)
    state = StreamState(time=inner.time, env=inner, stream=state.stream, episode=episode)
    return obs, state, reward, terminated, truncated, info
