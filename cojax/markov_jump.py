"""Systems that jump between modes, x = (s, e), the mode i observed: e is its unit vector.

    s' = f_i(s) + p_i g_i(s) a + w,  Cov w = Σ_i     P(i → j) = π_ij     c = sᵀQ_i s + aᵀR_i a

V* = sᵀP_i s + b_i with P_i ≻ 0 free in every mode: no coupled Riccati equation is solved. In
mode i what is ahead is P̂_i = Σ_j π_ij P_j, in the place of P (:mod:`cojax.quadratic_gaussian`):

    M_i = (P̂_i⁻¹ + γ p_i² g_i R_i⁻¹ g_iᵀ)/γ     |u|² = sᵀ(P_i - Q_i) s     a* = -p_i R_i⁻¹ g_iᵀ y
    b = (I - γΠ)⁻¹ γ κ,  κ_i = tr P̂_i Σ_i       A* = |δ|²_R_i + γ p_i² |g_i δ|²_P̂_i

since γ E V*(s', j) = γ zᵀP̂_i z + γ (κ_i + Σ_j π_ij b_j), whose last part is b_i: in mode i it is
the system of P_i, P̂_i and the offset b_i. ``offset`` is the least b_i, so that V* - offset >= 0 in
every mode, which the divergence guard measures.

The mode's move is a part of w, drawn by the same key, and depends on the mode alone: all policies
meet the same modes. Π is kept in multiples of 2⁻²⁰, at which uniform draws of 24 bits are cut with
no rounding: the modes move with exactly the chances that b and P̂ know.
"""

from __future__ import annotations

import dataclasses
import functools
import operator
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from numpy.typing import ArrayLike, DTypeLike

from cojax import inputs, linalg, streams
from cojax.envs.batching import MATRICES, align_shapes
from cojax.errors import InputError
from cojax.initial import Listed
from cojax.kinematic import KinematicGaussian
from cojax.labels import Labels
from cojax.linalg import HIGHEST, Chosen, product, quadratic_form
from cojax.memory import Remembering, assembled, statement
from cojax.quadratic import QuadraticGaussian
from cojax.system import Optimum
from cojax.types import Array, Float, PyTree

GRID = 2**20  # a chance is a whole number of its parts
ROUNDING = 1e-6  # of the sum of a row
MULTIPLIED = (*MATRICES, "twice_t_A", "matrix")  # of a system, and of its inverse square root


@inputs.guarded
@struct.dataclass
class MarkovJump(Remembering):
    """A system that jumps between modes. Build it with :func:`markov_jump`.

    Methods are of one state, action a or deviation ``delta`` = a - a* (m,), and ``key``; bounds of
    a ``radius`` of the guard, states |x_i| <= ``start`` and actions within ``limit``.

    Attributes:
        parts: a system of each mode, with P̂_i and the offset b_i.
        gamma: (), discount.
        offset: (), the least b_i.
        transition: (k, k), Π.
    """

    parts: tuple[QuadraticGaussian, ...]
    gamma: Float[Array, "*batch"]
    offset: Float[Array, "*batch"]
    transition: Float[Array, "*batch k k"]
    origin: dataclasses.InitVar[object] = dataclasses.field(default=None, kw_only=True)

    def __post_init__(self, origin: object) -> None:
        """Refuse replacement; raises InputError."""
        self._refuse(origin, "cojax.markov_jump.markov_jump")

    @property
    def modes(self) -> int:
        """k."""
        return len(self.parts)

    @property
    def state_dim(self):
        """d + k."""
        return self.inner.state_dim + self.modes

    def split(self, x: Float[Array, "n"]) -> tuple[Float[Array, "d"], Float[Array, "k"]]:
        """s and e."""
        return x[: self.inner.state_dim], x[self.inner.state_dim :]

    def weights(self, e: Float[Array, "k"]) -> Float[Array, "k"]:
        """1 for the largest entry of e, else 0: the first at the origin, which is no state."""
        return (jnp.arange(self.modes) == jnp.argmax(e)).astype(e.dtype)

    def at(self, e: Float[Array, "k"]) -> QuadraticGaussian:
        """The system of the mode whose one-hot is ``e``."""
        if self.modes == 1:
            return self.inner
        weights = self.weights(e)

        def choose(path: PyTree, *leaves: Array) -> Array | Chosen:
            """A matrix that is only multiplied with, or what another leaf is in the mode."""
            every = jnp.stack(leaves)
            if path[-1].name in MULTIPLIED and every.ndim == 3:
                return Chosen(every, weights)
            if path[-1].name == "num_blocks":  # of a series, zeros after its own
                return jnp.max(every)
            picked = [w * leaf for w, leaf in zip(weights, leaves, strict=True)]
            return functools.reduce(operator.add, picked)  # joins what comes next, as no index does

        return jax.tree_util.tree_map_with_path(choose, *align_shapes(self.parts))

    def initial_memory(self):
        """Any mode, at equal chances."""
        return Listed(jnp.eye(self.modes, dtype=self.gamma.dtype))

    def labels(self) -> Labels:
        """Those of the family, and the modes."""
        states, actions = self.inner.geometry.labels()
        return [*states, *(f"mode {i + 1} [-]" for i in range(self.modes))], actions

    def optimum(self, s):
        """That of the mode; e' = eΠ in the mean."""
        s, e = self.split(s)
        at, ahead = self.at(e).optimum(s), product(e, self.transition)
        drift, z = (jnp.concatenate([part, ahead]) for part in (at.drift, at.next_mean))
        return Optimum(drift, at.action, z)

    def actuate(self, s, a):
        """(p_i g_i(s) a, 0)."""
        s, e = self.split(s)
        return jnp.concatenate([self.at(e).actuate(s, a), jnp.zeros_like(e)])

    def stage_cost(self, s, a):
        """c = sᵀQ_i s + aᵀR_i a."""
        s, e = self.split(s)
        return self.at(e).stage_cost(s, a)

    def value(self, s):
        """V* = sᵀP_i s + b_i."""
        s, e = self.split(s)
        return self.at(e).value(s)

    def expected_value(self, s, z, a=None):
        """E V*(z + w) = zᵀP̂_i z + κ_i + Σ_j π_ij b_j, of the mode in ``s``."""
        s, e = self.split(s)
        return self.at(e).expected_value(s, self.split(z)[0])

    def excess_cost(self, s, delta, optimum=None):
        """A* = |δ|²_R_i + γ p_i² |g_i δ|²_P̂_i."""
        s, e = self.split(s)
        return self.at(e).excess_cost(s, delta)

    @property
    def follows_mean(self):
        """No: the mode is one of them."""
        return False

    def project(self, s):
        """s, and the mode of the largest entry of e."""
        s, e = self.split(s)
        return jnp.concatenate([s, self.weights(e)])

    def least_cost(self, s):
        """sᵀQ_i s."""
        s, e = self.split(s)
        return quadratic_form(self.at(e).Q, s)

    def size(self, s):
        """sᵀP_i s."""
        s, e = self.split(s)
        return quadratic_form(self.at(e).P, s)

    @property
    def noise_power(self):
        """The largest κ_i = γ⁻¹ b_i - Σ_j π_ij b_j."""
        b = jnp.stack([part.offset for part in self.parts])
        kappa = b / self.gamma - jnp.matmul(self.transition, b, precision=HIGHEST)
        return jnp.max(kappa)

    def state_bound(self, radius):
        """The largest of all modes; 1 for e."""
        bounds = jnp.stack([part.state_bound(radius) for part in self.parts])
        return jnp.concatenate([bounds.max(axis=0), jnp.ones(self.modes, bounds.dtype)])

    def reach(self, radius, start, limit):
        """The largest of all modes; 1 for e."""
        start, e = self.split(start)
        # V* - b_i <= V* - offset; the guard's own comparison rounds in units of the largest b
        following = jnp.stack([part.reach(radius, start, limit) for part in self.parts])
        return jnp.concatenate([following.max(axis=0), jnp.maximum(e, 1.0)])

    @streams.pinned()
    def sample_noise(self, s, key, a=None):
        """w of the mode, and what the mode moves beyond its mean."""
        s, e = self.split(s)
        w = self.at(e).sample_noise(s, key)
        mean = product(e, self.transition)
        word = streams.to_words(jax.random.fold_in(key, 2))[0]  # as random as a draw by that key
        u = (word >> 8).astype(e.dtype) * 2.0**-24
        passed = jnp.sum((u[None] >= jnp.cumsum(mean)).astype(jnp.int32))
        following = (jnp.arange(self.modes) == passed).astype(e.dtype)
        return jnp.concatenate([w, following - mean])


# --- on the host ---------------------------------------------------------------------------------


def markov_jump(
    systems: Sequence[QuadraticGaussian],
    transition: ArrayLike,
    *,
    dtype: DTypeLike | None = None,
) -> MarkovJump:
    """A system that is one of ``systems`` in each mode, which it observes.

    Args:
        systems: one a mode, of one family, size, γ and precision; all else may differ.
        transition: Π, (k, k), π_ij the chance of mode j after mode i; kept in multiples of 2⁻²⁰.
        dtype: of the leaves; by default that of the systems.

    Raises InputError, one line, for rows of Π that do not sum to 1 or have negative entries, for
    systems of different shapes, for P_i ⋡ Q_i, and for a system with kinematics, a limit, actuators
    or noise of its own class.
    """
    systems = list(systems)
    if not systems:
        raise InputError("systems: expected at least one, got none")
    stated = [statement("markov_jump", system, dtype) for system in systems]
    _require_one_shape(systems)
    Pi, gamma = chances(transition, len(systems)), stated[0]["gamma"]
    P = [linalg.to_full(one["P"]) for one in stated]
    ahead = [np.tensordot(row, np.stack(P), 1) for row in Pi]
    kappa = [np.sum(A * linalg.to_full(one["Sigma"])) for A, one in zip(ahead, stated, strict=True)]
    b = np.linalg.solve(np.eye(len(Pi)) - gamma * Pi, gamma * np.array(kappa))
    parts = [
        assembled(one | {"P_hat": A, "noise_cost": max(b_i, 0.0) * (1.0 - gamma) / gamma})
        for one, A, b_i in zip(stated, ahead, b, strict=True)
    ]
    if not all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(parts)):
        raise InputError("systems: expected leaves that are finite, which modes are chosen by")
    if len({part.inverse_sqrt.kind for part in parts}) > 1:
        raise InputError(
            "systems: expected M_i of one kind, got "
            + ", ".join(sorted({part.inverse_sqrt.name for part in parts}))
        )
    leaves = parts[0].gamma.dtype
    return MarkovJump(
        parts=tuple(align_shapes(parts)),
        gamma=parts[0].gamma,
        offset=linalg.to_device(min(float(part.offset) for part in parts), leaves),
        transition=linalg.to_device(Pi, leaves),
    )


def chances(transition: ArrayLike, k: int) -> Float[np.ndarray, "k k"]:
    """Π, ``transition`` of ``k`` modes, in multiples of 2⁻²⁰, rows summing to 1; raises InputError
    for one that is none.
    """
    Pi = np.asarray(transition, np.float64)
    if Pi.shape != (k, k) or not np.isfinite(Pi).all():
        raise InputError(f"transition: expected finite numbers of shape ({k}, {k}), got {Pi.shape}")
    if (Pi < 0.0).any():
        raise InputError(f"transition: expected numbers >= 0, got {Pi.min():g}")
    sums = Pi.sum(axis=1)
    worst = int(np.argmax(np.abs(sums - 1.0)))
    if abs(sums[worst] - 1.0) > ROUNDING:
        raise InputError(
            f"transition: expected rows that sum to 1, got {sums[worst]:.9g} in row {worst}"
        )
    parts = np.round(Pi * GRID)
    parts[np.arange(k), np.argmax(parts, axis=1)] += GRID - parts.sum(axis=1)
    return parts / GRID


def _require_one_shape(systems: Sequence[QuadraticGaussian]) -> None:
    """Raise InputError for systems that cannot be the modes of one."""

    def shape(system: QuadraticGaussian) -> tuple[object, ...]:
        geometry = jax.tree.map(np.shape, system.geometry)
        noise = system.noise.kind(system.geometry.noise_order())
        facts = (type(system), geometry, system.parameterization, system.gamma.dtype, noise)
        return (*facts, float(system.gamma))

    for system in systems:
        if isinstance(system, KinematicGaussian):
            raise InputError(
                "markov_jump: expected a drift that is free in every row, got kinematics"
            )
    for i, system in enumerate(systems):
        if shape(system) != shape(systems[0]):
            raise InputError(
                f"systems: expected modes of one family, size, γ, precision, form and kind of "
                f"noise, got another in number {i} than in number 0"
            )
