"""Rows of an evaluation for people and for programs."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

from cojax.evaluation.crossed import FEW
from cojax.evaluation.metrics import AT_LEAST, AT_MOST
from cojax.types import Row

if TYPE_CHECKING:
    from cojax.evaluation.comparison import Comparison
    from cojax.evaluation.doctor import Finding

SHOWN = {
    "relative_suboptimality": "gap / V*",
    "paper_optgap": "paper OptGap",
    "paper_regret": "paper Regret",
}
BOUNDS = {AT_LEAST: "exploitable ≥", AT_MOST: "≤"}  # of games, over V*

OF_BUDGETS = {"cost_gap": "J_c - J_c*", "violation": "J_d - D", "front_gap": "J_c - J_c*(J_d)"}
OF_RISK = {"relative_risk_gap": "risk gap / V*", "plain": "plain estimate / V*"}

NUMBERS = {
    *SHOWN.values(), *BOUNDS.values(), *OF_BUDGETS.values(), *OF_RISK.values(), "effective", "D",
    "θ", "failures", "last", "best", "failed", "median", "lowest", "highest", "bound", "diverged",
}  # fmt: skip
NARROWEST = 60


def number(value: float) -> str:
    """Three significant digits, or a whole number."""
    if value == 0.0:
        return "0"
    if math.isnan(value):
        return "nan"
    if math.isinf(value):
        return "∞" if value > 0 else "-∞"
    return f"{value:.0f}" if abs(value) >= 100.0 else f"{value:.3g}"


def with_interval(cell: dict[str, float] | None, floor: float | None = None) -> str:
    """Mean and interval: ``0.41 [0.39, 0.43]``; the mean alone where they coincide.

    A mean within the resolution floor is "≤ floor", since no difference below it is claimed; an
    exact 0 stays 0.
    """
    if cell is None:
        return "no trial without a failure"
    if floor is not None and 0.0 < abs(cell["mean"]) <= floor:
        return f"≤ {number(floor)}"
    if cell["low"] == cell["high"] == cell["mean"]:
        return number(cell["mean"])
    return f"{number(cell['mean'])} [{number(cell['low'])}, {number(cell['high'])}]"


def cell_text(row: Row, metric: str, floor: float | None = None, *, short: bool = False) -> str:
    """What a table says of a metric in a row: mean and interval, or what failed.

    ``all 64 failed``; or ``∞, 3 of 64 failed (completed: 0.41 [0.39, 0.43])``, in ``short``
    without the brackets. ``floor`` is the resolution floor in the metric's units.
    """
    failed, total = row["failures"], row["num_trials"] * (row.get("num_seeds") or 1)
    if not failed:
        return with_interval(row[metric], floor)
    if failed == total:
        return f"all {total:,} failed"
    text = f"{number(row[metric]['mean'])}, {failed:,} of {total:,} failed"
    completed = with_interval(row.get(f"{metric}_completed"), floor)
    return text if short else f"{text} (completed: {completed})"


def of_systems(cell: Row) -> str:
    """A number of several systems and, where some failed, of how many it was complete."""
    text = with_interval(cell)
    if cell["complete"] == cell["systems"]:
        return text
    if not cell["complete"]:
        return f"{text}, failures on all {cell['systems']:,} systems"
    left = cell["systems"] - cell["complete"]
    return f"{text}, failures on {left:,} of {cell['systems']:,} systems"


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
        right = name in NUMBERS
        table.add_column(name, justify="right" if right else "left", overflow="fold")
    for line in lines:
        table.add_row(*line)
    out = console()
    out.print(table)
    for note in notes:
        out.print(note, soft_wrap=True)


def print_rows(rows: Sequence[Row], overall: Mapping[str, Row] | None = None) -> None:
    """Print a table to standard output; ``overall`` says the gap over all systems by policy
    (:func:`cojax.evaluation.aggregates.over_systems`).
    """
    counts = Counter((row["fixture"], row["policy"]) for row in rows)
    bounds = [name for name in BOUNDS if any(name in row for row in rows)]
    budgets = any("violation" in row for row in rows)
    shown = dict(list(SHOWN.items())[:1]) if all("violation" in row for row in rows) else SHOWN
    more = {"budget": "D", **OF_BUDGETS} if budgets else {}
    lines = []
    for row in rows:
        several = counts[row["fixture"], row["policy"]] > 1
        policy = row["policy"] + (f" ({row['setting']})" if several else "")
        floor = row.get("resolution_floor")
        cells = [cell_text(row, m, floor if m.startswith("relative") else None) for m in shown]
        cells += [with_interval(row[name], floor) if name in row else "–" for name in bounds]
        cells += [budget_text(row, name) for name in more]
        lines.append([row["fixture"], policy, *cells, str(row["failures"])])
    empty = [""] * (len(shown) + len(bounds) + len(more))
    for policy, cell in (overall or {}).items():
        median = f"median of {cell['systems']:,} systems"
        lines.append([median, policy, of_systems(cell), *empty])
    notes = [
        "gap / V* (relative_suboptimality): mean over trials and seeds of Σ γᵏ A*(s, a)/V*(s₀) up "
        "to the horizon, where π* takes over."
    ]
    if len(shown) > 1:
        notes[0] += (
            " Paper Regret compares stage rewards at the policy's own states, and is negative for "
            "a lazy policy."
        )
    if budgets:
        notes.append(
            "J_c: cost, J_d: what the budget D is for. J_c - J_c*: gap to the optimum within the "
            "budget, negative for a policy that overspends; J_c - J_c*(J_d): distance to the front "
            "at what the policy spends, where it is known. The gap is J_c - J_c* + λ (J_d - D)."
        )
    if few := [row["num_seeds"] for row in rows if row.get("num_seeds", FEW) < FEW]:
        notes.append(
            f"Intervals over {min(few)} seeds are Student's: where seeds differ by factors "
            "(lognormal, log-sd 1) 95% intervals of 4 seeds covered 83%, of 8 seeds 91%."
        )
    if any(row["failures"] for row in rows):
        notes.append(
            "A policy that failed in some trial has no finite mean (∞); in brackets: the mean of "
            "the trials that no seed failed in."
        )
    if bounds:
        notes.append(
            "Of games the gap is against the known d*. Exploitable: J - V* over V* against the "
            "disturbance that is worst for the policy, at least (≥) as against the worse of d* and "
            "the reply of one step (∞: a trial failed against it), at most (≤) what is proven."
        )
    titles = (*shown.values(), *(BOUNDS[name] for name in bounds))
    title = f"{rows[0]['num_trials']} paired trials, 95% intervals"
    columns = ("fixture", "policy", *titles, *more.values(), "failures")
    _print(title, columns, lines, notes)


def budget_text(row: Row, name: str) -> str:
    """A cell of :func:`cojax.evaluation.constrained.columns`: "" for systems without a budget, a
    dash where it is not known.
    """
    if name not in row:
        return ""
    if isinstance(row[name], float):
        return f"{row[name]:.4g}"
    return "–" if row[name] is None else with_interval(row[name])


def risk_texts(row: Row) -> dict[str, str]:
    """What tables say of a risk gap over V*, and of the plain estimate: with an interval; "refused"
    where too few trials carry it, and what else there is against it.
    """
    cells = {"relative_risk_gap": row["relative_risk_gap"], "plain": row["plain_gap"]}
    if cells["plain"] is not None:
        ends = cells["plain"].items()
        cells["plain"] = {n: None if x is None else x / row["optimal_value"] for n, x in ends}
    texts = {}
    for name, refused in (("relative_risk_gap", "refused"), ("plain", "plain_refused")):
        text = "refused" if row[refused].startswith("effective") else f"refused: {row[refused]}"
        if cells[name] is not None:
            text = with_interval({n: math.inf if x is None else x for n, x in cells[name].items()})
        texts[name] = text
    return texts


def print_risk(rows: Sequence[Row]) -> None:
    """Print rows of :meth:`cojax.evaluation.RiskEvaluation.rows` to standard output."""
    lines = []
    for row in rows:
        seed = f", seed {row['seed']}" if "seed" in row else ""
        setting = f" ({row['setting']})" if "setting" in row else ""
        texts = risk_texts(row)
        support = (row["effective_sample_size"], row["plain_effective_sample_size"])
        tilted, plain = (f"{x:.0f}" for x in support)
        cells = [texts["relative_risk_gap"], tilted, texts["plain"], plain, str(row["failures"])]
        head = [row["fixture"], row["policy"] + setting + seed, f"{row['theta']:.4g}"]
        lines.append([*head, *cells])
    notes = [
        "risk gap / V*: (1/θ) log E exp(θ Σ γᵏ A*(s, a)) over trials of the tilted system, "
        "J_θ - J_θ* exactly; plain: the same number from costs of the system itself. Effective: "
        "how many of the trials carry the estimate; below 50 of them it is refused, and more "
        "--trials may help."
    ]
    if any(row["moments"] == "unknown" for row in rows):
        notes.append("Without a limit of the actions weights may have no second moment.")
    title = f"{rows[0]['num_trials']} paired trials, 95% intervals"
    columns = ["fixture", "policy", "θ", OF_RISK["relative_risk_gap"], "effective"]
    _print(title, [*columns, OF_RISK["plain"], "effective", "failures"], lines, notes)


def print_comparison(comparison: Comparison) -> None:
    """Print paired differences to standard output."""
    rows = comparison.rows()
    titles = ("fixture", "policy", "difference", "p (Holm)", "pairing correlation")
    lines = []
    for row in rows:
        same = row["first"] == row["second"]
        policy = row["first"] if same else f"{row['first']} - {row['second']}"
        pairing = [row.get(name) for name in ("pairing_correlation", "variance_reduction")]
        if any(row["failures"]):
            total = [row["num_trials"] * seeds for seeds in row["num_seeds"]]
            sides = zip(row["failures"], total, strict=True)
            shown = "failed: " + " and ".join(f"{k:,} of {n:,}" for k, n in sides)
        elif abs(row["difference"]["mean"]) <= row["floor"]:
            shown = f"≤ {number(row['floor'])}"
        else:
            shown = with_interval(row["difference"])
        words = ["" if value is None else number(value) for value in pairing]
        p = number(row["p_corrected"])
        lines.append([row["fixture"], policy, shown, p, *words, row["verdict"]])
    notes = [
        f"Difference: mean of the first policy's {comparison.metric} minus the second's, trial by "
        "trial.",
        "Variance reduction: by what factor common streams divide the variance of the difference, "
        "against separate ones.",
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
    title = f"{comparison.metric}: {comparison.title}, paired, 95% intervals"
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
    lines = []
    for row in rows:
        if "last" not in row:  # a reference
            continue
        gaps = [
            f"{number(cell['median'])} [{number(cell['low'])}, {number(cell['high'])}]"
            for cell in (row["last"], row["best"])
        ]
        lines.append(
            [row["fixture"], row["policy"], str(row["setting"]), *gaps, str(row["failed"])]
        )
    note = "The best was chosen by the gap it shows: judge it on other streams, cojax evaluate."
    title = f"gap in units of V*: median, lowest and highest of {rows[0]['num_seeds']} seeds"
    _print(title, ("fixture", "algorithm", "setting", "last", "best", "failed"), lines, [note])


def print_sweep(rows: Sequence[Row], *, fresh: bool, most: int = 20) -> None:
    """Print the best rows of every fixture to standard output; ``fresh``, where they were chosen
    by other seeds and streams than these.
    """
    shown: dict[str, int] = {}
    lines = []
    for row in rows:
        shown[row["fixture"]] = shown.get(row["fixture"], 0) + 1
        if shown[row["fixture"]] > most:
            continue
        varied = ", ".join(f"{n} {_short(v)}" for n, v in row["hyperparameters"].items())
        setting = "defaults" if row["setting"] < 0 else str(row["setting"])
        gaps = [number(row["seeds"][name]) for name in ("median", "low", "high")]
        diverged = f"{row['failures'] / (row['num_trials'] * row['num_seeds']):.0%}"
        labels = [row["fixture"], row["policy"], setting, varied]
        lines.append([*labels, *gaps, number(row["bound"]), diverged])
    note = "The best of many is better here than on fresh seeds: repeat it before you report it."
    if fresh:
        note = "Chosen by a search, trained again on fresh seeds, measured on fresh streams."
    left = sum(max(0, count - most) for count in shown.values())
    notes = [f"{left} more rows in rows.json", note] if left else [note]
    columns = ("fixture", "algorithm", "setting", "varied")
    columns += ("median", "lowest", "highest", "bound", "diverged")
    title = f"gap in units of V*, held-out streams: {rows[0]['num_seeds']} seeds"
    _print(title, columns, lines, notes)


def _short(value: object) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)
