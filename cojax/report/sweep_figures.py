"""Figures of a sweep: how the gap depends on each hyperparameter, and how a search went."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

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
    legend,
    log_ticks,
    save,
    style,
)
from cojax.types import Content, Json, Row

if TYPE_CHECKING:
    import pandas as pd

PANELS = 3  # in a row
STATES = {  # of a trial: marker, colour, label
    "complete": ("o", colour(0), "trained to the end"),
    "pruned": ("x", colour(1), "stopped at a rung"),
}


def write(rows: list[Row], trials: pd.DataFrame | None, folder: Path) -> None:
    """Write ``figures/*`` into a results folder that is being made, PDF and PNG each."""
    target = folder / "figures"
    target.mkdir()
    with style():
        if trials is None:
            for name in dict.fromkeys(row["policy"] for row in rows):
                drawing = sensitivity_of_rows([r for r in rows if r["policy"] == name])
                if drawing is not None:
                    save(drawing, target / f"sensitivity-{name}")
            return
        for name, mine in trials.groupby("study"):
            save(history(mine), target / f"history-{name}")
            drawing = sensitivity_of_trials(mine)
            if drawing is not None:
                save(drawing, target / f"sensitivity-{name}")
            found = json.loads((folder / f"importance-{name}.json").read_text("utf-8"))
            if found:
                save(importance(found), target / f"importance-{name}")


def sensitivity_of_rows(rows: list[Row]) -> Figure | None:
    """Median gap of each setting against each hyperparameter that was varied, lowest to highest
    seed as a line; None where nothing was.
    """
    names = _varied([row["hyperparameters"] for row in rows])
    if not names:
        return None
    fixtures = list(dict.fromkeys(row["fixture"] for row in rows))[:6]
    drawing, axes = _panels(len(names))
    for name, axis in zip(names, axes, strict=True):
        have = [row for row in rows if name in row["hyperparameters"]]
        place = _scale(axis, [row["hyperparameters"][name] for row in have])
        for i, fixture in enumerate(fixtures):
            mine = [row for row in have if row["fixture"] == fixture]
            x = [place(row["hyperparameters"][name]) for row in mine]
            y = np.array([[r["seeds"][k] for k in ("median", "low", "high")] for r in mine])
            y = np.clip(y.reshape(-1, 3), 1e-6, 1e6)
            shown = {"label": fixture} if len(fixtures) > 1 else {}
            axis.vlines(x, y[:, 1], y[:, 2], color=colour(i), alpha=0.35, lw=0.8)
            axis.plot(x, y[:, 0], "o", ms=3, color=colour(i), alpha=0.8, **shown)
        _labels(axis, name)
    seeds = rows[0]["num_seeds"]
    axes[0].set_ylabel(f"gap [V*]: median,\nrange of {seeds} seeds")
    if len(fixtures) > 1:
        legend(drawing, *axes[0].get_legend_handles_labels(), columns=3)
    return drawing


def sensitivity_of_trials(trials: pd.DataFrame) -> Figure | None:
    """Bound of each trial against each hyperparameter; those stopped early are crosses."""
    settings = [json.loads(words) for words in trials["setting"]]
    names = _varied(settings)
    if not names:
        return None
    bounds = np.clip(trials["bound"].to_numpy(float), 1e-6, 1e6)
    states = trials["state"].to_numpy()
    drawing, axes = _panels(len(names))
    for name, axis in zip(names, axes, strict=True):
        place = _scale(axis, [s[name] for s in settings if name in s])
        for state, (marker, shade, label) in STATES.items():
            chosen = [i for i, s in enumerate(settings) if name in s and states[i] == state]
            x = [place(settings[i][name]) for i in chosen]
            axis.plot(x, bounds[chosen], marker, ms=3.5, color=shade, alpha=0.75, label=label)
        _labels(axis, name)
    axes[0].set_ylabel("upper bound of gap [V*]")
    legend(drawing, *axes[0].get_legend_handles_labels(), columns=3)
    return drawing


def history(trials: pd.DataFrame) -> Figure:
    """Bound of each trial in the order of proposal, and the lowest so far."""
    drawing = figure(COLUMN, 2.3)
    axis = drawing.subplots()
    bounds = np.clip(trials["bound"].to_numpy(float), 1e-6, 1e6)
    states, numbers = trials["state"].to_numpy(), trials["number"].to_numpy()
    for state, (marker, shade, label) in STATES.items():
        mine = states == state
        axis.plot(numbers[mine], bounds[mine], marker, ms=3.5, color=shade, alpha=0.75, label=label)
    lowest = np.minimum.accumulate(np.where(states == "complete", bounds, np.inf))
    seen = np.isfinite(lowest)
    axis.step(numbers[seen], lowest[seen], where="post", color=GREY, lw=1.2, label="lowest so far")
    axis.set_yscale("log")
    log_ticks(axis.yaxis, narrow=bounds.max() <= 300 * bounds.min(), minor=True)
    axis.grid(axis="y", color=GRID, lw=0.6)
    axis.set_xlabel("setting, in order of proposal")
    axis.set_ylabel("upper bound of gap [V*]")
    legend(drawing, *axis.get_legend_handles_labels(), columns=2)
    return drawing


def importance(shares: dict[str, float]) -> Figure:
    """Share of each hyperparameter in what separates good settings from others."""
    names = sorted(shares, key=lambda name: shares[name])
    drawing = figure(COLUMN, 0.6 + 0.25 * len(names))
    axis = drawing.subplots()
    axis.barh(names, [shares[name] for name in names], color=colour(0), height=0.6)
    axis.set_xlim(0, 1)
    axis.set_xlabel("importance (PED-ANOVA), shares of 1")
    axis.grid(axis="x", color=GRID, lw=0.6)
    axis.set_axisbelow(True)
    return drawing


def _varied(settings: list[Content]) -> list[str]:
    """Hyperparameters that take at least two values."""
    names = list(dict.fromkeys(name for setting in settings for name in setting))
    return [n for n in names if len({json.dumps(s.get(n)) for s in settings}) > 1]


def _panels(num: int) -> tuple[Figure, list[Axes]]:
    columns = min(num, PANELS)
    lines = -(-num // columns)
    drawing = figure(PAGE if columns > 1 else COLUMN, 2.1 * lines)
    grid = drawing.subplots(lines, columns, sharey=True, squeeze=False)
    axes = list(grid.ravel())
    for axis in axes[num:]:
        axis.set_visible(False)
    return drawing, axes[:num]


def _scale(axis: Axes, values: list[Json]) -> Callable[[Json], float]:
    """Set the scale of x, and give the place of a value on it."""
    if all(isinstance(v, int | float) and type(v) is not bool and np.isfinite(v) for v in values):
        numbers = [float(v) for v in values]
        if min(numbers) > 0 and max(numbers) > 8 * min(numbers):
            axis.set_xscale("log")
            log_ticks(axis.xaxis, narrow=max(numbers) <= 15 * min(numbers), minor=True)
        return float
    words = sorted({str(v) for v in values})
    axis.set_xticks(range(len(words)), words)
    axis.margins(x=0.2)
    return lambda value: words.index(str(value))


def _labels(axis: Axes, name: str) -> None:
    axis.set_yscale("log")
    low, high = axis.get_ylim()
    log_ticks(axis.yaxis, narrow=high <= 300 * low, minor=True)
    axis.set_xlabel(name)
    axis.grid(axis="y", color=GRID, lw=0.6)
