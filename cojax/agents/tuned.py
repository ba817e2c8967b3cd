"""Hyperparameters kept as data: ``tuned.yaml`` with the search that found them, and those that the
paper's authors published, ``published.yaml``.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable
from importlib import resources
from typing import Literal, get_args

import yaml

from cojax.errors import InputError
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


def named(profile: Profile | None) -> Profile | None:
    """The profile; InputError for another word."""
    if profile is not None and profile not in get_args(Profile):
        raise InputError(f"profile: expected tuned, published or None, got {profile!r}")
    return profile


def origin(
    profile: Profile | None, algorithm: str, family: str | None, given: Iterable[str] = ()
) -> str:
    """Where hyperparameters come from, in words: ``given`` are the names that lie above them.

    "ppo: its defaults", "ppo: tuned for NVDEx, with learning_rate as given".
    """
    found = hyperparameters(named(profile), algorithm, family or "")
    words = f"{profile} for {family}" if found else "its defaults"
    if profile is not None and not found:
        words += f" (nothing {profile} for {family or 'this environment'})"
    names = sorted(given)
    return f"{algorithm}: {words}" + (f", with {', '.join(names)} as given" if names else "")


def tuned(algorithm: str, family: str) -> Content:
    """Return the tuned hyperparameters of ``algorithm`` on ``family``; {} where none were found."""
    return hyperparameters("tuned", algorithm, family)
