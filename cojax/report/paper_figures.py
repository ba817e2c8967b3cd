"""The paper's figures, by its own definitions of OptGap and Regret."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from cojax.report.style import (
    COLUMN,
    GREY,
    GRID,
    PAGE,
    colour,
    figure,
    lane,
    legend,
    thousands,
    upper,
)
from cojax.report.summary import Summary, interval_of_runs
from cojax.types import Float

Cells = Float[np.ndarray, "algorithms settings"]


def training_dynamics(summary: Summary) -> Figure:
    """Learning curves on the first fixture: the mean stage reward of training episodes, and the gap
    on the common streams; thin lines are seeds, thick ones their median.
    """
    name = summary.fixtures[0].id
    of_fixture = summary.curves.query("fixture == @name")
    drawing = figure(PAGE, 2.6)
    left, right = drawing.subplots(1, 2)
    columns = {left: "stage_reward", right: "relative_suboptimality"}
    gaps = of_fixture["relative_suboptimality"].to_numpy(np.float64)
    of_fixture = of_fixture.assign(relative_suboptimality=lane(right, gaps))
    for axis, column in columns.items():
        for i, algorithm in enumerate(summary.learners):
            table = of_fixture.query("algorithm == @algorithm").pivot_table(
                index="timesteps", columns="seed", values=column, dropna=False
            )
            values = -table if axis is left else table  # costs, for a logarithmic axis
            values = values.ffill()  # until the next episode ends
            steps = values.index.to_numpy()
            axis.plot(steps, values.to_numpy(), color=colour(i), linewidth=0.5, alpha=0.5)
            median = values.median(axis=1).to_numpy()
            axis.plot(steps, median, color=colour(i), linewidth=1.6, label=algorithm.upper())
        axis.set_yscale("log")
        axis.grid(which="major", color=GRID, linewidth=0.6)
        thousands(axis)
    left.set(ylabel="- stage reward while training", title=name)
    if not np.isfinite(of_fixture["stage_reward"].to_numpy()).any():
        left.text(0.5, 0.5, "no episode ended", transform=left.transAxes, ha="center", color=GREY)
        left.set(xlim=right.get_xlim(), yticks=[])
    seeds = len(set(of_fixture["seed"]))
    right.set(ylabel="gap, in units of V*", title=f"{seeds} seeds, common streams")
    left.invert_yaxis()  # more reward is up
    legend(drawing, *right.get_legend_handles_labels(), columns=len(summary.learners))
    return drawing


def heatmaps(summary: Summary) -> Figure:
    """OptGap, and log10 of the absolute Regret, by algorithm × setting, a column a size."""

    def mean_of(metric):
        def cell(algorithm, chosen):
            runs = summary.runs(algorithm, metric)[chosen]
            return float(np.nanmean(runs)) if np.isfinite(runs).any() else np.nan

        return cell

    drawing, axes = panel_axes(summary, 0.7 + 3.4, 2)
    rows = {
        "OptGap": ("paper_optgap", lambda x: -np.log10(np.maximum(-x, 1e-4))),
        "Regret": ("paper_regret", lambda x: np.log10(np.maximum(np.abs(x), 1e-4))),
    }
    for line, (title, (metric, shade)) in enumerate(rows.items()):
        tables = [by_setting(summary, i, mean_of(metric)) for i in summary.panels.values()]
        shades = [shade(table) for table in tables]
        finite = np.concatenate([x[np.isfinite(x)] for x in shades] or [np.zeros(1)])
        low, high = (finite.min(), finite.max()) if finite.size else (0.0, 1.0)
        for column, size in enumerate(summary.panels):
            axis = axes[line, column]
            options = {"low": low, "high": high, "dark_is_low": line == 0}
            heatmap(axis, tables[column], shades[column], **options)
            label_cells(axis, summary, size, left=column == 0, bottom=line == 1)
            axis.set_title(f"{title}, {size}")
        label = "-log10(-OptGap)" if line == 0 else "log10 |Regret|"
        drawing.colorbar(axes[line, -1].images[0], ax=axes[line], label=label, fraction=0.05)
    return drawing


def panel_axes(summary: Summary, height: float, lines: int) -> tuple[Figure, np.ndarray]:
    """A figure with a column for each size of system, as wide as its settings."""
    widths = [len(settings_of(summary, indices)) for indices in summary.panels.values()]
    drawing = figure(max(COLUMN, min(PAGE, 1.6 + 0.55 * sum(widths))), height)
    return drawing, drawing.subplots(lines, len(widths), squeeze=False, width_ratios=widths)


def settings_of(summary: Summary, indices: list[int]) -> dict[str, list[int]]:
    """Settings of some fixtures, in order, and which fixtures have each."""
    found: dict[str, list[int]] = {}
    for i in indices:
        found.setdefault(summary.settings[i], []).append(i)
    return found


def by_setting(
    summary: Summary, indices: list[int], cell: Callable[[str, list[int]], float]
) -> Cells:
    """A table from what ``cell`` says of an algorithm on the fixtures of a setting."""
    chosen = settings_of(summary, indices).values()
    return np.array([[cell(name, own) for own in chosen] for name in summary.learners])


def heatmap(
    axis: Axes, table: Cells, shades: Cells, *, low: float, high: float, dark_is_low: bool
) -> None:
    """Shades from ``low`` to ``high``, and the number in every cell, light on dark and dark on
    light.
    """
    axis.imshow(
        shades,
        cmap="cividis" if dark_is_low else "cividis_r",
        vmin=low,
        vmax=max(high, low + 0.1),
        aspect="auto",
    )
    for (row, column), value in np.ndenumerate(table):
        text, ink = "failed", "black"
        if not np.isnan(value):
            text = f"{float(f'{value:.2g}'):g}"
            tone = (shades[row, column] - low) / max(high - low, 1e-9)
            ink = "white" if (tone < 0.5 if dark_is_low else tone > 0.5) else "black"
        axis.text(column, row, text, ha="center", va="center", color=ink, fontsize=6.5)


def label_cells(axis: Axes, summary: Summary, size: str, *, left: bool, bottom: bool) -> None:
    """Algorithms down the side and settings along the bottom."""
    names = list(settings_of(summary, summary.panels[size]))
    learners = upper(summary.learners)
    axis.set_xticks(range(len(names)), names if bottom else [""] * len(names))
    axis.set_yticks(range(len(learners)), learners if left else [""] * len(learners))
    axis.tick_params(length=0)
    axis.spines[:].set_visible(False)
    if bottom:
        axis.set_xlabel("p")


def macro_bars(summary: Summary) -> Figure:
    """-OptGap and |Regret| over all systems and seeds with 95% intervals, logarithmic."""
    drawing = figure(PAGE, 2.3)
    axes = drawing.subplots(1, 2)
    labels = {"paper_optgap": "- OptGap", "paper_regret": "Regret"}
    F, S = summary.runs(summary.learners[0], "paper_optgap").shape
    for axis, (metric, label) in zip(axes, labels.items(), strict=True):
        sign = -1.0 if metric == "paper_optgap" else 1.0
        for i, algorithm in enumerate(summary.learners):
            runs = sign * summary.runs(algorithm, metric)
            _bar(axis, i, runs, colour(i), width=0.7, linewidth=0.9, capsize=2.5)
        axis.axhline(0.0, color=GREY, linewidth=0.8)
        axis.set_yscale("symlog", linthresh=0.1)
        _label_bars(axis, summary, label, f"mean of {F} systems × {S} seeds, 95% interval")
    return drawing


def reward_bars(summary: Summary) -> Figure:
    """Discounted cost by algorithm, a bar a setting, with 95% intervals; a panel a size."""
    panels = summary.panels
    values = np.concatenate([e.trials["optimal_value"][:, 0] for e in summary.evaluations])
    drawing = figure(PAGE, 2.2 * len(panels) + 0.3)
    axes = drawing.subplots(len(panels), 1, squeeze=False)[:, 0]
    for axis, (size, indices) in zip(axes, panels.items(), strict=True):
        settings = settings_of(summary, indices)
        width = 0.8 / max(len(settings), 3)
        for j, (name, chosen) in enumerate(settings.items()):
            shift = (j - 0.5 * (len(settings) - 1)) * width
            for i, algorithm in enumerate(summary.learners):
                runs = -summary.runs(algorithm, "discounted_return")[chosen]
                label = "p = " + name.replace("\n", " ") if i == 0 else None
                look = {"width": width * 0.92, "linewidth": 0.8, "capsize": 2}
                _bar(axis, i + shift, runs, colour(j), label=label, **look)
            optimum = np.mean([float(values[i].mean()) for i in chosen])
            axis.axhline(optimum, color=colour(j), linestyle="--", linewidth=0.9)
        axis.set_yscale("log")
        _label_bars(axis, summary, "- discounted reward", f"{size}; dashed: the optimum V*")
        axis.set_xlim(-0.6, len(summary.learners) - 0.4)
        axis.legend(frameon=False, loc="center left", bbox_to_anchor=(1.0, 0.5))
    return drawing


def _bar(
    axis: Axes,
    at: float,
    runs: np.ndarray,
    shade: str,
    *,
    width: float,
    linewidth: float,
    capsize: float,
    label: str | None = None,
) -> None:
    """The mean of runs with its interval, and of how many systems where some completed no trial."""
    some = int((~np.isnan(runs)).any(axis=1).sum())
    if some < len(runs):  # a mean over the others alone
        axis.annotate(
            f"{some} of {len(runs)}\nsystems", (at, 1.0), xycoords=("data", "axes fraction"),
            ha="center", va="top", fontsize=6.0, color=GREY,
        )  # fmt: skip
    mean, low, high = interval_of_runs(runs)
    axis.bar(at, mean, width, color=shade, label=label)
    error = [[mean - low], [high - mean]]
    axis.errorbar(at, mean, error, color="black", linewidth=linewidth, capsize=capsize)


def _label_bars(axis: Axes, summary: Summary, label: str, title: str) -> None:
    axis.set_xticks(range(len(summary.learners)), upper(summary.learners))
    axis.set_ylabel(label)
    axis.set_title(title)
    axis.grid(axis="y", color=GRID, linewidth=0.6)
    axis.set_axisbelow(True)
