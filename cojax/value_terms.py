"""Terms of a value beyond sᵀP s, with exact expectation under Gaussian noise and its gradient.

Of projections x = ℓᵀs with σ² = ℓᵀΣℓ, A(x) = E|x + σξ| = σ√(2/π) e^{-x²/2σ²} + x erf(x/σ√2):

| kind | τ(s) | E τ(μ + w) |
|---|---|---|
| quartic | κ x², x = sᵀP s | κ (x² + 2x t1 + 4 μᵀPΣP μ + t1² + 2 t2) |
| absolute | κ abs(ℓᵀs) | κ A(ℓᵀμ) |
| signed-square | κ ℓᵀs abs(ℓᵀs) | κ ((x² + σ²) erf(x/σ√2) + xσ√(2/π) e^{-x²/2σ²}) |
| cosine | κ (1 - cos ωℓᵀs): many wells | κ (1 - e^{-ω²σ²/2} cos ωℓᵀμ) |
| kinked | κ abs(ℓᵀs) mᵀs | κ (A(ℓᵀμ) mᵀμ + ℓᵀΣm erf(ℓᵀμ/σ√2)) |

t1 = tr PΣ, t2 = tr (PΣ)². Two quadratics glued along ℓᵀs = 0 are sᵀP s and terms of the kinds
signed-square and kinked. Where σ > 0, expectations are smooth whatever kinks τ has. Divergences
E τ(z + d + w) - E τ(z + w) - dᵀ∇ are computed without the cancellation of that sum.
"""

from __future__ import annotations

import abc
import math
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from jax.scipy.special import erf

from cojax.distinct import Distinct
from cojax.linalg import Symmetric, dot, matvec, product, quadratic_form
from cojax.types import Array, Float

Rows = Float[Array, "*batch k d"]
Scalars = Float[Array, "*batch k"]

NODES, WEIGHTS = np.polynomial.legendre.leggauss(8)
NODES = 0.5 * (1.0 + NODES)
WEIGHTS = 0.5 * WEIGHTS * (1.0 - NODES)  # of ∫_0^1 (1 - u) h(u) du, exact up to degree 14
NEAR = 8.0  # a kink this many steps away bends nothing on the way


class Term(Distinct, abc.ABC):
    """Terms of one ``kind``, a static field, without which JAX (0.10.2) takes classes of as many
    fields for one; methods are of one state s, mean next state z, or step d, all (d,).
    """

    kind: str
    even: ClassVar[bool] = True  # τ(-s) = τ(s), and 0 is the least of E τ(· + w)

    @abc.abstractmethod
    def at(self, s: Float[Array, "d"]) -> Float[Array, ""]:
        """Σ τ(s)."""

    @abc.abstractmethod
    def mean(self, z: Float[Array, "d"]) -> Float[Array, ""]:
        """Σ E τ(z + w)."""

    @abc.abstractmethod
    def slope(self, z: Float[Array, "d"]) -> Float[Array, "d"]:
        """∇ of ``mean``."""

    @abc.abstractmethod
    def divergence(self, z: Float[Array, "d"], d: Float[Array, "d"]) -> Float[Array, ""]:
        """mean(z + d) - mean(z) - dᵀ slope(z)."""

    def floor(self) -> Float[Array, "d d"] | None:
        """A matrix below ∇² of ``mean`` everywhere; None where there is none."""
        return None


@struct.dataclass
class Quartic(Term):
    """κ (sᵀP s)²."""

    weight: Float[Array, "*batch"]
    P: Symmetric
    PSP: Symmetric  # P Σ P
    t1: Float[Array, "*batch"]
    t2: Float[Array, "*batch"]
    kind: str = struct.field(pytree_node=False, default="quartic")

    def at(self, s):
        """κ x²."""
        return self.weight * quadratic_form(self.P, s) ** 2

    def mean(self, z):
        """κ (x² + 2 x t1 + 4 zᵀPΣP z + t1² + 2 t2)."""
        x = quadratic_form(self.P, z)
        rest = 4.0 * quadratic_form(self.PSP, z) + self.t1**2 + 2.0 * self.t2
        return self.weight * (x * (x + 2.0 * self.t1) + rest)

    def slope(self, z):
        """κ (4 (x + t1) P z + 8 PΣP z)."""
        Pz = matvec(self.P, z)
        return self.weight * (4.0 * (dot(z, Pz) + self.t1) * Pz + 8.0 * matvec(self.PSP, z))

    def divergence(self, z, d):
        """κ (Δ² + 2 (x + t1) |d|²_P + 4 |d|²_PΣP), Δ the growth of x."""
        Pd = matvec(self.P, d)
        growth, square = dot(d + 2.0 * z, Pd), dot(d, Pd)
        x = quadratic_form(self.P, z)
        curved = 2.0 * (x + self.t1) * square + 4.0 * quadratic_form(self.PSP, d)
        return self.weight * (growth**2 + curved)

    def floor(self):
        """0: it is convex."""
        P = self.P
        return jnp.zeros((P.shape[-1], P.shape[-1]), P.dtype)


class Projected(Term):
    """Terms of k projections x = L s: what a kind must give is elementwise in x, (k,)."""

    weight: Scalars
    L: Rows

    @abc.abstractmethod
    def plain(self, x: Scalars) -> Scalars:
        """τ(x) by its weight."""

    @abc.abstractmethod
    def smoothed(self, x: Scalars) -> Scalars:
        """E τ(x + ℓᵀw)."""

    @abc.abstractmethod
    def first(self, x: Scalars) -> Scalars:
        """Its derivative."""

    @abc.abstractmethod
    def second(self, x: Scalars) -> Scalars:
        """Its second derivative."""

    @abc.abstractmethod
    def long(self, x: Scalars, e: Scalars) -> Array:
        """Whether quadrature is no way to go from x to x + e: ``second`` varies too much there, and
        differences of ``smoothed`` are exact enough.
        """

    @property
    @abc.abstractmethod
    def lowest(self) -> Scalars:
        """inf of ``second``, by its weight."""

    def at(self, s):
        """Σ κ τ(ℓᵀs)."""
        return jnp.sum(self.weight * self.plain(product(self.L, s)))

    def mean(self, z):
        """Σ κ E τ(ℓᵀ(z + w))."""
        return jnp.sum(self.weight * self.smoothed(product(self.L, z)))

    def slope(self, z):
        """Σ κ (E τ)'(ℓᵀz) ℓ."""
        return product(self.weight * self.first(product(self.L, z)), self.L)

    def divergence(self, z, d):
        """Σ κ e² ∫ (1 - u) (E τ)''(x + u e) du by quadrature, e = ℓᵀd, or by its definition."""
        x, e = product(self.L, z), product(self.L, d)
        near = e * e * _quadrature(lambda u: self.second(x + u * e), x.dtype)
        far = self.smoothed(x + e) - self.smoothed(x) - self.first(x) * e
        return jnp.sum(self.weight * jnp.where(self.long(x, e), far, near))

    def floor(self):
        """Lᵀ diag(inf κ (E τ)'') L."""
        return product(self.L.T, self.lowest[:, None] * self.L)


@struct.dataclass
class Absolute(Projected):
    """κ|ℓᵀs|, κ >= 0."""

    weight: Scalars
    L: Rows
    sigma: Scalars
    kind: str = struct.field(pytree_node=False, default="absolute")

    def plain(self, x):
        """|x|."""
        return jnp.abs(x)

    def smoothed(self, x):
        """A(x)."""
        return absolute_mean(x, self.sigma)

    def first(self, x):
        """erf(x/σ√2)."""
        return _sign(x, self.sigma)

    def second(self, x):
        """2 φ(x/σ)/σ."""
        return 2.0 * _density(x, self.sigma)

    def long(self, x, e):
        """Over the kink, by more than σ."""
        return _over_kink(x, e, self.sigma)

    @property
    def lowest(self):
        """0."""
        return jnp.zeros_like(self.weight)


@struct.dataclass
class SignedSquare(Projected):
    """κ ℓᵀs |ℓᵀs|."""

    weight: Scalars
    L: Rows
    sigma: Scalars
    kind: str = struct.field(pytree_node=False, default="signed-square")
    even = False

    def plain(self, x):
        """x|x|."""
        return x * jnp.abs(x)

    def smoothed(self, x):
        """(x² + σ²) erf(x/σ√2) + 2xσ φ(x/σ)."""
        sigma = self.sigma
        return (x**2 + sigma**2) * _sign(x, sigma) + 2.0 * x * sigma**2 * _density(x, sigma)

    def first(self, x):
        """2 A(x)."""
        return 2.0 * absolute_mean(x, self.sigma)

    def second(self, x):
        """2 erf(x/σ√2)."""
        return 2.0 * _sign(x, self.sigma)

    def long(self, x, e):
        """Over the kink, by more than σ."""
        return _over_kink(x, e, self.sigma)

    @property
    def lowest(self):
        """-2|κ|."""
        return -2.0 * jnp.abs(self.weight)


@struct.dataclass
class Cosine(Projected):
    """κ (1 - cos ωℓᵀs), κ >= 0: wells of depth 2κ, 2π/ω apart."""

    weight: Scalars
    L: Rows
    omega: Scalars
    decay: Scalars  # e^{-ω²σ²/2}
    kind: str = struct.field(pytree_node=False, default="cosine")

    def plain(self, x):
        """1 - cos ωx = 2 sin²(ωx/2)."""
        return 2.0 * jnp.sin(0.5 * self.omega * x) ** 2

    def smoothed(self, x):
        """1 - e^{-ω²σ²/2} cos ωx."""
        return 1.0 - self.decay * jnp.cos(self.omega * x)

    def first(self, x):
        """ω e^{-ω²σ²/2} sin ωx."""
        return self.omega * self.decay * jnp.sin(self.omega * x)

    def second(self, x):
        """ω² e^{-ω²σ²/2} cos ωx."""
        return self.omega**2 * self.decay * jnp.cos(self.omega * x)

    def long(self, x, e):
        """By more than 2/ω."""
        return jnp.abs(self.omega * e) > 2.0

    @property
    def lowest(self):
        """-κω² e^{-ω²σ²/2}."""
        return -jnp.abs(self.weight) * self.omega**2 * self.decay


@struct.dataclass
class Kinked(Term):
    """κ |ℓᵀs| mᵀs: its kink is convex on one side of mᵀs = 0 and concave on the other."""

    weight: Scalars
    L: Rows
    M: Rows
    sigma: Scalars
    covariance: Scalars  # ℓᵀΣ m
    kind: str = struct.field(pytree_node=False, default="kinked")
    even = False

    def at(self, s):
        """Σ κ |x| y, x = ℓᵀs, y = mᵀs."""
        return jnp.sum(self.weight * jnp.abs(product(self.L, s)) * product(self.M, s))

    def mean(self, z):
        """Σ κ (A(x) y + ℓᵀΣm erf(x/σ√2))."""
        return jnp.sum(self.weight * self._smoothed(product(self.L, z), product(self.M, z)))

    def _smoothed(self, x, y):
        return absolute_mean(x, self.sigma) * y + self.covariance * _sign(x, self.sigma)

    def _along_l(self, x, y):
        return _sign(x, self.sigma) * y + 2.0 * self.covariance * _density(x, self.sigma)

    def slope(self, z):
        """Σ κ ((erf y + 2 ℓᵀΣm φ/σ) ℓ + A m)."""
        x, y = product(self.L, z), product(self.M, z)
        along = product(self.weight * self._along_l(x, y), self.L)
        return along + product(self.weight * absolute_mean(x, self.sigma), self.M)

    def divergence(self, z, d):
        """By quadrature of the second derivative along d, or by its definition."""
        x, y, e, h = (product(A, v) for v in (z, d) for A in (self.L, self.M))
        sigma = self.sigma

        def bend(u):
            here = x + u * e
            density, height = 2.0 * _density(here, sigma), y + u * h
            curved = density * (height - self.covariance * here / sigma**2)
            return curved * e * e + 2.0 * _sign(here, sigma) * e * h

        far = self._smoothed(x + e, y + h) - self._smoothed(x, y)
        far = far - self._along_l(x, y) * e - absolute_mean(x, sigma) * h
        near = _quadrature(bend, x.dtype)
        return jnp.sum(self.weight * jnp.where(_over_kink(x, e, sigma), far, near))


def absolute_mean(x: jax.Array, sigma: jax.Array) -> jax.Array:
    """A(x) = E|x + σξ| of a normal ξ, elementwise in x and sigma."""
    return x * _sign(x, sigma) + 2.0 * sigma**2 * _density(x, sigma)


def _sign(x: jax.Array, sigma: jax.Array) -> jax.Array:
    """E sgn(x + σξ) = erf(x/σ√2)."""
    return erf(x / (math.sqrt(2.0) * sigma))


def _density(x: jax.Array, sigma: jax.Array) -> jax.Array:
    """φ(x/σ)/σ."""
    return jnp.exp(-0.5 * (x / sigma) ** 2) / (math.sqrt(2.0 * math.pi) * sigma)


def _over_kink(x: jax.Array, e: jax.Array, sigma: jax.Array) -> jax.Array:
    return (jnp.abs(e) > sigma) & (jnp.abs(x) < NEAR * jnp.abs(e))


def _quadrature(function, dtype) -> jax.Array:
    """∫_0^1 (1 - u) h(u) du."""
    values = jax.vmap(function)(jnp.asarray(NODES, dtype))
    return product(jnp.asarray(WEIGHTS, dtype), values)


# --- |x| under other laws -------------------------------------------------------------------------


def absolute_mean_logistic(x: jax.Array, scale: jax.Array) -> jax.Array:
    """E|x + w| = 2 scale log(2 cosh(x/2 scale)) of logistic w; its slope is tanh(x/2 scale)."""
    return 2.0 * scale * jnp.logaddexp(0.5 * x / scale, -0.5 * x / scale)


def absolute_mean_laplace(x: jax.Array, scale: jax.Array) -> jax.Array:
    """E|x + w| = |x| + scale e^{-|x|/scale} of Laplace w."""
    return jnp.abs(x) + scale * jnp.exp(-jnp.abs(x) / scale)


def absolute_mean_uniform(x: jax.Array, scale: jax.Array) -> jax.Array:
    """E|x + w| of w ~ U(-scale, scale): (x² + scale²)/2 scale inside, |x| outside (Huber)."""
    inside = 0.5 * (x**2 + scale**2) / scale
    return jnp.where(jnp.abs(x) < scale, inside, jnp.abs(x))
