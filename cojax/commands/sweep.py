"""Sweeps from the command line."""

from __future__ import annotations

import click

from cojax import plugins
from cojax.commands.studies import (
    finished_rows,
    go,
    going,
    placed,
    print_json,
    say_finished,
    status,
)


class _Default(click.Group):
    """``cojax sweep CONFIG`` is ``cojax sweep run CONFIG``."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Put the default command in front of what is no command."""
        if args and args[0] not in self.commands and args[0] not in ("-h", "--help"):
            args = ["run", *args]
        return super().parse_args(ctx, args)


@click.group(cls=_Default)
def sweep() -> None:
    """Train over hyperparameters, fixtures and seeds: cojax sweep CONFIG.yaml."""


@sweep.command("run")
@click.argument("config", metavar="NAME|CONFIG.yaml")
@click.option(
    "--devices",
    type=click.IntRange(min=1),
    help="Local devices to use; on a CPU, cores [default: all].",
)
@click.option("--ray", metavar="ADDRESS", help="Run on a Ray cluster: an address, auto or local.")
@click.option(
    "--hosts",
    metavar="ADDRESS,N,I|auto",
    help="This is process I of N; the first one listens at ADDRESS and writes the results. "
    "Under srun or mpirun: auto.",
)
@click.option("--tensorboard", is_flag=True, help="Also write event files.")
@click.option("--wandb", metavar="PROJECT", help="Also log to Weights & Biases.")
@going
def sweep_run(
    config: str,
    *,
    out: str | None,
    resume: bool,
    overwrite: bool,
    devices: int | None,
    ray: str | None,
    hosts: str | None,
    tensorboard: bool,
    wandb: str | None,
    as_json: bool,
) -> None:
    """Run a sweep, shipped or your own, and write its table.

    Interrupt with Ctrl-C; --resume with the same --out goes on, and gives the same files.
    """
    from cojax.errors import InputError
    from cojax.studies.cores import use_cores

    if hosts is not None and ray is not None:
        raise InputError("--hosts: expected without --ray")
    # before gymnax, whose import makes JAX look at its devices
    use_cores(1 if ray is not None else devices)
    if hosts is not None:
        from cojax.studies.hosts import join

        join(hosts)
    plugins.import_asked()

    from cojax.studies import load_study
    from cojax.studies.runner import here

    study = load_study(config, "sweep")
    engine = here
    if devices is not None:
        study = placed(study, devices=devices)
    if hosts is not None:
        from cojax.studies.hosts import across_hosts, agree, follow, leads

        finished = resume and out is not None and finished_rows(out) is not None
        if agree(study, finished):
            say_finished(out, quiet=as_json)
            return
        if not leads():
            follow(study)
            return
        engine = across_hosts
    if ray is not None:
        from cojax.studies.cluster import on_ray

        engine = on_ray(None if ray == "local" else ray)
    rows = go(
        study, out, resume=resume, overwrite=overwrite, quiet=as_json, engine=engine,
        tensorboard=tensorboard, wandb=wandb,
    )  # fmt: skip
    print_json(rows, as_json)


sweep.add_command(status)
COMMANDS: list[click.Command] = [sweep]
