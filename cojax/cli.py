"""The command line: ``cojax`` and ``python -m cojax``. Parse, call, print.

Exit status: 0 done; 1 a check did not hold; 2 unusable input, or nowhere to write, said in one
line; 130 interrupted; 141 nobody reads the output. Commands import what they need when they run, so
that help does not wait for JAX.
"""

from __future__ import annotations

import errno
import functools
import os
import sys
from collections.abc import Sequence

import click

from cojax import __version__, plugins
from cojax.commands import (
    compilation,
    diagnose,
    evaluate,
    fixtures,
    output,
    render,
    report,
    studies,
    sweep,
    train,
)
from cojax.errors import CertificateError, InputError
from cojax.types import Option


class Program(click.Group):
    """A group that turns unusable input into one line and status 2, and nothing else."""

    def main(self, *args: Option, **kwargs: Option) -> Option:
        """Run a command; errors that are the program's own keep their traceback."""
        plugins.asked.clear()
        with output.any_text(), output.warnings_in_one_line():
            try:
                return super().main(*args, **kwargs)
            except (ValueError, OSError) as error:
                line = said(error)
                if line is None:
                    raise
                click.echo(f"cojax: {line}", err=True)
                sys.exit(1 if isinstance(error, CertificateError) else 2)

    def invoke(self, ctx: click.Context) -> object:
        """Run a command; an interrupt ends it without a word more than the command has to say."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            sys.exit(130)


def said(error: ValueError | OSError) -> str | None:
    """One line of what was given, or of what the machine refuses; None for errors of our own."""
    if isinstance(error, UnicodeEncodeError):
        part = error.object[max(0, error.start - 40) : error.end + 40]
        return f"{part!a}: a name this locale cannot write; set PYTHONUTF8=1"
    if not isinstance(error, OSError):
        return str(error) if isinstance(error, InputError) else None
    if error.errno is None:
        return None
    reason = "no such file or folder" if error.errno == errno.ENOENT else error.strerror
    return reason if error.filename is None else f"{error.filename}: {reason}"


@click.group(cls=Program, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="cojax")
def main() -> None:
    """Reinforcement learning on systems whose optimum is known."""
    compilation.settle()


LATE = (train.train, studies.resume, sweep.sweep_run)  # they set devices up before they import


def _asked(ctx: click.Context, parameter: click.Parameter, words: Sequence[str]) -> None:
    del ctx, parameter
    plugins.asked += [os.path.abspath(w) if w.endswith(".py") else w for w in words]


def importing(command: click.Command) -> None:
    """Give a command, and those of a group, the option ``--import``."""
    if isinstance(command, click.Group):
        for part in command.commands.values():
            importing(part)
        return
    option = click.Option(
        ["--import", "modules"],
        multiple=True,
        is_eager=True,
        expose_value=False,
        callback=_asked,
        metavar="MODULE|FILE.py",
        help="Import it first: a module of yours that registers families, algorithms or networks; "
        "may be repeated.",
    )
    if command.callback is None or any(p.name == option.name for p in command.params):
        return
    command.params.append(option)
    if command not in LATE:
        run = command.callback

        @functools.wraps(run)
        def imported(*args: Option, **kwargs: Option) -> Option:
            plugins.import_asked()
            return run(*args, **kwargs)

        command.callback = imported


for module in (studies, train, sweep, fixtures, evaluate, diagnose, report, render):
    for command in module.COMMANDS:
        importing(command)
        main.add_command(command)
