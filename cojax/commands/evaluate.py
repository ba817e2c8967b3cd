"""Commands about how good policies are."""

from __future__ import annotations

import click


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
    default=("oracle", "zero"),
    show_default=True,
    help="oracle, zero, random, lqr, dithered-oracle:STD, detuned-oracle:FACTOR, or a checkpoint; "
    "may be repeated.",
)
@click.option("--trials", type=int, default=256, show_default=True, help="Paired trials.")
@click.option("--root", type=int, default=0, show_default=True, help="Seed of the streams.")
@click.option("--steps", type=int, default=None, help="Steps of a trial [default: the horizon].")
@click.option("--json", "as_json", is_flag=True, help="Print rows as JSON, and nothing else.")
def evaluate(
    fixtures: tuple[str, ...],
    policies: tuple[str, ...],
    trials: int,
    root: int,
    steps: int | None,
    as_json: bool,
) -> None:
    """Measure how far policies are from the optimum, on the same starts and the same noise.

    A metric's mean is null in JSON where it is infinite: the policy failed in some trial, and the
    mean of the trials it completed is beside it under <metric>_completed.
    """
    from cojax.evaluation import evaluate as run
    from cojax.evaluation import tables
    from cojax.evaluation.checkpoints import policy_from_text
    from cojax.fixtures import load_fixture

    loaded = [load_fixture(name) for name in fixtures]
    chosen = [policy_from_text(text) for text in policies]
    rows = run(chosen, loaded, trials, root, num_steps=steps).rows()
    if as_json:
        click.echo(tables.to_json(rows))
    else:
        tables.print_rows(rows)


COMMANDS: list[click.Command] = [evaluate]
