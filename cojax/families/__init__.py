"""Families: one file each, geometry only; the construction itself is :mod:`cojax.quadratic`.

A family of your own is a :class:`cojax.quadratic.Geometry`; ``register`` adds it, and so does the
entry point ``cojax.families`` of an installed package (:mod:`cojax.plugins`).
"""

from __future__ import annotations

import dataclasses

from cojax import plugins
from cojax.errors import InputError
from cojax.families.arm import ConverseArm
from cojax.families.double_integrator import DoubleIntegrator
from cojax.families.manipulator import Manipulator
from cojax.families.nvdex import NVDEx
from cojax.families.point_mass import PointMass
from cojax.families.unicycle import Unicycle
from cojax.quadratic import Geometry

FAMILIES: dict[str, type[Geometry]] = {
    "ConverseArm": ConverseArm,
    "NVDEx": NVDEx,
    "Unicycle": Unicycle,
    "Manipulator": Manipulator,
    "PointMass": PointMass,
    "DoubleIntegrator": DoubleIntegrator,
}

BUILT_IN = tuple(FAMILIES)


def problem(name: str, family: object) -> str | None:
    """Why an object cannot be a family under a name, or None where it can."""
    if not (isinstance(family, type) and issubclass(family, Geometry)):
        return f"expected a subclass of cojax.quadratic.Geometry, got {family!r}"
    if getattr(family, "__abstractmethods__", None):
        missing = ", ".join(sorted(family.__abstractmethods__))
        return f"expected methods {missing}"
    for attribute in ("family", "dimensions", "constant_input", "one_row_each"):
        if not hasattr(family, attribute):
            return f"expected a class attribute {attribute}"
    if family.family != name:
        return f"expected family = {name!r}, got {family.family!r}"
    if any(f.default is dataclasses.MISSING for f in dataclasses.fields(family)):  # pyright: ignore
        return "expected a default for every knob and dimension"
    return None


def register(family: type[Geometry]) -> type[Geometry]:
    """Add a family; also a class decorator. ``cojax.make("NAME-v0")`` and fixtures then know it.

    Raises InputError, one line, for what is no family, and for a name that is taken by another.
    """
    name = getattr(family, "family", getattr(family, "__name__", str(family)))
    reason = problem(name, family)
    if reason is not None:
        raise InputError(f"family {name}: {reason}")
    old = FAMILIES.get(name, family)
    same_place = (old.__module__, old.__qualname__) == (family.__module__, family.__qualname__)
    if old is not family and not same_place:
        raise InputError(f"family {name}: the name is taken")
    FAMILIES[name] = family
    return family


FAMILIES.update(plugins.load("cojax.families", problem, FAMILIES))

__all__ = ["BUILT_IN", "FAMILIES", "problem", "register", *BUILT_IN]  # pyright: ignore[reportUnsupportedDunderAll]
