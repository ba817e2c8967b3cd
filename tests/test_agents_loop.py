"""The loop over updates: sums of metrics, plans, and the best on the way."""

from __future__ import annotations

import dataclasses

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from agents_toy import Toy, ToyParams
from flax import struct

from cojax.agents import a2c, ppo, settings
from cojax.agents.algorithm import Clock, strong
from cojax.agents.layout import Layout
from cojax.agents.loop import Members, Plan
from cojax.agents.population import Population, advance, averages
from cojax.agents.run import Best
from cojax.errors import InputError


class Counting(struct.PyTreeNode):
    """The state of a learner that does nothing but count."""

    clock: Clock
    failed: jax.Array


def test_sums_of_metrics_see_what_is_added_after_a_million_updates():
    def update(env, state, env_params, h):
        clock = state.clock.replace(update=state.clock.update + 1)
        metrics = {"reward": jnp.float32(0.1), "episodes": jnp.float32(1.0)}
        return state.replace(clock=clock), metrics

    state = Counting(Clock.create(), jnp.array(False))
    spec = dataclasses.replace(ppo.ALGORITHM, update=update)
    updates = 2**20 + 5
    state, sums, _ = advance(
        spec, Toy(), None, None,
        state=state, num_updates=jnp.int32(updates), env_params=ToyParams(), h=None,
    )  # fmt: skip
    metrics = averages(jax.device_get(sums), updates)
    assert int(state.clock.update) == updates
    np.testing.assert_allclose(metrics["reward"], 0.1, rtol=2**-10)  # a stretch rounds 2¹⁴ times
    assert float(metrics["episodes"]) == updates


def test_some_members_begin_anew_and_all_by_new_parameters():
    """The others go on from where they are."""
    h = settings.stack_hyperparameters(a2c.A2C, [{"num_envs": 2, "num_steps": 4}] * 3, {})
    systems = [
        jax.tree.map(lambda *x: jnp.stack(x), *[strong(ToyParams(target=t)) for t in targets])
        for targets in ((0.0, 0.1, 0.2), (0.3, 0.4, 0.5))
    ]
    layout = Layout(1, own_clocks=True)
    old, new = (
        Population.flat(a2c.ALGORITHM, Toy(), params, h, jax.random.split(key, 3), layout)
        for params, key in zip(systems, jax.random.split(jax.random.key(0)), strict=True)
    )
    plan = Plan.of(8, 80, None)
    members, fresh = Members.create(old, plan), Members.create(new, plan)
    members.advance(None, 3)
    before = jax.tree.map(lambda x: x[::2], members.states[0].params)
    members.restart(np.array([False, True, False]), new)
    assert members.p is new
    state = members.states[0]
    np.testing.assert_array_equal(state.clock.update, [3, 0, 3])
    np.testing.assert_array_equal(state.clock.total, [10] * 3)
    chex.assert_trees_all_equal(jax.tree.map(lambda x: x[::2], state.params), before)
    chex.assert_trees_all_equal(*(x.params["actor"]["params"]["head"]["kernel"][1]
                                  for x in (state, fresh.states[0])))  # fmt: skip
    np.testing.assert_allclose(members.arguments[0][0].target, [0.3, 0.4, 0.5])


def test_more_updates_than_can_be_counted_are_refused():
    assert Plan.of(64, 10**11, None).timesteps >= 10**11
    with pytest.raises(InputError, match="total_timesteps: expected at most 2,147,483,647 updates"):
        Plan.of(1, 2**31, None)


def test_the_best_is_never_what_is_not_a_number():
    best = Best.create((4,), {"w": np.zeros(4)})
    for interval, value in enumerate(([np.nan, np.inf, -np.inf, 0.5], [0.3, 0.3, 0.3, np.nan])):
        best.see(interval, np.array(value), {"w": np.full(4, interval)})
    np.testing.assert_array_equal(best.value, np.float32([0.3, 0.3, 0.3, 0.5]))
    np.testing.assert_array_equal(best.interval, [1, 1, 1, 0])
    np.testing.assert_array_equal(best.params["w"], [1, 1, 1, 0])
