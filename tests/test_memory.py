"""Memory in the state: action rates, actions a step late, Markov jumps, against what is not them."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import scope
from scipy.optimize import minimize

import cojax
from cojax import memory, streams, testing
from cojax.action_limits import Box
from cojax.agents import PPO
from cojax.envs import ConverseEnv, env_params
from cojax.errors import InputError
from cojax.families import FAMILIES
from cojax.initial import Uniform
from cojax.markov_jump import chances, markov_jump

D = np.array([30.0, 4.0])
PI = np.array([[0.7, 0.2, 0.1], [0.25, 0.5, 0.25], [0.0, 0.4, 0.6]])
CASES = ("rate", "delay", "jump")


def arm(p=0.8, dtype=np.float64, **options):
    """Two joints, correlated noise on all rows, nothing else of the default."""
    rng = np.random.default_rng(3)
    L = 0.01 * rng.normal(size=(4, 4))
    P = np.diag([4.0, 1.0, 3.0, 2.0]) + 0.3
    given = {"R": [3.0, 8.0], "Sigma": L @ L.T, "P": P, "Q": 0.2 * P, "gamma": 0.9}
    return FAMILIES["ConverseArm"].build(2, p, dtype=dtype, **given | options)


def modes(dtype=np.float64):
    """Three arms of different P, Q, R, p, Σ and knobs."""
    P = np.diag([1.0, 2.0, 2.0, 5.0]) - 0.2
    second = arm(0.5, dtype, P=P, Q=0.3 * P, R=2.0, g0=0.12, alpha0=0.4)
    return [arm(dtype=dtype), second, arm(1.0, dtype, R=[9.0, 1.0], Sigma=np.full((4, 4), 3e-4))]


def make(name, dtype=np.float64):
    """One system of each class."""
    if name == "rate":
        return memory.action_rate(arm(dtype=dtype), D)
    if name == "delay":
        return memory.delayed(arm(dtype=dtype))
    return markov_jump(modes(dtype), PI)


def states(name, num=12):
    """Random s, and a random last action or each of the modes."""
    rng = np.random.default_rng(0)
    s = rng.uniform(-1, 1, (num, 4)) * np.tile([2.8, 1.2], 2)
    last = np.eye(3)[np.arange(num) % 3] if name == "jump" else rng.normal(size=(num, 2))
    return np.concatenate([s, last], axis=1)


def full(x):
    x = np.asarray(x, np.float64)
    return np.diag(x) if x.ndim == 1 else x


def covariance(system):
    return full(system.noise.covariance())


def known_value(name):
    """x -> V*(x), and (x, a) -> c(x, a), by NumPy from what the systems were made of."""
    if name == "jump":
        systems = modes()
        kappa = [sum(q * np.trace(full(j.P) @ covariance(i)) for q, j in zip(row, systems))
                 for row, i in zip(PI, systems)]  # fmt: skip
        b = np.zeros(3)
        for _ in range(2000):
            b = 0.9 * (np.array(kappa) + PI @ b)

        def value(x):
            i = int(np.argmax(x[4:]))
            return x[:4] @ full(systems[i].P) @ x[:4] + b[i]

        def cost(x, a):
            i = int(np.argmax(x[4:]))
            return x[:4] @ full(systems[i].Q) @ x[:4] + a @ full(systems[i].R) @ a

        return value, cost
    system = arm()
    P, Q, R = full(system.P), full(system.Q), full(system.R)
    b = 9.0 * np.trace(P @ covariance(system))
    if name == "rate":
        price = np.zeros(2)
        for _ in range(2000):
            price = D - D**2 / (np.diag(R) + D + 0.9 * price)

        return (
            lambda x: x[:4] @ P @ x[:4] + price @ x[4:] ** 2 + b,
            lambda x, a: x[:4] @ Q @ x[:4] + a @ R @ a + D @ (a - x[4:]) ** 2,
        )
    g = np.asarray(jax.vmap(lambda a: system.actuate(jnp.zeros(4), a))(jnp.eye(2)))

    def value(x):
        moved = x[:4] + x[4:] @ g
        return x[:4] @ Q @ x[:4] + moved @ (P - Q) @ moved + b

    return value, lambda x, a: x[:4] @ Q @ x[:4] + a @ R @ a


def q_function(name, system, x):
    """Q*(x, ·) from drift and input map, ± pairs of noise that have its covariance, and NumPy."""
    value, cost = known_value(name)
    f = np.asarray(system.optimum(jnp.asarray(x)).drift)
    push = jax.vmap(lambda a: system.actuate(jnp.asarray(x), a))
    G = np.asarray(push(jnp.eye(2)))
    i = int(np.argmax(x[4:])) if name == "jump" else 0
    inner = modes()[i] if name == "jump" else arm()
    w, V = np.linalg.eigh(covariance(inner))
    pairs = np.concatenate([r * np.sqrt(4.0 * np.clip(w, 0.0, None))[:, None] * V.T for r in (1, -1)])

    def ahead(a):
        z = f + a @ G
        if name != "jump":
            return np.mean([value(np.append(z[:4] + pair, z[4:])) for pair in pairs])
        return np.mean([
            sum(PI[i, j] * value(np.append(z[:4] + pair, np.eye(3)[j])) for j in range(3))
            for pair in pairs
        ])  # fmt: skip

    return lambda a: cost(x, a) + 0.9 * ahead(a)


@pytest.mark.parametrize("name", CASES)
def test_numerical_minimisation_gives_value_and_action(name):
    with scope("float64"):
        system = make(name)
        for x in states(name):
            Q = q_function(name, system, x)
            found = minimize(Q, np.zeros(2), method="BFGS", options={"gtol": 1e-9})
            best = np.asarray(system.optimum(jnp.asarray(x)).action)
            value = float(system.value(jnp.asarray(x)))
            rel = 1e-9 if name != "jump" else 1e-6  # Π is kept on a grid of 2⁻²⁰
            assert value == pytest.approx(known_value(name)[0](x), rel=rel)
            assert found.fun == pytest.approx(value, rel=rel)
            np.testing.assert_allclose(found.x, best, atol=1e-5 * (1.0 + np.abs(best).max()))
            assert np.abs(best).max() > 1e-3


@pytest.mark.parametrize("name", CASES)
def test_advantages_are_differences_of_q(name):
    rng = np.random.default_rng(1)
    with scope("float64"):
        system = make(name)
        rel = 1e-10 if name != "jump" else 1e-6
        for x in states(name, 6):
            Q, at = q_function(name, system, x), system.optimum(jnp.asarray(x))
            for size in (0.1, 1.0):
                a = np.asarray(at.action) + size * rng.normal(size=2)
                found = Q(a) - Q(np.asarray(at.action))
                scale = found + abs(Q(a)) * 1e-4
                excess = float(system.excess_cost(jnp.asarray(x), a - at.action, at))
                assert excess == pytest.approx(found, abs=rel * scale + 1e-11)
                assert float(cojax.oracle.advantage(system, x, a)) == pytest.approx(excess)
                known = float(cojax.oracle.q_value(system, x, a))
                assert known == pytest.approx(Q(a), rel=rel)
            assert float(system.excess_cost(jnp.asarray(x), jnp.zeros(2))) == 0.0


def test_bellmans_equation_holds_to_rounding():
    """With the Π that is kept, also where modes jump."""
    for name in CASES:
        with scope("float64"):
            system = make(name)
            x = jnp.asarray(states(name, 64))
            best = jax.vmap(lambda x: system.optimum(x).action)(x)
            q = jax.vmap(cojax.oracle.q_value, (None, 0, 0))(system, x, best)
            value = np.asarray(jax.vmap(system.value)(x))
            np.testing.assert_allclose(q, value, rtol=1e-12)


@pytest.mark.parametrize("name", CASES)
def test_a_hundred_thousand_draws_cost_what_is_expected(name):
    system = make(name, np.float32)
    x = jnp.asarray(states(name, 3)[1], jnp.float32)
    a = jnp.asarray([0.4, -0.7], jnp.float32)
    keys = jax.random.split(streams.root_key(5), 100_000)

    @jax.jit
    def after(x, a):
        return jax.vmap(lambda key: cojax.system.step(system, x, a, key))(keys)

    x2 = np.asarray(after(x, a), np.float64)
    value, _ = known_value(name)
    if name == "jump":
        assert set(np.unique(x2[:, 4:])) == {0.0, 1.0}
        assert (x2[:, 4:].sum(axis=1) == 1.0).all()
        met = x2[:, 4:].mean(axis=0)
        assert (np.abs(met - PI[1]) < 4.0 * np.sqrt(PI[1] / 1e5)).all()
    else:
        np.testing.assert_array_equal(x2[:, 4:], np.tile(np.float32([0.4, -0.7]), (100_000, 1)))
    values = np.array([value(y) for y in x2[:20_000]]) if name == "jump" else _values(name, x2)
    optimum = system.optimum(x)
    z = system.next_mean(x, a, optimum)
    known = float(system.expected_value(x, z, a))
    assert abs(values.mean() - known) < 4.0 * values.std() / np.sqrt(len(values)) + 1e-5 * known
    spread = 4.0 * x2.std(axis=0) / np.sqrt(len(x2)) + 1e-5
    assert (np.abs(x2.mean(axis=0) - np.asarray(z)) < spread).all()


def _values(name, x):
    """V* of rows, by its quadratic form."""
    value, _ = known_value(name)
    zero, eye = np.zeros(6), np.eye(6)
    b = value(zero)
    W = np.array([[value(u + v) - value(u) - value(v) + b for v in eye] for u in eye]) / 2.0
    return np.einsum("ni,ij,nj->n", x, W, x) + b


def wrong(params, obs, key):
    """No optimum, but it keeps the state where it is known."""
    return 0.6 * jnp.tanh(obs[:2] - obs[2:4])


def problem(name, dtype=np.float32, horizon=40, **options):
    system = make(name, dtype)
    high = np.tile([2.0, 1.0], 2).astype(dtype)
    law = system.initial_law(Uniform(jnp.asarray(-high), jnp.asarray(high)))
    return env_params(system, law, max_steps_in_episode=horizon, **options)


@pytest.mark.parametrize("name", CASES)
def test_regret_is_the_sum_of_advantages(name):
    params = problem(name)
    wrong_policy = cojax.policy.Policy((), wrong, "wrong")
    policies = [wrong_policy, "oracle", "zero", "lqr", "random"]
    result = cojax.evaluate(params, policies, num_trials=512, root=2)
    rows = result.trials if hasattr(result, "trials") else result
    print(rows)


@pytest.mark.parametrize("name", CASES)
def test_the_environment_conforms(name):
    params = problem(name)
    testing.check_env(ConverseEnv(params), params, num_draws=1024)


@pytest.mark.parametrize("name", CASES)
def test_stacks_and_traces_once(name):
    one = problem(name)
    if name == "rate":
        other = memory.action_rate(arm(0.6, np.float32), [0.0, 1.0])
    elif name == "delay":
        other = memory.delayed(arm(0.6, np.float32), effect=np.ones((4, 2)))
    else:
        other = markov_jump([arm(p, np.float32) for p in (0.3, 0.4, 0.5)], np.full((3, 3), 1 / 3))
    two = one.replace(system=other)
    both, traces = cojax.stack([one, two]), []
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
