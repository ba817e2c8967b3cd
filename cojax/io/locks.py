"""One process at a time in a folder, on file systems with locks and without.

Where there are locks, the kernel's ends with the process, however it ends. Some network file
systems have none: there a file that one process alone can make names it, and is passed over once
that process is gone, as far as this machine can tell.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from cojax.errors import InputError

LOCK, OWNER = "lock", "owner.json"
NAMES = (LOCK, OWNER)
TAKEN = (errno.EWOULDBLOCK, errno.EAGAIN, errno.EACCES)  # any other error: no locks here
TRIES, WAIT = 3, 0.1  # whoever asks for the state of the work holds the lock for a moment


@contextlib.contextmanager
def held(state: Path) -> Iterator[None]:
    """Hold a folder, which is made if need be; InputError, one line, tells who else has it."""
    file, locks = _locked(state)
    with file:
        owner = state / OWNER
        if not locks:
            _own(owner)
        elif owner.exists() and _lives(_read(owner)):  # one that has no locks there
            raise InputError(_taken(owner))
        file.truncate(0)
        file.write(json.dumps(_me()))
        file.flush()
        try:
            yield
        finally:
            owner.unlink(missing_ok=True)


def holder(state: Path) -> dict[str, Any] | None:
    """What is known of the process that holds a folder; None where there is none. Only reads."""
    if (state / OWNER).exists() and _lives(_read(state / OWNER)):
        return _read(state / OWNER)
    try:
        with (state / LOCK).open(encoding="utf-8") as file:
            return _read(state / LOCK) if _flock(file, shared=True) is False else None
    except OSError:
        return None


def _locked(state: Path) -> tuple[IO[str], bool]:
    """The lock file of a folder, and whether there are locks; if so, it is locked."""
    for number in range(TRIES):
        time.sleep(WAIT * (number > 0))
        state.mkdir(parents=True, exist_ok=True)
        file = (state / LOCK).open("a", encoding="utf-8")
        ours = _flock(file)
        if ours is None:
            return file, False
        with contextlib.suppress(FileNotFoundError):  # else removed by whom had it before
            if ours and os.path.samestat(os.fstat(file.fileno()), os.stat(state / LOCK)):
                return file, True
        file.close()
    raise InputError(_taken(state / LOCK))


def _flock(file: IO[str], shared: bool = False) -> bool | None:
    """Whether a file is locked now, by this process; None where there are no locks."""
    try:
        import fcntl

        fcntl.flock(file, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except ImportError:
        return None
    except OSError as error:
        return False if error.errno in TAKEN else None
    return True


def _own(owner: Path) -> None:
    """Make the file that names this process; InputError where it names another that lives."""
    for _ in range(TRIES):
        try:
            with owner.open("x", encoding="utf-8") as file:
                file.write(json.dumps(_me()))
            return
        except FileExistsError:
            if _lives(_read(owner)):
                break
            owner.unlink(missing_ok=True)
    raise InputError(f"{_taken(owner)}; if it is no more, delete {owner}")


def _taken(file: Path) -> str:
    line, about = f"{file.parent}: another process is writing there", _read(file)
    if about:
        line += f": {about.get('pid')} on {about.get('host')}, since {about.get('since')}"
    return line


def _read(file: Path) -> dict[str, Any]:
    """What a file says of a process; {} where it does not."""
    with contextlib.suppress(OSError, ValueError):
        about = json.loads(file.read_text("utf-8"))
        return about if isinstance(about, dict) else {}
    return {}


def _me() -> dict[str, Any]:
    pid, now = os.getpid(), time.strftime("%Y-%m-%d %H:%M:%S")
    return {"pid": pid, **_place(), "since": now, "began": _began(pid)}


def _place() -> dict[str, str]:
    """Where numbers of processes mean the same: a machine, and a container on it."""
    space = ""
    with contextlib.suppress(OSError):
        space = os.readlink("/proc/self/ns/pid")
    return {"host": socket.gethostname(), "space": space}


def _began(pid: int) -> str:
    """When a process began, in ticks since the machine did; "" where nobody says."""
    with contextlib.suppress(OSError, IndexError):
        return (
            Path(f"/proc/{pid}/stat").read_text("utf-8", "replace").rpartition(")")[2].split()[19]
        )
    return ""


def _lives(about: dict[str, Any]) -> bool:
    """Whether a process is there still; one of elsewhere is taken to be."""
    if {name: about.get(name) for name in ("host", "space")} != _place():
        return True
    if os.name != "posix":  # no such question there
        return False
    with contextlib.suppress(PermissionError):  # it lives, and is somebody else's
        try:
            os.kill(about["pid"], 0)
        except ProcessLookupError:
            return False
    return _began(about["pid"]) == about.get("began")
