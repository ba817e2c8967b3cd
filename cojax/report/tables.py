"""Tables as text, Markdown, LaTeX and HTML, with the best of each line marked.

Best is the lowest mean of a line (the highest, where more is better), the oracle apart. Policies
that cannot be told apart from it share a second mark: their paired difference is within the
resolution floor, or its p-value, corrected by Holm over the table, is above 0.05.
"""

from __future__ import annotations

import html
import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from cojax import errors
from cojax.evaluation.aggregates import compare_pair, floors, judged, over_systems, scores
from cojax.evaluation.metrics import METRIC, summarize, words
from cojax.evaluation.result import Evaluation
from cojax.report.printing import cell_text, of_systems
from cojax.types import Float, Row

FORMATS = ("text", "markdown", "latex", "html")
BEST, TIED = "best", "tied"
MARKS = {"text": ("*", "~"), "markdown": ("**", "†"), "latex": ("", "$^{\\dagger}$")}
APART = "oracle"  # the optimum itself is never the best of a line


class Cell(NamedTuple):
    """A number with its interval, in words, and whether it is BEST, TIED or neither."""

    text: str
    mark: str = ""


class Table(NamedTuple):
    """A table before it is written: cells are in the order of the columns, the first is a name."""

    columns: Sequence[str]
    lines: Sequence[Sequence[Cell]]
    caption: str
    label: str = ""


def written(table: Table, format: str) -> str:
    """A table in one of FORMATS. Raises InputError for another."""
    return {"text": _text, "markdown": _markdown, "latex": latex, "html": _html}[
        errors.one_of("format", format, FORMATS)
    ](table)


LATEX = {
    "Σ γᵏ A*(s, a)": r"$\sum_k \gamma^k A^*(s_k, a_k)$",
    "Σ γᵏ A*(s, a)/V*(s₀)": r"$\sum_k \gamma^k A^*(s_k, a_k)/V^*(s_0)$",
    "V*(s₀)": "$V^*(s_0)$", "V*": "$V^*$",
    "(V_r - V_r*)/|V_r*|": "$(V_r - V_r^*)/|V_r^*|$", "p > 0.05": "$p > 0.05$",
    "\\": r"\textbackslash{}", "%": r"\%", "&": r"\&", "_": r"\_", "#": r"\#", "$": r"\$",
    "{": r"\{", "}": r"\}", "^": r"\^{}", "~": r"\~{}", "<": "$<$", ">": "$>$", "…": r"\dots{}",
    "*": "$^*$", "†": r"$^{\dagger}$", "∞": r"$\infty$", "≤": r"$\leq$", "γ": r"$\gamma$",
    "π": r"$\pi$", "×": r"$\times$", "–": "--", "-∞": r"$-\infty$",
}  # fmt: skip
_PIECES = re.compile("|".join(map(re.escape, sorted(LATEX, key=len, reverse=True))))


def escaped(words: str) -> str:
    """Text for LaTeX; formulas of captions become formulas, and a sign a minus."""
    words = re.sub(r"(?<!\w)-(?=\d)", "\x00", words)
    return _PIECES.sub(lambda found: LATEX[found[0]], words).replace("\x00", "$-$")


def latex(table: Table, *, wide: bool = False) -> str:
    """For booktabs: best in bold, the caption above. ``wide`` goes over both columns of a page."""
    kind = "table*" if wide else "table"
    lines = [f"\\begin{{{kind}}}[t]", "\\centering\\small"]
    lines += [f"\\caption{{{escaped(table.caption)}}}"]
    lines += [f"\\label{{tab:{table.label}}}"] if table.label else []
    lines += [f"\\begin{{tabular}}{{l{'r' * (len(table.columns) - 1)}}}", "\\toprule"]
    lines += [" & ".join(map(escaped, table.columns)) + r" \\", "\\midrule"]
    for line in table.lines:
        cells = []
        for text, mark in line:
            value, rest = _value(text)
            value = f"\\textbf{{{escaped(value)}}}" if mark == BEST else escaped(value)
            cells.append(value + (MARKS["latex"][1] if mark == TIED else "") + escaped(rest))
        lines.append(" & ".join(cells) + r" \\")
    lines += ["\\bottomrule", "\\end{tabular}", f"\\end{{{kind}}}", ""]
    return "\n".join(lines)


def _value(text: str) -> tuple[str, str]:
    """A number, and the interval after it."""
    value, bracket, rest = text.partition(" [")
    return value, bracket + rest


def _text(table: Table) -> str:
    best, tied = MARKS["text"]
    marked = [[c.text + {BEST: best, TIED: tied}.get(c.mark, "") for c in x] for x in table.lines]
    cells = [list(table.columns), *marked]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = []
    for line in cells:
        name, *rest = (text.ljust(w) if k == 0 else text.rjust(w)
                       for k, (text, w) in enumerate(zip(line, widths, strict=True)))  # fmt: skip
        lines.append("  ".join([name, *rest]).rstrip())
    lines.insert(1, "-" * (sum(widths) + 2 * len(widths) - 2))
    return "\n".join([*lines, _words(table.caption, best, tied)])


def _markdown(table: Table) -> str:
    best, tied = MARKS["markdown"]
    rule = ["---", *["---:"] * (len(table.columns) - 1)]
    lines = [table.columns, rule]
    for line in table.lines:
        cells = []
        for text, mark in line:
            value, rest = _value(text.replace("|", "\\|"))
            value = f"{best}{value}{best}" if mark == BEST else value
            cells.append(value + (tied if mark == TIED else "") + rest)
        lines.append(cells)
    return "\n".join(["| " + " | ".join(line) + " |" for line in lines] + ["", table.caption])


def _html(table: Table) -> str:
    def row(cells, tag):
        return "<tr>" + "".join(f"<{tag}>{cell}</{tag}>" for cell in cells) + "</tr>"

    lines = [row(map(html.escape, table.columns), "th")]
    for line in table.lines:
        cells = []
        for text, mark in line:
            value, rest = map(html.escape, _value(text))
            value = f"<strong>{value}</strong>" if mark == BEST else value
            cells.append(value + ("†" if mark == TIED else "") + rest)
        lines.append(row(cells, "td"))
    caption = f"<caption>{html.escape(table.caption)}</caption>"
    return "\n".join(["<table>", caption, *lines, "</table>"])


def _words(caption: str, best: str, tied: str) -> str:
    """A caption for marks that are characters."""
    return caption.replace("Bold:", f"{best}:").replace("†:", f"{tied}:")


# --- what is best ---------------------------------------------------------------------------------


def marks(x: Mapping[str, Float[np.ndarray, "F S N"]], floor: Sequence[float]) -> list[Row]:
    """Of each fixture BEST or TIED by policy; ``x`` are scores, less is better.

    Empty where there is one policy to judge, or all failed.
    """
    judges = {name: values for name, values in x.items() if name != APART}
    found: list[Row] = [{} for _ in floor]
    rows: list[Row] = []
    if len(judges) > 1:
        for f, own in enumerate(floor):
            means = {name: float(np.mean(values[f])) for name, values in judges.items()}
            best = min(means, key=lambda name: means[name])
            if np.isfinite(means[best]):
                found[f][best] = BEST
                pairs = [(name, judges[name][f]) for name in judges if name != best]
                rows += [
                    {"at": f, "name": name, "floor": float(own)}
                    | compare_pair(judges[best][f], values)
                    for name, values in pairs
                ]
    for row in judged(rows) if rows else []:
        if row["verdict"] in ("≤ floor", "no difference"):
            found[row["at"]][row["name"]] = TIED
    return found


MARKED = (
    "Bold: the best of its line, the oracle apart. †: not told apart from the best (difference "
    "within the resolution floor, or paired p > 0.05 by Holm's correction over the table)."
)


# --- evaluations ----------------------------------------------------------------------------------


def evaluation_table(evaluation: Evaluation, format: str, metric: str) -> str:
    """What :meth:`cojax.evaluation.Evaluation.table` gives; raises as it does."""
    errors.one_of("format", format, FORMATS)
    x = scores(evaluation, metric)
    found = marks(x, [float(one) for one in floors(evaluation, metric)])
    lines = []
    for f, fixture in enumerate(evaluation.fixtures):
        texts = texts_of(evaluation, f, metric)
        pairs = zip(x, texts, strict=True)
        lines.append([Cell(fixture), *(Cell(text, found[f].get(n, "")) for n, text in pairs)])
    caption = f"{_sentence(metric)}: {of_what(evaluation)}"
    if len(lines) > 1:
        cells = [Cell(of_systems(over_systems(values, metric))) for values in x.values()]
        lines.append([Cell(f"median of {len(lines)} systems"), *cells])
        caption += " Last line: the median over systems of these means, and its interval."
    if any(found):
        caption += f" {MARKED}"
    if evaluation.trials["failed"].any():
        caption += " ∞: some trial failed."
    return written(Table(["system", *x], lines, caption, "evaluation"), format)


def texts_of(evaluation: Evaluation, fixture: int, metric: str) -> list[str]:
    """What a table says of each policy on one fixture, with the numbers of ``Evaluation.rows``."""
    floor = evaluation.floors[fixture] if evaluation.floors and metric == METRIC else None
    rows = metric_rows(evaluation, fixture, metric)
    return [cell_text(row, metric, floor, short=True) for row in rows]


def metric_rows(evaluation: Evaluation, fixture: int, metric: str) -> list[Row]:
    """The rows of ``Evaluation.rows`` on one fixture, with one metric alone."""
    cells = [
        {name: evaluation.trials[name][fixture, members] for name in (metric, "failed")}
        for members in evaluation.populations().values()
    ]
    return [summarize(one, {}) for one in cells]


def of_what(evaluation: Evaluation) -> str:
    """What a mean is over, in words."""
    seeds = {len(members) for members in evaluation.populations().values()}
    several = f" and {max(seeds)} seeds" if max(seeds) > 1 else ""
    return f"mean of {evaluation.num_trials} paired trials{several} [95% interval]."


def _sentence(metric: str) -> str:
    said = words(metric)
    return f"{said[0].upper()}{said[1:]} ({metric})"


def evaluation_words(evaluation: Evaluation, most: int = 4) -> str:
    """Three lines about an evaluation."""
    e, x = evaluation, scores(evaluation)
    counts = [(len(e.fixtures), "fixture"), (len(x), "policy"), (e.num_trials, "paired trial")]
    plural = {"policy": "policies"}
    words = [f"{n} {w if n == 1 else plural.get(w, w + 's')}" for n, w in counts]
    if len(e.fixtures) == 1:
        where, texts = e.fixtures[0], texts_of(e, 0, METRIC)
    else:
        where = f"median of {len(e.fixtures)} systems"
        texts = [of_systems(over_systems(values)) for values in list(x.values())[:most]]
    numbers = [f"{name} {text}" for name, text in zip(x, texts, strict=False)][:most]
    numbers += [f"{len(x) - most} more"] if len(x) > most else []
    return (
        f"Evaluation({', '.join(words)}, root {e.root}, {e.dtype})\n"
        f"  {METRIC}, {where}: {', '.join(numbers)}\n"
        "  .table(), .plot(), .rows(), .to_frame(), .save(folder), .join(other)"
    )
