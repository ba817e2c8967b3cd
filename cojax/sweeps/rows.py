"""The table of a sweep: one row for each algorithm, setting and fixture."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import numpy as np
from scipy import stats

from cojax.evaluation.result import summarize
from cojax.sweeps.groups import Group

if TYPE_CHECKING:
    import pandas as pd

FLOOR, CEILING = 1e-6, 1e6  # of gaps, before logarithms


def log_gap_upper_bound(gaps: np.ndarray, confidence: float) -> float:
    """Upper confidence bound of the typical gap of a setting.

        y_s = log10 clip(mean_t gap_st),   bound = 10^(ȳ + t_{S-1}(confidence) · sd(y)/√S)

    A learner's gaps differ by factors from seed to seed, so the mean and its error are taken of
    their logarithms; one seed that ran away counts as ``CEILING``. Of a single seed, the bound is
    that of the mean over its trials.

    Args:
        gaps: (S, N): seeds (and fixtures) by trials.
        confidence: in (0, 1), one-sided.
    """
    gaps = np.asarray(gaps, np.float64)
    means = np.clip(gaps.mean(axis=1), FLOOR, CEILING)
    S, N = gaps.shape
    if S > 1:
        y = np.log10(means)
        return float(10 ** (y.mean() + stats.t.ppf(confidence, S - 1) * y.std(ddof=1) / S**0.5))
    if N == 1 or not np.isfinite(gaps).all():
        return float(means[0])
    error = gaps.std(ddof=1) / N**0.5
    return float(min(means[0] + stats.t.ppf(confidence, N - 1) * error, CEILING))


def rows_of(groups: list[Group], members: pd.DataFrame, confidence: float) -> list[dict[str, Any]]:
    """Rows of a sweep, the lowest bound first.

    Each has ``fixture``, ``policy`` (the algorithm), ``setting``, ``hyperparameters`` (what its
    space varied), ``num_trials``, ``num_seeds``, ``failures`` (trials), ``relative_suboptimality``
    (mean and 95% interval), ``seeds`` (median, lowest and highest of them), ``bound`` (see
    :func:`log_gap_upper_bound`) and ``failed`` (members).
    """
    varied = _varied(groups)
    rows = []
    keys = ["algorithm", "setting", "fixture"]
    for key, mine in members.groupby(keys, sort=False):
        algorithm, setting, fixture = cast("tuple[str, int, str]", key)
        gaps = mine["relative_suboptimality"].to_numpy(np.float64)
        trials = np.stack(list(mine["trial_gaps"])).astype(np.float64)
        cells = {"relative_suboptimality": trials, "failed": np.isinf(trials)}
        rows.append(
            {
                "fixture": fixture,
                "policy": algorithm,
                "setting": int(setting),
                "hyperparameters": varied[algorithm, int(setting)],
                "num_seeds": len(mine),
                **summarize(cells, {}),
                "timesteps": int(mine["timesteps"].to_numpy()[0]),
                "seeds": {
                    "median": float(np.median(gaps)),
                    "low": float(gaps.min()),
                    "high": float(gaps.max()),
                },
                "bound": log_gap_upper_bound(trials, confidence),
                "failed": int(mine["failed"].to_numpy().sum()),
            }
        )
    return sorted(rows, key=lambda row: (row["fixture"], row["bound"]))


def _varied(groups: list[Group]) -> dict[tuple[str, int], dict[str, Any]]:
    """Of each setting what its space varied; the rest is the configuration's."""
    found = {}
    for group in groups:
        for number, varied in zip(group.settings, group.varied, strict=True):
            found[group.spec.name, number] = varied
    return found
