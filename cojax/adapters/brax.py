"""brax: an ``Env``, pure, for brax's wrappers and learners.

from cojax.adapters.brax import Env
env = Env("ConverseArm-v0", n=4, p=0.8)

The learners of brax 0.14 call ``jax.device_put_replicated``, which jax 0.10 no longer has: with
it they do not train. brax's wrappers run.
"""

from __future__ import annotations

# pyright: reportMissingImports=false, reportAttributeAccessIssue=false
import jax
import jax.numpy as jnp

from cojax import streams
from cojax.adapters.batch import box, missing, resolve
from cojax.types import Option

try:
    from brax.envs import base
except ImportError:
    raise missing("brax", "brax") from None


class Env(base.Env):
    """One system on brax's interface. Actions are in [-1, 1]^m, as brax's learners give them.

    ``done`` is the divergence guard alone: the time limit is brax's own, by ``EpisodeWrapper``
    with ``episode_length=env.episode_length``, which tells truncation from termination.
    ``state.info["rng"]`` is the key of the noise.

    Args:
        system: a name of :func:`cojax.make` with its options, ``EnvParams``, a fixture, or
            (env, params) of a gymnax 1.0 environment with a Box of actions.

    Raises InputError, one line, for anything else.
    """

    def __init__(self, system: object = "ConverseArm-v0", **options: Option):
        self._env, self.params = resolve(system, options)
        self._scale = jnp.asarray(box(self._env.action_space(self.params))[1])
        self._obs_size = int(self._env.observation_space(self.params).shape[0])

    @streams.pinned()
    def reset(self, rng: jax.Array) -> base.State:
        """Draw s_0."""
        rng, key = jax.random.split(rng)
        obs, state = self._env.reset_env(key, self.params)
        zero = jnp.zeros((), obs.dtype)
        return base.State(state, obs, zero, zero, {}, {"rng": rng})

    @streams.pinned()
    def step(self, state: base.State, action: jax.Array) -> base.State:
        """One transition under an action in [-1, 1]^m."""
        rng, key = jax.random.split(state.info["rng"])
        obs, inner, reward, terminated, _ = self._env.step_env(
            key, state.pipeline_state, self._scale * action, self.params
        )
        return state.replace(
            pipeline_state=inner,
            obs=obs,
            reward=reward,
            done=terminated.astype(reward.dtype),
            info={**state.info, "rng": rng},
        )

    @property
    def observation_size(self) -> int:
        """d."""
        return self._obs_size

    @property
    def action_size(self) -> int:
        """m."""
        return len(self._scale)

    @property
    def episode_length(self) -> int:
        """T, the system's horizon."""
        return int(self.params.max_steps_in_episode)

    @property
    def backend(self) -> str:
        """The name of this package; there is no physics engine."""
        return "cojax"
