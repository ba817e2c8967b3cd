"""Rows of an evaluation for people and for programs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from cojax.evaluation.crossed import FEW
from cojax.types import Row

if TYPE_CHECKING:
    from rich.console import Console

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
    from rich.console import Console

    out = Console()
    return Console(width=max(out.width, NARROWEST) if out.is_terminal else 120)


def print_rows(rows: Sequence[dict[str, Any]]) -> None:
    """Print a table to standard output."""
    from rich.table import Table

    table = Table(title=f"{rows[0]['num_trials']} paired trials, 95% intervals")
    table.add_column("fixture", overflow="fold")
    table.add_column("policy", overflow="fold")
    for title in SHOWN.values():
        table.add_column(title, justify="right", overflow="fold")
    table.add_column("failures", justify="right")
    for row in rows:
        policy = row["policy"]
        if "setting" in row:
            policy += f" ({row['setting']})"
        cells = [_shown(row, metric) for metric in SHOWN]
        table.add_row(row["fixture"], policy, *cells, str(row["failures"]))
    out = console()
    out.print(table)
    out.print(
        "gap: Σ γᵏ A*(s, a) up to the horizon, where π* takes over. Paper Regret compares stage "
        "rewards at the policy's own states, and is negative for a lazy policy.",
        soft_wrap=True,
    )
    few = [row["num_seeds"] for row in rows if row.get("num_seeds", FEW) < FEW]
    if few:
        out.print(
            f"Intervals over {min(few)} seeds are Student's: where seeds differ by factors "
            "(lognormal, log-sd 1) 95% intervals of 4 seeds covered 83%, of 8 seeds 91%.",
            soft_wrap=True,
        )
    if any(row["failures"] for row in rows):
        out.print(
            "A policy that failed in some trial has no finite mean; in brackets: the trials it "
            "completed.",
            soft_wrap=True,
        )


def _shown(row: dict[str, Any], metric: str) -> str:
    floor = row.get("resolution_floor") if metric.startswith("relative") else None
    text = with_interval(row[metric], floor)
    if row["failures"]:
        text += f" (completed: {with_interval(row[f'{metric}_completed'], floor)})"
    return text


def print_comparison(rows: Sequence[dict[str, Any]], first: str, second: str) -> None:
    """Print paired differences to standard output."""
    from rich.table import Table

    table = Table(title=f"{rows[0]['metric']}: {first} - {second}, paired, 95% intervals")
    titles = ("fixture", "policy", "difference", "p (Holm)")
    for title in (*titles, "pairing correlation", "variance reduction", "verdict"):
        table.add_column(title, overflow="fold")
    for row in rows:
        same = row["first"] == row["second"]
        policy = row["first"] if same else f"{row['first']} - {row['second']}"
        pairing = [row.get(name) for name in ("pairing_correlation", "variance_reduction")]
        if abs(row["difference"]["mean"]) <= row["floor"]:
            shown = f"≤ {number(row['floor'])}"
        else:
            shown = with_interval(row["difference"])
        if any(row["failures"]):
            shown = "failures: {} and {}".format(*row["failures"])
        table.add_row(
            row["fixture"],
            policy,
            shown,
            number(row["p_corrected"]),
            *("" if value is None else number(value) for value in pairing),
            row["verdict"],
        )
    out = console()
    out.print(table)
    out.print(
        "Variance reduction: by what factor common streams divide the variance of the difference, "
        "against separate ones.",
        soft_wrap=True,
    )
    seeds = [row["num_seeds"] for row in rows]
    if any(max(pair) > 1 for pair in seeds):
        out.print(
            "Seeds are the sample: paired where both sides have as many, else two samples. Where "
            "they differ by factors (lognormal, log-sd 1), 95% intervals of 4 seeds against one "
            "policy covered 83%, of 10 seeds 87%.",
            soft_wrap=True,
        )
    if any(min(pair) == 1 < max(pair) for pair in seeds):
        out.print("A side of one seed is that policy alone, not its algorithm.", soft_wrap=True)


def print_findings(findings: Sequence[Any], machine: dict[str, str]) -> None:
    """Print what the doctor found, and a verdict."""
    from rich.table import Table

    table = Table(title=", ".join(f"{name} {value}" for name, value in machine.items()))
    for title in ("check", "found", "expected", ""):
        table.add_column(title, overflow="fold")
    for finding in findings:
        table.add_row(*finding[:3], "ok" if finding.passed else "FAILED")
    out = console()
    out.print(table)
    failed = [finding.check for finding in findings if not finding.passed]
    out.print(
        f"Not sound: {', '.join(failed)}. Do not trust gaps measured here."
        if failed
        else "Sound: gaps measured on this machine are what they say.",
        soft_wrap=True,
    )


def print_study(rows: Sequence[Row], kind: str, *, chosen: bool) -> None:
    """Print the table of a study of some kind; ``chosen``, where a search chose its settings by
    other seeds and streams than these.
    """
    if kind == "run":
        print_rows(rows)
    elif kind == "train":
        print_training(rows)
    else:
        print_sweep(rows, fresh=chosen)


def print_training(rows: Sequence[Row]) -> None:
    """Print the gaps on the curves of a training to standard output."""
    from rich.table import Table

    title = f"gap in units of V*: median, lowest and highest of {rows[0]['num_seeds']} seeds"
    table = Table(title=title)
    for title in ("fixture", "algorithm", "setting"):
        table.add_column(title, overflow="fold")
    for title in ("last", "best", "failed"):
        table.add_column(title, justify="right", overflow="fold")
    for row in rows:
        if "last" not in row:  # a reference
            continue
        gaps = [
            f"{number(cell['median'])} [{number(cell['low'])}, {number(cell['high'])}]"
            for cell in (row["last"], row["best"])
        ]
        labels = (row["fixture"], row["policy"], str(row["setting"]))
        table.add_row(*labels, *gaps, str(row["failed"]))
    out = console()
    out.print(table)
    out.print(
        "The best was chosen by the gap it shows: judge it on other streams, cojax evaluate.",
        soft_wrap=True,
    )


def print_sweep(rows: Sequence[Row], *, fresh: bool, most: int = 20) -> None:
    """Print the best rows of every fixture to standard output; ``fresh``, where they were chosen
    by other seeds and streams than these.
    """
    from rich.table import Table

    table = Table(title=f"gap in units of V*, held-out streams: {rows[0]['num_seeds']} seeds")
    for title in ("fixture", "algorithm", "setting", "varied"):
        table.add_column(title, overflow="fold")
    for title in ("median", "lowest", "highest", "bound", "diverged"):
        table.add_column(title, justify="right", overflow="fold")
    shown: dict[str, int] = {}
    for row in rows:
        shown[row["fixture"]] = shown.get(row["fixture"], 0) + 1
        if shown[row["fixture"]] > most:
            continue
        varied = ", ".join(f"{n} {_short(v)}" for n, v in row["hyperparameters"].items())
        number_of = "defaults" if row["setting"] < 0 else str(row["setting"])
        gap = row["seeds"]
        table.add_row(
            row["fixture"], row["policy"], number_of, varied,
            number(gap["median"]), number(gap["low"]), number(gap["high"]), number(row["bound"]),
            f"{row['failures'] / (row['num_trials'] * row['num_seeds']):.0%}",
        )  # fmt: skip
    out = console()
    out.print(table)
    left = sum(max(0, count - most) for count in shown.values())
    if left:
        out.print(f"{left} more rows in rows.json")
    note = "The best of many is better here than on fresh seeds: repeat it before you report it."
    if fresh:
        note = "Chosen by a search, trained again on fresh seeds, measured on fresh streams."
    out.print(note, soft_wrap=True)


def _short(value: object) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)
