"""Statistics over many fixtures, seeds and trials, for a cost-like metric: less is better.

Scores have shape (F, S, N): fixtures, training seeds, trials; a failed trial is +inf. The score of
a run (fixture, seed) is its mean over trials, so a run with a failed trial scores +inf and ranks
last. Intervals are about the systems at hand: seeds are drawn within each fixture, as they are
trained apart (a stratified bootstrap), and trials for all, as every run meets the same streams.
With one seed they are about that policy, over trials alone.

Definitions of IQM, performance profile and probability of improvement are those of Agarwal et al.,
Deep RL at the Edge of the Statistical Precipice (2021). Their "optimality gap", the mean shortfall
from a score of 1, is another thing than the gap to V* measured here, and is not offered.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
from scipy import stats

from cojax import errors
from cojax.errors import InputError
from cojax.evaluation.crossed import Student, draw_seeds, runs_of_resampled_trials
from cojax.evaluation.intervals import CONFIDENCE, Interval, difference
from cojax.evaluation.metrics import METRIC, NEVER_NEGATIVE, cell_of, metrics_of, summarize, worst
from cojax.types import Float, Row

if TYPE_CHECKING:
    from cojax.evaluation.result import Evaluation

NUM_RESAMPLES = 2000
STATISTIC = "median"  # of systems, wherever several give one number
Runs = Float[np.ndarray, "*batch F S"]
Statistic = Float[np.ndarray, "*batch"] | np.floating
Scores = Float[np.ndarray, "F S N"]
Floors = npt.ArrayLike  # resolution floors, (F,) or one for all


def scores(evaluation: Evaluation, metric: str = METRIC) -> dict[str, Float[np.ndarray, "F S N"]]:
    """Scores of each policy of an ``evaluation``.

    Policies of several settings are named "policy (k)". Metrics for which more is better change
    sign. Raises ValueError for an unknown metric, and one that some system does not have.
    """
    errors.one_of("metric", metric, metrics_of(evaluation.trials))
    values = evaluation.trials[metric]
    if (lacking := np.isnan(values).any(axis=(1, 2))).any():
        system = evaluation.fixtures[int(np.argmax(lacking))]
        raise InputError(f"metric {metric}: expected one of all systems, got none of {system}")
    sign = 1.0 if worst(metric) > 0 else -1.0
    out = {}
    for (policy, setting), members in evaluation.populations().items():
        name = policy if setting is None else f"{policy} ({setting})"
        out[name] = sign * values[:, members]
    return out


def floors(evaluation: Evaluation, metric: str = METRIC) -> Float[np.ndarray, " F"]:
    """Resolution floors of the fixtures of an ``evaluation`` in the units of a metric.

    No difference within them is claimed; 0 where a fixture has no certificate. Raises ValueError
    for an unknown metric.
    """
    errors.one_of("metric", metric, metrics_of(evaluation.trials))
    values = evaluation.trials["optimal_value"]
    given = evaluation.floors or [None] * len(evaluation.fixtures)
    return np.array([in_units_of(metric, *pair) for pair in zip(given, values, strict=True)])


def in_units_of(metric: str, floor: float | None, optimal_value: npt.ArrayLike) -> float:
    """The resolution floor of a fixture, a fraction of V*, in the units of a metric."""
    floor = floor or 0.0
    if metric.startswith("relative") or metric == "paper_optgap":
        return floor
    return floor * float(np.asarray(optimal_value).mean())


# --- statistics of a table of runs, (…, F, S) -> (…) ---------------------------------------------


def mean(runs: Runs) -> Statistic:
    """Mean over fixtures and seeds; +inf where a run failed."""
    return np.mean(runs.reshape(*runs.shape[:-2], -1), axis=-1)


def median(runs: Runs) -> Statistic:
    """Median over fixtures of the mean over seeds."""
    return np.median(np.mean(runs, axis=-1), axis=-1)


def iqm(runs: Runs) -> Statistic:
    """Mean of the middle half of all runs: a quarter, rounded down, is cut at either end."""
    ordered = np.sort(runs.reshape(*runs.shape[:-2], -1), axis=-1)
    cut = ordered.shape[-1] // 4
    return np.mean(ordered[..., cut : ordered.shape[-1] - cut], axis=-1)


STATISTICS: dict[str, Callable[[Runs], Statistic]] = {"mean": mean, "median": median, "iqm": iqm}


def aggregate(
    x: Scores,
    statistic: str = "iqm",
    *,
    confidence: float = CONFIDENCE,
    num_resamples: int = NUM_RESAMPLES,
    seed: int = 0,
) -> Interval:
    """A statistic of runs and its interval, for these fixtures.

    The variance over seeds and that over trials are the bootstrap's, times S/(S-1) and N/(N-1);
    quantiles are Student's (:class:`~cojax.evaluation.crossed.Student`), with Satterthwaite's
    freedom of the seeds of all fixtures. Where failures make the statistic infinite in a resample,
    the interval is the percentile one, by order statistics.

    Args:
        x: scores (F, S, N); +inf for failures.
        statistic: "mean", "median" or "iqm".
        confidence, num_resamples, seed: of the bootstrap over seeds and trials.

    Raises ValueError for an unknown statistic, or scores that are empty or NaN.
    """
    function = STATISTICS[errors.one_of("statistic", statistic, STATISTICS)]
    x = _checked(x)
    _, S, N = x.shape
    runs = x.mean(axis=-1)
    drawn = draw_seeds(x.shape[:2], num_resamples, seed)
    over_trials = runs_of_resampled_trials(x, num_resamples, seed)
    with np.errstate(invalid="ignore"):
        value = float(function(runs))
        parts = (function(drawn(runs)) if S > 1 else value, function(over_trials))
        if not all(np.isfinite(part).all() for part in parts):
            return _percentiles(value, function(drawn(over_trials)), confidence)
    v = np.var(runs[np.isfinite(runs).all(axis=1)], axis=1)
    freedom = float(v.sum() ** 2 / np.sum(v**2 / (S - 1))) if v.any() else S - 1.0
    found = Student(
        mean=value,
        seeds=np.array([np.var(parts[0]) * S / (S - 1)] if S > 1 else []),
        sizes=np.array([1.0 + freedom] if S > 1 else []),
        trials=float(np.var(parts[1]) * N / (N - 1)) if N > 1 else 0.0,
        cells=0.0,
        num_trials=N,
    )
    return Interval(*map(np.asarray, (value, *found.interval(confidence))))


def over_systems(x: Scores, metric: str = METRIC) -> Row:
    """The one number of several systems: the median over them of the mean over seeds and trials.

    Pages, tables, terminal and Python all say this one. Its interval is :func:`aggregate`'s; of
    one system, value and interval are those of its row.

    Args:
        x: scores (F, S, N), as :func:`scores` gives them: less is better, +inf for failures.
        metric: whose scores they are; the result has its sign.

    Returns a cell ``{"mean", "low", "high"}``, the median and its 95% interval, with ``systems``,
    F, and ``complete``, how many of them no trial failed on. Raises as :func:`aggregate` does.
    """
    x = _checked(x)
    sign = 1.0 if worst(metric) > 0 else -1.0
    complete = int(np.isfinite(x).all(axis=(1, 2)).sum())
    if len(x) == 1:
        cell = summarize({metric: sign * x[0], "failed": ~np.isfinite(x[0])}, {})[metric]
    else:
        value, low, high = map(float, aggregate(x, STATISTIC))
        low = max(low, 0.0) if metric in NEVER_NEGATIVE else low
        cell = cell_of(sign * value, *sorted((sign * low, sign * high)))
    return {**cell, "systems": len(x), "complete": complete}


def performance_profile(
    x: Scores,
    thresholds: npt.ArrayLike,
    *,
    floor: Floors = 0.0,
    confidence: float = CONFIDENCE,
    num_resamples: int = NUM_RESAMPLES,
    seed: int = 0,
) -> Interval:
    """Share of runs with a score <= τ, for each threshold τ, with pointwise Wilson bands.

    With k_f of the S runs of fixture f within τ, π_f = (k_f + 1)/(S + 2) and π their mean, the
    variance of the share is Σ_f π_f(1-π_f)/(S F²) and what trials add, and the band Wilson's of
    π(1-π)/variance runs: so it has a width where all runs are within τ, or none.

    Args:
        x: scores (F, S, N); +inf for failures.
        thresholds: τ, one or several, in the units of the scores.
        floor: resolution floors, (F,) or one for all, in the units of the scores (see
            :func:`floors`): runs above 0 and within the floor of their fixture score the floor.
        confidence, num_resamples, seed: of the band, and of the bootstrap over trials.

    Raises ValueError for scores that are empty or NaN.
    """
    x = _checked(x)
    floor = each_floor(floor, len(x))[:, None]
    tau = np.atleast_1d(np.asarray(thresholds, np.float64))

    def within(runs):  # for each τ, (…, τ, F, S)
        runs = np.where((runs > 0.0) & (runs <= floor), floor, runs)
        return runs[..., None, :, :] <= tau[:, None, None]

    met = within(x.mean(axis=-1))  # (τ, F, S)
    F, S = met.shape[1:]
    drawn = runs_of_resampled_trials(x, num_resamples, seed)
    of_trials = np.var([within(runs).mean(axis=(-2, -1)) for runs in drawn], axis=0)
    pi = (met.sum(axis=-1) + 1.0) / (S + 2.0)
    variance = np.sum(pi * (1.0 - pi), axis=-1) / (S * F**2) + of_trials
    return _wilson(met.mean(axis=(-2, -1)), pi.mean(axis=-1), variance, confidence)


def probability_of_improvement(
    x: Scores,
    y: Scores,
    *,
    floor: Floors = 0.0,
    confidence: float = CONFIDENCE,
    num_resamples: int = NUM_RESAMPLES,
    seed: int = 0,
) -> Interval:
    """P(X < Y) + P(X = Y)/2 for runs of two algorithms on one fixture, averaged over fixtures.

    The variance on a fixture is that of Mann and Whitney's statistic, by Newcombe (Confidence
    intervals for an effect size measure based on the Mann-Whitney statistic, Stat. Med. 2006),

        P(1-P) (1 + ν (1-P)/(2-P) + ν P/(1+P))/(S S'),   ν = (S+S')/2 - 1,

    at P drawn to 1/2 by one run in min(S, S') + 2; what trials add joins it, and the interval is
    Wilson's.

    Args:
        x, y: scores (F, S, N) and (F, S', N). Two failures tie.
        floor: resolution floors, (F,) or one for all, in the units of the scores (see
            :func:`floors`): runs that differ by no more tie.
        confidence, num_resamples, seed: of the interval, and of the bootstrap over trials.

    Raises ValueError where fixtures or trials differ.
    """
    x, y = _checked(x), _checked(y)
    if x.shape[0] != y.shape[0] or x.shape[2] != y.shape[2]:
        raise InputError(
            f"scores: expected the same fixtures and trials, got {x.shape} and {y.shape}"
        )
    (F, S, _), T = x.shape, y.shape[1]
    floor = each_floor(floor, F)[:, None, None]
    ours, theirs = (runs_of_resampled_trials(side, num_resamples, seed) for side in (x, y))

    def improvement(x, y):  # by fixture, of runs (…, F, S) and (…, F, S')
        a, b = x[..., :, None], y[..., None, :]
        with np.errstate(invalid="ignore"):
            tie = (a == b) | (np.abs(a - b) <= floor)
        return np.mean(np.where(tie, 0.5, a < b), axis=(-2, -1))

    of_trials = np.var(improvement(ours, theirs).mean(axis=-1))
    found = improvement(x.mean(axis=-1), y.mean(axis=-1))
    fewest = min(S, T)
    pi = (found * fewest + 1.0) / (fewest + 2.0)
    more = 0.5 * (S + T) - 1.0
    spread = 1.0 + more * ((1.0 - pi) / (2.0 - pi) + pi / (1.0 + pi))
    variance = np.mean(pi * (1.0 - pi) * spread) / (S * T * F) + of_trials
    return _wilson(found.mean(), pi.mean(), variance, confidence)


# --- comparisons ---------------------------------------------------------------------------------


def pairwise(
    evaluation: Evaluation, metric: str = METRIC, *, confidence: float = CONFIDENCE
) -> list[Row]:
    """Every pair of policies on every fixture, paired by trial, with Holm's correction.

    Args:
        evaluation: what :func:`cojax.evaluate` gave.
        metric: one of its metrics, in its units.
        confidence: of the intervals; 1 - confidence is the level of ``verdict``.

    Each row holds the mean difference first - second with its interval and p-value
    (:func:`cojax.evaluation.intervals.difference`), the p-value corrected over all rows of the
    table, the correlation of the pairs, and the factor by which pairing reduces the variance of
    the difference. ``verdict`` is "first better",
    "second better", "no difference" or, where the difference is within the resolution floor of
    the fixture, "≤ floor". Pairs with failures are ranked by their share of failures and have no
    difference in means.
    """
    table = scores(evaluation, metric)
    rows = []
    for f, floor in enumerate(floors(evaluation, metric)):
        for first, second in itertools.combinations(table, 2):
            row: Row = {"fixture": evaluation.fixtures[f], "first": first, "second": second}
            row["metric"] = metric
            row |= compare_pair(table[first][f], table[second][f], confidence)
            rows.append(row | {"floor": float(floor)})
    return judged(rows, confidence)


def judged(rows: list[Row], confidence: float = CONFIDENCE) -> list[Row]:
    """Rows of :func:`compare_pair` with a ``floor``: corrected p-values and verdicts join them."""
    for row, p in zip(rows, holm([row["p"] for row in rows]), strict=True):
        row["p_corrected"] = p
        difference = row["difference"]["mean"]
        if abs(difference) <= row["floor"]:
            row["verdict"] = "≤ floor"
        elif not p <= 1.0 - confidence or np.isnan(difference):
            row["verdict"] = "no difference"
        else:
            row["verdict"] = "first better" if difference < 0 else "second better"
    return rows


def compare_pair(
    x: Float[np.ndarray, "S N"], y: Float[np.ndarray, "R N"], confidence: float = CONFIDENCE
) -> Row:
    """The difference x - y of scores (S, N) and (S', N) on one fixture, seeds being the sample.

    Interval and p-value are those of :func:`~cojax.evaluation.intervals.difference`. With failures
    they are about the share of trials that fail, the mean difference is infinite with the sign of
    that of the shares, and so is the interval, unless the shares may be the same: then it is
    everything. Two policies of one seed each are held to McNemar's exact test.
    """
    ok = np.isfinite(x), np.isfinite(y)
    failures = tuple(int(np.sum(~z)) for z in ok)
    row: Row = {"failures": failures, "num_seeds": (len(x), len(y))}
    options = {"confidence": confidence, "num_resamples": NUM_RESAMPLES}
    if not any(failures):
        interval, p = difference(x, y, **options)
        return {**row, "difference": cell_of(*interval), "p": p, **pairing(x, y)}
    shares, p = difference(~ok[0], ~ok[1], **options)
    if len(x) == len(y) == 1:
        only = [int(np.sum(fails & meets)) for fails, meets in ((~ok[0], ok[1]), (~ok[1], ok[0]))]
        p = float(stats.binomtest(only[0], sum(only)).pvalue) if any(only) else 1.0
    mean = np.sign(shares.mean) * np.inf if shares.mean != 0.0 else np.nan
    sure = p <= 1.0 - confidence
    ends = (mean, mean) if sure else (-np.inf, np.inf)
    return {**row, "difference": cell_of(mean, *ends), "p": p}


def pairing(x: Float[np.ndarray, "S N"], y: Float[np.ndarray, "R N"]) -> dict[str, float | None]:
    """Correlation over trials of two policies' scores, and (var x + var y)/var(x - y)."""
    a, b = x.mean(axis=0), y.mean(axis=0)
    variances = a.var(), b.var(), (a - b).var()
    if min(variances) <= 0.0:
        return {"pairing_correlation": None, "variance_reduction": None}
    return {
        "pairing_correlation": float(np.corrcoef(a, b)[0, 1]),
        "variance_reduction": float((variances[0] + variances[1]) / variances[2]),
    }


def holm(p: list[float]) -> list[float]:
    """Holm's step-down correction (1979): p̃_(i) = max_{j<=i} min(1, (m - j + 1) p_(j))."""
    order = np.argsort(p)
    corrected = np.empty(len(p))
    running = 0.0
    for rank, index in enumerate(order):
        running = max(running, min(1.0, (len(p) - rank) * p[index]))
        corrected[index] = running
    return [float(value) for value in corrected]


# --- parts ---------------------------------------------------------------------------------------


def _checked(x: np.ndarray) -> np.ndarray:
    x = np.asarray(x, np.float64)
    if x.ndim != 3 or 0 in x.shape:
        raise InputError(f"scores: expected shape (fixtures, seeds, trials), got {x.shape}")
    if np.isnan(x).any():
        raise InputError("scores: expected numbers or inf for failures, got NaN")
    return x


def each_floor(floor: Floors, F: int) -> Float[np.ndarray, " F"]:
    """One resolution floor for each of ``F``; raises ValueError for another number of them."""
    floor = np.asarray(floor, np.float64)
    if floor.shape not in ((), (F,)) or not (floor >= 0.0).all():
        raise InputError(f"floor: expected one number >= 0, or {F}, got {floor}")
    return np.broadcast_to(floor, (F,))


def _percentiles(value: float, resampled: Statistic, confidence: float) -> Interval:
    """Percentile interval by order statistics, which infinite values leave defined."""
    ordered = np.sort(resampled, axis=0)
    tail = 0.5 * (1.0 - confidence) * (len(ordered) - 1)
    low, high = ordered[int(np.floor(tail))], ordered[int(np.ceil(len(ordered) - 1 - tail))]
    return Interval(np.asarray(value), low, high)


def _wilson(share, drawn, variance, confidence: float) -> Interval:
    """Wilson's interval of a share, as if of ``drawn (1 - drawn)/variance`` independent runs."""
    z2 = stats.norm.ppf(0.5 * (1.0 + confidence)) ** 2
    n = drawn * (1.0 - drawn) / variance
    middle = (share + 0.5 * z2 / n) / (1.0 + z2 / n)
    half = np.sqrt(z2 / n * share * (1.0 - share) + (0.5 * z2 / n) ** 2) / (1.0 + z2 / n)
    return Interval(
        np.asarray(share), np.clip(middle - half, 0.0, share), np.clip(middle + half, share, 1.0)
    )
