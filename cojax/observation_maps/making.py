"""How maps are made, from numbers that are checked, and policies that see through them."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from cojax import inputs
from cojax.errors import InputError
from cojax.observation_maps.maps import (
    Chained,
    Lifted,
    Linear,
    Matrix,
    ObservationMap,
    Scaled,
    Sines,
    Warped,
)
from cojax.policy import Apply, Policy
from cojax.types import Array, PRNGKeyArray, PyTree


def sines(names: Sequence[str]) -> Sines:
    """Of every entry that ``names``, an environment's ``labels()[0]``, say is in radians alone.

    Raises InputError where there is none.
    """
    angles = tuple(i for i, name in enumerate(names) if name.endswith("[rad]"))
    if not angles:
        raise InputError(f"sines: expected states with angles [rad], got {', '.join(names)}")
    return Sines(angles, len(names))


def scaled(scale: ArrayLike) -> Scaled:
    """c_i s_i; raises InputError for a c_i of 0, and what is no list of finite numbers."""
    c = _numbers("scaled", scale)
    if (c == 0.0).any():
        raise InputError("scaled: expected numbers other than 0, got 0")
    return Scaled(tuple(c.tolist()))


def warped(scale: ArrayLike) -> Warped:
    """c_i tanh(s_i/c_i); raises InputError unless all c_i are finite numbers > 0."""
    return Warped(_positive("warped", scale))


def linear(matrix: ArrayLike) -> Linear:
    """C s; raises InputError for what is no (k, d) matrix of full column rank."""
    C = np.asarray(matrix)
    if C.ndim != 2 or not C.size or C.dtype.kind not in "iuf" or not np.isfinite(C).all():
        raise InputError(f"linear: expected a (k, d) matrix of finite numbers, got {C.shape}")
    rank = np.linalg.matrix_rank(C.astype(np.float64))
    if rank < C.shape[1]:
        raise InputError(f"linear: expected rank {C.shape[1]}, one for each state, got {rank}")
    return Linear(_tuples(C.astype(np.float64)))


def rotation(dim: int, seed: int = 0) -> Linear:
    """C s for an orthogonal C, (dim, dim), that a seed draws."""
    dim = inputs.whole("dim", dim, 1)
    return Linear(_tuples(_orthogonal(dim, dim, seed)))


def lifted(dim: int, size: int, seed: int = 0, *, scale: ArrayLike = 1.0) -> Lifted:
    """tanh(W s/c), W (size, dim) with orthogonal columns that a seed draws, and rows of mean
    square 1; ``scale`` is c, a number or one for each state.

    Raises InputError unless size > dim, and for a scale that is not > 0.
    """
    dim = inputs.whole("dim", dim, 1)
    size = inputs.whole("size", size, dim + 1)
    c = np.asarray(scale)
    c = _positive("scale", np.full(dim, scale) if c.ndim == 0 else c)
    if len(c) != dim:
        raise InputError(f"scale: expected {dim} numbers, got {len(c)}")
    return Lifted(_tuples(math.sqrt(size / dim) * _orthogonal(size, dim, seed)), c)


def chained(*maps: ObservationMap) -> Chained:
    """One map after another; raises InputError for none, and where sizes do not fit."""
    if not maps:
        raise InputError("chained: expected at least one map, got none")
    for first, second in itertools.pairwise(maps):
        if first.size != second.dim:
            raise InputError(
                f"chained: expected a map of {first.size} numbers after "
                f"{type(first).__name__}, got one of {second.dim}"
            )
    return Chained(maps)


def _orthogonal(rows: int, columns: int, seed: int) -> np.ndarray:
    """Orthonormal columns, by the Haar measure, in float64."""
    rng = np.random.default_rng(inputs.whole("seed", seed, 0))
    Q, R = np.linalg.qr(rng.normal(size=(rows, columns)))
    return Q * np.sign(np.diagonal(R))


def _numbers(name: str, value: ArrayLike) -> np.ndarray:
    x = np.asarray(value)
    if x.ndim != 1 or not x.size or x.dtype.kind not in "iuf" or not np.isfinite(x).all():
        raise InputError(f"{name}: expected a list of finite numbers, got {value!r}")
    return x.astype(np.float64)


def _positive(name: str, value: ArrayLike) -> tuple[float, ...]:
    x = _numbers(name, value)
    if (x <= 0.0).any():
        raise InputError(f"{name}: expected numbers > 0, got {x.min():g}")
    return tuple(x.tolist())


def _tuples(matrix: np.ndarray) -> Matrix:
    return tuple(tuple(row) for row in matrix.tolist())


# --- policies ------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class SeenThrough:
    """a = apply(params, m(s), key)."""

    apply: Apply
    map: ObservationMap

    def __call__(self, params: PyTree, obs: Array, key: PRNGKeyArray) -> Array:
        """The action at a state, (m,)."""
        return self.apply(params, self.map(obs), key)


def seen_through(policy: Policy, m: ObservationMap) -> Policy:
    """The policy of states s that plays what ``policy``, of observations, plays at m(s): what
    :func:`cojax.evaluate` measures on the problem as it is. Axes stay.
    """
    if not isinstance(policy, Policy):
        raise InputError(f"policy: expected a cojax Policy, got {type(policy).__name__}")
    if not isinstance(m, ObservationMap):
        raise InputError(f"map: expected an ObservationMap, got {type(m).__name__}")
    return dataclasses.replace(policy, apply=SeenThrough(policy.apply, m))
