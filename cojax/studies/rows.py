"""The table of a study: one row for each system, policy and setting."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, cast

import numpy as np
from scipy import stats

from cojax.agents.run import over_seeds
from cojax.evaluation.metrics import METRICS, is_measured, summarize
from cojax.studies.members import Group
from cojax.types import Array, Float, Row

if TYPE_CHECKING:
    import pandas as pd

FLOOR, CEILING = 1e-6, 1e6  # of gaps, before logarithms
CONFIDENCE = 0.9  # of the bound in the table


def log_gap_upper_bound(gaps: Float[Array, "S N"] | np.ndarray, confidence: float) -> float:
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


def learner_rows(groups: Sequence[Group], members: pd.DataFrame) -> list[Row]:
    """What training says of each system, algorithm and setting, in the order of ``members``.

    Each has ``fixture``, ``policy`` (the algorithm), ``setting``, ``hyperparameters`` (those it
    varies), ``num_seeds``, ``timesteps``, ``gamma``, ``last`` and ``best`` (median, lowest and
    highest over the seeds of the gap on the curve, in units of V*) and ``failed`` (members). Where
    members have trials of their own, as in a sweep, also ``num_trials``, ``failures`` (trials),
    ``relative_suboptimality`` (mean and 95% interval), ``seeds`` (median, lowest and highest) and
    ``bound`` (see :func:`log_gap_upper_bound`).
    """
    varied = {
        (group.spec.name, number): setting
        for group in groups
        for number, setting in zip(group.settings, group.varied, strict=True)
    }
    rows: list[Row] = []
    for key, mine in members.groupby(["fixture", "algorithm", "setting"], sort=False):
        fixture, algorithm, setting = cast("tuple[str, str, int]", key)
        columns = {name: mine[name].to_numpy() for name in mine.columns}
        row: Row = {
            "fixture": fixture,
            "policy": algorithm,
            "setting": int(setting),
            "hyperparameters": varied[algorithm, int(setting)],
            "num_seeds": len(mine),
            "timesteps": int(columns["timesteps"][0]),
            "gamma": float(columns["gamma"][0]),
            "last": over_seeds(columns["last_on_curve"]),
            "best": over_seeds(columns["best_on_curve"]),
            "failed": int(columns["failed"].sum()),
        }
        if "trial_gaps" in columns:
            trials = np.stack(list(columns["trial_gaps"])).astype(np.float64)
            cells = {"relative_suboptimality": trials, "failed": np.isinf(trials)}
            row |= summarize(cells, {})
            row["seeds"] = over_seeds(columns["relative_suboptimality"])
            row["bound"] = log_gap_upper_bound(trials, CONFIDENCE)
        rows.append(row)
    return rows


def flat_rows(rows: Sequence[Row]) -> pd.DataFrame:
    """Rows with one column a number: ``suboptimality_mean``, ``_low``, ``_high`` and so on."""
    import pandas as pd

    flat = []
    for row in rows:
        line: Row = {}
        for name, value in row.items():
            if isinstance(value, dict):
                line |= {f"{name}_{part}": number for part, number in value.items()}
            elif not is_measured(name) and name.removesuffix("_completed") not in METRICS:
                line[name] = value
        flat.append(line)
    return pd.DataFrame(flat)
