"""The maps themselves; how they are made is in :mod:`cojax.observation_maps.making`."""

from __future__ import annotations

import abc
import dataclasses
import math
from collections.abc import Sequence
from functools import lru_cache, reduce
from typing import ClassVar, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np

from cojax.errors import InputError
from cojax.linalg import product
from cojax.types import Array, Bool, Float

STEEPEST = 4.0  # |x| up to which float32 keeps x in tanh x to 1e-4
ROOM = 1.0001  # for the rounding of products
Matrix: TypeAlias = tuple[tuple[float, ...], ...]


class ObservationMap(abc.ABC):
    """A map m from states (d,) to observations (k,), a frozen dataclass; methods are of one state.

    Attributes:
        lossless: whether m is injective on all of R^d, in exact arithmetic.
    """

    lossless: ClassVar[bool] = True

    @property
    @abc.abstractmethod
    def dim(self) -> int:
        """d."""

    @property
    def size(self) -> int:
        """k."""
        return self.dim

    def __call__(self, s: Float[Array, "d"]) -> Float[Array, "k"]:
        """m(s); raises InputError for a state of another length."""
        if jnp.shape(s) != (self.dim,):
            raise InputError(
                f"observation map {type(self).__name__}: expected a state of shape ({self.dim},), "
                f"got {jnp.shape(s)}"
            )
        return self.apply(s)

    @abc.abstractmethod
    def apply(self, s: Float[Array, "d"]) -> Float[Array, "k"]:
        """m(s)."""

    @abc.abstractmethod
    def inverse(self, o: Float[Array, "k"]) -> Float[Array, "d"]:
        """The s with m(s) = o; of several the one that ``lossless_on`` holds for."""

    def lossless_on(self, s: Float[Array, "d"]) -> Bool[Array, ""]:
        """Whether s is what ``inverse`` makes of m(s), up to rounding."""
        return jnp.isfinite(s).all()

    @abc.abstractmethod
    def box(self, high: Float[Array, "d"]) -> Float[Array, "k"]:
        """No |o_i| is larger where |s_i| <= ``high``."""

    @abc.abstractmethod
    def labels(self, names: Sequence[str]) -> list[str]:
        """What entries of o are called, where those of s are called ``names``."""


@dataclasses.dataclass(frozen=True)
class Sines(ObservationMap):
    """(sin θ_i, cos θ_i) in place of each angle θ_i, k = d + their number.

    Injective for angles in (-π, π] alone; states are not wrapped to it, and cost and drift tell θ
    from θ + 2π. So ``lossless`` is False, and ``lossless_on`` says where nothing is lost.

    Attributes:
        angles: their places, increasing.
        num_states: d.
    """

    angles: tuple[int, ...]
    num_states: int
    lossless: ClassVar[bool] = False

    @property
    def dim(self):
        """d."""
        return self.num_states

    @property
    def size(self):
        """d + the number of angles."""
        return self.num_states + len(self.angles)

    def _places(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The state of each entry, and which are sines and cosines."""
        source = np.sort([*range(self.num_states), *self.angles])
        angle = np.isin(source, self.angles)
        second = np.append(False, source[1:] == source[:-1])
        return source, angle & ~second, second

    def apply(self, s):
        """Sine, then cosine, of angles."""
        source, sine, cosine = self._places()
        x = s[source]
        return jnp.where(sine, jnp.sin(x), jnp.where(cosine, jnp.cos(x), x))

    def inverse(self, o):
        """The angle in (-π, π]."""
        _, sine, cosine = self._places()
        s = o[~cosine]
        return jnp.asarray(s).at[np.array(self.angles)].set(jnp.arctan2(o[sine], o[cosine]))

    def lossless_on(self, s):
        """Whether all angles are in (-π, π]."""
        theta = s[np.array(self.angles)]
        return jnp.isfinite(s).all() & ((theta > -math.pi) & (theta <= math.pi)).all()

    def box(self, high):
        """1 for sines and cosines."""
        source, sine, cosine = self._places()
        return jnp.where(sine | cosine, jnp.ones((), high.dtype), high[source])

    def labels(self, names):
        """ "sin θ_1", "cos θ_1", without a unit."""
        source, sine, cosine = self._places()
        words = [str(names[int(i)]) for i in source]
        bare = [word.partition(" [")[0] for word in words]
        return [
            f"sin {b}" if first else f"cos {b}" if second else word
            for word, b, first, second in zip(words, bare, sine, cosine, strict=True)
        ]


@dataclasses.dataclass(frozen=True)
class Scaled(ObservationMap):
    """c_i s_i, c_i ≠ 0."""

    scale: tuple[float, ...]

    @property
    def dim(self):
        """d."""
        return len(self.scale)

    def apply(self, s):
        """c s."""
        return s * jnp.asarray(self.scale, s.dtype)

    def inverse(self, o):
        """o/c."""
        return o / jnp.asarray(self.scale, o.dtype)

    def box(self, high):
        """|c| high."""
        return _finite(ROOM * high * jnp.abs(jnp.asarray(self.scale, high.dtype)))

    def labels(self, names):
        """The factor in front."""
        return [f"{c:g} {name}" for c, name in zip(self.scale, names, strict=True)]


@dataclasses.dataclass(frozen=True)
class Warped(ObservationMap):
    """c_i tanh(s_i/c_i), c_i > 0: near s_i below c_i, and flat beyond; floats keep 4 c_i."""

    scale: tuple[float, ...]

    @property
    def dim(self):
        """d."""
        return len(self.scale)

    def apply(self, s):
        """c tanh(s/c)."""
        c = jnp.asarray(self.scale, s.dtype)
        return c * jnp.tanh(s / c)

    def inverse(self, o):
        """c artanh(o/c)."""
        c = jnp.asarray(self.scale, o.dtype)
        return c * jnp.arctanh(o / c)

    def lossless_on(self, s):
        """Whether |s_i| <= 4 c_i."""
        return (jnp.abs(s) <= STEEPEST * jnp.asarray(self.scale, s.dtype)).all()

    def box(self, high):
        """c tanh(high/c)."""
        return ROOM * self.apply(high)

    def labels(self, names):
        """ "warped" in front."""
        return [f"warped {name}" for name in names]


@dataclasses.dataclass(frozen=True)
class Linear(ObservationMap):
    """C s for a matrix C, (k, d), of full column rank."""

    matrix: Matrix

    @property
    def dim(self):
        """d."""
        return len(self.matrix[0])

    @property
    def size(self):
        """k."""
        return len(self.matrix)

    def apply(self, s):
        """C s."""
        return product(jnp.asarray(self.matrix, s.dtype), s)

    def inverse(self, o):
        """C⁺ o."""
        return product(jnp.asarray(_pseudoinverse(self.matrix), o.dtype), o)

    def box(self, high):
        """|C| high."""
        return _finite(ROOM * product(jnp.abs(jnp.asarray(self.matrix, high.dtype)), high))

    def labels(self, names):
        """o_1 … o_k: they are mixtures."""
        return [f"o_{i + 1}" for i in range(self.size)]


@dataclasses.dataclass(frozen=True)
class Lifted(ObservationMap):
    """tanh(W s/c), W (k, d) of full column rank, k > d, c_i > 0: injective; floats keep s where no
    entry of W s/c is beyond 4.
    """

    matrix: Matrix
    scale: tuple[float, ...]

    @property
    def dim(self):
        """d."""
        return len(self.scale)

    @property
    def size(self):
        """k."""
        return len(self.matrix)

    def _mixed(self, s: jax.Array, absolute: bool = False) -> jax.Array:
        """W s/c."""
        W = jnp.asarray(self.matrix, s.dtype)
        return product(jnp.abs(W) if absolute else W, s / jnp.asarray(self.scale, s.dtype))

    def apply(self, s):
        """tanh(W s/c)."""
        return jnp.tanh(self._mixed(s))

    def inverse(self, o):
        """c W⁺ artanh o."""
        inverse = jnp.asarray(_pseudoinverse(self.matrix), o.dtype)
        return jnp.asarray(self.scale, o.dtype) * product(inverse, jnp.arctanh(o))

    def lossless_on(self, s):
        """Whether no entry of W s/c is beyond 4."""
        return (jnp.abs(self._mixed(s)) <= STEEPEST).all()

    def box(self, high):
        """tanh(|W| high/c)."""
        return jnp.minimum(ROOM * jnp.tanh(self._mixed(high, absolute=True)), 1.0)

    def labels(self, names):
        """o_1 … o_k: they are mixtures."""
        return [f"o_{i + 1}" for i in range(self.size)]


@dataclasses.dataclass(frozen=True)
class Chained(ObservationMap):
    """m_n ∘ … ∘ m_1."""

    maps: tuple[ObservationMap, ...]

    @property
    def dim(self):
        """That of the first."""
        return self.maps[0].dim

    @property
    def size(self):
        """That of the last."""
        return self.maps[-1].size

    @property
    def lossless(self):  # pyright: ignore[reportIncompatibleVariableOverride]
        """Whether all are."""
        return all(m.lossless for m in self.maps)

    def apply(self, s):
        """One after another."""
        return reduce(lambda x, m: m(x), self.maps, s)

    def inverse(self, o):
        """The last first."""
        return reduce(lambda x, m: m.inverse(x), reversed(self.maps), o)

    def lossless_on(self, s):
        """Whether each is, on what the one before makes of s."""
        kept = jnp.array(True)
        for m in self.maps:
            kept, s = kept & m.lossless_on(s), m(s)
        return kept

    def box(self, high):
        """One after another."""
        return reduce(lambda x, m: m.box(x), self.maps, high)

    def labels(self, names):
        """One after another."""
        return reduce(lambda x, m: m.labels(x), self.maps, list(names))


def _finite(high: jax.Array) -> jax.Array:
    return jnp.minimum(high, 0.25 * jnp.finfo(high.dtype).max)


@lru_cache(maxsize=64)
def _pseudoinverse(matrix: Matrix) -> np.ndarray:
    return np.linalg.pinv(np.array(matrix))
