"""Problems with a budget: the split of a cost, its identity, and what environments tell of it."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import random_spd, scope
from scipy.optimize import minimize

import cojax
from cojax import envs, initial
from cojax.budgets import budget, energy_budget
from cojax.coordinates import Linear, TransformedLaw
from cojax.envs import ConverseEnv, constrained, env_params
from cojax.errors import InputError
from cojax.evaluation import on_budget
from cojax.families import FAMILIES

BETA, LAMBDA, KAPPA = 0.4, 0.7, 0.5
P = np.diag([4.0, 1.0, 3.0, 2.0]) + 0.3
SIGMA = np.diag([0.004, 0.01, 0.003, 0.02])


def arm(dtype=None, **options):
    given = {"R": np.array([8.0, 5.0]), "gamma": 0.9, "Sigma": SIGMA, "P": P, "Q": BETA * P}
    return FAMILIES["ConverseArm"].build(2, 0.8, dtype=dtype, **given | options)


def between():
    """P_d that is no multiple of P, inside of its bounds."""
    values, V = np.linalg.eigh(P)
    root = (V * np.sqrt(values)) @ V.T
    U = np.linalg.qr(np.random.default_rng(3).normal(size=(4, 4)))[0]
    inside = np.linspace(1.001 * (1.0 - BETA) * KAPPA, 0.999 * KAPPA, 4)
    made = root @ (U * inside) @ U.T @ root
    return 0.5 * (made + made.T)


def made(dtype=None, **options):
    return budget(arm(dtype, **options), LAMBDA, KAPPA, P_d=between())


def law(dtype=None):
    return arm(dtype).geometry.initial_law(dtype)


def states(num=64, seed=0):
    rng = np.random.default_rng(seed)
    return rng.uniform(-1, 1, (num, 4)) * np.tile([2.8, 1.2], 2)


def reference(s, da):
    """f + p g a, c and d of the arm under a = a* + da(s), in NumPy alone: s (N, 4)."""
    gamma, p, R, Pd = 0.9, 0.8, np.array([8.0, 5.0]), between()
    values, V = np.linalg.eigh((1.0 - BETA) * P)
    u = s @ ((V * np.sqrt(values)) @ V.T)
    theta, omega = s[:, 0::2], s[:, 1::2]
    alpha = 0.125 * p * np.tanh(theta * omega) + 0.8 * p * np.sin(theta)
    c, n = np.cos(alpha), np.sin(alpha)
    x = u.copy()
    x[:, 0::2], x[:, 1::2] = c * u[:, 0::2] - n * u[:, 1::2], n * u[:, 0::2] + c * u[:, 1::2]
    beta = 0.1 * p * np.tanh(theta[:, 1] - theta[:, 0])
    c, n = np.cos(beta), np.sin(beta)
    x[:, 1], x[:, 3] = c * x[:, 1] - n * x[:, 3], n * x[:, 1] + c * x[:, 3]
    g = np.zeros((len(s), 4, 2))
    g[:, 1, 0], g[:, 3, 1] = np.cos(theta[:, 0]), np.cos(theta[:, 1])
    M = np.linalg.inv(P) / gamma + p**2 * np.einsum("nij,j,nkj->nik", g, 1.0 / R, g)
    values, V = np.linalg.eigh(M)
    y = np.einsum("nij,nj,nkj,nk->ni", V, values**-0.5, V, x)
    best = -p * np.einsum("nij,ni->nj", g, y) / R
    a = best + da(s)
    ahead = y @ np.linalg.inv(P) / gamma
    form = lambda A, x: np.einsum("ni,ij,nj->n", x, A, x)  # noqa: E731
    d = form(Pd, s) - gamma * form(Pd, ahead)
    c = form(BETA * P - LAMBDA * Pd, s) + form(np.diag(R), a) + LAMBDA * gamma * form(Pd, ahead)
    return ahead + p * np.einsum("nij,nj->ni", g, a - best), c, d


def wrong(s):
    return 0.3 * np.tanh(s[:, :2]) - 0.1


def test_costs_are_those_of_an_independent_computation_and_never_negative():
    s = states(1000)
    with scope("float64"):
        delta, system = jnp.asarray(wrong(s)), made(np.float64)

        def at(s, delta):
            optimum = system.optimum(s)
            a = optimum.action + delta
            told = system.measured(s, a, optimum)
            return cojax.system.next_mean(system, s, a, optimum), told, system.stage_cost(s, a)

        found = jax.jit(jax.vmap(at))(jnp.asarray(s), delta)
        z, told, cost = map(np.asarray, found)
    expected = reference(s, wrong)
    np.testing.assert_allclose(z, expected[0], atol=1e-9)
    np.testing.assert_allclose(told[:, 0], expected[1], rtol=1e-9)
    np.testing.assert_allclose(told[:, 1], expected[2], rtol=1e-9)
    np.testing.assert_allclose(told[:, 0] + LAMBDA * told[:, 1], cost, rtol=1e-12)
    assert np.asarray(told).min() > 0.0


def test_sums_under_the_optimum_and_a_wrong_policy_by_monte_carlo():
    """In NumPy alone: J_d and J_c of π*, and the identity of a wrong policy."""
    gamma, N, T = 0.9, 4000, 50
    params = env_params(made(), law())
    found = np.asarray(params.system.measured_means(*params.initial_state.moments()))
    assert float(params.budget) == found[1]
    rng = np.random.default_rng(0)
    start = rng.uniform(-1, 1, (N, 4)) * np.tile([2.8, 1.2], 2)
    sums = {}
    for name, da in (("best", lambda s: 0.0), ("wrong", wrong)):
        s, J = start, np.zeros((2, N))
        noise = np.random.default_rng(1)
        for k in range(T):
            z, c, d = reference(s, da)
            J += gamma**k * np.stack([c, d])
            s = z + noise.normal(size=s.shape) * np.sqrt(np.diagonal(SIGMA))
        sums[name] = J
    for own, known in zip(sums["best"], found, strict=True):
        assert abs(own.mean() - known) < 4.0 * own.std() / np.sqrt(N) + 0.01 * known * gamma**T
    rows = on_budget([Wrong()], params, 512, num_steps=T).rows()[0]
    gap, violation = sums["wrong"] - sums["best"]
    for name, own in (("gap", gap), ("violation", violation)):
        error = own.std() / np.sqrt(N) + (row := rows[name])["high"] - row["low"]
        assert abs(own.mean() - row["mean"]) < 2.0 * error
        assert abs(own.mean()) > 5.0 * error
    line = rows["gap"]["mean"] + LAMBDA * rows["violation"]["mean"]
    assert line == pytest.approx(rows["distance"]["mean"], rel=1e-5)
    together = gap + LAMBDA * violation
    assert abs(together.mean() - line) < 4.0 * together.std() / np.sqrt(N) + 0.02 * line


@dataclasses.dataclass(frozen=True)
class Wrong:
    """a* + wrong(s), as a function of the observation."""

    def __call__(self, obs, key):
        return arm().optimum(obs).action + 0.3 * jnp.tanh(obs[:2]) - 0.1


def test_excess_is_what_bellman_equations_leave():
    """A_m = m + γ E V_m(s') - V_m(s), in the energy's case too; E V_m(z + w) written out."""
    kappa = 0.9
    with scope("float64"):
        plain = FAMILIES["Isotropic"].build(3, r=1.1, multiplier=2.0, dtype=np.float64)
        for system in (made(np.float64), plain):
            d, m = system.state_dim, system.action_dim
            rng = np.random.default_rng(0)
            Pd = np.asarray(system.P_d)
            Pd = np.diag(Pd) if Pd.ndim == 1 else Pd
            gamma, multiplier = float(system.gamma), float(system.multiplier)
            Sigma = SIGMA if d == 4 else 0.01 * np.eye(3)
            PV = np.asarray(system.P)
            PV = np.diag(PV) if PV.ndim == 1 else PV
            matrices = (PV - multiplier * Pd, Pd)
            for s in kappa * rng.normal(size=(8, d)):
                at = system.optimum(s)
                for delta in (np.zeros(m), 0.3 * rng.normal(size=m)):
                    a = at.action + delta
                    z = np.asarray(cojax.system.next_mean(system, s, a, at))
                    told = system.measured(s, a, at)
                    excess = system.measured_excess(s, delta, at)
                    values = system.measured_values(s)
                    for k, A in enumerate(matrices):
                        power = np.trace(A @ Sigma)
                        b = gamma / (1.0 - gamma) * power
                        assert float(values[k]) == pytest.approx(s @ A @ s + b, rel=1e-11)
                        left = float(told[k]) + gamma * (z @ A @ z + power + b) - float(values[k])
                        assert left == pytest.approx(float(excess[k]), abs=1e-11)
                    assert delta.any() or not np.asarray(excess).any()


def test_no_action_beats_the_optimum_of_the_sum():
    with scope("float64"):
        system = made(np.float64)
        optimum = jax.jit(system.optimum)
        Q = jax.jit(lambda s, a: cojax.oracle.q_value(system, s, a))
        for s in states(6):
            found = minimize(lambda a, s=s: float(Q(s, a)), np.zeros(2), method="BFGS")
            assert found.fun == pytest.approx(float(system.value(s)), rel=1e-9)
            np.testing.assert_allclose(found.x, optimum(s).action, atol=1e-4)


def test_without_a_multiplier_it_is_the_papers_system_to_the_bit():
    system, plain = budget(arm(), 0.0), arm()
    for s in jnp.asarray(states(8), jnp.float32):
        known, found = plain.optimum(s), system.optimum(s)
        for x, y in zip(known, found, strict=True):
            np.testing.assert_array_equal(x, y)
        a = known.action + 0.1
        objective, cost = system.measured(s, a, found)
        assert float(objective) == float(plain.stage_cost(s, a)) == float(system.stage_cost(s, a))
        assert float(system.value(s)) == float(plain.value(s))
        assert float(cost) > 0.0
    law0 = law()
    ours, theirs = (
        cojax.evaluate(["lqr", "zero"], env_params(s, law0), 16, num_steps=20)
        for s in (system, plain)
    )
    assert {*ours.trials} - {*theirs.trials} == {
        f"{kind}_{name}" for kind in ("measured", "excess") for name in ("objective", "cost")
    }
    for name, values in theirs.trials.items():
        np.testing.assert_array_equal(ours.trials[name], values)
    np.testing.assert_array_equal(
        np.float32(ours.trials["excess_objective"]), np.float32(ours.trials["suboptimality"])
    )


def test_an_energy_is_estimated_once_and_keeps_the_identity():
    plain = arm()
    system = energy_budget(plain, 3.0, [1.0, 0.5], num_trials=1024)
    D, low, high, _ = map(float, system.estimate)
    assert low < D < high < 1.3 * low
    rng, N, total = np.random.default_rng(5), 2000, 0.0
    s = rng.uniform(-1, 1, (N, 4)) * np.tile([2.8, 1.2], 2)
    act = jax.jit(jax.vmap(lambda s: plain.optimum(s).action))
    for k in range(45):
        z, a = reference(s, lambda s: 0.0)[0], act(jnp.asarray(s, jnp.float32))
        total = total + 0.9**k * np.asarray(a, np.float64) ** 2 @ np.array([1.0, 0.5])
        s = z + rng.normal(size=s.shape) * np.sqrt(np.diagonal(SIGMA))
    assert abs(total.mean() - D) < 2.0 * (high - low) + 4.0 * total.std() / np.sqrt(N)
    s, a = jnp.asarray([0.5, -0.2, 0.3, 0.1]), jnp.asarray([0.2, -0.4])
    objective, cost = system.measured(s, a, system.optimum(s))
    assert float(cost) == pytest.approx(0.04 + 0.08)
    assert float(objective + 3.0 * cost) == pytest.approx(float(plain.stage_cost(s, a)), rel=1e-6)
    params = env_params(system, law())
    assert float(params.budget) == D
    row = on_budget(["detuned-oracle:0.5"], params, 256).rows()[0]
    assert (row["budget_low"], row["budget_high"]) == (low, high)
    assert row["distance"]["mean"] > 0.0 > row["violation"]["mean"]
    other = dataclasses.replace(params, initial_state=initial.Fixed(jnp.ones(4)))
    with pytest.raises(InputError, match=r"initial_state: expected the law that D was estimated"):
        on_budget(["oracle"], other, 4)


LAWS = {
    "uniform": initial.Uniform(jnp.array([-1.0, 0.0]), jnp.array([1.0, 3.0])),
    "gaussian": initial.Normal(jnp.array([1.0, -2.0]), jnp.array([0.5, 2.0])),
    "fixed": initial.Fixed(jnp.array([1.0, -2.0])),
    "list": initial.Listed(jnp.array([[1.0, -2.0], [0.5, 0.0], [0.0, 1.0]])),
    "ring": FAMILIES["NVDEx"]().initial_law(),
    "transformed": TransformedLaw(
        initial.Normal(jnp.array([1.0, -2.0]), jnp.array([0.5, 2.0])),
        Linear(jnp.array([[1.0, 2.0], [0.0, -1.0]]), jnp.array([[1.0, 2.0], [0.0, -1.0]])),
    ),
}


@pytest.mark.parametrize("name", LAWS)
def test_moments_are_those_of_draws(name):
    law = LAWS[name]
    keys = jax.random.split(jax.random.key(0), 40_000)
    draws = np.asarray(jax.jit(jax.vmap(law.sample))(keys), np.float64)
    mean, covariance = law.moments()
    scale = draws.std(axis=0) + 1e-6
    np.testing.assert_array_less(np.abs(draws.mean(axis=0) - mean) / scale, 0.03)
    error = np.abs(np.atleast_2d(np.cov(draws.T)) - covariance) / (scale[:, None] * scale[None])
    assert error.max() < 0.04


def test_environments_tell_both_costs():
    params = env_params(made(), law(), max_steps_in_episode=20)
    env = ConverseEnv(params)
    key, a = jax.random.key(1), jnp.array([0.3, -0.2])
    _, state = env.reset(key)
    _, _, reward, _, _, info = env.step(key, state, a)
    expected = params.system.measured(state.s, a, params.system.optimum(state.s))
    np.testing.assert_allclose([info["objective"], info["cost"]], expected, rtol=1e-6)
    assert float(reward) == pytest.approx(-float(expected[0] + LAMBDA * expected[1]), rel=1e-5)
    assert float(constrained(env).step(key, state, a)[2]) == -float(info["objective"])
    cojax.testing.check_env(env, params, num_draws=512)
    out = constrained(env).step_env(key, state, a, params)
    assert float(out[2]) == -float(out[4]["objective"])
    final = dataclasses.replace(params, terminal_value="optimal", max_steps_in_episode=1)
    _, after, reward, over, info = env.step_env(key, state, a, final)
    left = 0.9 * final.system.measured_values(after.s)
    assert bool(over)
    np.testing.assert_allclose([info["objective"], info["cost"]], expected + left, rtol=1e-5)
    with pytest.raises(InputError, match="constrained: expected a system with a budget"):
        constrained(ConverseEnv(env_params(arm(), law())))
    with pytest.raises(InputError, match="budget: expected a system with a budget"):
        _ = env_params(arm(), law()).budget


def test_gymnasium_passes_the_cost_on():
    from cojax.adapters.gymnasium import Env, VectorEnv

    params = env_params(made(), law())
    for reward_is in ("sum", "objective"):
        env = Env(params, constrained=reward_is == "objective")
        env.reset(seed=3)
        _, reward, _, _, info = env.step(np.array([0.1, -0.2]))
        whole = info["objective"] + (LAMBDA * info["cost"] if reward_is == "sum" else 0.0)
        assert reward == pytest.approx(-whole, rel=1e-5)
        assert type(info["cost"]) is float
    assert float(env.budget) == float(params.budget)
    vector = VectorEnv(params, 3)
    vector.reset(seed=3)
    infos = vector.step(np.tile([0.1, -0.2], (3, 1)))[4]
    assert infos["cost"][0] == pytest.approx(info["cost"], rel=1e-5)
    assert infos["_cost"].all()
    with pytest.raises(InputError, match="budget: expected a system with a budget"):
        _ = Env(env_params(arm(), law())).budget


def test_it_stacks_transforms_and_traces_once():
    systems = [made(), budget(arm(Q=0.6 * P), 0.4, KAPPA)]
    params = [env_params(s, law(), max_steps_in_episode=20) for s in systems]
    traces = []

    @jax.jit
    def told(system, s):
        traces.append(None)
        return jax.vmap(lambda one: one.measured(s, s[:2], one.optimum(s)))(system)

    batch, s = cojax.stack(params), jnp.array([0.5, -0.2, 0.3, 0.1])
    both = told(batch.system, s)
    told(cojax.stack(params[::-1]).system, s)
    assert len(traces) == 1
    for own, system in zip(both, systems, strict=True):
        np.testing.assert_allclose(own, system.measured(s, s[:2], system.optimum(s)), rtol=1e-5)
    np.testing.assert_allclose(batch.budget, [float(p.budget) for p in params], rtol=1e-6)
    twin = cojax.orbits.twin(params[0], 3)
    assert float(twin.budget) == pytest.approx(float(params[0].budget), rel=1e-4)
    rows = [on_budget(["detuned-oracle:0.5"], p, 8).rows()[0] for p in (params[0], twin)]
    for name in ("gap", "violation", "distance"):
        mine, theirs = (row[name]["mean"] for row in rows)
        assert mine == pytest.approx(theirs, rel=2e-3, abs=1e-3)


def test_systems_with_and_without_measures_side_by_side():
    problems = {"split": env_params(made(), law()), "plain": env_params(arm(), law())}
    found = cojax.evaluate(["zero", "lqr"], problems, 8, num_steps=10)
    assert np.isnan(found.trials["measured_cost"][1]).all()
    split, plain = found.rows()[0], found.rows()[2]
    assert split["measured_cost"]["mean"] > 0.0
    assert "measured_cost" not in plain
    with pytest.raises(InputError, match="metric measured_cost: expected one of all systems"):
        found.table(metric="measured_cost")
    one = cojax.evaluate(["zero", "lqr"], problems["split"], 8, num_steps=10)
    assert "Discounted sum Σ γᵏ of the cost" in one.table(metric="measured_cost")
    together = cojax.evaluate({"own": {"split": "zero", "plain": "lqr"}}, problems, 8, num_steps=10)
    assert np.isnan(together.trials["excess_cost"][1]).all()
    row = cojax.compare(one, metric="measured_cost", policies=["zero", "lqr"]).rows()[0]
    cost = one.trials["measured_cost"][0]
    assert row["difference"]["mean"] == pytest.approx(cost[0].mean() - cost[1].mean())


def test_results_hold_the_sums(tmp_path):
    found = cojax.evaluate(["zero"], env_params(made(), law()), 8, num_steps=10)
    found.save(tmp_path / "out")
    again = cojax.evaluation.Evaluation.load(tmp_path / "out")
    for name in ("measured_objective", "measured_cost", "excess_objective", "excess_cost"):
        np.testing.assert_array_equal(again.trials[name], found.trials[name])


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: budget(arm(), -0.1), r"multiplier: expected a number in \[0, inf\], got -0.1"),
        (lambda: budget(arm(), 0.9, 0.5), r"multiplier: expected λ κ <= β = 0.4, got 0.45"),
        (lambda: budget(arm(Q=0.0), 0.1), r"Q: expected βP ⪯ Q with β > 0, got β = 0"),
        (lambda: budget(arm(), 0.1, 0.0), r"kappa: expected a number in \(0, inf\], got 0"),
        (lambda: budget(arm(), 0.1, 0.5, P_d=0.6 * P), r"P_d ⪯ κ P with κ = 0.5, got 0.6 P"),
        (
            lambda: budget(arm(), 0.1, 0.5, P_d=0.2 * P),
            r"P_d: expected P_d ⪰ \(1-β\) κ P with \(1-β\) κ = 0.3, got 0.2 P",
        ),
        (lambda: budget(arm(action_noise=0.1), 0.1), "budget: expected a system without action_n"),
        (lambda: budget(made(), 0.1), "budget: expected a system without a budget"),
        (lambda: budget(FAMILIES["KinematicArm"].build(2), 0.1), "class of its own"),
        (lambda: energy_budget(arm(), 5.5), r"multiplier: expected λ R_d ⪯ R, got 1.1 R"),
        (lambda: energy_budget(arm(), 1.0, -1.0), "R_d: expected a positive semidefinite matrix"),
        (lambda: on_budget(["zero"], env_params(arm(), law()), 4), "expected a system with a budg"),
        (
            lambda: on_budget(["zero"], env_params(made(), law()), 4, initial_states=np.ones(4)),
            "initial_states: expected none",
        ),
        (lambda: envs.constrained(3), "env: expected a gymnax environment, got int"),
        (lambda: made().replace(multiplier=1.0), "multiplier: leaves of a system depend"),
        (lambda: cojax.rebuild(made(), p=0.5), "rebuild: expected a quadratic system, got Budge"),
    ],
)
def test_bad_input_is_refused_in_one_line(call, said):
    with pytest.raises(InputError, match=said) as caught:
        call()
    assert "\n" not in str(caught.value)


def test_a_fixture_file_states_a_budget():
    """It is certified, float32 and float64 are of one problem, and a bad λ is one line."""
    from cojax.fixtures.build import make_fixture

    stated = {"kind": "budget", "multiplier": 0.5, "kappa": 0.05}
    fixture = make_fixture("ConverseArm", id="x", n=1, p=0.8, seed=7, Q=0.1, extension=stated)
    assert fixture.certificate.passed
    for dtype in ("float32", "float64"):
        with scope(dtype):
            system = fixture.system(np.dtype(dtype))
            assert system.measures == ("objective", "cost")
            np.testing.assert_allclose(system.P_d, 0.05 * fixture.P, rtol=1e-6)
            assert system.P_d.dtype == dtype
    assert float(fixture.params.budget) > 0.0
    with pytest.raises(InputError, match=r"multiplier: expected λ κ <= β = 0\.04\d+, got 0\.25"):
        fixture.with_changes(extension=stated | {"multiplier": 5.0}).system()


def test_a_random_split_is_accepted_where_the_conditions_hold():
    """And c and d are not negative there, at states near and far."""
    rng = np.random.default_rng(7)
    for _ in range(3):
        A = random_spd(rng, 4, 3.0)
        system = budget(arm(Q=0.7 * P), 0.5, P_d=0.4 * P + 0.05 * A)
        s = jnp.asarray(10.0 ** rng.uniform(-2, 1, (2000, 1)) * rng.normal(size=(2000, 4)))

        def at(s, system=system):
            optimum = system.optimum(s)
            return system.measured(s, optimum.action, optimum) / (s @ s)

        assert float(jax.jit(jax.vmap(at))(s.astype(jnp.float32)).min()) > 0.0
