"""Intervals against scipy and against what they promise."""

import numpy as np
import pytest
from scipy import stats

from cojax.evaluation import intervals
from cojax.evaluation.crossed import Resampled, Student, counts
from cojax.evaluation.intervals import METHODS, difference, interval_of_mean, interval_over_seeds


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


def test_few_trials_have_students_interval():
    x = np.random.default_rng(0).normal(size=(3000, 3))
    mean, low, high = interval_of_mean(x)
    half = stats.t.ppf(0.975, 2) * x.std(axis=1, ddof=1) / np.sqrt(3)
    np.testing.assert_allclose([mean - low, high - mean], [half, half], rtol=1e-9)
    assert np.mean((low <= 0.0) & (high >= 0.0)) == pytest.approx(0.95, abs=0.015)


def test_cells_that_cancel_in_rows_and_columns_still_have_a_spread():
    mean, low, high = interval_over_seeds([[20.0, 19.0], [19.0, 20.0]])
    assert mean == 19.5
    assert low < 19.5 < high
    assert np.isfinite([low, high]).all()


# --- differences ---------------------------------------------------------------------------------


def cells(rng, num_seeds, log_sd, shared):
    """Scores (S, 64) of a learner of mean 0; one seed is a fixed policy."""
    z = rng.normal(size=(num_seeds, 1))
    seeds = np.exp(log_sd * z) - np.exp(0.5 * log_sd**2) if log_sd else z
    own = seeds + 0.3 * rng.normal(size=(num_seeds, 64)) if num_seeds > 1 else 0.0
    return own + shared


def covered(num_x, num_y, log_sd=0.0, repeats=600, seed=0):
    rng = np.random.default_rng(seed)
    hits = agrees = 0
    for _ in range(repeats):
        shared = rng.normal(size=(1, 64))
        x, y = (cells(rng, S, log_sd, shared) for S in (num_x, num_y))
        (_, low, high), p = difference(x, y, num_resamples=1000)
        hits += low <= 0.0 <= high
        agrees += (low <= 0.0 <= high) == (p > 0.05)
    assert agrees == repeats
    return hits / repeats


@pytest.mark.parametrize(
    "sizes", [(2, 2), (4, 4), (2, 4), (4, 1), (1, 2), (10, 2), (10, 4), (5, 4), (10, 10)]
)
def test_differences_over_seeds_cover_whatever_the_numbers(sizes):
    assert 0.93 <= covered(*sizes) <= 0.97


def test_a_difference_is_the_textbooks():
    """Welch's test where trials add nothing; the paired test of trials for two policies."""
    rng = np.random.default_rng(1)
    x, y = rng.normal(size=(4, 1)) + 1.0, rng.normal(size=(6, 1))
    (mean, low, high), p = difference(np.repeat(x, 3, axis=1), np.repeat(y, 3, axis=1))
    welch = stats.ttest_ind(x[:, 0], y[:, 0], equal_var=False)
    assert mean == pytest.approx(x.mean() - y.mean())
    assert p == pytest.approx(welch.pvalue, rel=0.1)  # the freedom is drawn to the pooled one
    assert p >= welch.pvalue * (1 - 1e-9)
    assert low <= welch.confidence_interval().low
    assert high >= welch.confidence_interval().high
    x, y = rng.normal(size=(1, 6)) + 1.0, rng.normal(size=(1, 6))
    (_, low, high), p = difference(x, y)
    paired = stats.ttest_rel(x[0], y[0])
    assert p == pytest.approx(paired.pvalue, rel=1e-6)
    assert [low, high] == pytest.approx(list(paired.confidence_interval()), rel=1e-9)


def test_interval_and_p_agree_at_every_confidence():
    rng = np.random.default_rng(2)
    x = rng.normal(size=(10, 40)) + 0.25 * rng.normal(size=(10, 1)) + 0.1
    for sides in ([x], [x[:3]], [x[:1]], [x[:2], -x[4:]]):
        both = [Student.of(sides)] + [Resampled.of(one, 2000, 0) for one in sides]
        for found in both:
            p = found.p()
            for confidence in (0.5, 0.9, 0.95, 0.99, 1 - 1.01 * p, 1 - 0.99 * p):
                low, high = found.interval(confidence)
                if abs(1 - confidence - p) > 1e-3 or isinstance(found, Student):
                    assert (low <= 0.0 <= high) == (p > 1 - confidence), (found, confidence)


def test_pairs_of_seeds_and_what_says_nothing():
    x = np.random.default_rng(0).normal(size=(5, 8))
    (mean, low, high), p = difference(x, x + 1.0)
    assert (mean, p) == (pytest.approx(-1.0), 0.0)
    assert low == mean == high
    assert difference(x, x)[1] == 1.0
    (mean, low, high), p = difference(x[:1, :1], x[:1, :1] + 1.0)
    assert (mean, low, high, p) == (pytest.approx(-1.0), -np.inf, np.inf, 1.0)
    far = difference(x[:3], x[3:] + 1e6)[1]
    assert 0.0 < far < 1e-3
    with pytest.raises(ValueError, match="expected \\(seeds, trials\\)"):
        difference(x, x[:, 1:])


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
