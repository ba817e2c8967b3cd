"""Fixtures of pytest shared by all tests."""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import gc
import json
import os
import shutil
import tempfile
from importlib.metadata import version
from pathlib import Path

# Tests compile hundreds of small programs, once for all workers and the commands that tests start.
if "JAX_COMPILATION_CACHE_DIR" not in os.environ:
    os.environ["JAX_COMPILATION_CACHE_DIR"] = tempfile.mkdtemp(prefix="cojax-tests-")
    os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
    atexit.register(shutil.rmtree, os.environ["JAX_COMPILATION_CACHE_DIR"], ignore_errors=True)

import pytest
from hypothesis import settings

# Tracing makes objects by the million, nearly all of which live: looking through them for garbage
# as often as Python does by default is a sixth of the time that tracing takes.
gc.set_threshold(50_000)

LIMIT = 5 * 2**30  # bytes of a worker
left = [0]  # bytes after programs were dropped

settings.register_profile("cojax", deadline=None, max_examples=20, derandomize=True)
settings.load_profile("cojax")


QUICKLY = "--xla_backend_optimization_level=0"
if version("jaxlib").startswith("0.10."):  # another may not know it; half the time of a compilation
    QUICKLY += " --xla_cpu_use_fusion_emitters=false"


def pytest_configure(config):
    """Most tests run a program for a moment: compile it quickly. Slow ones train for minutes."""
    if config.option.markexpr != "slow":
        os.environ.setdefault("XLA_FLAGS", QUICKLY)


def pytest_collection_modifyitems(items):
    """The longest first, so that no worker ends long after the others."""
    items.sort(key=lambda item: "--scale smoke" not in item.nodeid)


@pytest.fixture(scope="session")
def golden() -> list[dict]:
    """Values of ten systems computed by an independent NumPy implementation."""
    return json.loads((Path(__file__).parent / "data" / "golden.json").read_text())


def _resident() -> int:
    """Memory of this process, bytes."""
    statm = Path("/proc/self/statm")
    return int(statm.read_text("utf-8").split()[1]) * 4096 if statm.exists() else 0


@pytest.fixture(autouse=True, scope="module")
def bounded_memory():
    """Compiled programs are dropped between files where a worker has grown: they add up to more
    memory than two workers have. Not every time: they have to be traced again.
    """
    yield
    if _resident() > max(LIMIT, left[0] + LIMIT // 4):
        import jax

        jax.clear_caches()
        gc.collect()
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).malloc_trim(0)
        left[0] = _resident()
