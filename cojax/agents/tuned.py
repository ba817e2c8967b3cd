"""Hyperparameters kept as data: ``tuned.yaml`` with the search that found them, and those that the
paper's authors published, ``published.yaml``.
"""

from __future__ import annotations

import functools
from importlib import resources
from typing import Literal

import yaml

from cojax.types import Content

Profile = Literal["tuned", "published"]


@functools.cache
def table(profile: Profile = "tuned") -> Content:
    """Return a whole file: ``algorithms`` and what else it holds."""
    return yaml.safe_load(
        resources.files("cojax.agents").joinpath(f"{profile}.yaml").read_text("utf-8")
    )


def hyperparameters(profile: Profile | None, algorithm: str, family: str) -> Content:
    """Return the hyperparameters of a profile; {} without one, or where it says nothing.

    Args:
        profile: "tuned", found by our search; "published", the paper's; or None.
        algorithm: a name in ``ALGORITHMS``.
        family: a family's name, as a fixture has it (``ConverseArm``, ``NVDEx``, …).
    """
    if profile is None:
        return {}
    return dict(table(profile)["algorithms"].get(algorithm, {}).get(family, {}))


def tuned(algorithm: str, family: str) -> Content:
    """Return the tuned hyperparameters of ``algorithm`` on ``family``; {} where none were found."""
    return hyperparameters("tuned", algorithm, family)
