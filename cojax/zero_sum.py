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
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
from flax import struct

from cojax import errors, inputs, linalg
from cojax.errors import InputError
from cojax.inverse_sqrt import ChebyshevInverseSqrt
from cojax.labels import Labels
from cojax.linalg import Symmetric, matvec, product, quadratic_form
from cojax.quadratic_gaussian import QuadraticGaussian
from cojax.system import Optimum, System
from cojax.types import Array, Float

Adversary = Literal["optimal", "myopic"]
ADVERSARIES: tuple[Adversary, ...] = ("optimal", "myopic")


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
    """A game as the agent meets it. Build it with :func:`cojax.games.game`.

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
        answer: ε₁ is what of it: (d, k), of p g δ; where h = p g(s) a series of δ; None where
            h = 0.
        margin: (), λ.
        adversary: "optimal" or "myopic".
    """

    parts: tuple[QuadraticGaussian, ...]
    gamma: Float[Array, "*batch"]
    offset: Float[Array, "*batch"]
    Gamma: Symmetric
    h: Float[Array, "*batch d k"] | None
    strategy: Float[Array, "*batch n k"]
    answer: Float[Array, "*batch d k"] | Answer | Split | None
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
        require_known(adversary)
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
    def seen(self) -> bool:
        """Whether what the agent does has a reply."""
        return self.adversary == "myopic" and self.answer is not None

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

    def reply(self, s: Float[Array, "d"], delta: Float[Array, "m"]) -> Float[Array, "k"]:
        """ε₁ = γ p B_d⁻¹ hᵀP g δ."""
        inner, answer = self.inner, self.answer
        if answer is None:
            return jnp.zeros(self.disturbance_dim, delta.dtype)
        if not isinstance(answer, Answer | Split):
            return product(inner.push(s, delta), answer)
        gain = inner.geometry.actuate_transpose(s, jnp.ones_like(s))
        if isinstance(answer, Split):
            return answer.reply(gain, delta)
        driven = answer.ahead
        if driven is not None:

            def felt(d):  # γ p² gᵀP g d, an action a row
                return gain * matvec(driven, gain * d)
        else:

            def felt(d):  # γ p² gᵀP g d
                ahead = matvec(inner.P, inner.push(s, d))
                return self.gamma * inner.p * inner.geometry.actuate_transpose(s, ahead)

        return answer(felt, delta)

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
        if not self.seen:
            return at
        return Optimum(at.next_mean - self.actuate(s, at.action), at.action, at.next_mean)

    def actuate(self, s, a):
        """p g(s) a, and h ε₁(a) where the reply sees the action."""
        pushed = self.inner.push(s, a)
        if not self.seen:
            return pushed
        return pushed + self.disturb(s, self.reply(s, a))

    def played(
        self, s: Float[Array, "d"], a: Float[Array, "m"], optimum: Optimum
    ) -> Float[Array, "k"]:
        """What the adversary does where the agent does a."""
        d = self.disturbance(optimum)
        if not self.seen:
            return d
        return d + self.reply(s, a - optimum.action)

    def stage_cost(self, s, a):
        """c = sᵀQ s + aᵀR a - dᵀΓ d."""
        return self.cost_at(s, a, self.inner.optimum(s))

    def cost_at(self, s, a, optimum):
        """c, with d* from the optimum."""
        d = self.played(s, a, optimum)
        return self.inner.stage_cost(s, a) - quadratic_form(self.Gamma, d)

    @property
    def audited(self):
        """Yes: the disturbance takes from the cost of states."""
        return True

    def least_cost(self, s):
        """sᵀQ s - d*ᵀΓ d*, against d*; raises InputError against the reply, where it is less."""
        if self.seen:
            raise InputError("least_cost: expected the adversary optimal, got myopic")
        return self.stage_cost(s, jnp.zeros(self.action_dim, s.dtype))

    def value(self, s):
        """V* = sᵀP s + b."""
        return self.inner.value(s)

    def expected_value(self, s, z, a=None):
        """E V*(z + w)."""
        return self.inner.expected_value(s, z)

    def excess_cost(self, s, delta, optimum=None):
        """A* = |δ|²_B, and |ε₁|²_B_d more against the reply."""
        excess = self.inner.excess_cost(s, delta)
        if not self.seen:
            return excess
        return excess + self.spent(s, self.reply(s, delta))

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
        if not self.seen:
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
    """B_d⁻¹ Y δ for Y = γ p² gᵀP g ⪯ λ Γ by products alone: Γ^{-1/2} x/(1 - x) Γ^{1/2} δ, a
    Chebyshev series in x = Γ^{-1/2} Y Γ^{-1/2}.

    Attributes:
        root, unroot: Γ^{1/2} and Γ^{-1/2}.
        ahead: γ p² P in the rows that actions drive, (m, m), where each drives one of its own; else
            None.
    """

    root: Symmetric = struct.field(default=None)
    unroot: Symmetric = struct.field(default=None)
    ahead: Symmetric | None = None
    name = "reply"

    def __call__(self, D, u):
        """B_d⁻¹ Y u where ``D`` is d ↦ Y d."""

        def scaled(v):
            return matvec(self.unroot, D(matvec(self.unroot, v)))

        return matvec(self.unroot, super().__call__(scaled, matvec(self.root, u)))


@struct.dataclass
class Split(ChebyshevInverseSqrt):
    """The same where actions drive rows of their own, by gains g_i, and Γ is diagonal. With
    K = γ p² P in those rows and e = (Γ - g² diag K)^{-1/2},

        B_d⁻¹ = e (1 - X)⁻¹ e      X = e g (K - diag K) g e      -r <= X <= r < 1

    a series in X, short where P couples these rows weakly.

    Attributes:
        price: (m,), Γ.
        own: (m,), diag K.
        others: (m, m), K - diag K.
    """

    price: Float[Array, "*batch m"] = struct.field(default=None)
    own: Float[Array, "*batch m"] = struct.field(default=None)
    others: Float[Array, "*batch m m"] = struct.field(default=None)
    name = "split reply"

    def reply(self, gain: Float[Array, "m"], delta: Float[Array, "m"]) -> Float[Array, "m"]:
        """ε₁ = B_d⁻¹ g K g δ for ``gain`` g and ``delta`` δ."""
        e = jax.lax.rsqrt(self.price - gain**2 * self.own)
        pushed, scale = gain * delta, gain * e
        ahead = scale * (self.own * pushed + matvec(self.others, pushed))
        return e * self(lambda v: scale * matvec(self.others, scale * v), ahead)


def require_known(adversary: str) -> None:
    """Raise InputError for one that is no adversary."""
    if adversary == "none":
        raise InputError(
            "adversary: expected optimal or myopic, got none, against which the optimum is not "
            "known; cojax.evaluation.games.nominal measures it"
        )
    errors.one_of("adversary", adversary, ADVERSARIES)
