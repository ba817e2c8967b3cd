from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import random_spd

from cojax import linalg, precision
from cojax.families import FAMILIES, Aerial, ConverseArm, KinematicArm, NVDEx, PlanarAerial
from cojax.families.arm import authors_P
from cojax.families.nvdex import PRESETS

GEOMETRIES = [
    ConverseArm(n=1),
    ConverseArm(n=4, kappa2=2.0),
    NVDEx(K=1),
    NVDEx(K=2, r_v=3, r_omega=2),
    KinematicArm(n=1),
    KinematicArm(n=3, lever=0.7),
    PlanarAerial(),
    Aerial(),
]


@pytest.mark.parametrize("geometry", GEOMETRIES, ids=lambda g: f"{g.family}-{g.state_dim}")
def test_geometry_contract(geometry):
    """S orthogonal; actuate and its transpose adjoint; |g| within its bound; rows a permutation."""
    rng = np.random.default_rng(0)
    d, m = geometry.state_dim, geometry.action_dim
    with precision.x64():
        for _ in range(5):
            s = jnp.asarray(rng.normal(size=d))
            S = jax.vmap(lambda x, s=s: geometry.rotate(s, x, 0.7))(jnp.eye(d))
            np.testing.assert_allclose(S @ S.T, np.eye(d), atol=1e-14)
            g = jax.vmap(lambda a, s=s: geometry.actuate(s, a))(jnp.eye(m)).T
            gT = jax.vmap(lambda v, s=s: geometry.actuate_transpose(s, v))(jnp.eye(d)).T
            np.testing.assert_allclose(g.T, gT, atol=1e-15)
            assert np.linalg.norm(g, 2) <= geometry.input_norm() * (1 + 1e-12)
            assert (np.abs(g.T) <= geometry.largest_input(np.float64) * (1 + 1e-12)).all()
            gram = np.asarray(g @ g.T)
            assert not geometry.one_row_each or np.array_equal(gram, np.diag(np.diag(gram)))
    assert sorted(geometry.noise_order()) == list(range(d))


def test_arm_order_of_rotations():
    """Joint rotations first, then couplings from base to tip, written out for two joints."""
    geometry = ConverseArm(n=3, alpha0=0.3, beta0=0.4, kappa1=1.1, kappa2=0.9, g0=0.5)
    s, x, p = np.array([0.3, -0.8, 1.2, 0.4, -0.5, 0.9]), np.arange(1.0, 7.0), 0.6
    expected = x.copy()

    def turn(i, j, angle):
        c, sn = np.cos(angle), np.sin(angle)
        expected[i], expected[j] = (
            c * expected[i] - sn * expected[j],
            sn * expected[i] + c * expected[j],
        )

    for i in range(3):
        theta, omega = s[2 * i], s[2 * i + 1]
        turn(2 * i, 2 * i + 1, 0.3 * p * np.tanh(1.1 * theta * omega) + 0.5 * p * np.sin(theta))
    for i in range(2):
        turn(2 * i + 1, 2 * i + 3, 0.4 * p * np.tanh(0.9 * (s[2 * i + 2] - s[2 * i])))
    with precision.x64():
        np.testing.assert_allclose(geometry.rotate(jnp.asarray(s), jnp.asarray(x), p), expected)


def test_authors_P(golden):
    for entry in golden[:5]:
        # processors add up a product in different orders: equal but for the last bits
        P = authors_P(entry["n"], entry["seed"])
        np.testing.assert_allclose(P, entry["P"], rtol=4e-15)


@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize("chain", [(1, 1), (2, 3)])
def test_spectral_radius_is_the_target(preset, chain):
    with precision.x64():
        system = NVDEx.build(1, preset=preset, r_v=chain[0], r_omega=chain[1])
        A0 = jax.jit(jax.jacobian(lambda s: system.optimum(s).drift))(jnp.zeros(system.state_dim))
    radius = np.abs(np.linalg.eigvals(np.asarray(A0))).max()
    assert radius == pytest.approx(PRESETS[preset].rho_target, rel=1e-12)


def test_tuning_against_golden(golden):
    for entry in golden[5:]:
        with precision.x64():
            system = NVDEx.build(
                entry["K"], preset=entry["difficulty"], r_v=entry["r_v"], r_omega=entry["r_omega"]
            )
            covariance = system.noise.covariance()
        np.testing.assert_allclose(system.R, entry["R_diag_after_scaling"], rtol=1e-10)
        np.testing.assert_allclose(system.Q, entry["beta"] * np.array(entry["P_diag"]), rtol=1e-10)
        np.testing.assert_allclose(covariance, entry["Sigma_diag"], rtol=1e-12)


def test_tuning_with_full_matrices():
    P = random_spd(np.random.default_rng(0), 5, 5.0)
    with precision.x64():
        system = NVDEx.build(1, P=P, R=[[0.5, 0.1], [0.1, 0.4]], rho_target=1.01)
        Q = linalg.to_full(np.asarray(system.Q))
        A0 = jax.jit(jax.jacobian(lambda s: system.optimum(s).drift))(jnp.zeros(5))
    assert np.abs(np.linalg.eigvals(np.asarray(A0))).max() == pytest.approx(1.01, rel=1e-10)
    np.testing.assert_allclose(Q / P, np.full((5, 5), Q[0, 0] / P[0, 0]), rtol=1e-10)


def test_cross_coupling_can_be_turned_off():
    with_, without = NVDEx.build(1), NVDEx.build(1, alpha_xy=0.0)
    s = jnp.array([0.1, 0.2, 0.5, 0.3, 0.1])
    x = without.geometry.rotate(s, s, 1.0)
    np.testing.assert_allclose(x[2:], s[2:], atol=2e-3)
    assert not np.allclose(with_.geometry.rotate(s, s, 1.0), x, atol=1e-3)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"K": 0}, "K: expected a whole number >= 1, got 0"),
        ({"r_v": 0}, "r_v: expected a whole number >= 1, got 0"),
        ({"tau": 0.0}, "tau: expected a number in (0, inf]"),
        ({"preset": "eazy"}, "preset: unknown 'eazy'; did you mean 'easy'?"),
        ({"Q": 0.1, "rho_target": 1.0}, "rho_target: expected none where Q is given"),
        ({"rho_target": 1e9}, "rho_target: no scale of R reaches"),
    ],
)
def test_nvdex_bad_input(options, message):
    with pytest.raises(ValueError) as error:  # noqa: PT011  the message is checked below
        NVDEx.build(**options)
    assert str(error.value).startswith(message)


def test_registry_names():
    assert {name: cls.family for name, cls in FAMILIES.items()} == {n: n for n in FAMILIES}
