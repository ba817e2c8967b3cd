"""A system that an observed, correlated disturbance pushes, x = (s, z), with V* and π* exact.

    z' = ρ z + ε     s' = f(s, z) + p g(s) a + w     f = M^{1/2} u,  u = S(s)(P - Q)^{1/2} s + E z
    c = q(s, z) + aᵀR a     V* = sᵀP s + zᵀP_z z + b     b = γ/(1-γ) (tr PΣ + tr P_z Σ_z)
    q = sᵀP s + zᵀ(1 - γρ²)P_z z - |u|²     a* = -p R⁻¹gᵀy,  y = M^{-1/2} u

The construction takes any u, as long as the cost of states, which pays for what u does not spend,
is positive. With Q ⪰ βP and e = β/(2(1-β)), |u|² <= (1+e) sᵀ(P-Q)s + (1+1/e) |E z|², so that
q >= β/2 (sᵀP s + zᵀP_z z) for the diagonal

    P_z,i = (1+1/e) Σ_j |EᵀE|_ij/(1 - γρ_i² - β/2)

where the divisors are positive: V* is then the optimal value, and the loop is bounded. With E = 0
it is the paper's system beside noise that nobody minds. Where z is hidden the problem is partially
observed, and V* another.
"""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from numpy.typing import ArrayLike, DTypeLike

from cojax import inputs, linalg
from cojax.errors import InputError
from cojax.initial import Normal
from cojax.labels import Labels
from cojax.linalg import dot, product, quadratic_form
from cojax.memory import Remembering, as_stated, statement
from cojax.noise import DiagonalNoise, white
from cojax.quadratic_gaussian import QuadraticGaussian
from cojax.system import Optimum
from cojax.types import Array, Float


@inputs.guarded
@struct.dataclass
class Disturbed(Remembering):
    """A system with an observed disturbance. Build it with :func:`disturbed`.

    Methods are of one state, action a or deviation ``delta`` = a - a* (m,), and ``key``; bounds of
    a ``radius`` of the guard, states |x_i| <= ``start`` and actions within ``limit``.

    Attributes:
        parts: the system without it, alone.
        gamma: (), discount.
        offset: (), b.
        rho: (k,), how much of z is left after a step.
        effect: (k, d), Eᵀ.
        P_z: (k,), of the value.
        source: the law of ε.
    """

    parts: tuple[QuadraticGaussian, ...]
    gamma: Float[Array, "*batch"]
    offset: Float[Array, "*batch"]
    rho: Float[Array, "*batch k"]
    effect: Float[Array, "*batch k d"]
    P_z: Float[Array, "*batch k"]
    source: DiagonalNoise
    origin: dataclasses.InitVar[object] = dataclasses.field(default=None, kw_only=True)

    def __post_init__(self, origin: object) -> None:
        """Refuse replacement; raises InputError."""
        self._refuse(origin, "cojax.disturbance.disturbed")

    @property
    def state_dim(self):
        """d + k."""
        return self.inner.state_dim + self.rho.shape[-1]

    @property
    def constant_curvature(self):
        """As without the disturbance."""
        return self.inner.constant_curvature

    def split(self, x: Float[Array, "n"]) -> tuple[Float[Array, "d"], Float[Array, "k"]]:
        """s and z."""
        return x[: self.inner.state_dim], x[self.inner.state_dim :]

    def direction(self, s: Float[Array, "d"], z: Float[Array, "k"]) -> Float[Array, "d"]:
        """u."""
        return self.inner.direction(s) + product(z, self.effect)

    def optimum(self, s):
        """That of the system for this u; z goes its own way."""
        s, z = self.split(s)
        at = self.inner.reply(s, self.direction(s, z))
        following = self.rho * z
        drift, mean = (jnp.concatenate([x, following]) for x in (at.drift, at.next_mean))
        return Optimum(drift, at.action, mean)

    def actuate(self, s, a):
        """(p g(s) a, 0)."""
        pushed = self.inner.actuate(self.split(s)[0], a)
        return jnp.concatenate([pushed, jnp.zeros_like(self.rho)])

    def stage_cost(self, s, a):
        """c = q(s, z) + aᵀR a."""
        return self.least_cost(s) + quadratic_form(self.inner.R, a)

    def least_cost(self, s):
        """q(s, z)."""
        s, z = self.split(s)
        u, inner = self.direction(s, z), self.inner
        left = quadratic_form(self.P_z, z) - self.gamma * quadratic_form(self.P_z, self.rho * z)
        return quadratic_form(inner.P, s) + left - dot(u, u)

    def value(self, s):
        """V* = sᵀP s + zᵀP_z z + b."""
        s, z = self.split(s)
        return quadratic_form(self.inner.P, s) + quadratic_form(self.P_z, z) + self.offset

    def expected_value(self, s, z, a=None):
        """E V*(z + w)."""
        mean, following = self.split(z)
        known = quadratic_form(self.inner.P, mean) + quadratic_form(self.P_z, following)
        return known + self.offset / self.gamma

    def excess_cost(self, s, delta, optimum=None):
        """A* = |δ|²_R + γ p² |g δ|²_P."""
        return self.inner.excess_cost(self.split(s)[0], delta)

    def farthest(self, start: Float[Array, "k"]) -> Float[Array, "k"]:
        """The largest |z| from |z| <= ``start``."""
        return jnp.maximum(start, self.source.bound() / (1.0 - jnp.abs(self.rho)))

    def state_bound(self, radius):
        """That of s, and the largest |z| from 0."""
        return jnp.concatenate([self.inner.state_bound(radius), self.farthest(0.0 * self.rho)])

    def reach(self, radius, start, limit):
        """That of s from further out, by |E z|; the largest |z|."""
        s, z = self.split(start)
        z = self.farthest(z)
        pushed = product(z, jnp.abs(self.effect))
        out = jnp.sqrt(quadratic_form(jnp.abs(self.inner.P), s)) + jnp.sqrt(dot(pushed, pushed))
        return jnp.concatenate([self.inner.reach(radius + out, s, limit), z])

    def sample_noise(self, s, key, a=None):
        """w, and ε by a key folded from that of w."""
        w = self.inner.sample_noise(self.split(s)[0], key)
        return jnp.concatenate([w, self.source.sample(jax.random.fold_in(key, 2), s)])

    def initial_memory(self):
        """z, Gaussian with its stationary variance."""
        std = jnp.sqrt(self.source.covariance() / (1.0 - self.rho**2))
        return Normal(mean=jnp.zeros_like(std), std=std)

    def labels(self) -> Labels:
        """Those of the family, and z."""
        states, actions = self.inner.geometry.labels()
        return [*states, *(f"disturbance {i + 1}" for i in range(self.rho.shape[-1]))], actions


def disturbed(
    system: QuadraticGaussian,
    rho: ArrayLike,
    Sigma_z: ArrayLike,
    effect: ArrayLike,
    *,
    dtype: DTypeLike | None = None,
) -> Disturbed:
    """A ``system`` that an observed disturbance z' = ρ z + ε pushes.

    Args:
        system: of the paper's class.
        rho: ρ, a number in (-1, 1) or k of them.
        Sigma_z: variances of ε, a number or (k,), of the law that the system's noise has.
        effect: E, (d, k): what z adds to the direction u.
        dtype: of the leaves; by default that of the system.

    Raises InputError, one line, for |ρ| >= 1, Q that is not at least βP with β > 0, and where
    1 - γ ρ² - β/2 is not positive, with its number.
    """
    stated = statement("disturbed", system, dtype)
    if type(system) is not QuadraticGaussian:
        raise InputError(f"disturbed: expected no system of a class of its own, got {system!r}")
    E = np.asarray(effect, np.float64)
    d = system.state_dim
    if E.ndim != 2 or len(E) != d or not np.isfinite(E).all():
        raise InputError(f"effect: expected finite numbers of shape ({d}, k), got {E.shape}")
    k, gamma = E.shape[1], stated["gamma"]
    rho, variances = inputs.vector("rho", rho, k), inputs.vector("Sigma_z", Sigma_z, k)
    for name, x, low, high in (("rho", rho, -1.0, 1.0), ("Sigma_z", variances, 0.0, np.inf)):
        for i, value in enumerate(x):
            inputs.number(f"{name}[{i}]", value, low, high, low_open=low < 0.0, high_open=True)
    P, Q = (linalg.to_full(stated[name]) for name in ("P", "Q"))
    beta = linalg.largest_share(Q, P)
    if beta <= 1e-12 or beta >= 1.0:
        raise InputError(f"Q: expected βP ⪯ Q ≺ P with β > 0, got β = {beta:.3g}")
    left = 1.0 - gamma * rho**2 - 0.5 * beta
    if left.min() <= 0.0:
        raise InputError(f"rho: expected 1 - γ ρ² - β/2 > 0, got {left.min():.3g}")
    P_z = (1.0 + 2.0 * (1.0 - beta) / beta) * np.abs(E.T @ E).sum(axis=1) / left
    inner = as_stated(system, stated)
    leaf = inner.gamma.dtype
    more = gamma / (1.0 - gamma) * float(np.sum(P_z * variances))
    priced = gamma / (1.0 - gamma) * float(np.sum(P * linalg.to_full(stated["Sigma"])))
    offset = linalg.to_device(priced + more, leaf) if more else inner.offset
    leaves = {"rho": rho, "effect": E.T, "P_z": P_z}
    source = white(np.maximum(variances, 0.0), tuple(range(k)), leaf, stated["law"])
    assert isinstance(source, DiagonalNoise)
    return Disturbed(
        parts=(inner,), gamma=inner.gamma, offset=offset, source=source,
        **{name: linalg.to_device(x, leaf) for name, x in leaves.items()},
    )  # fmt: skip
