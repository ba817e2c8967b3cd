"""Fixtures of pytest shared by all tests."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import settings

settings.register_profile("cojax", deadline=None, max_examples=20, derandomize=True)
settings.load_profile("cojax")


@pytest.fixture(scope="session")
def golden() -> list[dict]:
    """Values of ten systems computed by an independent NumPy implementation."""
    return json.loads((Path(__file__).parent / "data" / "golden.json").read_text())
