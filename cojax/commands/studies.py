"""Studies from the command line: ``run``, where one stands, and going on; what ``train`` and
``sweep`` share with it. Each turns its words into one configuration for ``cojax.studies``.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING

import click

from cojax import plugins
from cojax.commands.results import results
from cojax.types import Json, Row

if TYPE_CHECKING:
    from cojax.studies.runner import Engine
    from cojax.studies.schema import Study


def going(command: Callable) -> Callable:
    """The options that all of them have."""
    for option in (
        click.option(
            "--json", "as_json", is_flag=True, help="Print rows as JSON, and nothing else."
        ),
        click.option("--resume", is_flag=True, help="Continue what was interrupted in --out."),
        click.option(
            "--overwrite",
            is_flag=True,
            help="Replace results in --out, once the new ones are written, and what was "
            "interrupted there.",
        ),
        click.option(
            "--out",
            type=click.Path(),
            metavar="FOLDER",
            help="Folder to write, of several experiments the one that holds theirs "
            "[default: results/NAME-DATE-TIME].",
        ),
    ):
        command = option(command)

    @functools.wraps(command)
    def checked(*args: object, **kwargs: object) -> object:
        from cojax.errors import InputError

        if kwargs["resume"] and kwargs["out"] is None:
            raise InputError("--resume: expected --out, the folder of the interrupted work")
        if kwargs["overwrite"] and kwargs["out"] is None:
            raise InputError("--overwrite: expected --out, the folder to be replaced")
        return command(*args, **kwargs)

    return checked


@click.command()
@click.argument("experiments", metavar="NAME|CONFIG.yaml...", nargs=-1, required=True)
@click.option("--scale", help="smoke, small (default) or paper, of experiments that have scales.")
@click.option(
    "--profile",
    type=click.Choice(["tuned", "published"]),
    help="Hyperparameters: ours, or the paper's [default: the experiment's].",
)
@going
def run(
    experiments: tuple[str, ...],
    *,
    scale: str | None,
    profile: str | None,
    out: str | None,
    resume: bool,
    overwrite: bool,
    as_json: bool,
) -> None:
    """Run experiments: train on fixtures, measure the distance from the optimum, write it down.

    Each is the name of a shipped one (quickstart, serial_random, serial_fixed, nvdex) or a YAML
    file. Several in one call share their compilations. Interrupt with Ctrl-C; the same command
    with --resume and the same --out goes on and gives the same files.
    """
    from pathlib import Path

    from cojax.errors import InputError
    from cojax.studies import load_study

    configs = [
        load_study(name, "run", scale=scale, profile=profile)  # pyright: ignore[reportArgumentType]
        for name in experiments
    ]
    if len({config.name for config in configs}) < len(configs):
        raise InputError("experiments: expected different names")
    rows = []
    for config in configs:
        folder, again = out, "the same command with --resume"
        if len(configs) > 1:
            folder = None if out is None else str(Path(out) / config.name)
            again = f"the same command for {config.name} alone, with --resume"
        rows += go(config, folder, resume=resume, overwrite=overwrite, quiet=as_json, again=again)
    print_json(rows, as_json)


def assignment(word: str, option: str = "--set") -> tuple[str, Json]:
    """Name and value of ``NAME=VALUE``; the value as YAML writes it."""
    from cojax.errors import InputError
    from cojax.io import yaml

    name, equals, value = word.partition("=")
    if not (name.isidentifier() and equals and value.strip()):
        raise InputError(f"{option}: expected NAME=VALUE, got {word!r}")
    return name, yaml.parse(f"{name}: {value}", f"{option} {word}")[name]


def placed(study: Study, **fields: float) -> Study:
    """The study with some fields of its execution replaced."""
    execution = study.execution.model_copy(update=fields)
    return study.model_copy(update={"execution": execution})


def go(
    study: Study,
    out: str | None,
    *,
    resume: bool,
    quiet: bool,
    overwrite: bool = False,
    again: str = "the same command with --resume",
    engine: Engine | None = None,
    tensorboard: bool = False,
    wandb: str | None = None,
) -> list[Row]:
    """Do a study, or find it finished, and print its table unless ``quiet``; its rows."""
    from cojax.io.resume import discard, unfinished
    from cojax.report import printing
    from cojax.studies import run_study
    from cojax.studies.runner import here
    from cojax.studies.tracking import trackers

    if resume and not overwrite and out is not None and (rows := finished_rows(out)) is not None:
        say_finished(out, quiet=quiet)
        return rows
    with results(out, study.name, again, overwrite=overwrite) as folder:
        if overwrite and not resume:
            discard(unfinished(folder))
        told = trackers(study, folder, tensorboard, wandb)
        done = run_study(study, folder, resume=resume, engine=engine or here, trackers=told)
    if not quiet:
        printing.print_study(done.rows, study.kind, chosen=study.search is not None)
        names = sorted(entry.name for entry in done.folder.iterdir())
        click.echo(f"written to {done.folder}/: {', '.join(names)}")
    return done.rows


def finished_rows(out: str) -> list[Row] | None:
    """Rows of a folder that is finished; None of one that is not."""
    from pathlib import Path

    from cojax.io import json_text

    file = Path(out) / "rows.json"
    return json_text.load(file, list) if file.exists() else None


def say_finished(out: str | None, *, quiet: bool) -> None:
    """Say that there is nothing to do; beside the rows where they are to be read alone."""
    click.echo(f"{out}: finished already", err=quiet)


def print_json(rows: list[Row], as_json: bool) -> None:
    """Print rows as JSON, if that is asked for."""
    from cojax.io import json_text

    if as_json:
        click.echo(json_text.rows_text(rows))


@click.command()
@click.argument("folder", metavar="FOLDER")
@click.option("--json", "as_json", is_flag=True, help="Print as JSON, and nothing else.")
def status(folder: str, as_json: bool) -> None:
    """Say where a run, training or sweep stands, while it works and afterwards."""
    import json

    from cojax.studies.runner import standing

    about = standing(folder)
    if as_json:
        click.echo(json.dumps(about))
        return
    line = f"{about['folder']}: {about['state']}, {about['done']:,}"
    if "members" in about:
        line += f" of {about['members']:,} members done"
    if about["state"] == "running" and "steps_per_second" in about:
        line += f", {about['steps_per_second']:,.0f} steps/s, {about['seconds_left']:,.0f} s left"
    click.echo(line)


@click.command()
@click.argument("folder", metavar="FOLDER")
@click.option("--json", "as_json", is_flag=True, help="Print rows as JSON, and nothing else.")
def resume(folder: str, as_json: bool) -> None:
    """Go on with what was interrupted in a folder, on this machine, to the same files."""
    from cojax.studies.cores import use_cores

    rows = finished_rows(folder)
    if rows is not None:
        say_finished(folder, quiet=as_json)
        print_json(rows, as_json)
        return
    from cojax.io import yaml
    from cojax.io.resume import unfinished

    config = unfinished(folder) / "config.yaml"
    if config.exists() and yaml.load(config).get("kind") == "sweep":
        use_cores()  # before gymnax, whose import makes JAX look at its devices
    plugins.import_asked()
    from cojax.studies.runner import interrupted

    print_json(go(interrupted(folder), folder, resume=True, quiet=as_json), as_json)


COMMANDS: list[click.Command] = [run, status, resume]
