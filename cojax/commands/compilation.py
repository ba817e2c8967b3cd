"""How commands compile: quickly, and once for all runs on a machine.

A first program takes XLA longer to compile than a short experiment takes to run. Commands keep
compiled programs in a folder of the user's, where the next run finds them, and ask XLA's CPU
compiler for its second level of optimisation: a quarter less to wait, and programs as fast as
those of its third. Neither touches Python programs that import cojax, and what the user has set
in the environment stays: ``JAX_ENABLE_COMPILATION_CACHE=false`` keeps nothing.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.metadata
import os
import platform
from pathlib import Path

CACHE_BYTES = 1_000_000_000  # the oldest programs go when there is more
LEVEL = "--xla_backend_optimization_level"


def settle() -> None:
    """Set the environment that JAX reads when it is first imported."""
    flags = os.environ.get("XLA_FLAGS", "")
    accelerated = importlib.metadata.entry_points(group="jax_plugins")
    if LEVEL not in flags and not accelerated:
        os.environ["XLA_FLAGS"] = f"{flags} {LEVEL}=2".strip()
    if "JAX_COMPILATION_CACHE_DIR" not in os.environ:
        with contextlib.suppress(OSError, RuntimeError):  # no home, or not ours to write: none kept
            folder = cache_folder()
            folder.mkdir(parents=True, exist_ok=True)
            prune(folder)
            if os.access(folder, os.W_OK | os.X_OK):
                os.environ["JAX_COMPILATION_CACHE_DIR"] = str(folder)


def cache_folder() -> Path:
    """The folder of this user's programs, one for each kind of processor: they run on no other."""
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    try:
        lines = Path("/proc/cpuinfo").read_text("utf-8").splitlines()
        processor = next(line for line in lines if line.lower().startswith(("flags", "features")))
    except (OSError, StopIteration):
        processor = platform.processor()
    kind = hashlib.sha256(processor.encode()).hexdigest()[:8]
    return Path(base).expanduser() / "cojax" / f"{platform.machine()}-{kind}"


def prune(folder: Path, limit: int = CACHE_BYTES) -> None:
    """Delete the oldest files of a folder until half of ``limit`` bytes is free again."""
    found = []
    for path in folder.iterdir():
        with contextlib.suppress(OSError):  # another run is at it
            found.append((path.stat().st_mtime, path.stat().st_size, path))
    total = sum(size for _, size, _ in found)
    if total <= limit:
        return
    for _, size, path in sorted(found):
        path.unlink(missing_ok=True)
        total -= size
        if total <= limit // 2:
            return
