"""What policies make of a budget: the table, and the figure of the plane of J_d and J_c."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from cojax.errors import InputError
from cojax.evaluation.constrained import BudgetEvaluation, Problem
from cojax.report import style
from cojax.report.evaluation_figure import PANELS, SUFFIXES
from cojax.report.style import COLUMN, GREY, PAGE, colour, marker
from cojax.report.tables import Cell, Table, written
from cojax.types import Row

COLUMNS = {  # of a table: what a row calls it
    "J_c": "objective",
    "J_d": "cost",
    "J_d - D": "violation",
    "J_c - J_c*": "gap",
    "to the line": "distance",
    "J_c - J_c*(J_d)": "own_gap",
}
CAPTION = (
    "Costs of policies with a budget: mean of {} paired trials [95% interval]. J_d - D: violation "
    "of the budget; J_c - J_c*: gap to the optimum within it; to the line: J_c - J_c* + λ (J_d - "
    "D), which is E Σ γᵏ A*; J_c - J_c*(J_d): gap to the front at the budget that was spent."
)


def budget_table(evaluation: BudgetEvaluation, format: str) -> str:
    """What :meth:`cojax.evaluation.BudgetEvaluation.table` gives; raises as it does."""
    lines = []
    for row in evaluation.rows():
        cells = [_text(row[name]) for name in COLUMNS.values()]
        head = [row["fixture"], _name(row), f"{row['budget']:.4g}"]
        lines.append([Cell(text, "") for text in (*head, *cells)])
    columns = ["system", "policy", "D", *COLUMNS]
    caption = CAPTION.format(evaluation.evaluation.num_trials)
    if any(row["failures"] for row in evaluation.rows()):
        caption += " ∞: some trial failed."
    return written(Table(columns, lines, caption, "budget"), format)


def _text(cell: dict[str, float] | None) -> str:
    if cell is None:
        return "–"
    if not np.isfinite(cell["mean"]):
        return "∞"
    return "{mean:.3g} [{low:.3g}, {high:.3g}]".format(**cell)


def _name(row: Row) -> str:
    return row["policy"] if row.get("setting") is None else f"{row['policy']} ({row['setting']})"


def budget_figure(evaluation: BudgetEvaluation, path: str | Path | None) -> Figure:
    """What :meth:`cojax.evaluation.BudgetEvaluation.plot` gives; raises as it does."""
    if path is not None and Path(path).suffix not in SUFFIXES:
        raise InputError(f"{path}: expected a name that ends in {', '.join(SUFFIXES)}")
    names, rows = evaluation.evaluation.fixtures, evaluation.rows()
    columns = min(PANELS, len(names))
    lines = -(-len(names) // columns)
    policies = list(dict.fromkeys(_name(row) for row in rows))
    with style.style():
        width = COLUMN + 1.2 if columns == 1 else PAGE
        drawing = style.figure(width, 0.5 + 2.7 * lines + 0.17 * (len(policies) // 3 + 1))
        axes = drawing.subplots(lines, columns, squeeze=False)
        for f, axis in enumerate(axes.ravel()):
            axis.set_visible(f < len(names))
            if f < len(names):
                own = [row for row in rows if row["fixture"] == names[f]]
                _panel(axis, evaluation.problems[f], own, policies)
                axis.set_title(names[f])
        marks = {"linestyle": "none", "markersize": 4.5}
        handles = [
            Line2D([], [], color=colour(k), marker=marker(k), **marks)  # pyright: ignore
            for k in range(len(policies))
        ]
        handles += [
            Line2D([], [], color="black", linewidth=1.2),
            Line2D([], [], color=GREY, linewidth=0.9, linestyle="--"),
            Line2D([], [], color=GREY, linewidth=0.9, linestyle=":"),
        ]
        words = ["front", "supporting line", "budget D"]
        if all(problem.front is None for problem in evaluation.problems):
            del handles[len(policies)], words[0]
        style.legend(drawing, handles, [*policies, *words], columns=3)
        drawing.supxlabel(r"$J_d$, expected discounted constraint cost [units of $d$]", fontsize=8)
        drawing.supylabel(r"$J_c$, expected discounted cost [units of $c$]", fontsize=8)
        if path is not None:
            style.save_as(drawing, Path(path))
    return drawing


def _panel(axis: Axes, problem: Problem, rows: list[Row], policies: list[str]) -> None:
    """One problem: logarithmic where all is positive and spans more than a factor of 3."""
    shown = [row for row in rows if np.isfinite(row["objective"]["mean"])]
    points = np.array(
        [[row["cost"]["mean"], row["objective"]["mean"]] for row in shown]
        + [[problem.budget, problem.objective]]
    )
    low, high = points.min(axis=0), points.max(axis=0)
    log = (low > 0.0) & (high > 3.0 * np.maximum(low, 1e-300))
    spans = [_span(*pair) for pair in zip(low, high, log, strict=True)]
    axis.set_xlim(*spans[0])
    axis.set_ylim(*spans[1])
    for k, (name, scale) in enumerate((("x", axis.set_xscale), ("y", axis.set_yscale))):
        if log[k]:
            scale("log")
            own = axis.xaxis if name == "x" else axis.yaxis
            style.log_ticks(own, narrow=bool(spans[k][1] < 100.0 * spans[k][0]))
        elif name == "x":
            axis.xaxis.set_major_locator(MaxNLocator(4))
    if problem.front is not None:
        J_d, J_c = problem.front.curve(400)
        last = max(spans[0][1], J_d[-1])  # what is more than J_c needs buys nothing
        axis.plot([*J_d, last], [*J_c, J_c[-1]], color="black", linewidth=1.2)
    across = np.linspace(*spans[0], 400)
    line = problem.objective - problem.multiplier * (across - problem.budget)
    axis.plot(across, np.where(line > 0.0, line, np.nan), "--", color=GREY, linewidth=0.9)
    axis.axvline(problem.budget, color=GREY, linewidth=0.9, linestyle=":")
    if problem.interval[1] > problem.interval[0]:
        axis.axvspan(*problem.interval, color=GREY, alpha=0.15, linewidth=0)
    for row in shown:
        k, at = policies.index(_name(row)), (row["cost"], row["objective"])
        ends = [[[x["mean"] - x["low"]], [x["high"] - x["mean"]]] for x in at]
        axis.errorbar(
            at[0]["mean"], at[1]["mean"], xerr=ends[0], yerr=ends[1], color=colour(k),
            marker=marker(k), markersize=4.5, linewidth=1.0, linestyle="none",
        )  # fmt: skip
    if lost := len(rows) - len(shown):
        axis.annotate(
            f"{lost} not shown: trials failed", (0.98, 0.97), xycoords="axes fraction",
            ha="right", va="top", fontsize=6.5, color=GREY,
        )  # fmt: skip
    style.grid(axis)
    axis.set_axisbelow(True)


def _span(low: float, high: float, log: bool) -> tuple[float, float]:
    """Ends of an axis, with room."""
    if log:
        room = (high / low) ** 0.15 * 1.1
        return float(low / room), float(high * room)
    room = 0.15 * (high - low) or 0.5 * abs(high) or 1.0
    bottom = low - room
    return float(max(bottom, 0.5 * low) if low > 0.0 else bottom), float(high + room)
