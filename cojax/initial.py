"""Initial laws: how an episode's first state s_0 is drawn."""

from __future__ import annotations

import abc
import math
from collections.abc import Mapping
from typing import ClassVar

import jax
import jax.numpy as jnp
from flax import struct

from cojax import streams
from cojax.distinct import Distinct
from cojax.errors import InputError
from cojax.linalg import product
from cojax.noise_laws import LARGEST_NORMAL
from cojax.types import Array, Float, PRNGKeyArray


class InitialLaw(Distinct, abc.ABC):
    """A distribution of s_0. Draws are made in float32 and cast, as in :mod:`cojax.noise`."""

    limits: ClassVar[Mapping[str, tuple[float, float]]] = {}  # of numbers that a file states

    @abc.abstractmethod
    def sample(self, key: PRNGKeyArray) -> Float[Array, "d"]:
        """One draw of s_0."""

    def bound(self) -> Float[Array, "d"] | Float[Array, ""]:
        """No |s_0i| beyond it is drawn; 0 where a law does not say, and observations
        beyond their space are then shown clipped to it.
        """
        return jnp.zeros(())

    def moments(self) -> tuple[Float[Array, "d"], Float[Array, "d d"]]:
        """Mean and covariance of s_0. Raises InputError for a law of which they are not known."""
        known = ", ".join(sorted({*LAWS, "ring"}))
        raise InputError(
            f"initial_state: expected a law whose moments are known ({known}), got {word(self)}"
        )


@struct.dataclass
class Uniform(InitialLaw):
    """s_0 ~ U(low, high), row by row."""

    low: Float[Array, "*batch d"]
    high: Float[Array, "*batch d"]

    @streams.pinned()
    def sample(self, key):
        """Draw s_0."""
        u = jax.random.uniform(key, self.low.shape, jnp.float32).astype(self.low.dtype)
        return self.low + (self.high - self.low) * u

    def bound(self):
        """max(|low|, |high|)."""
        return jnp.maximum(jnp.abs(self.low), jnp.abs(self.high))

    def moments(self):
        """(low + high)/2 and diag((high - low)²/12)."""
        return 0.5 * (self.low + self.high), jnp.diag((self.high - self.low) ** 2 / 12.0)


@struct.dataclass
class Normal(InitialLaw):
    """s_0 ~ N(mean, diag(std²))."""

    mean: Float[Array, "*batch d"]
    std: Float[Array, "*batch d"]

    @streams.pinned()
    def sample(self, key):
        """Draw s_0."""
        xi = jax.random.normal(key, self.mean.shape, jnp.float32).astype(self.mean.dtype)
        return self.mean + self.std * xi

    def bound(self):
        """|mean| + std max|ξ|."""
        return jnp.abs(self.mean) + LARGEST_NORMAL * jnp.abs(self.std)

    def moments(self):
        """mean and diag(std²)."""
        return self.mean, jnp.diag(self.std**2)


@struct.dataclass
class Fixed(InitialLaw):
    """The same s_0 in every episode."""

    state: Float[Array, "*batch d"]

    def sample(self, key):
        """Return s_0."""
        return self.state

    def bound(self):
        """|s_0|."""
        return jnp.abs(self.state)

    def moments(self):
        """s_0 and 0."""
        return self.state, jnp.diag(jnp.zeros_like(self.state))


@struct.dataclass
class Listed(InitialLaw):
    """s_0 drawn uniformly from a list of states."""

    states: Float[Array, "*batch k d"]

    @streams.pinned()
    def sample(self, key):
        """Draw s_0."""
        return self.states[jax.random.randint(key, (), 0, self.states.shape[0], jnp.int32)]

    def bound(self):
        """The largest |s_0i| of the list."""
        return jnp.abs(self.states).max(axis=0)

    def moments(self):
        """Of the list."""
        mean = jnp.mean(self.states, axis=0)
        apart = self.states - mean[None]
        return mean, product(apart.T, apart) / self.states.shape[0]


@struct.dataclass
class Ring(InitialLaw):
    """Vehicles on a ring: for each module a uniform angle, radius r (c + (1 - c) U), U ~ U(0, 1);
    heading φ ~ N(0, σ_φ²) and the first element of both velocity chains ~ N(0, σ_v²); the rest 0.

    The authors' law for NVDEx is r = 0.12, c = 0.6, σ_φ = 0.06, σ_v = 0.05.
    """

    radius: Float[Array, "*batch"]
    inner: Float[Array, "*batch"]  # c, the inner radius as a share of the outer
    heading_std: Float[Array, "*batch"]
    velocity_std: Float[Array, "*batch"]
    limits: ClassVar[Mapping[str, tuple[float, float]]] = {
        "radius": (0.0, math.inf),
        "inner": (0.0, 1.0),
        "heading_std": (0.0, math.inf),
        "velocity_std": (0.0, math.inf),
    }
    modules: int = struct.field(pytree_node=False)
    r_v: int = struct.field(pytree_node=False)
    r_omega: int = struct.field(pytree_node=False)

    @streams.pinned()
    def sample(self, key):
        """Draw s_0; shape (modules (3 + r_v + r_omega),)."""
        dtype = self.radius.dtype
        key_ring, key_normal = jax.random.split(key)
        u = jax.random.uniform(key_ring, (self.modules, 2), jnp.float32).astype(dtype)
        xi = jax.random.normal(key_normal, (self.modules, 3), jnp.float32).astype(dtype)
        angle = 2.0 * jnp.pi * u[:, 0]
        r = self.radius * (self.inner + (1.0 - self.inner) * u[:, 1])
        s = jnp.zeros((self.modules, 3 + self.r_v + self.r_omega), dtype)
        s = s.at[:, 0].set(r * jnp.cos(angle)).at[:, 1].set(r * jnp.sin(angle))
        s = s.at[:, 2].set(self.heading_std * xi[:, 0])
        s = s.at[:, 3].set(self.velocity_std * xi[:, 1])
        s = s.at[:, 3 + self.r_v].set(self.velocity_std * xi[:, 2])
        return s.reshape(-1)

    def bound(self):
        """The radius, and the largest draws, shape (modules (3 + r_v + r_omega),)."""
        high = jnp.zeros((self.modules, 3 + self.r_v + self.r_omega), self.radius.dtype)
        high = high.at[:, :2].set(jnp.abs(self.radius) * jnp.maximum(1.0, jnp.abs(self.inner)))
        high = high.at[:, 2].set(LARGEST_NORMAL * jnp.abs(self.heading_std))
        velocity = LARGEST_NORMAL * jnp.abs(self.velocity_std)
        return high.at[:, 3].set(velocity).at[:, 3 + self.r_v].set(velocity).reshape(-1)

    def moments(self):
        """0, and E r²/2 of a place with E r² = radius² (1 + c + c²)/3, σ_φ², σ_v² and σ_v²."""
        square = self.radius**2 * (1.0 + self.inner + self.inner**2) / 3.0
        var = jnp.zeros((self.modules, 3 + self.r_v + self.r_omega), self.radius.dtype)
        var = var.at[:, :2].set(0.5 * square).at[:, 2].set(self.heading_std**2)
        var = var.at[:, 3].set(self.velocity_std**2).at[:, 3 + self.r_v].set(self.velocity_std**2)
        return jnp.zeros_like(var.reshape(-1)), jnp.diag(var.reshape(-1))


LAWS = {"uniform": Uniform, "gaussian": Normal, "fixed": Fixed, "list": Listed}


def word(law: InitialLaw) -> str:
    """What a file calls a ``law``: a word of :data:`LAWS`, or the name of a family's own class."""
    known = {kind: name for name, kind in LAWS.items()}
    return known.get(type(law), type(law).__name__.lower())
