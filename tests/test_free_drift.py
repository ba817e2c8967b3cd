"""Given drifts and finite sets of actions, against physics and Bellman's equation written anew."""

from __future__ import annotations

import itertools

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import struct
from helpers import scope
from scipy.interpolate import CubicSpline
from scipy.optimize import minimize

import cojax
from cojax import free_drift, streams, testing
from cojax.action_lists import grid, nearest
from cojax.envs import CommonStreams, ConverseEnv, Discrete, env_params, environment_of
from cojax.errors import InputError
from cojax.evaluation import diagnose
from cojax.families import DRIFTS, Pendulums
from cojax.families.pendulums import SLOPES
from cojax.initial import Uniform
from cojax.labels import KNOWN
from cojax.policy import Policy

G, K, C, COUPLING, TAU = -9.0, 1.0, 0.4, 0.7, 0.08  # upside down
LIST = np.array([[0.0, 0.0], [2.0, 0.0], [-2.0, 0.0], [0.0, 3.0], [0.0, -3.0], [2.0, 3.0]])
SIGMA = np.diag([0.0, 0.02, 0.0, 0.01]) + 0.001


def pendulums(finite=False, dtype=None, **options):
    """Two of them, on their heads where every torque is allowed."""
    knobs = {
        "gravity": G,
        "stiffness": K,
        "damping": C,
        "coupling": COUPLING,
        "tau": TAU,
        "R": 2e-3,
    }
    if finite:
        knobs = {"gravity": 2.5, "stiffness": 4.0, "actions": LIST, "R": [0.02, 0.01]}
    knobs |= {"gamma": 0.95, "Sigma": SIGMA}
    return Pendulums.build(2, 0.9, dtype=dtype, **knobs | options)


def physics(s, finite=False):
    """f(s), one pendulum after another."""
    g, k, c, spring, tau = (2.5, 4.0, 1.0, 0.5, 0.1) if finite else (G, K, C, COUPLING, TAU)
    out = np.zeros(4)
    for i in range(2):
        theta, omega, other = s[2 * i], s[2 * i + 1], s[2 - 2 * i]
        force = -g * np.sin(theta) - k * theta - c * omega - spring * (theta - other)
        out[2 * i + 1] = omega + tau * force
        out[2 * i] = theta + tau * out[2 * i + 1]
    return out


def q_function(system, s, finite=False):
    """Q*(s, ·) from physics, the second moments of w, and the system's own price of states."""
    P, b = np.asarray(system.P), 19.0 * np.trace(np.asarray(system.P) @ SIGMA)
    tau = 0.1 if finite else TAU
    g = 0.9 * np.kron(np.eye(2), np.array([[tau**2], [tau]]))
    R = np.diag([0.02, 0.01]) if finite else 2e-3 * np.eye(2)
    q = float(system.stage_cost(jnp.asarray(s), jnp.zeros(2)))
    f = physics(s, finite)

    def Q(a):
        z = f + g @ a
        return q + a @ R @ a + 0.95 * (z @ P @ z + np.trace(P @ SIGMA) + b)

    return Q, s @ P @ s + b


def states(num=24):
    return np.random.default_rng(0).normal(size=(num, 4)) * np.tile([2.0, 1.5], 2)


def test_minimisation_over_torques_gives_value_and_action():
    with scope("float64"):
        system = pendulums(dtype=np.float64)
        for s in states():
            Q, value = q_function(system, s)
            at = system.optimum(jnp.asarray(s))
            found = minimize(Q, np.zeros(2), method="BFGS", options={"gtol": 1e-10})
            np.testing.assert_allclose(at.drift, physics(s), rtol=1e-13, atol=1e-14)
            assert found.fun == pytest.approx(value, rel=1e-9)
            assert float(system.value(s)) == pytest.approx(value, rel=1e-12)
            np.testing.assert_allclose(found.x, at.action, rtol=2e-5, atol=1e-4)
            for size in (1e-3, 1.0):
                a = np.asarray(at.action) + size * np.array([0.7, -0.4])
                excess = float(system.excess_cost(jnp.asarray(s), a - at.action, at))
                assert excess == pytest.approx(Q(a) - value, rel=1e-7, abs=1e-12 * value)
            assert float(system.excess_cost(jnp.asarray(s), jnp.zeros(2), at)) == 0.0


def test_enumeration_of_a_list_gives_value_and_action():
    chosen = set()
    with scope("float64"):
        system = pendulums(True, np.float64)
        for s in states(60):
            Q, value = q_function(system, s, True)
            every = np.array([Q(a) for a in LIST])
            at = system.optimum(jnp.asarray(s))
            assert every.min() == pytest.approx(value, rel=1e-12)
            np.testing.assert_array_equal(at.action, LIST[every.argmin()])
            chosen.add(int(every.argmin()))
            for a, worth in zip(LIST, every, strict=True):
                excess = float(system.excess_cost(jnp.asarray(s), a - at.action, at))
                assert excess == pytest.approx(worth - value, rel=1e-9, abs=1e-12 * value)
                known = float(cojax.oracle.q_value(system, jnp.asarray(s), jnp.asarray(a)))
                assert known == pytest.approx(worth, rel=1e-12)
            assert float(system.excess_cost(jnp.asarray(s), jnp.zeros(2), at)) == 0.0
    assert len(chosen) == len(LIST)


@struct.dataclass
class Bent(free_drift.DriftFamily):
    """f = r s cos(0.8 tanh s), one state; no hull is known."""

    r: float = 0.9
    family = "Bent"
    dimensions = ()
    action_limit = None

    @property
    def state_dim(self):
        return 1

    @property
    def action_dim(self):
        return 1

    def drift(self, s):
        return self.r * s * jnp.cos(0.8 * jnp.tanh(s))

    def actuate(self, s, a):
        return 0.9 * a

    def actuate_transpose(self, s, v):
        return 0.9 * v

    def noise_order(self):
        return (0,)

    def initial_law(self, dtype=None):
        return Uniform(low=jnp.asarray([-2.0], dtype), high=jnp.asarray([2.0], dtype))


def test_value_iteration_from_zero_finds_the_value():
    """A spline of 401 knots, which quadratics are exact in, and Gauss-Hermite expectations."""
    acts, gamma, sd = np.array([-1.0, -0.4, 0.0, 0.4, 1.0]), 0.9, 0.25
    with scope("float64"):
        system = Bent.build(0.8, P=2.0, R=0.3, gamma=gamma, Sigma=sd**2, actions=acts)
        knots = np.linspace(-6.0, 6.0, 401)
        q = np.asarray(jax.vmap(system.state_cost)(jnp.asarray(knots)[:, None]))
    assert system.shown == "sampled"
    nodes, weights = np.polynomial.hermite_e.hermegauss(9)
    weights = weights / weights.sum()
    f = 0.9 * knots * np.cos(0.8 * np.tanh(knots))
    z = f[:, None, None] + 0.72 * acts[None, :, None] + sd * nodes[None, None]
    V = np.zeros_like(knots)
    for _ in range(220):
        ahead = CubicSpline(knots, V)(np.clip(z, -6.0, 6.0)) @ weights
        V = (q[:, None] + 0.3 * acts**2 + gamma * ahead).min(axis=1)
    inside = np.abs(knots) < 2.0
    known = 2.0 * knots**2 + 9.0 * 2.0 * sd**2
    np.testing.assert_allclose(V[inside], known[inside], rtol=2e-9)


def test_no_sequence_of_listed_actions_beats_the_value():
    """All 5⁴ of them, without noise; the best is V* itself."""
    acts = np.array([-4.0, -1.0, 0.0, 1.0, 4.0])
    with scope("float64"):
        system = Pendulums.build(1, gamma=0.9, Sigma=0.0, R=0.01, actions=acts)
        s = jnp.asarray([0.5, 0.5])

        def total(sequence):
            x, cost = s, 0.0
            for k in range(4):
                cost = cost + 0.9**k * system.stage_cost(x, sequence[k])
                x = cojax.system.mean_next_state(system, x, sequence[k])
            return cost + 0.9**4 * system.value(x)

        every = np.array(list(itertools.product(acts, repeat=4)))[..., None]
        costs = np.asarray(jax.jit(jax.vmap(total))(jnp.asarray(every)))
        value = float(system.value(s))
    assert costs.min() == pytest.approx(value, rel=1e-13)
    assert (costs >= value * (1.0 - 1e-13)).all()
    assert np.ptp(every[costs.argmin()]) > 0.0


def test_descent_on_torques_comes_down_to_the_value_and_no_further():
    with scope("float64"):
        system = pendulums(dtype=np.float64, Sigma=0.0)

        @jax.jit
        @jax.value_and_grad
        def total(actions):
            x, cost = jnp.asarray([0.8, -0.5, -1.2, 0.6]), 0.0
            for k in range(6):
                a = actions[2 * k : 2 * k + 2]
                cost = cost + 0.95**k * system.stage_cost(x, a)
                x = cojax.system.mean_next_state(system, x, a)
            return cost + 0.95**6 * system.value(x)

        value = float(system.value(jnp.asarray([0.8, -0.5, -1.2, 0.6])))
        met = []

        def f(x):
            met.append(float(total(x)[0]))
            return met[-1], np.asarray(total(x)[1], np.float64)

        minimize(f, np.zeros(12), jac=True, method="L-BFGS-B", options={"gtol": 1e-10, "ftol": 0})
    assert min(met) == pytest.approx(value, rel=1e-9)
    assert min(met) >= value * (1.0 - 1e-12)
    assert met[0] > 1.2 * value


def test_share_is_a_bound_in_all_states_and_nearly_met():
    for system in (pendulums(), pendulums(True), Pendulums.build(3)):
        assert system.shown == "hull"
        d, rng = system.state_dim, np.random.default_rng(1)
        s = rng.normal(size=(20_000, d)) * 10.0 ** rng.uniform(-2, 1, (20_000, 1))
        s = jnp.asarray(s, jnp.float32)
        excess = jnp.sum(s * (s @ system.P), axis=1)
        q = np.asarray(jax.vmap(system.state_cost)(s) / excess)
        assert q.min() >= float(system.share) - 2e-4
        assert q.min() < float(system.share) + 0.35


def test_hull_of_the_pendulums_is_around_their_drift():
    for n in (1, 3):
        family = Pendulums(gravity=3.0, stiffness=0.2, damping=0.3, coupling=0.6, tau=0.2, n=n)
        corners = family.hull()
        assert corners is not None
        assert corners.shape == (2**n, 2 * n, 2 * n)
        with scope("float64"):
            for s in 4.0 * np.random.default_rng(n).normal(size=(20, 2 * n)):
                f = np.asarray(family.drift(jnp.asarray(s)))
                slopes = np.sinc(s[0::2] / np.pi)
                low, high = (np.array(corners)[[0, -1]] @ s)[:, 1::2]
                np.testing.assert_allclose(family.at(slopes) @ s, f, atol=1e-13)
                ends = np.sort([low, high], axis=0)
                assert (f[1::2] >= ends[0] - 1e-12).all()
                assert (f[1::2] <= ends[1] + 1e-12).all()
            g = np.asarray(jax.vmap(lambda a, f=family: f.actuate(None, a))(jnp.eye(n)))
            back = jax.vmap(lambda v, f=family: f.actuate_transpose(None, v))(jnp.eye(2 * n))
            np.testing.assert_array_equal(g, np.asarray(back).T)
    x = np.linspace(4.0, 5.0, 100_001)
    assert (np.sin(x) / x).min() == pytest.approx(SLOPES[0], abs=1e-9)
    assert Pendulums(n=9).hull() is None


def test_frictionless_pendulums_keep_their_energy():
    """Which the semi-implicit method does to O(τ), for ever; explicit Euler gains it."""
    family = Pendulums(gravity=1.0, stiffness=0.0, damping=0.0, coupling=0.3, tau=0.02, n=2)
    with scope("float64"):
        path = jax.lax.scan(
            lambda s, _: (family.drift(s), s), jnp.asarray([1.0, 0.0, -0.4, 0.3]), None, 5000
        )[1]
        theta, omega = np.asarray(path[:, 0::2]), np.asarray(path[:, 1::2])
    energy = 0.5 * (omega**2).sum(1) - np.cos(theta).sum(1)
    energy = energy + 0.15 * (theta[:, 0] - theta[:, 1]) ** 2
    assert np.ptp(energy) < 0.03


def test_a_step_has_the_moments_it_should():
    system = pendulums()
    s, a = jnp.asarray(states(2)[1], jnp.float32), jnp.asarray([0.4, -0.7], jnp.float32)
    keys = jax.random.split(streams.root_key(5), 100_000)
    x = np.asarray(jax.jit(jax.vmap(lambda key: cojax.system.step(system, s, a, key)))(keys))
    mean = physics(np.asarray(s, float)) + 0.9 * TAU * np.array([0.4 * TAU, 0.4, -0.7 * TAU, -0.7])
    assert (np.abs(x.mean(0) - mean) < 4.0 * np.sqrt(np.diag(SIGMA) / 1e5) + 1e-6).all()
    np.testing.assert_allclose(np.cov(x.T), SIGMA, atol=4e-4)


def wrong(params, obs, key):
    """No optimum, but it keeps pendulums up: the regulator, shaken."""
    return obs @ params + 0.5 * jnp.sin(3.0 * obs[:2])


@pytest.mark.parametrize("finite", [False, True])
def test_regret_is_the_sum_of_advantages(finite):
    system = pendulums(finite, np.float32)
    law = system.geometry.initial_law(np.float32)
    limit = {} if finite else {"action_limit": None}
    params = env_params(system, law, max_steps_in_episode=120, **limit)
    K = np.zeros((4, 2)) if finite else -cojax.evaluation.lqr_gain(system).T
    shaken = Policy(jnp.asarray(K, jnp.float32), wrong, "shaken")
    found = cojax.evaluate([shaken, "oracle", "detuned-oracle:0.8", "lqr"], params, 256, 2)
    gaps, regrets = (found.trials[n][0] for n in ("suboptimality", "coupled_regret"))
    assert not found.trials["failed"].any()
    assert (gaps[1] == 0.0).all()
    for i in (0, 3):
        difference = gaps[i] - regrets[i]
        error = difference.std() / 16.0
        assert gaps[i].mean() > 0.0
        assert abs(difference.mean()) < 4.0 * error + 1e-4 * abs(gaps[i].mean())


@pytest.mark.parametrize("finite", [False, True])
def test_it_conforms(finite):
    system = pendulums(finite, np.float32)
    limit = {} if finite else {"action_limit": None}
    params = env_params(system, system.geometry.initial_law(np.float32), **limit)
    testing.check_env(ConverseEnv(params), params, num_states=4, num_draws=512)


@pytest.mark.parametrize("finite", [False, True])
def test_both_precisions_agree_and_many_systems_share_a_trace(finite):
    single = pendulums(finite, np.float32)
    more = {"actions": LIST * 1.5} if finite else {"gravity": -4.0}
    other = pendulums(finite, np.float32, **more)
    x = states(16).astype(np.float32)
    with scope("float64"):
        double = pendulums(finite, np.float64)
        exact = jax.vmap(double.optimum)(jnp.asarray(x, np.float64))
        costs = jax.vmap(double.state_cost)(jnp.asarray(x, np.float64))
    found = jax.jit(jax.vmap(single.optimum))(x)
    for one, reference in zip(found, exact, strict=True):
        np.testing.assert_allclose(one, reference, rtol=2e-5, atol=2e-5)
    np.testing.assert_allclose(jax.vmap(single.state_cost)(x), costs, rtol=2e-4)
    law, traces = single.geometry.initial_law(np.float32), []
    batch = cojax.stack([env_params(one, law) for one in (single, other)])
    back = cojax.stack([env_params(one, law) for one in (other, single)])

    @jax.jit
    def step(params, key, action):
        traces.append(1)
        _, state = ConverseEnv().reset(key, params)
        return ConverseEnv().step(jax.random.fold_in(key, 1), state, action, params)[2]

    key, action = streams.root_key(1), jnp.full(2, 2.0)
    over = jax.vmap(step, (0, None, None))
    one, two = over(batch, key, action), over(back, key, action)
    assert len(traces) == 1
    np.testing.assert_allclose(one, two[::-1], rtol=1e-5)
    assert abs(one[0] - one[1]) > 1e-6


# --- indices -------------------------------------------------------------------------------------

ONE = {"n": 1, "actions": [-3.0, -1.0, 0.0, 1.0, 3.0], "R": 0.01}


def test_an_index_is_the_action_it_names():
    env, params = cojax.make("Pendulums-v0", **ONE)
    assert isinstance(env, Discrete)
    assert env.action_space().n == env.num_actions == 5
    assert env == Discrete(ConverseEnv(params))
    assert env.labels()[0] == ["θ_1 [rad]", "ω_1 [rad/s]"]
    key = streams.root_key(0)
    _, state = env.reset(key)
    for index, a in enumerate(ONE["actions"]):
        ours = env.step(key, state, index)
        theirs = ConverseEnv(params).step(key, state, jnp.asarray([a]), params)
        np.testing.assert_array_equal(ours[0], theirs[0])
        assert ours[2] == theirs[2]
    for outside, inside in ((9, 4), (-2, 0)):
        assert env.step(key, state, outside)[2] == env.step(key, state, inside)[2]
    many = jax.vmap(env.step, (None, None, 0))(key, state, jnp.arange(5))
    assert len(np.unique(many[0][:, 1])) == 5
    shared = CommonStreams(env)
    obs, state = shared.reset(streams.stream_key(0, 3), params)
    assert shared.step(key, state, jnp.asarray(1), params)[0].shape == obs.shape
    for wrong_action in (jnp.asarray(0.5), jnp.asarray([1])):
        with pytest.raises(InputError, match=r"action: expected an index of shape \(\)"):
            env.step(key, env.reset(key)[1], wrong_action)
    plain = env_params(pendulums(), pendulums().geometry.initial_law(np.float32))
    assert isinstance(environment_of(plain), ConverseEnv)
    with pytest.raises(InputError, match="expected one whose actions are a list, got FreeDrift"):
        Discrete(ConverseEnv(plain)).action_space()


def test_projection_is_to_the_nearest_of_the_list():
    system = pendulums(True, np.float32)
    a = np.random.default_rng(0).normal(size=(200, 2)) * 3.0
    found = jax.vmap(system.feasible)(jnp.asarray(a, jnp.float32))
    apart = np.linalg.norm(a[:, None] - LIST[None], axis=-1)
    np.testing.assert_array_equal(found, LIST[apart.argmin(1)].astype(np.float32))
    np.testing.assert_array_equal(jax.vmap(system.feasible)(found), found)
    assert (nearest(jnp.asarray([[0.0], [1.0]]), jnp.asarray([0.5])) == 0.0).all()
    np.testing.assert_allclose(system.feasible_box(), [2.0, 3.0])


def test_policies_may_give_an_index_or_an_action():
    _, params = cojax.make("Pendulums-v0", **ONE)
    listed = np.array(ONE["actions"])

    def by_index(obs, key):
        return jnp.where(obs[0] + 0.3 * obs[1] > 0.0, 1, 3)

    def by_action(obs, key):
        return jnp.where(obs[:1] + 0.3 * obs[1:] > 0.0, -1.0, 1.0)

    class Model:
        def predict(self, obs, deterministic=True):
            return np.where(obs[:, 0] + 0.3 * obs[:, 1] > 0.0, 1, 3), None

    policies = {
        "index": by_index,
        "action": by_action,
        "model": Model(),
        "numpy": lambda obs: 1 if obs[0] + 0.3 * obs[1] > 0.0 else 3,
        "vector": lambda obs: listed[[1 if obs[0] + 0.3 * obs[1] > 0.0 else 3]],
    }
    found = cojax.evaluate(policies, params, 8, num_steps=40)
    gaps = found.trials["suboptimality"][0]
    assert (gaps > 0.0).all()
    np.testing.assert_allclose(gaps, np.tile(gaps[0], (5, 1)), rtol=2e-4)
    for policy in (by_index, Model()):
        told = diagnose(policy, params, num_trials=4)
        assert np.isfinite(np.asarray(jax.tree.leaves(vars(told).get("rows", 0.0)), float)).all()
    with pytest.raises(InputError, match=r"expected indices in \[0, 4\], got 7 … 7"):
        cojax.evaluate({"out": lambda obs: 7}, params, 2, num_steps=2)
    plain = env_params(pendulums(), pendulums().geometry.initial_law(np.float32))
    with pytest.raises(InputError, match=r"expected an action of shape \(2,\), got \(\)"):
        cojax.evaluate({"index": lambda obs, key: jnp.int32(0)}, plain, 2)


def bins(obs):
    angle, rate = np.array([-0.6, -0.2, 0.2, 0.6]), np.array([-0.8, -0.25, 0.25, 0.8])
    return 5 * np.digitize(obs[:, 0], angle) + np.digitize(obs[:, 1], rate)


def test_tabular_q_learning_through_gymnasium_has_an_exact_gap():
    """25 cells, 5 actions: better than doing anything at random, and short of the optimum."""
    envs = gymnasium.make_vec("cojax/Pendulums-v0", num_envs=64, **ONE)
    assert isinstance(envs.single_action_space, gymnasium.spaces.Discrete)
    rng, gamma = np.random.default_rng(0), 0.95
    table, count = np.zeros((25, 5)), np.zeros((25, 5))
    obs, _ = envs.reset(seed=0)
    for _ in range(600):
        cell = bins(obs)
        greedy = table[cell].argmax(1)
        action = np.where(rng.uniform(size=64) < 0.3, rng.integers(5, size=64), greedy)
        obs, reward, terminated, _, infos = envs.step(action)
        begun = ~infos.get("_clipped", np.ones(64, bool))  # this step began an episode
        target = reward + gamma * ~terminated * table[bins(obs)].max(1)
        for i in np.flatnonzero(~begun):
            count[cell[i], action[i]] += 1
            rate = max(0.02, 1.0 / count[cell[i], action[i]])
            table[cell[i], action[i]] += rate * (target[i] - table[cell[i], action[i]])
    _, params = cojax.make("Pendulums-v0", **ONE)
    learned = lambda obs: int(table[bins(obs[None])[0]].argmax())  # noqa: E731
    found = cojax.evaluate({"q": learned, "random": "random"}, params, 64, num_steps=100)
    gap, anything = found.trials["relative_suboptimality"][0]
    regret = found.trials["coupled_regret"][0][0] - found.trials["suboptimality"][0][0]
    assert 0.0 < gap.mean() < 0.3 * anything.mean()
    assert abs(regret.mean()) < 4.0 * regret.std() / 8.0


def test_gymnasium_takes_whole_numbers_in_range():
    env = gymnasium.make("cojax/Pendulums-v0", **ONE).unwrapped
    env.reset(seed=0)
    assert env.action_space == gymnasium.spaces.Discrete(5)
    for given in (3, np.int64(3), np.asarray(3, np.uint8), jnp.int32(3)):
        obs, reward, *_, info = env.step(given)
        assert env.observation_space.contains(obs)
        assert reward < 0.0
        assert info == {"clipped": False}
    for given, said in (
        (5, r"expected an index in \[0, 4\], got 5"),
        (-1, r"expected an index in \[0, 4\], got -1"),
        (1.0, r"expected indices of shape \(1,\), whole numbers, got \(1,\) of float64"),
        ([1], r"expected indices of shape \(1,\), whole numbers, got \(1, 1\)"),
    ):
        with pytest.raises(InputError, match=said):
            env.step(given)


def test_dm_env_has_a_discrete_spec():
    specs = pytest.importorskip("dm_env").specs
    from cojax.adapters.dm_env import Environment

    env = Environment("Pendulums-v0", random_state=0, **ONE)
    assert isinstance(env.action_spec(), specs.DiscreteArray)
    assert env.action_spec().num_values == 5
    env.reset()
    assert env.step(2).reward < 0.0


# --- what is refused -----------------------------------------------------------------------------


@struct.dataclass
class Off(Bent):
    """A drift that is not 0 at the origin."""

    family = "Off"

    def drift(self, s):
        return 0.5 * s + 0.1


@struct.dataclass
class Short(Bent):
    """A hull that is too small."""

    family = "Short"

    def hull(self):
        return np.array([[[0.5]], [[0.6]]])


BENT = {"P": 2.0, "R": 0.3, "gamma": 0.9, "Sigma": 0.01}
REFUSED = {
    "drift: expected to leave q >= 0.001 sᵀP s, got -0.07431 sᵀP s at corner 3 of the drift's hull "
    "along s = [": lambda: Pendulums.build(gravity=9.8, actions=LIST),
    "drift: expected to leave q >= 0.001 sᵀP s, got -0.089": lambda: Bent.build(
        **BENT, r=1.1, actions=[-1.0, 0.0, 1.0]
    ),
    "drift: expected to leave q >= 0.5 sᵀP s, got 0.271": lambda: Bent.build(
        **BENT, beta=0.5, actions=[0.0, 1.0]
    ),
    "drift: expected f(0) = 0, got 0.1": lambda: Off.build(**BENT),
    "hull: expected one around the drift, got fᵀWf = ": lambda: Short.build(
        **BENT, actions=[0.0, 1.0]
    ),
    "actions: expected 0 among them": lambda: Bent.build(**BENT, actions=[-1.0, 1.0]),
    "actions: expected no action twice": lambda: Bent.build(**BENT, actions=[0.0, 1.0, 1.0]),
    "actions: expected at least two of 1 finite numbers each, got shape (1, 1)": lambda: Bent.build(
        **BENT, actions=[0.0]
    ),
    "actions: expected at least two of 2 finite numbers each, got shape (3,)": lambda: (
        Pendulums.build(actions=[0.0, 1.0, 2.0])
    ),
    "actions: expected some that use entry 1, got 0 in all": lambda: Pendulums.build(
        actions=[[0.0, 0.0], [1.0, 0.0]]
    ),
    "actions: expected a list of numbers, got 'three'": lambda: Bent.build(**BENT, actions="three"),
    "beta: expected a number in (0, 1), got 0": lambda: Bent.build(**BENT, beta=0.0),
    "Pendulums.build: unknown 'Q'": lambda: Pendulums.build(Q=1.0),
    "damping: expected a number in [0, inf], got -1": lambda: Pendulums.build(damping=-1.0),
    "tau: expected a number in (0, inf], got 0": lambda: Pendulums.build(tau=0.0),
    "k: expected an odd number, so that 0 is on the grid, got 4": lambda: grid(4, 1.0),
    "Pendulums.build: expected at most n, p without a name": lambda: Pendulums.build(2, 1.0, 3.0),
    "gamma: leaves of a system depend on each other": lambda: pendulums().replace(gamma=0.5),
    "rebuild: expected a quadratic system, got FreeDrift": lambda: cojax.rebuild(
        pendulums(), p=0.5
    ),
    "action_limit: expected the": lambda: env_params(
        pendulums(True), pendulums(True).geometry.initial_law(np.float32), action_limit=1.0
    ),
}


@pytest.mark.parametrize("line", REFUSED)
def test_bad_input_is_refused_in_one_line(line):
    with pytest.raises(InputError) as caught:
        REFUSED[line]()
    assert line in str(caught.value)
    assert "\n" not in str(caught.value)


def test_grids_and_names():
    np.testing.assert_array_equal(grid(3, 2.0), [[-2.0], [0.0], [2.0]])
    two = grid(3, [1.0, 4.0], 2)
    assert two.shape == (9, 2)
    assert (two[4] == 0.0).all()
    assert {name: family.family for name, family in DRIFTS.items()} == {n: n for n in DRIFTS}
    assert set(DRIFTS) <= set(KNOWN)
    assert "hull" in repr(pendulums())
    assert "5 listed" in repr(Pendulums.build(**ONE))
