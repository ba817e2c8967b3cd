"""list, show, oracle, validate, generate: commands about fixtures."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING

import click

from cojax.labels import Labels
from cojax.types import Content, Json, Row

if TYPE_CHECKING:
    from cojax.fixtures.query import Problem


@click.command("list")
@click.option("--json", "as_json", is_flag=True, help="Rows as JSON, and nothing else.")
def list_command(as_json: bool) -> None:
    """List the fixtures shipped with the package, with their difficulty and its tier."""
    from cojax.fixtures import card, shelf

    rows = [_row(*card.read(name)) for name in shelf.shipped()]
    if as_json:
        _print_json(rows)
        return
    columns = [
        "id",
        "family",
        "state_dim",
        "action_dim",
        "p",
        "gamma",
        "horizon",
        "difficulty",
        "tier",
    ]
    table = [columns, *([_word(row[c]) for c in columns] for row in rows)]
    _print_table(table)


@click.command("show")
@click.argument("fixture")
@click.option("--json", "as_json", is_flag=True, help="The content as JSON, and nothing else.")
@click.option("--plot", "plot_path", metavar="FILE", help="Draw it to a png, pdf or svg file.")
def show_command(fixture: str, as_json: bool, plot_path: str | None) -> None:
    """Show a fixture: its dimensions, knobs, spectra, difficulty and certificate.

    Entries of observations and actions are named with their units. Numbers are those of the file:
    `cojax validate` computes them anew.
    """
    from cojax.fixtures import card

    content, names = card.read(fixture)
    if as_json:
        _print_json([content])
    else:
        click.echo(card.card(content, names))
    if plot_path is not None:
        from cojax.errors import InputError
        from cojax.fixtures import load_fixture
        from cojax.fixtures.plots import plot

        if not plot_path.endswith((".png", ".pdf", ".svg")):
            raise InputError(f"{plot_path}: expected a file ending in .png, .pdf or .svg")
        plot(load_fixture(fixture), plot_path)


@click.command("oracle")
@click.argument("fixture")
@click.option(
    "--states",
    required=True,
    metavar="FILE|-",
    help='JSON: a list of {"s": [...], "a": [...]} or of lists; or, in a file ending in .jsonl '
    "and on standard input (-), one of these a line.",
)
@click.option("--x64", is_flag=True, help="Compute in float64 instead of float32.")
def oracle_command(fixture: str, states: str, x64: bool) -> None:
    """Print optimal drift, action and value at states as JSON; more where an action is given.

    An action beyond the limit is clipped as the system clips it, and the row says so. Lines are
    answered one by one, each as soon as it is read, by one line: for a controller in any language
    that keeps the program running. The answer to a line that cannot be used is {"error": ...}, and
    the status is then 2.
    """
    import numpy as np

    from cojax.fixtures import load_fixture
    from cojax.fixtures.query import LINES, Problem

    problem = Problem(load_fixture(fixture), np.float64 if x64 else np.float32)
    if states == "-":
        _answer(problem, sys.stdin.buffer, "standard input")
    elif states.endswith(LINES):
        with open(states, "rb") as file:
            _answer(problem, file, states)
    else:
        _print_json(problem.rows(problem.read(states)))


def _answer(problem: Problem, lines: Iterable[bytes], name: str) -> None:
    """Answer line by line; InputError at the end where some could not be used."""
    from cojax.errors import InputError

    faults = []
    for answer, fault in problem.answers(lines):
        click.echo(answer)  # which flushes
        faults += [] if fault is None else [fault]
    if faults:
        raise InputError(f"{name}: {faults[0]}; lines that could not be used: {len(faults)}")


@click.command("validate")
@click.argument("fixtures", nargs=-1, required=True)
@click.option("--json", "as_json", is_flag=True, help="Rows as JSON, and nothing else.")
def validate_command(fixtures: tuple[str, ...], as_json: bool) -> None:
    """Check fixtures anew; status 1 where one is not what it says."""
    from cojax.fixtures.validator import validate_many

    with progress("validate") if len(fixtures) > 1 else nullcontext() as advance:
        certificates = validate_many(fixtures, progress=advance)
    rows = []
    for name, certificate in zip(fixtures, certificates, strict=True):
        rows.append({"id": name, **certificate.model_dump()})
        if not as_json:
            click.echo(f"{name}: {'valid' if certificate.passed else 'INVALID'}")
            for check_name, check in certificate.checks.items():
                mark = "ok  " if check.passed else "FAIL"
                figures = f"{_word(check.value):>10}  {_word(check.tolerance):>9}"
                click.echo(f"  {mark} {check_name:<20}{figures}  {check.note}".rstrip())
    if as_json:
        _print_json(rows)
    if not all(certificates):
        raise SystemExit(1)


@click.command("derive")
@click.argument("fixture")
@click.option(
    "--set",
    "settings",
    metavar="NAME=VALUE",
    multiple=True,
    required=True,
    help="A knob, matrix or field: Sigma=1e-2, p=0.5, gamma=0.98, horizon=100, R='{diag: [1, 2]}'; "
    "may be repeated.",
)
@click.option("--out", required=True, metavar="FILE.yaml", help="File to write.")
@click.option("--id", "name", metavar="NEW", help="Its name [default: the old one and a hash].")
def derive_command(fixture: str, settings: tuple[str, ...], out: str, name: str | None) -> None:
    """Change a fixture: write another, with an id, difficulty and certificate of its own.

    Status 1, and nothing written, where the changed system cannot be certified.
    """
    import os

    from cojax.commands.studies import assignment
    from cojax.errors import InputError
    from cojax.fixtures import load_fixture, save_fixture
    from cojax.fixtures.difficulty import tier

    changes = dict(assignment(word) for word in settings)
    if not out.endswith((".yaml", ".yml")):
        raise InputError(f"--out: expected a file ending in .yaml, got {out}")
    if os.path.exists(out):
        raise InputError(f"--out: {out} exists; expected a new file")
    with progress("derive"):
        made = load_fixture(fixture).derive(**{**changes, **({"id": name} if name else {})})
    save_fixture(made, out)
    assert made.difficulty is not None
    told = f"certified, difficulty {made.difficulty.index:g}, {tier(made)}"
    click.echo(f"{out}: {made.id}, {told}")


@click.command("generate")
@click.argument("family")
@click.option("--num", "-n", type=click.IntRange(0), default=10, show_default=True)
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True)
@click.option("--out", "-o", required=True, help="Folder to write into.")
@click.option(
    "--range",
    "range_options",
    multiple=True,
    metavar="NAME=RANGE",
    help="A knob or matrix: p=0.4:1.0, n=2,4,8, R=log:0.1:10, gamma=0.98. Repeatable.",
)
@click.option(
    "--ranges",
    "ranges_file",
    help="YAML file of distributions, or a shipped recipe: thousand-arm, thousand-nvdex.",
)
@click.option("--parameterization", type=click.Choice(["metric", "sqrt"]))
@click.option("--nonlinearity", type=float, help="Factor of all rotation gains.")
@click.option("--id", "prefix", help="Prefix of the ids.")
@click.option("--max-attempts", type=click.IntRange(1), default=50, show_default=True)
@click.option("--resume", is_flag=True, help="Go on with a folder that holds a part of the set.")
def generate_command(
    family: str,
    *,
    num: int,
    seed: int,
    out: str,
    range_options: tuple[str, ...],
    ranges_file: str | None,
    parameterization: str | None,
    nonlinearity: float | None,
    prefix: str | None,
    max_attempts: int,
    resume: bool,
) -> None:
    """Generate validated fixtures of a family: ConverseArm, NVDEx, …"""
    from cojax.errors import InputError
    from cojax.fixtures import dataset
    from cojax.fixtures.ranges import parse

    ranges = {} if ranges_file is None else dataset.read_ranges(ranges_file)
    ranges |= dict(parse(text) for text in range_options)
    direct = {"parameterization": parameterization, "nonlinearity": nonlinearity}
    ranges |= {name: value for name, value in direct.items() if value is not None}
    try:
        with progress(f"generate {family}") as advance:
            outcome = dataset.generate_folder(
                out,
                family,
                num,
                seed,
                ranges=ranges,
                id=prefix,
                max_attempts=max_attempts,
                resume=resume,
                progress=advance,
            )
    except OSError as error:
        if error.strerror is None or isinstance(error, FileNotFoundError):
            raise
        message = f"{error.filename or out}: {error.strerror}; finished fixtures are whole"
        raise InputError(message) from None
    made, kept = len(outcome.fixtures), num - len(outcome.fixtures)
    already = f", {kept} were there already" if kept else ""
    click.echo(f"{out}: {made} fixtures generated in {outcome.attempts} attempts{already}")
    for reason, count in outcome.rejected.most_common():
        click.echo(f"  rejected by {reason}: {count}")


@contextmanager
def progress(title: str) -> Iterator[Callable[[int, int], None]]:
    """Progress counted in fixtures."""
    from cojax.io.progress import stage

    with stage(title, announced=False) as report:
        yield lambda done, total: report(done / max(total, 1), f"{done} of {total}")


def _row(content: Content, names: Labels) -> Row:
    from cojax.fixtures import shelf

    difficulty = content.get("difficulty")
    return {
        "id": content["id"],
        "family": content["family"],
        "parameterization": content["parameterization"],
        "state_dim": len(names[0]),
        "action_dim": len(names[1]),
        "p": content["knobs"]["p"],
        "gamma": content["gamma"],
        "horizon": content["horizon"],
        "difficulty": None if difficulty is None else difficulty["index"],
        "tier": shelf.tier(difficulty),
        "certified": bool((content.get("certificate") or {}).get("passed")),
        "sha256": content["sha256"],
    }


def _print_json(rows: list[Row]) -> None:
    """A JSON list, one object a line."""
    lines = ",\n ".join(json.dumps(row) for row in rows)
    click.echo(f"[{lines}]")


def _word(value: Json) -> str:
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:.4g}" if math.isfinite(value) else str(value)
    return str(value)


def _print_table(table: list[list[str]]) -> None:
    widths = [max(len(row[i]) for row in table) for i in range(len(table[0]))]
    for row in table:
        line = "  ".join(word.ljust(width) for word, width in zip(row, widths, strict=True))
        click.echo(line.rstrip())


COMMANDS: list[click.Command] = [
    list_command,
    show_command,
    oracle_command,
    validate_command,
    derive_command,
    generate_command,
]
