"""The results folder of a command: its default name, and what is said where work stops."""

from __future__ import annotations

import contextlib
import itertools
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import click


@contextlib.contextmanager
def results(
    out: str | Path | None, name: str, again: str = "the same command with --resume"
) -> Iterator[Path]:
    """A folder to be written: ``out``, or ``results/NAME-DATE-TIME``, which nobody else is given.

    Where work is interrupted, or the machine refuses something, a line says how to go ``again``.
    """
    from cojax.io.resume import begun, unfinished

    made: list[Path] = []
    folder = Path(out) if out is not None else _reserve(name, made)
    try:
        yield folder
    except (KeyboardInterrupt, OSError) as error:
        if begun(unfinished(folder)):
            click.echo(f"interrupted; go on: {again} --out {folder}", err=True)
        if isinstance(error, KeyboardInterrupt):
            sys.exit(130)
        raise
    finally:
        for empty in made:
            with contextlib.suppress(OSError):  # something was begun there
                empty.rmdir()


def _reserve(name: str, made: list[Path]) -> Path:
    """A default folder whose state this process has made; ``made`` takes what is to be removed
    if nothing is begun.

    Jobs of an array start in the same second: the folder of the state is made by one alone.
    """
    from cojax.io.resume import unfinished

    stem = f"{name}-{time.strftime('%Y%m%d-%H%M%S')}"
    parent = Path("results")
    if not parent.exists():
        made.append(parent)
    for number in itertools.count(1):
        folder = parent / (f"{stem}-{number}" if number > 1 else stem)
        state = unfinished(folder)
        with contextlib.suppress(FileExistsError):
            state.mkdir(parents=True)
            made.insert(0, state)
            if not folder.exists():
                return folder
    raise AssertionError
