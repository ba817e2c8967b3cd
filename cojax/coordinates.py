"""A system in other coordinates of its states and actions, whose optimum is carried along exactly.

    x = T s,  b = U a:    x' = T f(T⁻¹x) + T G(T⁻¹x) U⁻¹b + T w      c(T⁻¹x, U⁻¹b)
    V*(x) = V*(T⁻¹x)      π*(x) = U π*(T⁻¹x)      A*(x, b) = A*(T⁻¹x, U⁻¹b)

for invertible T and U: Bellman's equation is that of s with other names for its entries. The noise
is drawn by the same keys, so a trial is the same trial. A signed permutation is kept as an index
and a sign, without products or rounding; any other matrix with its inverse, made in float64.
"""

from __future__ import annotations

import abc

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from numpy.typing import ArrayLike, DTypeLike

from cojax import linalg
from cojax.delegated import Delegated
from cojax.distinct import Distinct
from cojax.errors import InputError
from cojax.initial import InitialLaw
from cojax.io.described import About, described
from cojax.linalg import product
from cojax.quadratic_gaussian import QuadraticGaussian
from cojax.system import Optimum, System
from cojax.types import Array, Float, Int

LARGEST_CONDITION = 1e6  # of T and U: beyond it the rounding of T T⁻¹ is no longer small


class Coordinates(Distinct, abc.ABC):
    """An invertible change T of coordinates; methods take one vector (n,) and give one."""

    @property
    @abc.abstractmethod
    def dim(self) -> int:
        """n."""

    @abc.abstractmethod
    def to(self, x: Float[Array, "n"]) -> Float[Array, "n"]:
        """T x."""

    @abc.abstractmethod
    def back(self, y: Float[Array, "n"]) -> Float[Array, "n"]:
        """T⁻¹ y."""

    @abc.abstractmethod
    def transposed(self, y: Float[Array, "n"], squared: bool = False) -> Float[Array, "n"]:
        """Tᵀ y, or with every entry of T ``squared``."""

    @abc.abstractmethod
    def widened(self, high: Float[Array, "n"]) -> Float[Array, "n"]:
        """|T| high: the box around T x for all |x_i| <= high_i, the smallest."""

    @abc.abstractmethod
    def widened_back(self, high: Float[Array, "n"]) -> Float[Array, "n"]:
        """|T⁻¹| high."""


@struct.dataclass
class SignedPermutation(Coordinates):
    """(T x)_i = sign_i x_source(i): exact to the bit, and so are |T x| and its inverse.

    Attributes:
        source: int32, a permutation of 0 … n - 1.
        target: int32, its inverse.
        sign: 1 or -1.
    """

    source: Int[Array, "*batch n"]
    target: Int[Array, "*batch n"]
    sign: Float[Array, "*batch n"]

    @property
    def dim(self):
        """n."""
        return self.sign.shape[-1]

    def to(self, x):
        """The entries in another order, some negated."""
        return self.sign * _taken(x, self.source)

    def back(self, y):
        """The reverse."""
        return _taken(self.sign * y, self.target)

    def transposed(self, y, squared=False):
        """The reverse; of squares the order alone."""
        return _taken(y if squared else self.sign * y, self.target)

    def widened(self, high):
        """The same order."""
        return _taken(high, self.source)

    def widened_back(self, high):
        """The reverse order."""
        return _taken(high, self.target)


@struct.dataclass
class Linear(Coordinates):
    """T x for a matrix T that is at hand with its inverse, each rounded from float64."""

    matrix: Float[Array, "*batch n n"]
    inverse: Float[Array, "*batch n n"]

    @property
    def dim(self):
        """n."""
        return self.matrix.shape[-1]

    def to(self, x):
        """T x."""
        return product(self.matrix, x)

    def back(self, y):
        """T⁻¹ y."""
        return product(self.inverse, y)

    def transposed(self, y, squared=False):
        """Tᵀ y."""
        return product(y, self.matrix**2 if squared else self.matrix)

    def widened(self, high):
        """|T| high."""
        return product(jnp.abs(self.matrix), high)

    def widened_back(self, high):
        """|T⁻¹| high."""
        return product(jnp.abs(self.inverse), high)


def _taken(x: jax.Array, index: jax.Array) -> jax.Array:
    return jnp.asarray(x).at[index].get(mode="promise_in_bounds")


def _about(system: Transformed) -> About:
    """What a system in other coordinates shows of itself."""
    facts = {"states": type(system.state).__name__, "actions": type(system.action).__name__}
    return f"Transformed system, of {type(innermost(system)[0]).__name__}", facts


@described(_about)
@struct.dataclass
class Transformed(Delegated):
    """The system ``base`` with states x = T s and actions b = U a; :func:`cojax.orbits.carried`
    and :func:`cojax.orbits.twin` make one, with params that fit. It may be of any system, another
    of these too. Bounds row by row are those of boxes, and with matrices wider than they need be.

    Attributes:
        base: in s and a.
        state: T.
        action: U.
    """

    base: System
    state: Coordinates
    action: Coordinates

    def optimum(self, s):
        """T f, U a* and T z* at T⁻¹x."""
        at = self.base.optimum(self.state.back(s))
        return Optimum(
            self.state.to(at.drift), self.action.to(at.action), self.state.to(at.next_mean)
        )

    def actuate(self, s, a):
        """T G(T⁻¹x) U⁻¹b."""
        return self.state.to(self.base.actuate(self.state.back(s), self.action.back(a)))

    def next_mean(self, s, a, optimum):
        """T z(T⁻¹x, U⁻¹b), as the base has it."""
        at = self._pulled(optimum)
        return self.state.to(self.base.next_mean(self.state.back(s), self.action.back(a), at))

    def stage_cost(self, s, a):
        """c(T⁻¹x, U⁻¹b)."""
        return self.base.stage_cost(self.state.back(s), self.action.back(a))

    def cost_at(self, s, a, optimum):
        """c(T⁻¹x, U⁻¹b), as the base has it."""
        return self.base.cost_at(self.state.back(s), self.action.back(a), self._pulled(optimum))

    def value(self, s):
        """V*(T⁻¹x)."""
        return self.base.value(self.state.back(s))

    def expected_value(self, s, z, a=None):
        """That of the base at T⁻¹x and T⁻¹z."""
        a = None if a is None else self.action.back(a)
        return self.base.expected_value(self.state.back(s), self.state.back(z), a)

    def excess_cost(self, s, delta, optimum=None):
        """A* of the base at T⁻¹x, for U⁻¹δ."""
        at = None if optimum is None else self._pulled(optimum)
        return self.base.excess_cost(self.state.back(s), self.action.back(delta), at)

    def noise_price(self, s, a):
        """That of the base."""
        return self.base.noise_price(self.state.back(s), self.action.back(a))

    def measured(self, s, a, optimum):
        """As the base has them."""
        return self.base.measured(self.state.back(s), self.action.back(a), self._pulled(optimum))

    def measured_values(self, s):
        """As the base has them."""
        return self.base.measured_values(self.state.back(s))

    def measured_means(self, mean, covariance):
        """As the base has them for T⁻¹s_0."""
        rows = jax.vmap(self.state.back)
        return self.base.measured_means(self.state.back(mean), rows(rows(covariance).T))

    def measured_excess(self, s, delta, optimum):
        """As the base has them."""
        at = self._pulled(optimum)
        return self.base.measured_excess(self.state.back(s), self.action.back(delta), at)

    def sample_noise(self, s, key, a=None):
        """T w, w by the same key."""
        a = None if a is None else self.action.back(a)
        return self.state.to(self.base.sample_noise(self.state.back(s), key, a))

    def state_bound(self, radius):
        """radius sqrt((T P⁻¹Tᵀ)_ii) for a matrix T of a quadratic value, else |T| times that of
        the base, which a signed permutation leaves the largest |x_i|.
        """
        if isinstance(self.state, Linear) and isinstance(self.base, QuadraticGaussian):
            T, P = self.state.matrix, self.base.P
            P = P if P.ndim > 1 else jnp.diag(P)
            return radius * jnp.sqrt(jnp.sum(T.T * linalg.solve_spd(P, T.T), axis=0))
        return self.state.widened(self.base.state_bound(radius))

    def reach(self, radius, start, limit):
        """|T| times that of the base, from |T⁻¹| start under |U⁻¹| limit."""
        before = self.state.widened_back(start), self.action.widened_back(limit)
        return jnp.maximum(self.state.widened(self.base.reach(radius, *before)), start)

    def feasible(self, a):
        """U times the nearest feasible action of the base, in the metric of the base."""
        return self.action.to(self.base.feasible(self.action.back(a)))

    def feasible_box(self):
        """|U| times that of the base: the smallest for a signed permutation, and for any U where
        the limit of the base is a box.
        """
        box = self.base.feasible_box()
        if box is None:
            return None
        if isinstance(self.action, SignedPermutation):
            return box[np.asarray(self.action.source)]
        return np.abs(np.asarray(self.action.matrix, np.float64)) @ box  # pyright: ignore

    def downhill(self, mean, rms):
        """U times that of the base, gradients there being Uᵀ those here, as if of entries that are
        not correlated.
        """
        squares = self.action.transposed(rms**2, squared=True)
        return self.action.to(self.base.downhill(self.action.transposed(mean), jnp.sqrt(squares)))

    def _pulled(self, at: Optimum) -> Optimum:
        """An optimum here in the coordinates of the base."""
        return Optimum(
            self.state.back(at.drift), self.action.back(at.action), self.state.back(at.next_mean)
        )


@struct.dataclass
class TransformedLaw(InitialLaw):
    """x_0 = T s_0, s_0 by the law ``base`` and the same key."""

    base: InitialLaw
    state: Coordinates

    def sample(self, key):
        """Draw T s_0."""
        return self.state.to(self.base.sample(key))

    def bound(self):
        """|T| times that of the base."""
        high = self.base.bound()
        return self.state.widened(jnp.broadcast_to(high, (self.state.dim,)))

    def moments(self):
        """T m and T C Tᵀ."""
        mean, covariance = self.base.moments()
        rows = jax.vmap(self.state.to)
        return self.state.to(mean), rows(rows(covariance).T)


def innermost(system: System) -> tuple[System, tuple[tuple[Coordinates, Coordinates], ...]]:
    """What is beneath all changes of coordinates, and those, the last one first."""
    changes = []
    while isinstance(system, Transformed):
        changes.append((system.state, system.action))
        system = system.base
    return system, tuple(changes)


def rewrapped(base: System, changes: tuple[tuple[Coordinates, Coordinates], ...]) -> System:
    """Inverse of :func:`innermost`."""
    for state, action in reversed(changes):
        base = Transformed(base, state, action)
    return base


# --- on the host ---------------------------------------------------------------------------------


def signed_permutation(
    order: ArrayLike, sign: ArrayLike, dtype: DTypeLike = np.float32, *, name: str = "T"
) -> SignedPermutation:
    """The change (T x)_i = sign_i x_order(i); raises InputError for what is none."""
    order, sign = np.asarray(order), np.asarray(sign)
    n = order.size
    if order.shape != (n,) or order.dtype.kind not in "iu" or sorted(order) != list(range(n)):
        raise InputError(f"{name}: expected a permutation of 0 … {n - 1}, got {order.tolist()}")
    if sign.shape != (n,) or not np.isin(sign, (-1, 1)).all():
        raise InputError(f"{name}: expected {n} signs, 1 or -1, got {sign.tolist()}")
    target = np.argsort(order)
    return SignedPermutation(
        source=linalg.to_device(order, np.int32),
        target=linalg.to_device(target, np.int32),
        sign=linalg.to_device(sign, dtype),
    )


def linear(matrix: ArrayLike, dtype: DTypeLike = np.float32, *, name: str = "T") -> Coordinates:
    """The change x ↦ T x of an invertible (n, n) matrix; one that permutes and negates is kept as
    a signed permutation. Raises InputError for another shape, and a condition number above 1e6.
    """
    T = np.asarray(matrix)
    if T.ndim != 2 or T.shape[0] != T.shape[1] or T.dtype.kind not in "iuf":
        raise InputError(f"{name}: expected an (n, n) matrix of numbers, got shape {T.shape}")
    T = T.astype(np.float64)
    if not np.isfinite(T).all():
        raise InputError(f"{name}: expected finite numbers, got {T[~np.isfinite(T)][0]}")
    ones = np.abs(T) == 1.0
    if np.isin(T, (-1.0, 0.0, 1.0)).all() and (ones.sum(0) == 1).all() and (ones.sum(1) == 1).all():
        order = ones.argmax(axis=1)
        return signed_permutation(order, T[np.arange(len(T)), order], dtype)
    condition = np.linalg.cond(T)
    if not condition <= LARGEST_CONDITION:
        raise InputError(
            f"{name}: expected an invertible matrix of condition number <= {LARGEST_CONDITION:g}, "
            f"got {condition:.3g}"
        )
    inverse = linalg.to_device(np.linalg.inv(T), dtype)
    return Linear(matrix=linalg.to_device(T, dtype), inverse=inverse)
