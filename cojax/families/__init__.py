"""Families: geometry only; the construction itself is :mod:`cojax.quadratic`, or for arms with true
kinematics :mod:`cojax.kinematic`. Families of given drifts stand apart: :mod:`cojax.free_drift`.

A family of your own is a :class:`cojax.quadratic.Geometry`; ``register`` adds it, and so does the
entry point ``cojax.families`` of an installed package (:mod:`cojax.plugins`).
"""

from __future__ import annotations

import dataclasses

import jax
import numpy as np

from cojax import plugins, precision
from cojax.errors import InputError, one_line
from cojax.families.aerial import Aerial, PlanarAerial
from cojax.families.arm import ConverseArm
from cojax.families.double_integrator import DoubleIntegrator
from cojax.families.isotropic import Isotropic
from cojax.families.kinematic_arm import KinematicArm
from cojax.families.manipulator import Manipulator
from cojax.families.nvdex import NVDEx
from cojax.families.pendulums import Pendulums
from cojax.families.point_mass import PointMass
from cojax.families.unicycle import Unicycle
from cojax.free_drift import DriftFamily
from cojax.quadratic import Geometry

FAMILIES: dict[str, type[Geometry]] = {
    "ConverseArm": ConverseArm,
    "NVDEx": NVDEx,
    "Unicycle": Unicycle,
    "Manipulator": Manipulator,
    "PointMass": PointMass,
    "DoubleIntegrator": DoubleIntegrator,
    "KinematicArm": KinematicArm,
    "PlanarAerial": PlanarAerial,
    "Aerial": Aerial,
    "Isotropic": Isotropic,
}

BUILT_IN = tuple(FAMILIES)
DRIFTS: dict[str, type[DriftFamily]] = {"Pendulums": Pendulums}  # of cojax.free_drift


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


def traced_problem(family: type[Geometry]) -> str | None:
    """Why what methods of a ``family`` give does not fit its dimensions; None where it does."""
    geometry = family()
    if jax.tree.leaves(geometry) == [geometry]:
        return "expected a pytree: put @flax.struct.dataclass over the class"
    d, m = geometry.state_dim, geometry.action_dim
    s, a, p = (jax.ShapeDtypeStruct(shape, np.float32) for shape in ((d,), (m,), ()))

    def start():
        return geometry.initial_law(np.float32).sample(jax.random.key(0))

    methods = (
        ("actuate(s, a)", geometry.actuate, (s, a), d),
        ("actuate_transpose(s, v)", geometry.actuate_transpose, (s, s), m),
        ("rotate(s, x, p)", geometry.rotate, (s, s, p), d),
        ("initial_law(dtype).sample(key)", start, (), d),
    )
    for name, method, arguments, length in methods:
        try:
            with precision.x32():
                found = jax.eval_shape(method, *arguments)
        except Exception as error:  # whatever a stranger's method raises
            return f"{name} fails with {type(error).__name__}: {one_line(error)}"
        if getattr(found, "shape", None) != (length,):
            got = getattr(found, "shape", type(found).__name__)
            return f"{name}: expected an array of shape ({length},), got {got}"
    if sorted(geometry.noise_order()) != list(range(d)):
        return (
            f"noise_order(): expected every row of 0 … {d - 1} once, got {geometry.noise_order()}"
        )
    if tuple(map(len, geometry.labels())) != (d, m):
        return f"labels(): expected ({d}, {m}) names, got {tuple(map(len, geometry.labels()))}"
    return None


def register(family: type[Geometry]) -> type[Geometry]:
    """Add a family; also a class decorator. ``cojax.make("NAME-v0")`` and fixtures then know it.

    Raises InputError, one line, for what is no family, and for a name that is taken by another.
    """
    name = getattr(family, "family", getattr(family, "__name__", str(family)))
    reason = problem(name, family)
    if reason is None:
        there, here = ((x.__module__, x.__qualname__) for x in (FAMILIES.get(name, family), family))
        reason = "the name is taken" if there != here else traced_problem(family)
    if reason is not None:
        raise InputError(f"family {name}: {reason}")
    FAMILIES[name] = family
    return family


FAMILIES.update(plugins.load("cojax.families", problem, FAMILIES))

__all__ = [
    "BUILT_IN",
    "DRIFTS",
    "FAMILIES",
    "problem",
    "register",
    "traced_problem",
    *BUILT_IN,
    *DRIFTS,
]  # pyright: ignore[reportUnsupportedDunderAll]
