"""Episodes that end by chance: V* and π* against minimisation, draws, returns and iteration."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import struct
from helpers import scope
from scipy.interpolate import CubicSpline
from scipy.optimize import minimize

import cojax
from cojax import streams, testing
from cojax.envs import ConverseEnv, env_params
from cojax.errors import InputError
from cojax.families import FAMILIES
from cojax.policy import Policy
from cojax.quadratic import Geometry
from cojax.termination import terminating


@struct.dataclass
class Line(Geometry):
    """One state, which its input turns with: g = 0.8, S = 1."""

    family = "Line"
    dimensions = ()
    constant_input = True
    one_row_each = True

    @property
    def state_dim(self):
        return 1

    @property
    def action_dim(self):
        return 1

    def actuate(self, s, a):
        return 0.8 * a

    def actuate_transpose(self, s, v):
        return 0.8 * v

    def rotate(self, s, x, p):
        return jnp.sign(jnp.cos(s)) * x  # in O(1)

    def input_norm(self):
        return 0.8

    def noise_order(self):
        return (0,)

    def initial_law(self, dtype=None):
        raise NotImplementedError


P = np.diag([4.0, 1.0, 3.0, 2.0]) + 0.3
WEIGHT = np.array([0.5, 0.1, 0.3, 0.2])
LEAST, GAMMA = 0.75, 0.95


def arm(dtype=None, **options):
    given = {"R": 8.0, "gamma": GAMMA, "Sigma": 1e-2, "P": P, "Q": 0.4 * P}
    return FAMILIES["ConverseArm"].build(2, 0.8, dtype=dtype, **given | options)


def make(dtype=None, least=LEAST, **options):
    return terminating(arm(dtype, **options), least, WEIGHT)


def going_on(s):
    return LEAST + 0.25 / (1.0 + WEIGHT @ s**2)


def states(num=16, over=0.0):
    s = np.random.default_rng(0).uniform(-1, 1, (num, 4)) * np.tile([2.8, 1.2], 2)
    return np.concatenate([s, np.full((num, 1), over)], axis=1)


def test_numerical_minimisation_gives_value_and_action():
    """The discount γ(s) written out: q = sᵀQs + (γ - γ(s))(b + tr PΣ)."""
    with scope("float64"):
        system, plain = make(np.float64), arm(np.float64)
        power = 1e-2 * np.trace(P)
        b = GAMMA / (1.0 - GAMMA) * power
        for x in states():
            s, discount = x[:4], GAMMA * going_on(x[:4])
            at = system.optimum(jnp.asarray(x))
            f = np.asarray(at.drift)[:4]
            G = np.asarray(jax.vmap(lambda a, s=s: plain.actuate(s, a))(jnp.eye(2))).T
            q = 0.4 * s @ P @ s + (GAMMA - discount) * (b + power)

            def Q(a, f=f, G=G, q=q, discount=discount):
                z = f + G @ a
                return q + 8.0 * a @ a + discount * (z @ P @ z + power + b)

            found = minimize(Q, np.zeros(2), method="BFGS", options={"gtol": 1e-10})
            assert found.fun == pytest.approx(s @ P @ s + b, rel=1e-9)
            assert float(system.value(x)) == pytest.approx(s @ P @ s + b, rel=1e-12)
            np.testing.assert_allclose(found.x, at.action, atol=1e-5)
            a = np.array([0.3, -0.2])
            excess = float(system.excess_cost(jnp.asarray(x), a - at.action, at))
            assert excess == pytest.approx(Q(a) - found.fun, rel=1e-6)
            known = float(cojax.oracle.q_value(system, jnp.asarray(x), jnp.asarray(a)))
            assert known == pytest.approx(Q(a), rel=1e-12)
            np.testing.assert_allclose(at.next_mean[:4], f + G @ np.asarray(at.action), rtol=1e-10)
            assert float(at.next_mean[4]) == pytest.approx(1.0 - going_on(s), rel=1e-12)


def test_constant_inputs_take_a_discount_that_varies():
    """M of a constant g is a constant no longer: its root is a series."""
    with scope("float64"):
        plain = FAMILIES["DoubleIntegrator"].build(Q=(5.0, 1.0), dtype=np.float64)
        beta = np.linalg.eigvals(np.linalg.solve(plain.P, np.diag(plain.Q))).real.min()
        least = 0.5 * (1.0 + (1.0 - beta) / 0.99)
        system = terminating(plain, least, 2.0)
        matrix = np.asarray(plain.P)
        for s in np.random.default_rng(1).normal(size=(6, 2)):
            x = jnp.asarray(np.append(s, 0.0))
            at, c = system.optimum(x), least + (1.0 - least) / (1.0 + 2.0 * s @ s)
            g = np.array([[0.00125], [0.05]])
            M = np.linalg.inv(matrix) / (0.99 * c) + g @ g.T / 0.05
            w, V = np.linalg.eigh(M)
            f = V @ (np.sqrt(w) * (V.T @ np.asarray(plain.direction(jnp.asarray(s)))))
            np.testing.assert_allclose(at.drift[:2], f, rtol=1e-9, atol=1e-12)
            q = float(cojax.oracle.q_value(system, x, at.action))
            assert q == pytest.approx(float(system.value(x)), rel=1e-12)


def test_value_iteration_from_zero_in_one_dimension():
    """One state, its drift from the system; what follows the end is 0."""
    with scope("float64"):
        given = {"P": 2.0, "Q": 0.8, "R": 0.5, "gamma": 0.9, "p": 0.9, "Sigma": 0.04}
        system = terminating(cojax.quadratic.build(Line(), dtype=np.float64, **given), 0.7, 1.5)
        knots = np.linspace(-5.0, 5.0, 301)
        x = jnp.asarray(np.stack([knots, np.zeros_like(knots)], axis=1))
        f = np.asarray(jax.vmap(lambda x: system.optimum(x).drift[0])(x))
    b = 9.0 * 2.0 * 0.04
    c = 0.7 + 0.3 / (1.0 + 1.5 * knots**2)
    q = 0.8 * knots**2 + (1.0 - c) * b
    nodes, weights = np.polynomial.hermite_e.hermegauss(9)
    weights = weights / weights.sum()
    best, V = np.zeros_like(knots), np.zeros_like(knots)
    gain = 0.9 * 0.8  # p g

    def expected(V, a):
        z = f[:, None] + gain * a[:, None] + 0.2 * nodes[None]
        return CubicSpline(knots, V)(np.clip(z, -5.0, 5.0)) @ weights

    for _ in range(260):
        for _ in range(2):  # Newton's method on a parabola, by differences
            low, mid, high = (
                0.5 * (best + h) ** 2 + 0.9 * c * expected(V, best + h) for h in (-0.1, 0.0, 0.1)
            )
            bend = np.maximum(high - 2.0 * mid + low, 1e-3)
            best = np.clip(best - 0.05 * (high - low) / bend, -4.0, 4.0)
        V = q + 0.5 * best**2 + 0.9 * c * expected(V, best)
    inside = np.abs(knots) < 2.0
    np.testing.assert_allclose(V[inside], (2.0 * knots**2 + b)[inside], rtol=2e-8)


def test_draws_end_as_often_as_the_state_says():
    system = make()
    x = jnp.asarray(states(3)[1], jnp.float32)
    a = jnp.asarray([0.4, -0.7], jnp.float32)
    keys = jax.random.split(streams.root_key(5), 100_000)
    after = np.asarray(jax.jit(jax.vmap(lambda key: cojax.system.step(system, x, a, key)))(keys))
    assert set(np.unique(after[:, 4])) == {0.0, 1.0}
    c = going_on(np.asarray(x[:4], np.float64))
    assert abs(after[:, 4].mean() - (1.0 - c)) < 4.0 * np.sqrt(c * (1.0 - c) / 1e5)
    values = np.asarray(jax.vmap(system.value)(after), np.float64)
    z = system.next_mean(x, a, system.optimum(x))
    known = float(system.expected_value(x, z, a))
    assert abs(values.mean() - known) < 4.0 * values.std() / np.sqrt(1e5)
    assert (values[after[:, 4] == 1.0] == 0.0).all()
    other = jax.vmap(system.sample_noise, (None, 0, None))(x, keys[:64], a + 1.0)
    again = jax.vmap(system.sample_noise, (None, 0, None))(x, keys[:64], a)
    np.testing.assert_array_equal(other, again)


def test_after_the_end_nothing_moves_and_nothing_costs():
    system = make()
    for x in jnp.asarray(states(4, over=1.0), jnp.float32):
        at, a = system.optimum(x), jnp.asarray([1.5, -1.0])
        assert bool(system.ended(x))
        assert (at.action == 0.0).all()
        after = cojax.system.step(system, x, a, streams.root_key(1))
        np.testing.assert_array_equal(after, x)
        for number in (
            system.value(x),
            system.stage_cost(x, a),
            system.excess_cost(x, a),
            system.expected_value(x, at.next_mean, a),
            system.noise_price(x, a),
        ):
            assert float(number) == 0.0


def test_without_an_end_it_is_the_papers_system_to_the_bit():
    for plain in (arm(), FAMILIES["DoubleIntegrator"].build()):
        system, d = terminating(plain, 1.0, 3.0), plain.state_dim
        key = streams.root_key(3)
        for row in states(4)[:, :d]:
            s = jnp.asarray(row, jnp.float32)
            x, a = jnp.append(s, 0.0), jnp.full(plain.action_dim, 0.3)
            ours, theirs = system.optimum(x), plain.optimum(s)
            np.testing.assert_array_equal(ours.action, theirs.action)
            np.testing.assert_array_equal(ours.drift[:d], theirs.drift)
            np.testing.assert_array_equal(
                system.next_mean(x, a, ours)[:d], plain.next_mean(s, a, theirs)
            )
            for name in ("stage_cost", "excess_cost"):
                assert getattr(system, name)(x, a) == getattr(plain, name)(s, a)
            assert system.value(x) == plain.value(s)
            w = system.sample_noise(x, key)
            np.testing.assert_array_equal(w[:d], plain.sample_noise(s, jax.random.clone(key)))
            assert ours.next_mean[d] + w[d] == 0.0
        ours = env_params(system, system.initial_law())
        theirs = env_params(plain, plain.geometry.initial_law(np.float32))
        assert float(ours.divergence_radius) == float(theirs.divergence_radius)


def wrong(params, obs, key):
    return 0.6 * jnp.tanh(obs[:2] - obs[2:4])


def problem(horizon=120, **options):
    system = make(np.float32, **options)
    return env_params(system, system.initial_law(), max_steps_in_episode=horizon)


def test_regret_is_the_sum_of_advantages():
    params = problem()
    policies = [Policy((), wrong, "wrong"), "oracle", "zero", "lqr"]
    found = cojax.evaluate(policies, params, 1024, 2)
    gaps, regrets = (found.trials[n][0] for n in ("suboptimality", "coupled_regret"))
    assert not found.trials["failed"].any()
    assert (gaps[1] == 0.0).all()
    for i in (0, 2, 3):
        difference = gaps[i] - regrets[i]
        error = difference.std() / np.sqrt(difference.size)
        assert gaps[i].mean() > 5.0 * gaps[i].std() / 32.0
        assert abs(difference.mean()) < 4.0 * error


def test_the_environment_conforms_and_ends_the_episode():
    params = problem()
    env = ConverseEnv(params)
    testing.check_env(env, params, num_states=4, num_draws=512)
    keys = jax.random.split(streams.root_key(0), 400)
    _, state = jax.vmap(env.reset)(keys)
    again = jax.vmap(lambda key: jax.random.fold_in(key, 9))(keys)
    out = jax.vmap(env.step)(again, state, jnp.zeros((400, 2)))
    ended = np.asarray(out[5]["final_observation"][:, 4])
    np.testing.assert_array_equal(np.asarray(out[3]), ended == 1.0)
    assert 20 < ended.sum() < 120
    assert not np.asarray(out[5]["diverged"]).any()
    assert (np.asarray(out[0][:, 4]) == 0.0).all()  # of the episode that follows
    cost = jax.vmap(params.system.stage_cost)(state.s, jnp.zeros((400, 2)))
    np.testing.assert_allclose(out[2], -cost, rtol=1e-6)  # V* of the end is 0
    assert env.labels()[0][-1] == "ended [-]"


def test_both_precisions_agree_and_many_systems_share_a_trace():
    x = states()
    with scope("float64"):
        exact = jax.vmap(make(np.float64).optimum)(jnp.asarray(x))
    found = jax.jit(jax.vmap(make(np.float32).optimum))(jnp.asarray(x, jnp.float32))
    for one, reference in zip(found, exact, strict=True):
        np.testing.assert_allclose(one, reference, rtol=2e-5, atol=1e-5)
    traces = []

    @jax.jit
    def act(system, x):
        traces.append(None)
        return jax.vmap(lambda s: s.optimum(x).action)(system)

    one, two = problem(), problem(least=0.9, Q=0.6 * P)
    x = jnp.asarray(x[0], jnp.float32)
    both = act(cojax.stack([one, two]).system, x)
    act(cojax.stack([two, one]).system, x)
    assert len(traces) == 1
    np.testing.assert_allclose(both[1], two.system.optimum(x).action, rtol=2e-5, atol=1e-6)


REFUSED = {
    "least: expected more than (1 - β)/γ = 0.631579, β = 0.4": lambda: make(least=0.63),
    "least: expected a number in (0, 1], got 0": lambda: make(least=0.0),
    "least: expected a number in (0, 1], got 1.5": lambda: make(least=1.5),
    "weight: expected a positive semidefinite matrix": lambda: terminating(arm(), 0.9, -1.0),
    "terminating: expected a quadratic system, got Terminating": lambda: terminating(make(), 0.9),
    "terminating: expected a system without action_noise": lambda: make(action_noise=0.1),
    "terminating: expected no system of a class of its own": lambda: terminating(
        FAMILIES["KinematicArm"].build(), 0.99
    ),
    "gamma: leaves of a system depend on each other; use cojax.termination.terminating": lambda: (
        make().replace(gamma=0.5)
    ),
}


@pytest.mark.parametrize("line", REFUSED)
def test_bad_input_is_refused_in_one_line(line):
    with pytest.raises(InputError) as caught:
        REFUSED[line]()
    assert line in str(caught.value)
    assert "\n" not in str(caught.value)
