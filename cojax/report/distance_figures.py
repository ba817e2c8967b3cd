"""Figures of the exact gap: how far every learner is from the optimum, and where it stops short."""

from __future__ import annotations

import numpy as np
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from scipy.optimize import minimize
from scipy.stats import spearmanr

from cojax.evaluation.aggregates import performance_profile
from cojax.evaluation.targets import LADDER, ecdf
from cojax.fixtures.difficulty import difficulty_index
from cojax.report.paper_figures import by_setting, heatmap, label_cells, panel_axes
from cojax.report.style import COLUMN, GRID, PAGE, colour, figure, lane, legend, marker, thousands
from cojax.report.summary import GAP, Summary, hits
from cojax.types import Bool, Float

SOLVED = 0.5  # gap, in units of V*, below which a run counts as a success
CEILING = 1e4  # gaps above it, failures among them, are drawn on it


def gap_heatmaps(summary: Summary) -> Figure:
    """Median gap by algorithm × setting, a panel a size; hatched where trials failed."""
    runs = {name: _gap_of_runs(summary, name) for name in summary.learners}
    failures = {name: summary.failures(name) for name in summary.learners}
    drawing, axes = panel_axes(summary, 2.3, 1)
    low, high = -3.0, 2.0
    for column, (axis, (size, indices)) in enumerate(
        zip(axes[0], summary.panels.items(), strict=True)
    ):
        table = by_setting(summary, indices, lambda name, own: float(np.median(runs[name][own])))
        failed = by_setting(summary, indices, lambda name, own: failures[name][own].mean())
        with np.errstate(divide="ignore"):
            shades = np.clip(np.log10(table), low, high)
        shown = np.where(np.isfinite(table), table, np.nan)
        heatmap(axis, shown, shades, low=low, high=high, dark_is_low=False)
        for row, cell in np.argwhere(failed > 0.0):
            look = {"fill": False, "hatch": "////", "edgecolor": "#D55E00", "lw": 0.0}
            axis.add_patch(Rectangle((cell - 0.5, row - 0.5), 1, 1, **look))
        label_cells(axis, summary, size, left=column == 0, bottom=True)
        axis.set_title(size)
    drawing.colorbar(
        axes[0, -1].images[0], ax=axes[0], label="log10 gap, units of V*", fraction=0.06
    )
    S = len(runs[summary.learners[0]][0])
    drawing.suptitle(f"median gap of {S} seeds; hatched: some trials failed", fontsize=8.5)
    return drawing


def _gap_of_runs(summary: Summary, algorithm: str) -> Float[np.ndarray, "F S"]:
    """Mean gap of each run over its trials; infinite where one failed."""
    return summary.scores(algorithm, GAP).mean(axis=-1)


def profiles(summary: Summary) -> Figure:
    """Share of runs within each gap, with 95% bands."""
    drawing = figure(COLUMN, 2.6)
    axis = drawing.subplots()
    tau = np.geomspace(1e-3, 1e2, 101)
    for i, algorithm in enumerate(summary.learners):
        band = performance_profile(summary.scores(algorithm, GAP), tau, floor=summary.floors(GAP))
        axis.plot(tau, band.mean, color=colour(i), linewidth=1.4, label=algorithm.upper())
        axis.fill_between(tau, band.low, band.high, color=colour(i), alpha=0.15, linewidth=0)
    F, S, _ = summary.scores(summary.learners[0], "suboptimality").shape
    axis.set(xscale="log", xlim=(tau[0], tau[-1]), ylim=(-0.02, 1.02))
    axis.set(xlabel="gap, in units of V*", ylabel=f"share of runs ({F} systems × {S} seeds)")
    axis.grid(color=GRID, linewidth=0.6)
    legend(drawing, *axis.get_legend_handles_labels(), columns=3)
    return drawing


def runtime_ecdf(summary: Summary) -> Figure:
    """Share of (run, target) pairs met within each number of environment steps."""
    drawing = figure(COLUMN, 2.6)
    axis = drawing.subplots()
    for i, algorithm in enumerate(summary.learners):
        met, budget = hits(summary, algorithm, LADDER)
        steps = np.linspace(0.0, budget, 201)
        axis.plot(steps, ecdf(met, steps), color=colour(i), linewidth=1.4, label=algorithm.upper())
    axis.set(ylim=(-0.02, 1.02), ylabel="share of (run, target) pairs met")
    axis.set_title(f"{len(LADDER)} targets, gaps of {LADDER[0]:g} to {LADDER[-1]:g} V*")
    axis.grid(color=GRID, linewidth=0.6)
    thousands(axis)
    legend(drawing, *axis.get_legend_handles_labels(), columns=3)
    return drawing


def homotopy(summary: Summary) -> Figure:
    """Gap against p, and the share of runs that come within SOLVED of V*, with a logistic fit."""
    drawing = figure(PAGE, 2.6)
    left, right = drawing.subplots(1, 2)
    p = np.array([fixture.p for fixture in summary.fixtures])
    grid = np.linspace(p.min(), p.max(), 101)
    runs = np.empty(0)
    lane(left, np.concatenate([_gap_of_runs(summary, a) for a in summary.learners]), CEILING)
    for i, algorithm in enumerate(summary.learners):
        runs = _gap_of_runs(summary, algorithm)
        shift = (i - 0.5 * (len(summary.learners) - 1)) * 0.01 * np.ptp(p)
        shown = np.minimum(runs, CEILING)
        left.plot(
            np.repeat(p + shift, runs.shape[1]), shown.ravel(), marker(i), color=colour(i), ms=2.5
        )
        levels = np.unique(p)
        medians = [np.median(shown[p == level]) for level in levels]
        left.plot(levels + shift, medians, color=colour(i), linewidth=1.4, label=algorithm.upper())
        success = runs < SOLVED
        share = [success[p == level].mean() for level in levels]
        right.plot(levels + shift, share, marker(i), color=colour(i), markersize=4)
        fit = logistic_fit(np.repeat(p, runs.shape[1]), success.ravel())
        if fit is not None:
            middle, slope = fit
            right.plot(grid, 1.0 / (1.0 + np.exp(-slope * (grid - middle))), color=colour(i))
            if p.min() <= middle <= p.max():
                right.axvline(middle, color=colour(i), linestyle=":", linewidth=1.0)
    left.set(yscale="log", xlabel="p", ylabel="gap, in units of V*")
    right.set(xlabel="p", ylabel=f"share of runs with gap < {SOLVED:g}", ylim=(-0.05, 1.05))
    right.set_title("curves: logistic fits; dotted: their 50% points")
    left.set_title(f"{runs.size} runs each; line: median; {CEILING:g} and more: failed")
    for axis in (left, right):
        axis.grid(color=GRID, linewidth=0.6)
    legend(drawing, *left.get_legend_handles_labels(), columns=len(summary.learners))
    return drawing


def logistic_fit(
    x: Float[np.ndarray, " N"], success: Bool[np.ndarray, " N"]
) -> tuple[float, float] | None:
    """(x_50, slope) of P(success) = 1/(1 + exp(-slope (x - x_50))) by penalised likelihood.

    The penalty, a Normal(0, 20/range of x) prior on the slope, keeps separated data finite. None
    where all runs succeed or all fail, or x does not vary: the 50% point is not identified.
    """
    if success.all() or not success.any() or np.ptp(x) == 0.0:
        return None
    z = (x - x.mean()) / np.ptp(x)
    y = np.where(success, 1.0, -1.0)

    def loss(theta):
        terms = np.logaddexp(0.0, -y * (theta[0] + theta[1] * z))
        return float(terms.sum() + 0.5 * (theta[1] / 20.0) ** 2)

    intercept, slope = minimize(loss, np.zeros(2)).x
    if abs(slope) < 1e-6:
        return None
    return float(x.mean() - np.ptp(x) * intercept / slope), float(slope / np.ptp(x))


def difficulty(summary: Summary) -> Figure:
    """The paper's difficulty index against the measured gap, a point a fixture and algorithm."""
    drawing = figure(COLUMN, 2.7)
    axis = drawing.subplots()
    index = np.array([difficulty_index(fixture) for fixture in summary.fixtures])
    medians = [np.median(_gap_of_runs(summary, name), axis=1) for name in summary.learners]
    lane(axis, np.concatenate(medians), CEILING)
    for i, algorithm in enumerate(summary.learners):
        gap = np.minimum(medians[i], CEILING)
        rank = float(np.asarray(spearmanr(index, gap))[0]) if len(index) > 2 else np.nan
        label = f"{algorithm.upper()}, ρ = {rank:.2f}"
        axis.plot(index, gap, marker(i), color=colour(i), markersize=4, label=label)
    axis.set(
        yscale="log", xlabel="difficulty index D of the paper", ylabel="median gap, units of V*"
    )
    axis.grid(color=GRID, linewidth=0.6)
    legend(drawing, *axis.get_legend_handles_labels(), columns=2)
    return drawing
