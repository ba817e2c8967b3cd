"""One problem at several values of a knob: the stages of a homotopy (paper, Section VI)."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from cojax import errors
from cojax.envs.params import EnvParams
from cojax.errors import InputError
from cojax.quadratic import QuadraticGaussian, rebuild
from cojax.system import System


def knobs(system: System) -> dict[str, float]:
    """Numbers that a system can be rebuilt with, and what they are: p and those of its geometry.

    Raises InputError for a system that is not quadratic.
    """
    quadratic = _quadratic(system)
    geometry = quadratic.geometry
    names = set(geometry.fields()) - set(geometry.dimensions)
    return {"p": float(quadratic.p)} | {n: float(getattr(geometry, n)) for n in sorted(names)}


def stages(params: EnvParams, knob: str, values: Sequence[float]) -> list[EnvParams]:
    """The problem with ``knob`` at each of ``values``.

    P, Q, R, γ and the noise are held, and with them V* (paper, Section VI); the drift is derived
    anew. Raises InputError for a knob that the family does not have, and an unusable value.
    """
    system = _quadratic(params.system)
    known = knobs(system)
    errors.one_of("curriculum", knob, known)

    def at(value):
        same = value == known[knob]  # to the bit, and not what rounding makes of it
        return system if same else rebuild(system, **{knob: value})

    return [dataclasses.replace(params, system=at(float(value))) for value in values]


def _quadratic(system: System) -> QuadraticGaussian:
    if not isinstance(system, QuadraticGaussian):
        raise InputError(f"curriculum: expected a quadratic system, got {type(system).__name__}")
    return system
