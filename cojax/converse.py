"""The general converse (theory beyond the paper's Section V): any value, any cost of control.

    v(s) = sᵀP s + Σ τ_j(s)      W(y) = γ E v(y + w)      V* = v + b
    y*(s) = ŷ + z(s)             ŷ = argmin W, z(s) the optimal next mean of the QG system
    a*(s) = (∂ρ)⁻¹(ξ),  ξ = -p gᵀ∇W(y*)         f(s) = y* - p g a*
    c(s, a) = q(s) + ρ(a)        q(s) = v - ρ(a*) - (W(y*) - W(ŷ))       b = W(ŷ)/(1-γ)
    A*(s, a) = D_ρ(a, a*; ξ) + D_W(y* + p g δ, y*),  δ = a - a*

Bellman's equation holds by construction where ∇²ρ + p² gᵀ∇²W g ≻ 0, since Q*(s, ·) is then convex
and a* its stationary point: v need not be convex, as long as ρ outweighs what the noise leaves of
its concavity. V* is the optimal value where q >= βv, β > 0, and then E v(s') <= ((1-β) v + W(ŷ))/γ
under π*. Both are conditions that the validator checks. With no terms q >= sᵀQ s for every cost of
control of :mod:`cojax.control_costs`; with none and ρ = aᵀR a it is the paper's system, q = sᵀQ s.
ŷ = 0 unless some term is not even, and then also a*(0) = 0 and q(0) = 0.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from numpy.typing import ArrayLike

from cojax import control_costs, inputs, linalg, precision, value_forms, value_terms
from cojax.control_costs import ControlCost
from cojax.distinct import of_another
from cojax.errors import InputError
from cojax.io.described import About, described, number
from cojax.linalg import matvec, quadratic_form
from cojax.noise import WHITE
from cojax.noise_laws import Normal
from cojax.quadratic_gaussian import QuadraticGaussian, Scalar
from cojax.system import Optimum, System
from cojax.types import Array, Content, Float, Options
from cojax.value_forms import SIGNED, TERMS
from cojax.value_terms import Term

MAX_KINKS = 10  # directions of those; 2^10 quadratics are compared


def _about(system: Converse) -> About:
    """What a system shows of itself."""
    lead = np.shape(system.gamma)
    facts = {
        "states": system.state_dim,
        "actions": system.action_dim,
        "gamma": number(system.gamma),
        "p": number(system.p),
        "value": " + ".join(["sᵀPs", *(term.kind for term in system.terms)]),
        "control cost": system.control.kind,
        "dtype": getattr(system.gamma, "dtype", ""),
    }
    name = getattr(system.geometry, "family", type(system.geometry).__name__)
    return f"Converse system: {name}" + (f", {lead[0]} side by side" if lead else ""), facts


@described(_about)
@struct.dataclass(kw_only=True)
class Converse(QuadraticGaussian):
    """A system of the general converse. Make it by :func:`extend`, or in a fixture by its fields
    ``value`` and ``control_cost``; its leaves depend on each other as those of its parent do.

    Attributes:
        terms: of the value beyond sᵀP s, one an entry for each kind.
        control: ρ.
        rest: (), W(ŷ)/γ - tr(P Σ).
        least: (), a number c with v >= c sᵀP s.
        shift: (d,), ŷ; None where it is 0.
    """

    terms: tuple[Term, ...]
    control: ControlCost
    rebuilds: ClassVar[bool] = False
    rest: Scalar
    least: Scalar  # v >= least sᵀP s
    shift: Float[Array, "*batch d"] | None = None

    @property
    def constrained(self):
        """Whether ρ is infinite somewhere."""
        return self.control.constrained

    def feasible(self, a):
        """The nearest action at which ρ is finite."""
        return self.control.feasible(a)

    def feasible_box(self):
        """The bound of ρ."""
        bound = getattr(self.control, "limit", None)
        return None if bound is None else np.asarray(bound, np.float64)

    def optimum(self, s):
        """a* from ∇W at y*; no root is sought."""
        mean = QuadraticGaussian.optimum(self, s).next_mean
        mean = mean if self.shift is None else mean + self.shift
        action = self.respond(self.pull(s, mean))
        return Optimum(mean - self.actuate(s, action), action, mean)

    def respond(self, xi: Float[Array, "m"]) -> Float[Array, "m"]:
        """(∂ρ)⁻¹(ξ), for ``xi``."""
        return self.control.respond(self.R_inverse, xi)

    def pull(self, s: Float[Array, "d"], z: Float[Array, "d"]) -> Float[Array, "m"]:
        """ξ = -p g(s)ᵀ∇W(z)."""
        slope = 2.0 * matvec(self.P, z)
        for term in self.terms:
            slope = slope + term.slope(z)
        return -self.gamma * self.p * self.geometry.actuate_transpose(s, slope)

    def size(self, s):
        """v(s) = V*(s) - b."""
        v = quadratic_form(self.P, s)
        for term in self.terms:
            v = v + term.at(s)
        return v

    def rise(self, z: Float[Array, "d"]) -> Float[Array, ""]:
        """(W(z) - W(ŷ))/γ."""
        mean = quadratic_form(self.P, z)
        for term in self.terms:
            mean = mean + term.mean(z)
        return mean - self.rest

    def state_cost(self, s: Float[Array, "d"], optimum: Optimum | None = None) -> Float[Array, ""]:
        """q(s); ``optimum`` is that at s, computed where it is not given."""
        optimum = self.optimum(s) if optimum is None else optimum
        spent = self.control.price(self.R, optimum.action)
        return self.size(s) - spent - self.gamma * self.rise(optimum.next_mean)

    def stage_cost(self, s, a):
        """c(s, a) = q(s) + ρ(a)."""
        return self.cost_at(s, a, self.optimum(s))

    def cost_at(self, s, a, optimum):
        """c(s, a), with q from the optimum that is at hand."""
        return self.state_cost(s, optimum) + self.control.price(self.R, a)

    def value(self, s):
        """V*(s) = v(s) + b."""
        return self.size(s) + self.offset

    def expected_value(self, s, z, a=None):
        """E V*(z + w)."""
        return self.rise(z) + self.offset / self.gamma

    def excess_cost(self, s, delta, optimum=None):
        """A* = D_ρ + D_W, sums of terms >= 0 where v is convex; ∞ where a* + δ is not feasible."""
        optimum = self.optimum(s) if optimum is None else optimum
        z, moved = optimum.next_mean, self.actuate(s, delta)
        ahead = quadratic_form(self.P, moved)
        for term in self.terms:
            ahead = ahead + term.divergence(z, moved)
        xi = self.pull(s, z)
        now = self.control.divergence(self.R, optimum.action, xi, delta=delta)
        return now + self.gamma * ahead

    def curvature(self, s: Float[Array, "d"], z: Float[Array, "d"]) -> Float[Array, "m m"]:
        """A matrix below ∇²ρ + p² gᵀ∇²W g at state s: for every action where all terms have a
        floor, :attr:`has_floor`; else at next mean z.
        """
        P, R = (jnp.diag(x) if x.ndim == 1 else x for x in (self.P, self.R))
        bend = 2.0 * P
        for term in self.terms:
            floor = term.floor()
            bend = bend + (jax.jacfwd(term.slope)(z) if floor is None else floor)
        g = jax.vmap(lambda a: self.actuate(s, a))(jnp.eye(self.action_dim, dtype=s.dtype))
        return 2.0 * R + self.gamma * linalg.product(linalg.product(g, bend), g.T)

    def noise_price(self, s, a):
        """W(z) - γ v(z) - (1-γ) b, at z = f(s) + p g(s) a."""
        if not self.terms:
            return QuadraticGaussian.noise_price(self, s, a)
        z = self.optimum(s).drift + self.actuate(s, a)
        return self.gamma * (self.rise(z) - self.size(z))

    @property
    def audited(self):
        """Where there are terms."""
        return bool(self.terms)

    def least_cost(self, s):
        """q."""
        return self.state_cost(s)

    @property
    def has_floor(self) -> bool:
        """Whether :meth:`curvature` bounds Q*(s, ·) at every action."""
        return all(type(term).floor is not Term.floor for term in self.terms)

    def state_bound(self, radius):
        """As in the QG case, since v >= least sᵀP s."""
        return QuadraticGaussian.state_bound(self, radius / jnp.sqrt(self.least))

    def reach(self, radius, start, limit):
        """Four times what is inside: f grows faster than s where v does faster than |s|²."""
        return System.reach(self, radius, start, limit)


def extend(
    system: QuadraticGaussian,
    *,
    value: Content | None = None,
    control_cost: Content | None = None,
    limit: ArrayLike | None = None,
    exact: Options | None = None,
) -> Converse:
    """The system of the general converse whose optimal next mean is that of a QG ``system``.

    Args:
        system: of Gaussian noise, with P̂ = P, Q̂ = Q and R̂ = R.
        value: {"terms": [{"kind": "cosine", "weight": 0.5, "frequency": 3.0, "along": 0}, …]}, of
            the kinds in :mod:`cojax.value_terms`. ``along`` is ℓ, a coordinate by its number or a
            list of d; ``times`` is m.
        control_cost: {"kind": "soft-threshold", "mu": 0.1}, or a kind alone: see
            :mod:`cojax.control_costs`.
        limit: the bound ū of the kinds box and saturating, a number or one an action.
        exact: P, R and Sigma in float64, by default the leaves, at the precision they have.

    Raises InputError, one line, for anything unusable; whether V* is the optimal value is for the
    validator to say.
    """
    plain = type(system) is QuadraticGaussian and system.is_plain and not system.constrained
    if not plain or jnp.ndim(system.gamma):
        raise InputError(
            "system: expected one quadratic-Gaussian system with P̂ = P, Q̂ = Q and R̂ = R, and "
            "no limit but that of a control cost"
        )
    d, m, dtype = system.state_dim, system.action_dim, system.gamma.dtype
    stated = value_forms.checked_value(value, d)
    if stated and not (isinstance(system.noise, WHITE) and isinstance(system.noise.law, Normal)):
        kind = type(system.noise).__name__
        raise InputError(f"value.terms: expected Gaussian noise, got {kind}")
    with precision.x64():
        host = {"P": system.P, "R": system.R, "Sigma": system.noise.covariance()} | (exact or {})
        P, R, Sigma = (np.asarray(host[name], np.float64) for name in ("P", "R", "Sigma"))
        if limit is not None:
            limit = inputs.vector("action_limit", limit, m)
        control = control_costs.make(control_cost, R, limit, dtype)
        terms = _terms(stated, P, Sigma)
        least = _least(stated, P, d)
        shift = None if all(term.even for term in terms) else _rest_point(terms, P)
        y = np.zeros(d) if shift is None else shift
        rest = float(y @ linalg.to_full(P) @ y)
        rest += sum(float(np.asarray(term.mean(jnp.asarray(y)))) for term in terms)
    gamma = float(np.asarray(system.gamma, np.float64)) if exact is None else exact["gamma"]
    priced = np.sum(linalg.to_full(P) * linalg.to_full(Sigma)) + rest

    def cast(x):
        return linalg.to_device(x, dtype)

    return Converse(
        **{
            **of_another(system),
            "offset": cast(gamma / (1.0 - gamma) * priced) if stated else system.offset,
            "terms": jax.tree.map(cast, terms),
            "control": control,
            "rest": cast(rest),
            "least": cast(least),
            "shift": None if shift is None else cast(shift),
        }
    )


def _terms(stated: list[Content], P: np.ndarray, Sigma: np.ndarray) -> tuple[Term, ...]:
    """Terms in float64, like kinds together, in the order of :data:`TERMS`."""
    d, full = len(P), linalg.to_full(Sigma)
    out: list[Term] = []
    for kind in TERMS:
        chosen = [(i, term) for i, term in enumerate(stated) if term["kind"] == kind]
        if not chosen:
            continue
        weight = np.array([term["weight"] for _, term in chosen])
        if kind == "quartic":
            PS = P * Sigma if P.ndim == Sigma.ndim == 1 else linalg.to_full(P) @ full
            PSP = PS * P if PS.ndim == 1 else PS @ linalg.to_full(P)
            t1 = np.sum(linalg.to_full(P) * full)
            t2 = np.sum(PS**2) if PS.ndim == 1 else np.sum(PS * PS.T)
            out.append(_made(value_terms.Quartic, weight.sum(), P, PSP, t1, t2))
            continue
        L = np.stack([value_forms.projection(term["along"], d) for _, term in chosen])
        sigma = np.sqrt(np.einsum("kd,de,ke->k", L, full, L))
        if kind == "cosine":
            omega = np.array([term["frequency"] for _, term in chosen])
            decay = np.exp(-0.5 * (omega * sigma) ** 2)
            out.append(_made(value_terms.Cosine, weight, L, omega, decay))
            continue
        for (i, _), deviation in zip(chosen, sigma, strict=True):
            if deviation < 1e-12 * np.linalg.norm(L):
                name = f"value.terms[{i}].along"
                raise InputError(f"{name}: expected a direction with noise, which smooths the kink")
        if kind == "kinked":
            M = np.stack([value_forms.projection(term["times"], d) for _, term in chosen])
            covariance = np.einsum("kd,de,ke->k", L, full, M)
            out.append(_made(value_terms.Kinked, weight, L, M, sigma, covariance))
        else:
            form = value_terms.Absolute if kind == "absolute" else value_terms.SignedSquare
            out.append(_made(form, weight, L, sigma))
    return tuple(out)


def _made(form: Callable[..., Term], *leaves: ArrayLike) -> Term:
    return form(*(linalg.to_device(x, np.float64) for x in leaves))


def _least(stated: list[Content], P: np.ndarray, d: int) -> float:
    """The largest c <= 1 with v >= c sᵀP s: the least eigenvalue over the quadratics that v is
    glued of, one for every side of every kink. Raises InputError unless it is positive.
    """
    pieces: dict[bytes, np.ndarray] = {}
    for term in (term for term in stated if term["kind"] in SIGNED):
        along = value_forms.projection(term["along"], d)
        unit = along / np.linalg.norm(along)
        flip = np.sign(unit[np.flatnonzero(unit)[0]])
        other = (
            along if term["kind"] == "signed-square" else value_forms.projection(term["times"], d)
        )
        K = 0.5 * flip * term["weight"] * (np.outer(along, other) + np.outer(other, along))
        key = np.round(flip * unit, 12).tobytes()
        pieces[key] = pieces.get(key, 0.0) + K
    if len(pieces) > MAX_KINKS:
        raise InputError(f"value.terms: expected at most {MAX_KINKS} kinks, got {len(pieces)}")
    root = linalg.to_full(linalg.inverse_sqrt_spd(P))
    least = 1.0
    for sides in itertools.product((-1.0, 1.0), repeat=len(pieces)):
        chosen = [side * K for side, K in zip(sides, pieces.values(), strict=True)]
        K = sum(chosen, np.zeros((d, d)))
        least = min(least, 1.0 + float(np.linalg.eigvalsh(root @ K @ root)[0]))
    if least <= 1e-6:
        raise InputError(f"value.terms: expected v > 0 but at 0, got least v/sᵀPs {least:.4g}")
    return least


def _rest_point(terms: tuple[Term, ...], P: np.ndarray) -> np.ndarray:
    """ŷ = argmin W, by Newton's method from 0, with the sᵀP s part of the Hessian as its floor."""
    full = linalg.to_full(P)
    y = np.zeros(len(P))
    for _ in range(100):
        slopes = [np.asarray(term.slope(jnp.asarray(y))) for term in terms]
        bends = [np.asarray(jax.jacfwd(term.slope)(jnp.asarray(y))) for term in terms]
        gradient, H = 2.0 * full @ y + sum(slopes), 2.0 * full + sum(bends)
        if np.linalg.eigvalsh(0.5 * (H + H.T))[0] <= 0.0:
            H = 2.0 * full
        step = np.linalg.solve(H, gradient)
        y = y - step
        if np.abs(step).max() <= 1e-15 * (1.0 + np.abs(y).max()):
            break
    return y
