"""Intervals against scipy and against what they promise."""

import time

import numpy as np
import pytest
from scipy import stats

from cojax.evaluation import intervals
from cojax.evaluation.intervals import METHODS, counts, interval_of_mean, interval_over_seeds


@pytest.mark.parametrize(("method", "scipys"), [("percentile", "percentile"), ("bca", "BCa")])
def test_intervals_are_those_of_scipy(method, scipys):
    x = np.random.default_rng(0).gamma(0.7, size=60)
    ours = interval_of_mean(x, method=method, num_resamples=40_000)
    theirs = stats.bootstrap(
        (x,), np.mean, method=scipys, n_resamples=40_000, rng=np.random.default_rng(1)
    ).confidence_interval
    width = theirs.high - theirs.low
    assert abs(ours.low - theirs.low) < 0.02 * width
    assert abs(ours.high - theirs.high) < 0.02 * width
    assert ours.mean == pytest.approx(x.mean())


def test_studentized_is_students_t_for_normal_data():
    x = np.random.default_rng(0).normal(size=(40, 30))
    ours = interval_of_mean(x, num_resamples=20_000)
    half = stats.t.ppf(0.975, 29) * x.std(axis=1, ddof=1) / np.sqrt(30)
    assert np.mean((ours.high - ours.low) / (2 * half)) == pytest.approx(1.0, abs=0.03)


@pytest.mark.parametrize("method", METHODS)
def test_constant_data_gives_a_point(method):
    x = np.stack([np.full(20, 0.1), np.zeros(20), np.arange(20.0)])
    mean, low, high = interval_of_mean(x, method=method, num_resamples=500)
    assert low[0] == mean[0] == high[0] == 0.1
    assert low[1] == mean[1] == high[1] == 0.0
    assert low[2] < mean[2] < high[2]
    assert interval_of_mean([3.0]) == (3.0, 3.0, 3.0)


@pytest.mark.parametrize("method", METHODS)
def test_almost_constant_data_gives_a_finite_interval(method):
    x = np.zeros(20)
    x[3] = 1.0
    mean, low, high = interval_of_mean(x, method=method)
    assert np.isfinite([low, high]).all()
    assert low <= mean <= high


def test_the_same_seed_gives_the_same_interval_and_series_are_paired():
    x = np.random.default_rng(0).normal(size=(2, 50))
    first, second = (interval_of_mean(x, seed=4) for _ in range(2))
    np.testing.assert_array_equal(first, second)
    np.testing.assert_allclose(interval_of_mean(x[1], seed=4), np.array(first)[:, 1], rtol=1e-12)
    assert np.any(interval_of_mean(x, seed=5).low != first.low)
    assert (counts(50, 100, 0).sum(axis=1) == 50).all()


def test_seeds_are_resampled_with_the_trials():
    rng = np.random.default_rng(0)
    of_seeds, of_trials = rng.normal(size=(2000, 12, 1)), rng.normal(size=(2000, 1, 40))
    x = of_seeds[0] + 0.01 * of_trials[0]
    across, within = interval_over_seeds(x), interval_of_mean(x.mean(axis=0))
    assert across.high - across.low > 50 * (within.high - within.low)
    for num_seeds in (4, 12):  # trials are shared: 12 seeds do not make them 480
        shared = 0.01 * of_seeds[0, :num_seeds] + of_trials[0]
        wide, alone = interval_over_seeds(shared), interval_of_mean(of_trials[0, 0])
        assert (wide.high - wide.low) / (alone.high - alone.low) == pytest.approx(1.0, abs=0.1)
    assert np.ptp(interval_over_seeds(np.ones((3, 5)))) == 0.0


@pytest.mark.parametrize(("log_sd", "stated"), [(0.5, 0.921), (1.0, 0.828)])
def test_coverage_over_four_skewed_seeds_is_as_stated(log_sd, stated):
    rng = np.random.default_rng(1)
    effects = np.exp(log_sd * rng.normal(size=(1000, 4, 1)))
    x = effects + 0.1 * rng.normal(size=(1000, 1, 32))
    _, low, high = interval_over_seeds(x, num_resamples=10)
    true = np.exp(log_sd**2 / 2)
    covered = np.mean((low <= true) & (true <= high))
    assert covered == pytest.approx(stated, abs=0.03)
    assert f"{100 * stated:.1f}" in intervals.__doc__


def test_speed():
    x = np.random.default_rng(0).gamma(2.0, size=(50, 256))
    interval_of_mean(x[:1])
    start = time.process_time()
    interval_of_mean(x)
    assert time.process_time() - start < 2.0


@pytest.mark.parametrize(
    ("values", "options", "words"),
    [
        ([], {}, "at least one trial"),
        ([1.0, np.nan], {}, "finite"),
        ([1.0, 2.0], {"method": "bcaa"}, "did you mean 'bca'"),
        ([1.0, 2.0], {"confidence": 1.0}, "confidence"),
    ],
)
def test_bad_input_is_one_line(values, options, words):
    with pytest.raises(ValueError, match=words):
        interval_of_mean(values, **options)
