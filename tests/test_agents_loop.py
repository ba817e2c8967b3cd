"""The loop over updates: sums of metrics, plans, and the best on the way."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from agents_toy import Toy, ToyParams
from flax import struct

from cojax.agents import (
    ppo,
)
from cojax.agents.algorithm import (
    Clock,
)
from cojax.agents.loop import Plan
from cojax.agents.population import advance, averages
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
