"""Confidence intervals of means by the bootstrap, vectorised and paired.

Every series of one table is resampled by the same draws of trials (and of seeds), so intervals of
differences between policies are intervals of paired differences. A resample is held as counts, one
for each trial, which makes all resampled means of all series one matrix product.

Methods (Efron and Tibshirani, An Introduction to the Bootstrap, 1993, ch. 12-14):

    percentile     quantiles of the resampled means
    bca            percentile, corrected for median bias and for acceleration
    studentized    quantiles of (m* - m)/se*, times se: bootstrap-t
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np
from scipy import stats

from cojax import inputs
from cojax.inputs import InputError

METHODS = ("percentile", "bca", "studentized")
CONFIDENCE = 0.95
NUM_RESAMPLES = 10_000
_DEGENERATE = 1e-12  # of a series' variance: a resample below it has no spread of its own


class Interval(NamedTuple):
    """A mean and its confidence interval; arrays of one shape."""

    mean: np.ndarray
    low: np.ndarray
    high: np.ndarray


def interval_of_mean(
    values: np.ndarray,
    *,
    method: str = "studentized",
    confidence: float = CONFIDENCE,
    num_resamples: int = NUM_RESAMPLES,
    seed: int = 0,
) -> Interval:
    """Mean over the last axis with its bootstrap interval, for every series at once.

    Args:
        values: finite, (..., N): series that are paired along the last axis.
        method: "percentile", "bca" or "studentized".
        confidence: coverage aimed at, in (0, 1).
        num_resamples: bootstrap resamples, >= 1.
        seed: of the resampling; the same seed gives the same interval.

    Returns:
        Arrays of shape (...). A series that is constant, or of one trial, gives a point.

    Raises ValueError for an empty axis, a value that is not finite, or an unknown method.
    """
    values = _checked(values, method, confidence)
    lead, N = values.shape[:-1], values.shape[-1]
    x = values.reshape(-1, N)
    mean = x.mean(axis=1)
    constant = np.ptp(x, axis=1) == 0.0
    mean[constant] = x[constant, 0]
    low, high = mean.copy(), mean.copy()
    if not constant.all():
        deviation = x[~constant] - mean[~constant, None]
        shift = _shifts(deviation, method, confidence, num_resamples, seed)
        low[~constant] += shift[0]
        high[~constant] += shift[1]
    return Interval(*(array.reshape(lead) for array in (mean, low, high)))


def interval_over_seeds(
    values: np.ndarray,
    *,
    confidence: float = CONFIDENCE,
    num_resamples: int = NUM_RESAMPLES,
    seed: int = 0,
) -> Interval:
    """Mean over training seeds and trials, with both resampled; values are (..., S, N).

    Every seed meets the same trials, so seeds and trials are crossed: resampling draws seeds and
    trials independently of each other, and weights each cell by the product of its counts (Owen,
    The pigeonhole bootstrap, Ann. Appl. Stat. 2007). Percentile interval.

    Raises ValueError as :func:`interval_of_mean` does.
    """
    values = _checked(values, "percentile", confidence)
    lead, (S, N) = values.shape[:-2], values.shape[-2:]
    x = values.reshape(-1, S, N)
    mean = x.mean(axis=(1, 2))
    low, high = mean.copy(), mean.copy()
    of_trials = counts(N, num_resamples, seed) / N
    of_seeds = counts(S, num_resamples, seed + 1) / S
    for i, cells in enumerate(x):
        if np.ptp(cells) == 0.0:
            mean[i] = low[i] = high[i] = cells[0, 0]
            continue
        resampled = np.sum((of_trials @ (cells - mean[i]).T) * of_seeds, axis=1)
        tail = 0.5 * (1.0 - confidence)
        low[i] += np.quantile(resampled, tail)
        high[i] += np.quantile(resampled, 1.0 - tail)
    return Interval(*(array.reshape(lead) for array in (mean, low, high)))


@lru_cache(maxsize=8)
def counts(N: int, num_resamples: int, seed: int) -> np.ndarray:
    """How often each of N units is drawn in each resample, (num_resamples, N), read-only."""
    rng = np.random.default_rng(np.random.SeedSequence([seed, N, num_resamples]))
    result = np.empty((num_resamples, N))
    block = max(1, 2**22 // N)
    for first in range(0, num_resamples, block):
        rows = min(block, num_resamples - first)
        drawn = rng.integers(0, N, (rows, N), dtype=np.int32) + N * np.arange(rows)[:, None]
        result[first : first + rows] = np.bincount(drawn.ravel(), minlength=rows * N).reshape(
            rows, N
        )
    result.flags.writeable = False
    return result


def _checked(values: np.ndarray, method: str, confidence: float) -> np.ndarray:
    values = np.asarray(values, np.float64)
    inputs.one_of("method", method, METHODS)
    inputs.number("confidence", confidence, 0.0, 1.0, low_open=True, high_open=True)
    if values.ndim == 0 or 0 in values.shape:
        raise InputError(f"values: expected at least one trial, got shape {values.shape}")
    if not np.isfinite(values).all():
        raise InputError("values: expected finite numbers; take failures out first")
    return values


def _shifts(
    deviation: np.ndarray, method: str, confidence: float, num_resamples: int, seed: int
) -> np.ndarray:
    """Ends of the interval minus the mean, (2, series), for series of mean zero, none constant."""
    N = deviation.shape[1]
    weights = counts(N, num_resamples, seed)
    means = weights @ deviation.T / N  # (resamples, series)
    tail = 0.5 * (1.0 - confidence)
    if method == "percentile":
        return np.quantile(means, [tail, 1.0 - tail], axis=0)
    if method == "bca":
        return _bca(means, deviation, tail)
    squares = weights @ (deviation**2).T / N
    variance = squares - means**2
    whole = np.mean(deviation**2, axis=1)
    spread = np.sqrt(np.maximum(variance, 0.0))
    flat = variance <= _DEGENERATE * whole
    with np.errstate(divide="ignore", invalid="ignore"):
        t = np.where(flat, np.copysign(np.inf, means), means / spread)
    t = np.where(flat & (means == 0.0), 0.0, t)
    ends = np.sort(t, axis=0)
    last = num_resamples - 1
    lower = ends[round(tail * last)]
    upper = ends[round((1.0 - tail) * last)]
    shift = np.stack([-upper, -lower]) * np.sqrt(whole)
    # too few distinct values for a studentized interval: BCa has one
    infinite = ~np.isfinite(shift).all(axis=0)
    if infinite.any():
        shift[:, infinite] = _bca(means[:, infinite], deviation[infinite], tail)
    return shift


def _bca(means: np.ndarray, deviation: np.ndarray, tail: float) -> np.ndarray:
    """BCa quantiles of the resampled means of series of mean zero.

    z0 = Φ⁻¹(P(m* < m)), a = Σ d³ / (6 (Σ d²)^{3/2}) of the jackknife, whose values of a mean
    deviate in proportion to the data; level Φ(z0 + (z0 + z)/(1 - a (z0 + z))).
    """
    below = np.mean(means < 0.0, axis=0) + 0.5 * np.mean(means == 0.0, axis=0)
    z0 = stats.norm.ppf(below)
    acceleration = np.sum(deviation**3, axis=1) / (6.0 * np.sum(deviation**2, axis=1) ** 1.5)
    ordered = np.sort(means, axis=0)
    last = means.shape[0] - 1
    ends = []
    for z in stats.norm.ppf([tail, 1.0 - tail]):
        level = stats.norm.cdf(z0 + (z0 + z) / (1.0 - acceleration * (z0 + z)))
        at = np.clip(np.round(level * last), 0, last).astype(int)
        ends.append(np.take_along_axis(ordered, at[None], axis=0)[0])
    return np.stack(ends)
