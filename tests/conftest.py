"""Fixtures of pytest shared by all tests."""

from __future__ import annotations

import json
import os
from pathlib import Path

# Tests compile hundreds of small programs and run each for a moment: compile quickly.
os.environ.setdefault("XLA_FLAGS", "--xla_backend_optimization_level=0")

import pytest
from hypothesis import settings

settings.register_profile("cojax", deadline=None, max_examples=20, derandomize=True)
settings.load_profile("cojax")


@pytest.fixture(scope="session")
def golden() -> list[dict]:
    """Values of ten systems computed by an independent NumPy implementation."""
    return json.loads((Path(__file__).parent / "data" / "golden.json").read_text())
