"""Everything that is looked at: tables, figures and the page of one experiment."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cojax.io import yaml
from cojax.report import distance_figures, paper_figures, style
from cojax.report.figures import gap_figure
from cojax.report.summary import Summary, systems_table, table_one, targets_table

if TYPE_CHECKING:
    import pandas as pd

TABLES = {"table_1": table_one, "systems": systems_table, "targets": targets_table}
FIGURES = {
    "training_dynamics": paper_figures.training_dynamics,
    "heatmaps": paper_figures.heatmaps,
    "macro_bars": paper_figures.macro_bars,
    "reward_bars": paper_figures.reward_bars,
    "gap_heatmaps": distance_figures.gap_heatmaps,
    "profiles": distance_figures.profiles,
    "runtime_ecdf": distance_figures.runtime_ecdf,
    "homotopy": distance_figures.homotopy,
    "difficulty": distance_figures.difficulty,
}
CAPTIONS = Path(__file__).with_name("templates") / "captions.yaml"  # title and caption of each


def write_report_files(outcome: Any, folder: Path) -> None:
    """Write ``figure.png``, ``tables/*.csv`` and ``*.tex``, ``figures/*.pdf`` and ``*.png``.

    Both folders hold an ``index.json``: title, caption and command of each.
    """
    summary = Summary.of(outcome)
    words = yaml.load(CAPTIONS)
    experiment = outcome.study
    command = "cojax run config.yaml"
    if experiment.scale:  # of a shipped experiment
        command = f"cojax run {experiment.name} --scale {experiment.scale}"
    with style.style():
        gap_figure(outcome.rows, outcome.curves, folder / "figure.png")
    for kind, makers in (("tables", TABLES), ("figures", FIGURES)):
        (folder / kind).mkdir()
        index = {name: {**words[kind][name], "command": command} for name in makers}
        (folder / kind / "index.json").write_text(json.dumps(index, indent=2) + "\n", "utf-8")
    for name, make in TABLES.items():
        write_table(make(summary), folder / "tables" / name, **words["tables"][name])
    for name, draw in FIGURES.items():
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
        caption=(_escaped(caption), _escaped(title)),
        label=f"tab:{stem.name}",
    )
    stem.with_suffix(".tex").write_text(source, "utf-8")


def _escaped(words: str) -> str:
    """Text for LaTeX."""
    for character in "%&_#$":
        words = words.replace(character, f"\\{character}")
    return words.replace("…", r"\dots{}").replace("*", r"$^*$")
