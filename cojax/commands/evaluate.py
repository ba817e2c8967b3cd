"""Commands about how good policies are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from cojax.types import Content, Option

if TYPE_CHECKING:
    from cojax.evaluation.members import AnyPolicy
    from cojax.fixtures import Fixture


@click.command()
@click.option(
    "--fixture",
    "fixtures",
    metavar="NAME|FILE",
    multiple=True,
    required=True,
    help="A shipped fixture or a fixture file; may be repeated.",
)
@click.option(
    "--policy",
    "policies",
    metavar="POLICY",
    multiple=True,
    help="oracle, zero, random, lqr, receding-horizon:STEPS, dithered-oracle:STD, "
    "detuned-oracle:FACTOR, a saved policy FILE.npz, FOLDER@ALGORITHM[:SETTING] of results, or "
    "FILE.py:FUNCTION, action = FUNCTION(observation), which runs the file; NAME=POLICY calls it "
    "NAME; may be repeated  [default: oracle, zero].",
)
@click.option(
    "--sb3",
    "models",
    metavar="MODEL.zip",
    multiple=True,
    help="A model saved by Stable-Baselines3 or sb3-contrib, a pickle: loading it runs code that "
    "is inside.",
)
@click.option("--trials", type=int, default=256, show_default=True, help="Paired trials.")
@click.option("--root", type=int, default=0, show_default=True, help="Seed of the streams.")
@click.option("--steps", type=int, default=None, help="Steps of a trial [default: the horizon].")
@click.option("--out", default=None, metavar="DIR", help="Also write a results folder.")
@click.option(
    "--where",
    "chart",
    default=None,
    metavar="FILE.png",
    help="Also draw where the gap of each policy arises, by V* of the state and by time.",
)
@click.option(
    "--adversary",
    type=click.Choice(["optimal", "myopic", "none"]),
    default=None,
    help="Of games: who plays the disturbance  [default: optimal]. With none, J - V* is of either "
    "sign, and no gap.",
)
@click.option(
    "--risk",
    "theta",
    type=float,
    default=None,
    metavar="THETA",
    help="Gaps of the exponential cost (1/θ) log E exp(θ Σ c) of an episode, by rollouts of the "
    "tilted system. A fixture with a price of risk has its own θ, and is measured so by itself; "
    "another needs hard limits of its actions.",
)
@click.option("--json", "as_json", is_flag=True, help="Print rows as JSON, and nothing else.")
def evaluate(
    *,
    fixtures: tuple[str, ...],
    policies: tuple[str, ...],
    models: tuple[str, ...],
    trials: int,
    root: int,
    steps: int | None,
    out: str | None,
    chart: str | None,
    adversary: str | None,
    theta: float | None,
    as_json: bool,
) -> None:
    """Measure how far policies are from the optimum, on the same starts and the same noise.

    With a budget, also how far they are from it and from the optimum within it.

    A metric's mean is null in JSON where it is infinite: the policy failed in some trial, and the
    mean of the trials it completed is beside it under <metric>_completed.
    """
    from pathlib import Path

    from cojax.errors import InputError
    from cojax.evaluation import constrained, games, provenance
    from cojax.evaluation import evaluate as run
    from cojax.evaluation.aggregates import over_systems, scores
    from cojax.fixtures import load_fixture
    from cojax.fixtures.extensions import Risk
    from cojax.io import files, json_text
    from cojax.named_policies import any_policy_from_text, load_sb3, sb3_algorithm
    from cojax.report import printing

    if chart is not None and (len(fixtures) != 1 or models):
        raise InputError("--where: expected one --fixture, and no --sb3")
    if chart is not None and not (
        chart.endswith((".png", ".pdf", ".svg")) and Path(chart).absolute().parent.is_dir()
    ):
        raise InputError(f"--where: expected a .png, .pdf or .svg in a folder that is, got {chart}")
    if adversary in ("myopic", "none") and (out is not None or chart is not None):
        raise InputError(f"--adversary {adversary}: expected neither --out nor --where")
    if out is not None:
        files.refuse_existing(out)

    loaded = [load_fixture(name) for name in fixtures]
    if not policies and not models:
        policies = ("oracle", "zero")
    named = [any_policy_from_text(text) for text in policies]
    chosen: list[object] = [*named]
    for path in models:
        sb3_algorithm(path)  # refuses what is no model
        click.echo(
            f"{path}: a pickle: loading it runs code that is inside; use --sb3 on files you trust",
            err=True,
        )
        chosen.append(load_sb3(path))
    if adversary == "none":
        _nominal(chosen, loaded, as_json, num_trials=trials, root=root, num_steps=steps)
        return
    settings: Content = {"fixtures": fixtures, "policies": [*policies, *models]}
    settings |= {"trials": trials, "steps": steps}
    if theta is not None or any(isinstance(fixture.extension, Risk) for fixture in loaded):
        if adversary is not None or chart is not None:
            raise InputError("--risk: expected neither --adversary nor --where")
        settings |= {"risk": theta}
        _at_risk(chosen, loaded, theta, out, settings=settings, root=root, as_json=as_json)
        return
    subjects: object = loaded
    if adversary is not None:  # which also refuses what is no game
        played = {fixture.id: games.against(fixture, adversary) for fixture in loaded}  # pyright: ignore
        subjects = loaded if adversary == "optimal" else played
    result = run(chosen, subjects, trials, root, num_steps=steps)
    more = constrained.columns(result, loaded)
    rows = games.with_bounds(result, chosen, subjects)
    rows = [row | own for row, own in zip(rows, more, strict=True)]
    try:
        if out is not None:
            provenance.save(result, out, settings, rows=rows)
        if chart is not None:
            _draw(named, loaded[0], chart, num_trials=trials, num_steps=steps, root=root)
    finally:  # a full disk does not take the figures too
        if as_json:
            click.echo(json_text.rows_text(rows))
        else:
            several = scores(result) if len(result.fixtures) > 1 else {}
            printing.print_rows(rows, {name: over_systems(x) for name, x in several.items()})


def _at_risk(
    policies: Sequence[object],
    fixtures: Sequence[Fixture],
    theta: float | None,
    out: str | None,
    *,
    settings: Content,
    root: int,
    as_json: bool,
) -> None:
    """Risk gaps of policies on fixtures at ``theta``, by default their own."""
    from cojax.evaluation import at_risk, provenance, repriced
    from cojax.io import json_text
    from cojax.report import printing

    subjects = [repriced(fixture, theta, settings["steps"]) for fixture in fixtures]
    found = at_risk([*policies], subjects, settings["trials"], root)
    rows = found.rows()
    try:
        if out is not None:
            provenance.save(found.evaluation, out, settings, rows=rows, kernel="tilted")
    finally:
        if as_json:
            click.echo(json_text.rows_text(rows))
        else:
            printing.print_risk(rows)


def _nominal(
    policies: Sequence[object], fixtures: Sequence[Fixture], as_json: bool, **options: Option
) -> None:
    """J - V* of policies where no disturbance plays."""
    from cojax.evaluation.games import nominal
    from cojax.io import json_text

    rows = [
        {"fixture": fixture.id, **row}
        for fixture in fixtures
        for row in nominal([*policies], fixture, **options)  # pyright: ignore[reportArgumentType]
    ]
    if as_json:
        click.echo(json_text.rows_text(rows))
        return
    click.echo("J - V* without a disturbance, of either sign: no gap, since no optimum is known")
    for row in rows:
        mean, low, high = (row["signed"][name] for name in ("mean", "low", "high"))
        interval = "" if low is None else f"  [{low:+.4g}, {high:+.4g}]"
        click.echo(f"{row['fixture']}  {row['policy']}  {mean:+.4g}{interval}")


def _draw(policies: Sequence[AnyPolicy], fixture: Fixture, path: str, **options: Option) -> None:
    """Where the gap of each policy arises, every member of a population for itself."""
    from cojax.evaluation.diagnosis import diagnose
    from cojax.evaluation.host import HostPolicy
    from cojax.evaluation.members import singles
    from cojax.report.figures import diagnosis_figure

    alone: list[AnyPolicy] = []
    for policy in policies:
        alone += [policy] if isinstance(policy, HostPolicy) else singles(policy)
    diagnosis_figure([diagnose(one, fixture, **options) for one in alone], path)


@click.command()
@click.argument("first", metavar="A")
@click.argument("second", metavar="[B]", required=False)
@click.option("--metric", help="What is compared  [default: relative_suboptimality].")
@click.option(
    "--policy",
    "policies",
    multiple=True,
    metavar="NAME|ONE=OTHER",
    help="Only these policies; ONE=OTHER compares ONE of A with OTHER of B. May be repeated.",
)
@click.option("--json", "as_json", is_flag=True, help="Print rows as JSON, and nothing else.")
def compare(
    first: str, second: str | None, *, metric: str | None, policies: tuple[str, ...], as_json: bool
) -> None:
    """Compare two results folders, trial by trial, or the policies of one with each other.

    Differences are A - B, of policies of one name unless --policy says otherwise. Refuses, with
    status 1, folders whose streams, fixtures, horizons or precision differ.
    """
    from cojax.evaluation import comparison, provenance
    from cojax.evaluation.metrics import METRIC
    from cojax.io import json_text
    from cojax.report import printing

    if second is not None:
        reasons = comparison.obstacles(provenance.load(first), provenance.load(second))
        if reasons:
            click.echo(f"cojax: {first} and {second} cannot be compared:", err=True)
            for reason in reasons:
                click.echo(f"  {reason}", err=True)
            raise SystemExit(1)
    found = comparison.compare(first, second, metric or METRIC, policies=policies)
    if as_json:
        click.echo(json_text.rows_text(found.rows()))
    else:
        printing.print_comparison(found)


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print findings as JSON, and nothing else.")
def doctor(as_json: bool) -> None:
    """Check that this machine measures what it should, with canaries of known gap and order.

    Takes up to two minutes; status 1 where a check does not hold.
    """
    from cojax.evaluation import doctor
    from cojax.io import json_text
    from cojax.report import printing

    findings = doctor.examine()
    if as_json:
        click.echo(json_text.rows_text([finding._asdict() for finding in findings]))
    else:
        printing.print_findings(findings, doctor.machine())
    if not all(finding.passed for finding in findings):
        raise SystemExit(1)


COMMANDS: list[click.Command] = [evaluate, compare, doctor]
