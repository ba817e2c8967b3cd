"""The page of a results folder."""

from __future__ import annotations

import click


@click.command()
@click.argument("results", metavar="RESULTS")
@click.option("--out", metavar="FILE.html", help="What to write  [default: RESULTS/report.html].")
def report(results: str, out: str | None) -> None:
    """Make one HTML file of a results folder: it opens offline and asks the network for nothing.

    It shows the results in words, sortable tables, figures, training curves, the systems with
    their certificates, where everything comes from, and the commands that make it again.
    """
    from cojax.report.page import write_report

    path = write_report(results, out)
    click.echo(f"written to {path}, {path.stat().st_size / 1000:,.0f} kB")


COMMANDS: list[click.Command] = [report]
