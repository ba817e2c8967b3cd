"""Episodes that end by chance, more often in some states than in others, x = (s, e): e is 1 after
the end, and 0 before it.

    s' = f(s) + p g a + w     P(e' = 0 | s) = c(s) = l + (1 - l)/(1 + sᵀW s)     V* = sᵀP s + b
    c = sᵀQ s + (1 - c(s)) b + aᵀR a     b = γ/(1-γ) tr(P Σ)

To end with chance 1 - c(s) and cost nothing from then on is to discount by γ(s) = γ c(s), and the
construction takes any discount of the state: with M(s) = (P⁻¹ + γ(s) p² g R⁻¹gᵀ)/γ(s) in place of
the paper's,

    y = M^{-1/2} u     a* = -p R⁻¹gᵀy     z* = P⁻¹y/γ(s) = f + p g a*
    A* = |δ|²_R + γ(s) p² |g δ|²_P

since (γ - γ(s)) (b + tr PΣ) = (1 - c(s)) b is what a step costs more for the discount that is
smaller: whoever ends saves b. As c M = P⁻¹/γ + c p² g R⁻¹gᵀ, its root is that of the paper's matrix
at sqrt(c) p. Under π* |z*|²_P <= (1-β)/γ(s) |s|²_P for Q ⪰ βP: γ l > 1 - β keeps the loop bounded.

Why a state and no event beside it: the end is then a part of s' that the noise draws, by the key of
w and a chance that the state alone decides, so that V*, A*, the evaluator's Σ γᵏ A* and paired
streams are what they are for every other system; what follows the end costs 0 and is worth 0.
:meth:`Terminating.ended` tells the environment, which ends the episode there, ``terminated``: no
learner needs to know.
"""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from numpy.typing import ArrayLike, DTypeLike

from cojax import inputs, inverse_sqrt, linalg, streams
from cojax.errors import InputError
from cojax.initial import Fixed
from cojax.inverse_sqrt import ConstantInverseSqrt
from cojax.labels import Labels
from cojax.linalg import Symmetric, quadratic_form
from cojax.memory import Remembering, as_stated, statement
from cojax.quadratic_gaussian import QuadraticGaussian
from cojax.system import Optimum, mean_next_state
from cojax.types import Array, Bool, Float


@inputs.guarded
@struct.dataclass
class Terminating(Remembering):
    """A system whose episodes end by chance. Build it with :func:`terminating`.

    Methods are of one state, action a or deviation ``delta`` = a - a* (m,), and ``key``; bounds of
    a ``radius`` of the guard, states |x_i| <= ``start`` and actions within ``limit``.

    Attributes:
        parts: the system that does not end, alone.
        gamma: (), discount.
        offset: (), b; V* is 0 after the end.
        weight: W.
        least: (), l, the infimum of c.
    """

    parts: tuple[QuadraticGaussian, ...]
    gamma: Float[Array, "*batch"]
    offset: Float[Array, "*batch"]
    weight: Symmetric
    least: Float[Array, "*batch"]
    origin: dataclasses.InitVar[object] = dataclasses.field(default=None, kw_only=True)

    def __post_init__(self, origin: object) -> None:
        """Refuse replacement; raises InputError."""
        self._refuse(origin, "cojax.termination.terminating")

    @property
    def state_dim(self):
        """d + 1."""
        return self.inner.state_dim + 1

    def ended(self, s: Float[Array, "n"]) -> Bool[Array, ""]:
        """Whether the episode is over in x, e = 1."""
        return s[-1] > 0.5

    def chance(self, s: Float[Array, "d"]) -> Float[Array, ""]:
        """c(s), of going on."""
        return self.least + (1.0 - self.least) / (1.0 + quadratic_form(self.weight, s))

    def _alive(self, x: Float[Array, "n"], value: Float[Array, "*k"]) -> Float[Array, "*k"]:
        """A value before the end, 0 after it."""
        return jnp.where(self.ended(x), 0.0, value)

    def optimum(self, s):
        """That of the paper's system at sqrt(c) p, its mean stretched; after the end x stays."""
        over, inner, x = self.ended(s), self.inner, s[:-1]
        root = jnp.sqrt(self.chance(x))
        weaker = inputs.swapped(inner, p=inner.p * root)
        at = weaker.reply(x, inner.direction(x))
        z = at.next_mean / root
        f = z - inner.push(x, at.action)
        end = jnp.where(over, 1.0, 1.0 - self.chance(x))
        f, z = (jnp.append(jnp.where(over, x, part), end) for part in (f, z))
        return Optimum(f, self._alive(s, at.action), z)

    def actuate(self, s, a):
        """(p g(s) a, 0) before the end."""
        return jnp.append(self._alive(s, self.inner.actuate(s[:-1], a)), 0.0)

    def stage_cost(self, s, a):
        """c = sᵀQ s + (1 - c(s)) b + aᵀR a before the end."""
        x = s[:-1]
        left = (1.0 - self.chance(x)) * self.offset
        return self._alive(s, self.inner.stage_cost(x, a) + left)

    def value(self, s):
        """V* = sᵀP s + b before the end."""
        return self._alive(s, self.inner.value(s[:-1]))

    def expected_value(self, s, z, a=None):
        """E V*(z + w) = c(s) (zᵀP z + tr PΣ + b)."""
        x = s[:-1]
        return self._alive(s, self.chance(x) * self.inner.expected_value(x, z[:-1], a))

    def noise_price(self, s, a):
        """γ (E V*(z + w) - V*(z)) - (1-γ) b, the mean z being before the end: what is saved by it,
        -γ (1 - c) zᵀP z - (1 - c) b.
        """
        z = mean_next_state(self, s, a)[:-1]
        ends = 1.0 - self.chance(s[:-1])
        saved = self.gamma * quadratic_form(self.inner.P, z) + self.offset
        return self._alive(s, -ends * saved)

    def excess_cost(self, s, delta, optimum=None):
        """A* = |δ|²_R + γ c p² |g δ|²_P before the end."""
        x, inner = s[:-1], self.inner
        ahead = self.gamma * self.chance(x) * quadratic_form(inner.P, inner.push(x, delta))
        return self._alive(s, quadratic_form(inner.R, delta) + ahead)

    def state_bound(self, radius):
        """That of s; 1 for e."""
        return jnp.append(self.inner.state_bound(radius), 1.0)

    def reach(self, radius, start, limit):
        """That of s, f being larger by at most 1/sqrt(l); 1 for e."""
        farther = self.inner.reach(radius, start[:-1], limit) / jnp.sqrt(self.least)
        return jnp.append(farther, 1.0)

    @streams.pinned()
    def sample_noise(self, s, key, a=None):
        """w, and whether it ends beyond the chance of that."""
        x, over = s[:-1], self.ended(s)
        w = self.inner.sample_noise(x, key)
        word = streams.to_words(jax.random.fold_in(key, 2))[0]  # as random as a draw by that key
        c = self.chance(x)
        ends = jnp.where((word >> 8).astype(c.dtype) * 2.0**-24 < c, 0.0, 1.0)
        return jnp.append(self._alive(s, w), jnp.where(over, 0.0, ends - (1.0 - c)))

    def initial_memory(self):
        """e = 0."""
        return Fixed(jnp.zeros(1, self.gamma.dtype))

    def project(self, s):
        """e to 0: of what follows the end there is nothing to look at."""
        return s.at[-1].set(0.0)

    def size(self, s):
        """sᵀP s before the end."""
        return self._alive(s, quadratic_form(self.inner.P, s[:-1]))

    def least_cost(self, s):
        """sᵀQ s before the end."""
        return self._alive(s, quadratic_form(self.inner.Q, s[:-1]))

    @property
    def follows_mean(self):
        """No: a path of means is neither before the end nor after it."""
        return False

    def labels(self) -> Labels:
        """Those of the family, and e."""
        states, actions = self.inner.geometry.labels()
        return [*states, "ended [-]"], actions


# --- on the host ---------------------------------------------------------------------------------


def terminating(
    system: QuadraticGaussian,
    least: float,
    weight: ArrayLike = 1.0,
    *,
    dtype: DTypeLike | None = None,
) -> Terminating:
    """A ``system`` whose episodes end after a step from s with chance 1 - c(s); all else is kept.

    Args:
        system: of the paper's class.
        least: l in (0, 1], the infimum of c; at 1 no episode ends, and all is as before to the bit.
        weight: W ⪰ 0, (d, d), a diagonal (d,), or a number for a multiple of I.
        dtype: of the leaves, by default that of the system.

    Raises InputError, one line, for a system of another class, numbers out of range, and where
    γ l > 1 - β fails for the largest β with Q ⪰ βP: the optimal loop could then diverge.
    """
    stated = statement("terminating", system, dtype)
    if type(system) is not QuadraticGaussian:
        raise InputError(
            f"terminating: expected no system of a class of its own, got {type(system).__name__}"
        )
    d, gamma = system.state_dim, stated["gamma"]
    least = inputs.number("least", least, 0.0, 1.0, low_open=True)
    weight = inputs.positive_semidefinite("weight", weight, d)
    P, Q = (linalg.to_full(stated[name]) for name in ("P", "Q"))
    beta = linalg.largest_share(Q, P)
    if least < 1.0 and not gamma * least > 1.0 - beta:
        raise InputError(
            f"least: expected more than (1 - β)/γ = {(1.0 - beta) / gamma:.6g}, β = {beta:.4g} "
            f"being what Q has of P at least, or the optimal loop could diverge, got {least:g}"
        )
    varying, system = _varying(system, stated["dtype"]), as_stated(system, stated)
    if least < 1.0 and isinstance(system.inverse_sqrt, ConstantInverseSqrt):
        system = system.replace(inverse_sqrt=varying)  # pyright: ignore
    return Terminating(
        parts=(system,),
        gamma=system.gamma,
        offset=system.offset,
        weight=linalg.to_device(weight, stated["dtype"]),
        least=linalg.to_device(least, stated["dtype"]),
    )


def _varying(system: QuadraticGaussian, dtype: DTypeLike) -> inverse_sqrt.InverseSqrt:
    """M^{-1/2} of a constant g as that of one that depends on the state, as c does."""
    M0, R_inverse = (np.asarray(x, np.float64) for x in (system.M0, system.R_inverse))
    lo, hi = linalg.extreme_eigenvalues(M0)
    most = float(system.p) ** 2 * system.geometry.input_norm() ** 2
    hi += most * linalg.extreme_eigenvalues(R_inverse)[1]
    return inverse_sqrt.choose(M0, lo, hi, dtype)
