"""Statistics over many fixtures, seeds and trials, for a cost-like metric: less is better.

Scores have shape (F, S, N): fixtures, training seeds, trials; a failed trial is +inf. The score of
a run (fixture, seed) is its mean over trials, so a run with a failed trial scores +inf and ranks
last. Intervals resample seeds, fixtures and trials, crossed as the evaluation crosses them: every
seed and every fixture meets the same trial streams.

Definitions of IQM, performance profile and probability of improvement are those of Agarwal et al.,
Deep RL at the Edge of the Statistical Precipice (2021). Their "optimality gap", the mean shortfall
from a score of 1, is another thing than the gap to V* measured here, and is not offered.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from scipy import stats

from cojax import inputs
from cojax.evaluation.intervals import (
    CONFIDENCE,
    Interval,
    counts,
    interval_of_mean,
    interval_over_seeds,
)
from cojax.evaluation.result import CONTROLLED, WORST, Evaluation
from cojax.evaluation.tables import verdict
from cojax.inputs import InputError

NUM_RESAMPLES = 2000


def scores(evaluation: Evaluation, metric: str = "relative_suboptimality") -> dict[str, np.ndarray]:
    """Scores of each policy of an ``evaluation``, (F, S, N).

    Policies of several settings are named "policy (k)". Metrics for which more is better change
    sign. Raises ValueError for an unknown metric.
    """
    inputs.one_of("metric", metric, WORST)
    sign = 1.0 if WORST[metric] > 0 else -1.0
    out = {}
    for (policy, setting), members in evaluation.populations().items():
        name = policy if setting is None else f"{policy} ({setting})"
        out[name] = sign * evaluation.trials[metric][:, members]
    return out


# --- statistics of a table of runs, (…, F, S) -> (…) ---------------------------------------------


def mean(runs: np.ndarray) -> np.ndarray:
    """Mean over fixtures and seeds; +inf where a run failed."""
    return np.mean(_flat(runs), axis=-1)


def median(runs: np.ndarray) -> np.ndarray:
    """Median over fixtures of the mean over seeds."""
    return np.median(np.mean(runs, axis=-1), axis=-1)


def iqm(runs: np.ndarray) -> np.ndarray:
    """Mean of the middle half of all runs: a quarter, rounded down, is cut at either end."""
    ordered = np.sort(_flat(runs), axis=-1)
    cut = ordered.shape[-1] // 4
    return np.mean(ordered[..., cut : ordered.shape[-1] - cut], axis=-1)


STATISTICS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "mean": mean,
    "median": median,
    "iqm": iqm,
}


def aggregate(
    x: np.ndarray,
    statistic: str = "iqm",
    *,
    confidence: float = CONFIDENCE,
    num_resamples: int = NUM_RESAMPLES,
    seed: int = 0,
) -> Interval:
    """A statistic of runs and its percentile interval by the hierarchical bootstrap.

    Args:
        x: scores (F, S, N); +inf for failures.
        statistic: "mean", "median" or "iqm".
        confidence, num_resamples, seed: of the bootstrap over seeds, fixtures and trials.

    Raises ValueError for an unknown statistic, or scores that are empty or NaN.
    """
    function = STATISTICS[inputs.one_of("statistic", statistic, STATISTICS)]
    x = _checked(x)
    with np.errstate(invalid="ignore"):
        resampled = function(_resampled_runs(x, num_resamples, seed))
        return _interval(function(x.mean(axis=-1)), resampled, confidence)


def performance_profile(
    x: np.ndarray,
    thresholds: Any,
    *,
    confidence: float = CONFIDENCE,
    num_resamples: int = NUM_RESAMPLES,
    seed: int = 0,
) -> Interval:
    """Share of runs with a score <= τ, for each threshold τ, with pointwise percentile bands.

    Args:
        x: scores (F, S, N); +inf for failures.
        thresholds: τ, one or several, in the units of the scores.
        confidence, num_resamples, seed: of the bootstrap over seeds, fixtures and trials.

    Raises ValueError for scores that are empty or NaN.
    """
    x = _checked(x)
    tau = np.atleast_1d(np.asarray(thresholds, np.float64))
    resampled = _flat(_resampled_runs(x, num_resamples, seed))
    shares = np.stack([np.mean(resampled <= t, axis=-1) for t in tau], axis=-1)
    share = np.array([np.mean(x.mean(axis=-1) <= t) for t in tau])
    return _interval(share, shares, confidence)


def probability_of_improvement(
    x: np.ndarray,
    y: np.ndarray,
    *,
    confidence: float = CONFIDENCE,
    num_resamples: int = NUM_RESAMPLES,
    seed: int = 0,
) -> Interval:
    """P(X < Y) + P(X = Y)/2 for runs of two algorithms on one fixture, averaged over fixtures.

    x and y have shapes (F, S, N) and (F, S', N). Two failures tie. Fixtures and trials are
    resampled for both alike, seeds apart; ``confidence``, ``num_resamples`` and ``seed`` are those
    of the bootstrap. Raises ValueError where fixtures or trials differ.
    """
    x, y = _checked(x), _checked(y)
    if x.shape[0] != y.shape[0] or x.shape[2] != y.shape[2]:
        raise InputError(
            f"scores: expected the same fixtures and trials, got {x.shape} and {y.shape}"
        )
    ours = _resampled_runs(x, num_resamples, seed)
    theirs = _resampled_runs(y, num_resamples, seed, seed + 1)
    return _interval(
        _improvement(x.mean(axis=-1), y.mean(axis=-1)), _improvement(ours, theirs), confidence
    )


def _improvement(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    a, b = x[..., :, None], y[..., None, :]
    return np.mean((a < b) + 0.5 * (a == b), axis=(-3, -2, -1))


# --- comparisons ---------------------------------------------------------------------------------


def pairwise(
    evaluation: Evaluation, metric: str = "suboptimality", *, confidence: float = CONFIDENCE
) -> list[dict[str, Any]]:
    """Every pair of policies on every fixture, paired by trial, with Holm's correction.

    Args:
        evaluation: what :func:`cojax.evaluate` gave.
        metric: one of its metrics, in its units.
        confidence: of the intervals; 1 - confidence is the level of ``verdict``.

    Each row holds the mean difference first - second with its interval, the p-value of a paired
    Student test over trials (over seed means where both have several seeds: Welch's test), the
    p-value corrected over all rows of the table, the correlation of the pairs, and the factor
    by which pairing reduces the variance of the difference. ``verdict`` is "first better",
    "second better", "no difference" or, where the difference is within the resolution floor of
    the fixture, "≤ floor". Pairs with failures are ranked by their share of failures and have no
    difference in means.
    """
    table = scores(evaluation, metric)
    names = list(table)
    rows = []
    for f, fixture in enumerate(evaluation.fixtures):
        value = float(evaluation.trials["optimal_value"][f].mean())
        relative = metric.startswith("relative") or metric == "paper_optgap"
        floor = (evaluation.floors[f] or 0.0) if evaluation.floors else 0.0
        for i, first in enumerate(names):
            for second in names[i + 1 :]:
                row: dict[str, Any] = {"fixture": fixture, "first": first, "second": second}
                row["metric"] = metric
                row.update(compare_pair(table[first][f], table[second][f], confidence))
                row["floor"] = floor if relative else floor * value
                rows.append(row)
    corrected = holm([row["p"] for row in rows])
    for row, p in zip(rows, corrected, strict=True):
        row["p_corrected"] = p
        row["verdict"] = verdict(row, 1.0 - confidence)
    return rows


def compare_pair(x: np.ndarray, y: np.ndarray, confidence: float = CONFIDENCE) -> dict[str, Any]:
    """The paired difference x - y of scores (S, N) and (S', N) on one fixture."""
    failures = (int(np.sum(~np.isfinite(x))), int(np.sum(~np.isfinite(y))))
    if any(failures):
        share = [np.mean(~np.isfinite(z)) for z in (x, y)]
        p = _sign_test(*(np.all(np.isfinite(z), axis=0, keepdims=True)[0] for z in (x, y)))
        worse = np.sign(share[0] - share[1]) * np.inf if share[0] != share[1] else np.nan
        cell = {"mean": float(worse), "low": float(worse), "high": float(worse)}
        return {"difference": cell, "p": p, "failures": failures}
    if x.shape[0] == y.shape[0] > 1:
        interval = interval_over_seeds(x - y, confidence=confidence, num_resamples=NUM_RESAMPLES)
    else:
        difference = x.mean(axis=0) - y.mean(axis=0)
        interval = interval_of_mean(difference, confidence=confidence)
    if min(x.shape[0], y.shape[0]) > 1:
        p = _p_value(stats.ttest_ind, x.mean(axis=1), y.mean(axis=1), equal_var=False)
    else:
        p = _p_value(stats.ttest_rel, x.mean(axis=0), y.mean(axis=0))
    cell = dict(zip(("mean", "low", "high"), (float(v) for v in interval), strict=True))
    return {"difference": cell, "p": p, "failures": failures, **pairing(x, y)}


def pairing(x: np.ndarray, y: np.ndarray) -> dict[str, float | None]:
    """Correlation over trials of two policies' scores, and (var x + var y)/var(x - y)."""
    a, b = x.mean(axis=0), y.mean(axis=0)
    variances = a.var(), b.var(), (a - b).var()
    if min(variances) <= 0.0:
        return {"pairing_correlation": None, "variance_reduction": None}
    return {
        "pairing_correlation": float(np.corrcoef(a, b)[0, 1]),
        "variance_reduction": float((variances[0] + variances[1]) / variances[2]),
    }


def estimator_efficiency(evaluation: Evaluation, share: float = 0.05) -> list[dict[str, Any]]:
    """How many trials each estimator of the gap needs for one interval width.

    The width is ± ``share`` of the advantage-exact mean, so N = (1.96 sd/(share · mean))², with
    the sd over trials of each estimator, its square averaged over seeds; ``ratio`` is
    tail-corrected over advantage-exact. ``agree``: the interval of the paired difference of these
    two holds 0. An evaluation with ``controls`` also has ``controlled``, the advantage-exact one
    with control variates, ``controlled_ratio``, tail-corrected over it, and ``controlled_agree``.
    Policies with failures or without a gap are left out.
    """
    table = scores(evaluation, "suboptimality")
    others = {
        "advantage_exact": table,
        "tail_corrected": scores(evaluation, "tail_corrected"),
        "return_difference": scores(evaluation, "coupled_regret"),
    }
    if CONTROLLED in evaluation.trials:
        others["controlled"] = {
            name: evaluation.trials[CONTROLLED][:, members]
            for name, members in zip(table, evaluation.populations().values(), strict=True)
        }
    rows = []
    for f, fixture in enumerate(evaluation.fixtures):
        for policy, exact in table.items():
            mean_gap = float(exact[f].mean())
            if not np.isfinite(exact[f]).all() or mean_gap <= 0.0:
                continue
            row: dict[str, Any] = {"fixture": fixture, "policy": policy, "mean": mean_gap}
            for name, estimates in others.items():
                variance = float(np.mean(estimates[policy][f].var(axis=1, ddof=1)))
                row[name] = (1.96 / (share * mean_gap)) ** 2 * variance
            corrected = others["tail_corrected"][policy][f]
            row["agree"] = _agree(corrected, exact[f])
            row["ratio"] = row["tail_corrected"] / max(row["advantage_exact"], 1e-300)
            if "controlled" in others:
                row["controlled_agree"] = _agree(corrected, others["controlled"][policy][f])
                row["controlled_ratio"] = row["tail_corrected"] / max(row["controlled"], 1e-300)
            rows.append(row)
    return rows


def _agree(x: np.ndarray, y: np.ndarray) -> bool:
    """Whether the interval of the paired difference of (S, N) scores holds 0."""
    low, high = interval_over_seeds(x - y)[1:]
    return bool(low <= 0.0 <= high)


def holm(p: list[float]) -> list[float]:
    """Holm's step-down correction (1979): p̃_(i) = max_{j<=i} min(1, (m - j + 1) p_(j))."""
    order = np.argsort(p)
    corrected = np.empty(len(p))
    running = 0.0
    for rank, index in enumerate(order):
        running = max(running, min(1.0, (len(p) - rank) * p[index]))
        corrected[index] = running
    return [float(value) for value in corrected]


def tolerance_interval(
    values: np.ndarray, share: float = 0.9, confidence: float = CONFIDENCE
) -> tuple[float, float]:
    """An interval that holds a share of all training seeds, with confidence, for normal scores.

    ``values`` are the scores of S seeds. The interval is mean ± k sd with Howe's factor (1969)
    k = z sqrt((S-1)(1 + 1/S)/χ²_{1-confidence, S-1}).
    Raises ValueError for fewer than two seeds, or scores that are not finite.
    """
    values = np.asarray(values, np.float64)
    S = values.size
    if S < 2 or not np.isfinite(values).all():
        raise InputError(f"values: expected finite scores of at least 2 seeds, got {S}")
    z = stats.norm.ppf(0.5 * (1.0 + share))
    chi2 = stats.chi2.ppf(1.0 - confidence, S - 1)
    half = z * np.sqrt((S - 1) * (1.0 + 1.0 / S) / chi2) * values.std(ddof=1)
    return float(values.mean() - half), float(values.mean() + half)


def _p_value(test: Callable[..., Any], x: np.ndarray, y: np.ndarray, **options: Any) -> float:
    """p of a test; 1 for equal data, 0 for data that differ by a constant."""
    difference = x - y if x.shape == y.shape else np.r_[x, y] - y[0]
    if np.ptp(difference) == 0.0:
        return 1.0 if difference[0] == 0.0 else 0.0
    return float(test(x, y, **options).pvalue) if x.size > 1 else 1.0


def _sign_test(x_ok: np.ndarray, y_ok: np.ndarray) -> float:
    """McNemar's exact test of which of two policies fails in more trials."""
    only_x, only_y = int(np.sum(~x_ok & y_ok)), int(np.sum(x_ok & ~y_ok))
    if only_x + only_y == 0:
        return 1.0
    return float(stats.binomtest(only_x, only_x + only_y).pvalue)


# --- resampling ----------------------------------------------------------------------------------


def _flat(runs: np.ndarray) -> np.ndarray:
    return runs.reshape(*runs.shape[:-2], -1)


def _checked(x: np.ndarray) -> np.ndarray:
    x = np.asarray(x, np.float64)
    if x.ndim != 3 or 0 in x.shape:
        raise InputError(f"scores: expected shape (fixtures, seeds, trials), got {x.shape}")
    if np.isnan(x).any():
        raise InputError("scores: expected numbers or inf for failures, got NaN")
    return x


def _resampled_runs(
    x: np.ndarray, num_resamples: int, seed: int, seed_of_seeds: int | None = None
) -> np.ndarray:
    """Tables of runs (resamples, F, S): seeds, fixtures and trials drawn with replacement."""
    F, S, N = x.shape
    weights = counts(N, num_resamples, seed)
    finite = np.isfinite(x)
    cells = np.where(finite, x, 0.0).reshape(F * S, N)
    runs = weights @ cells.T / N
    if not finite.all():
        hit = weights @ (~finite).reshape(F * S, N).T.astype(float) > 0
        runs = np.where(hit, np.inf, runs)
    runs = runs.reshape(num_resamples, F, S)
    rng = np.random.default_rng(np.random.SeedSequence([seed, F, N]))
    fixtures = rng.integers(0, F, (num_resamples, F))
    other = seed if seed_of_seeds is None else seed_of_seeds
    seeds = np.random.default_rng(np.random.SeedSequence([other, S])).integers(
        0, S, (num_resamples, S)
    )
    return runs[np.arange(num_resamples)[:, None, None], fixtures[:, :, None], seeds[:, None, :]]


def _interval(value: np.ndarray, resampled: np.ndarray, confidence: float) -> Interval:
    """Percentile interval by order statistics, which infinite values leave defined."""
    ordered = np.sort(resampled, axis=0)
    tail = 0.5 * (1.0 - confidence) * (len(ordered) - 1)
    low, high = ordered[int(np.floor(tail))], ordered[int(np.ceil(len(ordered) - 1 - tail))]
    return Interval(np.asarray(value), low, high)
