"""Training from the command line."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from cojax.commands.results import results

if TYPE_CHECKING:
    from cojax.experiments.config import Training


@click.command()
@click.argument("what", metavar="[ALGORITHM|CONFIG.yaml]", required=False)
@click.option(
    "--fixture",
    "fixtures",
    metavar="NAME|FILE",
    multiple=True,
    help="A shipped fixture or a fixture file; may be repeated.",
)
@click.option("--seeds", type=int, help="Learners on each fixture [default: 4].")
@click.option("--timesteps", type=int, help="Environment steps of each [default: 300000].")
@click.option("--seed", type=int, help="Root of all random numbers [default: 0].")
@click.option("--points", type=int, help="Moments at which the gap is measured [default: 20].")
@click.option("--config", metavar="HYPER.yaml", help="Hyperparameters, name: value.")
@click.option(
    "--set",
    "settings",
    metavar="NAME=VALUE",
    multiple=True,
    help="One hyperparameter, over all else; may be repeated.",
)
@click.option("--out", metavar="FOLDER", help="[default: results/train-ALGORITHM-DATE-TIME]")
@click.option("--resume", is_flag=True, help="Continue what was interrupted in --out.")
@click.option("--tensorboard", is_flag=True, help="Also write event files.")
@click.option(
    "--memory-limit",
    type=float,
    metavar="GB",
    help="Train in chunks that take no more [default: 80% of what there is].",
)
@click.option(
    "--threads",
    type=int,
    help="Threads on a CPU; 1 is quickest with networks of 64 [default: one a core].",
)
@click.option("--json", "as_json", is_flag=True, help="Print rows as JSON, and nothing else.")
def train(
    what: str | None,
    fixtures: tuple[str, ...],
    seeds: int | None,
    timesteps: int | None,
    seed: int | None,
    points: int | None,
    config: str | None,
    settings: tuple[str, ...],
    out: str | None,
    resume: bool,
    tensorboard: bool,
    memory_limit: float | None,
    threads: int | None,
    as_json: bool,
) -> None:
    """Train ppo, a2c, sac, td3 or ddpg on fixtures and write curves and policies to a folder.

    Fixtures of one shape are trained together. Hyperparameters are tuned defaults of the fixture's
    family, then those of CONFIG.yaml or --config, then --set. CONFIG.yaml is the config.yaml of a
    results folder, or alike; options replace what it says. Interrupt with Ctrl-C; --resume with
    the same --out goes on from the state of at most a minute before.
    """
    import json
    from pathlib import Path

    from cojax.sweeps.cores import use_threads

    if threads is not None:  # before gymnax, whose import makes JAX look at its devices
        use_threads(threads)

    from cojax.errors import InputError
    from cojax.experiments.training import interrupted, run_training
    from cojax.io import json_text

    if resume and out is None:
        raise InputError("--resume: expected --out, the folder of the interrupted training")
    if resume and out is not None and (Path(out) / "config.yaml").exists():
        rows = json_text.load(Path(out) / "rows.json", list)
        click.echo(json.dumps(rows, indent=2) if as_json else f"{out}: finished already")
        return
    given = {
        "num_seeds": seeds,
        "total_timesteps": timesteps,
        "seed": seed,
        "fixtures": list(fixtures) or None,
    }
    options = {name: value for name, value in given.items() if value is not None}
    if what is None:
        if not resume or out is None:
            raise InputError("ALGORITHM: expected ppo, a2c, sac, td3, ddpg or a CONFIG.yaml")
        if options or points is not None or config or settings:
            raise InputError("--resume: without ALGORITHM it takes everything from the folder")
        training = interrupted(out)
    else:
        training = _training(what, options, points, config, settings)
    limit = None if memory_limit is None else memory_limit * 1e9
    with results(out, f"train-{training.algorithm.name}", "cojax train --resume") as folder:
        trained = run_training(
            training, folder, resume=resume, tensorboard=tensorboard, memory_limit=limit
        )
    if as_json:
        click.echo(json_text.rows_text(trained.rows))
        return
    _print(trained.rows)
    click.echo(f"written to {trained.folder}/")


def _training(
    what: str,
    options: dict[str, Any],
    points: int | None,
    config: str | None,
    settings: tuple[str, ...],
) -> Training:
    """The training that the arguments describe."""
    from pathlib import Path

    from cojax.agents.training import current_names
    from cojax.experiments.config import load_training
    from cojax.experiments.config import training as validate
    from cojax.io import yaml

    where = "train"
    content: dict[str, Any] = {"schema": "cojax.train/1", "algorithm": {"name": what}}
    if what.endswith((".yaml", ".yml")):
        where = Path(what).name
        content = load_training(what).model_dump(mode="json", by_alias=True)
    content |= options
    if points is not None:
        content["curve"] = {**content.get("curve", {}), "points": points}
    given = yaml.load(config) if config else {}
    given |= dict(_assignment(word) for word in settings)
    algorithm = content["algorithm"]
    given = current_names(algorithm["name"], given)
    algorithm["hyperparameters"] = {**algorithm.get("hyperparameters", {}), **given}
    families = algorithm.get("families", {})
    algorithm["families"] = {name: {**values, **given} for name, values in families.items()}
    return validate(content, where)


def _assignment(word: str) -> tuple[str, Any]:
    """Name and value of ``NAME=VALUE``; the value as YAML writes it."""
    from cojax.errors import InputError
    from cojax.io import yaml

    name, equals, value = word.partition("=")
    if not (name.isidentifier() and equals and value.strip()):
        raise InputError(f"--set: expected NAME=VALUE, got {word!r}")
    return name, yaml.parse(f"{name}: {value}", f"--set {word}")[name]


def _print(rows: list[dict[str, Any]]) -> None:
    """Print a table to standard output."""
    from rich.table import Table

    from cojax.report.printing import console, number

    title = f"gap in units of V*: median, lowest and highest of {rows[0]['num_seeds']} seeds"
    table = Table(title=title)
    for title in ("fixture", "algorithm", "setting"):
        table.add_column(title, overflow="fold")
    for title in ("last", "best", "failed"):
        table.add_column(title, justify="right", overflow="fold")
    for row in rows:
        gaps = [
            f"{number(cell['median'])} [{number(cell['low'])}, {number(cell['high'])}]"
            for cell in (row["last"], row["best"])
        ]
        labels = (row["fixture"], row["policy"], str(row["setting"]))
        table.add_row(*labels, *gaps, str(row["failed"]))
    out = console()
    out.print(table)
    out.print(
        "The best was chosen by the gap it shows: judge it on other streams, cojax evaluate.",
        soft_wrap=True,
    )


COMMANDS: list[click.Command] = [train]
