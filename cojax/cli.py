"""The command line: ``cojax`` and ``python -m cojax``. Parse, call, print.

Exit status: 0 done; 1 a check did not hold; 2 unusable input, or nowhere to write, said in one
line; 130 interrupted; 141 nobody reads the output. Commands import what they need when they run, so
that help does not wait for JAX.
"""

from __future__ import annotations

import errno
import sys

import click

from cojax import __version__
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


for module in (studies, train, sweep, fixtures, evaluate, diagnose, report, render):
    for command in module.COMMANDS:
        main.add_command(command)
