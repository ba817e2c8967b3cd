"""Figures. Colours are Okabe and Ito's, which colour-blind readers can tell apart."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import pandas as pd

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
GREY = "#595959"
FLOOR = 1e-4  # gaps below it are drawn on it: the axis is logarithmic


def gap_figure(rows: list[dict[str, Any]], curves: pd.DataFrame, path: str | Path) -> None:
    """The gap of every learner over its training, a panel for each fixture, on a log scale.

    Thin lines are seeds, the thick one their median; the marker at the end is the final
    evaluation with its 95% interval; dashed lines are reference policies.
    """
    from matplotlib.figure import Figure

    names = list(dict.fromkeys(row["fixture"] for row in rows))
    columns = min(3, len(names))
    lines = -(-len(names) // columns)
    figure = Figure(figsize=(4.2 * columns, 3.3 * lines), layout="constrained")
    axes = np.atleast_1d(figure.subplots(lines, columns, squeeze=False)).ravel()
    for axis, name in zip(axes, names, strict=False):
        of_fixture = curves.query("fixture == @name")
        algorithms = list(dict.fromkeys(of_fixture["algorithm"]))
        for colour, algorithm in zip(COLOURS, algorithms, strict=False):
            learner = of_fixture.query("algorithm == @algorithm")
            row = next(r for r in rows if r["fixture"] == name and r["policy"] == algorithm)
            _draw_learner(axis, learner, row, colour, algorithm)
        _draw_references(axis, [r for r in rows if r["fixture"] == name], algorithms)
        axis.set(yscale="log", title=name, xlabel="environment steps")
        axis.set_xlim(0.0, 1.08 * of_fixture["timesteps"].max())
        axis.xaxis.set_major_formatter(lambda x, _: f"{x / 1000:g}k" if x else "0")
        axis.grid(which="major", color="#E5E5E5", linewidth=0.6)
        axis.spines[["top", "right"]].set_visible(False)
    for axis in axes[len(names) :]:
        axis.set_visible(False)
    axes[0].set_ylabel("gap to the optimum, in units of V*")
    axes[0].legend(frameon=False, loc="center right", bbox_to_anchor=(1.0, 0.72))
    figure.savefig(path, dpi=160)


def _draw_learner(
    axis: Any, curve: pd.DataFrame, row: dict[str, Any], colour: str, name: str
) -> None:
    table = curve.pivot(index="timesteps", columns="seed", values="relative_suboptimality")
    steps = table.index.to_numpy()
    values = np.maximum(table.to_numpy(), FLOOR)
    axis.plot(steps, values, color=colour, linewidth=0.7, alpha=0.45)
    axis.plot(steps, np.median(values, axis=1), color=colour, linewidth=2.0, label=name.upper())
    cell = row["relative_suboptimality"]
    if np.isfinite(cell["mean"]):
        mean, low, high = (max(cell[k], FLOOR) for k in ("mean", "low", "high"))
        axis.errorbar(
            1.03 * steps[-1],
            mean,
            yerr=[[mean - low], [high - mean]],
            color=colour,
            marker="o",
            markersize=4,
            capsize=3,
        )


def _draw_references(axis: Any, rows: list[dict[str, Any]], algorithms: list[str]) -> None:
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
