"""The Quadratic-Gaussian construction (paper, Section V), shared by every QG family.

    s' = f_p(s) + p g(s) a + w,  Cov w = Σ      c = sᵀQ s + aᵀR a      V* = sᵀP s + b
    M(s) = H_γ(s)⁻¹ = P⁻¹/γ + p² g R⁻¹ gᵀ       b = γ/(1-γ) tr(P Σ)
    MN form: u = S(s) (P - Q)^{1/2} s           SR form: u = sqrt(sᵀ(P-Q)s) d(s)/|d(s)|
    y = M^{-1/2} u,  f_p = M y,  a* = -p R⁻¹ gᵀ y,  z* = f_p + p g a* = P⁻¹ y/γ

One vector y gives the drift, the optimal action and the optimal next mean: no factorisation,
solve or eigendecomposition is left in a step.

Other classes of problems are the same with other matrices, which :func:`cojax.quadratic.build`
takes: a look-ahead P̂ for P in the expectation, effective costs Q̂ and R̂ for Q and R, and another
price of noise κ for tr(P Σ). With energy E = P - Q̂,

    M = (P̂⁻¹ + γ p² g R̂⁻¹ gᵀ)/γ     |u|² = sᵀE s     a* = -p R̂⁻¹ gᵀ y     z* = P̂⁻¹ y/γ
    V*(s) = min_a sᵀQ̂ s + aᵀR̂ a + γ zᵀP̂ z + b      A* = |δ|²_R̂ + γ p² |g δ|²_P̂     b = γ/(1-γ) κ

A game against a disturbance h d at cost dᵀΓ d has P̂⁻¹ = P⁻¹ - γ h Γ⁻¹ hᵀ; entropic risk θ has
P̂⁻¹ = P⁻¹ - 2θ Σ and κ = -log det(I - 2θ Σ P)/2θ; noise on the actions raises R̂, on states Q̂:
that of columns D_j s ζ_j, ζ white, by γ Σ_j D_jᵀP D_j.
"""

from __future__ import annotations

import dataclasses
from typing import ClassVar, Literal

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from cojax import errors, inputs, linalg, streams
from cojax.action_limits import ActionLimit, Ball, linear_excess
from cojax.geometry import Family
from cojax.inverse_sqrt import InverseSqrt
from cojax.io.described import About, described, number
from cojax.linalg import Symmetric, matvec, product, quadratic_form
from cojax.noise import Noise
from cojax.system import Optimum, System
from cojax.types import Array, Float

Parameterization = Literal["metric", "sqrt"]
Scalar = Float[Array, "*batch"]
HATS = ("P_hat", "Q_hat", "R_hat")


def _about(system: QuadraticGaussian) -> About:
    """What a system shows of itself."""
    lead = np.shape(system.gamma)
    geometry = system.geometry
    facts = {
        "states": system.state_dim,
        "actions": system.action_dim,
        "gamma": number(system.gamma),
        "p": number(system.p),
        "inverse square root": type(system.inverse_sqrt).__name__,
        "dtype": getattr(system.gamma, "dtype", ""),
    }
    name = getattr(geometry, "family", type(geometry).__name__)
    return f"QuadraticGaussian system: {name}" + (
        f", {lead[0]} side by side" if lead else ""
    ), facts


@described(_about)
@inputs.guarded
@struct.dataclass
class QuadraticGaussian(System):
    """A QG system. Build it with :func:`cojax.quadratic.build` or a family's ``build``; change
    it by :func:`cojax.rebuild`, since most leaves are derived from others: replacing one, by
    whatever function, raises InputError, ``inverse_sqrt`` excepted, from which nothing is derived.
    The constructor and edits of the pytree (``jax.tree_util``) take leaves as they are; those that
    contradict each other are refused by ``env_params`` and ``evaluate`` (:mod:`cojax.consistency`).

    Symmetric matrices are (d, d), or (d,) where they are diagonal. Methods are of one state s
    (d,), action a or deviation delta = a - a* (m,), and mean next state z (d,).

    Attributes:
        geometry: g and S.
        P: of the value.
        Q: of the cost of states.
        R: (m, m) or (m,), of the cost of actions.
        gamma: (), discount.
        p: (), control strength.
        noise: the law of w.
        offset: (), b; derived in float64 when built, as all that follow.
        P_minus_Q: the energy P - Q̂.
        sqrt_P_minus_Q: (P - Q̂)^{1/2}.
        M0: P̂⁻¹/γ, the constant part of M.
        R_inverse: R̂⁻¹.
        inverse_sqrt: how M^{-1/2} u is computed.
        P_hat, Q_hat, R_hat: P̂, Q̂ and R̂ where they are not P, Q and R; else None.
        authority: (m, m) or (m,), W in M = M0 + p² g W gᵀ where that is not R̂⁻¹, since others push
            by g too (:mod:`cojax.games`); else None.
        limit: the feasible actions, where they have a limit that V* knows; else None.
        state_noise: (), η of Cov w = (1 + η sᵀQ̂ s) Σ; None for 0.
        state_columns: (J, d, d), D of what Σ_j D_j s ζ_j adds to w; None for 0.
        action_noise: (m,), σ of a_i (1 + σ_i ξ_i), which acts by g(0); None for 0.
        parameterization: "metric" (MN) or "sqrt" (SR).
    """

    rebuilds: ClassVar[bool] = True  # whether matrices and knobs say all of it
    geometry: Family
    P: Symmetric
    Q: Symmetric
    R: Symmetric
    gamma: Scalar
    p: Scalar
    noise: Noise
    offset: Scalar
    P_minus_Q: Symmetric
    sqrt_P_minus_Q: Symmetric
    M0: Symmetric
    R_inverse: Symmetric
    inverse_sqrt: InverseSqrt
    P_hat: Symmetric | None = None
    Q_hat: Symmetric | None = None
    R_hat: Symmetric | None = None
    authority: Symmetric | None = None
    limit: ActionLimit | None = None
    state_noise: Scalar | None = None
    action_noise: Float[Array, "*batch m"] | None = None
    state_columns: Float[Array, "*batch J d d"] | None = None
    parameterization: Parameterization = struct.field(pytree_node=False, default="metric")
    origin: dataclasses.InitVar[object] = dataclasses.field(default=None, kw_only=True)

    def __post_init__(self, origin: object) -> None:
        """Refuse replacement of leaves that others are derived from; raises ValueError."""
        names = [] if origin is None else inputs.replaced(self, origin)
        if set(names) - {"inverse_sqrt"}:
            name = next(n for n in names if n != "inverse_sqrt")
            raise errors.InputError(
                f"{name}: leaves of a system depend on each other; "
                "use cojax.rebuild(system, p=...) and the like, which derives them again"
            )

    def labels(self):
        """Those of the family."""
        return self.geometry.labels()

    @property
    def is_plain(self) -> bool:
        """Whether P̂ = P, Q̂ = Q and R̂ = R, as in the paper."""
        return all(getattr(self, name) is None for name in (*HATS, "authority"))

    @property
    def constant_curvature(self) -> bool:
        """Whether B does not depend on the state: where g does not."""
        return self.geometry.constant_input

    @property
    def constrained(self) -> bool:
        """Whether the actions have a limit that V* knows."""
        return self.limit is not None

    def feasible(self, a):
        """The nearest feasible action, in |·|_R̂."""
        return a if self.limit is None else self.limit.feasible(a, self.effort)

    def feasible_box(self):
        """That of the limit."""
        if self.limit is None:
            return None
        return self.limit.box(np.asarray(self.R_inverse, np.float64))

    def downhill(self, mean, rms):
        """Entry by entry; with a ball R̂⁻¹ times the mean, over one size."""
        if not isinstance(self.limit, Ball):
            return mean / rms
        size = jnp.sqrt(jnp.mean(matvec(self.R_inverse, rms) ** 2))
        return matvec(self.R_inverse, mean) / size

    def noise_price(self, s, a):
        """κ γ η sᵀQ̂ s + aᵀ(R̂ - R)a, and sᵀ(Q̂ - Q)s of columns."""
        price = jnp.zeros((), s.dtype)
        if self.state_noise is not None:
            known = self.offset * (1.0 - self.gamma) * self.state_noise
            price = price + known * quadratic_form(self.charge, s)
        if self.state_columns is not None:
            price = price + quadratic_form(self.charge, s) - quadratic_form(self.Q, s)
        if self.action_noise is not None:
            price = price + quadratic_form(self.effort, a) - quadratic_form(self.R, a)
        return price

    @property
    def lookahead(self) -> Symmetric:
        """P̂."""
        return self.P if self.P_hat is None else self.P_hat

    @property
    def charge(self) -> Symmetric:
        """Q̂."""
        return self.Q if self.Q_hat is None else self.Q_hat

    @property
    def effort(self) -> Symmetric:
        """R̂."""
        return self.R if self.R_hat is None else self.R_hat

    @property
    def in_M(self) -> Symmetric:
        """W in M: R̂⁻¹, or the authority in its place."""
        return self.R_inverse if self.authority is None else self.authority

    @property
    def state_dim(self) -> int:
        """d."""
        return self.geometry.state_dim

    @property
    def action_dim(self) -> int:
        """m."""
        return self.geometry.action_dim

    def optimum(self, s):
        """Drift, optimal action and optimal next mean from y = M^{-1/2} u (theory: §2)."""
        return self.reply(s, self.direction(s))

    def reply(self, s: Float[Array, "d"], u: Float[Array, "d"]) -> Optimum:
        """The optimum at s where f = M^{1/2} u for this u."""
        geometry, p, control = self.geometry, self.p, self.in_M
        diagonal = None
        if geometry.one_row_each and control.ndim == 1:
            gain = geometry.actuate_transpose(s, jnp.ones_like(s))
            diagonal = geometry.actuate(s, p * p * control * gain)

        def D(v):  # p² g R⁻¹ gᵀ v
            if diagonal is not None:
                return diagonal * v
            effort = matvec(control, geometry.actuate_transpose(s, v))
            return p * p * geometry.actuate(s, effort)

        y = self.inverse_sqrt(D, u)
        v = geometry.actuate_transpose(s, y)
        action = -p * matvec(self.R_inverse, v)
        next_mean = matvec(self.M0, y)
        if self.limit is not None:
            rest = linalg.dot(y, next_mean)
            t, action = self.limit.stretched(p * v, action, rest=rest, R=self.effort)
            next_mean = t * next_mean
        return Optimum(next_mean - self.push(s, action), action, next_mean)

    def direction(self, s: Float[Array, "d"]) -> Float[Array, "d"]:
        """u(s) with |u|² = sᵀ(P - Q)s.

        MN: S(s)(P-Q)^{1/2}s. SR: the field d(s) = S(s) s, scaled; it vanishes at the origin only.
        """
        if self.parameterization == "metric":
            return self.geometry.rotate(s, matvec(self.sqrt_P_minus_Q, s), self.p)
        energy, norm2 = quadratic_form(self.P_minus_Q, s), linalg.dot(s, s)
        ratio = energy / jnp.where(norm2 > 0.0, norm2, 1.0)
        scale = jnp.where(ratio > 0.0, jnp.sqrt(jnp.where(ratio > 0.0, ratio, 1.0)), 0.0)
        return scale * self.geometry.rotate(s, s, self.p)

    def push(self, s: Float[Array, "d"], u: Float[Array, "m"]) -> Float[Array, "d"]:
        """p g(s) u for what the actuators do, u; shape (d,)."""
        return self.p * self.geometry.actuate(s, u)

    def actuate(self, s, a):
        """p g(s) a, shape (d,)."""
        return self.push(s, a)

    def stage_cost(self, s, a):
        """c(s, a) = sᵀQ s + aᵀR a."""
        return quadratic_form(self.Q, s) + quadratic_form(self.R, a)

    def value(self, s):
        """V*(s) = sᵀP s + b."""
        return quadratic_form(self.P, s) + self.offset

    def expected_value(self, s, z, a=None):
        """zᵀP̂ z + κ + b, where κ = b (1-γ)/γ: E V*(z + w), or what a class has in its place. With
        noise on states κ (1 + η sᵀQ̂ s), with columns sᵀ(Q̂ - Q)s/γ more, with noise on actions
        aᵀ(R̂ - R)a/γ; there a must be given.
        """
        known = quadratic_form(self.lookahead, z) + self.offset / self.gamma
        if self.state_noise is None and self.action_noise is None and self.state_columns is None:
            return known
        if a is None and self.action_noise is not None:
            raise errors.InputError("expected_value: expected the action, which adds to w")
        return known + self.noise_price(s, z if a is None else a) / self.gamma

    def excess_cost(self, s, delta, optimum=None):
        """A* = |δ|²_R̂ + γ p² |g δ|²_P̂ = δᵀB(s) δ; with a limit, for a feasible action,
        2 (R̂ a* + γ p gᵀP̂ z*)ᵀδ >= 0 more.
        """
        ahead = self.gamma * quadratic_form(self.lookahead, self.push(s, delta))
        excess = quadratic_form(self.effort, delta) + ahead
        if self.limit is None:
            return excess
        at = self.optimum(s) if optimum is None else optimum
        future = self.geometry.actuate_transpose(s, matvec(self.lookahead, at.next_mean))
        future = self.gamma * self.p * future
        return excess + linear_excess(self.limit, at.action, delta, R=self.effort, future=future)

    def state_bound(self, radius):
        """|s_i| <= radius sqrt((P⁻¹)_ii) wherever |s|_P <= radius."""
        if self.P_hat is not None:
            P = self.P if self.P.ndim > 1 else jnp.diag(self.P)
            inverse = linalg.solve_spd(P, jnp.eye(self.state_dim, dtype=P.dtype))
        else:
            inverse = self.gamma * self.M0
        return radius * jnp.sqrt(inverse if inverse.ndim == 1 else jnp.diagonal(inverse))

    def reach(self, radius, start, limit):
        """|f_i| <= |s|_P sqrt(M_ii), M ⪯ A + p² |R⁻¹| g gᵀ, since f = M^{1/2} u and |u| <= |s|_P.

        States are within the guard's ``radius`` or |s_i| <= ``start``, actions within ``limit``.
        """
        eps = jnp.finfo(self.gamma.dtype).eps  # the guard's own comparison rounds, in units of V*
        guard = radius**2 + 4.0 * eps * (radius**2 + self.offset)
        square = jnp.maximum(guard, quadratic_form(jnp.abs(self.P), start))
        farthest = jnp.sqrt(square)
        g = self.p * self.geometry.largest_input(self.gamma.dtype)  # (m, d)
        norm = jnp.linalg.norm(self.R_inverse) if self.R_inverse.ndim > 1 else self.R_inverse.max()
        diagonal = self.M0 if self.M0.ndim == 1 else jnp.diagonal(self.M0)
        drift = farthest * jnp.sqrt(diagonal + norm * jnp.sum(g**2, axis=0))
        pushed = jnp.sum(limit[:, None] * g, axis=0)
        noise = self.noise.bound()
        if self.limit is not None:  # f = z* - p g a*
            drift = farthest * jnp.sqrt(diagonal) + pushed
        if self.state_noise is not None:
            noise = noise * jnp.sqrt(1.0 + self.state_noise * square)  # Q̂ ⪯ P
        if self.state_columns is not None:
            high = jnp.maximum(self.state_bound(farthest), start)
            most = jnp.sum(product(jnp.abs(self.state_columns), high), axis=0)
            noise = noise + jnp.asarray(self.noise.law.bound(), limit.dtype) * most
        if self.action_noise is not None:
            most = jnp.asarray(self.noise.law.bound(), limit.dtype) * self.action_noise * limit
            noise = noise + jnp.sum(most[:, None] * g, axis=0)
        return jnp.maximum(drift + pushed + noise, start)

    @streams.pinned()
    def sample_noise(self, s, key, a=None):
        """One draw of w by a ``key``, shape (d,)."""
        w = self.noise.sample(key, s)
        if self.state_noise is not None:
            w = w * jnp.sqrt(1.0 + self.state_noise * quadratic_form(self.charge, s))
        if self.state_columns is not None:
            columns = product(self.state_columns, s)  # (J, d)
            zeta = self.noise.law.draw(jax.random.fold_in(key, 3), columns.shape[:1])
            w = w + product(zeta.astype(s.dtype), columns)
        if self.action_noise is not None:
            if a is None:
                raise errors.InputError("sample_noise: expected the action, which adds to w")
            xi = self.noise.law.draw(jax.random.fold_in(key, 1), a.shape).astype(a.dtype)
            w = w + self.push(jnp.zeros_like(s), self.action_noise * a * xi)
        return w
