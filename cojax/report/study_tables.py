"""The tables of an experiment for a paper: a line an algorithm, a number and interval a cell."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from cojax.evaluation.aggregates import over_systems, probability_of_improvement
from cojax.evaluation.intervals import CONFIDENCE
from cojax.evaluation.metrics import cell_of
from cojax.report.printing import of_systems, with_interval
from cojax.report.style import upper
from cojax.report.summary import GAP, PAPERS, Summary, interval_of_runs, published
from cojax.report.tables import BEST, TIED, Cell, Table

if TYPE_CHECKING:
    import pandas as pd

TITLES = {"optgap": "OptGap", "regret": "Regret"}
STYLES = {  # which columns beside the algorithm's name
    "gap": ("gap", "failed"),
    "compact": ("gap", *PAPERS, "failed"),
    "paper": ("gap", *(f"{whose}{name}" for name in PAPERS for whose in ("", "paper "))),
}


def compact_table(summary: Summary, style: str = "compact") -> Table:
    """The table of an experiment in one of STYLES; "paper" is for the paper's experiments."""
    x = {name: summary.scores(name, GAP) for name in summary.learners}
    found = marks_over_systems(summary)
    theirs = published(summary.name)
    cells: dict[str, list[Cell]] = {
        "gap": [Cell(of_systems(over_systems(x[n])), found.get(n, "")) for n in x],
        "failed": [Cell(f"{(~np.isfinite(y)).sum():,} of {y.size:,}") for y in x.values()],
    }
    for name, metric in PAPERS.items():
        cells[name] = [Cell(_of_runs(summary.runs(n, metric))) for n in x]
        cells[f"paper {name}"] = [Cell(_published(theirs.get(n), name)) for n in x]
    chosen = STYLES[style]
    titles = {"gap": "gap / V*", "failed": "failed trials"} | TITLES
    titles |= {f"paper {name}": f"{title}, paper" for name, title in TITLES.items()}
    names = [Cell(name) for name in upper(summary.learners)]
    lines = list(zip(names, *(cells[name] for name in chosen), strict=True))
    label = f"{summary.name}-{style}".replace("_", "-")
    return Table(
        ["algorithm", *(titles[n] for n in chosen)], lines, _caption(summary, style), label
    )


def compact_frame(summary: Summary) -> pd.DataFrame:
    """The compact table as words, for a page: * the best, ~ not told apart from it."""
    import pandas as pd

    table = compact_table(summary)
    signs = {BEST: " *", TIED: " ~", "": ""}
    lines = [[cell.text + signs[cell.mark] for cell in line] for line in table.lines]
    return pd.DataFrame(lines, columns=list(table.columns))


def marks_over_systems(summary: Summary) -> dict[str, str]:
    """BEST, and TIED with it, by algorithm; empty for one algorithm, or where all failed.

    Tied is whose runs are not told apart from the best one's: the interval of the probability of
    improvement (:func:`~cojax.evaluation.aggregates.probability_of_improvement`), of confidence
    1 - 0.05/(K - 1) for K algorithms, holds 1/2.
    """
    x = {name: summary.scores(name, GAP) for name in summary.learners}
    values = {name: over_systems(scores)["mean"] for name, scores in x.items()}
    best = min(values, key=lambda name: values[name])
    if len(x) == 1 or not np.isfinite(values[best]):
        return {}
    confidence = 1.0 - (1.0 - CONFIDENCE) / (len(x) - 1)
    found = {best: BEST}
    for name, scores in x.items():
        if name != best:
            share = probability_of_improvement(
                x[best], scores, floor=summary.floors(GAP), confidence=confidence
            )
            if share.low <= 0.5 <= share.high:
                found[name] = TIED
    return found


def _of_runs(runs: np.ndarray) -> str:
    """The mean of runs that completed a trial, and of how many systems, where not of all."""
    some = int((~np.isnan(runs)).any(axis=1).sum())
    if not some:
        return "all failed"
    left = "" if some == len(runs) else f" ({some} of {len(runs)} systems)"
    return with_interval(cell_of(*interval_of_runs(runs))) + left


def _published(row: dict[str, float] | None, name: str) -> str:
    if row is None or np.isnan(row[f"{name}_mean"]):
        return "–"
    return with_interval(cell_of(*(row[f"{name}_{end}"] for end in ("mean", "lo", "hi"))))


def _caption(summary: Summary, style: str) -> str:
    x = summary.scores(summary.learners[0], GAP)
    F, S, N = x.shape
    systems = f"{F} systems" if F > 1 else "one system"
    over = f"median over {systems} of the mean over" if F > 1 else "mean over"
    words = [
        f"{summary.name}: {systems}, {S} training seed{'s' * (S > 1)} each, {N} paired trials.",
        f"gap / V*: {over} seeds and trials of Σ γᵏ A*(s, a)/V*(s₀) up to the horizon, where the "
        "optimal policy takes over, with its 95% interval over seeds and trials for these systems; "
        "0 is the optimum, ∞: trials failed.",
    ]
    if marks_over_systems(summary):
        words.append(
            "Bold: the lowest gap. †: not told apart from it (the probability that a run of the "
            "best is nearer to the optimum than this one's may be 1/2, at 95% by Bonferroni)."
        )
    if style != "gap":
        words.append(
            "OptGap and Regret: by the paper's definitions, mean of completed trials over systems "
            "and seeds; a policy that does nothing can have a Regret below zero."
        )
    if style == "paper":
        words.append("Paper: as published there.")
    if "failed" in STYLES[style]:
        words.append("Failed trials: left the divergence guard, or a number was not finite.")
    return " ".join(words)


def caption_of_page(summary: Summary) -> str:
    """The compact table's caption for :func:`compact_frame`."""
    return _caption(summary, "compact").replace("Bold:", "*:").replace("†:", "~:")
