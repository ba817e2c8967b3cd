"""The soft optimum: against quadrature of its own Bellman equation, and where it is not known."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import random_spd

from cojax import linalg, oracle, precision
from cojax.errors import InputError
from cojax.families import Aerial, ConverseArm, DoubleIntegrator, KinematicArm, NVDEx, PointMass

ALPHA = 0.3


@pytest.mark.parametrize("build", [DoubleIntegrator.build, lambda: PointMass.build(0.7)])
def test_soft_bellman_equation_by_quadrature(build):
    """V(s) = -α log ∫ exp(-(c + γ E V(s'))/α) da and the moments of the density, on a grid in a;
    E V(s') = V(z) + tr(PΣ), V being quadratic.
    """
    with precision.x64():
        system = build()
        P, Sigma = (np.asarray(x) for x in (system.P, system.noise.covariance()))
        noise = float(np.sum(linalg.to_full(P) * linalg.to_full(Sigma)))
        m = system.action_dim
        s = jnp.asarray(np.random.default_rng(0).normal(size=system.state_dim))
        mean, covariance = (np.asarray(x) for x in oracle.soft_action(system, s, ALPHA))
        reach = 9.0 * np.sqrt(np.diag(covariance))
        axes = [c + r * np.linspace(-1.0, 1.0, 401) for c, r in zip(mean, reach, strict=True)]
        grid = np.stack(np.meshgrid(*axes, indexing="ij"), axis=-1).reshape(-1, m)

        @jax.jit
        @jax.vmap
        def q(a):
            z = oracle.mean_next_state(system, s, a)
            ahead = oracle.soft_value(system, z, ALPHA) + noise
            return system.stage_cost(s, a) + system.gamma * ahead

        values = np.asarray(q(jnp.asarray(grid)))
        density = np.exp(-(values - values.min()) / ALPHA)
        cell = np.prod([axis[1] - axis[0] for axis in axes])
        V = values.min() - ALPHA * np.log(density.sum() * cell)
        assert float(oracle.soft_value(system, s, ALPHA)) == pytest.approx(V, rel=1e-9)
    weight = density / density.sum()
    np.testing.assert_allclose(weight @ grid, mean, rtol=1e-7, atol=1e-10)
    centred = grid - mean
    found = (weight[:, None] * centred).T @ centred
    np.testing.assert_allclose(found, covariance, rtol=1e-6, atol=1e-12)


def test_full_matrices_and_the_temperature_0():
    P, R = random_spd(np.random.default_rng(0), 10, 9.0), random_spd(np.random.default_rng(1), 4)
    with precision.x64():
        system = NVDEx.build(2, P=P, Q=0.2 * P, R=R, p=0.9)
        s = jnp.asarray(np.random.default_rng(2).normal(size=10))
        G = np.stack([np.asarray(system.actuate(s, a)) for a in np.eye(4)], axis=1)
        B = R + float(system.gamma) * G.T @ P @ G
        _, covariance = oracle.soft_action(system, s, ALPHA)
        np.testing.assert_allclose(covariance, 0.5 * ALPHA * np.linalg.inv(B), rtol=1e-9)
        assert float(linalg.log_det_spd(jnp.asarray(P))) == pytest.approx(np.linalg.slogdet(P)[1])
        near = float(oracle.soft_value(system, s, 1e-12) - oracle.value(system, s))
        assert abs(near) < 1e-7


@pytest.mark.parametrize("family", [ConverseArm, Aerial, KinematicArm])
def test_where_the_curvature_depends_on_the_state_it_is_not_known(family):
    system = family.build()
    for function in (oracle.soft_action, oracle.soft_value):
        with pytest.raises(InputError, match=rf"one B for all states, which {family.family} has"):
            function(system, jnp.zeros(system.state_dim), ALPHA)
