"""Zero-sum games: a disturbance d that plays against the agent, with value and saddle point known.

    s' = f(s) + p g(s) a + h(s) d + w      c = sᵀQ s + aᵀR a - dᵀΓ d      d maximises
    M = (P⁻¹ + γ p² g R⁻¹ gᵀ - γ h Γ⁻¹ hᵀ)/γ      |u|² = sᵀ(P - Q)s      y = M^{-1/2} u
    a* = -p R⁻¹ gᵀ y      d* = Γ⁻¹ hᵀ y      z* = P⁻¹ y/γ = f + p g a* + h d*      V* = sᵀP s + b

of a quadratic-Gaussian system, whose S, P, Q, R, γ, p and w are kept; V* is min max = max min, and
b as without d. With h = p g (the disturbance pushes the actuators) M has W = R⁻¹ - Γ⁻¹ for R⁻¹.
In every state, with δ = a - a*, ε = d - d* and what the other does as it is best,

    Q*(s, a, d) - V* = |δ|²_R - |ε|²_Γ + γ |p g δ + h ε|²_P = |δ|²_B̂ - |ε - ε₁(δ)|²_B_d
    B = R + γ p² gᵀP g      B_d = Γ - γ hᵀP h      ε₁ = γ p B_d⁻¹ hᵀP g δ      B̂ = B + |ε₁|²_B_d

Conditions, with λ = γ sup λmax(Γ⁻¹ hᵀP h) and Q ⪰ βP: λ < 1 makes the saddle point unique, λ < β
leaves every stage cost under d* above (β - λ)/(1 - λ) sᵀP s, and (1 - β)/(1 - λ) < γ bounds the
state at the saddle point. Eigenvalues of M are at least (1 - λ) λmin(P⁻¹)/γ.

A :class:`Game` is the agent's own problem, an ordinary one with this V*, against one of two:

    optimal    d = d*(s)             A* = |δ|²_B
    myopic     d = d*(s) + ε₁(δ)     A* = |δ|²_B̂, the reply that is best for one step and sees a

Under "myopic" V* is the optimum among policies with γᵀ E V*(s_T) → 0: the reply pays for states
that others would still gain from. Sources: Başar and Bernhard, H∞-Optimal Control (1995), and for
h = p g Tessler et al. (2019, arXiv:1901.09184).
"""

from __future__ import annotations

import dataclasses
import math
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from numpy.typing import ArrayLike, DTypeLike

from cojax import errors, inputs, inverse_sqrt, linalg, precision
from cojax.errors import InputError
from cojax.inverse_sqrt import ChebyshevInverseSqrt
from cojax.kinematic import KinematicGaussian
from cojax.labels import Labels
from cojax.linalg import Symmetric, dot, matvec, product, quadratic_form
from cojax.memory import statement
from cojax.quadratic import QuadraticGaussian
from cojax.quadratic_gaussian import Scalar
from cojax.system import Optimum, System
from cojax.types import Array, Float, Options

Adversary = Literal["optimal", "myopic"]
ADVERSARIES = ("optimal", "myopic")
ACTUATORS = "g"  # h = p g(s)


class Saddle(NamedTuple):
    """The saddle point at a state."""

    action: Float[Array, "*batch m"]
    disturbance: Float[Array, "*batch k"]
    drift: Float[Array, "*batch d"]  # f(s), of nobody's doing
    next_mean: Float[Array, "*batch d"]


class Curvature(NamedTuple):
    """What deviations cost at a state: B and B̂ of the agent, B_d of the disturbance."""

    B: Float[Array, "m m"]
    B_hat: Float[Array, "m m"]
    B_d: Float[Array, "k k"]


@inputs.guarded
@struct.dataclass
class Game(System):
    """A game as the agent meets it. Build it with :func:`game`.

    Methods are of one state s, action a, disturbance d (k,), or their deviations ``delta`` = a - a*
    and ``epsilon`` = d - d*, of a vector v (d,), and ``key``; ``optimum`` is that at s. Bounds are
    of a ``radius`` of the guard, states |s_i| <= ``start`` and actions within ``limit``.

    Attributes:
        parts: the system with the game's M, alone; its own optimum is that against d*.
        gamma: (), discount.
        offset: (), b.
        Gamma: (k, k) or (k,), of the cost of disturbances.
        h: (d, k); None for h = p g(s), which depends on the state.
        strategy: d* is what of it: (d, k), of z*; (m, m), of a* where h = p g(s).
        answer: ε₁ is what of it: (d, k), of p g δ; where h = p g(s) the series of B_d⁻¹.
        margin: (), λ.
        adversary: "optimal" or "myopic".
    """

    parts: tuple[QuadraticGaussian, ...]
    gamma: Float[Array, "*batch"]
    offset: Float[Array, "*batch"]
    Gamma: Symmetric
    h: Float[Array, "*batch d k"] | None
    strategy: Float[Array, "*batch n k"]
    answer: Float[Array, "*batch d k"] | Answer
    margin: Float[Array, "*batch"]
    adversary: Adversary = struct.field(pytree_node=False, default="optimal")
    origin: dataclasses.InitVar[object] = dataclasses.field(default=None, kw_only=True)

    def __post_init__(self, origin: object) -> None:
        """Refuse replacement; raises InputError."""
        if origin is not None and (names := inputs.replaced(self, origin)):
            raise InputError(
                f"{names[0]}: leaves of a system depend on each other; use cojax.games.game again, "
                "or against(...) for the other adversary"
            )

    def against(self, adversary: Adversary) -> Game:
        """The same game with the other ``adversary``; raises InputError for an unknown one."""
        _require_known(adversary)
        return inputs.swapped(self, adversary=adversary)

    @property
    def inner(self) -> QuadraticGaussian:
        """The one of ``parts``."""
        return self.parts[0]

    @property
    def state_dim(self):
        """d."""
        return self.inner.state_dim

    @property
    def action_dim(self):
        """m."""
        return self.inner.action_dim

    @property
    def disturbance_dim(self) -> int:
        """k."""
        return self.Gamma.shape[-1]

    @property
    def constant_curvature(self):
        """As without a disturbance."""
        return self.inner.constant_curvature

    def labels(self) -> Labels:
        """Those of the family."""
        return self.inner.labels()

    # --- the two players -------------------------------------------------------------------------

    def saddle(self, s: Float[Array, "d"]) -> Saddle:
        """a*, d*, f and z*, from one computation."""
        at = self.inner.optimum(s)
        d = self.disturbance(at)
        return Saddle(at.action, d, at.drift - self.disturb(s, d), at.next_mean)

    def disturbance(self, optimum: Optimum) -> Float[Array, "k"]:
        """d* = γ Γ⁻¹hᵀP z*, or -Γ⁻¹R a* where h = p g(s)."""
        return product(optimum.next_mean if self.h is not None else optimum.action, self.strategy)

    def disturb(self, s: Float[Array, "d"], d: Float[Array, "k"]) -> Float[Array, "d"]:
        """h(s) d."""
        return self.inner.push(s, d) if self.h is None else product(d, self.h.T)

    def reply(self, s: Float[Array, "d"], pushed: Float[Array, "d"]) -> Float[Array, "k"]:
        """ε₁ = γ B_d⁻¹ hᵀP (p g δ) where p g δ is what is ``pushed``."""
        if not isinstance(self.answer, Answer):
            return product(pushed, self.answer)
        inner = self.inner

        def felt(v):  # γ hᵀP v
            ahead = matvec(inner.P, v)
            return self.gamma * inner.p * inner.geometry.actuate_transpose(s, ahead)

        return self.answer(lambda d: felt(inner.push(s, d)), felt(pushed))

    def spent(self, s: Float[Array, "d"], epsilon: Float[Array, "k"]) -> Float[Array, ""]:
        """|ε|²_B_d = |ε|²_Γ - γ |h ε|²_P >= 0: what ε costs the adversary where a = a*."""
        ahead = quadratic_form(self.inner.P, self.disturb(s, epsilon))
        return quadratic_form(self.Gamma, epsilon) - self.gamma * ahead

    def advantage(
        self, s: Float[Array, "d"], delta: Float[Array, "m"], epsilon: Float[Array, "k"]
    ) -> Float[Array, ""]:
        """Q*(s, a* + δ, d* + ε) - V*(s), of either sign: > 0 is to the agent's loss."""
        inner = self.inner
        ahead = quadratic_form(inner.P, inner.push(s, delta) + self.disturb(s, epsilon))
        own = quadratic_form(inner.R, delta) - quadratic_form(self.Gamma, epsilon)
        return own + self.gamma * ahead

    def curvature(self, s: Float[Array, "d"]) -> Curvature:
        """B, B̂ and B_d: matrices, for tests and bounds; no step needs them."""
        inner, dtype = self.inner, self.gamma.dtype
        push = jax.vmap(inner.push, (None, 0))(s, jnp.eye(self.action_dim, dtype=dtype))
        turn = jax.vmap(self.disturb, (None, 0))(s, jnp.eye(self.disturbance_dim, dtype=dtype))
        ahead = self.gamma * jax.vmap(matvec, (None, 0))(inner.P, push)
        Gamma, R = (x if x.ndim > 1 else jnp.diag(x) for x in (self.Gamma, inner.R))
        B, cross = R + product(ahead, push.T), product(ahead, turn.T)
        P_turn = jax.vmap(matvec, (None, 0))(inner.P, turn)
        B_d = Gamma - self.gamma * product(P_turn, turn.T)
        return Curvature(B, B + product(cross, linalg.solve_spd(B_d, cross.T)), B_d)

    # --- the agent's problem ---------------------------------------------------------------------

    def optimum(self, s):
        """a*, z* and what the state drifts to where a = 0."""
        at = self.inner.optimum(s)
        if self.adversary == "optimal":
            return at
        return Optimum(at.next_mean - self.actuate(s, at.action), at.action, at.next_mean)

    def actuate(self, s, a):
        """p g(s) a, and h ε₁(a) where the reply sees the action."""
        pushed = self.inner.push(s, a)
        if self.adversary == "optimal":
            return pushed
        return pushed + self.disturb(s, self.reply(s, pushed))

    def played(
        self, s: Float[Array, "d"], a: Float[Array, "m"], optimum: Optimum
    ) -> Float[Array, "k"]:
        """What the adversary does where the agent does a."""
        d = self.disturbance(optimum)
        if self.adversary == "optimal":
            return d
        return d + self.reply(s, self.inner.push(s, a - optimum.action))

    def stage_cost(self, s, a):
        """c = sᵀQ s + aᵀR a - dᵀΓ d."""
        return self.cost_at(s, a, self.inner.optimum(s))

    def cost_at(self, s, a, optimum):
        """c, with d* from the optimum."""
        d = self.played(s, a, optimum)
        return self.inner.stage_cost(s, a) - quadratic_form(self.Gamma, d)

    def value(self, s):
        """V* = sᵀP s + b."""
        return self.inner.value(s)

    def expected_value(self, s, z, a=None):
        """E V*(z + w)."""
        return self.inner.expected_value(s, z)

    def excess_cost(self, s, delta, optimum=None):
        """A* = |δ|²_B, and |ε₁|²_B_d more against the reply."""
        excess = self.inner.excess_cost(s, delta)
        if self.adversary == "optimal":
            return excess
        return excess + self.spent(s, self.reply(s, self.inner.push(s, delta)))

    def state_bound(self, radius):
        """That of V*."""
        return self.inner.state_bound(radius)

    def reach(self, radius, start, limit):
        """That without a disturbance from (1 - λ)^{-1/2} times as far, since
        yᵀ(M + h Γ⁻¹hᵀ)y <= |u|²/(1 - λ); and |h ε₁|_P <= λ/(1 - λ) |p g δ|_P.
        """
        inner, out = self.inner, 1.0 / jnp.sqrt(1.0 - self.margin)
        start = out * start
        bound = inner.reach(out * radius, start, limit)
        if self.adversary == "optimal":
            return bound
        P = jnp.abs(inner.P)
        guard = (out * radius) ** 2 + 4.0 * jnp.finfo(P.dtype).eps * self.offset
        farthest = jnp.sqrt(jnp.maximum(1.001 * guard, quadratic_form(P, start)))
        cost = inner.R_inverse if inner.R_inverse.ndim == 1 else jnp.diagonal(inner.R_inverse)
        most = limit + farthest * jnp.sqrt(cost)
        g = inner.p * inner.geometry.largest_input(P.dtype)  # (m, d)
        size = jnp.sqrt(quadratic_form(P, jnp.sum(most[:, None] * g, axis=0)))
        return bound + self.margin / (1.0 - self.margin) * inner.state_bound(size)

    def sample_noise(self, s, key, a=None):
        """That of the system."""
        return self.inner.sample_noise(s, key)


@struct.dataclass
class Answer(ChebyshevInverseSqrt):
    """B_d⁻¹ r by products alone: Σ_j c_j T_j of x⁻¹ on [1 - λ, 1], of I - Γ^{-1/2} γ hᵀP h Γ^{-1/2}.

    Attributes:
        unroot: Γ^{-1/2}.
    """

    unroot: Symmetric = struct.field(default=None)
    name = "reciprocal"

    def __call__(self, D, u):
        """B_d⁻¹ u where ``D`` is d ↦ γ hᵀP h d."""

        def less(v):
            return -matvec(self.unroot, D(matvec(self.unroot, v)))

        return matvec(self.unroot, super().__call__(less, matvec(self.unroot, u)))


# --- on the host ---------------------------------------------------------------------------------


def game(
    system: QuadraticGaussian,
    *,
    h: ArrayLike | str,
    Gamma: ArrayLike,
    adversary: Adversary = "optimal",
) -> Game:
    """The game on a ``system`` of the paper's class, of any family.

    Args:
        system: S, P, Q, R, γ, p and w are taken from it.
        h: (d, k), what a disturbance does to the state; "g" for p g(s), by the actuators. For a
            system with kinematics its rows of angles are 0.
        Gamma: Γ ≻ 0, the price of disturbances: a number, (k,) or (k, k).
        adversary: who plays the disturbance, "optimal" or "myopic". A disturbance that stays away
            ("none") leaves a problem whose optimum is not known: see
            :func:`cojax.evaluation.games.nominal`.

    With h = 0 all of it is the system's own, to the bit. Raises InputError, one line with the
    number, unless Γ ≻ γ hᵀP h at every state, Q ⪰ βP with β > λ, and (1 - β)/(1 - λ) < γ; and for a
    system with a limit, actuators or noise of its own class.
    """
    stated = statement("game", system)
    if type(system) not in (QuadraticGaussian, KinematicGaussian):
        raise InputError(f"game: expected no system of a class of its own, got {system!r}")
    _require_known(adversary)
    d, gamma, geometry = system.state_dim, stated["gamma"], stated["geometry"]
    P, Q, R = stated["P"], stated["Q"], inputs.symmetric("R", stated["R"], system.action_dim)
    matrix = _matrix(system, h, stated)
    k = system.action_dim if matrix is None else matrix.shape[1]
    Gamma = inputs.positive_definite("Gamma", Gamma, k)
    unroot = linalg.inverse_sqrt_spd(Gamma)
    margin = gamma * _largest(system, stated, unroot, matrix)
    _require_saddle(margin, linalg.to_full(P), linalg.to_full(Q), gamma)

    kinematic = isinstance(system, KinematicGaussian)
    dtype = system.gamma.dtype
    Gamma_inverse, R_inverse = linalg.inverse_spd(Gamma), linalg.inverse_spd(R)
    P_full = linalg.to_full(P)
    if kinematic:
        block = np.linalg.inv(P_full[1::2, 1::2])
        A = 0.5 * (block + block.T) / gamma
    else:
        A = linalg.inverse_spd(inputs.symmetric("P", P, d)) / gamma
    low, authority = (1.0 - margin) * linalg.extreme_eigenvalues(A)[0], R_inverse
    inner, cast = system, lambda x: linalg.to_device(x, dtype)
    if matrix is None:
        authority = linalg.subtract(R_inverse, Gamma_inverse)
    elif matrix.any():
        rows = matrix[1::2] if kinematic else matrix
        A = linalg.to_full(A) - rows @ linalg.to_full(Gamma_inverse) @ rows.T
    if matrix is None or matrix.any():
        constant = geometry.constant_D(stated["p"], R_inverse) if geometry.constant_input else None
        most = max(0.0, linalg.extreme_eigenvalues(authority)[1])
        high = linalg.extreme_eigenvalues(A)[1]
        high += (stated["p"] * geometry.input_norm()) ** 2 * most
        root = inverse_sqrt.choose(A, low, high, dtype, constant_D=constant)
        inner = inputs.swapped(system, inverse_sqrt=root)
    if matrix is None:
        inner = inputs.swapped(inner, authority=cast(authority))
        strategy = -linalg.to_full(R) @ linalg.to_full(Gamma_inverse)
        answer = reciprocal(margin, unroot, dtype)
    else:
        ahead = gamma * P_full @ matrix
        B_d = linalg.to_full(Gamma) - ahead.T @ matrix
        strategy = ahead @ linalg.to_full(Gamma_inverse)
        answer = cast(np.linalg.solve(B_d, ahead.T).T)
    return Game(
        parts=(inner,), gamma=system.gamma, offset=system.offset, Gamma=cast(Gamma),
        h=None if matrix is None else cast(matrix), strategy=cast(strategy), answer=answer,
        margin=cast(margin), adversary=adversary,
    )  # fmt: skip


def reciprocal(margin: float, unroot: np.ndarray, dtype: DTypeLike) -> Answer:
    """The series of x⁻¹ on [1 - λ, 1], to a quarter of a rounding of ``dtype``; ``margin`` is λ.

    c_0 = (1 - λ)^{-1/2}, c_j = 2 c_0 (-ϱ)^j with ϱ = (1 - √(1 - λ))/(1 + √(1 - λ)) (Mason and
    Handscomb, Chebyshev Polynomials, 2003, sec. 5.2). Degrees are multiples of 4, so that games of
    like λ share one shape.
    """
    low = 1.0 - max(margin, 1e-3)  # an interval of no length has no affine map
    rho = (1.0 - math.sqrt(low)) / (1.0 + math.sqrt(low))
    degree = math.log(0.25 * float(np.finfo(dtype).eps) * low) / math.log(rho)
    degree = 4 * math.ceil(0.25 * degree)
    c = 2.0 / math.sqrt(low) * (-rho) ** np.arange(degree + 1)
    c[0] *= 0.5
    k = len(unroot)
    return Answer(
        coefficients=linalg.to_device(c, dtype),
        twice_t_A=linalg.to_device(np.full(k, 2.0), dtype),  # I is the upper end
        twice_t_D=linalg.to_device(4.0 / (1.0 - low), dtype),
        unroot=linalg.to_device(unroot, dtype),
    )


def _require_known(adversary: str) -> None:
    """Raise InputError for one that is no adversary."""
    if adversary == "none":
        raise InputError(
            "adversary: expected optimal or myopic, got none, against which the optimum is not "
            "known; cojax.evaluation.games.nominal measures it"
        )
    errors.one_of("adversary", adversary, ADVERSARIES)


def _matrix(system: QuadraticGaussian, h: ArrayLike | str, stated: Options) -> np.ndarray | None:
    """h, (d, k); None for p g(s) where it depends on the state. Raises InputError."""
    d, geometry = system.state_dim, stated["geometry"]
    if isinstance(h, str):
        errors.one_of("h", h, (ACTUATORS,))
        if not geometry.constant_input:
            return None
        with precision.x64():
            eye = jnp.eye(system.action_dim)
            push = jax.vmap(lambda a: geometry.actuate(jnp.zeros(d), a))
            return stated["p"] * np.asarray(push(eye)).T
    matrix = np.asarray(h, np.float64)
    if matrix.ndim != 2 or len(matrix) != d or not matrix.size or not np.isfinite(matrix).all():
        raise InputError(f"h: expected finite numbers of shape ({d}, k), got {matrix.shape}")
    if isinstance(system, KinematicGaussian) and matrix[0::2].any():
        raise InputError("h: expected zeros in the rows of angles, which true kinematics decide")
    return matrix


def _largest(
    system: QuadraticGaussian, stated: Options, unroot: np.ndarray, matrix: np.ndarray | None
) -> float:
    """sup_s λmax(Γ^{-1/2} hᵀP h Γ^{-1/2}), or a bound of it, on the host.

    Where h = p g(s) and every action drives a row of its own, |g(s)| entry by entry is at most the
    family's largest, and λmax is convex in the entries: the largest g(s) decides, for a diagonal Γ.
    Else |p g|₂² λmax(P) λmax(Γ⁻¹) bounds it.
    """
    P, geometry, scale = linalg.to_full(stated["P"]), stated["geometry"], linalg.to_full(unroot)
    if matrix is None and not (geometry.one_row_each and unroot.ndim == 1):
        bound = (stated["p"] * geometry.input_norm()) ** 2 * linalg.extreme_eigenvalues(P)[1]
        return float(bound * np.linalg.norm(scale, 2) ** 2)
    if matrix is None:
        with precision.x64():
            matrix = stated["p"] * np.asarray(geometry.largest_input(np.float64)).T
    inside = scale @ matrix.T @ P @ matrix @ scale
    return max(0.0, float(np.linalg.eigvalsh(0.5 * (inside + inside.T))[-1]))


def _require_saddle(margin: float, P: np.ndarray, Q: np.ndarray, gamma: float) -> None:
    """Raise InputError unless λ < 1, λ < β and (1 - β)/(1 - λ) < γ."""
    root = linalg.inverse_sqrt_spd(P)
    beta = float(np.linalg.eigvalsh(root @ Q @ root)[0])
    if not margin < 1.0:
        raise InputError(
            "Gamma: expected Γ ≻ γ hᵀP h at every state, without which the disturbance gains "
            f"without end, got λ = γ sup λmax(Γ⁻¹hᵀP h) = {margin:.6g}; expected λ < 1"
        )
    if not margin < beta:
        raise InputError(
            f"Gamma: expected λ = γ sup λmax(Γ⁻¹hᵀP h) < β, where Q ⪰ βP, got λ = {margin:.6g} "
            f"and β = {beta:.6g}"
        )
    if not (loop := (1.0 - beta) / (1.0 - margin)) < gamma:
        raise InputError(
            f"Q: expected (1 - β)/(1 - λ) < γ = {gamma:.6g}, which bounds the state at the saddle "
            f"point, got {loop:.6g} from β = {beta:.6g} and λ = {margin:.6g}"
        )
