"""Densities and the box of actions, beside what is known."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
from scipy import stats

from cojax.agents import distributions


def test_gaussian_density_and_entropy():
    u, mean, log_std = jnp.array([0.3, -1.0]), jnp.array([0.1, 0.5]), jnp.array([-0.7, 0.2])
    normal = stats.norm(mean, np.exp(log_std))
    log_prob = distributions.gaussian_log_prob(u, mean, log_std)
    np.testing.assert_allclose(log_prob, normal.logpdf(u).sum(), rtol=1e-6)
    np.testing.assert_allclose(
        distributions.gaussian_entropy(log_std), normal.entropy().sum(), rtol=1e-6
    )


def test_squashed_density_integrates_to_one_in_action_units():
    half = jnp.array([2.5])
    x = jnp.linspace(-9.0, 9.0, 200_001)[:, None]
    log_prob = distributions.tanh_gaussian_log_prob(x, jnp.array([0.4]), jnp.array([-0.3]), half)
    actions = np.asarray(half * jnp.tanh(x), np.float64)[:, 0]
    total = np.trapezoid(np.exp(np.asarray(log_prob, np.float64)), actions)
    assert abs(total - 1.0) < 1e-3


def test_tanh_slope_is_finite_where_tanh_saturates():
    x = jnp.array([-40.0, -9.5, 0.0, 0.3, 9.5, 40.0])
    exact = np.log(4.0) - 2.0 * np.logaddexp(x, -np.asarray(x, np.float64))
    np.testing.assert_allclose(distributions.log_tanh_slope(x), exact, rtol=1e-6, atol=1e-6)


def test_bounds_are_per_dimension_and_infinite_ones_have_unit_scale():
    box = distributions.ActionBox(jnp.array([-1.0, 0.0, -jnp.inf]), jnp.array([3.0, 0.5, jnp.inf]))
    np.testing.assert_allclose(box.half_range(), [2.0, 0.25, 1.0])
    np.testing.assert_allclose(box.to_action(jnp.ones(3)), [3.0, 0.5, 1.0])
    np.testing.assert_allclose(box.to_action(-jnp.ones(3)), [-1.0, 0.0, -1.0])
    np.testing.assert_allclose(box.clip(jnp.full(3, 9.0)), [3.0, 0.5, 9.0])
