"""(1/θ) log E exp(θ S) from a sample, and when it is refused.

A mean of exponentials that a few trials carry says nothing: an estimate is refused where its
effective sample size (Σw)²/Σw², w = exp(θ S), is below ``MIN_SAMPLE``, or one trial has more than
``MAX_SHARE`` of the weight.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from cojax.evaluation.intervals import interval_of_mean
from cojax.types import Float

MIN_SAMPLE = 50.0  # effective trials, below which nothing is said
MAX_SHARE = 0.1  # of the weight, that one trial may have


@dataclasses.dataclass(frozen=True)
class Entropic:
    """(1/θ) log mean exp(θ S) over trials.

    Attributes:
        mean, low, high: the estimate with its 95% interval; None where it is refused, inf where a
            trial failed.
        effective: sample size.
        share: of the weight, of the heaviest trial.
        reason: why it is refused; or "".
    """

    mean: float | None
    low: float | None
    high: float | None
    effective: float
    share: float
    reason: str


def entropic(values: Float[np.ndarray, "N"], theta: float, *, lowest: float = -np.inf) -> Entropic:
    """(1/θ) log mean exp(θ values), and the mean of ``values`` at ``theta`` = 0.

    The interval is that of the mean of the exponentials, bootstrapped, taken through the logarithm;
    no end is below ``lowest``. Values that are inf, of trials that failed, make it inf.
    """
    values = np.asarray(values, np.float64)
    if not np.isfinite(values).all():
        failed = int((~np.isfinite(values)).sum())
        reason = f"{failed} of {values.size} trials failed"
        return Entropic(np.inf, np.inf, np.inf, 0.0, 1.0, reason)
    most = float((theta * values).max())
    weights = np.exp(theta * values - most)
    effective = float(weights.sum() ** 2 / (weights**2).sum())
    share = float(weights.max() / weights.sum())
    if theta == 0.0:
        ends = tuple(float(x) for x in interval_of_mean(values))
    else:
        reason = ""
        if effective < min(MIN_SAMPLE, values.size):
            reason = f"effective sample size {effective:.3g} of {values.size} trials"
        elif share > max(MAX_SHARE, 1.0 / values.size):
            reason = f"one of {values.size} trials has {share:.0%} of the weight"
        if reason:
            return Entropic(None, None, None, effective, share, reason)
        found = np.array(interval_of_mean(weights))
        with np.errstate(divide="ignore", invalid="ignore"):
            ends = (np.log(np.maximum(found, 0.0)) + most) / theta + 0.0
        ends = (float(ends[0]), float(ends[1:].min()), float(ends[1:].max()))
    mean, low, high = ends
    return Entropic(mean, max(low, lowest), high, effective, share, "")
