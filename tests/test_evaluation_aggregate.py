"""Aggregate statistics against closed forms and scipy."""

import numpy as np
import pytest
from scipy import stats

from cojax.evaluation import aggregates as agg
from cojax.evaluation import targets, tolerance_interval
from cojax.evaluation.metrics import WORST
from cojax.evaluation.result import Evaluation, Member


def table(F=4, S=5, N=30, shift=0.0, seed=0):
    rng = np.random.default_rng(seed)
    return shift + rng.normal(1.0, 0.1, (F, S, 1)) + rng.normal(0.0, 0.1, (1, 1, N))


def evaluation(**policies):
    stacked = np.concatenate([x[:, None] for x in policies.values()], axis=1)
    trials = dict.fromkeys(WORST, stacked)
    trials["optimal_value"] = np.ones_like(stacked)
    trials["failed"] = (~np.isfinite(stacked)).astype(float)
    F = stacked.shape[0]
    return Evaluation(
        fixtures=tuple(f"f{i}" for i in range(F)),
        members=tuple(Member(name) for name in policies),
        trials=trials,
        horizons=np.full(F, 10),
        root=0,
        dtype="float32",
        floors=(1e-3,) * F,
    )


@pytest.mark.parametrize("statistic", ["mean", "median", "iqm"])
def test_statistics_are_scipys(statistic):
    x = table()
    runs = x.mean(axis=-1)
    expected = {
        "mean": runs.mean(),
        "median": np.median(runs.mean(axis=1)),
        "iqm": stats.trim_mean(runs.ravel(), 0.25),
    }[statistic]
    value, low, high = agg.aggregate(x, statistic)
    assert value == pytest.approx(expected)
    assert low < value < high
    again = agg.aggregate(x, statistic)
    assert (value, low, high) == again


def test_failures_rank_last_and_are_not_averaged_away():
    x = table()
    x[0, 0, 3] = np.inf
    assert agg.aggregate(x, "mean").mean == np.inf
    value, low, high = agg.aggregate(x, "iqm")
    assert np.isfinite([value, low]).all()
    assert value > agg.aggregate(table(), "iqm").mean
    x[:, 0] = np.inf
    assert agg.performance_profile(x, [1e9]).mean == pytest.approx(0.8)
    assert agg.probability_of_improvement(x, x).mean == pytest.approx(0.5)
    assert high >= value


def test_profiles_and_improvement():
    x, y = table(), table(shift=10.0, seed=1)
    profile = agg.performance_profile(x, [0.0, x.mean(axis=-1).max(), 5.0])
    assert profile.mean.tolist() == [0.0, 1.0, 1.0]
    found = agg.probability_of_improvement(x, y)
    assert (found.mean, found.high) == (1.0, 1.0)
    assert 0.8 < found.low < 0.95  # 20 runs a side, all apart, are no certainty
    runs = x[:1].mean(axis=-1)[0], (y[:1] - 10.0).mean(axis=-1)[0]
    u = stats.mannwhitneyu(*runs).statistic / 25
    found = agg.probability_of_improvement(x[:1], y[:1] - 10.0)
    assert found.mean == pytest.approx(1.0 - u)
    assert found.low <= found.mean <= found.high


def test_pairwise_is_paired_and_corrected():
    rng = np.random.default_rng(0)
    common = 10.0 * rng.normal(size=(2, 64)) + 50.0
    noise = 0.1 * rng.normal(size=(3, 2, 64))
    rows = agg.pairwise(
        evaluation(a=common + noise[0], b=common + 0.5 + noise[1], c=common + noise[2])
    )
    assert len(rows) == 6
    first = rows[0]
    assert (first["first"], first["second"], first["verdict"]) == ("a", "b", "first better")
    assert first["difference"]["low"] < -0.5 < first["difference"]["high"]
    assert first["pairing_correlation"] > 0.99
    assert first["variance_reduction"] > 1000
    assert first["p_corrected"] >= first["p"]
    assert rows[1]["verdict"] in ("no difference", "≤ floor")


def test_pairwise_respects_the_floor_and_failures():
    x = np.ones((1, 16))
    failing = x.copy()
    failing[0, :12] = np.inf
    rows = agg.pairwise(evaluation(a=x, b=x + 5e-4, c=x + 5e-3, d=failing))
    verdicts = {(r["first"], r["second"]): r["verdict"] for r in rows}
    assert verdicts["a", "b"] == "≤ floor"
    assert verdicts["a", "c"] == "first better"
    assert verdicts["a", "d"] == "first better"


def test_seeds_are_the_sample_whatever_their_numbers():
    """Two learners of one mean, whose seeds differ much more than trials do."""
    rng = np.random.default_rng(0)
    means = rng.normal(size=(400, 9, 1))
    x = means + 0.3 * rng.normal(size=(400, 9, 64))
    found = [agg.compare_pair(one[:4], one[4:]) for one in x]
    outside = [not row["difference"]["low"] <= 0.0 <= row["difference"]["high"] for row in found]
    assert 0.02 < np.mean(outside) < 0.08
    assert outside == [row["p"] < 0.05 for row in found]
    assert found[0]["num_seeds"] == (4, 5)


def test_a_seed_that_fails_is_one_seed():
    x, y = np.ones((4, 64)), np.ones((4, 64))
    x[0] = np.inf
    row = agg.compare_pair(x, y)
    assert row["failures"] == (64, 0)
    assert row["p"] > 0.3
    assert row["difference"] == {"mean": np.inf, "low": -np.inf, "high": np.inf}
    x[:] = np.inf
    row = agg.compare_pair(x, y)
    assert row["p"] == 0.0
    assert row["difference"] == {"mean": np.inf, "low": np.inf, "high": np.inf}
    single = agg.compare_pair(x[:1], y[:1])  # two policies: McNemar's test over their trials
    assert single["p"] == pytest.approx(2.0**-63)


def test_nothing_within_the_floor_is_told_apart():
    x, y = np.full((1, 2, 8), 1e-8), np.full((1, 2, 8), 3e-8)
    zero = np.zeros((1, 2, 8))
    assert agg.probability_of_improvement(x, y).mean == 1.0
    assert agg.probability_of_improvement(x, y, floor=1e-7).mean == 0.5
    assert agg.probability_of_improvement(x, y + 1.0, floor=[1e-7]).mean == 1.0
    shares = [agg.performance_profile(z, [2e-8, 1e-7], floor=1e-7).mean for z in (x, y, zero)]
    np.testing.assert_array_equal(shares, [[0.0, 1.0], [0.0, 1.0], [1.0, 1.0]])
    hits = targets.steps_to_targets([1, 2], [[1e-8, 0.0], [3e-8, 3e-8]], [2e-8, 1e-6], [1e-7, 1e-7])
    assert hits.tolist() == [[2.0, 1.0], [np.inf, 1.0]]
    result = evaluation(a=x[:, 0], b=y[:, 0])
    assert agg.floors(result).tolist() == [1e-3]
    result.trials["optimal_value"] = np.full((1, 2, 8), 7.0)
    assert agg.floors(result, "suboptimality").tolist() == pytest.approx([7e-3])


@pytest.mark.parametrize("statistic", ["mean", "median", "iqm"])
def test_statistics_of_few_seeds_cover(statistic):
    rng = np.random.default_rng(0)
    levels = np.array([0.1, 1.0, 3.0])[:, None, None]
    found = []
    for _ in range(300):
        x = levels * (1.0 + 0.3 * rng.normal(size=(3, 4, 1)) + 0.1 * rng.normal(size=(3, 1, 16)))
        found.append(agg.aggregate(x, statistic, num_resamples=300))
    mean, low, high = np.transpose(found)
    assert np.mean((low <= mean.mean()) & (mean.mean() <= high)) > 0.92


def test_shares_of_few_runs_have_a_width():
    x = np.ones((1, 4, 8))
    share = agg.performance_profile(x, [2.0, 0.5])
    assert share.mean.tolist() == [1.0, 0.0]
    assert share.low[0] == pytest.approx(4 / (4 + 1.96**2), abs=0.01)  # Wilson's of 4 in 4
    assert share.high[1] == pytest.approx(1 - share.low[0], abs=1e-12)
    single = agg.probability_of_improvement(x[:, :1], x[:, :1] + 1.0)
    assert (single.mean, single.high) == (1.0, 1.0)
    assert single.low < 0.5  # one run a side


def test_holm():
    assert agg.holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert agg.holm([0.9]) == [0.9]


def test_tolerance_interval_holds_the_share_it_promises():
    rng = np.random.default_rng(0)
    hits = 0
    for _ in range(2000):
        low, high = tolerance_interval(rng.normal(size=10))
        hits += stats.norm.cdf(high) - stats.norm.cdf(low) >= 0.9
    assert hits / 2000 == pytest.approx(0.95, abs=0.02)


def test_fixed_targets():
    steps = [100, 200, 300]
    gaps = [[5.0, 0.5, 0.05], [5.0, np.nan, 0.4]]
    hits = targets.steps_to_targets(steps, gaps, [1.0, 0.1])
    assert hits.tolist() == [[200.0, 300.0], [300.0, np.inf]]
    assert targets.average_runtime(hits, 300).tolist() == [250.0, 600.0]
    assert targets.average_runtime(np.full((2, 1), np.inf), 300).tolist() == [np.inf]
    assert targets.ecdf(hits, [100, 250, 1000]).tolist() == [0.0, 0.25, 0.75]
    assert targets.LADDER[0] == 10.0
    assert targets.LADDER[-1] == pytest.approx(1e-3)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: agg.aggregate(np.ones((2, 2))), "expected shape"),
        (lambda: agg.aggregate(np.full((1, 1, 1), np.nan)), "NaN"),
        (lambda: agg.aggregate(table(), "iqr"), "did you mean 'iqm'"),
        (lambda: agg.probability_of_improvement(table(), table(F=2)), "same fixtures"),
        (lambda: tolerance_interval([1.0]), "at least 2 seeds"),
        (lambda: targets.steps_to_targets([1, 2], [[1.0]]), "expected shape"),
        (lambda: targets.steps_to_targets([1], [[1.0]], floor=-1.0), "floor: expected"),
        (lambda: agg.performance_profile(table(), [1.0], floor=[1.0]), "floor: expected"),
        (lambda: targets.steps_to_targets([2, 1], [[1.0, 2.0]]), "increasing"),
        (lambda: agg.scores(evaluation(a=np.ones((1, 2))), "gap"), "metric"),
    ],
)
def test_bad_input_is_one_line(call, words):
    with pytest.raises(ValueError, match=words):
        call()
