from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import scope

from cojax import noise

SINGULAR = np.array([[0.4, 0.2, 0.0], [0.2, 0.1, 0.0], [0.0, 0.0, 0.3]])  # rank 2


@pytest.mark.parametrize("Sigma", [np.array([0.0, 0.5, 0.2]), SINGULAR, np.zeros(3)])
def test_covariance_stated_and_drawn(Sigma):
    model = noise.white(Sigma, (1, 2, 0), np.dtype("float32"))
    full = Sigma if Sigma.ndim == 2 else np.diag(Sigma)
    stated = np.asarray(model.covariance())
    np.testing.assert_allclose(stated if stated.ndim == 2 else np.diag(stated), full, atol=1e-7)
    w = jax.vmap(lambda k: model.sample(k, jnp.zeros(3)))(
        jax.random.split(jax.random.key(0), 40_000)
    )
    np.testing.assert_allclose(np.cov(w.T), full, atol=0.012)
    assert abs(w.mean(axis=0)).max() < 0.015


def test_rows_without_noise_stay_exactly_zero():
    model = noise.white(np.array([0.0, 0.5, 0.0, 0.2]), (1, 3, 0, 2), np.dtype("float32"))
    w = model.sample(jax.random.key(0), jnp.zeros(4))
    assert w[0] == 0.0
    assert w[2] == 0.0
    assert model.rows == (1, 3)


def test_rank_of_a_singular_covariance():
    model = noise.white(SINGULAR, (0, 1, 2), np.dtype("float32"))
    assert model.L.shape == (3, 2)


def test_float64_meets_the_disturbances_of_float32():
    draws = []
    for dtype in ("float32", "float64"):
        with scope(dtype):
            model = noise.white(np.array([0.5, 0.2]), (0, 1), np.dtype(dtype))
            draws.append(np.asarray(model.sample(jax.random.key(3), jnp.zeros(2))))
    np.testing.assert_allclose(draws[0], draws[1], rtol=2e-7)


@pytest.mark.parametrize("rows", [(0, 1, 2), (1, 3, 5), (4, 0, 2), (5,), ()])
def test_scatter(rows):
    x = np.arange(1.0, 1.0 + len(rows))
    expected = np.zeros(6)
    expected[list(rows)] = x
    np.testing.assert_array_equal(noise.scatter(jnp.asarray(x), rows, 6), expected)
