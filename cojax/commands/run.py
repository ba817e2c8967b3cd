"""The main job: fixtures, training, paired evaluation, a folder of results."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from cojax.commands.results import results

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
    from pathlib import Path

    from cojax.errors import InputError
    from cojax.experiments import load_experiment
    from cojax.io import json_text

    if resume and out is None:
        raise InputError("--resume: expected --out, the folder of the interrupted run")
    configs = [load_experiment(name, scale, profile) for name in experiments]  # pyright: ignore
    if len({config.name for config in configs}) < len(configs):
        raise InputError("experiments: expected different names")
    rows = []
    for config in configs:
        folder = None if out is None else Path(out)
        if folder is not None and len(configs) > 1:
            folder /= config.name
        again = "the same command with --resume"
        if len(configs) > 1:
            again = f"the same command for {config.name} alone, with --resume"
        rows += _one(config, folder, resume, again, quiet=as_json)
    if as_json:
        click.echo(json_text.rows_text(rows))


def _one(config: Any, out: Path | None, resume: bool, again: str, quiet: bool) -> list[dict]:
    """Run one experiment, or find it finished; its rows."""
    from cojax.experiments import run_experiment
    from cojax.io import json_text
    from cojax.report import printing

    if resume and out is not None and (out / "rows.json").exists():
        if not quiet:
            click.echo(f"{out}: finished already")
        return json_text.load(out / "rows.json", list)
    with results(out, config.name, again) as folder:
        outcome = run_experiment(config, folder, resume=resume)
    if not quiet:
        printing.print_rows(outcome.rows)
        names = sorted(entry.name for entry in outcome.folder.iterdir())
        click.echo(f"written to {outcome.folder}/: {', '.join(names)}")
    return outcome.rows


COMMANDS: list[click.Command] = [run]
