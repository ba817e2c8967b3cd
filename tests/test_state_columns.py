"""Noise Σ_j D_j s ζ_j on states: V* and π* against minimisation, draws and returns."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import scope
from scipy.optimize import minimize

import cojax
from cojax import noise_laws, streams, testing
from cojax.action_limits import Ball
from cojax.delay import delayed
from cojax.envs import ConverseEnv, env_params
from cojax.errors import InputError
from cojax.families import FAMILIES

P = np.diag([4.0, 1.0, 3.0, 2.0]) + 0.3
D = 0.14 * np.random.default_rng(0).normal(size=(2, 4, 4))
LAW = noise_laws.law("uniform")


def arm(dtype=None, **options):
    given = {"R": 8.0, "gamma": 0.9, "Sigma": 1e-3, "P": P, "Q": 0.4 * P, "state_columns": D}
    return FAMILIES["ConverseArm"].build(2, 0.8, dtype=dtype, **given | options)


def states(num=12):
    return np.random.default_rng(1).uniform(-1, 1, (num, 4)) * np.tile([2.8, 1.2], 2)


def drift_energy(s):
    """sᵀ(P - Q - γ Σ DᵀP D)s."""
    return s @ (0.6 * P - 0.9 * sum(one.T @ P @ one for one in D)) @ s


@pytest.mark.parametrize("sigma", [0.0, 0.4])
def test_numerical_minimisation_gives_value_and_action(sigma):
    """E over ± pairs of every column; with noise on actions beside it too."""
    with scope("float64"):
        system = arm(np.float64, action_noise=sigma)
        b = 9.0 * 1e-3 * np.trace(P)
        root = np.sqrt(1e-3)
        for s in states():
            x = jnp.asarray(s)
            at = system.optimum(x)
            f = np.asarray(at.drift)
            G = np.asarray(jax.vmap(lambda a, x=x: system.actuate(x, a))(jnp.eye(2))).T
            at_0 = jax.vmap(lambda a: system.actuate(jnp.zeros(4), a))(jnp.eye(2))
            shaken = sigma * np.asarray(at_0)  # (m, d)

            def Q(a, s=s, f=f, G=G, shaken=shaken):
                z = f + G @ a
                columns = [one @ s for one in D] + list(shaken * a[:, None])
                columns += list(root * np.eye(4))
                scale = np.sqrt(len(columns))
                pairs = [z + sign * scale * c for c in columns for sign in (1, -1)]
                ahead = np.mean([y @ P @ y for y in pairs]) + b
                return 0.4 * s @ P @ s + 8.0 * a @ a + 0.9 * ahead

            found = minimize(Q, np.zeros(2), method="BFGS", options={"gtol": 1e-10})
            assert found.fun == pytest.approx(s @ P @ s + b, rel=1e-9)
            np.testing.assert_allclose(found.x, at.action, atol=1e-5)
            a = np.array([0.3, -0.2])
            assert float(cojax.oracle.q_value(system, x, jnp.asarray(a))) == pytest.approx(
                Q(a), rel=1e-12
            )
            excess = float(system.excess_cost(x, a - at.action, at))
            assert excess == pytest.approx(Q(a) - found.fun, rel=1e-6)
            energy = np.asarray(system.direction(x)) @ np.asarray(system.direction(x))
            assert energy == pytest.approx(drift_energy(s), rel=1e-12)


@pytest.mark.parametrize("law", [noise_laws.NORMAL, LAW])
def test_a_hundred_thousand_draws_have_the_covariance(law):
    system = arm(law=law)
    s = jnp.asarray(states(3)[1], jnp.float32)
    keys = jax.random.split(streams.root_key(5), 100_000)
    w = np.asarray(jax.jit(jax.vmap(lambda key: system.sample_noise(s, key)))(keys), np.float64)
    columns = np.stack([one @ np.asarray(s, float) for one in D])
    known = columns.T @ columns + 1e-3 * np.eye(4)
    assert (np.abs(w.mean(0)) < 4.0 * np.sqrt(np.diag(known) / 1e5)).all()
    np.testing.assert_allclose(np.cov(w.T), known, atol=0.02 * known.max())
    priced = float(system.noise_price(s, jnp.zeros(2)))
    assert priced == pytest.approx(0.9 * np.trace(P @ columns.T @ columns), rel=1e-4)


def test_regret_is_the_sum_of_advantages():
    system = arm()
    params = env_params(system, system.geometry.initial_law(np.float32), action_limit=None)
    found = cojax.evaluate(["oracle", "zero", "lqr"], params, 1024, num_steps=80)
    gaps, regrets = (found.trials[n][0] for n in ("suboptimality", "coupled_regret"))
    assert (gaps[0] == 0.0).all()
    difference = gaps[1] - regrets[1]
    error = difference.std() / 32.0
    assert gaps[1].mean() > 10.0 * error
    assert abs(difference.mean()) < 4.0 * error


def test_it_conforms_stacks_and_stays_in_its_space():
    law = arm().geometry.initial_law(np.float32)
    one, two = (
        env_params(arm(law=LAW, **more), law, divergence_radius=20.0)
        for more in ({}, {"state_columns": 0.5 * D, "R": 5.0})
    )
    testing.check_env(ConverseEnv(one), one, num_states=4, num_draws=512)
    traces = []

    @jax.jit
    def step(params, key):
        traces.append(1)
        return jax.vmap(lambda p: cojax.system.step(p.system, jnp.ones(4), jnp.ones(2), key))(
            params
        )

    key = streams.root_key(0)
    both = step(cojax.stack([one, two]), key)
    back = step(cojax.stack([two, one]), jax.random.clone(key))
    assert len(traces) == 1
    np.testing.assert_allclose(both, back[::-1], rtol=1e-5, atol=1e-6)
    high = np.asarray(one.observation_limit)
    rng = np.random.default_rng(0)
    s = rng.normal(size=(500, 4))
    s = 19.9 * s / np.sqrt(np.sum((s @ P) * s, axis=1, keepdims=True))
    a = rng.choice([-2.0, 2.0], (500, 2))
    step = jax.jit(jax.vmap(lambda s, a, key: cojax.system.step(one.system, s, a, key)))
    after = step(*(jnp.asarray(x, jnp.float32) for x in (s, a)), jax.random.split(key, 500))
    assert (np.abs(after) <= high).all()
    assert (np.abs(after) / high).max() > 0.15


def test_no_columns_are_the_papers_system_to_the_bit():
    plain = arm(state_columns=None)
    zero = arm(state_columns=np.zeros((3, 4, 4)))
    assert zero.state_columns is None
    assert jax.tree.structure(zero) == jax.tree.structure(plain)
    for one, other in zip(jax.tree.leaves(zero), jax.tree.leaves(plain), strict=True):
        np.testing.assert_array_equal(one, other)


def test_rebuilding_derives_what_columns_cost_again():
    with scope("float64"):
        system = arm(np.float64)
        for changes in ({"p": 0.5}, {"P": 1.3 * P}, {"gamma": 0.8}, {"state_columns": 0.5 * D}):
            again = cojax.rebuild(system, **changes)
            anew = FAMILIES["ConverseArm"].build(
                **{"n": 2, "p": 0.8, "R": 8.0, "gamma": 0.9, "Sigma": 1e-3, "P": P, "Q": 0.4 * P}
                | {"state_columns": D, "dtype": np.float64} | changes
            )  # fmt: skip
            for one, other in zip(jax.tree.leaves(again), jax.tree.leaves(anew), strict=True):
                np.testing.assert_allclose(one, other, rtol=1e-9, atol=1e-14)
        assert cojax.rebuild(system, state_columns=None).Q_hat is None
        limited = arm(np.float64, limit=Ball(np.float64(1.0)))
        s = jnp.asarray(states(1)[0])
        at = limited.optimum(s)
        q = float(cojax.oracle.q_value(limited, s, at.action))
        assert q == pytest.approx(float(limited.value(s)), rel=1e-12)


REFUSED = {
    "state_columns: expected P - Q - γ Σ DᵀP D ⪰ 0, which is left for the drift, got smallest": (
        lambda: arm(state_columns=4.0 * D)
    ),
    "state_columns: expected finite numbers of shape (J, 4, 4), got (4, 4)": lambda: arm(
        state_columns=D[0]
    ),
    "state_columns: expected none where state_noise is given": lambda: arm(state_noise=0.1),
    "state_columns: expected none for a system of true kinematics": lambda: FAMILIES[
        "KinematicArm"
    ].build(2, state_columns=D),
    "delayed: expected a system without state_columns": lambda: delayed(arm()),
}


@pytest.mark.parametrize("line", REFUSED)
def test_bad_input_is_refused_in_one_line(line):
    with pytest.raises(InputError) as caught:
        REFUSED[line]()
    assert line in str(caught.value)
    assert "\n" not in str(caught.value)
