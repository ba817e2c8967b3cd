"""Laws of white noise: mean 0 and variance 1, exact by what is drawn; bad parameters."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import scope
from scipy import stats

from cojax import noise, noise_laws
from cojax.errors import InputError

CASES = {
    "gaussian": {},
    "student-t": {"nu": 3.0},
    "laplace": {},
    "uniform": {},
    "gusts": {"probability": 0.1, "ratio": 5.0},
    "impulses": {"probability": 0.05},
}
NUM = 400_000


def draws(word, num=NUM, width=2, **options):
    """Of a law in float32, shape (num, width)."""
    law = jax.tree.map(jnp.float32, noise_laws.law(word, **{**CASES[word], **options}))
    keys = jax.random.split(jax.random.key(3), num)
    return np.asarray(jax.jit(jax.vmap(lambda k: law.draw(k, (width,))))(keys), np.float64), law


@pytest.mark.parametrize("word", CASES)
def test_entries_are_white_and_bounded(word):
    xi, law = draws(word)
    spread = np.sqrt(np.var(xi**2) / NUM)  # of the mean of squares
    assert np.abs(xi.mean(axis=0)).max() < 5.0 / np.sqrt(NUM)
    assert np.abs((xi**2).mean(axis=0) - 1.0).max() < 5.0 * spread
    assert abs((xi[:, 0] * xi[:, 1]).mean()) < 5.0 * np.std(xi[:, 0] * xi[:, 1]) / np.sqrt(NUM)
    assert np.abs(xi).max() <= float(law.bound())


@pytest.mark.parametrize("word", [w for w in CASES if w != "gaussian"])
def test_a_law_is_not_another(word):
    """Distribution against SciPy's, at a level that a Gaussian in its place would not pass."""
    xi = draws(word, 40_000, 1)[0][:, 0]
    half, third = np.sqrt(0.5), np.sqrt(3.0)
    share = 0.1 + 0.9 / 25.0
    gust = (0.1, share**-0.5), (0.9, share**-0.5 / 5.0)
    known = {
        "student-t": lambda x: stats.t.cdf(x * third, 3.0),
        "laplace": lambda x: stats.laplace.cdf(x, scale=half),
        "uniform": lambda x: stats.uniform.cdf(x, -third, 2.0 * third),
        "gusts": lambda x: sum(p * stats.norm.cdf(x, scale=std) for p, std in gust),
        "impulses": lambda x: 0.95 * (x >= 0.0) + 0.05 * stats.norm.cdf(x, scale=20.0**0.5),
    }[word]
    if word == "impulses":
        assert np.mean(xi == 0.0) == pytest.approx(0.95, abs=0.005)
        xi, known = xi[xi != 0.0], lambda x: stats.norm.cdf(x, scale=20.0**0.5)
    level = 1.0 - 1e-6
    assert stats.kstest(xi, known).statistic < stats.kstwo.ppf(level, len(xi))
    assert stats.kstest(xi, stats.norm.cdf).statistic > stats.kstwo.ppf(level, len(xi))


@pytest.mark.parametrize("nu", [2.05, 2.5, 4.0, 30.0])
def test_students_variance_is_that_of_what_is_drawn(nu):
    """Tails end at a probability of 2⁻²³: the sum over all values that u takes, anew in pieces."""
    law = noise_laws.law("student-t", nu=nu)
    total = 0.0
    for part in range(8):
        k = np.arange(part, noise_laws.CELLS, 8, dtype=np.float64) + 1.0
        total += np.sum(np.expm1(-2.0 / nu * np.log(k / noise_laws.CELLS)))
    assert law.scale**2 * nu * total / noise_laws.CELLS / 2.0 == pytest.approx(1.0, rel=1e-12)
    if nu > 4.0:  # where the end is out of sight
        assert law.scale == pytest.approx(np.sqrt((nu - 2.0) / nu), rel=1e-6)


def test_events_are_shared_by_the_entries_of_a_step():
    xi, _ = draws("impulses", 4_000, 3)
    hit = xi != 0.0
    assert (hit.all(axis=1) == hit.any(axis=1)).all()
    assert hit.any(axis=1).mean() == pytest.approx(0.05, abs=0.015)


@pytest.mark.parametrize("word", CASES)
@pytest.mark.parametrize("Sigma", [np.array([0.0, 0.5, 0.2]), np.full((3, 3), 0.1)])
def test_any_covariance_is_met_at_both_precisions(word, Sigma):
    law = noise_laws.law(word, **CASES[word])
    found = []
    for dtype in ("float32", "float64"):
        with scope(dtype):
            model = noise.white(Sigma, (1, 2, 0), np.dtype(dtype), law)
            assert model.covariance().dtype == dtype
            full = np.asarray(model.covariance())
            np.testing.assert_allclose(full, Sigma, atol=1e-6)
            found.append(np.asarray(model.sample(jax.random.key(1), jnp.zeros(3))))
            assert found[-1].dtype == dtype
            assert (np.abs(found[-1]) <= np.asarray(model.bound())).all()
    np.testing.assert_allclose(*found, rtol=1e-6)


@pytest.mark.parametrize(
    ("word", "options", "said"),
    [
        ("student-t", {"nu": 2.0}, r"noise.nu: expected a number in \(2, inf\), got 2"),
        ("gusts", {"probability": 1.0}, r"noise.probability: expected a number in \(0, 1\)"),
        ("gusts", {"ratio": 1.0}, r"noise.ratio: expected a number in \(1, inf\)"),
        ("laplace", {"nu": 3.0}, "nu"),
        ("cauchy", {}, "noise.model: .*cauchy"),
    ],
)
def test_what_a_law_cannot_have_is_refused(word, options, said):
    with pytest.raises(InputError, match=said):
        noise_laws.law(word, **options)
