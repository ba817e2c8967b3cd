"""Costs of control ρ beyond aᵀR a, and the actions that are optimal under them.

    a* = (∂ρ)⁻¹(ξ) = argmax_a ξᵀa - ρ(a)        D_ρ(a, a*; ξ) = ρ(a) - ρ(a*) - ξᵀ(a - a*) >= 0

| kind | ρ(a), by component | a* |
|---|---|---|
| quadratic | aᵀR a | R⁻¹ξ/2 |
| soft-threshold | r a² + μ abs(a) | sgn ξ (abs(ξ) - μ)₊/2r: exactly 0 where abs(ξ) <= μ |
| box | r a² where abs(a) <= ū, else ∞ | clip(ξ/2r, ±ū) |
| saturating | r ū² ((1+x) log(1+x) + (1-x) log(1-x)), x = a/ū; ∞ outside | ū tanh(ξ/2rū) |

r is the diagonal of R. All are strictly convex with ∇²ρ ⪰ 2R, equal to aᵀR a (the soft threshold:
plus μ|a|) to second order at a = 0, and at most ξᵀR⁻¹ξ/4 at a*, which is what aᵀR a costs there.
Sources: Lyshevski (1998) and Abu-Khalaf and Lewis (2005) for the saturating cost, which they write
2r(ū a atanh(a/ū) + ½ū² log(1 - a²/ū²)).
"""

from __future__ import annotations

import abc
import math
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from jax.scipy.special import xlog1py, xlogy
from numpy.typing import DTypeLike

from cojax import errors, inputs, linalg
from cojax.distinct import Distinct
from cojax.errors import InputError
from cojax.linalg import Symmetric, matvec, quadratic_form
from cojax.types import Array, Content, Float

EDGE = 1.0 - 1e-6
SLACK = 16.0  # roundings by which an action may be over its bound


def _word(kind: str) -> str:
    """A static field. JAX takes dataclasses of as many fields for one type when it looks for a
    compiled program (0.10.2: their pytree structures are equal), unless static fields differ.
    """
    return struct.field(pytree_node=False, default=kind)


class ControlCost(Distinct, abc.ABC):
    """ρ, its subgradient's inverse and its divergence; R (m, m) or (m,) is the system's."""

    kind: str
    constrained: ClassVar[bool] = False  # whether some actions are not feasible
    smooth: ClassVar[bool] = True  # whether ρ has a gradient at every feasible action

    @abc.abstractmethod
    def price(self, R: Symmetric, a: Float[Array, "m"]) -> Float[Array, ""]:
        """ρ(a); +∞ where a is not feasible."""

    @abc.abstractmethod
    def respond(self, R_inverse: Symmetric, xi: Float[Array, "m"]) -> Float[Array, "m"]:
        """(∂ρ)⁻¹(ξ)."""

    @abc.abstractmethod
    def divergence(
        self, R: Symmetric, optimal: Float[Array, "m"], xi: Float[Array, "m"], *, delta: jax.Array
    ) -> Float[Array, ""]:
        """D_ρ(a* + δ, a*; ξ) for a* = (∂ρ)⁻¹(ξ), ``optimal``, as a sum of terms >= 0."""

    def feasible(self, a: Float[Array, "m"]) -> Float[Array, "m"]:
        """The feasible action nearest to a."""
        return a


@struct.dataclass
class Quadratic(ControlCost):
    """ρ = aᵀR a."""

    kind: str = _word("quadratic")

    def price(self, R, a):
        """aᵀR a."""
        return quadratic_form(R, a)

    def respond(self, R_inverse, xi):
        """R⁻¹ξ/2."""
        return 0.5 * matvec(R_inverse, xi)

    def divergence(self, R, optimal, xi, *, delta):
        """δᵀR δ."""
        return quadratic_form(R, delta)


@struct.dataclass
class SoftThreshold(ControlCost):
    """ρ = Σ r a² + μ|a|."""

    mu: Float[Array, "*batch m"]
    kind: str = _word("soft-threshold")
    smooth = False

    def price(self, R, a):
        """Σ r a² + μ|a|."""
        return quadratic_form(R, a) + jnp.sum(self.mu * jnp.abs(a))

    def respond(self, R_inverse, xi):
        """sgn ξ (|ξ| - μ)₊/2r."""
        return 0.5 * R_inverse * jnp.sign(xi) * jnp.maximum(jnp.abs(xi) - self.mu, 0.0)

    def divergence(self, R, optimal, xi, *, delta):
        """δᵀR δ + Σ μ|a| - clip(ξ, ±μ) a: clip(ξ, ±μ) is the subgradient of μ|·| at a*."""
        a = optimal + delta
        kink = self.mu * jnp.abs(a) - jnp.clip(xi, -self.mu, self.mu) * a
        return quadratic_form(R, delta) + jnp.sum(kink)


@struct.dataclass
class Box(ControlCost):
    """ρ = Σ r a² on |a_i| <= ū_i."""

    limit: Float[Array, "*batch m"]
    kind: str = _word("box")
    constrained = True

    def price(self, R, a):
        """Σ r a², or ∞."""
        return jnp.where(_outside(a, self.limit), jnp.inf, quadratic_form(R, a))

    def respond(self, R_inverse, xi):
        """clip(ξ/2r, ±ū)."""
        return self.feasible(0.5 * R_inverse * xi)

    def divergence(self, R, optimal, xi, *, delta):
        """δᵀR δ - Σ (ξ - clip(ξ, ±2rū)) δ: at a bound ξ pulls outward, and δ points inward."""
        out = _outside(optimal + delta, self.limit)
        pull = xi - jnp.clip(xi, -2.0 * R * self.limit, 2.0 * R * self.limit)
        inward = jnp.maximum(-pull * delta, 0.0)
        return jnp.where(out, jnp.inf, quadratic_form(R, delta) + jnp.sum(inward))

    def feasible(self, a):
        """clip(a, ±ū)."""
        return jnp.clip(a, -self.limit, self.limit)


@struct.dataclass
class Saturating(ControlCost):
    """ρ = Σ r ū² ((1+x) log(1+x) + (1-x) log(1-x)), x = a/ū: an optimum that never meets ū."""

    limit: Float[Array, "*batch m"]
    kind: str = _word("saturating")
    constrained = True

    def price(self, R, a):
        """ρ(a); at the bound it is 2r ū² log 2, and its slope is infinite, for gradients 14 r ū."""
        cost = R * self.limit**2 * _binary_entropy(self.feasible(a) / self.limit)
        return jnp.where(_outside(a, self.limit), jnp.inf, jnp.sum(cost))

    def respond(self, R_inverse, xi):
        """ū tanh(ξ/2rū)."""
        return self.limit * jnp.tanh(0.5 * R_inverse * xi / self.limit)

    def divergence(self, R, optimal, xi, *, delta):
        """2r ū² KL of (1+x)/2 from (1+x*)/2: r ū² Σ± t φ(±δ/ūt), t = 1 ± x*,
        φ(u) = (1+u) log(1+u) - u.
        """
        z, change = xi / (R * self.limit), delta / self.limit
        both = [_relative_entropy(sign * z, sign * change) for sign in (1.0, -1.0)]
        out = _outside(optimal + delta, self.limit)
        return jnp.where(out, jnp.inf, jnp.sum(R * self.limit**2 * (both[0] + both[1])))

    def feasible(self, a):
        """clip(a, ±ū)."""
        return jnp.clip(a, -self.limit, self.limit)


KINDS = {c.kind: c for c in (Quadratic, SoftThreshold, Box, Saturating)}


def checked(stated: Content, m: int) -> Content:
    """A control cost as a file states it, in full: ``{kind: soft-threshold, mu: 0.1}``, or a kind
    alone, of ``m`` actions.

    Raises ValueError, one line: field, what was expected, what was found.
    """
    if not isinstance(stated, dict) or "kind" not in stated:
        raise InputError(f"control_cost: expected {{kind: …}}, got {stated!r}")
    kind = errors.one_of("control_cost.kind", stated["kind"], KINDS)
    fields = ["kind", "mu"] if kind == SoftThreshold.kind else ["kind"]
    for name in stated:
        errors.one_of("control_cost", name, fields)
    if kind != SoftThreshold.kind:
        return {"kind": kind}
    if "mu" not in stated:
        raise InputError("control_cost.mu: expected a number > 0, got nothing")
    mu = inputs.vector("control_cost.mu", stated["mu"], m)
    if (mu <= 0.0).any():
        raise InputError(f"control_cost.mu: expected numbers > 0, got {mu.min():g}")
    return {"kind": kind, "mu": mu.tolist() if np.ndim(stated["mu"]) else float(mu[0])}


def make(
    stated: Content | None, R: np.ndarray, limit: np.ndarray | None, dtype: DTypeLike
) -> ControlCost:
    """The control cost that is ``stated`` (None: quadratic), for R on the host and, where it has a
    bound, the ``limit`` ū, (m,).

    Raises ValueError, one line, where R is not diagonal or a bound is wanting.
    """
    stated = checked({"kind": "quadratic"} if stated is None else stated, len(R))
    kind = KINDS[stated["kind"]]
    if kind is Quadratic:
        return Quadratic()
    if R.ndim > 1:
        raise InputError(f"control_cost: {kind.kind} acts by component; expected a diagonal R")
    if kind is SoftThreshold:
        return SoftThreshold(mu=linalg.to_device(np.broadcast_to(stated["mu"], len(R)), dtype))
    if limit is None:
        raise InputError(f"action_limit: expected the bound of control_cost {kind.kind}, got none")
    bounded = Box if kind is Box else Saturating
    return bounded(limit=linalg.to_device(np.broadcast_to(limit, len(R)), dtype))


@jax.custom_jvp
def _binary_entropy(x: jax.Array) -> jax.Array:
    """(1+x) log(1+x) + (1-x) log(1-x) on [-1, 1]; its derivative is held at that of 1 - 10⁻⁶."""
    return xlog1py(1.0 + x, x) + xlog1py(1.0 - x, -x)


@_binary_entropy.defjvp
def _binary_entropy_jvp(primals: tuple, tangents: tuple) -> tuple[jax.Array, jax.Array]:
    slope = 2.0 * jnp.arctanh(jnp.clip(primals[0], -EDGE, EDGE))
    return _binary_entropy(*primals), slope * tangents[0]


def _outside(a: jax.Array, limit: jax.Array) -> jax.Array:
    """Whether some |a_i| is over its bound by more than rounding."""
    return jnp.any(jnp.abs(a) > limit * (1.0 + SLACK * jnp.finfo(limit.dtype).eps))


def _relative_entropy(z: jax.Array, d: jax.Array) -> jax.Array:
    """t φ(d/t) = (t + d) log((t + d)/t) - d >= 0 for t = 2/(1 + e^{-z}) and d >= -t; by its series
    where d is small beside t.
    """
    t, log_t = 2.0 * jax.nn.sigmoid(z), math.log(2.0) + jax.nn.log_sigmoid(z)
    small = jnp.abs(d) < 0.06 * t
    u = jnp.where(small, d, 0.0) / jnp.where(small, t, 1.0)
    series = jnp.zeros_like(u)
    for k in range(14, 1, -1):  # Σ_{k >= 2} (-u)^{k-2} / (k (k - 1))
        series = 1.0 / (k * (k - 1.0)) - u * series
    x = jnp.maximum(jnp.where(small, 1.0, t + d), 0.0)
    return jnp.where(small, t * u * u * series, xlogy(x, x) - x * log_t - d)
