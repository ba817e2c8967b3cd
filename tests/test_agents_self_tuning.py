"""What learners find out by themselves: the unit of actions, the limit of episodes."""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from agents_toy import Toy, ToyParams

import cojax
from cojax.agents import on_policy, ppo, self_tuning
from cojax.agents.algorithm import strong
from cojax.agents.distributions import ActionBox, log_tanh_slope, tanh_gaussian_log_prob
from cojax.agents.self_tuning import EpisodeLimit
from cojax.agents.settings import hyperparameters


@pytest.mark.parametrize(
    ("gain", "low", "high"), [(0.01, 1.0, 1.0), (2.0, 0.1, 0.5), (200.0, 0, 0.01)]
)
def test_the_unit_follows_what_actions_do(gain, low, high):
    """Of the toy, x' = 0.9 x + gain a with |a| <= 1 and |x| <= 1."""
    params = strong(ToyParams(gain=gain))
    find = jax.jit(partial(self_tuning.action_unit, Toy()))
    units = [float(find(jax.random.key(i), params)) for i in range(4)]
    assert all(low <= unit <= high for unit in units), units


def test_the_unit_holds_the_optimal_actions_of_a_system():
    """Measured without the oracle; the oracle says that it is of the right size."""
    env, params = cojax.make("nvdex-k1-easy")
    unit = float(self_tuning.action_unit(env, jax.random.key(0), params))
    keys = jax.random.split(jax.random.key(1), 256)
    best = jax.vmap(lambda k: params.system.optimum(params.initial_state.sample(k)).action)(keys)
    best = np.abs(best) / np.asarray(params.action_limit)
    assert unit / 8 < np.sqrt(np.mean(best**2)) < unit, unit


def run(limit: EpisodeLimit, reward_of, steps: int = 40, num_envs: int = 4) -> EpisodeLimit:
    """Updates of 16 steps, of environments that all have the longest limit."""
    time = jnp.zeros(num_envs, jnp.int32)
    for _ in range(steps):
        total = jnp.zeros(4)
        for _ in range(16):
            total = total + limit.sums(time, reward_of(time))
            time = jnp.where(time + 1 >= limit.steps, 0, time + 1)
        limit = limit.follow(total, 16, jnp.asarray(0.1))
    return limit


def test_episodes_grow_while_rewards_hold_and_shrink_where_they_do_not():
    held = run(EpisodeLimit.create(), lambda t: -jnp.ones(t.shape))
    # 0.1 of the steps taken, but for updates that saw no start or no end of an episode
    assert 40.0 < float(held.steps) <= 16.0 + 0.1 * 40 * 16
    lost = run(held, lambda t: -(1.5 ** t.astype(jnp.float32)), steps=10)
    assert float(lost.steps) < float(held.steps)
    broken = run(EpisodeLimit.create(), lambda t: jnp.where(t > 4, jnp.nan, -1.0))
    assert float(broken.steps) == self_tuning.SHORTEST
    assert np.isfinite(float(broken.late))
    # rewards that rise are no reason to stop
    assert float(run(EpisodeLimit.create(), lambda t: 1.0 * t).steps) > 40.0


def test_limits_of_environments_are_spread_and_those_that_ran_away_begin_anew():
    limit = EpisodeLimit.create().replace(steps=jnp.asarray(256.0))
    spread = np.asarray(limit.spread(5))
    np.testing.assert_allclose(spread, [256.0, 128.0, 64.0, 32.0, 16.0], rtol=1e-5)
    params = strong(ToyParams(max_steps_in_episode=100))
    h = hyperparameters(ppo.PPO, {"num_envs": 5})
    of, axes = self_tuning.limits(limit, params, h)
    steps = of(jnp.array([False, False, True, False, False])).max_steps_in_episode
    assert steps.tolist() == [100, 100, 0, 32, 16]
    assert axes.max_steps_in_episode == 0
    assert axes.gain is None
    none = hyperparameters(ppo.PPO, {"num_envs": 5, "episode_growth": 0.0})
    of, _ = self_tuning.limits(limit, params, none)
    assert of(jnp.ones(5, bool)).max_steps_in_episode.tolist() == [100] * 5


def test_where_the_time_limit_is_a_part_of_the_problem_it_stays():
    """A shorter one would pay V* at its end: the learner would be told the optimum."""
    _, params = cojax.make("double-integrator", terminal_value="optimal")
    h = hyperparameters(ppo.PPO, {"num_envs": 3})
    of, _ = self_tuning.limits(EpisodeLimit.create(), params, h)
    own = int(params.max_steps_in_episode)
    assert of(jnp.ones(3, bool)).max_steps_in_episode.tolist() == [own] * 3


def test_a_rollout_leaves_states_that_ran_away():
    """The double integrator without control grows by 1.1 a step, for 300 steps."""
    env, params = cojax.make("double-integrator")

    def farthest(**given):
        h = hyperparameters(ppo.PPO, {"num_envs": 8, "num_steps": 64, "hidden": (8,), **given})
        state = on_policy.init(env, jax.random.key(0), strong(params), h)
        collect = jax.jit(lambda s, k: on_policy.collect(env, s, strong(params), h, key=k)[:2])
        for i in range(4):
            state, rollout = collect(state, jax.random.key(i))
        return float(-rollout.reward.min()), rollout

    worst, rollout = farthest()
    unlimited, _ = farthest(episode_growth=0.0)
    assert worst < 1e-2 * unlimited
    assert rollout.truncated.any()
    assert not rollout.terminated.any()


@pytest.mark.parametrize("unit", [1.0, 0.05])
def test_squashed_actions_in_another_unit_keep_box_and_density(unit):
    box = ActionBox(-2.0 * jnp.ones(1), 2.0 * jnp.ones(1), unit)
    x = jnp.linspace(-3.0, 3.0, 7)[:, None] / unit
    action = box.to_action(box.squash(x))
    np.testing.assert_allclose(action, 2.0 * np.tanh(unit * x), rtol=1e-5)
    slope = jax.vmap(jax.grad(lambda x: box.to_action(box.squash(x))[0]))(x)
    found = tanh_gaussian_log_prob(x, x, jnp.zeros(1), box.half_range(), unit=unit)
    np.testing.assert_allclose(found, -0.5 * np.log(2 * np.pi) - np.log(slope[:, 0]), rtol=1e-3)
    assert np.isfinite(log_tanh_slope(unit * x)).all()
    assert float(jnp.abs(box.to_action(box.inside(100.0 * x))).max()) <= 2.0 + 1e-6
