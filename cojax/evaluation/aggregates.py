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

from collections.abc import Callable
from typing import Any

import numpy as np
from scipy import stats

from cojax import errors
from cojax.errors import InputError
from cojax.evaluation.crossed import Student
from cojax.evaluation.intervals import CONFIDENCE, Interval, difference
from cojax.evaluation.resampling import draw_seeds, runs_of_resampled_trials
from cojax.evaluation.result import WORST, Evaluation

NUM_RESAMPLES = 2000


def scores(evaluation: Evaluation, metric: str = "relative_suboptimality") -> dict[str, np.ndarray]:
    """Scores of each policy of an ``evaluation``, (F, S, N).

    Policies of several settings are named "policy (k)". Metrics for which more is better change
    sign. Raises ValueError for an unknown metric.
    """
    errors.one_of("metric", metric, WORST)
    sign = 1.0 if WORST[metric] > 0 else -1.0
    out = {}
    for (policy, setting), members in evaluation.populations().items():
        name = policy if setting is None else f"{policy} ({setting})"
        out[name] = sign * evaluation.trials[metric][:, members]
    return out


def floors(evaluation: Evaluation, metric: str = "relative_suboptimality") -> np.ndarray:
    """Resolution floors of the fixtures of an ``evaluation`` in the units of a metric, (F,).

    No difference within them is claimed; 0 where a fixture has no certificate. Raises ValueError
    for an unknown metric.
    """
    errors.one_of("metric", metric, WORST)
    found = np.array(
        [floor or 0.0 for floor in evaluation.floors or [None] * len(evaluation.fixtures)]
    )
    if metric.startswith("relative") or metric == "paper_optgap":
        return found
    return found * evaluation.trials["optimal_value"].mean(axis=(1, 2))


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
    found = Student(
        mean=value,
        seeds=np.array([np.var(parts[0]) * S / (S - 1)] if S > 1 else []),
        sizes=np.array([1.0 + _freedom(runs)] if S > 1 else []),
        trials=float(np.var(parts[1]) * N / (N - 1)) if N > 1 else 0.0,
        cells=0.0,
        num_trials=N,
    )
    return Interval(*map(np.asarray, (value, *found.interval(confidence))))


def _freedom(runs: np.ndarray) -> float:
    """Satterthwaite's, of the variance over seeds of the fixtures where no run failed."""
    S = runs.shape[1]
    v = np.var(runs[np.isfinite(runs).all(axis=1)], axis=1)
    return float(v.sum() ** 2 / np.sum(v**2 / (S - 1))) if v.any() else S - 1.0


def performance_profile(
    x: np.ndarray,
    thresholds: Any,
    *,
    floor: Any = 0.0,
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
    floor = _floors(floor, len(x))[:, None]
    tau = np.atleast_1d(np.asarray(thresholds, np.float64))

    def within(runs: np.ndarray) -> np.ndarray:
        """For each τ, (…, τ, F, S)."""
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
    x: np.ndarray,
    y: np.ndarray,
    *,
    floor: Any = 0.0,
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
    floor = _floors(floor, F)[:, None, None]
    ours, theirs = (runs_of_resampled_trials(side, num_resamples, seed) for side in (x, y))
    of_trials = np.var(_improvement(ours, theirs, floor).mean(axis=-1))
    found = _improvement(x.mean(axis=-1), y.mean(axis=-1), floor)  # (F,)
    fewest = min(S, T)
    pi = (found * fewest + 1.0) / (fewest + 2.0)
    more = 0.5 * (S + T) - 1.0
    spread = 1.0 + more * ((1.0 - pi) / (2.0 - pi) + pi / (1.0 + pi))
    variance = np.mean(pi * (1.0 - pi) * spread) / (S * T * F) + of_trials
    return _wilson(found.mean(), pi.mean(), variance, confidence)


def _improvement(x: np.ndarray, y: np.ndarray, floor: np.ndarray) -> np.ndarray:
    """By fixture, of runs (…, F, S) and (…, F, S')."""
    a, b = x[..., :, None], y[..., None, :]
    with np.errstate(invalid="ignore"):
        tie = (a == b) | (np.abs(a - b) <= floor)
    return np.mean(np.where(tie, 0.5, a < b), axis=(-2, -1))


# --- comparisons ---------------------------------------------------------------------------------


def pairwise(
    evaluation: Evaluation, metric: str = "suboptimality", *, confidence: float = CONFIDENCE
) -> list[dict[str, Any]]:
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
    names = list(table)
    rows = []
    floor = floors(evaluation, metric)
    for f, fixture in enumerate(evaluation.fixtures):
        for i, first in enumerate(names):
            for second in names[i + 1 :]:
                row: dict[str, Any] = {"fixture": fixture, "first": first, "second": second}
                row["metric"] = metric
                row.update(compare_pair(table[first][f], table[second][f], confidence))
                row["floor"] = float(floor[f])
                rows.append(row)
    corrected = holm([row["p"] for row in rows])
    for row, p in zip(rows, corrected, strict=True):
        row["p_corrected"] = p
        row["verdict"] = verdict(row, 1.0 - confidence)
    return rows


def compare_pair(x: np.ndarray, y: np.ndarray, confidence: float = CONFIDENCE) -> dict[str, Any]:
    """The difference x - y of scores (S, N) and (S', N) on one fixture, seeds being the sample.

    Interval and p-value are those of :func:`~cojax.evaluation.intervals.difference`. With failures
    they are about the share of trials that fail, the mean difference is infinite with the sign of
    that of the shares, and so is the interval, unless the shares may be the same: then it is
    everything. Two policies of one seed each are held to McNemar's exact test.
    """
    ok = np.isfinite(x), np.isfinite(y)
    failures = tuple(int(np.sum(~z)) for z in ok)
    row: dict[str, Any] = {"failures": failures, "num_seeds": (len(x), len(y))}
    if not any(failures):
        interval, p = difference(x, y, confidence=confidence, num_resamples=NUM_RESAMPLES)
        row["difference"] = _cell(*interval)
        return {**row, "p": p, **pairing(x, y)}
    shares, p = difference(~ok[0], ~ok[1], confidence=confidence, num_resamples=NUM_RESAMPLES)
    if len(x) == len(y) == 1:
        p = _mcnemar(ok[0][0], ok[1][0])
    mean = np.sign(shares.mean) * np.inf if shares.mean != 0.0 else np.nan
    sure = p <= 1.0 - confidence
    row["difference"] = _cell(mean, mean if sure else -np.inf, mean if sure else np.inf)
    return {**row, "p": p}


def _cell(mean: Any, low: Any, high: Any) -> dict[str, float]:
    return {"mean": float(mean), "low": float(low), "high": float(high)}


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


def holm(p: list[float]) -> list[float]:
    """Holm's step-down correction (1979): p̃_(i) = max_{j<=i} min(1, (m - j + 1) p_(j))."""
    order = np.argsort(p)
    corrected = np.empty(len(p))
    running = 0.0
    for rank, index in enumerate(order):
        running = max(running, min(1.0, (len(p) - rank) * p[index]))
        corrected[index] = running
    return [float(value) for value in corrected]


def _mcnemar(x_ok: np.ndarray, y_ok: np.ndarray) -> float:
    """McNemar's exact test of which of two policies fails in more trials."""
    only_x, only_y = int(np.sum(~x_ok & y_ok)), int(np.sum(x_ok & ~y_ok))
    if only_x + only_y == 0:
        return 1.0
    return float(stats.binomtest(only_x, only_x + only_y).pvalue)


# --- parts ---------------------------------------------------------------------------------------


def _flat(runs: np.ndarray) -> np.ndarray:
    return runs.reshape(*runs.shape[:-2], -1)


def _checked(x: np.ndarray) -> np.ndarray:
    x = np.asarray(x, np.float64)
    if x.ndim != 3 or 0 in x.shape:
        raise InputError(f"scores: expected shape (fixtures, seeds, trials), got {x.shape}")
    if np.isnan(x).any():
        raise InputError("scores: expected numbers or inf for failures, got NaN")
    return x


def _floors(floor: Any, F: int) -> np.ndarray:
    floor = np.asarray(floor, np.float64)
    if floor.shape not in ((), (F,)) or not (floor >= 0.0).all():
        raise InputError(f"floor: expected one number >= 0, or {F}, got {floor}")
    return np.broadcast_to(floor, (F,))


def _percentiles(value: float, resampled: np.ndarray, confidence: float) -> Interval:
    """Percentile interval by order statistics, which infinite values leave defined."""
    ordered = np.sort(resampled, axis=0)
    tail = 0.5 * (1.0 - confidence) * (len(ordered) - 1)
    low, high = ordered[int(np.floor(tail))], ordered[int(np.ceil(len(ordered) - 1 - tail))]
    return Interval(np.asarray(value), low, high)


def _wilson(share: Any, drawn: Any, variance: Any, confidence: float) -> Interval:
    """Wilson's interval of a share, as if of ``drawn (1 - drawn)/variance`` independent runs."""
    z2 = stats.norm.ppf(0.5 * (1.0 + confidence)) ** 2
    n = drawn * (1.0 - drawn) / variance
    middle = (share + 0.5 * z2 / n) / (1.0 + z2 / n)
    half = np.sqrt(z2 / n * share * (1.0 - share) + (0.5 * z2 / n) ** 2) / (1.0 + z2 / n)
    return Interval(
        np.asarray(share), np.clip(middle - half, 0.0, share), np.clip(middle + half, share, 1.0)
    )


def verdict(row: dict[str, Any], level: float = 0.05) -> str:
    """What a comparison says: first or second better, no difference, or within the floor."""
    difference = row["difference"]["mean"]
    if abs(difference) <= row["floor"]:
        return "≤ floor"
    if not row["p_corrected"] <= level or np.isnan(difference):
        return "no difference"
    return "first better" if difference < 0 else "second better"
