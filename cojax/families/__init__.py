"""Families: one file each, geometry only; the construction itself is :mod:`cojax.quadratic`."""

from cojax.families.arm import ConverseArm
from cojax.families.double_integrator import DoubleIntegrator
from cojax.families.manipulator import Manipulator
from cojax.families.nvdex import NVDEx
from cojax.families.point_mass import PointMass
from cojax.families.unicycle import Unicycle

FAMILIES = {
    "ConverseArm": ConverseArm,
    "NVDEx": NVDEx,
    "Unicycle": Unicycle,
    "Manipulator": Manipulator,
    "PointMass": PointMass,
    "DoubleIntegrator": DoubleIntegrator,
}

__all__ = ["FAMILIES", *FAMILIES]  # pyright: ignore[reportUnsupportedDunderAll]
