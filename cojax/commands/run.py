"""The main job: fixtures, training, paired evaluation, a folder of results."""

from __future__ import annotations

import click


@click.command()
@click.argument("experiment", metavar="NAME|CONFIG.yaml")
@click.option("--out", type=click.Path(), help="Folder to write [default: results/NAME-DATE-TIME].")
@click.option("--json", "as_json", is_flag=True, help="Print rows as JSON, and nothing else.")
def run(experiment: str, out: str | None, as_json: bool) -> None:
    """Run an experiment: train on fixtures, measure the distance from the optimum, write it down.

    EXPERIMENT is the name of a shipped one (quickstart) or a YAML file.
    """
    import time

    from cojax.evaluation import tables
    from cojax.experiments import load_experiment, run_experiment

    config = load_experiment(experiment)
    folder = out or f"results/{config.name}-{time.strftime('%Y%m%d-%H%M%S')}"
    outcome = run_experiment(config, folder)
    if as_json:
        click.echo(tables.to_json(outcome.rows))
        return
    tables.print_rows(outcome.rows)
    click.echo(f"written to {outcome.folder}/: {', '.join(sorted(_files(outcome.folder)))}")


def _files(folder: object) -> list[str]:
    from pathlib import Path

    return [entry.name for entry in Path(str(folder)).iterdir()]


COMMANDS: list[click.Command] = [run]
