"""The main job: fixtures, training, paired evaluation, a folder of results."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from pathlib import Path


@click.command()
@click.argument("experiments", metavar="NAME|CONFIG.yaml...", nargs=-1, required=True)
@click.option("--scale", help="smoke, small (default) or paper, of experiments that have scales.")
@click.option(
    "--profile",
    type=click.Choice(["tuned", "published"]),
    help="Hyperparameters: ours, or the paper's [default: the experiment's].",
)
@click.option(
    "--out",
    type=click.Path(),
    help="Folder to write, of several experiments the one that holds theirs "
    "[default: results/NAME-DATE-TIME].",
)
@click.option("--resume", is_flag=True, help="Continue what was interrupted in --out.")
@click.option("--json", "as_json", is_flag=True, help="Print rows as JSON, and nothing else.")
def run(
    experiments: tuple[str, ...],
    scale: str | None,
    profile: str | None,
    out: str | None,
    resume: bool,
    as_json: bool,
) -> None:
    """Run experiments: train on fixtures, measure the distance from the optimum, write it down.

    Each is the name of a shipped one (quickstart, serial_random, serial_fixed, nvdex) or a YAML
    file. Several in one call share their compilations. Interrupt with Ctrl-C; the same command
    with --resume and the same --out goes on and gives the same files.
    """
    import time
    from pathlib import Path

    from cojax.evaluation import tables
    from cojax.experiments import load_experiment
    from cojax.inputs import InputError

    if resume and out is None:
        raise InputError("--resume: expected --out, the folder of the interrupted run")
    configs = [load_experiment(name, scale, profile) for name in experiments]  # pyright: ignore
    if len({config.name for config in configs}) < len(configs):
        raise InputError("experiments: expected different names")
    moment = time.strftime("%Y%m%d-%H%M%S")
    rows = []
    for config in configs:
        if out is None:
            folder = Path("results") / f"{config.name}-{moment}"
        else:
            folder = Path(out) / config.name if len(configs) > 1 else Path(out)
        rows += _one(config, folder, resume, quiet=as_json)
    if as_json:
        click.echo(tables.to_json(rows))


def _one(config: object, folder: Path, resume: bool, quiet: bool) -> list[dict]:
    """Run one experiment, or find it finished; its rows."""
    from cojax.evaluation import tables
    from cojax.experiments import run_experiment
    from cojax.experiments.sittings import unfinished
    from cojax.fixtures import text

    if resume and (folder / "rows.json").exists():
        if not quiet:
            click.echo(f"{folder}: finished already")
        return text.load_json(folder / "rows.json", list)
    try:
        outcome = run_experiment(config, folder, resume=resume)  # pyright: ignore
    except KeyboardInterrupt:
        if unfinished(folder).exists():
            click.echo("interrupted; go on: the same command with --resume and --out", err=True)
        sys.exit(130)
    if not quiet:
        tables.print_rows(outcome.rows)
        names = sorted(entry.name for entry in outcome.folder.iterdir())
        click.echo(f"written to {outcome.folder}/: {', '.join(names)}")
    return outcome.rows


COMMANDS: list[click.Command] = [run]
