"""The results folder of a command: its default name, and what is said where work stops."""

from __future__ import annotations

import contextlib
import itertools
import shutil
import signal
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import click


@contextlib.contextmanager
def results(
    out: str | Path | None,
    name: str,
    again: str = "the same command with --resume",
    *,
    overwrite: bool = False,
) -> Iterator[Path]:
    """A folder to be written: ``out``, or ``results/NAME-DATE-TIME``, which nobody else is given.

    Where work is interrupted, by Ctrl-C or SIGTERM, or the machine refuses something, a line says
    how to go ``again``. With ``overwrite`` results that are there already make room: they are
    removed once the new ones are written, and stay where those are not.
    """
    from cojax.io.resume import begun, unfinished

    made: list[Path] = []
    folder = Path(out) if out is not None else _reserve(name, made)
    try:
        with _terminable(), _room(folder) if overwrite else contextlib.nullcontext():
            yield folder
    except (KeyboardInterrupt, OSError) as error:
        if begun(unfinished(folder)):
            again += " --overwrite" if overwrite else ""
            click.echo(f"interrupted; go on: {again} --out {folder}", err=True)
        if isinstance(error, KeyboardInterrupt):
            sys.exit(143 if error.args else 130)
        raise
    finally:
        for empty in made:
            with contextlib.suppress(OSError):  # something was begun there
                empty.rmdir()


@contextlib.contextmanager
def _terminable() -> Iterator[None]:
    """SIGTERM ends the work as Ctrl-C does."""

    def end(number: int, frame: object) -> None:
        raise KeyboardInterrupt(signal.Signals(number).name)

    if threading.current_thread() is not threading.main_thread():  # signals are not for others
        yield
        return
    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextlib.contextmanager
def _room(folder: Path) -> Iterator[None]:
    """Move the results in a folder aside until new ones are there; InputError for other things."""
    from cojax.errors import InputError

    if not folder.exists():
        yield
        return
    if not (folder / "provenance.json").is_file():
        raise InputError(f"--overwrite: expected a results folder, {folder} is none")
    aside = folder.with_name(f".{folder.name}.replaced")
    shutil.rmtree(aside, ignore_errors=True)
    folder.rename(aside)
    try:
        yield
    finally:
        if folder.exists():
            shutil.rmtree(aside)
        else:
            aside.rename(folder)


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
