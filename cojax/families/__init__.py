"""Families: one file each, geometry only; the construction itself is :mod:`cojax.quadratic`."""

from cojax.families.arm import ConverseArm
from cojax.families.nvdex import NVDEx

FAMILIES = {"ConverseArm": ConverseArm, "NVDEx": NVDEx}

__all__ = ["FAMILIES", "ConverseArm", "NVDEx"]
