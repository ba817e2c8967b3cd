"""A small environment whose values are known, for tests of the learners; how far critics are."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from flax import struct
from gymnax.environments import environment, spaces

RHO, GAIN, NOISE, GAMMA = 0.9, 0.2, 0.2, 0.9
PLAIN = {"action_unit": 1.0, "episode_growth": 0.0}  # nothing that learners find out by themselves
PLAIN_PPO = PLAIN | {
    "target_kl": None,
    "learning_rate": 3e-4,
    "critic_learning_rate": None,
    "max_grad_norm": 0.5,
    "gae_lambda": 0.95,
    "actor_ema_rate": 1.0,
    "obs_clip": 10.0,
    "stagger_episodes": False,
}
SMALL = PLAIN_PPO | {
    "num_envs": 4,
    "num_steps": 8,
    "num_minibatches": 2,
    "update_epochs": 2,
    "hidden": (8,),
}


@struct.dataclass
class ToyState(environment.EnvState):
    x: jax.Array
    time: jax.Array


@struct.dataclass
class ToyParams(environment.EnvParams):
    max_steps_in_episode: int = 16
    discount: float = GAMMA
    target: float = 0.0
    gain: float = GAIN
    blow_up: float = 0.0
    limit_is_terminal: float = 0.0


class Toy(environment.Environment):
    """x' = ρx + gain (a_1 - target) + σw; cost x² + 0.1 (a_2/4)²; two actions in different boxes.

    ``blow_up`` > 0 makes rewards NaN; ``limit_is_terminal`` > 0 reports time limits wrongly.
    """

    @property
    def default_params(self):
        return ToyParams()

    def step(self, key, state, action, params=None):
        obs, state, reward, terminated, truncated, info = super().step(key, state, action, params)
        faulty = params.limit_is_terminal > 0
        terminated, truncated = terminated | (truncated & faulty), truncated & ~faulty
        return obs, state, reward, terminated, truncated, info

    def step_env(self, key, state, action, params):
        cost = state.x**2 + 0.1 * (action[1] / 4.0) ** 2
        reward = jnp.where(params.blow_up > 0, jnp.nan, -cost)
        x = (
            RHO * state.x
            + params.gain * (action[0] - params.target)
            + NOISE * jax.random.normal(key)
        )
        state = ToyState(x=x, time=state.time + 1)
        return x[None], state, reward, jnp.array(False), {}

    def reset_env(self, key, params):
        x = jax.random.uniform(key, minval=-1.0, maxval=1.0)
        return x[None], ToyState(x=x, time=jnp.zeros((), jnp.int32))

    def is_terminated(self, state, params):
        return jnp.array(False)

    def action_space(self, params):
        return spaces.Box(jnp.array([-1.0, -4.0]), jnp.array([1.0, 4.0]), (2,))

    def observation_space(self, params):
        return spaces.Box(-10.0, 10.0, (1,))


class Discrete(Toy):
    def action_space(self, params):
        return spaces.Discrete(3)


def value(x, std):
    """V(x) under actions a_2 ~ N(0, (4 std)²) that move nothing (gain 0), in closed form.

    V = -(k x² + c): k = 1/(1-γρ²), c = (0.1 std² + γ k σ²)/(1-γ).
    """
    k = 1.0 / (1.0 - GAMMA * RHO**2)
    c = (0.1 * std**2 + GAMMA * k * NOISE**2) / (1.0 - GAMMA)
    return -(k * x**2 + c)


def relative(learned, known):
    """Mean |learned - known|, relative to mean |known|."""
    return float(jnp.mean(jnp.abs(learned - known)) / jnp.mean(jnp.abs(known)))
