"""Rows of an evaluation for people and for programs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

from cojax.evaluation.crossed import FEW
from cojax.types import Row

if TYPE_CHECKING:
    from cojax.evaluation.doctor import Finding

SHOWN = {
    "relative_suboptimality": "gap / V*",
    "paper_optgap": "paper OptGap",
    "paper_regret": "paper Regret",
}

NARROWEST = 60


def number(value: float) -> str:
    """Three significant digits, or a whole number."""
    if value == 0.0:
        return "0"
    if math.isnan(value):
        return "nan"
    if math.isinf(value):
        return "inf" if value > 0 else "-inf"
    return f"{value:.0f}" if abs(value) >= 100.0 else f"{value:.3g}"


def with_interval(cell: dict[str, float] | None, floor: float | None = None) -> str:
    """Mean and interval: ``0.41 [0.39, 0.43]``; the mean alone where they coincide.

    A mean within the resolution floor is "≤ floor", since no difference below it is claimed; an
    exact 0 stays 0.
    """
    if cell is None:
        return "none completed"
    if floor is not None and 0.0 < abs(cell["mean"]) <= floor:
        return f"≤ {number(floor)}"
    if cell["low"] == cell["high"] == cell["mean"]:
        return number(cell["mean"])
    return f"{number(cell['mean'])} [{number(cell['low'])}, {number(cell['high'])}]"


def console() -> Console:
    """A terminal as wide as it is; a log or a pipe wide enough for a table.

    On a terminal too narrow for columns lines are broken, and no figure is left out.
    """
    out = Console()
    return Console(width=max(out.width, NARROWEST) if out.is_terminal else 120)


def _print(title: str, columns: Sequence[str], lines: list[list[str]], notes: list[str]) -> None:
    """A table to standard output, and notes below it; numbers stand to the right."""
    table = Table(title=title)
    for name in columns:
        right = name in SHOWN.values() or name == "failures"
        table.add_column(name, justify="right" if right else "left", overflow="fold")
    for line in lines:
        table.add_row(*line)
    out = console()
    out.print(table)
    for note in notes:
        out.print(note, soft_wrap=True)


def print_rows(rows: Sequence[Row]) -> None:
    """Print a table to standard output."""
    lines = []
    for row in rows:
        policy = row["policy"] + (f" ({row['setting']})" if "setting" in row else "")
        cells = [_shown(row, metric) for metric in SHOWN]
        lines.append([row["fixture"], policy, *cells, str(row["failures"])])
    notes = [
        "gap: Σ γᵏ A*(s, a) up to the horizon, where π* takes over. Paper Regret compares stage "
        "rewards at the policy's own states, and is negative for a lazy policy."
    ]
    if few := [row["num_seeds"] for row in rows if row.get("num_seeds", FEW) < FEW]:
        notes.append(
            f"Intervals over {min(few)} seeds are Student's: where seeds differ by factors "
            "(lognormal, log-sd 1) 95% intervals of 4 seeds covered 83%, of 8 seeds 91%."
        )
    if any(row["failures"] for row in rows):
        notes.append(
            "A policy that failed in some trial has no finite mean; in brackets: the trials it "
            "completed."
        )
    title = f"{rows[0]['num_trials']} paired trials, 95% intervals"
    _print(title, ("fixture", "policy", *SHOWN.values(), "failures"), lines, notes)


def _shown(row: Row, metric: str) -> str:
    floor = row.get("resolution_floor") if metric.startswith("relative") else None
    text = with_interval(row[metric], floor)
    if row["failures"]:
        text += f" (completed: {with_interval(row[f'{metric}_completed'], floor)})"
    return text


def print_comparison(rows: Sequence[Row], first: str, second: str) -> None:
    """Print paired differences to standard output."""
    titles = ("fixture", "policy", "difference", "p (Holm)", "pairing correlation")
    lines = []
    for row in rows:
        same = row["first"] == row["second"]
        policy = row["first"] if same else f"{row['first']} - {row['second']}"
        pairing = [row.get(name) for name in ("pairing_correlation", "variance_reduction")]
        if any(row["failures"]):
            shown = "failures: {} and {}".format(*row["failures"])
        elif abs(row["difference"]["mean"]) <= row["floor"]:
            shown = f"≤ {number(row['floor'])}"
        else:
            shown = with_interval(row["difference"])
        words = ["" if value is None else number(value) for value in pairing]
        p = number(row["p_corrected"])
        lines.append([row["fixture"], policy, shown, p, *words, row["verdict"]])
    notes = [
        "Variance reduction: by what factor common streams divide the variance of the difference, "
        "against separate ones."
    ]
    seeds = [row["num_seeds"] for row in rows]
    if any(max(pair) > 1 for pair in seeds):
        notes.append(
            "Seeds are the sample: paired where both sides have as many, else two samples. Where "
            "they differ by factors (lognormal, log-sd 1), 95% intervals of 4 seeds against one "
            "policy covered 83%, of 10 seeds 87%."
        )
    if any(min(pair) == 1 < max(pair) for pair in seeds):
        notes.append("A side of one seed is that policy alone, not its algorithm.")
    title = f"{rows[0]['metric']}: {first} - {second}, paired, 95% intervals"
    _print(title, (*titles, "variance reduction", "verdict"), lines, notes)


def print_findings(findings: Sequence[Finding], machine: dict[str, str]) -> None:
    """Print what the doctor found, and a verdict."""
    lines = [[*finding[:3], "ok" if finding.passed else "FAILED"] for finding in findings]
    failed = [finding.check for finding in findings if not finding.passed]
    note = "Sound: gaps measured on this machine are what they say."
    if failed:
        note = f"Not sound: {', '.join(failed)}. Do not trust gaps measured here."
    title = ", ".join(f"{name} {value}" for name, value in machine.items())
    _print(title, ("check", "found", "expected", ""), lines, [note])
