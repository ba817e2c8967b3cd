from __future__ import annotations

import dataclasses
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import SYSTEMS, golden_system, numpy_optimum, random_spd, relative, scope
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize

import cojax
from cojax import consistency, linalg, oracle, precision, quadratic
from cojax.families import ConverseArm, NVDEx
from cojax.system import mean_next_state


@jax.jit
@partial(jax.vmap, in_axes=(None, 0, 0))
def quantities(system, s, a):
    """All that a system states, at a batch of states and actions: one compilation a system."""
    found = system.optimum(s)
    return {
        "drift": found.drift,
        "optimal_action": found.action,
        "optimal_next_mean": found.next_mean,
        "optimal_value": system.value(s),
        "stage_cost": system.stage_cost(s, a),
        "mean_next_state": mean_next_state(system, s, a),
        "q_value": oracle.q_value(system, s, a),
        "q_at_optimum": oracle.q_value(system, s, found.action),
        "advantage": oracle.advantage(system, s, a),
        "advantage_at_optimum": oracle.advantage(system, s, found.action),
    }


def at_random(system, seed=0):
    """Six states and actions and what the system states there, as NumPy."""
    s = states(system, 6, seed)
    a = np.random.default_rng(seed + 100).normal(size=(6, system.action_dim))
    found = quantities(system, jnp.asarray(s), jnp.asarray(a))
    return s, a, {name: np.asarray(value) for name, value in found.items()}


def states(system, num, seed=0):
    return np.random.default_rng(seed).normal(size=(num, system.state_dim))


@pytest.mark.parametrize(("dtype", "tolerance"), [("float64", 1e-10), ("float32", 2e-6)])
def test_golden(golden, dtype, tolerance):
    """All ten systems, every quantity, relative to the vector's norm."""
    names = ("drift", "optimal_action", "optimal_value", "stage_cost", "mean_next_state")
    checked = 0
    with scope(dtype):
        for entry in golden:
            system = golden_system(entry)
            assert relative(system.offset, entry["offset"]) < tolerance
            s, a = (jnp.asarray([point[k] for point in entry["points"]]) for k in "sa")
            found = quantities(system, s, a)
            for name in names:
                assert found[name].dtype == dtype
                for value, point in zip(found[name], entry["points"], strict=True):
                    assert relative(value, point[name]) < tolerance, (entry["family"], name)
                    checked += 1
    assert checked == 10 * 6 * 5


@pytest.mark.parametrize("name", SYSTEMS)
def test_oracle_against_the_papers_formulas(name):
    """Drift and action by inverses in NumPy; f_pᵀ H f_p = sᵀ(P-Q)s; Bellman's equation."""
    tolerance = 1e-9 if name == "arm-ill-conditioned" else 1e-11
    with precision.x64():
        system = SYSTEMS[name]()
        P_minus_Q = linalg.to_full(np.asarray(system.P_minus_Q))
        s, _, found = at_random(system)
        for i, state in enumerate(s):
            reference = numpy_optimum(system, state)
            drift, action = found["drift"][i], found["optimal_action"][i]
            assert relative(drift, reference["drift"]) < tolerance
            assert relative(action, reference["action"]) < tolerance
            pushed = drift + float(system.p) * reference["g"] @ action
            assert relative(found["optimal_next_mean"][i], pushed) < 1e-10
            energy = state @ P_minus_Q @ state
            assert abs(drift @ reference["H"] @ drift - energy) < 1e-9 * energy
    np.testing.assert_allclose(found["q_at_optimum"], found["optimal_value"], rtol=1e-9)


@pytest.mark.parametrize("name", SYSTEMS)
def test_advantage_is_q_minus_v_and_never_negative(name):
    with precision.x64():
        system = SYSTEMS[name]()
        _, _, found = at_random(system)
        assert (
            float(system.excess_cost(jnp.zeros(system.state_dim), jnp.zeros(system.action_dim)))
            == 0
        )
    difference = found["q_value"] - found["optimal_value"]
    assert (found["advantage"] > 0.0).all()
    np.testing.assert_allclose(found["advantage"], difference, atol=1e-9 * found["q_value"].max())
    assert (found["advantage_at_optimum"] < 1e-25 * found["advantage"]).all()


GAMMA, P2, Q2, R2 = 0.9, np.array([[2.0, 0.4], [0.4, 1.0]]), np.diag([0.7, 0.3]), np.eye(1)
SIGMA2, RISK, GUST = np.array([[0.05, 0.01], [0.01, 0.08]]), 1.5, np.array([0.3, 0.2])
SHAKE, STIR = np.array([0.2, 0.5]), np.array([[0.1, 0.0], [0.2, 0.1]])
HIDDEN = np.eye(2) - 2.0 * RISK * SIGMA2 @ P2  # I - 2 θ Σ P
CLASSES = {
    "risk": {
        "P_hat": np.linalg.inv(np.linalg.inv(P2) - 2.0 * RISK * SIGMA2),
        "noise_cost": -np.linalg.slogdet(HIDDEN)[1] / (2.0 * RISK),
    },
    "game": {"P_hat": np.linalg.inv(np.linalg.inv(P2) - GAMMA * np.outer(GUST, GUST) / 0.8)},
    "multiplicative noise": {
        "R_hat": R2 + GAMMA * SHAKE @ P2 @ SHAKE,
        "Q_hat": Q2 + GAMMA * STIR.T @ P2 @ STIR,
    },
}


def expectation_in_numpy(name, value, s, a, z):
    """What each class has for E V(z + w), from its own definition: quadrature, a maximum, a sum."""
    if name == "risk":  # (1/θ) log E exp θV(z + w)
        x, weight = np.polynomial.hermite_e.hermegauss(60)
        nodes = np.stack(np.meshgrid(x, x), axis=-1) @ np.linalg.cholesky(SIGMA2).T
        weights = np.outer(weight, weight) / weight.sum() ** 2
        return np.log(np.sum(weights * np.exp(RISK * value(z + nodes)))) / RISK
    noise = np.sum(P2 * SIGMA2)
    if name == "game":  # max_d E V(z + h d + w) - Γ d²/γ
        return noise - minimize(lambda d: 0.8 * d[0] ** 2 / GAMMA - value(z + GUST * d[0]), 0.1).fun
    corners = [z + i * SHAKE * a + j * STIR @ s for i in (-1, 1) for j in (-1, 1)]
    return noise + np.mean([value(corner) for corner in corners])


@pytest.mark.parametrize("name", CLASSES)
def test_other_classes_are_the_same_kernel(name):
    """Bellman's or Isaacs' equation, minimiser and A*, each from the definition of the class."""
    with precision.x64():
        system = quadratic.build(
            ConverseArm(n=1), P=P2, Q=Q2, R=R2, gamma=GAMMA, p=0.8, Sigma=SIGMA2, **CLASSES[name]
        )
        assert consistency.contradiction(system) is None
        s, a, found = at_random(system)
        moved = cojax.rebuild(cojax.rebuild(system, p=0.5), p=0.8)
        for x, y in zip(jax.tree.leaves(system), jax.tree.leaves(moved), strict=True):
            np.testing.assert_allclose(x, y, rtol=1e-13, atol=1e-15)
        plain = quadratic.build(
            ConverseArm(n=1), P=P2, Q=Q2, R=R2, gamma=GAMMA, p=0.8, Sigma=SIGMA2
        )
        np.testing.assert_allclose(system.state_bound(3.0), plain.state_bound(3.0), rtol=1e-12)
    with pytest.raises(ValueError, match=r"Sigma: ._hat depends on it"):
        cojax.rebuild(system, Sigma=1.0)
    with pytest.raises(ValueError, match="system: expected P̂ = P"):
        cojax.fixtures.from_system(system, id="other")
    P, offset = np.asarray(system.P), float(system.offset)

    def value(x):
        return np.sum(x @ P * x, axis=-1) + offset

    for i, state in enumerate(s):

        def q(a, s=state, f=found["drift"][i]):
            z = f + 0.8 * np.array([0.0, np.cos(s[0]) * a[0]])
            return s @ Q2 @ s + a @ R2 @ a + GAMMA * expectation_in_numpy(name, value, s, a, z)

        best = minimize(q, found["optimal_action"][i] + 0.3, tol=1e-12)
        assert best.fun == pytest.approx(value(state), rel=1e-9)
        np.testing.assert_allclose(best.x, found["optimal_action"][i], atol=1e-5)
        assert q(a[i]) - value(state) == pytest.approx(found["advantage"][i], rel=1e-8)


@pytest.mark.parametrize("name", ["arm-authors", "arm-general", "nvdex-sqrt"])
def test_numerical_minimisation_finds_the_optimal_action(name):
    with precision.x64():
        system = SYSTEMS[name]()
        q = jax.jit(jax.value_and_grad(lambda a, s: oracle.q_value(system, s, a)))
        s, _, expected = at_random(system)
        for i, state in enumerate(s):
            start = np.random.default_rng(0).normal(size=system.action_dim)
            found = minimize(
                lambda a, x=state: tuple(map(np.asarray, q(a, x))), start, jac=True, tol=1e-14
            )
            assert relative(found.x, expected["optimal_action"][i]) < 1e-5
            assert found.fun == pytest.approx(expected["optimal_value"][i], rel=1e-9)


def manufactured_error(system, relative_error):
    """The same system with a drift that is wrong by a relative error."""
    root = system.sqrt_P_minus_Q * (1.0 + relative_error)
    return quadratic.QuadraticGaussian(**{**vars(system), "sqrt_P_minus_Q": root})


def test_a_wrong_drift_is_seen_by_the_residual():
    with precision.x64():
        system = manufactured_error(ConverseArm.build(3, 0.8), 1e-6)
        s = jnp.asarray(states(system, 1)[0])
        residual = oracle.q_value(system, s, oracle.action(system, s)) - system.value(s)
        assert abs(float(residual / system.value(s))) > 1e-7


@pytest.mark.parametrize("name", ["arm-authors", "arm-sqrt", "nvdex-authors", "nvdex-general"])
def test_gradient_descent_cannot_beat_the_optimum(name):
    """Open-loop actions of the noise-free system with terminal cost V*, from random starts."""
    steps, starts = 12, 4
    with precision.x64():
        system = SYSTEMS[name]()

        def total(actions, s):
            def body(carry, a):
                s, discount = carry
                cost = discount * system.stage_cost(s, a)
                return (mean_next_state(system, s, a), discount * system.gamma), cost

            (s, discount), costs = jax.lax.scan(body, (s, 1.0), actions)
            return costs.sum() + discount * (system.value(s) - system.offset)

        evaluate = jax.jit(jax.value_and_grad(total))
        rng = np.random.default_rng(0)
        shape = (steps, system.action_dim)
        for s in states(system, starts, seed=5):
            best = float(system.value(jnp.asarray(s)) - system.offset)

            def flat(x, s=s):
                value, gradient = evaluate(jnp.asarray(x.reshape(shape)), jnp.asarray(s))
                return float(value), np.asarray(gradient).ravel()

            found = minimize(
                flat,
                0.3 * rng.normal(size=shape).ravel(),
                jac=True,
                method="L-BFGS-B",
                options={"maxiter": 2000, "maxfun": 4000, "ftol": 1e-15, "gtol": 1e-10},
            )
            assert found.fun > best * (1.0 - 1e-9)
            assert found.fun < best * (1.0 + 1e-3)


@pytest.mark.parametrize("name", ["arm-authors", "arm-sqrt", "arm-ill-conditioned", "nvdex-sqrt"])
def test_float32_jit_vmap_and_grad(name):
    """A batch equals its members; derivatives are finite, at the origin too."""
    system = SYSTEMS[name]()
    s = jnp.asarray(states(system, 6), jnp.float32)
    batch = jax.jit(jax.vmap(oracle.action, in_axes=(None, 0)))(system, s)
    single = jnp.stack([oracle.action(system, x) for x in s])
    np.testing.assert_allclose(batch, single, rtol=2e-4, atol=2e-5 * float(jnp.abs(batch).max()))

    @jax.jit
    @jax.vmap
    def derivatives(s):
        a = jnp.ones(system.action_dim)
        return (
            jax.grad(oracle.q_value, argnums=(1, 2))(system, s, a),
            jax.jacobian(oracle.action, argnums=1)(system, s),
        )

    found = derivatives(s.at[0].set(0.0))
    assert all(jnp.isfinite(leaf).all() for leaf in jax.tree.leaves(found))


@pytest.mark.parametrize("name", SYSTEMS)
def test_step_has_no_factorisation(name):
    system = SYSTEMS[name]()
    s, a = jnp.zeros(system.state_dim), jnp.zeros(system.action_dim)
    text = str(jax.make_jaxpr(partial(cojax.system.step, system))(s, a, jax.random.key(0)))
    for word in ("eigh", "cholesky", "triangular_solve", "lu", "svd", "custom_linear_solve"):
        assert f" {word}[" not in text


@settings(max_examples=5)
@given(st.integers(0, 10_000), st.sampled_from(["metric", "sqrt"]))
def test_any_matrices_give_the_energy_identity(seed, form):
    rng = np.random.default_rng(seed)
    n = 2
    d = 2 * n
    P, R = random_spd(rng, d, 10 ** rng.uniform(0, 3)), random_spd(rng, n, 10.0)
    Q = rng.uniform(0.0, 1.0) * np.linalg.eigvalsh(P)[0] * np.eye(d)
    L = rng.normal(size=(d, int(rng.integers(0, d + 1))))
    with precision.x64():
        system = ConverseArm.build(
            n, rng.uniform(0.05, 1.0), P=P, Q=Q, R=R, Sigma=L @ L.T, parameterization=form
        )
        s = rng.normal(size=d)
        reference = numpy_optimum(system, s)
        drift = np.asarray(oracle.drift(system, jnp.asarray(s)))
    assert abs(drift @ reference["H"] @ drift - s @ (P - Q) @ s) < 1e-8 * (s @ P @ s)
    np.testing.assert_allclose(system.offset, 99.0 * np.trace(P @ L @ L.T), rtol=1e-10)


def test_diagonal_structure_is_kept_and_equals_the_full_computation():
    diagonal = NVDEx.build(1, preset="hard")
    assert diagonal.P.ndim == diagonal.inverse_sqrt.matrix.ndim == 1
    with precision.x64():
        system = NVDEx.build(1, preset="hard")
        s, _, found = at_random(system)
        for state, drift in zip(s, found["drift"], strict=True):
            assert relative(drift, numpy_optimum(system, state)["drift"]) < 1e-12


def replace_of_python_3_13(system, **changes):
    """What ``copy.replace`` does with a dataclass, before and after there was one."""
    return getattr(system, "__replace__", partial(dataclasses.replace, system))(**changes)


def test_rebuild_recomputes_and_replacement_raises():
    with precision.x64():
        system = ConverseArm.build(2, 0.8)
        again = cojax.rebuild(system, p=0.5, alpha0=0.3)
        expected = ConverseArm.build(2, 0.5, alpha0=0.3)
        for a, b in zip(jax.tree.leaves(again), jax.tree.leaves(expected), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-15)
    for name in ("p", "P", "R", "gamma", "geometry", "noise", "offset"):
        for replace in (dataclasses.replace, type(system).replace, replace_of_python_3_13):
            with pytest.raises(ValueError, match=rf"{name}: .*rebuild"):
                replace(system, **{name: 1.0})
    root = system.inverse_sqrt
    assert dataclasses.replace(system, inverse_sqrt=root) == system
    with pytest.raises(ValueError, match="unknown 'alpha'; did you mean 'alpha0'"):
        cojax.rebuild(system, alpha=1.0)


def test_homotopy_in_p_by_vmap():
    """One program over p equals a system built for each p."""
    values = [0.3, 0.5, 0.8, 1.0]
    base = ConverseArm.build(2, 0.8)
    systems = [cojax.rebuild(base, p=p) for p in values]
    batch = jax.tree.map(lambda *x: jnp.stack(x), *cojax.envs.batching.align_shapes(systems))
    s = jnp.asarray(states(base, 1)[0], jnp.float32)
    got = jax.vmap(oracle.action, in_axes=(0, None))(batch, s)
    for row, p in zip(got, values, strict=True):
        with precision.x64():
            reference = numpy_optimum(ConverseArm.build(2, p), np.asarray(s, np.float64))
        assert relative(row, reference["action"]) < 2e-6


BAD = {
    "P": [
        (np.ones((4, 3)), "P: expected a square matrix, got shape (4, 3)"),
        (np.eye(3), "P: expected shape (4, 4), got (3, 3)"),
        (np.eye(4) + np.eye(4, k=1), "P: expected a symmetric matrix"),
        (np.diag([1.0, 1.0, 1.0, -1.0]), "P: expected a positive definite matrix"),
        (np.diag([1.0, 1.0, 1.0, np.nan]), "P: expected finite numbers"),
        ([[1.0, "x"], [0.0, 1.0]], "P: expected numbers, got 'x'"),
        ([[1.0, 2.0], [1.0]], "P: expected rows of equal length"),
        ([1.0, 2.0], "P: expected a square matrix, got shape (2,)"),
    ],
    "Q": [
        (2.0 * np.eye(4), "Q: expected Q ⪯ P"),
        (-0.1 * np.eye(4), "Q: expected a positive semidefinite matrix"),
    ],
    "R": [(0.0, "R: expected a positive definite matrix"), (np.eye(3), "R: expected shape (2, 2)")],
    "Sigma": [(-1.0, "Sigma: expected a positive semidefinite matrix")],
    "gamma": [(1.0, "gamma: expected a number in (0, 1)"), ("0.9", "gamma: expected a number")],
    "p": [(0.0, "p: expected a number in (0, 1], got 0"), (1.5, "p: expected a number in (0, 1]")],
    "n": [(0, "n: expected a whole number >= 1, got 0"), (2.5, "n: expected a whole number")],
    "alpha0": [(np.inf, "alpha0: expected a finite number, got inf")],
    "parameterization": [("metrc", "parameterization: unknown 'metrc'; did you mean 'metric'?")],
}


@pytest.mark.parametrize(
    ("field", "value", "message"), [(k, v, m) for k, cases in BAD.items() for v, m in cases]
)
def test_bad_input_gives_one_line(field, value, message):
    with pytest.raises(ValueError) as error:  # noqa: PT011  the message is checked below
        ConverseArm.build(**{"n": 2, "p": 0.8, "P": np.eye(4), "Q": 0.1, field: value})
    assert str(error.value).startswith(message)
    assert "\n" not in str(error.value)
