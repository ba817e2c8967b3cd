"""Every class of problems by a million draws of its noise."""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import scope

from cojax import streams
from cojax.evaluation import doctor
from cojax.fixtures import load_fixture

AT_ONCE, STATES = 10_000, 4
CHEAP = ("noise in gusts", "modes that jump")


@partial(jax.jit, static_argnames="draws")
def backed_up(system, s, draws):
    """c(s, a*) + γ E V*(s'), its standard error and V*(s), at a state, from what is simulated."""
    at = system.optimum(s)
    z = at.drift + system.actuate(s, at.action)
    base = system.value(z)

    def rise(key):
        return system.value(z + system.sample_noise(s, key, at.action)) - base

    def some(sums, key):
        x = jax.vmap(rise)(jax.random.split(key, AT_ONCE))
        return (sums[0] + x.sum(), sums[1] + (x**2).sum()), None

    keys = jax.random.split(streams.root_key(4), draws // AT_ONCE)
    (first, second), _ = jax.lax.scan(some, (jnp.zeros_like(base),) * 2, keys)
    mean = first / draws
    error = jnp.sqrt(jnp.maximum(second / draws - mean**2, 0.0) / draws)
    ahead = system.stage_cost(s, at.action) + system.gamma * (base + mean)
    return ahead, system.gamma * error, system.value(s)


def check(name, draws):
    with scope("float64"):
        params = load_fixture(name).make_params(dtype=np.float64)
        keys = jax.random.split(streams.root_key(5), STATES)
        states = jax.vmap(params.initial_state.sample)(keys)
        for s in jax.vmap(params.system.project)(states):
            ahead, error, value = (float(x) for x in backed_up(params.system, s, draws))
            assert abs(ahead - value) <= 5.0 * error + 1e-9 * value, (name, ahead, value, error)


@pytest.mark.parametrize("what", CHEAP)
def test_a_few_draws_pay_for_the_value(what):
    check(doctor.CLASSES[what], 20_000)


@pytest.mark.slow
@pytest.mark.parametrize("what", sorted(set(doctor.CLASSES) - {"risk"}))
def test_a_million_draws_pay_for_the_value(what):
    """Of risk the mean is that of an exponential: tests/test_risk.py."""
    check(doctor.CLASSES[what], 1_000_000)
