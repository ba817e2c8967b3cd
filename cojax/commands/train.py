"""Training from the command line."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from cojax import plugins
from cojax.commands.studies import (
    assignment,
    finished_rows,
    go,
    going,
    placed,
    print_json,
    say_finished,
)
from cojax.types import Content

if TYPE_CHECKING:
    from cojax.studies.schema import Study


class _Train(click.Command):
    """Its help names the algorithms there are."""

    def format_help_text(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the text, with the names in it."""
        plugins.import_asked()
        help, self.help = self.help or "", (self.help or "").replace("ALGORITHMS", _names("and"))
        try:
            super().format_help_text(ctx, formatter)
        finally:
            self.help = help


def _names(last: str) -> str:
    *first, end = plugins.algorithms()
    return f"{', '.join(first)} {last} {end}"


@click.command(cls=_Train)
@click.argument("what", metavar="[ALGORITHM|CONFIG.yaml]", required=False)
@click.option(
    "--fixture",
    "fixtures",
    metavar="NAME|FILE",
    multiple=True,
    help="A shipped fixture or a fixture file; may be repeated.",
)
@click.option("--seeds", type=int, help="Learners on each fixture [default: 4].")
@click.option(
    "--timesteps",
    type=int,
    help="Environment steps of each [default: 1000000 of ppo and a2c, 300000 of the others].",
)
@click.option("--seed", type=int, help="Root of all random numbers [default: 0].")
@click.option("--points", type=int, help="Moments at which the gap is measured [default: 20].")
@click.option(
    "--profile",
    type=click.Choice(["tuned", "published"]),
    help="Begin with hyperparameters found for the fixture's family, ours or the paper's "
    "[default: the algorithm's own].",
)
@click.option("--config", metavar="HYPER.yaml", help="Hyperparameters, name: value.")
@click.option(
    "--set",
    "settings",
    metavar="NAME=VALUE",
    multiple=True,
    help="One hyperparameter, over all else; may be repeated.",
)
@click.option(
    "--curriculum",
    metavar="KNOB=START",
    help="Begin at another value of a knob, p=0.2, and reach the fixture's own half-way.",
)
@click.option("--tensorboard", is_flag=True, help="Also write event files.")
@click.option(
    "--keep-learners",
    is_flag=True,
    help="Also keep the learners as they ended, critics and all, for cojax diagnose.",
)
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
@going
def train(
    what: str | None,
    *,
    fixtures: tuple[str, ...],
    seeds: int | None,
    timesteps: int | None,
    seed: int | None,
    points: int | None,
    profile: str | None,
    config: str | None,
    settings: tuple[str, ...],
    curriculum: str | None,
    out: str | None,
    resume: bool,
    overwrite: bool,
    tensorboard: bool,
    keep_learners: bool,
    memory_limit: float | None,
    threads: int | None,
    as_json: bool,
) -> None:
    """Train an algorithm on fixtures and write curves and policies to a folder.

    Algorithms are ALGORITHMS. Fixtures of one shape are trained together. Hyperparameters are the
    algorithm's defaults, as in Python, then those of --profile, then those of CONFIG.yaml or
    --config, then --set. CONFIG.yaml is the config.yaml of a results folder, or alike; options
    replace what it says. Interrupt with Ctrl-C; --resume with the same --out goes on from the state
    of at most a minute before.
    """
    from cojax.studies.cores import use_threads

    if threads is not None:  # before gymnax, whose import makes JAX look at its devices
        use_threads(threads)
    plugins.import_asked()

    from cojax.errors import InputError
    from cojax.studies.runner import interrupted

    given = {
        "num_seeds": seeds,
        "total_timesteps": timesteps,
        "seed": seed,
        "fixtures": list(fixtures) or None,
        "profile": profile,
        "curve": None if points is None else {"points": points},
        "curriculum": None if curriculum is None else _homotopy(curriculum),
    }
    options = {name: value for name, value in given.items() if value is not None}
    if what is not None:
        study = _training(what, options, config, settings)
    elif not resume or out is None:
        names = ", ".join(plugins.algorithms())
        raise InputError(f"ALGORITHM: expected {names} or a CONFIG.yaml")
    elif options or config or settings:
        raise InputError("--resume: without ALGORITHM it takes everything from the folder")
    elif (found := finished_rows(out)) is not None:
        say_finished(out, quiet=as_json)
        print_json(found, as_json)
        return
    else:
        study = interrupted(out)
    if memory_limit is not None:
        if not memory_limit > 0:
            raise InputError(f"memory_limit: expected a number of GB > 0, got {memory_limit:g}")
        study = placed(study, memory_gb=memory_limit)
    again = "cojax train --resume"
    if keep_learners:
        study = placed(study, learners=True)
    rows = go(
        study, out, resume=resume, overwrite=overwrite, quiet=as_json, again=again,
        tensorboard=tensorboard,
    )  # fmt: skip
    print_json(rows, as_json)


def _training(what: str, options: Content, config: str | None, settings: Sequence[str]) -> Study:
    """The training that the arguments describe."""
    from pathlib import Path

    from cojax.agents.training import current_names, lookup
    from cojax.io import yaml
    from cojax.studies import load_study, study

    where = "train"
    content: Content = {"schema": "cojax.study/1", "algorithms": [{"name": what}]}
    if what.endswith((".yaml", ".yml")):
        where = Path(what).name
        content = load_study(what, "train").model_dump(mode="json", by_alias=True)
    curve = {**content.get("curve", {}), **options.get("curve", {})}
    content |= {**options, "curve": curve}
    if content.get("name", "train") == "train":
        content["name"] = f"train-{content['algorithms'][0]['name']}"
    given = yaml.load(config) if config else {}
    given |= dict(assignment(word) for word in settings)
    algorithm = content["algorithms"][0]
    content.setdefault("total_timesteps", lookup(algorithm["name"]).budget)
    given = current_names(algorithm["name"], given)
    algorithm["hyperparameters"] = {**algorithm.get("hyperparameters", {}), **given}
    families = algorithm.get("families", {})
    algorithm["families"] = {name: {**values, **given} for name, values in families.items()}
    return study(content, "train", where)


def _homotopy(word: str) -> Content:
    """The curriculum that ``KNOB=START`` says."""
    knob, start = assignment(word, "--curriculum")
    return {"knob": knob, "start": start}


COMMANDS: list[click.Command] = [train]
