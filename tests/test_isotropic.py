"""The isotropic family: its front, values of every gain, and policies held against a budget."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import scope
from scipy.interpolate import CubicSpline
from scipy.optimize import brentq, minimize

import cojax
from cojax.budgets import budget
from cojax.envs import env_params
from cojax.errors import InputError
from cojax.evaluation import front, on_budget
from cojax.evaluation.constrained import Problem
from cojax.families import FAMILIES, Isotropic
from cojax.families.isotropic import Front
from cojax.initial import Fixed, Listed, Normal

R, P, GAMMA, VARIANCE = 1.15, 0.9, 0.95, 0.01
MULTIPLIERS = (0.3, 1.0, 4.0)


def made(n=3, dtype=None, **options):
    return Isotropic.build(n, P, **{"r": R, "gamma": GAMMA, "dtype": dtype} | options)


def riccati(multiplier, sweeps=600):
    """κ by value iteration from zero, and K."""
    kappa = 0.0
    for _ in range(sweeps):
        kappa = 1.0 + GAMMA * R**2 * kappa * multiplier / (multiplier + GAMMA * P**2 * kappa)
    return kappa, GAMMA * P * kappa / (multiplier + GAMMA * P**2 * kappa)


def turned(x, t):
    """T x in NumPy, x (N, n) and t (N, h)."""
    h = x.shape[1] // 2
    c, s = np.cos(2.0 * np.arctan(t)), np.sin(2.0 * np.arctan(t))
    u, v = x[:, :h], x[:, h : 2 * h]
    return np.concatenate([c * u - s * v, s * u + c * v, x[:, 2 * h :]], axis=1)


def fields(x):
    """S(x) x and the turns of G, from their definitions."""
    h = x.shape[1] // 2
    swirls = lambda x: 0.7 * (1.0 + x[:, :h] + 2.0 * x[:, h : 2 * h])  # noqa: E731
    rolled = np.roll(turned(x, swirls(x)), 1, axis=1)
    Sx = turned(rolled, swirls(np.roll(x, 1, axis=1)))
    return Sx, 0.6 * (1.0 + 2.0 * x[:, :h] - x[:, h : 2 * h])


@pytest.mark.parametrize("n", [1, 2, 3, 6])
def test_dynamics_are_those_of_the_equations_for_every_multiplier(n):
    """f = r S x and G from NumPy, whichever λ it was built for; a* = -K r Gᵀ S x."""
    x = np.random.default_rng(n).normal(size=(64, n))
    Sx, t = fields(x)
    a = np.random.default_rng(9).normal(size=(64, n))
    with scope("float64"):
        for multiplier in MULTIPLIERS:
            system = made(n, np.float64, multiplier=multiplier)
            at = jax.jit(jax.vmap(system.optimum))(jnp.asarray(x))
            np.testing.assert_allclose(at.drift, R * Sx, atol=1e-12)
            pushed = jax.vmap(system.actuate)(jnp.asarray(x), jnp.asarray(a))
            np.testing.assert_allclose(pushed, P * turned(a, t), atol=1e-12)
            K = riccati(multiplier)[1]
            np.testing.assert_allclose(at.action, -K * R * turned(Sx, -t), atol=1e-12)
    if n > 1:  # both fields depend on the state
        assert np.ptp(np.linalg.norm(Sx - x, axis=1) / np.linalg.norm(x, axis=1)) > 0.2


def test_the_value_is_that_of_value_iteration_from_zero():
    """On a grid, in one dimension, for several λ of one system."""
    x, nodes = np.linspace(-4, 4, 41), np.polynomial.hermite_e.hermegauss(9)
    weights = nodes[1] / nodes[1].sum()
    a = np.linspace(-1, 1, 41)[None] * (2.5 * np.abs(x) + 1.0)[:, None]
    for multiplier in MULTIPLIERS:
        with scope("float64"):
            system = made(1, np.float64, multiplier=multiplier)
            drift = np.asarray(jax.vmap(system.optimum)(jnp.asarray(x[:, None])).drift)[:, 0]
            push = float(system.actuate(jnp.ones(1), jnp.ones(1))[0])
            value = np.asarray(jax.vmap(system.value)(jnp.asarray(x[:, None])))
        ahead = (drift[:, None] + push * a)[..., None] + np.sqrt(VARIANCE) * nodes[0]
        V = np.zeros_like(x)
        for _ in range(250):
            mean = CubicSpline(x, V)(ahead) @ weights
            Q = x[:, None] ** 2 + multiplier * a**2 + GAMMA * mean
            best = Q.argmin(axis=1).clip(1, a.shape[1] - 2)
            rows = np.arange(len(x))
            low, mid, high = Q[rows, best - 1], Q[rows, best], Q[rows, best + 1]
            V = mid - (high - low) ** 2 / (8.0 * np.maximum(high + low - 2.0 * mid, 1e-12))
        inside = np.abs(x) < 2.0
        np.testing.assert_allclose(V[inside], value[inside], rtol=1e-4)


def test_no_action_beats_the_optimum():
    with scope("float64"):
        system = made(3, np.float64, multiplier=0.7)
        Q = jax.jit(lambda s, a: cojax.oracle.q_value(system, s, a))
        for s in np.random.default_rng(0).normal(size=(4, 3)):
            found = minimize(lambda a, s=s: float(Q(s, a)), np.zeros(3), method="BFGS")
            assert found.fun == pytest.approx(float(system.value(s)), rel=1e-9)
            assert system.constant_curvature


@pytest.mark.parametrize("r", [0.9, 1.0, R])
def test_the_front_agrees_with_searches(r):
    """λ of K and K of λ, the root of a budget, and the slope, by other means."""
    own = Front(r, P, GAMMA, 1.0, start=0.7, power=0.03)
    low, high = own.least_budget, own.largest_budget
    assert (low > 0.0) == (GAMMA * r**2 > 1.0)
    for D in low + (high - low) * np.array([0.02, 0.3, 0.9]):
        K = brentq(lambda K, D=D: own.at(K)[1] - D, own.least_gain + 1e-9, 1.0 / P)
        assert own.gain_for(D) == pytest.approx(K, rel=1e-9)
        multiplier = own.multiplier(K)
        assert own.gain(multiplier) == pytest.approx(K, rel=1e-9)
        h = 1e-6 * D
        slope = (own.objective(D - h) - own.objective(D + h)) / (2.0 * h)
        assert own.slope(D) == pytest.approx(multiplier, rel=1e-9)
        assert slope == pytest.approx(multiplier, rel=1e-5)
        J = np.array([own.at(k) for k in np.linspace(own.least_gain + 1e-6, 1.0 / P, 400)])
        assert (J @ [1.0, multiplier]).min() >= np.dot(own.at(K), [1.0, multiplier]) - 1e-12
    assert own.objective(2.0 * high) == own.at(1.0 / P)[0]
    assert own.slope(2.0 * high) == 0.0
    assert own.objective(0.999 * low) == own.slope(0.999 * low) == np.inf
    assert Front(2.0, 0.4, GAMMA).at(0.0) == (np.inf, np.inf)
    J_d, J_c = own.curve(50)
    assert (np.diff(J_d) > 0.0).all()
    assert (np.diff(J_c) < 0.0).all()


def test_every_gain_costs_what_the_front_says_by_monte_carlo():
    """In NumPy alone: X and J_a of gains that are optimal and not, and a perturbed policy above."""
    rng, N, T, n = np.random.default_rng(0), 5000, 120, 3
    own = Front(R, P, GAMMA, 1.0, start=1.0, power=n * VARIANCE)
    start = rng.normal(size=(N, n))
    start /= np.linalg.norm(start, axis=1, keepdims=True)
    for K, extra in ((own.gain(1.0), 0.0), (0.35, 0.0), (own.gain(1.0), 0.3)):
        x, J = start, np.zeros((2, N))
        for k in range(T):
            Sx, t = fields(x)
            a = -K * R * turned(Sx, -t) + extra * np.sin(x)
            J += GAMMA**k * np.stack([(x * x).sum(1), (a * a).sum(1)])
            x = R * Sx + P * turned(a, t) + np.sqrt(VARIANCE) * rng.normal(size=x.shape)
        mean, error = J.mean(axis=1), J.std(axis=1) / np.sqrt(N)
        if extra:
            assert mean[0] - own.objective(mean[1]) > 0.1
        else:
            assert (np.abs(mean - own.at(K)) < 4.0 * error + 0.005 * mean).all()


def test_a_system_stands_at_its_point_of_the_front():
    for dtype in ("float32", "float64"):
        with scope(dtype):
            system = made(2, np.dtype(dtype), budget=0.6)
            law = system.geometry.initial_law(np.dtype(dtype))
            own = system.front(law)
            exact = Front(R, P, GAMMA, 1.0, start=2.0 / 3.0, power=2 * VARIANCE)
            rel = 1e-12 if dtype == "float64" else 1e-5
            assert own.at(0.4) == pytest.approx(exact.at(0.4), rel=rel)
            found = np.asarray(system.measured_means(*law.moments()))
            assert found[1] == pytest.approx(0.6, rel=rel)
            assert found[0] == pytest.approx(exact.objective(0.6), rel=rel)
            assert float(system.multiplier) == pytest.approx(exact.slope(0.6), rel=10.0 * rel)
            s, a = jnp.ones(2, dtype), jnp.full(2, 0.5, dtype)
            told = system.measured(s, a, system.optimum(s))
            np.testing.assert_allclose(told, [2.0, 0.5], rtol=1e-6)
            assert told.dtype == dtype
    params = env_params(system, law)
    assert front(params) == own


def test_another_law_moves_the_budget_with_it():
    system = made(2, multiplier=1.0)
    zeros = jnp.zeros(2)
    for law, start in ((Fixed(jnp.array([1.0, 2.0])), 5.0), (Normal(zeros, zeros + 2.0), 8.0)):
        params = env_params(system, law, action_limit=None)
        own = front(params)
        assert own.start == pytest.approx(start)
        assert float(params.budget) == pytest.approx(own.at(own.gain(1.0))[1], rel=1e-5)
    start = Listed(jnp.array([[1.0, 0.0], [0.0, 2.0]]))
    asked = made(2, budget=1.2, start=start)
    assert float(env_params(asked, start, action_limit=None).budget) == pytest.approx(1.2, rel=1e-5)


@pytest.fixture(scope="module")
def problems():
    return {f"D = {D}": cojax.make("Isotropic-v0", budget=D)[1] for D in (0.2, 0.5)}


def test_policies_against_a_budget(problems, tmp_path):
    """Gains of the oracle are on the front, exactly where it says; a dithered one is above."""
    names = ["oracle", "detuned-oracle:0.7", "dithered-oracle:0.1", "detuned-oracle:1.2"]
    found = on_budget(names, problems, 512)
    rows = found.rows()
    for place, (name, params) in enumerate(problems.items()):
        own = front(params)
        best, less, dithered, more = rows[4 * place : 4 * place + 4]
        assert best["fixture"] == name
        for cell in ("gap", "violation", "distance"):
            assert set(best[cell].values()) == {0.0}
        assert best["cost"]["mean"] == pytest.approx(float(name[4:]), rel=1e-5)
        assert best["own_gap"]["mean"] == pytest.approx(0.0, abs=1e-5)
        for row, factor in ((less, 0.7), (more, 1.2)):
            J_c, J_d = own.at(factor * own.gain(row["multiplier"]))
            for cell, expected in (("objective", J_c), ("cost", J_d)):
                half = 0.5 * (row[cell]["high"] - row[cell]["low"])
                assert abs(row[cell]["mean"] - expected) < 2.0 * half
            assert row["own_gap"]["low"] < 1e-3 < row["own_gap"]["high"] + 2e-3
            widths = [row[cell]["high"] - row[cell]["low"] for cell in ("own_gap", "gap")]
            assert widths[0] < 0.7 * widths[1]  # J_c and J_d of a trial go together
        assert less["violation"]["high"] < 0.0 < less["gap"]["low"]
        assert more["gap"]["high"] < 0.0 < more["violation"]["low"]
        B = float(params.system.multiplier + GAMMA * P**2 * params.system.P[0])
        expected = 0.01 * 2 * B * (1.0 - GAMMA**200) / (1.0 - GAMMA)
        assert dithered["distance"]["mean"] == pytest.approx(expected, rel=0.03)
        assert dithered["own_gap"]["low"] > 0.1
        for row in (best, less, dithered, more):
            line = row["gap"]["mean"] + row["multiplier"] * row["violation"]["mean"]
            assert line == pytest.approx(row["distance"]["mean"], abs=1e-5)
    assert "J_c - J_c*(J_d)" in found.table()
    assert found.to_frame().loc[0, "violation_low"] == 0.0
    panel = found.plot(tmp_path / "front.png").axes[0]
    x, y = panel.lines[0].get_data()  # the front: falling, and what policies spend is on it
    own = front(problems["D = 0.2"])
    assert (np.diff(x) >= 0.0).all()
    assert (np.diff(y) <= 0.0).all()
    np.testing.assert_allclose([own.objective(D) for D in x], y, rtol=1e-9)
    assert (tmp_path / "front.png").stat().st_size > 10_000
    with pytest.raises(InputError, match="expected a name that ends in"):
        found.plot("front.gif")


def test_sums_are_those_of_the_same_trials(problems):
    """Σ γᵏ d itself, with what is to come after the horizon, against D + excess: one mean."""
    params = problems["D = 0.5"]
    found = cojax.evaluate(["dithered-oracle:0.1"], params, 2048, num_steps=150)
    for name, own in zip(("objective", "cost"), means_of(params), strict=True):
        known = own + found.trials[f"excess_{name}"][0, 0]
        direct = found.trials[f"measured_{name}"][0, 0]
        difference = direct - known
        error = difference.std() / np.sqrt(difference.size)
        assert abs(difference.mean()) < 4.0 * error + 1e-3 * own
        assert known.std() > 0.0


def means_of(params):
    own = Problem.of(params)
    return own.objective, own.budget


def test_failures_are_infinite(problems):
    wild = {"wild": lambda obs, key: 1e3 * (1.0 + obs)}
    params = dataclasses.replace(problems["D = 0.5"], divergence_radius=10.0)
    found = on_budget(wild, {"x": params}, 8)
    row = found.rows()[0]
    assert row["failures"] == 8
    assert row["violation"]["mean"] == row["gap"]["mean"] == row["distance"]["mean"] == np.inf
    assert row["own_gap"] is None
    assert "∞" in found.table()
    found.plot()


def test_one_trace_serves_many_systems_and_rebuild_keeps_the_family():
    systems = [made(2, multiplier=1.0), made(2, multiplier=0.4, swirl=0.2)]
    params = [
        env_params(s, s.geometry.initial_law(jnp.float32), action_limit=None) for s in systems
    ]
    traces = []

    @jax.jit
    def told(system, s):
        traces.append(None)
        return jax.vmap(lambda one: one.measured_excess(s, s, one.optimum(s)))(system)

    s = jnp.array([0.4, -0.3])
    both = told(cojax.stack(params).system, s)
    told(cojax.stack(params[::-1]).system, s)
    assert len(traces) == 1
    for own, system in zip(both, systems, strict=True):
        np.testing.assert_allclose(own, system.measured_excess(s, s, system.optimum(s)), rtol=1e-5)
    weaker = cojax.rebuild(systems[0], p=0.5)
    assert type(weaker) is type(systems[0])
    assert float(weaker.P[0]) == float(systems[0].P[0])
    full = np.array([[1.0, 0.2], [0.2, 1.0]])
    assert cojax.rebuild(systems[0], R=full).measures == ()  # no front of such costs is known


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"budget": 0.1}, r"budget: expected more than 0\.348719, which no policy keeps, got 0.1"),
        ({"budget": 9.0}, r"budget: expected less than 1\.70891, which least J_c needs, got 9"),
        ({"budget": 0.5, "multiplier": 1.0}, "multiplier: expected none where a budget is given"),
        ({"multiplier": 0.0}, r"multiplier: expected a number in \(0, inf\], got 0"),
        ({"r": -1.0}, r"r: expected a number in \(0, inf\], got -1"),
        ({"n": 0}, "n: expected a whole number >= 1, got 0"),
    ],
)
def test_bad_input_is_refused_in_one_line(options, said):
    with pytest.raises(InputError, match=said):
        made(**{"n": 2} | options)


def test_a_front_is_refused_where_none_is_known():
    arm = FAMILIES["ConverseArm"].build(2, 0.8)
    split = budget(arm, 0.01)
    with pytest.raises(InputError, match="front: expected a system of the isotropic family"):
        front(env_params(split, split.geometry.initial_law(jnp.float32)))


# --- the learner ---------------------------------------------------------------------------------


def test_the_learner_measures_what_a_policy_spends():
    """Ĵ_d of sums by class, against the discounted sum of costs that depend on the step alone."""
    from cojax.agents.ppo_lagrangian import CLASSES, _by_class, discounted_sum

    for gamma, length in ((0.9, 200), (0.95, 25), (0.99, 700)):
        d = 1.0 + 3.0 * 0.8 ** np.arange(4000)
        weights = gamma ** np.arange(length)
        found = jnp.zeros((2, CLASSES))
        for k in range(length):
            w = jnp.full((4,), weights[k], jnp.float32)
            found = found + _by_class(w[None] * jnp.stack([jnp.full(4, d[k]), jnp.ones(4)]), w)
        exact = float(d @ gamma ** np.arange(4000))
        assert float(discounted_sum(found, gamma)) == pytest.approx(exact, rel=0.02)


def test_the_multiplier_follows_the_budget(problems):
    """Up where too much is spent, down where too little, by rate · clip(…), of the batch's cost."""
    params, told = problems["D = 0.5"], {}
    for D in (1e-3, 1e3):
        seen = told.setdefault(D, [])
        cojax.train(
            "ppo_lagrangian", params, jax.random.key(0), num_seeds=None, total_timesteps=2048,
            eval_every=512, progress=lambda done, total, metrics, seen=seen: seen.append(metrics),
            hyperparameters={"budget": D, "multiplier_rate": 0.1, "multiplier_gain": 1.5,
                             "final_lr_fraction": 1.0, "hidden": (8,)},
        )  # fmt: skip
    for D, sign in ((1e-3, 0.1), (1e3, -0.1)):
        logs = np.log([float(m["multiplier"]) for m in told[D]])
        np.testing.assert_allclose(np.diff(logs), sign, rtol=0.01)
        assert logs[0] == pytest.approx(sign + np.sign(sign) * 1.5, rel=0.01)  # and the gain
    assert 0.05 < float(told[1e3][0]["cost"]) < 20.0


def test_the_learner_wants_a_cost_and_a_budget():
    plain = cojax.make("PointMass-v0")[1]
    options = {"num_seeds": None, "total_timesteps": 512, "progress": None}
    with pytest.raises(InputError, match="budget: expected a system with a budget"):
        cojax.train("ppo_lagrangian", plain, jax.random.key(0), **options)
    with pytest.raises(InputError, match="info"):
        cojax.train(
            "ppo_lagrangian", plain, jax.random.key(0), env=cojax.envs.ConverseEnv(),
            hyperparameters={"budget": 1.0}, **options,
        )  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("D", [0.15, 0.35, 0.7])
def test_the_learner_reaches_the_front(D):
    params = cojax.make("Isotropic-v0", budget=D)[1]
    run = cojax.train(
        "ppo_lagrangian", params, jax.random.key(0), num_seeds=None, progress=None,
        total_timesteps=600_000, hyperparameters={
            "max_episode_steps": 20, "obs_clip": 50.0, "activation": "relu"
        },
    )  # fmt: skip
    row = on_budget([run.policy], params, 512, 7).rows()[0]
    assert row["own_gap"]["mean"] < 0.1 * row["own_objective"]
    assert abs(row["violation"]["mean"]) < 0.15 * D
