"""The gradient learner: its gradients against differences, what it reaches, what it refuses."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from agents_toy import Toy

import cojax
from cojax.agents import shac, train
from cojax.agents.algorithm import strong
from cojax.agents.networks import scale_head
from cojax.agents.normalization import PopArt
from cojax.agents.settings import hyperparameters
from cojax.agents.state_slopes import bounded, inexact, moved
from cojax.errors import InputError
from cojax.evaluation.learning_curve import RelativeGap

SMALL = {"num_envs": 3, "num_steps": 5, "hidden": (8,), "num_minibatches": 3, "update_epochs": 1}


@pytest.fixture(scope="module")
def small():
    """An arm, hyperparameters and a learner on it after two updates."""
    env, params = cojax.make("arm-n2-p0.80-s7")
    params, h = strong(params), hyperparameters(shac.SHAC, SMALL)
    state = shac.init(env, jax.random.key(0), params, h)
    update = jax.jit(lambda state: shac.update(env, state, params, h))
    for _ in range(2):
        state, metrics = update(state)
    assert all(np.isfinite(x) for x in jax.tree.leaves(metrics))
    return env, params, h, state


def test_gradients_are_those_of_differences(small):
    """Along a random direction of the actor's parameters, and of the states' nudges; in units of
    values so large that parts count alike (weights are held constant) and no slope is steep.
    """
    env, params, h, state = small
    unit, old = 1e4, state.targets
    slow = scale_head(state.slow, old.std() / unit, old.mean() / unit)
    wide = PopArt(jnp.zeros(()), jnp.asarray(unit**2), jnp.ones(()))
    state = state.replace(slow=slow, targets=wide)

    @jax.jit
    def loss(actor, nudge):
        return shac.actor_loss((actor, nudge), env, state, params, h=h, key=jax.random.key(5))[0]

    actor, rest = state.params["actor"], shac.at_rest(state, h)
    grads = jax.grad(loss, argnums=(0, 1))(actor, rest)
    for k, (tree, slope) in enumerate(zip((actor, rest), grads, strict=True)):
        keys = iter(jax.random.split(jax.random.key(k), 99))
        way = jax.tree.map(lambda x: jax.random.normal(next(keys), x.shape), tree)  # noqa: B023
        step = 2e-3

        def along(by):
            there = jax.tree.map(lambda x, y: x + by * y, tree, way)  # noqa: B023
            return float(loss(*((there, rest) if k == 0 else (actor, there))))  # noqa: B023

        found = (along(step) - along(-step)) / (2 * step)
        pairs = zip(*map(jax.tree.leaves, (slope, way)), strict=True)
        exact = sum(float(jnp.vdot(x, y)) for x, y in pairs)
        assert found == pytest.approx(exact, rel=0.03)


def test_slopes_are_bounded_one_environment_at_a_time():
    x, scale = [jnp.ones((3, 2))], [jnp.array([1.0, 2.0])]

    def value(x):
        (y,) = bounded(x, scale, jnp.asarray(10.0))
        return jnp.sum(y[0]) + jnp.sum(1e6 * y[1]) + jnp.sum(jnp.sqrt(y[2] - 1.0))

    (slope,) = jax.grad(value)(x)
    np.testing.assert_allclose(slope[0], 1.0)  # small: as it is
    assert float(jnp.linalg.norm(slope[1] * scale[0])) == pytest.approx(10.0, rel=1e-4)
    np.testing.assert_array_equal(slope[2], 0.0)  # infinite: none


def test_nudges_move_states_alone(small):
    *_, state = small
    leaves = inexact(state.env_state)
    there = moved(state.env_state, [jnp.ones_like(x) for x in leaves])
    np.testing.assert_array_equal(there.time, state.env_state.time)
    np.testing.assert_allclose(there.s, state.env_state.s + 1.0)


def test_gradients_for_diagnosis_are_of_the_shape_of_the_actor(small):
    env, params, h, state = small
    grads = shac.actor_gradients(env, state, params, h, key=jax.random.key(0), num=2)
    shapes = jax.tree.map(lambda g, p: g.shape == (2, *p.shape), grads, state.params["actor"])
    assert all(jax.tree.leaves(shapes))


def test_it_comes_near_the_optimum_of_an_unstable_system_in_seconds():
    """On which doing nothing, and a learner of whole episodes, end in an infinite gap."""
    env, params = cojax.make("double-integrator")
    run = train(
        "shac",
        params,
        jax.random.key(0),
        env=env,
        num_seeds=None,
        total_timesteps=30_000,
        eval_every=30_000,
        evaluate=RelativeGap(num_trials=16, root=7),
    )
    assert not run.failed
    assert float(run.curves[-1]) < 0.05
    assert float(run.critic()(jnp.zeros(2))) <= 0.0


def test_an_environment_without_gradients_is_refused_in_one_line():
    with pytest.raises(InputError, match=r"shac needs gradients through the transition") as error:
        train("shac", Toy().default_params, jax.random.key(0), env=Toy(), total_timesteps=64)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("given", "match"), [({"num_minibatches": 3}, "num_minibatches"), ({"activation": "no"}, "no")]
)
def test_settings_that_do_not_fit_are_refused(given, match):
    with pytest.raises(InputError, match=match):
        shac.check(hyperparameters(shac.SHAC, given))
