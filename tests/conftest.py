"""Fixtures of pytest shared by all tests."""

from __future__ import annotations

import atexit
import json
import os
import shutil
import tempfile
from pathlib import Path

# Tests compile hundreds of small programs, once for all workers and the commands that tests start.
if "JAX_COMPILATION_CACHE_DIR" not in os.environ:
    os.environ["JAX_COMPILATION_CACHE_DIR"] = tempfile.mkdtemp(prefix="cojax-tests-")
    os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0.5"
    atexit.register(shutil.rmtree, os.environ["JAX_COMPILATION_CACHE_DIR"], ignore_errors=True)

import pytest
from hypothesis import settings

settings.register_profile("cojax", deadline=None, max_examples=20, derandomize=True)
settings.load_profile("cojax")


def pytest_configure(config):
    """Most tests run a program for a moment: compile it quickly. Slow ones train for minutes."""
    if config.option.markexpr != "slow":
        os.environ.setdefault("XLA_FLAGS", "--xla_backend_optimization_level=0")


def pytest_collection_modifyitems(items):
    """The longest first, so that no worker ends long after the others."""
    items.sort(key=lambda item: "--scale smoke" not in item.nodeid)


@pytest.fixture(scope="session")
def golden() -> list[dict]:
    """Values of ten systems computed by an independent NumPy implementation."""
    return json.loads((Path(__file__).parent / "data" / "golden.json").read_text())


@pytest.fixture(autouse=True, scope="module")
def bounded_memory():
    """Compiled programs are dropped between files where a worker has grown: they add up to more
    memory than two workers have.
    """
    yield
    statm = Path("/proc/self/statm")
    if statm.exists() and int(statm.read_text("utf-8").split()[1]) * 4096 > 4 * 2**30:
        import jax

        jax.clear_caches()
