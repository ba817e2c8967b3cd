"""The paper's figures, by its own definitions of OptGap and Regret."""

from __future__ import annotations

from typing import Any

import numpy as np

from cojax.report.style import (
    COLUMN,
    GREY,
    GRID,
    PAGE,
    colour,
    figure,
    legend_above,
    thousands,
    upper,
)
from cojax.report.summary import Summary, interval_of_runs


def training_dynamics(summary: Summary) -> Any:
    """Learning curves on the first fixture: the mean stage reward of training episodes, and the gap
    on the common streams; thin lines are seeds, thick ones their median.
    """
    name = summary.fixtures[0].id
    of_fixture = summary.curves.query("fixture == @name")
    drawing = figure(PAGE, 2.6)
    left, right = drawing.subplots(1, 2)
    columns = {left: "stage_reward", right: "relative_suboptimality"}
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
    legend_above(drawing, right, len(summary.learners))
    return drawing


def heatmaps(summary: Summary) -> Any:
    """OptGap, and log10 of the absolute Regret, by algorithm × setting, a column a size."""
    rows = {
        "OptGap": ("paper_optgap", lambda x: -np.log10(np.maximum(-x, 1e-4))),
        "Regret": ("paper_regret", lambda x: np.log10(np.maximum(np.abs(x), 1e-4))),
    }
    panels = summary.panels
    cells = sum(len(_columns(summary, indices)) for indices in panels.values())
    drawing = figure(max(COLUMN, min(PAGE, 1.6 + 0.55 * cells)), 0.7 + 3.4)
    axes = drawing.subplots(
        2,
        len(panels),
        squeeze=False,
        width_ratios=[len(_columns(summary, i)) for i in panels.values()],
    )
    for line, (title, (metric, shade)) in enumerate(rows.items()):
        tables = [_table(summary, indices, metric) for indices in panels.values()]
        shades = [shade(table) for table in tables]
        finite = np.concatenate([x[np.isfinite(x)] for x in shades] or [np.zeros(1)])
        image = None
        low, high = (finite.min(), finite.max()) if finite.size else (0.0, 1.0)
        for column, (size, indices) in enumerate(panels.items()):
            axis = axes[line, column]
            cmap = "cividis" if line == 0 else "cividis_r"
            image = axis.imshow(
                shades[column], cmap=cmap, vmin=low, vmax=max(high, low + 0.1), aspect="auto"
            )
            annotate(axis, tables[column], shades[column], low, high, dark_is_low=line == 0)
            label_cells(axis, summary, indices, column == 0, line == 1)
            axis.set_title(f"{title}, {size}")
        label = "-log10(-OptGap)" if line == 0 else "log10 |Regret|"
        drawing.colorbar(image, ax=axes[line], label=label, fraction=0.05)
    return drawing


def _columns(summary: Summary, indices: list[int]) -> list[str]:
    return list(dict.fromkeys(summary.settings[i] for i in indices))


def _table(summary: Summary, indices: list[int], metric: str) -> np.ndarray:
    """Means over fixtures of a setting, seeds and completed trials; (algorithms, settings)."""
    names = _columns(summary, indices)
    table = np.full((len(summary.learners), len(names)), np.nan)
    for row, algorithm in enumerate(summary.learners):
        runs = summary.runs(algorithm, metric)
        for column, name in enumerate(names):
            chosen = runs[[i for i in indices if summary.settings[i] == name]]
            if np.isfinite(chosen).any():
                table[row, column] = np.nanmean(chosen)
    return table


def annotate(
    axis: Any, table: np.ndarray, shades: np.ndarray, low: float, high: float, dark_is_low: bool
) -> None:
    """Write the number into every cell, light on dark and dark on light."""
    for (row, column), value in np.ndenumerate(table):
        if np.isnan(value):
            text, tone = "failed", 0.5
        else:
            text = f"{float(f'{value:.2g}'):g}"
            tone = (shades[row, column] - low) / max(high - low, 1e-9)
        dark = tone < 0.5 if dark_is_low else tone > 0.5
        ink = "white" if dark and not np.isnan(value) else "black"
        axis.text(column, row, text, ha="center", va="center", color=ink, fontsize=6.5)


def label_cells(axis: Any, summary: Summary, indices: list[int], left: bool, bottom: bool) -> None:
    """Algorithms down the side and settings along the bottom."""
    names = _columns(summary, indices)
    axis.set_xticks(range(len(names)), names if bottom else [""] * len(names))
    axis.set_yticks(
        range(len(summary.learners)),
        upper(summary.learners) if left else [""] * len(summary.learners),
    )
    axis.tick_params(length=0)
    axis.spines[:].set_visible(False)
    if bottom:
        axis.set_xlabel("p")


def macro_bars(summary: Summary) -> Any:
    """-OptGap and |Regret| over all systems and seeds with 95% intervals, logarithmic."""
    drawing = figure(PAGE, 2.3)
    axes = drawing.subplots(1, 2)
    labels = {"paper_optgap": "- OptGap", "paper_regret": "Regret"}
    F, S = summary.runs(summary.learners[0], "paper_optgap").shape
    for axis, (metric, label) in zip(axes, labels.items(), strict=True):
        sign = -1.0 if metric == "paper_optgap" else 1.0
        for i, algorithm in enumerate(summary.learners):
            mean, low, high = interval_of_runs(sign * summary.runs(algorithm, metric))
            error = [[mean - low], [high - mean]]
            axis.bar(i, mean, color=colour(i), width=0.7)
            axis.errorbar(i, mean, yerr=error, color="black", linewidth=0.9, capsize=2.5)
        axis.axhline(0.0, color=GREY, linewidth=0.8)
        axis.set_yscale("symlog", linthresh=0.1)
        axis.set_xticks(range(len(summary.learners)), upper(summary.learners))
        axis.set_ylabel(label)
        axis.set_title(f"mean of {F} systems × {S} seeds, 95% interval")
        axis.grid(axis="y", color=GRID, linewidth=0.6)
        axis.set_axisbelow(True)
    return drawing


def reward_bars(summary: Summary) -> Any:
    """Discounted cost by algorithm, a bar a setting, with 95% intervals; a panel a size."""
    panels = summary.panels
    drawing = figure(PAGE, 2.2 * len(panels) + 0.3)
    axes = drawing.subplots(len(panels), 1, squeeze=False)[:, 0]
    for axis, (size, indices) in zip(axes, panels.items(), strict=True):
        names = _columns(summary, indices)
        width = 0.8 / max(len(names), 3)
        for j, name in enumerate(names):
            chosen = [i for i in indices if summary.settings[i] == name]
            for i, algorithm in enumerate(summary.learners):
                runs = -summary.runs(algorithm, "discounted_return")[chosen]
                mean, low, high = interval_of_runs(runs)
                label = "p = " + name.replace("\n", " ") if i == 0 else None
                at = i + (j - 0.5 * (len(names) - 1)) * width
                axis.bar(at, mean, width * 0.92, color=colour(j), label=label)
                axis.errorbar(
                    at, mean, [[mean - low], [high - mean]], color="black", lw=0.8, capsize=2
                )
            optimum = np.mean([_optimal(summary, i) for i in chosen])
            axis.axhline(optimum, color=colour(j), linestyle="--", linewidth=0.9)
        axis.set_yscale("log")
        axis.set_xticks(range(len(summary.learners)), upper(summary.learners))
        axis.set_ylabel("- discounted reward")
        axis.set_title(f"{size}; dashed: the optimum V*")
        axis.grid(axis="y", color=GRID, linewidth=0.6)
        axis.set_axisbelow(True)
        axis.set_xlim(-0.6, len(summary.learners) - 0.4)
        axis.legend(frameon=False, loc="center left", bbox_to_anchor=(1.0, 0.5))
    return drawing


def _optimal(summary: Summary, index: int) -> float:
    """Mean V*(s_0) of a fixture over its trials."""
    values = np.concatenate([e.trials["optimal_value"][:, 0] for e in summary.evaluations])
    return float(values[index].mean())
