"""Risk: V* and π* against minimisation with quadrature, gaps against backward quadrature."""

from __future__ import annotations

from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import struct
from helpers import scope
from numpy.polynomial.hermite_e import hermegauss
from scipy.optimize import minimize

import cojax
from cojax import streams, testing
from cojax.action_limits import Ball, Box
from cojax.agents import returns, risk_ppo
from cojax.envs import ConverseEnv, env_params
from cojax.errors import InputError
from cojax.evaluation import risk_gap, risk_gap_bound
from cojax.evaluation.entropic import entropic
from cojax.families import FAMILIES
from cojax.finite_horizon import finite_horizon
from cojax.fixtures import make_fixture
from cojax.fixtures.fixture import from_content
from cojax.initial import Fixed, Uniform
from cojax.noise_laws import LAWS
from cojax.policy import Policy
from cojax.quadratic import Geometry
from cojax.risk import recursive_risk, risk_sensitive
from cojax.risk_kernel import Kernel

T, N = 3, 4
SIGMA = np.array([[0.05, 0.02], [0.02, 0.04]])
P = np.array([[2.0, 0.4], [0.4, 1.0]])
CASES = {  # θ, γ, limit; γ None for the recursion at 0.9
    "averse": (1.5, 1.0, None),
    "averse-box": (2.5, 1.0, Box(np.array([0.3]))),
    "averse-discounted": (2.5, 0.8, Ball(np.array(0.4))),
    "seeking": (-2.0, 1.0, None),
    "seeking-discounted-box": (-2.0, 0.8, Box(np.array([0.2]))),
    "recursive-averse": (1.5, None, None),
    "recursive-averse-box": (1.5, None, Box(np.array([0.3]))),
    "recursive-seeking": (-2.0, None, None),
}
KIND = pytest.mark.parametrize("name", CASES)


def arm(dtype=np.float64, **options):
    """One joint, correlated noise on both rows."""
    given = {"R": [0.8], "Sigma": SIGMA, "P": P, "Q": 0.6 * P, "gamma": 0.9}
    return FAMILIES["ConverseArm"].build(1, 0.9, dtype=dtype, **given | options)


def make(name, dtype=np.float64, theta=None):
    known, gamma, limit = CASES[name]
    theta = known if theta is None else theta
    if gamma is None:
        return recursive_risk(arm(dtype, limit=limit), theta)
    return risk_sensitive(arm(dtype, limit=limit), theta, T, gamma=gamma)


def states(name, num=8):
    s = np.random.default_rng(0).uniform(-1, 1, (num, 2)) * np.array([1.5, 0.8])
    tail = np.arange(num)[:, None] % T / N
    return s if CASES[name][1] is None else np.concatenate([s, tail], axis=1)


def gauss_hermite(num=40):
    x, w = hermegauss(num)
    points = np.stack(np.meshgrid(x, x), axis=-1).reshape(-1, 2)
    return points @ np.linalg.cholesky(SIGMA).T, np.outer(w, w).ravel() / w.sum() ** 2


POINTS, WEIGHTS = gauss_hermite()


def certainty(theta, values):
    """(1/θ) log E exp(θ values) over the points."""
    e = theta * values
    return (e.max() + np.log(WEIGHTS @ np.exp(e - e.max()))) / theta


def at_step(name, k):
    """γ, θ_{k+1} and b_{k+1} of the value ahead, the last by quadrature of what is not known."""
    theta, gamma, _ = CASES[name]
    if gamma is None:
        return 0.9, theta, None
    b = 0.0
    for j in range(T - 1, k, -1):
        t = theta * gamma ** (j + 1)
        b = gamma * (-np.linalg.slogdet(np.eye(2) - 2.0 * t * SIGMA @ P)[1] / (2.0 * t) + b)
    return gamma, theta * gamma ** (k + 1), b


@jax.jit
def pieces(system, x):
    push = jax.vmap(lambda a: system.actuate(x, a))
    return system.optimum(x), push(jnp.eye(system.action_dim)), system.value(x)


def q_function(name, system, x):
    """Q*(x, ·) from drift and input map, quadrature over Gaussian noise, and NumPy."""
    at, G, _ = jax.tree.map(np.asarray, pieces(system, x))
    gamma, theta, b = at_step(name, round(x[-1] * N))
    if b is None:
        b = 0.9 / 0.1 * -np.linalg.slogdet(np.eye(2) - 2 * theta * SIGMA @ P)[1] / (2 * theta)
    f, G, s = at.drift[:2], G[:, :2], x[:2]

    def cost(a):
        ahead = f + a @ G + POINTS
        known = np.einsum("ni,ij,nj->n", ahead, P, ahead) + b
        return 0.6 * s @ P @ s + 0.8 * a @ a + gamma * certainty(theta, known)

    return cost


@KIND
def test_minimisation_of_certainty_equivalents_gives_value_and_action(name):
    limit = CASES[name][2]
    most = 1e3
    if limit is not None:
        most = float(np.ravel(limit.bound)[0]) / (0.8**0.5 if isinstance(limit, Ball) else 1.0)
    with scope("float64"):
        system, held = make(name), 0
        for x in states(name):
            Q = q_function(name, system, x)
            found = minimize(
                Q, np.zeros(1), method="L-BFGS-B", bounds=[(-most, most)],
                options={"ftol": 1e-15, "gtol": 1e-9},
            )  # fmt: skip
            at, _, value = pieces(system, x)
            assert found.fun == pytest.approx(float(value), rel=1e-7)
            np.testing.assert_allclose(found.x, at.action, atol=1e-5)
            held += abs(float(at.action[0])) > 0.999 * most
            for a in (-0.9 * most if limit is not None else -0.7, 0.1):
                a = np.array([a])
                excess = float(system.excess_cost(jnp.asarray(x), a - at.action, at))
                assert excess == pytest.approx(Q(a) - float(value), rel=1e-5, abs=1e-6)
                z = system.next_mean(jnp.asarray(x), jnp.asarray(a), at)
                ahead = float(system.expected_value(jnp.asarray(x), z, jnp.asarray(a)))
                paid = float(system.stage_cost(jnp.asarray(x), jnp.asarray(a)))
                assert paid + float(system.gamma) * ahead == pytest.approx(Q(a), rel=1e-7)
        assert limit is None or held >= 1


@KIND
def test_the_tilted_kernel_is_the_law_that_the_exponential_of_the_value_makes(name):
    """Mean and covariance against reweighted quadrature; draws are of the same white noise."""
    with scope("float64"):
        system = make(name)
        tilted = Kernel(system)
        x, a = jnp.asarray(states(name, 3)[1]), jnp.asarray([0.15])
        z = np.asarray(system.next_mean(x, a, system.optimum(x)))[:2]
        _, theta, _ = at_step(name, 1)
        ahead = z + POINTS
        e = theta * np.einsum("ni,ij,nj->n", ahead, P, ahead)
        weights = WEIGHTS * np.exp(e - e.max())
        weights = weights / weights.sum()
        mean = weights @ ahead
        covariance = (weights[:, None] * (ahead - mean)).T @ (ahead - mean)
        found = tilted.next_mean(x, a, tilted.optimum(x))[:2]
        np.testing.assert_allclose(found, mean, rtol=5e-6)
        spread = np.asarray(system.tilted(x).spread)
        np.testing.assert_allclose(spread.T @ spread, covariance, rtol=5e-6)
        keys = jax.random.split(streams.root_key(0), 20_000)
        w = jax.vmap(lambda key: tilted.sample_noise(x, key))(keys)[:, :2]
        np.testing.assert_allclose(np.cov(np.asarray(w).T), covariance, rtol=0.06)
        plain = jax.vmap(lambda key: Kernel(system, False).sample_noise(x, key))
        own = np.asarray(plain(jax.random.clone(keys)))[:, :2]
        L = np.linalg.lstsq(own, np.asarray(w), rcond=None)[0]
        np.testing.assert_allclose(own @ L, w, atol=1e-6)
        at, optimum = system.optimum(x), tilted.optimum(x)
        ours = float(tilted.excess_cost(x, a - at.action, optimum))
        assert ours == pytest.approx(float(system.excess_cost(x, a - at.action, at)), rel=1e-9)


@pytest.mark.parametrize("limit", [None, Box(np.array([0.3])), Ball(np.array(0.2))])
def test_no_risk_is_the_papers_system_to_the_bit(limit):
    plain = arm(np.float32, limit=limit)
    gamma = float(plain.gamma)
    systems = [risk_sensitive(plain, 0.0, T, gamma=gamma), recursive_risk(plain, 0.0)]
    for system, name in zip(systems, ("averse", "recursive-averse"), strict=True):
        tilted = Kernel(system)
        for x in states(name).astype(np.float32):
            s, a = x[:2], plain.feasible(jnp.asarray([0.17], jnp.float32))
            theirs = plain.optimum(s)
            for ours in (system.optimum(x), tilted.optimum(x)):
                np.testing.assert_array_equal(ours.drift[:2], theirs.drift)
                np.testing.assert_array_equal(ours.action, theirs.action)
                np.testing.assert_array_equal(ours.next_mean[:2], theirs.next_mean)
            assert system.stage_cost(x, a) == plain.stage_cost(s, a)
            known = plain.excess_cost(s, a - theirs.action, theirs)
            assert system.excess_cost(x, a - ours.action, system.optimum(x)) == known
            key = streams.root_key(3)
            w = plain.sample_noise(s, jax.random.clone(key))
            np.testing.assert_array_equal(system.sample_noise(x, jax.random.clone(key))[:2], w)
            np.testing.assert_allclose(tilted.sample_noise(x, key)[:2], w, rtol=1e-6)
    assert systems[1].value(s) == plain.value(s)


def test_little_risk_is_nearly_none():
    with scope("float64"):
        for sign in (-1.0, 1.0):
            system = recursive_risk(arm(), sign * 1e-6)
            assert float(system.offset) == pytest.approx(float(arm().offset), rel=1e-5)
            assert abs(float(system.offset) - float(arm().offset)) > 0.0


# --- one dimension, where every policy's cost is known by quadrature -----------------------------


@struct.dataclass
class Line(Geometry):
    """s' = f + p cos(s/2) a + w."""

    family = "Line"
    dimensions: ClassVar[tuple[str, ...]] = ()
    constant_input = False
    one_row_each = True
    state_dim = property(lambda self: 1)
    action_dim = property(lambda self: 1)

    def actuate(self, s, a):
        return jnp.cos(0.5 * s) * a

    def actuate_transpose(self, s, v):
        return jnp.cos(0.5 * s) * v

    def rotate(self, s, x, p):
        return x

    def input_norm(self):
        return 1.0

    def noise_order(self):
        return (0,)

    def initial_law(self, dtype=None):
        return Uniform(jnp.full(1, -1.0, dtype), jnp.full(1, 1.0, dtype))


STEPS = 6
LINE = {"P": 2.0, "Q": 1.2, "R": 0.8, "Sigma": 0.05, "gamma": 0.9}
X = np.linspace(-3.2, 3.2, 2001)  # fine, since limits leave kinks
START = 1100


def line(dtype=np.float64, limit=0.3):
    return Line.build(dtype=dtype, limit=Box(np.array([limit])), **LINE)


def lazy(params, obs, key):
    return 0.15 * jnp.sin(2.0 * obs[:1] + 0.5) - 0.1 * obs[:1]


@jax.jit
def _on_line(system, kernel, x):
    def one(x):
        at, a = kernel.optimum(x), system.feasible(lazy((), x, None))
        excess = kernel.excess_cost(x, a - at.action, at)
        return system.stage_cost(x, a), excess, kernel.next_mean(x, a, at)[0]

    return jax.vmap(one)(x)


def on_line(system, kernel, x):
    """Costs, advantages and mean next states of the lazy policy at (n,) states x."""
    return [np.asarray(part) for part in _on_line(system, kernel, jnp.asarray(x))]


def kernel_of(z, std):
    """Weights (n, n) of X in the law of z + std ξ, by the trapezoidal rule."""
    weights = np.exp(-0.5 * ((X - z[:, None]) / std) ** 2)
    return weights * (X[1] - X[0]) / (std * (2.0 * np.pi) ** 0.5)


def expected(theta, V, weights):
    """(1/θ) log E exp(θ V(z + std ξ))."""
    top = (theta * V).max()
    return (top + np.log(weights @ np.exp(theta * V - top))) / theta


@pytest.mark.parametrize(("theta", "gamma"), [(1.3, 1.0), (-1.3, 1.0), (2.0, 0.8)])
def test_tilted_rollouts_meet_what_backward_quadrature_gives(theta, gamma):
    """Both sides of the identity in float64, and the interval of the estimate around them."""
    with scope("float64"):
        system = risk_sensitive(line(), theta, STEPS, gamma=gamma)
        kernel, nominal = Kernel(system), Kernel(system, False)
        V, D, best = 2.0 * X**2, np.zeros_like(X), 2.0 * X**2
        for k in range(STEPS - 1, -1, -1):
            t = theta * gamma ** (k + 1)
            x = np.stack([X, np.full_like(X, k / 8)], axis=1)
            cost, _, z = on_line(system, nominal, x)
            V = cost + gamma * expected(t, V, kernel_of(z, 0.05**0.5))
            _, excess, z = on_line(system, kernel, x)
            spread = (0.05 / (1.0 - 0.2 * t)) ** 0.5
            D = excess + gamma * expected(t, D, kernel_of(z, spread))
            best = np.asarray(jax.vmap(system.value)(jnp.asarray(x)))
        inside = np.abs(X) < 1.2
        np.testing.assert_allclose((V - best)[inside], D[inside], atol=2e-6)
    s0, gap = X[START], D[START]
    system = risk_sensitive(line(np.float32), theta, STEPS, gamma=gamma)
    law = system.initial_law(Fixed(jnp.asarray([s0], jnp.float32)))
    params = env_params(system, law, max_steps_in_episode=STEPS, terminal_value="optimal")
    policies = {"lazy": Policy((), lazy), "oracle": "oracle"}
    covered, errors, plain = 0, [], []
    for root in range(10):
        row, oracle = risk_gap(policies, params, 512, root)
        assert row["moments"] == "finite"
        assert row["refused"] == ""
        assert oracle["risk_gap"] == oracle["low"] == oracle["high"] == 0.0
        covered += row["low"] <= gap <= row["high"]
        errors.append(row["risk_gap"] - gap)
        plain.append(np.inf if row["plain"] is None else row["plain"] - gap)
    assert gap > 0.2
    assert covered >= 7
    assert abs(np.mean(errors)) < 0.02 * gap
    assert np.std(errors) < 0.8 * np.abs(plain).mean()


@pytest.mark.parametrize("theta", [1.0, -1.3])
def test_the_bound_of_the_recursion_lies_on_its_side(theta):
    """The gap by value recursion of the policy, without nesting an estimate."""
    with scope("float64"):
        system = recursive_risk(line(), theta)
        cost, _, z = on_line(system, Kernel(system, False), X[:, None])
        V, weights = 2.0 * X**2 + float(system.offset), kernel_of(z, 0.05**0.5)
        for _ in range(160):
            V = cost + 0.9 * expected(theta, V, weights)
        gap = V[START] - float(system.value(jnp.asarray(X[START : START + 1])))
    system = recursive_risk(line(np.float32), theta)
    params = env_params(
        system, Fixed(jnp.asarray(X[START : START + 1], jnp.float32)), max_steps_in_episode=90
    )
    (row,) = risk_gap_bound([Policy((), lazy)], params, 2048)
    assert row["side"] == ("gap >= bound" if theta > 0.0 else "gap <= bound")
    if theta > 0.0:
        assert 0.8 * gap < row["high"]
        assert row["high"] < gap
    else:
        assert gap < row["low"] < 1.5 * gap
    with pytest.raises(InputError, match="no gap is known"):
        risk_gap(["zero"], params)


# --- environments --------------------------------------------------------------------------------


def problem(name, dtype=np.float32):
    system, law = make(name, dtype), Uniform(*(jnp.full(2, x, dtype) for x in (-0.8, 0.8)))
    if CASES[name][1] is None:
        return env_params(system, law, max_steps_in_episode=20)
    law = system.initial_law(law)
    return env_params(system, law, max_steps_in_episode=T, terminal_value="optimal")


@pytest.mark.parametrize(
    "name", ["averse-discounted", pytest.param("recursive-seeking", marks=pytest.mark.slow)]
)
def test_the_environment_conforms(name):
    params = problem(name)
    testing.check_env(ConverseEnv(params), params, num_states=3, num_draws=2048)
    assert float(params.risk) == CASES[name][0]
    with pytest.raises(InputError, match="expected a system whose gap is a sum of advantages"):
        cojax.evaluate(["zero"], params)


def test_stacks_and_traces_once():
    name, traces = "averse-discounted", []
    one = problem(name)
    two = one.replace(system=make(name, np.float32, 0.5))
    both, env = cojax.stack([one, two]), ConverseEnv()

    @jax.jit
    def step(params, key, action):
        traces.append(1)
        _, state = env.reset(key, params)
        return env.step(jax.random.fold_in(key, 1), state, action, params)

    key, action = streams.root_key(1), jnp.full(1, 0.1)
    out = jax.vmap(step, (0, None, None))(both, key, action)
    jax.vmap(step, (0, None, None))(cojax.stack([two, one]), key, action)
    assert len(traces) == 1
    for i, params in enumerate((one, two)):
        obs, _, reward, *_ = step(params, key, action)
        assert obs.dtype == np.float32
        np.testing.assert_allclose(out[0][i], obs, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(out[2][i], reward, rtol=1e-5)
    rows = risk_gap_bound(["zero"], both, 64)
    assert [row["theta"] for row in rows] == [CASES[name][0], 0.5]
    assert all(row["risk gap bound"] > 0.0 for row in rows)


def test_an_estimate_that_one_trial_carries_is_refused():
    usual = np.random.default_rng(0).normal(1.0, 0.2, 500)
    found = entropic(usual, 2.0, lowest=0.0)
    assert found.reason == ""
    assert found.low < 1.0 + 0.04 < found.high  # of a normal: μ + θσ²/2
    heavy = np.append(usual, 9.0)
    assert entropic(heavy, 2.0).mean is None
    assert entropic(heavy, 2.0).reason.startswith("effective sample size 1")
    assert entropic(heavy, -2.0).mean == pytest.approx(0.96, abs=0.03)
    assert entropic(heavy, 0.0).mean == pytest.approx(heavy.mean())
    most = np.append(np.zeros(500), 4.7)
    assert entropic(most, 0.9).reason == "one of 501 trials has 12% of the weight"
    failed = entropic(np.append(usual, np.inf), -2.0)
    assert (failed.mean, failed.reason) == (np.inf, "1 of 501 trials failed")


REFUSED = {
    "theta: expected 2θ λ_max(ΣP) <= 0.95, beyond which the cost has no finite exponential, got 1":
        lambda: risk_sensitive(arm(Sigma=[0.05, 0.05], P=1.0, Q=0.6), 10.0, T),
    "theta: expected (1-β)(1 + 2|θ| λ_max(ΣP))/γ < 1, without which the optimal loop diverges, got "
    "1.2": lambda: risk_sensitive(arm(Sigma=0.05, P=1.0, Q=0.6), -20.0, T),
    "theta: expected (1-β)/(γ (1 - 2θ λ_max(ΣP))) < 1, without which the tilted loop diverges, got "
    "1.111": lambda: recursive_risk(arm(Sigma=0.05, P=1.0, Q=0.6), 6.0),
    "Q: expected Q ⪰ βP with 1 - β < γ = 0.5, got β = 0.4": lambda: risk_sensitive(
        arm(Q=0.4 * P), 0.1, T, gamma=0.5
    ),
    "Q: expected Q ⪰ βP with 1 - β < γ = 1, got β = 0": lambda: risk_sensitive(arm(Q=0.0), 0.1, T),
    "theta: expected Gaussian noise, got laplace": lambda: risk_sensitive(
        arm(law=LAWS["laplace"].of()), 0.1, T
    ),
    "theta: expected a finite number, got nan": lambda: recursive_risk(arm(), np.nan),
    "T: expected a whole number >= 1, got 0": lambda: risk_sensitive(arm(), 0.1, 0),
    "gamma: expected a number in (0, 1], got 0": lambda: risk_sensitive(arm(), 0.1, T, gamma=0.0),
    "risk_sensitive: expected a drift that is free in every row": lambda: risk_sensitive(
        FAMILIES["KinematicArm"].build(), 0.1, T
    ),
    "recursive_risk: expected a system without state_noise": lambda: recursive_risk(
        arm(state_noise=0.5), 0.1
    ),
    "leaves of a system depend on each other; use cojax.risk.risk_sensitive": lambda: make(
        "averse"
    ).replace(gamma=jnp.float32(0.5)),
    "risk_gap: expected a system of cojax.risk, got QuadraticGaussian": lambda: risk_gap(
        ["zero"], env_params(arm(), Fixed(jnp.zeros(2)))
    ),
    "num_steps: expected at most T + 1 = 4, got 9": lambda: risk_gap(
        ["zero"], problem("averse"), num_steps=9
    ),
}  # fmt: skip


@pytest.mark.parametrize("line", REFUSED)
def test_bad_input_is_refused_in_one_line(line):
    with scope("float64"), pytest.raises(InputError) as caught:
        REFUSED[line]()
    assert line in str(caught.value)
    assert "\n" not in str(caught.value)


STATED = {
    "finite-horizon": {"T": 12, "gamma": 1.0, "terminal": {"diag": [9.0] * 4}, "bend": 2.0},
    "risk": {"T": 10, "theta": 20.0},
    "recursive-risk": {"theta": 4.0},
}


def fixture_of(kind, certify=False, **changes):
    return make_fixture(
        "ConverseArm", id=f"an-{kind}", extension={"kind": kind, **STATED[kind], **changes},
        certify=certify, n=2, p=0.8, seed=7, Sigma=1e-3,
    )  # fmt: skip


@pytest.mark.parametrize("kind", STATED)
def test_a_file_states_it(kind):
    fixture = fixture_of(kind)
    with scope("float64"):
        base, own = fixture.base(np.float64), dict(STATED[kind])
        if kind == "finite-horizon":
            P = np.asarray(base.P)
            own = {"P_k": [P + (k / 12) ** 2 * (9.0 * np.eye(4) - P) for k in range(13)]}
            made = finite_horizon(base, gamma=1.0, **own)
        else:
            made = {"risk": risk_sensitive, "recursive-risk": recursive_risk}[kind](base, **own)
        found = fixture.system(np.float64)
        for one, other in zip(*map(jax.tree.leaves, (found, made)), strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-12, atol=1e-15)
    single = fixture.system(np.float32)
    assert {leaf.dtype.name for leaf in jax.tree.leaves(single)} == {"float32"}
    assert (single.state_dim, single.action_dim) == (fixture.state_dim, fixture.action_dim)
    assert from_content(fixture.content()) == fixture


@pytest.mark.slow
@pytest.mark.parametrize("kind", STATED)
def test_it_is_certified(kind):
    certificate = fixture_of(kind, certify=True).certificate
    assert certificate.passed, certificate.failures


# --- learners ------------------------------------------------------------------------------------


def test_exponential_advantages_are_zero_in_the_mean_at_the_certainty_equivalent():
    """Costs N(μ, s²) that nobody can change: what is to come is (T - t)(μ + θ s²/2)."""
    draws, steps = 200_000, 4
    costs = np.random.default_rng(0).normal(0.5, 0.4, (steps, draws)).astype(np.float32)
    done = jnp.zeros((steps, draws), bool).at[-1].set(True)
    for theta in (1.0, -1.0):
        left = np.arange(steps, 0, -1, dtype=np.float32)[:, None] * (0.5 + theta * 0.08)
        values = -jnp.broadcast_to(left, costs.shape)
        after = jnp.concatenate([values[1:], jnp.zeros((1, draws))])
        for trace in (0.0, 0.7, 1.0):
            found = returns.exponential_gae(
                -jnp.asarray(costs), values, after, terminated=done, truncated=jnp.zeros_like(done),
                gamma=1.0, gae_lambda=trace, theta=theta, most=jnp.inf,
            )  # fmt: skip
            error = np.std(found, axis=1) / draws**0.5
            assert (np.abs(np.mean(found, axis=1)) < 4.5 * error).all()
    total = np.exp(costs[::-1].cumsum(axis=0)[::-1] - left[::1] * 0.0)
    neutral = returns.exponential_gae(
        -jnp.asarray(costs), values, after, terminated=done, truncated=jnp.zeros_like(done),
        gamma=1.0, gae_lambda=1.0, theta=1.0, most=jnp.inf,
    )  # fmt: skip
    np.testing.assert_allclose(1.0 - neutral, total * np.exp(values), rtol=1e-4)


def test_without_risk_its_advantages_are_those_of_ppo():
    x = jnp.asarray(np.random.default_rng(0).normal(size=(5, 7)), jnp.float32)
    flags = {"terminated": x > 1.2, "truncated": x < -1.2, "gamma": 0.9}
    h = risk_ppo.RiskPPO(theta=0.0, gae_lambda=0.7)
    found = risk_ppo.estimate(h, problem("averse"), 0.5, x, 0.5 * x, 0.3 * x, **flags)
    known = returns.gae(x, 0.5 * x, 0.3 * x, **flags, gae_lambda=0.7)
    np.testing.assert_allclose(found, known, rtol=1e-6, atol=1e-6)


@pytest.mark.slow
def test_without_risk_it_is_ppo():
    """But for the rounding of another program."""
    params = problem("averse")
    options = {"num_envs": 8, "num_seeds": None, "total_timesteps": 512, "progress": None}
    runs = [
        cojax.train(name, params, jax.random.key(0), hyperparameters=h, **options)
        for name, h in (("ppo", {}), ("risk_ppo", {"theta": 0.0, "gae_lambda": 0.925}))
    ]
    for a, b in zip(*(jax.tree.leaves(run.policy.params) for run in runs), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-7)


def test_the_learner_takes_the_price_of_risk_from_the_problem():
    x = jnp.asarray(np.random.default_rng(0).normal(size=(3, 5)), jnp.float32)
    flags = {"terminated": x > 9.0, "truncated": x > 9.0, "gamma": 1.0}
    h = risk_ppo.RiskPPO()
    found = risk_ppo.estimate(h, problem("averse"), 0.5, x, 0.5 * x, 0.3 * x, **flags)
    given = h.replace(theta=1.5)
    again = risk_ppo.estimate(given, None, 0.5, x, 0.5 * x, 0.3 * x, **flags)
    np.testing.assert_array_equal(found, again)
    known = returns.exponential_gae(
        x, 0.5 * x, 0.3 * x, **flags, theta=3.0, most=h.exponent_clip, gae_lambda=h.gae_lambda
    )
    np.testing.assert_allclose(found, known, rtol=1e-6)


@pytest.mark.slow
def test_a_learner_that_is_told_of_risk_leaves_less_of_it():
    P = np.diag([2.3, 1.3])
    limit = Box(np.array([0.6]))
    base = FAMILIES["ConverseArm"].build(1, 1.0, P=P, Q=0.5 * P, R=4.0, Sigma=0.05, limit=limit)
    system = risk_sensitive(base, 0.35 / (0.1 * 2.3), 10)
    law = system.initial_law(Uniform(jnp.full(2, -1.0), jnp.full(2, 1.0)))
    params = env_params(system, law, max_steps_in_episode=10, terminal_value="optimal")
    mean = {}
    for name in ("ppo", "risk_ppo"):
        run = cojax.train(
            name, params, jax.random.key(0), num_seeds=3, total_timesteps=500_000, progress=None
        )
        gaps = [row["risk_gap"] for row in risk_gap([run.policy], params, 4096)]
        mean[name] = np.mean([np.inf if gap is None else gap for gap in gaps])
    assert mean["risk_ppo"] < 0.5 * mean["ppo"]
