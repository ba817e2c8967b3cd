"""The command line: ``cojax`` and ``python -m cojax``. Parse, call, print.

Exit status: 0 done; 1 a check did not hold; 2 unusable input, said in one line. Commands import
what they need when they run, so that help does not wait for JAX.
"""

from __future__ import annotations

import sys

import click

from cojax import __version__
from cojax.commands import compilation, evaluate, fixtures, render, report, run, sweep, train


class Program(click.Group):
    """A group that turns unusable input into one line and status 2, and nothing else."""

    def invoke(self, ctx: click.Context) -> object:
        """Run a command; errors that are the program's own keep their traceback."""
        try:
            return super().invoke(ctx)
        except ValueError as error:
            if type(error).__name__ != "InputError":
                raise
            click.echo(f"cojax: {error}", err=True)
            sys.exit(2)
        except FileNotFoundError as error:
            click.echo(f"cojax: {error.filename}: no such file or folder", err=True)
            sys.exit(2)
        except (PermissionError, IsADirectoryError, NotADirectoryError) as error:
            click.echo(f"cojax: {error.filename}: {error.strerror}", err=True)
            sys.exit(2)


@click.group(cls=Program, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="cojax")
def main() -> None:
    """Reinforcement learning on systems whose optimum is known."""
    compilation.settle()


for module in (run, train, sweep, fixtures, evaluate, report, render):
    for command in module.COMMANDS:
        main.add_command(command)
