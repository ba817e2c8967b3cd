"""Metrics of a trial, and what a row of a table says of many: mean, interval, failures."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from cojax.evaluation.intervals import interval_of_mean, interval_over_seeds
from cojax.types import Row

# Metrics of a trial and what a failed trial scores: the worst there is.
WORST = {
    "suboptimality": np.inf,
    "relative_suboptimality": np.inf,
    "tail_corrected": np.inf,
    "relative_tail_corrected": np.inf,
    "paper_optgap": -np.inf,
    "paper_regret": np.inf,
    "coupled_regret": np.inf,
    "discounted_return": -np.inf,
    "undiscounted_return": -np.inf,
    "action_distance": np.inf,
    "time_to_target": np.inf,
}
METRICS = tuple(WORST)
METRIC = "relative_suboptimality"  # the default wherever one metric is looked at
WORDS = {  # of a trial, as captions say it
    "suboptimality": "gap Σ γᵏ A*(s, a) in units of cost",
    METRIC: "gap Σ γᵏ A*(s, a) as a share of V*(s₀)",
    "tail_corrected": "tail-corrected gap in units of cost",
    "relative_tail_corrected": "tail-corrected gap as a share of V*(s₀)",
    "paper_optgap": "the paper's OptGap, (V_r - V_r*)/|V_r*|",
    "paper_regret": "the paper's Regret, of stage rewards at the policy's own states",
    "coupled_regret": "cost beyond the oracle's under the same noise",
    "discounted_return": "discounted return",
    "undiscounted_return": "undiscounted return",
    "action_distance": "distance to the optimal action, root mean square",
    "time_to_target": "steps to the target set",
}
TAIL = "tail_value"  # γᵀ V*(s_T): the scale of what a finite horizon cuts from the gap
CONTROLLED = "suboptimality_controlled"  # of evaluations that were asked for it
AT_LEAST, AT_MOST = "exploitability_at_least", "exploitability_at_most"  # of games, over V*
MEASURED = {  # sums of what a system measures beside its cost, by how their names begin
    "measured": "discounted sum Σ γᵏ of {}",
    "excess": "expected Σ γᵏ of {} beyond that of π*, Σ γᵏ A_m(s, a)",
}
NEVER_NEGATIVE = {"suboptimality", "relative_suboptimality", "action_distance", "time_to_target"}


def is_measured(name: str) -> bool:
    """Whether a column of trials is a sum of a measure: ``measured_cost``, ``excess_cost``, …"""
    kind, _, measure = name.partition("_")
    return kind in MEASURED and bool(measure)


def worst(name: str) -> float:
    """What a failed trial scores in a metric, sums of measures and bounds of games among them."""
    return np.inf if is_measured(name) or name in (AT_LEAST, AT_MOST) else WORST[name]


def metrics_of(columns: Iterable[str]) -> list[str]:
    """The metrics among ``columns`` of trials: those of every system, then sums of measures."""
    columns = list(columns)
    return [n for n in METRICS if n in columns] + [n for n in columns if is_measured(n)]


def words(name: str) -> str:
    """What a metric is, as captions say it."""
    if not is_measured(name):
        return WORDS[name]
    kind, _, measure = name.partition("_")
    return MEASURED[kind].format(f"the {measure}")


def summarize(cells: dict[str, np.ndarray], options: Row) -> Row:
    """The rest of a row from its trials, (S, N) each: ``failed``, and whichever metrics there are.

    ``options`` are those of :func:`cojax.evaluation.intervals.interval_of_mean`.
    """
    metrics = [n for n in metrics_of(cells) if not np.isnan(cells[n]).all()]
    failed = cells["failed"].astype(bool)
    row: Row = {"num_trials": failed.shape[1]}
    if failed.shape[0] > 1:
        row["num_seeds"] = failed.shape[0]
    row["failures"] = int(failed.sum())
    row |= {name: int(cells[name].sum()) for name in ("diverged", "nonfinite") if name in cells}
    means = ("saturated", "reached", "optimal_value", TAIL)
    row |= {name: float(cells[name].mean()) for name in means if name in cells}
    values = np.stack([cells[name] for name in metrics])  # (metrics, S, N)
    if CONTROLLED in cells:
        row |= _intervals([CONTROLLED], cells[CONTROLLED][None], options)
    if not failed.any():
        return row | _intervals(metrics, values, options)
    row |= {name: cell_of(worst(name), worst(name), worst(name)) for name in metrics}
    completed = ~failed.any(axis=0)
    names = [f"{name}_completed" for name in metrics]
    if not completed.any():
        return row | dict.fromkeys(names)
    return row | _intervals(names, values[..., completed], options)


def _intervals(names: list[str], values: np.ndarray, options: Row) -> Row:
    """Intervals of several metrics, (metrics, S, N), under the names given."""
    # where V*(s_0) is 0 a share of it may be infinite, and then so is the mean
    finite = np.array([np.isfinite(own).all() for own in values])
    ends = [WORST.get(name.removesuffix("_completed"), np.inf) for name in names]
    cells = {n: cell_of(w, w, w) for n, w, ok in zip(names, ends, finite, strict=True) if not ok}
    if not finite.any():
        return cells
    names, values = np.asarray(names)[finite].tolist(), values[finite]
    if values.shape[1] > 1:
        options = {k: v for k, v in options.items() if k != "method"}
        interval = interval_over_seeds(values, **options)
    else:
        interval = interval_of_mean(values[:, 0], **options)
    for name, mean, low, high in zip(names, *interval, strict=True):
        if name.removesuffix("_completed") in NEVER_NEGATIVE:
            low = max(low, 0.0)  # studentised ends know no bounds; the quantity has one
        cells[name] = cell_of(mean, low, high)
    return cells


def cell_of(mean: npt.ArrayLike, low: npt.ArrayLike, high: npt.ArrayLike) -> dict[str, float]:
    """What a table holds of an interval."""
    return {"mean": float(mean), "low": float(low), "high": float(high)}  # pyright: ignore


def flat(row: Row) -> Row:
    """A row with a number a column: the mean of ``name`` under that name, its interval as
    ``name_low`` and ``name_high``; pairs as ``name_first`` and ``name_second``; hyperparameters
    by their names.
    """
    line: Row = {}
    for name, value in row.items():
        if isinstance(value, dict) and value.keys() >= {"mean", "low", "high"}:
            line |= {name: value["mean"]} | {f"{name}_{end}": value[end] for end in ("low", "high")}
        elif name == "hyperparameters":
            line |= value
        elif isinstance(value, tuple):
            line |= dict(zip((f"{name}_first", f"{name}_second"), value, strict=True))
        elif value is not None or not name.endswith("_completed"):
            line[name] = value
    return line
