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
    lane,
    legend,
    log_ticks,
    save,
    style,
)
from cojax.types import Content, Json, Row

if TYPE_CHECKING:
    import pandas as pd

CEILING = 1e6  # gaps that are greater, or infinite, are drawn in a lane there
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
    fixtures = list(dict.fromkeys(row["fixture"] for row in rows))[:6]
    of_fixture = np.array([row["fixture"] for row in rows])
    gaps = np.array([[row["seeds"][k] for k in ("median", "low", "high")] for row in rows])
    gaps = np.clip(gaps, 1e-6, CEILING)

    def draw(axis, have, x):
        lane(axis, gaps[have], CEILING)
        for i, fixture in enumerate(fixtures):
            mine = of_fixture[have] == fixture
            median, low, high = gaps[have][mine].T
            axis.vlines(x[mine], low, high, color=colour(i), alpha=0.35, lw=0.8)
            shown = {"label": fixture} if len(fixtures) > 1 else {}
            axis.plot(x[mine], median, "o", ms=3, color=colour(i), alpha=0.8, **shown)

    label = f"gap [V*]: median,\nrange of {rows[0]['num_seeds']} seeds"
    return _sensitivity([row["hyperparameters"] for row in rows], draw, label)


def sensitivity_of_trials(trials: pd.DataFrame) -> Figure | None:
    """Bound of each trial against each hyperparameter; those stopped early are crosses."""
    bounds = np.clip(trials["bound"].to_numpy(float), 1e-6, CEILING)
    states = trials["state"].to_numpy()

    def draw(axis, have, x):
        lane(axis, bounds[have], CEILING)
        _by_state(axis, x, bounds[have], states[have])

    settings = [json.loads(words) for words in trials["setting"]]
    return _sensitivity(settings, draw, "upper bound of gap [V*]")


def _sensitivity(
    settings: list[Content], draw: Callable[[Axes, np.ndarray, np.ndarray], None], label: str
) -> Figure | None:
    """A panel for each hyperparameter that takes at least two values; None where none does.

    ``draw`` is given a panel, which settings have the hyperparameter, and their places on x.
    """
    names = list(dict.fromkeys(name for setting in settings for name in setting))
    names = [n for n in names if len({json.dumps(s.get(n)) for s in settings}) > 1]
    if not names:
        return None
    columns = min(len(names), PANELS)
    lines = -(-len(names) // columns)
    drawing = figure(PAGE if columns > 1 else COLUMN, 2.1 * lines)
    axes = drawing.subplots(lines, columns, sharey=True, squeeze=False).ravel()
    for axis in axes[len(names) :]:
        axis.set_visible(False)
    for name, axis in zip(names, axes, strict=False):
        have = np.array([i for i, setting in enumerate(settings) if name in setting])
        values = [settings[i][name] for i in have]
        draw(axis, have, np.array(list(map(_scale(axis, values), values))))
        axis.set_yscale("log")
        low, high = axis.get_ylim()
        log_ticks(axis.yaxis, narrow=high <= 300 * low, minor=True)
        axis.set_xlabel(name)
        axis.grid(axis="y", color=GRID, lw=0.6)
    axes[0].set_ylabel(label)
    handles, labels = axes[0].get_legend_handles_labels()
    if labels:
        legend(drawing, handles, labels, columns=3)
    return drawing


def _by_state(axis: Axes, x: np.ndarray, bounds: np.ndarray, states: np.ndarray) -> None:
    for state, (marker, shade, label) in STATES.items():
        mine = states == state
        axis.plot(x[mine], bounds[mine], marker, ms=3.5, color=shade, alpha=0.75, label=label)


def history(trials: pd.DataFrame) -> Figure:
    """Bound of each trial in the order of proposal, and the lowest so far."""
    drawing = figure(COLUMN, 2.3)
    axis = drawing.subplots()
    bounds = np.clip(trials["bound"].to_numpy(float), 1e-6, CEILING)
    lane(axis, bounds, CEILING)
    states, numbers = trials["state"].to_numpy(), trials["number"].to_numpy()
    _by_state(axis, numbers, bounds, states)
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
