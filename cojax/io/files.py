"""Files and folders that are there whole or not at all."""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from cojax.errors import InputError


def read(path: str | os.PathLike[str]) -> str:
    """The text of a file. Raises ValueError, one line, where it is no file of UTF-8 text."""
    try:
        return Path(path).read_bytes().decode("utf-8")
    except IsADirectoryError:
        raise InputError(f"{path}: expected a file, got a folder") from None
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: expected UTF-8 text, got byte {error.start}") from None


def write_whole(path: str | os.PathLike[str], content: str | bytes) -> None:
    """Write a file whole or not at all: see :func:`whole_file`."""
    with whole_file(path) as file:
        file.write(content.encode("utf-8") if isinstance(content, str) else content)


@contextmanager
def whole_file(path: str | os.PathLike[str]) -> Iterator[IO[bytes]]:
    """A temporary file to fill, beside ``path``, which it becomes at the end or never.

    Raises OSError, with the name of the file, where that cannot be.
    """
    path = Path(path)
    temporary = None
    try:
        handle, temporary = tempfile.mkstemp(dir=path.parent or ".", prefix=f".{path.name}.")
        with os.fdopen(handle, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        umask = os.umask(0)
        os.umask(umask)
        os.chmod(temporary, 0o666 & ~umask)
        os.replace(temporary, path)
    except BaseException as error:
        if temporary is not None:
            os.unlink(temporary)
        if isinstance(error, OSError):
            error.filename = os.fspath(path)
        raise


@contextmanager
def whole_folder(folder: str | Path) -> Iterator[Path]:
    """A temporary folder to fill, beside ``folder``, which it becomes at the end or never.

    Raises ValueError, one line, where the folder exists.
    """
    folder = refuse_existing(folder)
    parent = folder.absolute().parent
    parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(dir=parent, prefix=f".{folder.name}."))
    try:
        yield temporary
        temporary.chmod(0o755)
        os.rename(temporary, folder)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise


def refuse_existing(folder: str | Path) -> Path:
    """The path of a folder to be written; raises ValueError where something is there already, or
    where nothing can be written.
    """
    folder = Path(folder)
    if os.path.lexists(folder):  # a link that leads nowhere is in the way too
        raise InputError(f"{folder}: exists already; name another folder")
    str(folder.absolute()).encode()  # Parquet takes no other names: refused before any work
    above = folder.absolute().parent
    while not above.exists():
        above = above.parent
    if not above.is_dir():
        raise InputError(f"{folder}: {above} is not a folder")
    if not os.access(above, os.W_OK | os.X_OK):
        raise InputError(f"{folder}: {above} cannot be written")
    return folder


def digest_of_files(folder: Path) -> bytes:
    """SHA-256 over names and contents of all files in a folder, as hexadecimal digits."""
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            with path.open("rb") as file:
                content = hashlib.file_digest(file, "sha256").hexdigest()
            digest.update(f"{path.relative_to(folder).as_posix()} {content}\n".encode())
    return digest.hexdigest().encode()
