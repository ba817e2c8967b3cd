"""Sweeps from the command line."""

from __future__ import annotations

from typing import Any

import click

from cojax.commands.results import results


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


@sweep.command()
@click.argument("config", metavar="NAME|CONFIG.yaml")
@click.option("--out", metavar="FOLDER", help="[default: results/NAME-DATE-TIME]")
@click.option("--resume", is_flag=True, help="Continue what was interrupted in --out.")
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
@click.option("--json", "as_json", is_flag=True, help="Print rows as JSON, and nothing else.")
def run(
    config: str,
    out: str | None,
    resume: bool,
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
    from cojax.sweeps.cores import use_cores

    if hosts is not None and ray is not None:
        raise InputError("--hosts: expected without --ray")
    # before gymnax, whose import makes JAX look at its devices
    use_cores(1 if ray is not None else devices)
    if hosts is not None:
        from cojax.sweeps.hosts import join

        join(hosts)

    from cojax.io import json_text
    from cojax.sweeps import load_sweep, run_sweep
    from cojax.sweeps.tracking import trackers

    if resume and out is None:
        raise InputError("--resume: expected --out, the folder of the interrupted sweep")
    what = load_sweep(config)
    finished = resume and out is not None and _finished(out)
    if hosts is not None:
        from cojax.sweeps.hosts import agree

        finished = agree(what, finished)
    if finished:
        click.echo(f"{out}: finished already", err=as_json)
        return
    if devices is not None:
        execution = what.execution.model_copy(update={"devices": devices})
        what = what.model_copy(update={"execution": execution})
    options: dict[str, Any] = {}
    if hosts is not None:
        from cojax.sweeps.hosts import across_hosts, follow, leads

        if not leads():
            follow(what)
            return
        options["engine"] = across_hosts
    if ray is not None:
        from cojax.sweeps.cluster import on_ray

        options["engine"] = on_ray(None if ray == "local" else ray)
    with results(out, what.name) as folder:
        options["trackers"] = trackers(what, folder, tensorboard, wandb)
        swept = run_sweep(what, folder, resume=resume, **options)
    if as_json:
        click.echo(json_text.rows_text(swept.rows))
        return
    print_sweep(swept.rows, fresh=what.search is not None)
    click.echo(f"written to {swept.folder}/")


def _finished(folder: str) -> bool:
    from pathlib import Path

    return (Path(folder) / "rows.json").exists()


@sweep.command()
@click.argument("folder", metavar="FOLDER")
@click.option("--json", "as_json", is_flag=True, help="Print as JSON, and nothing else.")
def status(folder: str, as_json: bool) -> None:
    """Say where a sweep stands, while it runs and afterwards."""
    import json

    from cojax.sweeps.runner import found_in

    about = found_in(folder)
    if as_json:
        click.echo(json.dumps(about))
        return
    line = f"{about['folder']}: {about['state']}, {about['done']:,}"
    if "members" in about:
        line += f" of {about['members']:,} members done"
    if about["state"] == "running" and "steps_per_second" in about:
        line += f", {about['steps_per_second']:,.0f} steps/s, {about['seconds_left']:,.0f} s left"
    click.echo(line)


def print_sweep(rows: list[dict[str, Any]], fresh: bool, most: int = 20) -> None:
    """Print the best rows of every fixture to standard output; ``fresh``, where they were chosen
    by other seeds and streams than these.
    """
    from rich.table import Table

    from cojax.report.printing import console, number

    table = Table(title=f"gap in units of V*, held-out streams: {rows[0]['num_seeds']} seeds")
    for title in ("fixture", "algorithm", "setting", "varied"):
        table.add_column(title, overflow="fold")
    for title in ("median", "lowest", "highest", "bound", "diverged"):
        table.add_column(title, justify="right", overflow="fold")
    shown: dict[str, int] = {}
    for row in rows:
        shown[row["fixture"]] = shown.get(row["fixture"], 0) + 1
        if shown[row["fixture"]] > most:
            continue
        varied = ", ".join(f"{n} {_short(v)}" for n, v in row["hyperparameters"].items())
        number_of = "defaults" if row["setting"] < 0 else str(row["setting"])
        gap = row["seeds"]
        table.add_row(
            row["fixture"], row["policy"], number_of, varied,
            number(gap["median"]), number(gap["low"]), number(gap["high"]), number(row["bound"]),
            f"{row['failures'] / (row['num_trials'] * row['num_seeds']):.0%}",
        )  # fmt: skip
    out = console()
    out.print(table)
    left = sum(max(0, count - most) for count in shown.values())
    if left:
        out.print(f"{left} more rows in rows.json")
    note = "The best of many is better here than on fresh seeds: repeat it before you report it."
    if fresh:
        note = "Chosen by a search, trained again on fresh seeds, measured on fresh streams."
    out.print(note, soft_wrap=True)


def _short(value: Any) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)


COMMANDS: list[click.Command] = [sweep]
