"""Further families of the authors' dataset: what is known about each by another road."""

from __future__ import annotations

from functools import partial

import jax
import numpy as np
import pytest
import scipy.linalg

from cojax import precision
from cojax.errors import InputError
from cojax.families import DoubleIntegrator, Manipulator, PointMass, Unicycle
from cojax.fixtures import load_fixture, make_fixture

SHIPPED = ("unicycle", "manipulator-n2", "manipulator-n3", "point-mass", "double-integrator")


def rotation(d: int, i: int, j: int, angle: float) -> np.ndarray:
    G = np.eye(d)
    G[i, i] = G[j, j] = np.cos(angle)
    G[i, j], G[j, i] = -np.sin(angle), np.sin(angle)
    return G


def unicycle_field(s):
    x, y, phi, v, w = range(5)
    b = 0.28 * np.tanh(1.2 * s[v])
    c = 0.25 * np.tanh(1.5 * s[v] * s[w])
    turns = [(x, y, s[phi]), (x, v, b), (y, v, b), (v, w, c)]
    return turns


def manipulator_field(gains):
    def field(s):
        n = len(s) // 2
        a, b, c = gains
        turns = [(i, n + i, a * np.tanh(s[i] * s[n + i]) + b * np.sin(s[i])) for i in range(n)]
        return turns + [(n + i, n + i + 1, c * np.tanh(s[i + 1] - s[i])) for i in range(n - 1)]

    return field


def point_mass_field(s):
    b = 0.25 * np.tanh(1.2 * (abs(s[2]) + abs(s[3])))
    heading = np.arctan2(s[3], s[2] + 1e-6)
    return [(0, 1, heading), (0, 2, b), (1, 3, b), (2, 3, 0.20 * np.tanh(s[2] * s[3]))]


TWO, THREE = manipulator_field((0.35, 0.5, 0.3)), manipulator_field((0.3, 0.6, 0.28))
CASES = {
    "unicycle": (Unicycle.build, unicycle_field, [3, 4], 0.1),
    "manipulator-n2": (partial(Manipulator.build, 2), TWO, [2, 3], 0.05),
    "manipulator-n3": (partial(Manipulator.build, 3), THREE, [3, 4, 5], 0.05),
    "point-mass": (PointMass.build, point_mass_field, [2, 3], 0.08),
}


@pytest.mark.parametrize("name", CASES)
def test_drift_and_action_are_the_papers_with_matrices_written_out(name):
    """f = H^{-1/2} S (P-Q)^{1/2} s and a* = -γ p B⁻¹ gᵀ P f, in plain NumPy with full matrices."""
    build, field, rows, dt = CASES[name]
    rng = np.random.default_rng(0)
    with precision.x64():
        system = build(dtype=np.float64)
        P, Q, R = (np.diag(np.asarray(x)) for x in (system.P, system.Q, system.R))
        gamma, d = float(system.gamma), system.state_dim
        g = np.zeros((d, len(rows)))
        g[rows, range(len(rows))] = dt
        B = R + gamma * g.T @ P @ g
        H = gamma * (P - gamma * P @ g @ np.linalg.inv(B) @ g.T @ P)
        root = np.real(scipy.linalg.sqrtm(np.linalg.inv(H)))
        optimum = jax.jit(lambda s: system.optimum(s))
        for s in rng.normal(size=(5, d)):
            x = np.sqrt(P - Q) @ s
            for i, j, angle in field(s):
                x = rotation(d, i, j, angle) @ x
            f = root @ x
            found = optimum(s)
            np.testing.assert_allclose(found.drift, f, rtol=1e-9, atol=1e-12)
            action = -gamma * np.linalg.solve(B, g.T @ P @ f)
            np.testing.assert_allclose(found.action, action, rtol=1e-9, atol=1e-12)


def test_the_double_integrator_is_the_linear_system_with_its_regulator():
    A, b = np.array([[1.0, 0.05], [0.0, 1.1]]), np.array([[0.00125], [0.05]])
    gamma, Q, R = 0.99, np.diag([5.0, 1.0]), np.array([[0.05]])
    with precision.x64():
        system = DoubleIntegrator.build(dtype=np.float64)
        P, K = np.zeros((2, 2)), None
        for _ in range(3000):  # value iteration on the Riccati recursion
            K = gamma * np.linalg.solve(R + gamma * b.T @ P @ b, b.T @ P @ A)
            P = Q + gamma * A.T @ P @ (A - b @ K)
        np.testing.assert_allclose(system.P, P, rtol=1e-9)
        optimum = jax.jit(lambda s: system.optimum(s))
        for s in np.random.default_rng(1).normal(size=(5, 2)):
            np.testing.assert_allclose(optimum(s).drift, A @ s, rtol=1e-9, atol=1e-12)
            np.testing.assert_allclose(optimum(s).action, -K @ s, rtol=1e-8, atol=1e-12)


@pytest.mark.parametrize("name", SHIPPED)
def test_they_are_shipped_and_certified(name):
    fixture = load_fixture(name)
    assert fixture.certificate is not None
    assert fixture.certificate.passed
    assert fixture.action_limit is None


def test_fixture_of_a_linear_system_rebuilds_it_bit_for_bit():
    fixture = make_fixture("DoubleIntegrator", id="x", certify=False)
    with precision.x64():
        system = DoubleIntegrator.build(dtype=np.float64)
    again = fixture.system(np.float64)
    for a, b in zip(jax.tree.leaves(system), jax.tree.leaves(again), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-14)


@pytest.mark.parametrize(
    ("build", "said"),
    [
        (lambda: DoubleIntegrator.build(A=((1.0, 0.0), (0.0, -1.0))), "A: expected two rows"),
        (lambda: DoubleIntegrator.build(A=((1.0,), (0.0,))), r"A\[0\]: expected 2 numbers"),
        (lambda: DoubleIntegrator.build(b1=0.0, b2=0.0), "A: the Riccati equation"),
        (lambda: Manipulator.build(0), "n: expected a whole number >= 1, got 0"),
        (lambda: Unicycle.build(p=2.0), r"p: expected a number in \(0, 1\]"),
        (lambda: PointMass.build(Q=(1.0, 1.0, 1.0, 1.0)), "Q: expected Q ⪯ P"),
    ],
)
def test_unusable_arguments_are_refused(build, said):
    with pytest.raises(InputError, match=said):
        build()


@pytest.mark.parametrize("name", ["unicycle", "point-mass", "manipulator-n2"])
def test_a_box_without_bound_holds_the_optimal_actions_of_the_path(name):
    # at the fixed start of the first two the optimal action is 0
    params = load_fixture(name).params
    s, largest = params.initial_state.sample(jax.random.key(0)), 0.0
    for k in range(64):
        optimum = params.system.optimum(s)
        largest = max(largest, float(abs(optimum.action).max()))
        s = optimum.next_mean + params.system.sample_noise(s, jax.random.key(k))
    assert largest < float(params.action_limit.min()) < 100.0 * largest
