"""The average cost of a step: the optimum at γ = 1, long runs, and linear policies by Lyapunov."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import relative, scope
from scipy.optimize import minimize

import cojax
from cojax.average_cost import averaged
from cojax.envs import ConverseEnv, env_params
from cojax.errors import InputError
from cojax.evaluation import evaluate_average, linear_average, lqr_gain
from cojax.families import FAMILIES
from cojax.policy import Policy

P = np.diag([4.0, 1.0, 3.0, 2.0]) + 0.3


def arm(dtype=None, **options):
    given = {"R": 8.0, "gamma": 0.9, "Sigma": 0.05, "P": P, "Q": 0.4 * P}
    return FAMILIES["ConverseArm"].build(2, 0.8, dtype=dtype, **given | options)


def linear(dtype=None):
    return averaged(FAMILIES["DoubleIntegrator"].build(Q=(5.0, 1.0), dtype=dtype))


def states(num=12):
    return np.random.default_rng(0).uniform(-1, 1, (num, 4)) * np.tile([2.8, 1.2], 2)


def gain(params, obs, key):
    """a = -K s."""
    return -jnp.matmul(params, obs, precision="highest")


def test_bias_and_average_solve_the_equation_of_the_average_cost():
    """h + λ* = min_a c + E h(s'), with M = P⁻¹ + p² g R⁻¹gᵀ written out for the drift."""
    with scope("float64"):
        plain, system = arm(np.float64), averaged(arm(np.float64))
        assert float(system.average) == pytest.approx(0.05 * np.trace(P), rel=1e-14)
        for s in states():
            x = jnp.asarray(s)
            g = (
                0.8
                * np.asarray(jax.vmap(lambda a, x=x: plain.geometry.actuate(x, a))(jnp.eye(2))).T
            )
            w, V = np.linalg.eigh(np.linalg.inv(P) + g @ g.T / 8.0)
            f = V @ (np.sqrt(w) * (V.T @ np.asarray(plain.direction(x))))
            at = system.optimum(x)
            assert relative(at.drift, f) < 1e-12

            def Q(a, s=s, f=f, g=g):
                z = f + g @ a
                return 0.4 * s @ P @ s + 8.0 * a @ a + z @ P @ z + 0.05 * np.trace(P)

            found = minimize(Q, np.zeros(2), method="BFGS", options={"gtol": 1e-10})
            known = s @ P @ s + 0.05 * np.trace(P)
            assert found.fun == pytest.approx(known, rel=1e-9)
            np.testing.assert_allclose(found.x, at.action, atol=1e-5)
            a = np.array([0.3, -0.2])
            excess = float(system.excess_cost(x, a - at.action, at))
            assert excess == pytest.approx(Q(a) - known, rel=1e-9)
            assert float(cojax.oracle.q_value(system, x, jnp.asarray(a))) == pytest.approx(Q(a))


def test_it_is_the_limit_of_the_discounted_systems():
    with scope("float64"):
        limit, near = averaged(arm(np.float64)), arm(np.float64, gamma=1.0 - 1e-7)
        other = averaged(arm(np.float64, gamma=0.6))
        assert float((1.0 - near.gamma) * near.offset) == pytest.approx(
            float(limit.average), rel=1e-6
        )
        for s in states(4):
            x = jnp.asarray(s)
            for name in ("drift", "action", "next_mean"):
                exact = getattr(limit.optimum(x), name)
                assert relative(getattr(near.optimum(x), name), exact) < 1e-6
                assert relative(getattr(other.optimum(x), name), exact) < 1e-12


def test_the_gap_is_the_average_cost_beyond_the_optimum():
    system = averaged(arm())
    params = env_params(system, system.initial_law(), action_limit=None)
    run = evaluate_average(
        {"oracle": "oracle", "detuned": "detuned-oracle:0.4"}, params, 800, num_trials=24
    )
    oracle, *others = run.rows()
    assert oracle["gap"] == oracle["low"] == oracle["high"] == 0.0
    assert oracle["cost"] == pytest.approx(0.05 * np.trace(P), rel=1e-6)
    for i, row in enumerate(others, 1):
        assert row["low"] < row["gap"] < row["high"] < 1.2 * row["gap"]
        assert row["gap"] > 0.02
        assert row["failed"] == 0.0
        assert abs(row["autocorrelation"]) < 0.25
        difference = run.costs[i] - run.gaps[i]
        error = difference.std() / np.sqrt(difference.size)
        assert abs(difference.mean()) < 4.0 * error
        assert error > 1e-4  # not the same numbers
    again = evaluate_average("detuned-oracle:0.4", params, 800, num_trials=24)
    np.testing.assert_allclose(again.gaps[0], run.gaps[1], rtol=1e-4)


def test_a_linear_policy_costs_what_lyapunov_says():
    """tr((Q + KᵀR K) X) by the system's own matrices; the gap by B and X; and the run."""
    with scope("float64"):
        exact = linear(np.float64)
        best = lqr_gain(exact)
        at = np.asarray(jax.vmap(lambda s: exact.optimum(s).action)(jnp.eye(2))).T
        np.testing.assert_allclose(best, -at, rtol=1e-5)
        cost, _ = linear_average(exact, -at)
        assert cost == pytest.approx(float(exact.average), rel=1e-9)
        K = -0.7 * at + np.array([[0.4, -0.2]])
        cost, X = linear_average(exact, K)
        g = np.array([[0.00125], [0.05]])
        B = 0.05 + g.T @ np.asarray(exact.inner.P) @ g
        gap = float(np.trace((K + at).T @ B @ (K + at) @ X))
        assert cost - float(exact.average) == pytest.approx(gap, rel=1e-6)
    system = linear()
    params = env_params(system, system.initial_law(), action_limit=None)
    policy = Policy(jnp.asarray(K, jnp.float32), gain, "K")
    run = evaluate_average(policy, params, 4000, num_trials=48, batches=8, confidence=0.999)
    (row,) = run.rows()
    assert row["low"] < gap < row["high"]
    assert row["high"] - row["low"] < 0.2 * gap


def test_a_trial_that_runs_away_is_a_failure():
    system = linear()
    params = env_params(system, system.initial_law(), action_limit=None)
    policy = Policy(jnp.full((1, 2), -40.0), gain, "away")
    run = evaluate_average(policy, params, 400, num_trials=2, batches=2)
    (row,) = run.rows()
    assert row["failed"] == 1.0
    assert row["gap"] == row["cost"] == np.inf


def test_populations_are_run_one_by_one():
    system = linear()
    params = env_params(system, system.initial_law(), action_limit=None)
    K = jnp.asarray(lqr_gain(system), jnp.float32)
    both = Policy(jnp.stack([K, 0.5 * K]), gain, "K", axes=("seed",))
    run = evaluate_average(both, params, 200, num_trials=4, batches=4, burn_in=0)
    assert run.names == ("K (seed 0)", "K (seed 1)")
    assert run.gaps.shape == (2, 4, 4)
    assert run.length == 50
    assert run.gaps[0].mean() < 1e-3 * run.gaps[1].mean()


def test_the_environment_runs_it():
    system = averaged(arm())
    params = env_params(system, system.initial_law())
    assert float(params.discount) == 1.0
    env = ConverseEnv(params)
    key = jax.random.key(0)
    _, state = env.reset(key)
    out, s = env.step(jax.random.fold_in(key, 1), state, jnp.zeros(2)), np.asarray(state.s)
    assert float(out[2]) == pytest.approx(-0.4 * s @ P @ s, rel=1e-5)
    assert env.labels()[0][0] == "θ_1 [rad]"


REFUSED = {
    "Q: expected βP ⪯ Q with β > 0, got β = 0": lambda: averaged(arm(Q=0.0)),
    "averaged: expected a quadratic system, got AverageCost": lambda: averaged(averaged(arm())),
    "averaged: expected a system without state_noise": lambda: averaged(arm(state_noise=0.1)),
    "averaged: expected no system of a class of its own, got KinematicGaussian": lambda: averaged(
        FAMILIES["KinematicArm"].build()
    ),
    "params: expected one system of the average cost, got QuadraticGaussian": lambda: (
        evaluate_average("zero", env_params(arm(), arm().geometry.initial_law(np.float32)))
    ),
    "policies: expected at least one policy": lambda: short([]),
    "expected one of JAX, got one of the host": lambda: short({"host": lambda obs: obs[:1]}),
    "batches: expected a whole number >= 2, got 1": lambda: short("zero", batches=1),
    "num_steps: expected a whole number >= 10, got 5": lambda: short("zero", num_steps=5),
    "K: expected shape (1, 2), got (2, 1)": lambda: linear_average(linear(), np.ones((2, 1))),
    "K: expected a stable loop, got spectral radius": lambda: linear_average(
        linear(), np.zeros((1, 2)) - 9.0
    ),
    "system: expected a linear drift, got one that is off by": lambda: linear_average(
        averaged(arm()), np.zeros((2, 4))
    ),
    "average: leaves of a system depend on each other; use cojax.average_cost.averaged": lambda: (
        linear().replace(average=0.0)
    ),
}


def short(policies, **options):
    system = linear()
    params = env_params(system, system.initial_law(), action_limit=None)
    return evaluate_average(policies, params, **options)


@pytest.mark.parametrize("line", REFUSED)
def test_bad_input_is_refused_in_one_line(line):
    with pytest.raises(InputError) as caught:
        REFUSED[line]()
    assert line in str(caught.value)
    assert "\n" not in str(caught.value)


def test_without_noise_costs_and_what_h_rose_by_are_the_gap():
    """In every batch of every trial, from the first step on."""
    system = averaged(arm(Sigma=0.0))
    params = env_params(system, system.initial_law(), action_limit=None)
    run = evaluate_average("zero", params, 20, num_trials=4, batches=4, burn_in=0)
    assert float(system.average) == 0.0
    assert (run.gaps[..., 0] > 0.01).all()
    np.testing.assert_allclose(run.costs, run.gaps, rtol=1e-3, atol=1e-5)
