"""Cubic actuators and the vehicles that have them: against NumPy, minimisation and simulation."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.linalg
from helpers import relative, scope
from scipy.optimize import minimize
from scipy.spatial.transform import Rotation

import cojax
from cojax import actuators, consistency, inputs, oracle, precision, quadratic
from cojax.actuators import CubicGaussian, cubed, uncubed
from cojax.errors import InputError
from cojax.evaluation.linearised import linearisation
from cojax.families import Aerial, PlanarAerial
from cojax.fixtures import batches, generator, load_fixture, make_fixture, save_fixture
from cojax.fixtures.measure import measure
from cojax.fixtures.validator import current_versions, judge
from cojax.system import next_mean, step

KNOBS = {"drive": 0.35, "spin": 0.45, "tilt": 0.6, "turn": 0.5, "eta": 0.3}
SYSTEMS = {
    "plane": lambda: PlanarAerial.build(0.7, **KNOBS),
    "space": lambda: Aerial.build(0.7, **KNOBS, gyro=0.5),
    "general": lambda: general(),
    "sqrt": lambda: PlanarAerial.build(0.7, **KNOBS, parameterization="sqrt"),
}


def general():
    rng = np.random.default_rng(0)
    L, M, N = (rng.normal(size=(k, k)) for k in (6, 2, 6))
    P, R = np.eye(6) + 0.2 * L @ L.T, 0.02 * np.eye(2) + 0.01 * M @ M.T
    return PlanarAerial.build(P=P, Q=0.1 * P, R=R, Sigma=1e-4 * N @ N.T, **KNOBS)


# --- the map -------------------------------------------------------------------------------------


@pytest.mark.parametrize(("dtype", "tolerance"), [("float64", 1e-14), ("float32", 4e-7)])
@pytest.mark.parametrize("eta", [0.0, 1e-12, 1e-3, 0.3, 40.0])
def test_the_inverse_of_the_map(eta, dtype, tolerance):
    with scope(dtype):
        u = jnp.asarray(np.concatenate([[0.0], np.geomspace(1e-8, 1e5, 40)]), dtype)
        u = jnp.concatenate([-u, u])
        eta = jnp.asarray(eta, dtype)
        nu = jax.jit(uncubed)(u, eta)
        assert nu.dtype == dtype
        np.testing.assert_allclose(cubed(nu, eta), u, rtol=4 * tolerance)
        slope = jax.vmap(jax.grad(lambda x: uncubed(x, eta)))(u)
        np.testing.assert_allclose(slope, 1.0 / (1.0 + 3.0 * eta * nu**2), rtol=40 * tolerance)


def test_without_the_cube_it_is_the_quadratic_system_to_the_bit(monkeypatch):
    systems = [family.build(eta=0.0) for family in (PlanarAerial, Aerial)]
    monkeypatch.setattr(actuators.CubicGeometry, "assemble", quadratic.Geometry.assemble)
    for system in systems:
        other = type(system.geometry).build(eta=0.0)
        assert type(other) is quadratic.QuadraticGaussian
        s, a = states(system)[0].astype(np.float32), np.ones(system.action_dim, np.float32)
        for function in (oracle.action, oracle.value, oracle.drift):
            np.testing.assert_array_equal(function(system, s), function(other, s))
        np.testing.assert_array_equal(oracle.q_value(system, s, a), oracle.q_value(other, s, a))


# --- the systems ---------------------------------------------------------------------------------


def states(system, num=6, seed=0):
    return np.random.default_rng(seed).normal(size=(num, system.state_dim))


def turned(x, i, j, angle):
    c, sn = np.cos(angle), np.sin(angle)
    x[i], x[j] = c * x[i] - sn * x[j], sn * x[i] + c * x[j]


def numpy_field(system, s):
    """S(s) (P - Q)^{1/2} s and g(s), written out."""
    k = {name: float(getattr(system.geometry, name)) for name in system.geometry.fields()}
    P, Q = (np.diag(x) if x.ndim == 1 else x for x in map(np.asarray, (system.P, system.Q)))
    x = scipy.linalg.sqrtm(P - Q).real @ s
    if len(s) == 6:
        up = np.cos(s[2])
        turned(x, 0, 3, -k["drive"] * up)
        turned(x, 1, 4, -k["drive"] * up)
        turned(x, 2, 5, -k["spin"] * up)
        turned(x, 3, 2, k["tilt"] * up)
        turned(x, 3, 4, k["turn"] * np.tanh(s[5]))
        axis = [-np.sin(s[2]), up]
    else:
        roll, pitch = s[3], s[4]
        for i in range(3):
            turned(x, i, 6 + i, -k["drive"] * np.cos(roll) * np.cos(pitch))
            turned(x, 3 + i, 9 + i, -k["spin"] * np.cos(s[3 + i]))
        turned(x, 6, 4, -k["tilt"] * np.cos(pitch))
        turned(x, 7, 3, k["tilt"] * np.cos(roll))
        turned(x, 6, 7, k["turn"] * np.tanh(s[11]))
        turned(x, 9, 10, k["gyro"] * np.tanh(s[11]))
        axis = Rotation.from_euler("xyz", s[3:6]).as_matrix()[:, 2]  # of the body, in the world
    d, m = len(s), system.action_dim
    g = np.zeros((d, m))
    g[d // 2 : d // 2 + len(axis), 0] = axis
    g[d - m + 1 :, 1:] = np.eye(m - 1)
    return x, k["dt"] * g, k["eta"]


@jax.jit
@jax.vmap
def quantities(system, s, a):
    best = system.optimum(s)
    parts = best, next_mean(system, s, a, best), system.excess_cost(s, a - best.action, best)
    return *parts, oracle.q_value(system, s, a), best.drift + system.actuate(s, a)


def at(system, s, a):
    many = jax.tree.map(lambda x: jnp.broadcast_to(x, (len(s), *jnp.shape(x))), system)
    return jax.device_get(quantities(many, jnp.asarray(s), jnp.asarray(a)))


@pytest.mark.parametrize("name", ["plane", "space", "general"])
def test_drift_and_action_in_numpy(name):
    """f = H^{-1/2} u and the root of η ν³ + ν = a*, a* = -γ p B⁻¹ gᵀ P f, by inverses and roots."""
    with precision.x64():
        system = SYSTEMS[name]()
        s = states(system)
        best = at(system, s, np.zeros((6, system.action_dim)))[0]
    P, R = (np.diag(x) if x.ndim == 1 else x for x in map(np.asarray, (system.P, system.R)))
    gamma, p = float(system.gamma), float(system.p)
    for i, x in enumerate(s):
        u, g, eta = numpy_field(system, x)
        G = p * g
        B = R + gamma * G.T @ P @ G
        H = gamma * (P - gamma * P @ G @ np.linalg.solve(B, G.T @ P))
        drift = scipy.linalg.sqrtm(np.linalg.inv(H)).real @ u
        action = -gamma * np.linalg.solve(B, G.T @ P @ drift)
        roots = [np.roots([eta, 0.0, 1.0, -y]) for y in action]
        nu = [float(r[np.abs(r.imag).argmin()].real) for r in roots]
        assert relative(best.drift[i], drift) < 1e-10
        assert relative(best.action[i], nu) < 1e-10


@pytest.mark.parametrize("name", SYSTEMS)
def test_minimisation_over_actions_finds_value_and_action(name):
    with precision.x64():
        system = SYSTEMS[name]()
        s = states(system)
        a = np.random.default_rng(1).normal(size=(6, system.action_dim))
        best, mean, excess, q_value, pushed = at(system, s, a)
        at_best = at(system, s, best.action)
        P, Q, R = (np.diag(x) if x.ndim == 1 else x for x in
                   (np.asarray(getattr(system, k)) for k in ("P", "Q", "R")))  # fmt: skip
        gamma, p, offset = float(system.gamma), float(system.p), float(system.offset)
    for i, x in enumerate(s):
        _, g, eta = numpy_field(system, x)

        def q(nu, x=x, f=best.drift[i], g=g, eta=eta):
            u = nu + eta * nu**3
            z = f + p * g @ u
            return x @ Q @ x + u @ R @ u + gamma * z @ P @ z

        found = minimize(q, np.zeros(len(R)), tol=1e-13)
        assert found.fun == pytest.approx(x @ P @ x, rel=1e-9)
        np.testing.assert_allclose(found.x, best.action[i], atol=3e-5 * abs(found.x).max())
        nu = a[i] + eta * a[i] ** 3
        np.testing.assert_allclose(mean[i], best.drift[i] + p * g @ nu, rtol=1e-11, atol=1e-12)
        np.testing.assert_allclose(mean[i], pushed[i], rtol=1e-11, atol=1e-12)
        assert q_value[i] - offset == pytest.approx(q(a[i]), rel=1e-10)
        assert excess[i] == pytest.approx(q(a[i]) - x @ P @ x, rel=1e-8)
    np.testing.assert_array_equal(at_best[1], best.next_mean)
    assert not at_best[2].any()


def test_simulated_costs_are_the_value_and_the_sum_of_advantages():
    """ν* earns V*, and ν = 1.3 ν* + 0.4 loses Σ γᵏ A*; the sum of both is V*, by 10,000 paths."""
    with precision.x64():
        system = PlanarAerial.build(**KNOBS, gamma=0.9, Sigma=1e-3)
        start = jnp.array([0.8, -0.5, 0.6, 0.2, -0.3, 0.4])

        @jax.jit
        def cost(keys, share, more):
            def body(carry, key):
                s, weight, total, lost = carry
                best = system.optimum(s)
                a = share * best.action + more
                total = total + weight * system.stage_cost(s, a)
                lost = lost + weight * system.excess_cost(s, a - best.action, best)
                return (step(system, s, a, key), weight * system.gamma, total, lost), None

            def one(key):
                first = (start, jnp.ones(()), jnp.zeros(()), jnp.zeros(()))
                (s, weight, total, lost), _ = jax.lax.scan(body, first, jax.random.split(key, 30))
                return total + weight * system.value(s), lost

            return jax.vmap(one)(keys)

        for share, more in ((1.0, 0.0), (1.3, 0.4)):
            keys = jax.random.split(jax.random.key(0), 10_000)
            total, lost = (np.asarray(x) for x in cost(keys, share, more))
            gap = total - lost
            error = gap.std() / len(gap) ** 0.5
            assert abs(gap.mean() - float(system.value(start))) < 4.5 * error
            assert error < 0.01 * total.mean()
            assert (lost.mean() > 20.0 * error) == (share != 1.0)


def test_linear_controllers_see_the_slope_of_the_map():
    """B at the origin is p g(0), whatever η: the map's slope there is 1."""
    system = PlanarAerial.build(0.5, eta=0.7)
    g = np.zeros((6, 2))
    g[4, 0] = g[5, 1] = 0.5 * 0.1
    np.testing.assert_allclose(linearisation(system)[1], g, atol=1e-8)
    gap = cojax.evaluate(["zero", "lqr", "oracle"], cojax.make("PlanarAerial-v0")[1], 16)
    gaps = gap.trials["suboptimality"].mean(axis=-1).ravel()
    assert gaps[0] > 10.0 * gaps[1] > gaps[2] == 0.0


def test_what_can_be_reached_knows_thrust_aside_and_the_cube():
    system = PlanarAerial.build(1.0, eta=1.0)
    zero, limit = np.zeros(6, np.float32), np.array([2.0, 0.0], np.float32)
    more = system.reach(np.float32(0.0), zero, limit) - system.reach(
        0.0 * limit[0], zero, 0 * limit
    )
    np.testing.assert_allclose(more, [0, 0, 0, 1.0, 1.0, 0], atol=1e-6)  # dt φ(2) = 0.1 · 10


def test_rebuilt_stacked_and_refused():
    system = PlanarAerial.build(0.8)
    assert isinstance(cojax.rebuild(system, eta=0.0, p=0.5), CubicGaussian)
    assert consistency.contradiction(system) is None
    for wrong in (lambda: cojax.rebuild(system, eta=-0.1), lambda: Aerial.build(eta=-0.1)):
        with pytest.raises(InputError, match=r"eta: expected a number in \[0, inf\], got -0.1"):
            wrong()
    with pytest.raises(InputError, match="dt: expected a number"):
        Aerial.build(dt=0.0)
    s = jnp.asarray(states(system)[0], jnp.float32)
    members = [cojax.rebuild(system, eta=eta) for eta in (0.0, 0.2, 1.0)]
    params = cojax.make("PlanarAerial-v0")[1]
    batch = cojax.stack([inputs.swapped(params, system=member) for member in members])
    act = jax.jit(lambda m, s: m.optimum(s).action)
    many = jax.jit(jax.vmap(lambda m: m.optimum(s).action))(batch.system)
    for i, member in enumerate(members):
        np.testing.assert_allclose(many[i], act(member, s), rtol=2e-6)
    assert act._cache_size() == 1
    assert abs(many[2]).max() < abs(many[0]).max()


@pytest.fixture(scope="module")
def certified():
    return [make_fixture("PlanarAerial", id="plane", horizon=48, eta=0.3)]


def test_fixtures_pass_their_certificates_and_come_back(certified, tmp_path):
    (fixture,) = certified
    assert fixture.certificate.failures == []
    with precision.x64():
        system = fixture.system()
        slope = jax.jit(jax.jacfwd(lambda s: system.optimum(s).next_mean))(jnp.zeros(6))
    radius = np.abs(np.linalg.eigvals(slope)).max()  # A - G K, by no slope of the map
    assert fixture.difficulty.measured["closed_loop_radius"] == pytest.approx(radius, rel=1e-3)
    save_fixture(fixture, tmp_path / "plane.yaml")
    assert load_fixture(tmp_path / "plane.yaml") == fixture
    assert isinstance(fixture.system(), CubicGaussian)


def test_the_generator_draws_them():
    settings = generator.resolve("PlanarAerial", {"P": 0.7, "horizon": 48})
    drawn = [generator.attempt("PlanarAerial", settings, (0, i, 0), f"d{i}") for i in range(2)]
    assert drawn[0].knobs["eta"] != drawn[1].knobs["eta"]
    assert drawn[0].certify().certificate.failures == []
    full = generator.draw("Aerial", generator.resolve("Aerial", None), np.random.default_rng(0))
    assert full["P"].shape == (12, 12)


def test_the_validator_refuses_an_action_that_forgets_the_map(certified, monkeypatch):
    ((_, batch),) = batches.batches(certified)
    system = batch.double.system
    monkeypatch.setattr(actuators, "uncubed", lambda u, eta: u)
    geometry = dataclasses.replace(system.geometry, drive=1.0000001 * system.geometry.drive)
    double = inputs.swapped(batch.double, system=inputs.swapped(system, geometry=geometry))
    jax.clear_caches()
    certificate = judge(
        certified[0],
        measure(dataclasses.replace(batch, double=double)).member(0),
        current_versions(),
    )
    jax.clear_caches()
    failed = certificate.checks["stationarity"]
    assert (failed.verdict, failed.tolerance) == ("fail", 1e-8)
    assert failed.value > 1e-3
    assert "bellman_residual" in str(certificate.failures)
