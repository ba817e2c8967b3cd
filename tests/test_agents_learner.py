"""Episodes as learners see them: where they begin, end and are counted."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from agents_toy import PLAIN, Toy, ToyParams

from cojax.agents import ddpg, off_policy, on_policy, ppo, returns
from cojax.agents.algorithm import Episodes, reset_all, shorten_episodes, stagger_episodes, strong
from cojax.agents.settings import hyperparameters
from cojax.errors import InputError


def test_stagger_episodes_spreads_the_first_episodes_and_no_others():
    params = strong(ToyParams(max_steps_in_episode=400))
    _, state = reset_all(Toy(), jax.random.key(0), params, 256)
    spread = stagger_episodes(jax.random.key(0), state, params)
    np.testing.assert_array_equal(spread.x, state.x)
    assert spread.time.dtype == state.time.dtype
    assert int(spread.time.min()) >= 0
    assert int(spread.time.max()) < 400
    counts = np.histogram(spread.time, bins=4, range=(0, 400))[0]
    assert counts.min() > 40, counts
    fewer = stagger_episodes(jax.random.key(0), jax.tree.map(lambda x: x[:8], state), params)
    np.testing.assert_array_equal(fewer.time, spread.time[:8])


@pytest.mark.parametrize(("limit", "every"), [(3, 3), (100, 8), (None, 8)])
def test_episodes_are_cut_short_and_truncation_is_reported(limit, every):
    """x' = ρx + noise: across a reset it would be anywhere in [-1, 1]."""
    params, env = strong(ToyParams(max_steps_in_episode=8, gain=0.0)), Toy()
    size = PLAIN | {"num_envs": 16, "num_steps": 24, "max_episode_steps": limit}
    size |= {"stagger_episodes": False}
    h = hyperparameters(ppo.PPO, size)
    state = on_policy.init(env, jax.random.key(0), params, h)
    _, rollout, _ = on_policy.collect(env, state, params, h, key=jax.random.key(1))
    ended = np.arange(1, 25) % every == 0
    np.testing.assert_array_equal(rollout.truncated, np.repeat(ended[:, None], 16, axis=1))
    assert not rollout.terminated.any()
    residual = (rollout.final_obs - 0.9 * rollout.obs)[ended]
    assert float(jnp.abs(residual).max()) < 1.0
    h = hyperparameters(ddpg.DDPG, size)
    state = ddpg.ALGORITHM.init(env, jax.random.key(0), params, h)
    _, rollout, _ = off_policy.collect(
        env, state, params, h, key=jax.random.key(1), method=ddpg.METHOD
    )
    np.testing.assert_array_equal(rollout.truncated, np.repeat(ended[:, None], 16, axis=1))
    assert not rollout.terminated.any()


def test_an_environment_without_a_time_limit_cannot_be_cut_short():
    h = hyperparameters(ppo.PPO, {"max_episode_steps": 3})
    with pytest.raises(InputError, match=r"max_episode_steps: .* got int"):
        on_policy.init(Toy(), jax.random.key(0), 3, h)


def test_an_episode_is_counted_beyond_what_float32_counts():
    episodes = Episodes(jnp.zeros(1), jnp.full(1, 2**24, jnp.int32))
    episodes, _ = episodes.step(jnp.ones(1), jnp.array([False]))
    _, ended = episodes.step(jnp.ones(1), jnp.array([True]))
    assert float(ended["episode_length"]) == 2**24 + 2


def test_an_infinite_limit_leaves_the_environments_own():
    params = strong(ToyParams())
    for limit in (np.inf, 1e10, 16.0):
        h = hyperparameters(ppo.PPO, {"max_episode_steps": limit})
        assert int(shorten_episodes(params, h).max_steps_in_episode) == 16


class Column(Toy):
    """A reward of shape (1,): with the rewards of N environments it would make an (N, N)."""

    def step_env(self, key, state, action, params):
        obs, state, reward, terminated, info = super().step_env(key, state, action, params)
        return obs, state, reward[None], terminated, info


def test_a_reward_that_is_no_number_is_refused():
    h = hyperparameters(ppo.PPO, {"num_envs": 4, "num_steps": 2})
    state = on_policy.init(Column(), jax.random.key(0), strong(ToyParams()), h)
    with pytest.raises(AssertionError, match=r"has shape \(4, 1\) but expected \(4\)"):
        on_policy.collect(Column(), state, strong(ToyParams()), h, key=jax.random.key(1))


def test_advantages_of_unequal_shapes_are_refused():
    row, column = jnp.zeros((3, 2)), jnp.zeros((3, 1))
    flags = jnp.zeros((3, 2), bool)
    with pytest.raises(AssertionError, match="assert_equal_shape"):
        returns.gae(row, row, column, terminated=flags, truncated=flags, gamma=0.9, gae_lambda=0.9)
