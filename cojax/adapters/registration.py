"""Names of environments for Gymnasium and gymnax. It runs where both cojax and the library are
imported, whichever comes first, so nothing heavy is imported here: names alone, and where to find
what makes them.

Gymnasium 1.0 has given up entry points; a program that does not import cojax writes
``gymnasium.make("cojax:cojax/ConverseArm-v0", ...)``.
"""

from __future__ import annotations

import importlib
from functools import partial

from cojax import plugins

BUILT_IN = (
    "ConverseArm",
    "NVDEx",
    "Unicycle",
    "Manipulator",
    "PointMass",
    "DoubleIntegrator",
    "KinematicArm",
    "PlanarAerial",
    "Aerial",
    "Isotropic",
)
DRIFTS = ("Pendulums",)
FIXTURE = "Fixture"  # gymnasium.make("cojax/Fixture-v0", name="arm-n4-p0.80-s7")


def with_gymnasium() -> None:
    """Register ``cojax/FAMILY-v0`` of every family, plug-ins included, and ``cojax/Fixture-v0``."""
    from gymnasium.envs.registration import register

    for family in (*BUILT_IN, *DRIFTS, *plugins.names("cojax.families"), FIXTURE):
        register(
            id=f"cojax/{family}-v0",
            entry_point="cojax.adapters.gymnasium:make_env",
            vector_entry_point="cojax.adapters.gymnasium:make_vector_env",
            kwargs={} if family == FIXTURE else {"family": family},
        )


def with_gymnax() -> None:
    """Register FAMILY-v0 of every family: ``gymnax.make("ConverseArm-v0", n=4, …)``."""
    import gymnax

    for family in (*BUILT_IN, *DRIFTS, *plugins.names("cojax.families")):
        if f"{family}-v0" not in gymnax.registered_envs:
            gymnax.register(f"{family}-v0", partial(_make, f"{family}-v0"))


def _make(name: str, **options: object) -> object:
    return importlib.import_module("cojax.registration").make(name, **options)[0]
