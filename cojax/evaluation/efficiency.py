"""How many trials each estimator of the gap needs."""

from __future__ import annotations

from typing import Any

import numpy as np

from cojax.evaluation.aggregates import scores
from cojax.evaluation.intervals import interval_over_seeds
from cojax.evaluation.result import CONTROLLED, Evaluation


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
