"""Figures. Colours are Okabe and Ito's, which colour-blind readers can tell apart."""

from __future__ import annotations

import io
from collections.abc import Sequence
from itertools import cycle
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from matplotlib.axes import Axes

from cojax.errors import InputError
from cojax.io import files
from cojax.report.style import (
    COLOURS,
    GREY,
    METADATA,
    colour,
    figure,
    grid,
    lane,
    legend,
    log_ticks,
    style,
)
from cojax.report.sweep_figures import sensitivity_of_rows
from cojax.types import Row

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

    from cojax.agents.run import Run
    from cojax.evaluation.diagnosis import Diagnosis

FLOOR = 1e-4  # gaps below it are drawn on it: the axis is logarithmic


def gap_figure(rows: list[Row], curves: pd.DataFrame, path: str | Path) -> None:
    """The gap of every learner over its training, a panel for each fixture, on a log scale.

    Thin lines are seeds, the thick one their median; the marker at the end is the final
    evaluation with its 95% interval; dashed lines are reference policies. A failed trial makes a
    gap infinite: such are in a lane at the top. An algorithm has one colour in all panels.
    """
    colours = dict(zip(dict.fromkeys(curves["algorithm"]), cycle(COLOURS), strict=False))
    names = list(dict.fromkeys(row["fixture"] for row in rows))
    columns = min(3, len(names))
    lines = -(-len(names) // columns)
    drawing = figure(4.2 * columns, 3.4 * lines + 0.4)
    axes = drawing.subplots(lines, columns, squeeze=False).ravel()
    for axis, name in zip(axes, names, strict=False):
        of_fixture = curves.query("fixture == @name")
        algorithms = list(dict.fromkeys(of_fixture["algorithm"]))
        final = {
            a: next(r for r in rows if r["fixture"] == name and r["policy"] == a)
            for a in algorithms
        }
        means = [row["relative_suboptimality"]["mean"] for row in final.values()]
        gaps = np.array([*of_fixture["relative_suboptimality"], *means], np.float64)
        gaps = lane(axis, np.where(np.isnan(gaps), np.inf, np.maximum(gaps, FLOOR)))
        of_fixture = of_fixture.assign(drawn=gaps[: len(of_fixture)])
        for k, algorithm in enumerate(algorithms):
            learner = of_fixture.query("algorithm == @algorithm")
            at = float(gaps[len(of_fixture) + k])
            _draw_learner(axis, learner, final[algorithm], colours[algorithm], at=at)
        _draw_references(axis, [r for r in rows if r["fixture"] == name], algorithms)
        axis.set(yscale="log", title=name, xlabel="environment steps")
        axis.set_xlim(0.0, 1.08 * of_fixture["timesteps"].max())
        axis.xaxis.set_major_formatter(lambda x, _: f"{x / 1000:g}k" if x else "0")
        grid(axis)
    for axis in axes[len(names) :]:
        axis.set_visible(False)
    axes[0].set_ylabel("gap to the optimum, in units of V*")
    lines_of = {a.get_label(): a for axis in axes for a in axis.get_legend_handles_labels()[0]}
    labels = list(map(str, lines_of))
    legend(drawing, list(lines_of.values()), labels, columns=len(labels), where="lower")
    drawing.savefig(path, dpi=160, metadata=METADATA[".png"])


def _draw_learner(axis: Axes, curve: pd.DataFrame, row: Row, colour: str, *, at: float) -> None:
    table = curve.pivot(index="timesteps", columns="seed", values="drawn")
    steps, values = table.index.to_numpy(), table.to_numpy()
    axis.plot(steps, values, color=colour, linewidth=0.7, alpha=0.45)
    axis.plot(
        steps, np.median(values, axis=1), color=colour, linewidth=2.0, label=row["policy"].upper()
    )
    cell = row["relative_suboptimality"]
    if np.isfinite(cell["mean"]):
        mean, low, high = (max(cell[k], FLOOR) for k in ("mean", "low", "high"))
        error, look = [[mean - low], [high - mean]], {"marker": "o", "markersize": 4, "capsize": 3}
        axis.errorbar(1.03 * steps[-1], mean, yerr=error, color=colour, **look)
    else:
        axis.plot(1.03 * steps[-1], at, "x", color=colour, markersize=6)


def _draw_references(axis: Axes, rows: list[Row], algorithms: list[str]) -> None:
    for row in rows:
        value = row["relative_suboptimality"]["mean"]
        if row["policy"] in algorithms or not np.isfinite(value) or value <= 0.0:
            continue
        axis.axhline(value, color=GREY, linestyle="--", linewidth=0.9)
        axis.annotate(
            row["policy"],
            (0.01, value),
            xycoords=axis.get_yaxis_transform(),
            xytext=(2, 3),
            textcoords="offset points",
            color=GREY,
            fontsize=8,
        )


def diagnosis_figure(readings: Sequence[Diagnosis], path: str | Path) -> None:
    """Where policies lose, and how wrong their critics are there: by state and by time.

    Upper panels: the gap that each bin contributes, on a log scale; a policy's points add up to
    its gap, which the legend states. Lower panels, where a policy has a critic: its relative
    error, median and the band of 10 to 90%. Left by V* of the state, a tenth of the visited
    states a point; right by step.

    Raises ValueError for no readings, or readings of several fixtures.
    """
    if len({reading.fixture for reading in readings}) != 1:
        raise InputError("readings: expected those of one fixture, at least one")
    critics = [reading for reading in readings if reading.value_error is not None]
    lines = 2 if critics else 1
    drawing = figure(9.2, 0.8 + 2.9 * lines)
    axes = drawing.subplots(lines, 2, squeeze=False, sharex="col", sharey="row")
    for column, label in enumerate(("by_region", "by_time")):
        for i, reading in enumerate(readings):
            cells = getattr(reading, label)
            x = np.array([_middle(cell, label) for cell in cells])
            gap = _drawable([cell["gap"] for cell in cells])
            look = {"color": colour(i), "marker": "o", "markersize": 4}
            name = f"{reading.policy}: {reading.relative_gap:.3g} V*"
            shown = gap > 0.0
            axes[0, column].plot(x[shown], gap[shown], label=name, **look)
            if reading.value_error is not None:
                error = {
                    k: _drawable([c["value_error"][k] for c in cells]) for k in reading.value_error
                }
                axes[1, column].plot(x, error["median"], **look)
                band = {"color": colour(i), "alpha": 0.18, "linewidth": 0}
                axes[1, column].fill_between(x, error["low"], error["high"], **band)
    for axis in axes.ravel():
        if any(np.isfinite(line.get_ydata()).any() for line in axis.lines):
            axis.set_yscale("log")
            low, high = axis.get_ylim()
            log_ticks(axis.yaxis, narrow=high <= 300 * low, minor=True)
        grid(axis)
    ends = [cell[end] for r in readings for cell in r.by_region for end in ("low", "high")]
    if min(ends) > 0.0 and max(ends) > 10.0 * min(ends):
        axes[0, 0].set_xscale("log")
        log_ticks(axes[0, 0].xaxis, narrow=max(ends) <= 300.0 * min(ends))
    else:
        axes[0, 0].locator_params(axis="x", nbins=5)
    axes[-1, 0].set_xlabel("V* of the visited state")
    axes[-1, 1].set_xlabel("step of the episode")
    axes[0, 0].set_ylabel("gap of the bin, in units of V*")
    if critics:
        axes[1, 0].set_ylabel("error of the critic, share of V*")
    drawing.suptitle(readings[0].fixture, fontsize=11)
    names = axes[0, 0].get_legend_handles_labels()
    legend(drawing, *names, columns=min(3, len(readings)), where="lower")
    path = Path(path)
    path = path if path.suffix else path.with_suffix(".png")
    buffer = io.BytesIO()
    drawing.savefig(buffer, format=path.suffix[1:], dpi=160)
    files.write_whole(path, buffer.getvalue())


def _drawable(values: Sequence[float]) -> np.ndarray:
    """Numbers for a log scale; infinite ones, shares of a V* of 0, are left out."""
    x = np.asarray(values, np.float64)
    return np.where(np.isfinite(x) & (x > 0.0), x, np.nan)


def _middle(cell: Row, label: str) -> float:
    """Where a bin is drawn: the geometric mean of its values, the middle of its steps."""
    if label == "by_time":
        return 0.5 * (cell["low"] + cell["high"])
    return float(np.sqrt(cell["low"] * cell["high"]))


def landscape_figure(
    found: Run | Sequence[Row],
    path: str | Path | None = None,
    *,
    fixtures: Sequence[str] | None = None,
) -> Figure:
    """The gap of every setting against each hyperparameter that was varied: the median over seeds,
    lowest to highest seed as a line, a colour for each system.

    Args:
        found: a ``Run`` over settings that was given an ``evaluate`` of one number, or rows as
            ``Run.rows`` and a sweep give them.
        path: where to write it, .png, .pdf or .svg; None to leave it.
        fixtures: names of the systems of a run.

    Raises InputError where nothing was varied.
    """
    rows = list(found) if isinstance(found, Sequence) else found.rows(fixtures)
    with style():
        drawing = sensitivity_of_rows(rows)
        if drawing is None:
            raise InputError("landscape: expected settings that differ in some hyperparameter")
        if path is not None:
            drawing.savefig(path, dpi=200)
    return drawing
