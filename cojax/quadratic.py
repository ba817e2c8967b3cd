"""The Quadratic-Gaussian construction (paper, Section V), shared by every QG family.

    s' = f_p(s) + p g(s) a + w,  Cov w = Σ      c = sᵀQ s + aᵀR a      V* = sᵀP s + b
    M(s) = H_γ(s)⁻¹ = P⁻¹/γ + p² g R⁻¹ gᵀ       b = γ/(1-γ) tr(P Σ)
    MN form: u = S(s) (P - Q)^{1/2} s           SR form: u = sqrt(sᵀ(P-Q)s) d(s)/|d(s)|
    y = M^{-1/2} u,  f_p = M y,  a* = -p R⁻¹ gᵀ y,  z* = f_p + p g a* = P⁻¹ y/γ

One vector y gives the drift, the optimal action and the optimal next mean: no factorisation,
solve or eigendecomposition is left in a step.

Other classes of problems are the same with other matrices, each given to :func:`build`: a
look-ahead P̂ for P in the expectation, effective costs Q̂ and R̂ for Q and R, and another price of
noise κ for tr(P Σ). With energy E = P - Q̂,

    M = (P̂⁻¹ + γ p² g R̂⁻¹ gᵀ)/γ     |u|² = sᵀE s     a* = -p R̂⁻¹ gᵀ y     z* = P̂⁻¹ y/γ
    V*(s) = min_a sᵀQ̂ s + aᵀR̂ a + γ zᵀP̂ z + b      A* = |δ|²_R̂ + γ p² |g δ|²_P̂     b = γ/(1-γ) κ

A game against a disturbance h d at cost dᵀΓ d has P̂⁻¹ = P⁻¹ - γ h Γ⁻¹ hᵀ; entropic risk θ has
P̂⁻¹ = P⁻¹ - 2θ Σ and κ = -log det(I - 2θ Σ P)/2θ; noise on the actions raises R̂, on states Q̂.
"""

from __future__ import annotations

import dataclasses
from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from numpy.typing import ArrayLike, DTypeLike

from cojax import errors, inputs, inverse_sqrt, linalg, precision
from cojax.geometry import BASE, Family
from cojax.inverse_sqrt import InverseSqrt
from cojax.io.described import About, described, number
from cojax.linalg import Symmetric, matvec, quadratic_form
from cojax.noise import GAUSSIAN, Noise, gaussian
from cojax.system import Optimum, System
from cojax.types import Array, Float, Option

Parameterization = Literal["metric", "sqrt"]
Scalar = Float[Array, "*batch"]
PARAMETERIZATIONS = ("metric", "sqrt")


class Geometry(Family):
    """A family of systems: :class:`cojax.geometry.Family` says what is to be written, and this
    builds from it.
    """

    @classmethod
    def build(cls, *args: Option, **options: Option) -> QuadraticGaussian:
        """Build a system of the family; what is not given is as the authors have it, or as
        ``defaults`` says, and Q is ``share`` P, or β P for the β that meets the family's target.

        Args:
            args: the dimensions and the control strength p, in this order.
            options: those by name, knobs, ``settings``, the target, and P, Q, R, gamma, Sigma,
                parameterization and dtype: see :func:`cojax.quadratic.build`.

        Raises ValueError, one line, for anything unusable.
        """
        names = (*cls.dimensions, "p")
        if len(args) > len(names):
            expected = f"at most {', '.join(names)} without a name, got {len(args)} values"
            raise errors.InputError(f"{cls.family}.build: expected {expected}")
        rest = cls.completed(**dict(zip(names, args, strict=False)) | options)
        geometry = cls(**{name: rest.pop(name) for name in cls.fields()})
        target, share = rest.pop(cls.target or "", None), rest.pop("share")
        P = rest["P"] = inputs.symmetric("P", rest["P"], geometry.state_dim)
        if target is not None:
            R = inputs.positive_definite("R", rest["R"], geometry.action_dim)
            P, gamma, p = inputs.positive_definite("P", P, len(P)), rest["gamma"], rest["p"]
            rest["R"], share = geometry.tune(P, R, gamma=gamma, p=p, target=target)
        rest["Q"] = share * P if rest["Q"] is None else rest["Q"]
        return geometry.assemble(**rest)

    def assemble(self, **options: Option) -> QuadraticGaussian:
        """The system of this geometry from matrices and numbers, all stated: :func:`build`."""
        return build(self, **options)


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
    """A QG system. Build it with :func:`build` or a family's ``build``; change it by
    :func:`rebuild`, since most leaves are derived from others: replacing one, by whatever
    function, raises InputError, ``inverse_sqrt`` excepted, from which nothing is derived. The
    constructor and edits of the pytree (``jax.tree_util``) take leaves as they are; those that
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
        parameterization: "metric" (MN) or "sqrt" (SR).
    """

    geometry: Geometry
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

    @property
    def is_plain(self) -> bool:
        """Whether P̂ = P, Q̂ = Q and R̂ = R, as in the paper."""
        return all(getattr(self, name) is None for name in HATS)

    @property
    def lookahead(self) -> Symmetric:
        """P̂."""
        return self.P if self.P_hat is None else self.P_hat

    @property
    def effort(self) -> Symmetric:
        """R̂."""
        return self.R if self.R_hat is None else self.R_hat

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
        geometry, p = self.geometry, self.p
        diagonal = None
        if geometry.one_row_each and self.R_inverse.ndim == 1:
            gain = geometry.actuate_transpose(s, jnp.ones_like(s))
            diagonal = geometry.actuate(s, p * p * self.R_inverse * gain)

        def D(v):  # p² g R⁻¹ gᵀ v
            if diagonal is not None:
                return diagonal * v
            effort = matvec(self.R_inverse, geometry.actuate_transpose(s, v))
            return p * p * geometry.actuate(s, effort)

        y = self.inverse_sqrt(D, self.direction(s))
        action = -p * matvec(self.R_inverse, geometry.actuate_transpose(s, y))
        next_mean = matvec(self.M0, y)
        return Optimum(next_mean - self.actuate(s, action), action, next_mean)

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

    def actuate(self, s, a):
        """p g(s) a, shape (d,)."""
        return self.p * self.geometry.actuate(s, a)

    def stage_cost(self, s, a):
        """c(s, a) = sᵀQ s + aᵀR a."""
        return quadratic_form(self.Q, s) + quadratic_form(self.R, a)

    def value(self, s):
        """V*(s) = sᵀP s + b."""
        return quadratic_form(self.P, s) + self.offset

    def expected_value(self, s, z, a=None):
        """zᵀP̂ z + κ + b, where κ = b (1-γ)/γ: E V*(z + w), or what a class has in its place."""
        return quadratic_form(self.lookahead, z) + self.offset / self.gamma

    def excess_cost(self, s, delta, optimum=None):
        """A* = |δ|²_R̂ + γ p² |g δ|²_P̂ = δᵀB(s) δ."""
        ahead = self.gamma * quadratic_form(self.lookahead, self.actuate(s, delta))
        return quadratic_form(self.effort, delta) + ahead

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

        States are within the guard's ``radius`` or |s_i| <= ``start``, actions within ``limit``;
        |g| is taken at the origin, where that of every family here is largest.
        """
        eps = jnp.finfo(self.gamma.dtype).eps  # the guard's own comparison rounds, in units of V*
        guard = radius**2 + 4.0 * eps * (radius**2 + self.offset)
        farthest = jnp.sqrt(jnp.maximum(guard, quadratic_form(jnp.abs(self.P), start)))
        columns = jnp.eye(self.action_dim, dtype=self.gamma.dtype)
        g = jnp.abs(jax.vmap(lambda a: self.actuate(jnp.zeros_like(start), a))(columns))  # (m, d)
        norm = jnp.linalg.norm(self.R_inverse) if self.R_inverse.ndim > 1 else self.R_inverse.max()
        diagonal = self.M0 if self.M0.ndim == 1 else jnp.diagonal(self.M0)
        drift = farthest * jnp.sqrt(diagonal + norm * jnp.sum(g**2, axis=0))
        pushed = jnp.sum(limit[:, None] * g, axis=0)
        return jnp.maximum(drift + pushed + self.noise.bound(), start)

    def sample_noise(self, s, key, a=None):
        """One draw of w by a ``key``, shape (d,)."""
        return self.noise.sample(key, s)


HATS = ("P_hat", "Q_hat", "R_hat")


def build(
    geometry: Geometry,
    *,
    P: ArrayLike,
    Q: ArrayLike,
    R: ArrayLike,
    gamma: float,
    p: float,
    Sigma: ArrayLike,
    P_hat: ArrayLike | None = None,
    Q_hat: ArrayLike | None = None,
    R_hat: ArrayLike | None = None,
    noise_cost: float | None = None,
    parameterization: Parameterization = "metric",
    dtype: DTypeLike | None = None,
) -> QuadraticGaussian:
    """Check the inputs, derive what a step needs in float64, and cast once.

    Args:
        geometry: the family's input map and rotation field, with float64 or Python knobs.
        P: symmetric positive definite, (d, d), a diagonal (d,), or a number for a multiple of I.
        Q: 0 ⪯ Q ⪯ P, in the same forms.
        R: symmetric positive definite, (m, m), (m,), or a number.
        gamma: discount, in (0, 1).
        p: control strength, in (0, 1].
        Sigma: noise covariance, positive semidefinite, singular and correlated included.
        P_hat: look-ahead P̂ ≻ 0; P unless given, which is the paper's system, as the next three.
        Q_hat: effective cost of states, 0 ⪯ Q̂ ⪯ P; Q unless given.
        R_hat: effective cost of actions R̂ ≻ 0; R unless given.
        noise_cost: κ in b = γ/(1-γ) κ; tr(P Σ) unless given.
        parameterization: "metric" (MN) or "sqrt" (SR).
        dtype: of the leaves; by default the float dtype JAX computes in.

    Raises ValueError, one line, where an input is not as stated. Source: paper, Section V.
    """
    d, m = geometry.state_dim, geometry.action_dim
    gamma = inputs.discount("gamma", gamma)
    p = inputs.number("p", p, 0.0, 1.0, low_open=True)
    errors.one_of("parameterization", parameterization, PARAMETERIZATIONS)
    definite, semidefinite = inputs.positive_definite, inputs.positive_semidefinite
    P, R = definite("P", P, d), definite("R", R, m)
    Q, Sigma = semidefinite("Q", Q, d), semidefinite("Sigma", Sigma, d)
    hats = {
        "P_hat": None if P_hat is None else definite("P_hat", P_hat, d),
        "Q_hat": None if Q_hat is None else semidefinite("Q_hat", Q_hat, d),
        "R_hat": None if R_hat is None else definite("R_hat", R_hat, m),
    }
    ahead, charged, effort = (
        x if hat is None else hat for x, hat in zip((P, Q, R), hats.values(), strict=True)
    )
    P_minus_Q = inputs.above("Q" if Q_hat is None else "Q_hat", P, charged)
    dtype = precision.usable_float(dtype)
    R_inverse, M0 = linalg.inverse_spd(effort), linalg.inverse_spd(ahead) / gamma

    D_if_constant = geometry.constant_D(p, R_inverse) if geometry.constant_input else None
    lo, hi = linalg.extreme_eigenvalues(M0)
    hi += p**2 * geometry.input_norm() ** 2 * linalg.extreme_eigenvalues(R_inverse)[1]
    priced = np.sum(linalg.to_full(P) * linalg.to_full(Sigma))
    if noise_cost is not None:
        priced = inputs.number("noise_cost", noise_cost, 0.0)
    offset = gamma / (1.0 - gamma) * priced

    def cast(x):
        return linalg.to_device(x, dtype)

    return QuadraticGaussian(
        geometry=jax.tree.map(cast, geometry),
        P=cast(P),
        Q=cast(Q),
        R=cast(R),
        gamma=cast(gamma),
        p=cast(p),
        noise=gaussian(Sigma, geometry.noise_order(), dtype),
        offset=cast(offset),
        P_minus_Q=cast(P_minus_Q),
        sqrt_P_minus_Q=cast(linalg.sqrt_psd(P_minus_Q)),
        M0=cast(M0),
        R_inverse=cast(R_inverse),
        inverse_sqrt=inverse_sqrt.choose(M0, lo, hi, dtype, constant_D=D_if_constant),
        **{name: None if hat is None else cast(hat) for name, hat in hats.items()},
        parameterization=parameterization,
    )


def rebuild(system: QuadraticGaussian, **changes: Option) -> QuadraticGaussian:
    """The same system with some of P, Q, R, gamma, p, Sigma, parameterization, dtype or the
    geometry's knobs changed, and everything that depends on them derived again.

    ``changes`` are given by name. What is not named stays as it is: in the homotopy
    over p, P, Q and R are held (paper, §VI). The leaves are taken at the precision they have:
    rebuild a float64 system where the last digits matter. Raises ValueError for an unknown name, an
    unusable value, and for what P̂, Q̂, R̂ and κ of a class of its own depend on.
    """
    if type(system) is not QuadraticGaussian:
        kind = type(system).__name__
        raise errors.InputError(f"rebuild: expected a quadratic system, got {kind}")
    if jnp.ndim(system.gamma):
        raise errors.InputError(
            "system: expected one system, got a stacked batch; rebuild, then stack"
        )
    hats = [name for name in HATS if getattr(system, name) is not None]
    leaf = {name: np.asarray(getattr(system, name), np.float64) for name in (*BASE, *hats)}
    with precision.x64():
        noise = jax.tree.map(lambda x: jnp.asarray(np.asarray(x), jnp.float64), system.noise)
        leaf["Sigma"] = np.asarray(noise.covariance())
    settings = {"parameterization": system.parameterization, "dtype": system.gamma.dtype}
    geometry = system.geometry
    knobs = set(geometry.fields()) - set(geometry.dimensions)
    for name in changes:
        errors.one_of("rebuild", name, [*leaf, *settings, *knobs])
        if hats and name not in ("p", *settings, *geometry.gains):
            raise errors.InputError(f"{name}: {hats[0]} depends on it; build the system again")
    if hats:
        leaf["noise_cost"] = float(system.offset) * (1.0 - leaf["gamma"]) / leaf["gamma"]
    new_knobs = {k: inputs.number(k, v) for k, v in changes.items() if k in knobs}
    if new_knobs:
        geometry = geometry.replace(**new_knobs)  # pyright: ignore[reportAttributeAccessIssue]
    geometry = jax.tree.map(lambda x: np.asarray(x, np.float64), geometry)
    rest = {k: v for k, v in changes.items() if k not in knobs}
    built = geometry.assemble(**{**leaf, **settings, **rest})
    if type(system.noise) in GAUSSIAN:
        return built
    if "Sigma" in changes:
        raise errors.InputError(f"Sigma: expected none for {type(system.noise).__name__} noise")
    dtype = built.gamma.dtype
    return inputs.swapped(built, noise=jax.tree.map(lambda x: jnp.asarray(x, dtype), system.noise))
