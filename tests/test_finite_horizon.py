"""Systems with a last step: V* and π* against minimisation, step by step and of all actions."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import random_spd, scope
from scipy.optimize import minimize

import cojax
from cojax import streams, testing
from cojax.action_limits import Ball, Box
from cojax.envs import ConverseEnv, env_params
from cojax.errors import InputError
from cojax.families import FAMILIES
from cojax.finite_horizon import finite_horizon
from cojax.initial import Uniform
from cojax.policy import Policy

T, N = 5, 8
rng = np.random.default_rng(5)
P_K = np.stack([(1.0 + k % 3) * random_spd(rng, 4, 5.0) for k in range(T + 1)])
Q_K = np.stack([share * P for share, P in zip((0.5, 0.0, 0.2, 0.9, 0.3), P_K, strict=False)])
SIGMA = 0.01 * random_spd(rng, 4, 3.0)
CASES = {"free": None, "box": Box(np.array([0.08, 0.2])), "ball": Ball(np.array(0.25))}


def arm(dtype=np.float64, **options):
    P = np.diag([4.0, 1.0, 3.0, 2.0]) + 0.3
    given = {"R": [1.0, 2.0], "Sigma": SIGMA, "P": P, "Q": 0.3 * P, "gamma": 0.9}
    return FAMILIES["ConverseArm"].build(2, 0.8, dtype=dtype, **given | options)


def make(case="free", gamma=1.0, dtype=np.float64, **options):
    return finite_horizon(arm(dtype, limit=CASES[case], **options), P_K, Q_k=Q_K, gamma=gamma)


def states(num=T + 1):
    """A state of each step in turn."""
    s = np.random.default_rng(0).uniform(-1, 1, (num, 4)) * np.tile([2.0, 1.0], 2)
    return np.concatenate([s, (np.arange(num) % (T + 1) / N)[:, None]], axis=1)


def offsets(gamma):
    """b_k by what all later steps pay, summed forwards."""
    return [
        sum(gamma ** (j - k) * np.trace(P_K[j] @ SIGMA) for j in range(k + 1, T + 1))
        for k in range(T + 1)
    ]


@jax.jit
def pieces(system, x):
    """The optimum, the input map row by row, and V*."""
    push = jax.vmap(lambda a: system.actuate(x, a))
    return system.optimum(x), push(jnp.eye(2)), system.value(x)


@jax.jit
def excesses(system, x, deltas):
    """Feasible actions near the best one, and their A*."""
    best = system.optimum(x).action
    a = jax.vmap(system.feasible)(best + deltas)
    return a, jax.vmap(lambda a: system.excess_cost(x, a - best))(a)


def q_function(system, x, gamma):
    """Q*_k(s, ·) and its gradient from drift and input map, moments of the noise and NumPy."""
    k = round(x[-1] * N)
    at, G, _ = jax.tree.map(np.asarray, pieces(system, x))
    f = at.drift
    assert f[-1] == min(k + 1, T) / N
    assert (G[:, -1] == 0.0).all()
    f, G, R = f[:4], G[:, :4], np.array([1.0, 2.0])
    s, last = x[:4], k == T
    ahead = P_K[min(k + 1, T)]
    charged = P_K[T] if last else Q_K[k]
    known = 0.0 if last else np.trace(ahead @ SIGMA) + offsets(gamma)[k + 1]

    def cost(a):
        z = f + a @ G
        total = s @ charged @ s + a @ (R * a) + gamma * (z @ ahead @ z + known)
        return total, 2.0 * R * a + 2.0 * gamma * G @ ahead @ z

    return cost


@pytest.mark.parametrize("gamma", [1.0, 0.8])
@pytest.mark.parametrize("case", CASES)
def test_numerical_minimisation_gives_value_and_action(case, gamma):
    with scope("float64"):
        system = make(case, gamma)
        limited = 0
        for x in states(12):
            cost, k = q_function(system, x, gamma), round(x[-1] * N)
            R, bounds, constraints = np.array([1.0, 2.0]), None, ()
            if case == "box":
                bounds = [(-0.08, 0.08), (-0.2, 0.2)]
            if case == "ball":
                constraints = {"type": "ineq", "fun": lambda a, R=R: 0.0625 - a @ (R * a)}
            method = {"free": "BFGS", "box": "L-BFGS-B", "ball": "SLSQP"}[case]
            option = {"gtol": 1e-10} if case != "ball" else {"ftol": 1e-15}
            found = minimize(
                cost, np.zeros(2), jac=True, method=method, bounds=bounds,
                constraints=constraints, options=option,
            )  # fmt: skip
            at, _, value = pieces(system, x)
            best, value = np.asarray(at.action), float(value)
            assert value == pytest.approx(x[:4] @ P_K[k] @ x[:4] + offsets(gamma)[k], rel=1e-12)
            assert found.fun == pytest.approx(value, rel=1e-9)
            np.testing.assert_allclose(found.x, best, atol=2e-5)
            limited += abs(best[0]) > 0.0799
            deltas = np.random.default_rng(k).normal(size=(3, 2))
            for a, excess in zip(*map(np.asarray, excesses(system, x, deltas)), strict=True):
                assert excess == pytest.approx(cost(a)[0] - cost(best)[0], rel=1e-8, abs=1e-12)
        assert case != "box" or limited > 2


@pytest.mark.parametrize("gamma", [1.0, 0.8])
def test_no_sequence_of_actions_beats_the_value_without_noise(gamma):
    """All T actions at once, by the dynamics and costs alone, with the terminal cost."""
    with scope("float64"):
        system = make(gamma=gamma, Sigma=0.0)
        x0 = jnp.asarray(states(1)[0])

        def total(a):
            x, cost = x0, 0.0
            for k in range(T):
                s = x[:4]
                paid = s @ jnp.asarray(Q_K[k]) @ s + jnp.sum(jnp.array([1.0, 2.0]) * a[k] ** 2)
                cost = cost + gamma**k * paid
                x = system.optimum(x).drift + system.actuate(x, a[k])
            return cost + gamma**T * x[:4] @ jnp.asarray(P_K[T]) @ x[:4]

        both = jax.jit(jax.value_and_grad(lambda a: total(a.reshape(T, 2))))
        found = minimize(both, np.zeros(2 * T), jac=True, options={"gtol": 1e-9})
        expected = np.asarray(x0)[:4] @ P_K[0] @ np.asarray(x0)[:4]
        assert found.fun == pytest.approx(expected, rel=1e-10)
        x = x0
        for a in found.x.reshape(T, 2):
            best = pieces(system, x)[0]
            np.testing.assert_allclose(a, best.action, atol=1e-5)
            x = best.next_mean
        assert float(both(np.zeros(2 * T))[0]) > 1.03 * expected


def test_steps_are_exact_and_settle():
    for horizon in (7, 4000):
        system = finite_horizon(arm(np.float32), T=horizon)
        step = jax.jit(lambda x, system=system: system.optimum(x).next_mean)
        x, seen = jnp.zeros(5, jnp.float32), []
        for _ in range(min(horizon, 20)):
            seen.append(int(system.split(x)[1]))
            x = step(x)
        assert seen == list(range(len(seen)))
        every = (np.arange(horizon + 1) / 2.0 ** np.ceil(np.log2(horizon))).astype(np.float32)
        k = jax.vmap(lambda t, system=system: system.split(jnp.full(5, t))[1])(jnp.asarray(every))
        np.testing.assert_array_equal(k, np.arange(horizon + 1))
        after = jax.vmap(lambda t, step=step: step(jnp.zeros(5).at[-1].set(t)))(jnp.asarray(every))
        np.testing.assert_array_equal(after[:, -1], every[np.minimum(k + 1, horizon)])
    last = jnp.asarray([0.3, -0.2, 0.5, 0.1, every[-1]], jnp.float32)
    moved = cojax.system.step(system, last, jnp.ones(2), streams.root_key(0))
    np.testing.assert_array_equal(moved, [0.0, 0.0, 0.0, 0.0, every[-1]])
    assert float(system.value(moved)) == 0.0


@pytest.mark.parametrize("case", CASES)
def test_one_matrix_for_all_steps_is_the_papers_system_to_the_bit(case):
    plain = arm(np.float32, limit=CASES[case])
    systems = [finite_horizon(plain, T=T), finite_horizon(plain, np.stack([plain.P] * (T + 1)))]
    for system in systems:
        assert system.steps == {}
        for x in states().astype(np.float32)[:T]:
            s = x[:4]
            ours, theirs = system.optimum(x), plain.optimum(s)
            np.testing.assert_array_equal(ours.drift[:4], theirs.drift)
            np.testing.assert_array_equal(ours.next_mean[:4], theirs.next_mean)
            np.testing.assert_array_equal(ours.action, theirs.action)
            a = plain.feasible(jnp.asarray([0.3, -0.1]))
            assert system.stage_cost(x, a) == plain.stage_cost(s, a)
            excess = plain.excess_cost(s, a - theirs.action, theirs)
            assert system.excess_cost(x, a - ours.action, ours) == excess
            key = streams.root_key(3)
            w = plain.sample_noise(s, jax.random.clone(key))
            np.testing.assert_array_equal(system.sample_noise(x, key)[:4], w)
            below = float(plain.value(s) - system.value(x))
            left = 0.9 ** (T - round(x[-1] * N))
            assert below == pytest.approx(left * float(plain.offset), rel=1e-3)


def problem(gamma=1.0, dtype=np.float32, horizon=T, terminal="optimal", case="free", **options):
    system = make(case, gamma, dtype)
    high = np.tile([1.0, 0.5], 2).astype(dtype)
    law = system.initial_law(Uniform(jnp.asarray(-high), jnp.asarray(high)))
    return env_params(system, law, max_steps_in_episode=horizon, terminal_value=terminal, **options)


def wrong(params, obs, key):
    return 0.4 * jnp.tanh(obs[:2] - obs[2:4]) * (1.0 + obs[4])


@pytest.mark.parametrize("gamma", [1.0, 0.8])
def test_regret_is_the_sum_of_advantages(gamma):
    policies = [Policy((), wrong, "wrong"), "oracle", "zero", "lqr", "dithered-oracle:0.2"]
    found = cojax.evaluate(policies, problem(gamma), 512, 2)
    gaps, corrected = (found.trials[n][0] for n in ("suboptimality", "tail_corrected"))
    assert not found.trials["failed"].any()
    assert (gaps[1] == 0.0).all()
    for gap, total in zip(gaps, corrected, strict=True):
        difference = gap - total
        assert abs(difference.mean()) < 4.5 * difference.std() / np.sqrt(difference.size) + 1e-5
    assert (gaps.mean(axis=1)[[0, 2, 3, 4]] > 0.02).all()
    # one step more settles what is left: cost is then paid as cost, and V* of (0, 1) is 0
    longer = cojax.evaluate(policies, problem(gamma, horizon=T + 1, terminal="none"), 512, 2)
    assert (longer.trials["tail_value"][0] == 0.0).all()
    np.testing.assert_allclose(longer.trials["suboptimality"][0, 1:3], gaps[1:3], rtol=1e-5)
    np.testing.assert_allclose(longer.trials["tail_corrected"][0, 1:3], corrected[1:3], atol=2e-4)


def test_the_environment_conforms():
    params = problem()
    testing.check_env(ConverseEnv(params), params, num_states=4, num_draws=512)
    states, actions = ConverseEnv(params).labels()
    assert states[4:] == ["step / 8 [-]"]
    assert len(actions) == 2


def test_stacks_and_traces_once():
    one = problem()
    other = finite_horizon(arm(np.float32, R=3.0), 2.0 * P_K[::-1], gamma=0.7, Q_k=0.1 * P_K[1:])
    two, traces = one.replace(system=other), []
    both = cojax.stack([one, two])
    env = ConverseEnv()

    @jax.jit
    def step(params, key, action):
        traces.append(1)
        _, state = env.reset(key, params)
        return env.step(jax.random.fold_in(key, 1), state, action, params)

    key, action = streams.root_key(1), jnp.full(2, 0.3)
    out = jax.vmap(step, (0, None, None))(both, key, action)
    again = jax.vmap(step, (0, None, None))(cojax.stack([two, one]), key, action)
    assert len(traces) == 1
    for i, params in enumerate((one, two)):
        obs, _, reward, *_ = step(params, key, action)
        np.testing.assert_allclose(out[0][i], obs, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(out[2][i], reward, rtol=1e-5)
        np.testing.assert_allclose(again[2][1 - i], reward, rtol=1e-5)


def test_single_precision_is_near_double():
    x = states(12).astype(np.float32)
    found = [pieces(make(dtype=np.float32), row)[0] for row in x]
    with scope("float64"):
        known = [pieces(make(), row)[0] for row in x.astype(np.float64)]
    found, known = (jax.tree.map(lambda *rows: np.stack(rows), *many) for many in (found, known))
    for ours, theirs in zip(found, known, strict=True):
        assert ours.dtype == np.float32
        np.testing.assert_allclose(ours, theirs, atol=3e-6 * np.abs(theirs).max())


def test_the_gradient_is_finite_at_the_origin():
    system = make(dtype=np.float32)
    slope = jax.jacfwd(lambda x: system.optimum(x).next_mean)(jnp.zeros(5, jnp.float32))
    assert np.isfinite(slope).all()


def test_states_inside_the_guard_step_into_the_observation_space():
    params = problem(divergence_radius=10.0)
    system, most, closest = params.system, np.asarray(params.observation_limit), 0.0
    draws = np.random.default_rng(2)
    step = jax.jit(lambda x, a: cojax.system.mean_next_state(system, x, a))
    bound = np.asarray(system.state_bound(jnp.float32(10.0)))
    for k in [0, 1, 2, 3, 4, 5] * 8:
        s = draws.normal(size=4) * (draws.uniform(size=4) < 0.7)
        x = np.append(s, k / N).astype(np.float32)
        norm = float(jnp.sqrt(system.value(x) - system.b[k]))
        x[:4] *= 9.9 / max(norm, 1e-6)
        assert (np.abs(x) <= bound).all()
        z = np.abs(np.asarray(step(x, jnp.asarray(draws.choice([-2.0, 2.0], 2), jnp.float32))))
        closest = max(closest, (z / most)[:4].max())
        assert (z <= most).all()
    assert closest > 0.2


REFUSED = {
    "T: expected the number of steps, or P_k for each, got neither": lambda: finite_horizon(arm()),
    "T: expected a whole number >= 1, got 0": lambda: finite_horizon(arm(), T=0),
    "T: expected at most 65536 steps, got 100000": lambda: finite_horizon(arm(), T=100000),
    "P_k: expected 4 matrices, got 6": lambda: finite_horizon(arm(), P_K, T=3),
    "P_k: expected at least 2 matrices, got 1": lambda: finite_horizon(arm(), P_K[:1]),
    "P_k: expected a matrix for each step, got 3.0": lambda: finite_horizon(arm(), 3.0),
    "P_k[2]: expected a positive definite matrix": lambda: finite_horizon(
        arm(), [P_K[0], P_K[1], np.diag([1.0, 1.0, 0.0, 1.0])], Q_k=Q_K[:2]
    ),
    "P_k[1]: expected a symmetric matrix": lambda: finite_horizon(
        arm(), [P_K[0], np.triu(P_K[1])], Q_k=Q_K[:1]
    ),
    "Q_k[0]: expected Q_k[0] ⪯ P": lambda: finite_horizon(arm(), 0.1 * P_K),
    "Q_k: expected 5 matrices, got 2": lambda: finite_horizon(arm(), P_K, Q_k=Q_K[:2]),
    "gamma: expected a number in (0, 1], got 1.1": lambda: finite_horizon(arm(), T=3, gamma=1.1),
    "finite_horizon: expected a drift that is free in every row": lambda: finite_horizon(
        FAMILIES["KinematicArm"].build(), T=3
    ),
    "finite_horizon: expected a system without action_noise": lambda: finite_horizon(
        arm(action_noise=0.3), T=3
    ),
    "gamma: expected a number in (0, 1), got 1": lambda: arm(gamma=1.0),
    "leaves of a system depend on each other; use cojax.finite_horizon": lambda: make().replace(
        gamma=jnp.float32(0.5)
    ),
}


@pytest.mark.parametrize("line", REFUSED)
def test_bad_input_is_refused_in_one_line(line):
    with scope("float64"), pytest.raises(InputError) as caught:
        REFUSED[line]()
    assert line in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_terminal_cost_alone_changes_the_last_look_ahead():
    with scope("float64"):
        plain = arm()
        system = finite_horizon(plain, T=3, terminal=np.diag([9.0, 9.0, 9.0, 9.0]))
        x = jnp.asarray(np.append(states(1)[0, :4], 0.0))
        s, second = x[:4], x.at[-1].set(0.5)
        np.testing.assert_allclose(system.optimum(x).action, plain.optimum(s).action, rtol=1e-12)
        assert np.abs(system.optimum(second).action - plain.optimum(s).action).max() > 1e-3
        assert float(system.value(x.at[-1].set(0.75))) == pytest.approx(9.0 * float(s @ s))
