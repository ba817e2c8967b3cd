"""Problems with a budget: minimise J_c so that J_d <= D, with the optimum and its multiplier known.

    J_c = E Σ γᵏ c(s_k, a_k)     J_d = E Σ γᵏ d(s_k, a_k)     c + λ d = sᵀQ s + aᵀR a

A quadratic system has the optimum of the sum c + λ d. Split in two, with D := J_d(π*), it has that
of the problem with a budget (Everett 1963), since for every policy

    [J_c(π) - J_c*] + λ [J_d(π) - D] = E Σ γᵏ A*(s_k, a_k) >= 0

No convexity and no point inside of the constraint is asked for: what keeps the budget has a gap
J_c - J_c* >= 0, a violation ε buys at most λ ε, and the right-hand side is the distance of the
point (J_d, J_c) to a line that supports all others. Two splits, z* being the oracle's next mean:

    a cost of states (:func:`budget`), for a matrix P_d, whose J_d is V_d(s_0):
        d = sᵀP_d s - γ z*ᵀP_d z*       V_d = sᵀP_d s + γ/(1-γ) tr(P_d Σ)
    an energy (:func:`energy_budget`), whose J_d is estimated once:
        d = aᵀR_d a

The first is >= 0, and so is c, where (1-β) κ P ⪯ P_d ⪯ κ P and λ κ <= β, for Q ⪰ β P: then
γ z*ᵀP z* <= (1-β) sᵀP s. The second is where 0 ⪯ λ R_d ⪯ R.

Stage cost, value and advantage of such a system are those of c + λ d, so that everything works as
it does for any other; d and c are its measures ``cost`` and ``objective``. With A_d the advantage
of π* for d, which is 0 under π* itself,

    A_d(s, a* + δ) = (2 a* + δ)ᵀR_d δ + γ (2 z* + G δ)ᵀP_d G δ       J_d(π) - D = E Σ γᵏ A_d
"""

from __future__ import annotations

import math
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from numpy.typing import ArrayLike, DTypeLike

from cojax import inputs, linalg, precision, streams
from cojax.distinct import of_another
from cojax.errors import InputError
from cojax.initial import InitialLaw
from cojax.linalg import Symmetric, dot, matvec, quadratic_form
from cojax.memory import as_stated, statement
from cojax.quadratic_gaussian import QuadraticGaussian, Scalar
from cojax.system import next_mean
from cojax.types import Array, Float, Options

MEASURES = ("objective", "cost")  # c and d
LEFT = 1e-6  # γᵀ of what an estimate of J_d leaves out
ROUNDING = 1e-9  # of conditions on matrices in float64


@inputs.guarded
@struct.dataclass(kw_only=True, repr=False)
class Budgeted(QuadraticGaussian):
    """A quadratic system with c and d told apart. Build it with :func:`budget` or
    :func:`energy_budget`; its leaves depend on each other as those of its parent do.

    Attributes:
        multiplier: (), λ.
        P_d: of V_d; None where V_d is not known.
        offset_d: (), V_d in the origin.
        R_d: of d = aᵀR_d a; None where d is a cost of states.
        R_c: R - λ R_d, beside R_d; None for 0.
        estimate: (4,), where V_d is not known: D, the two ends of its interval, and E V*(s_0) of
            the law that it was estimated for.
    """

    rebuilds: ClassVar[bool] = False
    multiplier: Scalar
    P_d: Symmetric | None = None
    offset_d: Scalar
    R_d: Symmetric | None = None
    R_c: Symmetric | None = None
    estimate: Float[Array, "*batch 4"] | None = None

    @property
    def measures(self):
        """c and d."""
        return MEASURES

    @property
    def measures_known(self):
        """Whether V_d is known."""
        return self.P_d is not None

    def measured(self, s, a, optimum):
        """c and d."""
        if self.R_d is not None:
            d, c = quadratic_form(self.R_d, a), quadratic_form(self.Q, s)
            return jnp.stack([c if self.R_c is None else c + quadratic_form(self.R_c, a), d])
        assert self.P_d is not None
        d = quadratic_form(self.P_d, s)
        d = d - self.gamma * quadratic_form(self.P_d, optimum.next_mean)
        return jnp.stack([self.stage_cost(s, a) - self.multiplier * d, d])

    def measured_values(self, s):
        """V_c = V* - λ V_d and V_d; V* and 0 where V_d is not known."""
        V_d = self.offset_d
        if self.P_d is not None:
            V_d = V_d + quadratic_form(self.P_d, s)
        return jnp.stack([self.value(s) - self.multiplier * V_d, V_d])

    def measured_means(self, mean, covariance):
        """E V_c(s_0) and D, which is as it was estimated where V_d is not known."""
        known = self.value(mean) + _trace(self.P, covariance)
        if self.P_d is None:
            assert self.estimate is not None
            D = self.estimate[0]
        else:
            D = quadratic_form(self.P_d, mean) + _trace(self.P_d, covariance) + self.offset_d
        return jnp.stack([known - self.multiplier * D, D])

    def measured_excess(self, s, delta, optimum):
        """A_c = A* - λ A_d and A_d."""
        assert self.P_d is not None
        pushed = self.push(s, delta)
        ahead = matvec(self.P_d, 2.0 * optimum.next_mean + pushed)
        excess = self.gamma * dot(ahead, pushed)
        if self.R_d is not None:
            excess = excess + dot(matvec(self.R_d, 2.0 * optimum.action + delta), delta)
        whole = self.excess_cost(s, delta, optimum)
        return jnp.stack([whole - self.multiplier * excess, excess])


def _trace(A: Symmetric, B: Float[Array, "d d"]) -> Scalar:
    """tr(A B)."""
    return jnp.sum(A * jnp.diagonal(B)) if A.ndim == 1 else jnp.sum(A * B)


# --- on the host ---------------------------------------------------------------------------------


def budget(
    system: QuadraticGaussian,
    multiplier: float,
    kappa: float | None = None,
    *,
    P_d: ArrayLike | None = None,
    dtype: DTypeLike | None = None,
) -> Budgeted:
    """A ``system`` whose cost is split by a cost of states d = sᵀP_d s - γ z*ᵀP_d z* >= 0.

    Args:
        system: of the paper's class, Q ⪰ β P.
        multiplier: λ, in [0, β/κ]; at 0 the budget binds nobody, and c is the system's own cost.
        kappa: κ > 0; by default the smallest with P_d ⪯ κ P, or β where P_d is not given.
        P_d: (d, d), (d,) or a number, between (1-β) κ P and κ P; κ P unless given.
        dtype: of the leaves; that of the system by default.

    The budget is :attr:`cojax.envs.EnvParams.budget`, D = E V_d(s_0): a moment of the initial law.
    Raises InputError, one line, with the number that failed, where a condition does not hold.
    """
    stated = _stated("budget", system, dtype)
    P, d = stated["P"], system.state_dim
    beta = linalg.largest_share(stated["Q"], P)
    if beta <= ROUNDING:
        raise InputError(f"Q: expected βP ⪯ Q with β > 0, got β = {beta:.3g}")
    if kappa is not None:
        kappa = inputs.number("kappa", kappa, 0.0, low_open=True)
    if P_d is None:
        kappa = beta if kappa is None else kappa
        given = kappa * P
    else:
        given = inputs.positive_definite("P_d", P_d, d)
        low, high = linalg.largest_share(given, P), -linalg.largest_share(-given, P)
        kappa = high if kappa is None else kappa
        if high > kappa * (1.0 + ROUNDING):
            raise InputError(f"P_d: expected P_d ⪯ κ P with κ = {kappa:.6g}, got {high:.6g} P")
        least = (1.0 - beta) * kappa
        if low < least * (1.0 - ROUNDING):
            raise InputError(
                f"P_d: expected P_d ⪰ (1-β) κ P with (1-β) κ = {least:.6g}, got {low:.6g} P"
            )
    multiplier = inputs.number("multiplier", multiplier, 0.0)
    if multiplier * kappa > beta * (1.0 + ROUNDING):
        raise InputError(
            f"multiplier: expected λ κ <= β = {beta:.6g}, got {multiplier * kappa:.6g}"
        )
    return known(as_stated(system, stated), multiplier, P_d=given, Sigma=stated["Sigma"])


def known(
    system: QuadraticGaussian,
    multiplier: float,
    *,
    P_d: np.ndarray,
    Sigma: np.ndarray,
    of: type[Budgeted] = Budgeted,
    **leaves: Array | None,
) -> Budgeted:
    """A ``system`` with V_d = sᵀP_d s + γ/(1-γ) tr(P_d Σ), whose conditions were checked:
    ``multiplier`` is λ, ``Sigma`` Σ, ``of`` the class, and ``leaves`` are R_d and R_c.
    """
    gamma, dtype = float(system.gamma), system.gamma.dtype
    power = float(np.sum(linalg.to_full(P_d) * linalg.to_full(Sigma)))
    own: Options = {"multiplier": multiplier, "P_d": P_d, "offset_d": gamma / (1.0 - gamma) * power}
    fields: Options = of_another(system) | {
        name: linalg.to_device(x, dtype) for name, x in own.items()
    }
    fields |= leaves
    return of(**fields)


def energy_budget(
    system: QuadraticGaussian,
    multiplier: float,
    R_d: ArrayLike = 1.0,
    *,
    law: InitialLaw | None = None,
    num_trials: int = 4096,
    root: int = 0,
) -> Budgeted:
    """A ``system`` whose cost is split by an energy d = aᵀR_d a: c = sᵀQ s + aᵀ(R - λ R_d)a.

    Args:
        system: of the paper's class.
        multiplier: λ, with λ R_d ⪯ R.
        R_d: (m, m), (m,) or a number, positive semidefinite.
        law: of s_0, which D is for; the family's unless given.
        num_trials: under π*, from which D is estimated, with a 95% interval (``estimate``).
        root: seed of their streams.

    The identity is exact as ever; D is not, and a violation is known to within that interval.
    Raises InputError, one line, with the number that failed, where c or d may be negative.
    """
    stated = _stated("energy_budget", system)
    R_d = inputs.positive_semidefinite("R_d", R_d, system.action_dim)
    multiplier = inputs.number("multiplier", multiplier, 0.0)
    most = -linalg.largest_share(-R_d, stated["R"])
    if multiplier * most > 1.0 + ROUNDING:
        raise InputError(f"multiplier: expected λ R_d ⪯ R, got {multiplier * most:.6g} R")
    num_trials = inputs.whole("num_trials", num_trials, 2)
    dtype = system.gamma.dtype
    law = system.geometry.initial_law(dtype) if law is None else law
    R_c = linalg.subtract(stated["R"], multiplier * R_d)
    leaves = {n: linalg.to_device(x, dtype) for n, x in (("R_d", R_d), ("R_c", R_c))}
    steps = np.int32(math.ceil(math.log(LEFT) / math.log(stated["gamma"])))
    with precision.x64() if dtype == np.float64 else precision.x32():
        keys = jax.random.split(streams.root_key(root), num_trials)
        sums = np.asarray(_energies(system, law, leaves["R_d"], keys=keys, steps=steps), np.float64)
        expected = _law_mean(system, law)
    half = 1.96 * float(sums.std(ddof=1)) / math.sqrt(num_trials)
    D = float(sums.mean())
    own: Options = {"multiplier": multiplier, "offset_d": 0.0}
    own["estimate"] = np.array([D, D - half, D + half, expected])
    own = {name: linalg.to_device(x, dtype) for name, x in own.items()}
    fields: Options = of_another(system) | own | leaves
    return Budgeted(**fields)


def _law_mean(system: QuadraticGaussian, law: InitialLaw) -> float:
    """E V*(s_0)."""
    mean, covariance = law.moments()
    return float(system.value(mean) + _trace(system.P, covariance))


@jax.jit
@streams.pinned()
def _energies(
    system: QuadraticGaussian, law: InitialLaw, R_d: Array, *, keys: Array, steps: Array
) -> Float[Array, " N"]:
    """Σ_{k<T} γᵏ aᵀR_d a under π*, of a trial for each of ``keys``."""

    def trial(key):
        first, root = jax.random.split(key)

        def body(k, carry):
            s, total, weight = carry
            at = system.optimum(s)
            total = total + weight * quadratic_form(R_d, at.action)
            w = system.sample_noise(s, jax.random.fold_in(root, k), at.action)
            return next_mean(system, s, at.action, at) + w, total, weight * system.gamma

        zero = jnp.zeros((), system.gamma.dtype)
        return jax.lax.fori_loop(0, steps, body, (law.sample(first), zero, zero + 1.0))[1]

    return jax.vmap(trial)(keys)


def _stated(name: str, system: QuadraticGaussian, dtype: DTypeLike | None = None) -> Options:
    """What a plain system was built of; raises InputError for another."""
    stated = statement(name, system, dtype)
    if type(system) is not QuadraticGaussian:
        kind = type(system).__name__
        raise InputError(f"{name}: expected no system of a class of its own, got {kind}")
    return stated
