"""Tuned hyperparameters, kept as data in ``tuned.yaml`` with the search that found them."""

from __future__ import annotations

import functools
from importlib import resources
from typing import Any

import yaml


@functools.cache
def table() -> dict[str, Any]:
    """Return the whole file: ``search`` and ``algorithms``."""
    return yaml.safe_load(resources.files("cojax.agents").joinpath("tuned.yaml").read_text())


def tuned(algorithm: str, family: str) -> dict[str, Any]:
    """Return the tuned hyperparameters of ``algorithm`` on ``family``; {} where none were found.

    Args:
        algorithm: a name in ``ALGORITHMS``.
        family: a family's name, as a fixture has it (``ConverseArm``, ``NVDEx``, …).
    """
    return dict(table()["algorithms"].get(algorithm, {}).get(family, {}))
