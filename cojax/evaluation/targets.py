"""Fixed targets: how many environment steps a learner needs to come within a gap of V*.

As in COCO (Hansen et al., 2021): for each run and each target of a ladder of relative gaps, the
number of steps at which the gap was first at or below it. Because the optimum is known, targets
are absolute.

    aRT(target) = steps spent by all runs until the target, or their whole budget / runs that met it
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from cojax.errors import InputError
from cojax.evaluation.aggregates import each_floor
from cojax.types import Float

LADDER = tuple(10.0 ** (1.0 - 0.25 * k) for k in range(17))  # 10 … 10⁻³, four a decade


def steps_to_targets(
    steps: npt.ArrayLike,
    gaps: npt.ArrayLike,
    targets: npt.ArrayLike = LADDER,
    floor: npt.ArrayLike = 0.0,
) -> Float[np.ndarray, "runs targets"]:
    """Steps at which each run first met each target; inf where it never did.

    Args:
        steps: (C,) environment steps at the evaluations of a learning curve, increasing.
        gaps: (runs, C) relative gaps then; NaN and inf meet no target.
        targets: relative gaps.
        floor: resolution floor of each run's fixture, (runs,), or one for all: a gap above 0 and
            within it counts as the floor, so that targets below it are not told apart.

    Raises ValueError where shapes do not fit or steps do not increase.
    """
    steps, targets = np.asarray(steps, np.float64), np.atleast_1d(targets)
    gaps = np.atleast_2d(np.asarray(gaps, np.float64))
    if steps.ndim != 1 or gaps.shape[1:] != steps.shape or not steps.size:
        raise InputError(f"gaps: expected shape (runs, {steps.size}), got {gaps.shape}")
    if (np.diff(steps) <= 0).any():
        raise InputError("steps: expected increasing numbers of environment steps")
    floor = each_floor(floor, len(gaps))[:, None]
    gaps = np.where((gaps > 0.0) & (gaps <= floor), floor, gaps)
    met = gaps[:, None, :] <= targets[None, :, None]
    return np.where(met.any(axis=-1), steps[np.argmax(met, axis=-1)], np.inf)


def average_runtime(
    hits: Float[np.ndarray, "runs targets"], budget: float
) -> Float[np.ndarray, " targets"]:
    """aRT for each target from ``hits`` of :func:`steps_to_targets`; inf where no run met it.

    A run that failed spends its whole budget, in environment steps.
    """
    spent = np.minimum(hits, budget).sum(axis=0)
    met = np.isfinite(hits).sum(axis=0)
    with np.errstate(divide="ignore"):
        return np.where(met > 0, spent / np.maximum(met, 1), np.inf)


def ecdf(hits: Float[np.ndarray, "runs targets"], at: npt.ArrayLike) -> Float[np.ndarray, " T"]:
    """Share of (run, target) pairs of :func:`steps_to_targets` met within each of ``at`` steps."""
    return np.array([np.mean(hits <= t) for t in np.atleast_1d(at)])
