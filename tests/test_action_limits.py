"""Hard action limits, noise on states and on actions: V* and π* against what does not know them."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import struct
from helpers import scope
from scipy.optimize import minimize

import cojax
from cojax import fixtures, noise_laws, quadratic, streams
from cojax.action_limits import Ball, Box
from cojax.envs import env_params
from cojax.errors import InputError
from cojax.families import FAMILIES
from cojax.fixtures import forms, generator
from cojax.fixtures.fixture import from_content
from cojax.initial import Uniform
from cojax.quadratic import Geometry

FULL_R = np.array([[10.0, 4.0], [4.0, 6.0]])
CASES = {
    "box": (np.array([10.0, 3.0]), {"limit": Box(np.array([0.05, 0.2]))}),
    "ball": (FULL_R, {"limit": Ball(np.array(0.3))}),
    "states": (10.0, {"state_noise": 900.0}),
    "actions": (FULL_R, {"action_noise": [0.5, 1.5]}),
    "all": (10.0, {"limit": Box(np.array([0.1, 0.1])), "state_noise": 200.0, "action_noise": 1.0}),
}


def arm(R=10.0, dtype=np.float64, Sigma=1e-4, **options):
    """Two joints, noise on all rows."""
    return FAMILIES["ConverseArm"].build(2, 0.8, R=R, Sigma=Sigma, dtype=dtype, **options)


def states(num=24):
    return np.random.default_rng(0).uniform(-1, 1, (num, 4)) * np.tile([2.8, 1.2], 2)


def problem(system, s):
    """Q*(s, ·) and its gradient from drift, input map, costs and moments of the noise alone."""
    f = np.asarray(system.optimum(s).drift)
    G = np.asarray(jax.vmap(lambda a: system.actuate(s, a))(jnp.eye(2))).T
    G0 = np.asarray(jax.vmap(lambda a: system.actuate(jnp.zeros(4), a))(jnp.eye(2))).T
    P, Q, R = (np.asarray(x) for x in (system.P, system.Q, system.R))
    Q, R = (x if x.ndim == 2 else np.diag(x) for x in (Q, R))
    Sigma, gamma = 1e-4 * np.eye(4), float(system.gamma)
    eta = 0.0 if system.state_noise is None else float(system.state_noise)
    sigma = np.zeros(2) if system.action_noise is None else np.asarray(system.action_noise)
    left = 1.0 - gamma * eta * np.trace(P @ Sigma)  # the cost is this much of the Q stated
    known = np.trace(P @ Sigma) * (1.0 + eta * s @ Q @ s / left)
    H = 2.0 * R + 2.0 * gamma * (G.T @ P @ G + np.diag(sigma**2 * np.diag(G0.T @ P @ G0)))
    b = gamma / (1.0 - gamma) * np.trace(P @ Sigma)
    constant = s @ Q @ s + gamma * (f @ P @ f + known + b)

    def cost(a):
        linear = 2.0 * gamma * G.T @ P @ f
        return constant + linear @ a + 0.5 * a @ H @ a, linear + H @ a

    return cost


def least(cost, limit, R):
    """min Q* over the feasible actions, by SciPy."""
    if isinstance(limit, Box):
        bounds = [(-x, x) for x in np.asarray(limit.bound)]
        options = {"ftol": 1e-16, "gtol": 1e-13}
        return minimize(cost, np.zeros(2), jac=True, bounds=bounds, options=options)
    if isinstance(limit, Ball):
        inside = {
            "type": "ineq",
            "fun": lambda a: float(limit.bound) ** 2 - a @ R @ a,
            "jac": lambda a: -2.0 * R @ a,
        }
        options = {"ftol": 1e-16, "maxiter": 500}
        start = np.full(2, 1e-3)
        return minimize(
            cost, start, jac=True, method="SLSQP", constraints=[inside], options=options
        )
    return minimize(cost, np.zeros(2), jac=True, method="BFGS", options={"gtol": 1e-13})


@pytest.mark.parametrize("name", CASES)
def test_numerical_minimisation_gives_value_and_action(name):
    R, options = CASES[name]
    with scope("float64"):
        system, saturated = arm(R, **options), 0
        oracle = jax.jit(system.optimum)
        for s in states():
            found = least(problem(system, s), options.get("limit"), R)
            value, a = float(system.value(s)), np.asarray(oracle(s).action)
            assert found.fun == pytest.approx(value, rel=1e-9)
            np.testing.assert_allclose(found.x, a, atol=2e-5 * np.abs(a).max())
            if system.limit is not None:
                saturated += np.any(system.limit.at_limit(a, system.effort))
        assert system.limit is None or saturated > 6


@pytest.mark.parametrize("name", CASES)
def test_advantages_are_differences_of_q(name):
    R, options = CASES[name]
    rng = np.random.default_rng(1)
    with scope("float64"):
        system = arm(R, **options)
        for s in states(12):
            optimum, cost = system.optimum(s), problem(system, s)
            for size in (0.01, 0.1, 1.0):
                a = np.asarray(system.feasible(jnp.asarray(size * rng.normal(size=2))))
                known = cost(a)[0] - float(system.value(s))
                excess = float(system.excess_cost(s, a - optimum.action, optimum))
                assert excess >= 0.0
                assert excess == pytest.approx(known, abs=1e-12 * float(system.value(s)))
                alone = float(cojax.oracle.advantage(system, s, a))
                assert alone == pytest.approx(excess, rel=1e-9, abs=1e-15)
            assert float(system.excess_cost(s, jnp.zeros(2), optimum)) == 0.0


@pytest.mark.parametrize("name", ["box", "ball"])
def test_where_nothing_saturates_it_is_the_papers_system(name):
    """Up to the order in which a compiler rounds."""
    R, options = CASES[name]
    wide = {"limit": type(options["limit"])(100.0 * np.asarray(options["limit"].bound))}
    for dtype in ("float32", "float64"):
        with scope(dtype):
            plain, limited = (jax.jit(arm(R, dtype, **o).optimum) for o in ({}, wide))
            for s in states(8).astype(dtype):
                for x, y in zip(plain(s), limited(s), strict=True):
                    np.testing.assert_allclose(x, y, rtol=0, atol=4 * np.finfo(dtype).eps)


def test_neutral_switches_are_the_papers_system():
    plain = arm(dtype=np.float32)
    switches = {"limit": None, "state_noise": 0.0, "action_noise": 0.0}
    neutral = arm(dtype=np.float32, law=noise_laws.law("gaussian"), **switches)
    for x, y in zip(jax.tree.leaves(neutral), jax.tree.leaves(plain), strict=True):
        np.testing.assert_array_equal(x, y)
    assert jax.tree.structure(neutral) == jax.tree.structure(plain)


def test_draws_have_the_moments_that_the_value_counts_on():
    """A million draws of each law, with noise on states and actions."""
    for word in ("gaussian", "laplace", "gusts"):
        law = noise_laws.law(word)
        system = arm(dtype=np.float32, state_noise=900.0, action_noise=1.5, law=law)
        gains, known = _gains(system)
        assert abs(gains.mean() - known) < 4.0 * gains.std() / 1e3 + 1e-6


def _gains(system):
    """V*(z + w) - V*(z) of a million draws, and what it should be on average."""
    s, a = jnp.float32([1.0, -0.5, 2.0, 0.3]), jnp.float32([0.3, -0.1])
    z = system.optimum(s).drift + system.actuate(s, a)
    keys = jax.random.split(jax.random.key(0), 1_000_000)

    def gain(key):
        return system.value(z + system.sample_noise(s, key, a)) - system.value(z)

    known = float(system.expected_value(s, z, a) - system.value(z))
    return np.asarray(jax.jit(jax.vmap(gain))(keys), np.float64), known


# --- one dimension: value iteration from zero ----------------------------------------------------


@struct.dataclass
class Line(Geometry):
    """s' = f(s) + p cos(s) a + w, f of the sign that a turn by π gives or not."""

    family, dimensions, constant_input, one_row_each = "Line", (), False, True

    @property
    def state_dim(self):
        return 1

    @property
    def action_dim(self):
        return 1

    def actuate(self, s, a):
        return jnp.cos(s) * a

    def actuate_transpose(self, s, v):
        return jnp.cos(s) * v

    def rotate(self, s, x, p):
        return x

    def input_norm(self):
        return 1.0

    def noise_order(self):
        return (0,)

    def initial_law(self, dtype=None):
        one = jnp.ones(1, dtype)
        return Uniform(low=-one, high=one)


@pytest.mark.parametrize(
    "options",
    [
        {"limit": Box(np.array([0.15]))},
        {"limit": Ball(np.array(0.1))},
        {"state_noise": 2.0, "action_noise": 0.8},
        {"limit": Box(np.array([0.15])), "state_noise": 2.0, "action_noise": 0.8},
    ],
)
def test_value_iteration_from_zero(options):
    """On a grid over [-3, 3], knowing drift, costs and noise, and nothing of V*."""
    P, Q, R, Sigma, gamma, p = 1.0, 0.3, 0.4, 0.02, 0.9, 0.8
    with scope("float64"):
        system = quadratic.build(Line(), P=P, Q=Q, R=R, Sigma=Sigma, gamma=gamma, p=p, **options)
        x = np.linspace(-3.0, 3.0, 401)
        f = np.asarray(jax.vmap(system.optimum)(x[:, None]).drift)[:, 0]
        V_star = np.asarray(jax.vmap(system.value)(x[:, None]))
        q = float(system.Q[0])
    eta, sigma = options.get("state_noise", 0.0), options.get("action_noise", 0.0)
    limit = options.get("limit")
    most = 1.5 if limit is None else float(np.ravel(limit.bound)[0])
    most = most / np.sqrt(R) if isinstance(limit, Ball) else most
    a = np.linspace(-most, most, 121)
    nodes, weights = np.polynomial.hermite_e.hermegauss(7)
    weights = weights / weights.sum()
    mean = f[:, None] + p * np.cos(x)[:, None] * a[None]
    std = np.sqrt(Sigma * (1.0 + eta * Q * x**2)[:, None] + (p * sigma * a)[None] ** 2)
    following = np.clip(mean[..., None] + std[..., None] * nodes, -3.0, 3.0)
    cell = np.clip(((following + 3.0) / 6.0 * 400).astype(int), 0, 399)
    share = (following + 3.0) / 6.0 * 400 - cell
    cost = q * x[:, None] ** 2 + R * a[None] ** 2
    V = np.zeros_like(x)
    for _ in range(150):
        ahead = ((1.0 - share) * V[cell] + share * V[cell + 1]) @ weights
        V = (cost + gamma * ahead).min(axis=1)
    inner = np.abs(x) < 1.5  # far out the grid's edge is felt
    np.testing.assert_allclose(V[inner], V_star[inner], rtol=6e-3, atol=2e-3)
    if limit is not None:
        a_star = a[np.argmin(cost + gamma * ahead, axis=1)]
        assert (np.abs(a_star[inner]) == most).mean() > 0.2


# --- environments and fixtures -------------------------------------------------------------------


def limited(**options):
    return fixtures.make_fixture("ConverseArm", id="limited", n=2, p=0.8, certify=False, **options)


def test_the_gap_of_a_clipped_policy_is_exact():
    """What advantages add up to is what trials cost beyond the oracle's, on the same noise."""
    made = limited(
        action_limit={"kind": "box", "bound": 0.15},
        noise={"model": "student-t", "nu": 4.0, "on_action": 0.3},
        Sigma=1e-4,
    )
    found = cojax.evaluate(["lqr", "zero"], made.make_params(), num_trials=512, num_steps=900)
    gaps, regrets = (found.trials[name][0] for name in ("suboptimality", "coupled_regret"))
    for gap, regret in zip(gaps, regrets, strict=True):
        difference = gap - regret
        error = difference.std() / np.sqrt(difference.size)
        assert gap.mean() > 10.0 * error
        assert abs(difference.mean()) < 4.0 * error


def test_the_environment_clips_to_what_the_value_knows():
    params = limited(action_limit={"kind": "ball", "bound": 0.3}).make_params()
    a = params.clip(jnp.float32([[3.0, 4.0], [0.01, 0.02], [jnp.nan, 1.0]]))
    R = np.asarray(params.system.R)
    assert float(R @ a[0] ** 2) == pytest.approx(0.09, rel=1e-5)
    np.testing.assert_array_equal(a[1], np.float32([0.01, 0.02]))
    assert np.isnan(a[2, 0])
    env = cojax.envs.ConverseEnv(params)
    np.testing.assert_allclose(env.action_space().high, 0.3 / np.sqrt(R), rtol=1e-6)
    with pytest.raises(InputError, match=r"action_limit: expected the .* that V\* of this system"):
        env_params(params.system, params.initial_state, action_limit=1.0)
    with pytest.raises(InputError, match=r"got None; build the system with another limit"):
        env_params(params.system, params.initial_state, action_limit=None)
    assert env_params(params.system, params.initial_state).clip_actions


def test_one_trace_serves_many_limits_and_laws():
    traces = []

    @jax.jit
    def step(params, s, key):
        traces.append(None)
        return jax.vmap(lambda p: cojax.system.step(p.system, s, p.clip(jnp.ones(2)), key))(params)

    made = [
        limited(
            action_limit={"kind": "box", "bound": bound},
            noise={"model": "student-t", "nu": nu, "on_state": 10.0},
        ).make_params()
        for bound, nu in ((0.1, 3.0), (0.2, 5.0), (0.3, 8.0))
    ]
    s, key = jnp.ones(4), jax.random.key(0)
    first = step(cojax.stack(made[:2]), s, key)
    second = step(cojax.stack(made[1:]), s, key)
    assert len(traces) == 1
    np.testing.assert_array_equal(first[1], second[0])
    alone = cojax.system.step(made[2].system, s, made[2].clip(jnp.ones(2)), key)
    np.testing.assert_allclose(second[1], alone, rtol=2e-6)


def test_a_fixture_states_limit_and_noise_and_reads_back():
    made = limited(
        action_limit={"kind": "box", "bound": [0.1, 0.2]},
        noise={"model": "gusts", "probability": 0.2, "ratio": 4.0, "on_state": 50.0},
    )
    back = from_content(made.content())
    assert back == made
    assert made.content()["noise"] == {
        "model": "gusts", "probability": 0.2, "ratio": 4.0, "on_state": 50.0
    }  # fmt: skip
    system = back.system(np.float64)
    assert isinstance(system.limit, Box)
    np.testing.assert_allclose(np.asarray(system.Q_hat), back.Q_matrix)
    changed = back.with_changes(
        action_limit={"kind": "ball", "bound": 0.1}, noise={"model": "laplace"}
    )
    assert isinstance(changed.system().limit, Ball)
    assert changed.system().Q_hat is None


def test_rebuild_keeps_limit_and_noise():
    system = limited(
        action_limit={"kind": "box", "bound": 0.1},
        noise={"model": "laplace", "on_state": 50.0, "on_action": 0.2},
    ).system(np.float64)
    with scope("float64"):
        again = cojax.rebuild(system)
        for x, y in zip(jax.tree.leaves(again), jax.tree.leaves(system), strict=True):
            np.testing.assert_allclose(x, y, rtol=1e-12)
        other = cojax.rebuild(system, p=0.4, limit=None, action_noise=0.0)
        assert other.limit is other.action_noise is other.R_hat is None
        assert other.noise.law.word == "laplace"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"action_limit": {"kind": "cube", "bound": 1.0}}, "action_limit.kind: .*'cube'"),
        ({"action_limit": {"kind": "box"}}, "action_limit.bound: expected this field, got nothing"),
        ({"action_limit": {"kind": "box", "bound": -1.0}}, r"action_limit.bound: .*\(0, inf\].*-1"),
        ({"action_limit": {"kind": "box", "bound": [1.0]}}, "action_limit.bound: expected 2 numb"),
        ({"action_limit": {"kind": "ball", "bound": [1.0, 1.0]}}, "expected one number for a ball"),
        ({"noise": {"model": "student-t", "nu": 2.0}}, r"noise.nu: .*\(2, inf\), got 2"),
        ({"noise": {"model": "gaussian", "nu": 3.0}}, "noise .*nu"),
        ({"noise": {"model": "cauchy"}}, "noise.model: expected .*'cauchy'"),
        ({"noise": {"model": "gaussian", "on_action": -0.1}}, r"noise.on_action\[0\]: .*-0.1"),
    ],
)
def test_what_a_file_cannot_state_is_refused(options, said):
    with pytest.raises(InputError, match=said):
        limited(**options)


def test_what_no_system_has_is_refused_with_its_number():
    with pytest.raises(InputError, match=r"state_noise: expected less than .* = [0-9.]+.*, got 1e"):
        arm(dtype=np.float32, state_noise=1e9)
    with pytest.raises(InputError, match=r"a box needs a diagonal R.*use kind: ball"):
        arm(FULL_R, np.float32, limit=Box(np.ones(2)))


@struct.dataclass
class MerelyClipping(Box):
    """The paper's own action, clipped: the drift does not know of it."""

    def stretched(self, v, free, *, rest, R):
        """No stretch."""
        return jnp.ones_like(rest), jnp.clip(free, -self.bound, self.bound)


def test_a_wrong_limit_is_found_by_the_validator(monkeypatch):
    right = limited(action_limit={"kind": "box", "bound": 0.1})
    assert right.certify().certificate.passed
    monkeypatch.setattr(forms, "Box", MerelyClipping)
    failures = right.certify().certificate.failures
    assert any("bellman_residual" in text for text in failures)


def test_draws_of_the_generator_have_limits_and_laws():
    ranges = {
        "n": 2,
        "action_limit": {"kind": "box", "bound": {"uniform": [0.1, 0.3]}},
        "noise": {"model": {"choice": ["laplace", "uniform"]}, "on_action": {"uniform": [0, 0.2]}},
    }
    known, rng = generator.resolve("ConverseArm", ranges), np.random.default_rng(5)
    made = [generator.draw("ConverseArm", known, rng) for _ in range(8)]
    bounds = [options["action_limit"]["bound"] for options in made]
    assert len(set(bounds)) == 8
    assert all(0.1 <= bound <= 0.3 for bound in bounds)
    assert {options["noise"]["model"] for options in made} == {"laplace", "uniform"}


def test_streams_are_common_to_all_policies():
    """A law draws by the keys of a trial: what one policy meets another meets too."""
    system = limited(noise={"model": "impulses", "on_action": 0.5}).system()
    key = streams.noise_key(streams.episode_key(streams.stream_key(0, 3), 0), 7)
    s, a = jnp.ones(4), jnp.ones(2)
    np.testing.assert_array_equal(system.sample_noise(s, key, 0.0 * a), system.noise.sample(key, s))
    with pytest.raises(InputError, match="sample_noise: expected the action"):
        system.sample_noise(s, key)


@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_every_family_takes_limits_and_noise(family):
    """At states of its initial law: Bellman's equation, and no feasible action below V*."""
    kind = FAMILIES[family]
    with scope("float64"):
        usual = kind.build(dtype=np.float64)
        law = usual.geometry.initial_law(np.float64)
        s = jax.vmap(law.sample)(jax.random.split(jax.random.key(0), 16))
        usual_size = float(jnp.abs(jax.vmap(usual.optimum)(s).action).mean())
        full = np.ndim(usual.R) > 1
        bound = np.full(() if full else usual.action_dim, 0.5 * usual_size)
        limit = (Ball if full else Box)(bound)
        law = noise_laws.law("laplace")
        system = cojax.rebuild(usual, limit=limit, action_noise=0.3, law=law)

        def at(s, key):
            optimum = system.optimum(s)
            a = system.feasible(usual_size * jax.random.normal(key, optimum.action.shape))
            value = system.value(s)
            lost = cojax.oracle.q_value(system, s, a) - value
            excess = system.excess_cost(s, a - optimum.action, optimum)
            held = jnp.any(system.limit.at_limit(optimum.action, system.effort))
            best = cojax.oracle.q_value(system, s, optimum.action) - value
            return excess, (lost - excess) / value, best / value, held

        keys = jax.random.split(jax.random.key(1), 16)
        found = jax.jit(jax.vmap(at))(s, keys)
    excess, error, residual, held = map(np.asarray, found)
    assert excess.min() >= 0.0
    assert np.abs(error).max() < 1e-11
    assert np.abs(residual).max() < 1e-11
    if not hasattr(system, "eta"):  # whose limit is one of u
        assert held.any()
