"""What goes wrong with a learner, from the command line."""

from __future__ import annotations

import click


@click.command()
@click.argument("folder", metavar="FOLDER")
@click.option("--algorithm", help="One of its algorithms, where there are several.")
@click.option("--fixture", help="One of its systems, where there are several.")
@click.option("--setting", type=int, default=0, show_default=True, help="Number of a setting.")
@click.option("--seed", type=int, default=0, show_default=True, help="Number of a seed.")
@click.option("--trials", type=int, default=64, show_default=True, help="Trials it is held to.")
@click.option("--steps", type=int, default=None, help="Steps of a trial [default: the horizon].")
@click.option("--out", metavar="FILE.png", help="Also draw where the gap arises.")
@click.option("--json", "as_json", is_flag=True, help="Print the figures as JSON, nothing else.")
def diagnose(
    folder: str,
    *,
    algorithm: str | None,
    fixture: str | None,
    setting: int,
    seed: int,
    trials: int,
    steps: int | None,
    out: str | None,
    as_json: bool,
) -> None:
    """Hold a learner's critic and gradient against the exact ones, where its policy goes.

    FOLDER is what cojax train --keep-learners wrote.
    """
    from pathlib import Path

    from cojax.errors import InputError
    from cojax.evaluation import diagnose as read
    from cojax.evaluation.diagnosis import summary
    from cojax.fixtures import load_fixture
    from cojax.io import json_text
    from cojax.report.figures import diagnosis_figure
    from cojax.studies.learners import load_agent, only

    if out is not None and not out.endswith((".png", ".pdf", ".svg")):
        raise InputError(f"--out: expected a .png, .pdf or .svg, got {out}")
    name = only(folder, "fixture", fixture)
    agent = load_agent(folder, algorithm, name, setting=setting, seed=seed)
    system = load_fixture(Path(folder) / "fixtures" / f"{name}.yaml")
    reading = read(agent, system, num_trials=trials, num_steps=steps)
    if out is not None:
        diagnosis_figure([reading], out)
    click.echo(json_text.rows_text(summary([reading])) if as_json else repr(reading))


COMMANDS: list[click.Command] = [diagnose]
