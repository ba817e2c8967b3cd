"""Everything that is looked at: tables, figures and the page of one experiment."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cojax.io import yaml
from cojax.report import distance_figures, paper_figures, study_tables, style
from cojax.report.figures import gap_figure
from cojax.report.summary import Summary, published, systems_table, table_one, targets_table
from cojax.report.tables import escaped, latex

if TYPE_CHECKING:
    import pandas as pd

TABLES = {
    "table_1_compact": study_tables.compact_frame,
    "table_1": table_one,
    "systems": systems_table,
    "targets": targets_table,
}
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

    Both folders hold an ``index.json``: title, caption and command of each. Table I is there as
    ``table_1.csv``, every column, and for a paper as ``table_1_compact.tex``, ``table_1_gap.tex``,
    which fits one column of a page, and, of the paper's experiments, ``table_1_paper.tex``, beside
    the paper's.
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
        if kind == "tables":  # the page shows the compact one
            index["table_1"]["on_page"] = False
            index["table_1_compact"]["caption"] = study_tables.caption_of_page(summary)
        (folder / kind / "index.json").write_text(json.dumps(index, indent=2) + "\n", "utf-8")
    for name, make in TABLES.items():
        table, stem = make(summary), folder / "tables" / name
        table.to_csv(stem.with_suffix(".csv"), index=False)
        if not name.startswith("table_1"):
            write_latex(table, stem, **words["tables"][name])
    for kind in study_tables.STYLES if published(summary.name) else ("gap", "compact"):
        source = latex(study_tables.compact_table(summary, kind), wide=kind != "gap")
        (folder / "tables" / f"table_1_{kind}.tex").write_text(source, "utf-8")
    for name, draw in FIGURES.items():
        with style.style():
            style.save(draw(summary), folder / "figures" / name)


def write_latex(table: pd.DataFrame, stem: Path, title: str, caption: str) -> None:
    """Write ``stem.tex``, three digits, for booktabs."""
    shown = table.rename(columns=lambda name: name.replace("_", " "))
    source = shown.to_latex(
        index=False,
        escape=True,
        na_rep="--",
        float_format=lambda x: f"{x:.3g}",
        caption=(escaped(caption), escaped(title)),
        label=f"tab:{stem.name}",
    )
    stem.with_suffix(".tex").write_text(source, "utf-8")
