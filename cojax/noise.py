"""Noise models: how w is drawn, and its covariance.

Draws are made in float32 whatever the precision of the system and then cast, so that a float64
run meets the disturbances of the float32 run it is to certify.
"""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Hashable, Sequence
from itertools import pairwise
from typing import Self

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from jax import lax
from numpy.typing import DTypeLike

from cojax import linalg, streams
from cojax.types import Array, Float, PRNGKeyArray

LARGEST_NORMAL = (
    5.5  # of jax.random.normal in float32, which inverts a distribution: √2 erf⁻¹(1-2⁻²⁴)
)


class Noise(abc.ABC):
    """A zero-mean disturbance w, independent over time."""

    @abc.abstractmethod
    def sample(self, key: PRNGKeyArray, s: Float[Array, "d"]) -> Float[Array, "d"]:
        """One draw of w at state s; only heteroscedastic models look at s."""

    @abc.abstractmethod
    def covariance(self) -> Float[Array, "d d"] | Float[Array, "d"]:
        """Σ = Cov w, shape (d, d), or (d,) where it is diagonal by structure."""

    def kind(self, order: tuple[int, ...]) -> Hashable:
        """Those of one kind can be aligned, and then stacked; ``order``: the family's, of rows."""
        return linalg.shape_of(self)

    def aligned(self, others: Sequence[Self]) -> Self:
        """The same in a shape that ``others`` of its kind, itself among them, have in common."""
        return self

    def bound(self) -> Float[Array, "d"]:
        """No |w_i| beyond it is drawn. By default six standard deviations, for laws without
        such a bound: observations that they throw out of their space are shown clipped to it.
        """
        Sigma = self.covariance()
        return 6.0 * jnp.sqrt(Sigma if Sigma.ndim == 1 else jnp.diagonal(Sigma))


@struct.dataclass
class DiagonalGaussian(Noise):
    """w_i = σ_i ξ_i on the rows that have noise, ξ ~ N(0, I); exactly zero elsewhere.

    ``rows`` is a prefix of an order that the family fixes, so that a system with fewer noisy rows
    meets the same numbers when it is stacked with one that has more.
    """

    sigma: Float[Array, "*batch r"]  # standard deviations of the rows listed
    rows: tuple[int, ...] = struct.field(pytree_node=False)
    dim: int = struct.field(pytree_node=False)

    @streams.pinned()
    def sample(self, key, s):
        """Draw w."""
        xi = jax.random.normal(key, self.sigma.shape, jnp.float32).astype(self.sigma.dtype)
        return scatter(self.sigma * xi, self.rows, self.dim)

    def covariance(self):
        """Diagonal of Σ."""
        return scatter(self.sigma**2, self.rows, self.dim)

    def kind(self, order):
        """Those on prefixes of ``order``; else those on the same rows."""
        prefix = self.rows == tuple(order[: len(self.rows)])
        return type(self), self.dim, None if prefix else self.rows

    def aligned(self, others):
        """Rows of zero deviation after its own, up to the longest."""
        longest = max(others, key=lambda m: len(m.rows))
        return dataclasses.replace(longest, sigma=linalg.padded(self.sigma, len(longest.rows)))


@struct.dataclass
class Gaussian(Noise):
    """w = L ξ with L Lᵀ = Σ, ξ ~ N(0, I_r): any Σ ⪰ 0, of rank r."""

    L: Float[Array, "*batch d r"]

    @streams.pinned()
    def sample(self, key, s):
        """Draw w."""
        xi = jax.random.normal(key, self.L.shape[-1:], jnp.float32).astype(self.L.dtype)
        return jnp.matmul(xi, self.L.T, precision=linalg.HIGHEST)

    def covariance(self):
        """Σ = L Lᵀ, shape (d, d)."""
        return jnp.matmul(self.L, self.L.T, precision=linalg.HIGHEST)

    def kind(self, order):
        """All of one dimension, whatever their rank."""
        return type(self), self.L.shape[0]

    def aligned(self, others):
        """Columns of zeros up to the highest rank."""
        return dataclasses.replace(self, L=linalg.padded(self.L, max(m.L.shape[1] for m in others)))

    def bound(self):
        """|w_i| <= Σ_j |L_ij| max|ξ|, shape (d,)."""
        return LARGEST_NORMAL * jnp.sum(jnp.abs(self.L), axis=-1)


GAUSSIAN = (DiagonalGaussian, Gaussian)


def covariance(noise: Noise) -> Float[np.ndarray, "*batch d d"] | None:
    """Σ of Gaussian ``noise`` on the host, float64; None for another law."""
    if isinstance(noise, DiagonalGaussian):
        sigma = np.asarray(noise.sigma, np.float64)
        diagonal = np.zeros((*sigma.shape[:-1], noise.dim))
        diagonal[..., list(noise.rows)] = sigma**2
        return diagonal[..., None] * np.eye(noise.dim)
    if isinstance(noise, Gaussian):
        L = np.asarray(noise.L, np.float64)
        return L @ np.swapaxes(L, -1, -2)
    return None


def scatter(x: Float[Array, "r"], rows: tuple[int, ...], dim: int) -> Float[Array, "d"]:
    """Place x_j at rows[j] of a zero vector of length dim; evenly spaced rows cost one pad."""
    if len(rows) == 0:
        return jnp.zeros((dim,), x.dtype)
    step = rows[1] - rows[0] if len(rows) > 1 else 1
    if step > 0 and all(b - a == step for a, b in pairwise(rows)):
        zero = jnp.zeros((), x.dtype)
        return lax.pad(x, zero, [(rows[0], dim - 1 - rows[-1], step - 1)])
    source = np.full(dim, len(rows))
    source[list(rows)] = np.arange(len(rows))
    return jnp.concatenate([x, jnp.zeros((1,), x.dtype)])[source]


def gaussian(Sigma: np.ndarray, order: tuple[int, ...], dtype: DTypeLike) -> Noise:
    """The Gaussian noise of covariance Sigma, (d, d) or (d,), in its cheapest exact form.

    ``order`` lists all rows; a diagonal Sigma uses the shortest prefix that holds its nonzeros.
    """
    if Sigma.ndim == 1:
        noisy = [i for i, row in enumerate(order) if Sigma[row] > 0.0]
        rows = order[: noisy[-1] + 1] if noisy else ()
        return DiagonalGaussian(
            sigma=linalg.to_device(np.sqrt(Sigma[list(rows)]), dtype),
            rows=tuple(rows),
            dim=len(order),
        )
    eigenvalues, V = np.linalg.eigh(Sigma)
    keep = eigenvalues > Sigma.shape[0] * np.finfo(np.float64).eps * max(eigenvalues[-1], 0.0)
    return Gaussian(L=linalg.to_device(V[:, keep] * np.sqrt(eigenvalues[keep]), dtype))
