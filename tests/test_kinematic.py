"""Arms with true kinematics: the construction against NumPy, minimisation, LQR and simulation."""

from __future__ import annotations

import dataclasses
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.linalg
from helpers import relative, scope
from scipy.optimize import minimize

import cojax
from cojax import consistency, inputs, linalg, oracle, precision
from cojax.errors import InputError
from cojax.families import KinematicArm
from cojax.fixtures import batches, generator, make_fixture, store
from cojax.fixtures.measure import measure
from cojax.fixtures.validator import current_versions, judge
from cojax.kinematic import KinematicGaussian
from cojax.system import next_mean, step

PLAIN = {"gravity": 0.0, "coriolis": 0.0, "lever": 0.0}
KNOBS = {"gravity": 0.7, "coriolis": 0.6, "lever": 0.8}


def general(n, **changes):
    """A full R, and a full P by the Riccati equation of a random Q."""
    rng = np.random.default_rng(n)
    L, M = rng.normal(size=(2 * n, 2 * n)), rng.normal(size=(n, n))
    options = {"Q": 0.3 * np.eye(2 * n) + 0.1 * L @ L.T, "R": 0.05 * np.eye(n) + 0.02 * M @ M.T}
    return KinematicArm.build(n, **{"gamma": 0.97, "p": 0.7, **KNOBS, **options} | changes)


def less_costly(n):
    """States cost less than P's Riccati equation says: rem has full rank."""
    system = general(n)
    P, Q, R = (linalg.to_full(np.asarray(getattr(system, x))) for x in ("P", "Q", "R"))
    return general(n, P=P, Q=0.8 * Q, R=R, parameterization="sqrt")


SYSTEMS = {
    "one": lambda: KinematicArm.build(1, **KNOBS),
    "three": lambda: KinematicArm.build(3, **KNOBS),
    "general": lambda: general(3),
    "one-way": lambda: less_costly(2),
    "one-way-one": lambda: less_costly(1),
    "weaker": lambda: cojax.rebuild(general(3), p=0.3),
}


def states(system, num=6, seed=0):
    return np.random.default_rng(seed).normal(size=(num, system.state_dim))


@jax.jit
@jax.vmap
def quantities(system, s, a):
    best = system.optimum(s)
    return best, next_mean(system, s, a, best), system.excess_cost(s, a - best.action, best)


def at(system, s, a=None):
    a = np.zeros((len(s), system.action_dim)) if a is None else a
    many = jax.tree.map(lambda x: jnp.broadcast_to(x, (len(s), *jnp.shape(x))), system)
    return jax.device_get(quantities(many, jnp.asarray(s), jnp.asarray(a)))


def host(system):
    names = ("P", "Q", "R")
    P, Q, R = (linalg.to_full(np.asarray(getattr(system, name))) for name in names)
    knobs = {k: float(getattr(system.geometry, k)) for k in ("tau", *KNOBS)}
    return P, Q, R, float(system.gamma), float(system.p), knobs


def numpy_optimum(system, s):
    """f and a* of the MN form at full P, with inverses and matrix roots, not by the code's L."""
    P, Q, R, gamma, p, knobs = host(system)
    n, tau = len(R), knobs["tau"]
    theta, omega = s[0::2], s[1::2]
    inverse = np.linalg.inv(P)
    tt, wt, ww = inverse[0::2, 0::2], inverse[1::2, 0::2], inverse[1::2, 1::2]
    C = wt @ np.linalg.inv(tt)
    K0 = (ww - C @ wt.T) / gamma
    moved = theta + tau * omega
    rem = s @ (P - Q) @ s - gamma * moved @ np.linalg.inv(tt) @ moved
    g = np.diag(tau * (1.0 - knobs["lever"] * (1.0 - np.cos(theta))))
    K = K0 + p**2 * g @ np.linalg.inv(R) @ g
    u = np.linalg.inv(scipy.linalg.sqrtm(K0 + (p * tau) ** 2 * np.linalg.inv(R))).real
    u = u @ (omega - C @ moved)
    assert u @ u == pytest.approx(rem, rel=1e-9)
    for i in range(n - 1):
        rates = np.tanh(omega[i] * omega[i + 1] * np.sin(theta[i + 1]))
        angle = p * (knobs["gravity"] * np.sin(theta[i]) + knobs["coriolis"] * rates)
        c, sn = np.cos(angle), np.sin(angle)
        u[i], u[i + 1] = c * u[i] - sn * u[i + 1], sn * u[i] + c * u[i + 1]
    root = scipy.linalg.sqrtm(K).real
    drift = np.stack([moved, C @ moved + root @ u], axis=1).ravel()
    G = np.zeros((2 * n, n))
    G[1::2] = p * g
    B = R + gamma * G.T @ P @ G
    return drift, -gamma * np.linalg.solve(B, G.T @ P @ drift), G


@pytest.mark.parametrize(("dtype", "tolerance"), [("float64", 1e-10), ("float32", 3e-6)])
@pytest.mark.parametrize("name", ["one", "three", "general"])
def test_drift_and_action_in_numpy(name, dtype, tolerance):
    with precision.x64():
        exact = SYSTEMS[name]()
        s = states(exact)
        expected = [numpy_optimum(exact, x) for x in s]
    with scope(dtype):
        system = SYSTEMS[name]()
        best, _, _ = at(system, s.astype(dtype))
        assert best.drift.dtype == dtype
        for i, (drift, action, G) in enumerate(expected):
            assert relative(best.drift[i], drift) < tolerance
            assert relative(best.action[i], action) < tolerance
            assert relative(best.next_mean[i], drift + G @ action) < tolerance


@pytest.mark.parametrize("name", SYSTEMS)
def test_minimisation_over_actions_finds_value_and_action(name):
    """c + γ E V*(f + G a + w) from the drift and G alone, by scipy."""
    with precision.x64():
        system = SYSTEMS[name]()
        s = states(system)
        a = np.random.default_rng(1).normal(size=(6, system.action_dim))
        best, mean, excess = at(system, s, a)
    P, Q, R, gamma, p, knobs = host(system)
    for i, x in enumerate(s):
        G = np.zeros((len(P), len(R)))
        G[1::2] = np.diag(p * knobs["tau"] * (1 - knobs["lever"] * (1 - np.cos(x[0::2]))))

        def q(a, x=x, f=best.drift[i], G=G):
            z = f + G @ a
            return x @ Q @ x + a @ R @ a + gamma * z @ P @ z

        found = minimize(q, np.zeros(len(R)), tol=1e-13)
        assert found.fun == pytest.approx(x @ P @ x, rel=1e-9)
        np.testing.assert_allclose(found.x, best.action[i], atol=2e-5 * abs(found.x).max())
        np.testing.assert_allclose(mean[i], best.drift[i] + G @ a[i], rtol=1e-12)
        assert q(a[i]) - x @ P @ x == pytest.approx(excess[i], rel=1e-8)


@pytest.mark.parametrize("n", [1, 4, 19])
def test_without_its_knobs_it_is_the_chain_with_its_regulator(n):
    with precision.x64():
        system = KinematicArm.build(n, 0.6, **PLAIN)
        s = states(system)
        best, _, _ = at(system, s)
    P, Q, R, gamma, p, knobs = host(system)
    A, G = np.eye(2 * n), np.zeros((2 * n, n))
    A[range(0, 2 * n, 2), range(1, 2 * n, 2)] = knobs["tau"]
    G[1::2] = p * knobs["tau"] * np.eye(n)
    root = np.sqrt(gamma)
    X = scipy.linalg.solve_discrete_are(root * A, root * G, Q, R)
    K = gamma * np.linalg.solve(R + gamma * G.T @ X @ G, G.T @ X @ A)
    np.testing.assert_allclose(P, X, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(best.drift, s @ A.T, rtol=1e-9, atol=1e-10)
    np.testing.assert_allclose(best.action, -s @ K.T, rtol=1e-8, atol=1e-10)


def test_angles_move_as_velocities_say():
    """Whatever the actions; and with noise where Sigma puts it on angles."""
    system = KinematicArm.build(3)
    keys = jax.random.split(jax.random.key(0), 32)
    s = jnp.asarray(states(system, 32), jnp.float32)
    after = jax.jit(jax.vmap(step, (None, 0, 0, 0)))
    moved = after(system, s, 5.0 * s[:, :3], keys)
    exact = jax.jit(lambda s, tau: s[:, 0::2] + tau * s[:, 1::2])(s, system.geometry.tau)
    np.testing.assert_allclose(moved[:, 0::2], exact, rtol=3e-7, atol=1e-7)
    noisy = cojax.rebuild(system, Sigma=np.full(6, 0.04))
    error = after(noisy, s, s[:, :3], jax.random.clone(keys))[:, 0::2] - exact
    assert 0.1 < float(error.std()) < 0.3


def test_simulated_costs_are_the_value_and_the_sum_of_advantages():
    """π* earns V*; a = a*/2 + 0.3 loses Σ γᵏ A*, by 20,000 paths of 30 steps."""
    with precision.x64():
        system = KinematicArm.build(2, Sigma=np.array([1e-3, 4e-2, 2e-3, 3e-2]), gamma=0.9)
        keys = jax.random.split(jax.random.key(0), 20_000)
        start = jnp.array([0.8, -0.5, -1.1, 0.7])

        @jax.jit
        def cost(keys, share, more):
            def one(key):
                def body(carry, key):
                    s, weight, total, lost = carry
                    best = system.optimum(s)
                    a = share * best.action + more
                    total = total + weight * system.stage_cost(s, a)
                    lost = lost + weight * system.excess_cost(s, a - best.action, best)
                    return (step(system, s, a, key), weight * system.gamma, total, lost), None

                zero = jnp.zeros(())
                first = (start, jnp.ones(()), zero, zero)
                (s, weight, total, lost), _ = jax.lax.scan(body, first, jax.random.split(key, 30))
                return total + weight * system.value(s), lost

            return jax.vmap(one)(keys)

        for share, more in ((1.0, 0.0), (0.5, 0.3)):
            total, lost = (np.asarray(x) for x in cost(jax.random.clone(keys), share, more))
            gap = total - lost
            error = gap.std() / len(gap) ** 0.5
            assert abs(gap.mean() - float(system.value(start))) < 4.5 * error
            assert error < 0.01 * total.mean()
            assert (lost.mean() > 20.0 * error) == (share != 1.0)


def test_derivatives_exist_where_nothing_is_left_to_turn():
    """In the origin, at rem = 0, where u vanishes, and along it; against differences."""
    for name in ("one", "three", "one-way"):
        with precision.x64():
            system = SYSTEMS[name]()
            energy = np.asarray(system.energy).T
            null = scipy.linalg.null_space(energy)[:, 0]
            slope = jax.jit(jax.jacfwd(lambda s, m=system: m.optimum(s).drift))
            back = jax.jit(jax.jacrev(lambda s, m=system: m.optimum(s).drift))
            for s in (np.zeros_like(null), null, 3.0 * null):
                found = np.asarray(slope(jnp.asarray(s)))
                assert np.isfinite(found).all()
                assert np.isfinite(back(jnp.asarray(s))).all()
                if system.one_way is None:
                    assert s @ np.asarray(system.energy) == pytest.approx(0.0, abs=1e-12)
                    eye = 1e-6 * np.eye(len(s))
                    ahead, behind = (at(system, s + x)[0].drift for x in (eye, -eye))
                    np.testing.assert_allclose(found.T, (ahead - behind) / 2e-6, atol=1e-8)


# --- what is refused -----------------------------------------------------------------------------


def rem_over_value(system, Q):
    P, _, _, gamma, _, knobs = host(system)
    F = np.eye(len(P))[0::2] + knobs["tau"] * np.eye(len(P))[1::2]
    E = P - Q - gamma * F.T @ np.linalg.inv(np.linalg.inv(P)[0::2, 0::2]) @ F
    return scipy.linalg.eigh(E, P, eigvals_only=True)


@pytest.mark.parametrize(("factor", "which"), [(1.2, 0), (0.8, 1)])
def test_a_cost_that_the_kinematics_contradict_is_refused_with_its_number(factor, which):
    system = general(2)
    Q = host(system)[1]
    with pytest.raises(InputError) as refused:
        cojax.rebuild(system, Q=factor * Q)
    assert str(refused.value).startswith("Q: expected sᵀ(P - Q)s")
    stated = float(re.search(r"got (\S+) as", str(refused.value))[1])
    assert stated == pytest.approx(rem_over_value(system, factor * Q)[which], rel=0.02)
    fixture = make_fixture("KinematicArm", id="x", n=2, certify=False)
    with pytest.raises(InputError, match="Q: expected sᵀ"):
        fixture.derive(Q=(1.0 + factor) / 2.0 * fixture.Q_matrix)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"n": 0}, "n: expected a whole number >= 1, got 0"),
        ({"tau": 0.0}, r"tau: expected a number in \(0, inf\]"),
        ({"lever": 1.5}, r"lever: expected a number in \[0, 1\], got 1.5"),
        ({"Q": -1.0}, "Q: expected a positive semidefinite"),
        ({"P": np.diag([1.0, 1.0])}, "Q: expected a positive semidefinite matrix, got smallest"),
        ({"Q": 0.0}, "the chain's Riccati equation|P: expected a positive definite"),
        ({"parameterization": "metrix"}, "parameterization: unknown"),
    ],
)
def test_bad_input(options, said):
    with pytest.raises(InputError, match=said):
        KinematicArm.build(**{"n": 1} | options)


def test_leaves_cannot_be_replaced_one_by_one_and_what_is_wrong_is_seen():
    with precision.x64():
        system = general(2)
        assert consistency.contradiction(system) is None
        assert consistency.contradiction(less_costly(2)) is None
        for name in ("carried", "energy", "K0"):
            wrong = inputs.swapped(system, **{name: 1.001 * getattr(system, name)})
            assert f"system.{name}" in str(consistency.contradiction(wrong))
        dataclasses.replace(system, energy=system.energy)
        with pytest.raises(ValueError, match="energy: leaves of a system depend"):
            dataclasses.replace(system, energy=2.0 * system.energy)
        with pytest.raises(ValueError, match=r"lever: expected a number in \[0, 1\]"):
            cojax.rebuild(system, lever=2.0)


# --- through the existing machinery --------------------------------------------------------------


def test_rebuilt_and_given_systems_are_those_that_are_built():
    with precision.x64():
        system = general(2)
        P, Q, *_ = host(system)
        for x, y in zip(
            jax.tree.leaves(cojax.rebuild(general(2, p=0.9, P=P, Q=Q), p=0.7, lever=0.2)),
            jax.tree.leaves(general(2, P=P, Q=Q, lever=0.2)),
            strict=True,
        ):
            np.testing.assert_allclose(x, y, rtol=1e-11, atol=1e-12)
        given = general(2, P=P, Q=None)  # Q is the one that makes P the regulator's
        np.testing.assert_allclose(linalg.to_full(np.asarray(given.Q)), Q, atol=1e-12)
    assert isinstance(cojax.rebuild(KinematicArm.build(2), gravity=0.1), KinematicGaussian)


def test_many_systems_are_one_trace_and_stack():
    traced = 0

    @jax.jit
    def act(system, s):
        nonlocal traced
        traced += 1
        return system.optimum(s).action

    fixtures = [
        make_fixture("KinematicArm", id=f"k{i}", certify=False, n=2, p=p, R=R, gravity=p, tau=tau)
        for i, (p, R, tau) in enumerate([(0.8, 0.05, 0.1), (0.5, 0.06, 0.1), (1.0, 0.05, 0.12)])
    ]
    s = jnp.array([0.3, -0.2, 0.5, 0.1])
    batch = cojax.stack([fixture.make_params() for fixture in fixtures])
    many = jax.jit(jax.vmap(lambda m: m.optimum(s).action))(batch.system)
    for i, fixture in enumerate(fixtures):
        own = fixture.system()
        np.testing.assert_allclose(many[i], oracle.action(own, s), rtol=2e-6)
        act(inputs.swapped(own, inverse_sqrt=own.inverse_sqrt.padded_to(16)), s)
        assert own.inverse_sqrt.length <= 16
    assert traced == 1
    assert consistency.contradiction(batch.system) is None


@pytest.fixture(scope="module")
def certified():
    options = [{"n": 1}, {"n": 2}, {"n": 2, "parameterization": "sqrt"}]
    return [
        make_fixture("KinematicArm", id=f"k{i}", horizon=48, **o) for i, o in enumerate(options)
    ]


def test_fixtures_pass_their_certificates_and_come_back(certified, tmp_path):
    for fixture in certified:
        assert fixture.certificate.failures == []
        assert fixture.certificate.checks["mean_square_bounded"].note.startswith("analytic")
        path = store.save_fixture(fixture, tmp_path / f"{fixture.id}.yaml")
        again = cojax.load_fixture(path or tmp_path / f"{fixture.id}.yaml")
        assert again == fixture
        for x, y in zip(*(jax.tree.leaves(f.system()) for f in (fixture, again)), strict=True):
            np.testing.assert_array_equal(x, y)


def test_the_validator_refuses_a_drift_that_is_wrong(certified):
    ((_, batch),) = batches.batches(certified[1:2])
    system = batch.double.system
    wrong = inputs.swapped(system, energy=(1.0 + 1e-6) * system.energy)
    broken = dataclasses.replace(batch, double=inputs.swapped(batch.double, system=wrong))
    certificate = judge(certified[1], measure(broken).member(0), current_versions())
    assert not certificate.passed
    failed = certificate.checks["bellman_residual"]
    assert (failed.verdict, failed.tolerance) == ("fail", 1e-9)
    assert 1e-7 < failed.value < 1e-5
    assert f"{failed.value:.3g}"[:3] in certificate.failures[0]


def test_the_generator_draws_them():
    settings = generator.resolve("KinematicArm", {"n": 2, "horizon": 48})
    drawn = [generator.attempt("KinematicArm", settings, (0, i, 0), f"d{i}") for i in range(2)]
    assert drawn[0].knobs["tau"] != drawn[1].knobs["tau"]
    assert drawn[0].certify().certificate.failures == []
