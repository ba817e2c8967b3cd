"""Work in several sittings: where its state is kept until the results folder is written."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from cojax import __version__
from cojax.errors import InputError
from cojax.io import files, json_text, locks, yaml
from cojax.io.files import digest_of_files, refuse_existing


def unfinished(folder: str | Path) -> Path:
    """Where the state of the work is kept until its folder is written."""
    folder = Path(folder)
    if folder.name in ("", ".."):
        folder = folder.resolve()
    return folder.with_name(f"{folder.name}.unfinished")


@contextlib.contextmanager
def claim(
    folder: Path, content: dict[str, Any], resume: bool, read: Callable[[Path], dict[str, Any]]
) -> Iterator[Path]:
    """The state of the work described by ``content``, begun or found; nobody else may write it.

    Args:
        folder: the results folder to be.
        content: all that decides the results, JSON data; kept as ``config.yaml``.
        resume: whether to go on from a state that exists.
        read: content of a ``config.yaml``.

    The state is removed afterwards where the results folder was written.

    Raises InputError, one line, where a state exists and ``resume`` is not asked for, where it is
    of other work, where another process is writing it, and where the folder exists.
    """
    state = unfinished(folder)
    try:
        with locks.held(state):
            refuse_existing(folder)  # another process may have finished it meanwhile
            if not begun(state):
                files.write_whole(state / "config.yaml", yaml.dump(content))
            elif not resume:
                raise InputError(
                    f"{state}: holds interrupted work; --resume it, or name another folder"
                )
            else:
                _same_work(state, content, read)
            yield state
    finally:
        if not begun(state) and locks.holder(state) is None:
            shutil.rmtree(state, ignore_errors=True)


def begun(state: Path) -> bool:
    """Whether a state holds work, or may."""
    return state.exists() and any(entry.name not in locks.NAMES for entry in state.iterdir())


def discard(state: Path) -> None:
    """Remove a state; InputError where another process is writing it."""
    if state.exists():
        with locks.held(state):
            shutil.rmtree(state)


def _same_work(
    state: Path, content: dict[str, Any], read: Callable[[Path], dict[str, Any]]
) -> None:
    file = state / "config.yaml"
    if not file.exists():  # stopped before its first word
        files.write_whole(file, yaml.dump(content))
    for name, theirs in read(file).items():
        if content.get(name) != theirs:
            raise InputError(
                f"{state}: of other work: {name}: expected {theirs}, got {content.get(name)}"
            )


def settle(state: Path, fixtures: Mapping[str, str]) -> None:
    """Note what the work in a state is made of; in later sittings, hold it to that.

    ``fixtures`` are the SHA-256 of their content, by name. Raises InputError, one line, for another
    version of cojax, or a fixture of other content: one folder would mix their results.
    """
    now = {f"fixture {name}": sha256 for name, sha256 in fixtures.items()}
    now["version of cojax"] = __version__
    file = state / "made_of.json"
    if not file.exists():
        files.write_whole(file, json.dumps(now, indent=2) + "\n")
    before = json_text.load(file, dict)
    for name in {**before, **now}:
        if before.get(name) != now.get(name):
            raise InputError(
                f"{state}: of other work: {name}: expected {before.get(name)}, got {now.get(name)}"
            )


@contextlib.contextmanager
def part(state: Path, name: str) -> Iterator[Path]:
    """A folder to fill inside the state, which becomes ``state/name`` at the end or never.

    What an earlier sitting left of it is removed first. ``name.sha256`` beside it says what its
    files hold, for :func:`check_part`.
    """
    temporary = state / f"{name}.new"
    for left in (temporary, state / name):
        shutil.rmtree(left, ignore_errors=True)
    temporary.mkdir()
    yield temporary
    (state / f"{name}.sha256").write_bytes(digest_of_files(temporary))
    os.rename(temporary, state / name)


def check_part(state: Path, name: str) -> None:
    """Raise InputError, one line, unless ``state/name`` is as :func:`part` left it."""
    seal = state / f"{name}.sha256"
    if not seal.is_file() or seal.read_bytes() != digest_of_files(state / name):
        raise InputError(
            f"{state / name}: damaged, its files are not as written; remove it to do it again"
        )


def finish(state: Path, name: str, folder: Path) -> None:
    """Let ``state/name`` become the results folder, and remove the state."""
    os.rename(state / name, refuse_existing(folder))
    shutil.rmtree(state, ignore_errors=True)  # the lock file may stay as long as it is open
