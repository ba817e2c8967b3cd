"""The figure of an evaluation: means and intervals, a panel for each fixture."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from cojax import errors
from cojax.errors import InputError
from cojax.evaluation.metrics import metrics_of, words, worst
from cojax.evaluation.result import Evaluation
from cojax.report import style
from cojax.report.style import COLUMN, GREY, PAGE, colour
from cojax.report.tables import metric_rows
from cojax.types import Row

PANELS = 3  # in a row
MOST = 24  # panels; beyond, the first ones are drawn and the figure says so
SUFFIXES = (".pdf", ".png", ".svg")


def evaluation_figure(evaluation: Evaluation, path: str | Path | None, metric: str) -> Figure:
    """What :meth:`cojax.evaluation.Evaluation.plot` gives; raises as it does.

    A policy that failed in some trial has its place in a lane of its own, at the worse end.
    """
    errors.one_of("metric", metric, metrics_of(evaluation.trials))
    if path is not None and Path(path).suffix not in SUFFIXES:
        raise InputError(f"{path}: expected a name that ends in {', '.join(SUFFIXES)}")
    shown = evaluation.fixtures[:MOST]
    columns = min(PANELS, len(shown))
    lines = -(-len(shown) // columns)
    names = [p if s is None else f"{p} ({s})" for p, s in evaluation.populations()]
    with style.style():
        height = 0.55 + lines * (0.62 + 0.17 * len(names))
        drawing = style.figure(COLUMN if columns == 1 else PAGE, height)
        axes = drawing.subplots(lines, columns, squeeze=False, sharey=True)
        for f, axis in enumerate(axes.ravel()):
            axis.set_visible(f < len(shown))
            if f < len(shown):
                _panel(axis, metric_rows(evaluation, f, metric), metric)
                axis.set_title(shown[f])
        axes[0, 0].set_yticks(range(len(names)), names)
        axes[0, 0].set_ylim(len(names) - 0.5, -0.5)
        left = len(evaluation.fixtures) - len(shown)
        note = f"; {left} more systems are not drawn" if left else ""
        drawing.supxlabel(
            f"{words(metric)}\nmean and 95% interval, {evaluation.num_trials} paired trials{note}",
            fontsize=8,
        )
        if path is not None:
            style.save_as(drawing, Path(path))
    return drawing


def _panel(axis: Axes, rows: list[Row], metric: str) -> None:
    """Intervals of one fixture, from above; logarithmic where all are positive."""
    found = [row[metric] for row in rows]
    numbers = [x for cell in found for x in cell.values() if np.isfinite(x)]
    positive = [x for x in numbers if x > 0.0]
    logarithmic = bool(positive) and min(numbers) >= 0.0 and max(positive) > 5.0 * min(positive)
    if logarithmic:
        axis.set_xscale("log")
        low, high = 0.5 * min(positive), 2.0 * max(positive)
    else:
        low, high = min(numbers, default=0.0), max(numbers, default=1.0)
        pad = 0.06 * (high - low) or 1.0
        low, high = low - pad, high + pad
    lost = any(not np.isfinite(cell["mean"]) for cell in found)
    worse_is_right = worst(metric) > 0
    lane = _lane(axis, low, high, right=worse_is_right) if lost else 0.0
    for k, (row, cell) in enumerate(zip(rows, found, strict=True)):
        if not np.isfinite(cell["mean"]):
            axis.plot(lane, k, "x", color=colour(1), markersize=5)
            total = row["num_trials"] * (row.get("num_seeds") or 1)
            axis.annotate(
                f"{row['failures']} of {total} failed", (lane, k), va="center", fontsize=6.5,
                xytext=(-6 if worse_is_right else 6, 0), textcoords="offset points",
                ha="right" if worse_is_right else "left", color=colour(1),
                bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.5},
            )  # fmt: skip
            continue
        ends = np.clip([cell["low"], cell["high"]], low, high)
        axis.plot(ends, [k, k], color=colour(0), linewidth=1.6, solid_capstyle="butt")
        at, sign = (cell["mean"], "o") if cell["mean"] > low else (low, "<")
        axis.plot(at, k, sign, color=colour(0), markersize=4, clip_on=False)
    axis.grid(axis="x", color=style.GRID, linewidth=0.6)
    axis.set_axisbelow(True)


def _lane(axis: Axes, low: float, high: float, *, right: bool) -> float:
    """Room beyond all numbers for what is infinite: where its middle is, after a dashed line."""
    if axis.get_xscale() == "log":
        step = (high / low) ** 0.12
        line, middle, end = (high * step**k if right else low / step**k for k in (0.3, 1.0, 1.7))
    else:
        step = 0.12 * (high - low)
        line, middle, end = (high + k * step if right else low - k * step for k in (0.3, 1.0, 1.7))
    axis.axvline(line, color=GREY, linewidth=0.8, linestyle="--")
    axis.set_xlim(*((low, end) if right else (end, high)))
    text = "∞" if right else "-∞"
    axis.annotate(
        text, (middle, 0.0), xycoords=("data", "axes fraction"), xytext=(0, 2),
        textcoords="offset points", ha="center", color=GREY,
    )  # fmt: skip
    return float(middle)
