from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import random_spd, relative, scope
from hypothesis import given
from hypothesis import strategies as st

from cojax import inverse_sqrt, linalg

CONDITIONS = [1.0001, 2.0, 10.0, 300.0, 3e3, 1e5]


def case(condition: float, d: int = 10, seed: int = 0):
    """A, D (diagonal, on half the rows), u and the float64 answer."""
    rng = np.random.default_rng(seed)
    A = random_spd(rng, d, condition)
    D = np.r_[np.zeros(d // 2), rng.uniform(0.0, 0.5, d - d // 2)]
    u = rng.normal(size=d)
    w, V = np.linalg.eigh(A + np.diag(D))
    lo, hi = np.linalg.eigvalsh(A)[0], np.linalg.eigvalsh(A)[-1] + D.max()
    return A, D, u, lo, hi, (V * w**-0.5) @ (V.T @ u)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("condition", CONDITIONS)
def test_inverse_sqrt_against_eigh(condition, dtype):
    A, D, u, lo, hi, expected = case(condition)
    with scope(dtype):
        root = inverse_sqrt.choose(A, lo, hi, np.dtype(dtype))
        y = root(lambda v: jnp.asarray(D, dtype) * v, jnp.asarray(u, dtype))
    eps = np.finfo(dtype).eps
    # the spectrum itself is only known to eps in A: relative error up to eps κ/2 in y
    assert relative(y, expected) < eps * (64.0 + 4.0 * condition**0.5)


def test_method_follows_the_condition():
    names = [inverse_sqrt.choose(np.eye(2), 1.0, c, np.dtype("float32")).name for c in (10.0, 1e4)]
    assert names == ["chebyshev", "newton-schulz"]


@pytest.mark.parametrize("condition", [3.0, 3e3])
def test_diagonal_is_the_full_answer(condition):
    d = np.geomspace(1.0 / condition, 1.0, 6)
    u = np.arange(1.0, 7.0)
    full, diagonal = (
        inverse_sqrt.choose(A, d[0], 1.0, np.dtype("float32"))(
            lambda v: 0.0 * v, jnp.asarray(u, "float32")
        )
        for A in (np.diag(d), d)
    )
    np.testing.assert_allclose(full, diagonal, rtol=2e-6)


@given(st.floats(1.01, 900.0), st.floats(1e-6, 1e6))
def test_chebyshev_series_meets_its_tolerance(condition, lo):
    tolerance = 1e-9
    c = inverse_sqrt.chebyshev_coefficients(lo, condition * lo, tolerance)
    x = np.geomspace(lo, condition * lo, 200)
    t = (2.0 * x - (1.0 + condition) * lo) / ((condition - 1.0) * lo)
    assert np.abs(np.polynomial.chebyshev.chebval(t, c) * np.sqrt(x) - 1.0).max() < (
        tolerance * np.sqrt(condition) + 1e-13 * condition
    )
    assert len(c) % 2 == 1


def test_chebyshev_refuses_an_impossible_spectrum():
    with pytest.raises(ValueError, match="0 < lo < hi"):
        inverse_sqrt.chebyshev_coefficients(0.0, 1.0, 1e-8)


@pytest.mark.parametrize("condition", [10.0, 3e3])
def test_inverse_sqrt_has_clean_gradients(condition):
    """Repeated eigenvalues make the derivative of eigh NaN; products have no such points."""
    with scope("float64"):
        root = inverse_sqrt.choose(np.eye(4), 1.0 / condition, 1.0, np.dtype("float64"))

        def f(x):
            return root(lambda v: 0.0 * v * x[0], x).sum()

        np.testing.assert_allclose(jax.grad(f)(jnp.ones(4)), np.ones(4), rtol=1e-10)


@given(st.integers(1, 7), st.integers(0, 100))
def test_rotate_chain_against_matrices(n, seed):
    rng = np.random.default_rng(seed)
    x, angles = rng.normal(size=n), rng.uniform(-3.0, 3.0, max(n - 1, 0))
    expected = x.copy()
    for i, angle in enumerate(angles):
        G = np.eye(n)
        G[i : i + 2, i : i + 2] = [[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]]
        expected = G @ expected
    with scope("float64"):
        got = linalg.rotate_chain(jnp.asarray(x), jnp.asarray(angles))
    np.testing.assert_allclose(got, expected, atol=1e-13)


@given(st.integers(1, 8), st.integers(0, 100))
def test_spectral_functions(d, seed):
    rng = np.random.default_rng(seed)
    A = random_spd(rng, d, 50.0)
    np.testing.assert_allclose(linalg.sqrt_psd(A) @ linalg.sqrt_psd(A), A, atol=1e-13)
    np.testing.assert_allclose(
        linalg.inverse_sqrt_spd(A) @ linalg.sqrt_psd(A), np.eye(d), atol=1e-11
    )
    diagonal = np.diagonal(A).copy()
    np.testing.assert_allclose(linalg.sqrt_psd(diagonal), np.sqrt(diagonal))


solve_all = jax.jit(jax.vmap(linalg.solve_spd))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@given(st.integers(1, 20), st.integers(1, 5), st.floats(1.01, 1e3), st.integers(0, 2**16))
def test_solve_against_numpy(dtype, m, k, condition, seed):
    rng = np.random.default_rng(seed)
    A = np.stack([random_spd(rng, m, condition) for _ in range(2)])
    B = rng.normal(size=(2, m, k))
    with scope(dtype):
        X = solve_all(*(jnp.asarray(x, dtype) for x in (A, B)))
        assert X.dtype == dtype
    # backward stable: the residual, and not the error, is free of the condition
    residual = np.linalg.norm(A @ np.asarray(X, float) - B, axis=(1, 2))
    size = np.linalg.norm(A, axis=(1, 2)) * np.linalg.norm(X, axis=(1, 2))
    assert np.all(residual < 32.0 * np.sqrt(m) * np.finfo(dtype).eps * size)


def test_matvec_batches_into_one_product():
    A = jnp.asarray(random_spd(np.random.default_rng(0), 5), jnp.float32)
    x = jnp.asarray(np.random.default_rng(1).normal(size=(7, 5)), jnp.float32)
    np.testing.assert_allclose(jax.vmap(lambda v: linalg.matvec(A, v))(x), x @ A, rtol=2e-6)
