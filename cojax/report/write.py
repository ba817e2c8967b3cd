"""Everything that is looked at: tables, figures and the page of one experiment."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cojax.report import distance_figures, paper_figures, style
from cojax.report.figures import gap_figure
from cojax.report.summary import Summary, systems_table, table_one, targets_table

if TYPE_CHECKING:
    import pandas as pd

TABLES: dict[str, tuple[Callable[[Summary], pd.DataFrame], str, str]] = {
    "table_1": (
        table_one,
        "Table I, beside the paper's",
        "OptGap and Regret by the paper's definitions, ours and the paper's (paper_…), then the "
        "exact gap up to the horizon, where the oracle takes over, in units of V*: mean, median "
        "and IQM, with 95% intervals over seeds, for these systems. The paper's Regret compares "
        "stage rewards at the learner's own states, so a policy that does nothing can score below "
        "zero however far it is from the optimum.",
    ),
    "systems": (
        systems_table,
        "Every system",
        "The exact gap in units of V* (mean, best and worst seed), OptGap, Regret and discounted "
        "reward of each algorithm on each system; a failed trial makes a gap infinite.",
    ),
    "targets": (
        targets_table,
        "Steps to fixed targets",
        "Share of runs whose gap came below each target in training, and the average runtime: "
        "steps spent by all runs over the number that met it.",
    ),
}
FIGURES: dict[str, tuple[Callable[[Summary], Any], str, str]] = {
    "training_dynamics": (
        paper_figures.training_dynamics,
        "Training dynamics",
        "Stage reward of training episodes, and the exact gap on the common streams.",
    ),
    "heatmaps": (
        paper_figures.heatmaps,
        "OptGap and Regret",
        "The paper's measures by algorithm and p, a panel for each size.",
    ),
    "macro_bars": (
        paper_figures.macro_bars,
        "OptGap and Regret over all systems",
        "Macro averages with 95% intervals over seeds, for these systems.",
    ),
    "reward_bars": (
        paper_figures.reward_bars,
        "Discounted reward",
        "By algorithm and p; the optimum is dashed.",
    ),
    "gap_heatmaps": (
        distance_figures.gap_heatmaps,
        "Exact gap",
        "Median gap to the optimum in units of V*; hatched where trials failed.",
    ),
    "profiles": (
        distance_figures.profiles,
        "Performance profiles",
        "Share of runs within each gap.",
    ),
    "runtime_ecdf": (
        distance_figures.runtime_ecdf,
        "Targets met over training",
        "Share of (run, target) pairs met within each number of environment steps.",
    ),
    "homotopy": (
        distance_figures.homotopy,
        "From hard to easy control",
        "Gap against control strength p, and the share of runs that come close to the optimum.",
    ),
    "difficulty": (
        distance_figures.difficulty,
        "Difficulty index against measured gap",
        "The paper's index D says how hard a system should be; the gap says how hard it was.",
    ),
}


def write_report_files(outcome: Any, folder: Path) -> None:
    """Write ``figure.png``, ``tables/*.csv`` and ``*.tex``, ``figures/*.pdf`` and ``*.png``.

    Both folders hold an ``index.json``: title, caption and command of each.
    """
    summary = Summary.of(outcome)
    experiment = outcome.study
    command = "cojax run config.yaml"
    if experiment.scale:  # of a shipped experiment
        command = f"cojax run {experiment.name} --scale {experiment.scale}"
    with style.style():
        gap_figure(outcome.rows, outcome.curves, folder / "figure.png")
    for kind, entries in (("tables", TABLES), ("figures", FIGURES)):
        (folder / kind).mkdir()
        index = {
            name: {"title": title, "caption": caption, "command": command}
            for name, (_, title, caption) in entries.items()
        }
        (folder / kind / "index.json").write_text(json.dumps(index, indent=2) + "\n", "utf-8")
    for name, (make, title, caption) in TABLES.items():
        write_table(make(summary), folder / "tables" / name, title, caption)
    for name, (draw, _, _) in FIGURES.items():
        with style.style():
            style.save(draw(summary), folder / "figures" / name)


def write_table(table: pd.DataFrame, stem: Path, title: str, caption: str) -> None:
    """Write ``stem.csv``, every digit, and ``stem.tex``, three digits, for booktabs."""
    table.to_csv(stem.with_suffix(".csv"), index=False)
    shown = table.rename(columns=lambda name: name.replace("_", " "))
    source = shown.to_latex(
        index=False,
        escape=True,
        na_rep="--",
        float_format=lambda x: f"{x:.3g}",
        caption=(f"{_escaped(caption)}", _escaped(title)),
        label=f"tab:{stem.name}",
    )
    stem.with_suffix(".tex").write_text(source, "utf-8")


def _escaped(words: str) -> str:
    """Text for LaTeX."""
    for character in "%&_#$":
        words = words.replace(character, f"\\{character}")
    return words.replace("…", r"\dots{}").replace("*", r"$^*$")
