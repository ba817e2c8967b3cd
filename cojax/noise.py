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
from cojax.distinct import Distinct
from cojax.noise_laws import NORMAL, Law
from cojax.types import Array, Float, PRNGKeyArray


class Noise(Distinct, abc.ABC):
    """A zero-mean disturbance w, independent over time.

    Attributes:
        law: of the white noise that noise on actions is made of.
    """

    law: Law = NORMAL

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
class DiagonalNoise(Noise):
    """w_i = σ_i ξ_i on the rows that have noise, ξ white of a law; exactly zero elsewhere.

    ``rows`` is a prefix of an order that the family fixes, so that a system with fewer noisy rows
    meets the same numbers when it is stacked with one that has more.
    """

    sigma: Float[Array, "*batch r"]  # standard deviations of the rows listed
    rows: tuple[int, ...] = struct.field(pytree_node=False)
    dim: int = struct.field(pytree_node=False)
    law: Law = NORMAL

    @streams.pinned()
    def sample(self, key, s):
        """Draw w."""
        xi = self.law.draw(key, self.sigma.shape).astype(self.sigma.dtype)
        return scatter(self.sigma * xi, self.rows, self.dim)

    def covariance(self):
        """Diagonal of Σ."""
        return scatter(self.sigma**2, self.rows, self.dim)

    def kind(self, order):
        """Those on prefixes of ``order``; else those on the same rows."""
        prefix = self.rows == tuple(order[: len(self.rows)])
        return type(self), type(self.law), self.dim, None if prefix else self.rows

    def aligned(self, others):
        """Rows of zero deviation after its own, up to the longest."""
        rows = max((m.rows for m in others), key=len)
        return dataclasses.replace(self, sigma=linalg.padded(self.sigma, len(rows)), rows=rows)

    def bound(self):
        """Six standard deviations, or what the law draws at most."""
        largest = jnp.maximum(6.0, self.law.bound()).astype(self.sigma.dtype)
        return scatter(largest * self.sigma, self.rows, self.dim)


@struct.dataclass
class CorrelatedNoise(Noise):
    """w = L ξ with L Lᵀ = Σ, ξ white of a law, shape (r,): any Σ ⪰ 0, of rank r."""

    L: Float[Array, "*batch d r"]
    law: Law = NORMAL

    @streams.pinned()
    def sample(self, key, s):
        """Draw w."""
        xi = self.law.draw(key, self.L.shape[-1:]).astype(self.L.dtype)
        return jnp.matmul(xi, self.L.T, precision=linalg.HIGHEST)

    def covariance(self):
        """Σ = L Lᵀ, shape (d, d)."""
        return jnp.matmul(self.L, self.L.T, precision=linalg.HIGHEST)

    def kind(self, order):
        """All of one dimension, whatever their rank."""
        return type(self), type(self.law), self.L.shape[0]

    def aligned(self, others):
        """Columns of zeros up to the highest rank."""
        return dataclasses.replace(self, L=linalg.padded(self.L, max(m.L.shape[1] for m in others)))

    def bound(self):
        """|w_i| <= Σ_j |L_ij| max|ξ|, shape (d,)."""
        largest = jnp.asarray(self.law.bound(), self.L.dtype)
        return largest * jnp.sum(jnp.abs(self.L), axis=-1)


WHITE = (DiagonalNoise, CorrelatedNoise)


def covariance(noise: Noise) -> Float[np.ndarray, "*batch d d"] | None:
    """Σ of white ``noise`` on the host, float64; None for noise of another kind."""
    if isinstance(noise, DiagonalNoise):
        sigma = np.asarray(noise.sigma, np.float64)
        diagonal = np.zeros((*sigma.shape[:-1], noise.dim))
        diagonal[..., list(noise.rows)] = sigma**2
        return diagonal[..., None] * np.eye(noise.dim)
    if isinstance(noise, CorrelatedNoise):
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


def white(
    Sigma: np.ndarray, order: tuple[int, ...], dtype: DTypeLike, law: Law = NORMAL
) -> DiagonalNoise | CorrelatedNoise:
    """The white noise of a law and covariance Sigma, (d, d) or (d,), in its cheapest exact form.

    ``order`` lists all rows; a diagonal Sigma uses the shortest prefix that holds its nonzeros.
    """
    law = jax.tree.map(lambda x: linalg.to_device(x, dtype), law)
    if Sigma.ndim == 1:
        noisy = [i for i, row in enumerate(order) if Sigma[row] > 0.0]
        rows = order[: noisy[-1] + 1] if noisy else ()
        return DiagonalNoise(
            sigma=linalg.to_device(np.sqrt(Sigma[list(rows)]), dtype),
            rows=tuple(rows),
            dim=len(order),
            law=law,
        )
    eigenvalues, V = np.linalg.eigh(Sigma)
    keep = eigenvalues > Sigma.shape[0] * np.finfo(np.float64).eps * max(eigenvalues[-1], 0.0)
    L = linalg.to_device(V[:, keep] * np.sqrt(eigenvalues[keep]), dtype)
    return CorrelatedNoise(L=L, law=law)
