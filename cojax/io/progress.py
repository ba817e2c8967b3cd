"""Progress of long work, on standard error: a bar on a terminal, else plain lines."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from cojax.errors import InputError


def names(fixtures: Sequence[Any]) -> str:
    """A few fixtures in words."""
    first = fixtures[0].id
    return first if len(fixtures) == 1 else f"{first} and {len(fixtures) - 1} more"


class Report(Protocol):
    """Called with the share done, 0 to 1, and a few words."""

    def __call__(self, share: float, note: str = "") -> None:
        """Tell where the work stands."""
        ...


@contextmanager
def shown(name: str) -> Iterator[Report | None]:
    """The bar of one piece of work in Python: on a terminal and in notebooks, elsewhere None."""
    console = Console(stderr=True)
    if not (console.is_interactive or console.is_jupyter):
        yield None
        return
    with stage(name, transient=True) as report:
        yield report


@contextmanager
def watched(progress: object, name: str, total: int) -> Iterator[Callable[[float], object]]:
    """What work in Python tells how much of ``total`` is done: a bar for "auto", nobody for None,
    or a function of (done, total). Raises InputError for anything else.
    """
    if callable(progress):
        yield lambda done: progress(round(done), total)
    elif progress is None:
        yield lambda done: None
    elif progress == "auto":
        with shown(name) as bar:
            yield lambda done: None if bar is None else bar(done / total)
    else:
        raise InputError(f"progress: expected auto, None or a function, got {progress!r}")


@contextmanager
def stage(name: str, *, announced: bool = True, transient: bool = False) -> Iterator[Report]:
    """One piece of work, from its first word to its time taken.

    Work that may yet be refused is not ``announced``: its first line is that of its first report.
    A ``transient`` bar is gone in the end.
    """
    console = Console(stderr=True)
    start = time.perf_counter()
    if console.is_interactive or console.is_jupyter:
        columns = [
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.percentage:>3.0f}%"),
            TimeElapsedColumn(),
            TextColumn("{task.fields[note]}"),
        ]
        with Progress(*columns, console=console, transient=transient) as progress:
            task = progress.add_task(name, total=1.0, note="")
            yield lambda share, note="": progress.update(task, completed=share, note=note)
        return

    def line(share: float, note: str = "") -> None:
        seconds = time.perf_counter() - start
        text = f"{name}: {share:4.0%} after {seconds:5.1f} s" + (f", {note}" if note else "")
        console.print(text, soft_wrap=True, highlight=False)

    if announced:
        line(0.0)
    yield line
