"""Laws of white noise: independent draws of mean 0 and variance 1, which a covariance then colours.

With quadratic values only second moments enter, so V*, π* and A* are those of Gaussian noise of the
same covariance, whatever the law. Draws are made in float32, and a law's variance is that of what
is drawn. Those of ``joint`` laws share a random size in each step: uncorrelated, not independent.
"""

from __future__ import annotations

import abc
import math
from functools import lru_cache
from typing import ClassVar, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from cojax import inputs
from cojax.distinct import Distinct
from cojax.errors import one_of
from cojax.types import Array, Float, Option, PRNGKeyArray

Leaf: TypeAlias = Float[Array, "*batch"] | float
LARGEST_NORMAL = (
    5.5  # of jax.random.normal in float32, which inverts a distribution: √2 erf⁻¹(1-2⁻²⁴)
)
CELLS = 2**23  # values of jax.random.uniform in float32


class Law(Distinct, abc.ABC):
    """A law of one entry of the white noise, of mean 0 and variance 1. Its parameters are leaves.

    Attributes:
        word: what a fixture calls it.
        options: its parameters by name, with the open interval they lie in.
        usual: what they are unless given.
        joint: whether the entries of a step share a size.
    """

    word: ClassVar[str]
    options: ClassVar[dict[str, tuple[float, float]]] = {}
    usual: ClassVar[dict[str, float]] = {}
    joint: ClassVar[bool] = False

    @abc.abstractmethod
    def draw(self, key: PRNGKeyArray, shape: tuple[int, ...]) -> Float[Array, "*shape"]:
        """One step's draws, float32."""

    @abc.abstractmethod
    def bound(self) -> Leaf:
        """The largest |ξ| that is drawn."""

    @classmethod
    def of(cls, **options: float) -> Law:
        """The law of parameters that were checked, with what follows from them."""
        return cls(**options)


@struct.dataclass
class Normal(Law):
    """ξ ~ N(0, 1)."""

    word = "gaussian"

    def draw(self, key, shape):
        """Draw ξ."""
        return jax.random.normal(key, shape, jnp.float32)

    def bound(self):
        """That of an inverted distribution."""
        return LARGEST_NORMAL


@struct.dataclass
class StudentT(Law):
    """ξ = k sqrt(ν (u^{-2/ν} - 1)) cos 2πv, u and v uniform: Student's t (Bailey 1994), over its
    standard deviation.

    u takes 2²³ values, so tails end where the probability is 2⁻²³; the scale k is that of the law
    with this end, so that the variance is 1.
    """

    nu: Leaf
    scale: Leaf  # see ``of``
    word = "student-t"
    usual: ClassVar = {"nu": 4.0}
    options: ClassVar = {"nu": (2.0, math.inf)}

    def draw(self, key, shape):
        """Draw ξ."""
        # in a row, since counters of several axes cost three times as much
        u, v = jax.random.uniform(key, (2 * math.prod(shape),), jnp.float32).reshape(2, *shape)
        nu = jnp.asarray(self.nu, jnp.float32)
        size = jnp.sqrt(nu * jnp.expm1(-2.0 / nu * jnp.log1p(-u)))
        return jnp.asarray(self.scale, jnp.float32) * size * jnp.cos(2.0 * jnp.pi * v)

    def bound(self):
        """That of u = 2⁻²³."""
        return self.scale * jnp.sqrt(self.nu * (CELLS ** (2.0 / self.nu) - 1.0))

    @classmethod
    def of(cls, **options):
        """With the scale of its variance."""
        return cls(**options, scale=_student_scale(options["nu"]))


@lru_cache
def _student_scale(nu: float) -> float:
    """1/std of sqrt(ν (u^{-2/ν} - 1)) cos 2πv over u = k 2⁻²³, k = 1 … 2²³."""
    k = np.arange(1, CELLS + 1, dtype=np.float64) / CELLS
    return float((0.5 * nu * (np.mean(k ** (-2.0 / nu)) - 1.0)) ** -0.5)


@struct.dataclass
class Laplace(Law):
    """ξ ~ Laplace(0, 1/√2)."""

    word = "laplace"

    def draw(self, key, shape):
        """Draw ξ."""
        return jax.random.laplace(key, shape, jnp.float32) * np.float32(math.sqrt(0.5))

    def bound(self):
        """That of a uniform draw next to an end of its interval."""
        return math.sqrt(0.5) * math.log(2.0 * CELLS)


@struct.dataclass
class Uniform(Law):
    """ξ ~ U(-√3, √3)."""

    word = "uniform"

    def draw(self, key, shape):
        """Draw ξ."""
        end = math.sqrt(3.0)
        return jax.random.uniform(key, shape, jnp.float32, -end, end)

    def bound(self):
        """√3."""
        return math.sqrt(3.0)


@struct.dataclass
class Gusts(Law):
    """ξ ~ N(0, k²) in a gust, with probability ε in each step, else N(0, k²/r²): a mixture of two
    Gaussians, one of them r times as wide, k² (ε + (1-ε)/r²) = 1.
    """

    probability: Leaf
    ratio: Leaf
    word = "gusts"
    usual: ClassVar = {"probability": 0.1, "ratio": 5.0}
    options: ClassVar = {"probability": (0.0, 1.0), "ratio": (1.0, math.inf)}
    joint = True

    def draw(self, key, shape):
        """Draw ξ; the gust is one for all entries."""
        gust, rest = jax.random.split(key)
        calm, windy = self._sizes()
        size = jnp.where(jax.random.uniform(gust) < self.probability, windy, calm)
        return size.astype(jnp.float32) * jax.random.normal(rest, shape, jnp.float32)

    def _sizes(self) -> tuple[Leaf, Leaf]:
        share = self.probability + (1.0 - self.probability) / self.ratio**2
        windy = share**-0.5
        return windy / self.ratio, windy

    def bound(self):
        """Of a gust."""
        return LARGEST_NORMAL * self._sizes()[1]


@struct.dataclass
class Impulses(Law):
    """ξ ~ N(0, 1/ε) with probability ε in each step, else 0."""

    probability: Leaf
    word = "impulses"
    usual: ClassVar = {"probability": 0.1}
    options: ClassVar = {"probability": (0.0, 1.0)}
    joint = True

    def draw(self, key, shape):
        """Draw ξ; an impulse is one for all entries."""
        hit, rest = jax.random.split(key)
        size = jnp.where(jax.random.uniform(hit) < self.probability, self.probability**-0.5, 0.0)
        return size.astype(jnp.float32) * jax.random.normal(rest, shape, jnp.float32)

    def bound(self):
        """Of an impulse."""
        return LARGEST_NORMAL * self.probability**-0.5


LAWS: dict[str, type[Law]] = {
    law.word: law for law in (Normal, StudentT, Laplace, Uniform, Gusts, Impulses)
}
NORMAL = Normal()


def law(word: str, **options: Option) -> Law:
    """The law that a fixture calls ``word``, with its parameters in float64.

    Raises InputError, one line, for an unknown law or parameter, and for ν <= 2, at which a
    Student-t has no covariance, and other values that a law cannot have.
    """
    kind = LAWS[one_of("noise.model", word, LAWS)]
    for name in options:
        one_of(f"noise ({word})", name, kind.options)
    checked = {
        name: inputs.number(
            f"noise.{name}",
            options.get(name, kind.usual[name]),
            low,
            high,
            low_open=True,
            high_open=True,
        )
        for name, (low, high) in kind.options.items()
    }
    return kind.of(**checked)
