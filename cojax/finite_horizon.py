"""Systems with a last step T, x = (s, τ), the step k observed as τ: V* and π* change with k.

    s' = f_k(s) + p g(s) a + w     τ = k/N, N = 2^⌈log₂ T⌉     V*_k = sᵀP_k s + b_k,  b_T = 0
    b_k = γ (tr P_{k+1} Σ + b_{k+1})     M_k = (P_{k+1}⁻¹ + γ p² g R⁻¹ gᵀ)/γ

Any P_k ≻ 0 will do: no Riccati equation is solved, and γ = 1 is allowed. Step k is the system of
:mod:`cojax.quadratic_gaussian` with P_k, Q_k and the look-ahead P̂ = P_{k+1}, since there only

    f_k = M_k y     a* = -p R⁻¹gᵀy     yᵀM_k y = |u_k|² = sᵀ(P_k - Q_k)s,  u_k = S(P_k - Q_k)^{1/2}s

are used, so that y may be any vector of that length. Where all P_k are one, y = M^{-1/2} u. Else
its direction is that of M^{-1/2} u_k with the M of the system as it was built, and its length is
what step k has to spend: one root serves all steps. N is a power of two, so that τ is exact in
every precision.

After step T what is left is settled: s costs sᵀP_T s + aᵀR a, and the next state is the origin, for
ever, without noise. So V* is the optimal value of a problem without end: the cost of an episode of
T steps with ``terminal_value="optimal"``, at whose end V*_T is charged, is that of one of T + 1
steps, if the policy does nothing in the last.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from numpy.typing import ArrayLike, DTypeLike

from cojax import inputs, linalg
from cojax.errors import InputError
from cojax.initial import Fixed, InitialLaw
from cojax.inverse_sqrt import InverseSqrt, Vector
from cojax.labels import Labels
from cojax.linalg import Symmetric, dot, matvec, quadratic_form
from cojax.memory import Remembering, as_stated, assembled, statement
from cojax.quadratic_gaussian import QuadraticGaussian
from cojax.system import Optimum, next_mean
from cojax.types import Array, Float, Int, Options

MAX_STEPS = 2**16  # far below 2²⁴, which a float32 counts to


@struct.dataclass
class Stretched(InverseSqrt):
    """y with yᵀ(A + D) y = |u|², along what another root gives.

    Attributes:
        base: that root.
        A: the constant part of M.
    """

    base: InverseSqrt
    A: Symmetric
    name = "stretched"

    def __call__(self, D: Callable[[Vector], Vector], u: Vector) -> Vector:
        """The root of ``base`` at u, scaled by |u|/sqrt(yᵀM y); ``D`` is v ↦ D v."""
        y = self.base(D, u)
        energy, spent = dot(u, u), dot(y, matvec(self.A, y) + D(y))
        some = (energy > 0.0) & (spent > 0.0)
        return y * jnp.sqrt(jnp.where(some, energy, 1.0) / jnp.where(some, spent, 1.0))


class Stepped(Remembering):
    """x = (s, τ) of a system whose leaves may change from step to step. Methods are of one state
    x, action a or deviation ``delta`` = a - a* (m,), and ``key``; bounds of a ``radius`` of the
    guard, states |x_i| <= ``start`` and actions within ``limit``.

    Attributes:
        b: (T+1,), b_k.
        steps: leaves of the system that change, by name, (T, ...) each, P (T+1, ...).
    """

    b: Float[Array, "*batch K"]
    steps: dict[str, Array]

    @property
    def horizon(self) -> int:
        """T."""
        return self.b.shape[-1] - 1

    @property
    def state_dim(self):
        """d + 1."""
        return self.inner.state_dim + 1

    @property
    def constrained(self):
        """As the system that is stepped."""
        return self.inner.constrained

    def feasible(self, a):
        """As of the system that is stepped."""
        return self.inner.feasible(a)

    def feasible_box(self):
        """As of the system that is stepped."""
        return self.inner.feasible_box()

    def downhill(self, mean, rms):
        """As of the system that is stepped, from ``mean`` and ``rms`` of gradients."""
        return self.inner.downhill(mean, rms)

    def split(self, x: Float[Array, "n"]) -> tuple[Float[Array, "d"], Int[Array, ""]]:
        """s and k."""
        k = jnp.round(x[-1] * grid(self.horizon)).astype(jnp.int32)
        return x[:-1], jnp.clip(k, 0, self.horizon)

    def joined(self, s: Float[Array, "d"], k: Int[Array, ""]) -> Float[Array, "n"]:
        """x of s and k."""
        return jnp.concatenate([s, (k.astype(s.dtype) * (1.0 / grid(self.horizon)))[None]])

    def at(self, k: Int[Array, ""]) -> QuadraticGaussian:
        """The system of step k; at T that of T - 1 with V*_T."""
        before = jnp.minimum(k, self.horizon - 1)
        own: Options = {n: x[k if n == "P" else before] for n, x in self.steps.items()}
        if "M0" in own:
            own["inverse_sqrt"] = Stretched(self.inner.inverse_sqrt, own["M0"])
        return inputs.swapped(self.inner, offset=self.b[k], **own)

    def initial_memory(self) -> InitialLaw:
        """Step 0."""
        return Fixed(jnp.zeros(1, self.gamma.dtype))

    def project(self, s):
        """At the nearest step."""
        return self.joined(*self.split(s))

    def size(self, s):
        """sᵀP_k s."""
        s, k = self.split(s)
        return quadratic_form(self.at(k).P, s)

    @property
    def noise_power(self):
        """max_k (b_k/γ - b_{k+1})."""
        gamma = self.gamma[..., None]
        return jnp.max(self.b[..., :-1] / gamma - self.b[..., 1:], axis=-1)

    def least_cost(self, s):
        """sᵀQ_k s, sᵀP_T s after the last step."""
        s, k = self.split(s)
        at = self.at(k)
        return jnp.where(k < self.horizon, *(quadratic_form(x, s) for x in (at.Q, at.P)))

    def labels(self) -> Labels:
        """Those of the family, and the step."""
        states, actions = self.inner.geometry.labels()
        return [*states, f"step / {grid(self.horizon)} [-]"], actions

    def optimum(self, s):
        """That of the step; 0 after the last."""
        s, k = self.split(s)
        following = jnp.minimum(k + 1, self.horizon)
        at = jax.tree.map(lambda x: jnp.where(k < self.horizon, x, 0.0), self.at(k).optimum(s))
        drift, mean = (self.joined(x, following) for x in (at.drift, at.next_mean))
        return Optimum(drift, at.action, mean)

    def actuate(self, s, a):
        """(p g(s) a, 0)."""
        s, k = self.split(s)
        pushed = jnp.where(k < self.horizon, self.inner.actuate(s, a), 0.0)
        return jnp.concatenate([pushed, jnp.zeros(1, pushed.dtype)])

    def stage_cost(self, s, a):
        """c = sᵀQ_k s + aᵀR a, sᵀP_T s + aᵀR a after the last step."""
        s, k = self.split(s)
        at = self.at(k)
        charged = jnp.where(k < self.horizon, *(quadratic_form(x, s) for x in (at.Q, at.P)))
        return charged + quadratic_form(at.R, a)

    def value(self, s):
        """V* = sᵀP_k s + b_k."""
        s, k = self.split(s)
        return self.at(k).value(s)

    def expected_value(self, s, z, a=None):
        """zᵀP̂ z + κ + b_{k+1}, P̂ = P_{k+1}; zᵀP_T z after the last step."""
        z, (_, k) = z[:-1], self.split(s)
        at = self.at(k)
        return jnp.where(k < self.horizon, at.expected_value(z, z), quadratic_form(at.P, z))

    def excess_cost(self, s, delta, optimum=None):
        """A* = |δ|²_R + γ p² |g δ|²_P̂, and what a limit adds; |δ|²_R after the last step."""
        s, k = self.split(s)
        at = self.at(k)
        if optimum is not None:
            parts = (optimum.drift[:-1], optimum.action, optimum.next_mean[:-1])
            optimum = Optimum(*parts)
        excess = at.excess_cost(s, delta, optimum)
        return jnp.where(k < self.horizon, excess, quadratic_form(at.R, delta))

    def noise_price(self, s, a):
        """γ (E V*(z + w) - V*(z)), or what a class has for E V*."""
        z = next_mean(self, s, a, self.optimum(s))
        return self.gamma * (self.expected_value(s, z, a) - self.value(z))

    def state_bound(self, radius):
        """The largest of all steps; 1 for τ."""
        every = jnp.arange(self.horizon + 1 if self.steps else 1)
        bounds = jax.vmap(lambda k: self.at(k).state_bound(radius))(every).max(axis=0)
        return jnp.concatenate([bounds, jnp.ones(1, bounds.dtype)])

    def reach(self, radius, start, limit):
        """The largest of all steps; 1 for τ."""
        every = jnp.arange(self.horizon if self.steps else 1)
        following = jax.vmap(lambda k: self.at(k).reach(radius, start[:-1], limit))(every)
        following = following.max(axis=0)
        return jnp.concatenate([following, jnp.ones(1, following.dtype)])

    def sample_noise(self, s, key, a=None):
        """w; 0 for τ and after the last step."""
        s, k = self.split(s)
        w = jnp.where(k < self.horizon, self.inner.sample_noise(s, key), 0.0)
        return jnp.concatenate([w, jnp.zeros(1, w.dtype)])


@inputs.guarded
@struct.dataclass
class FiniteHorizon(Stepped):
    """A system with a last step. Build it with :func:`finite_horizon`.

    Attributes:
        parts: the system that is stepped, alone.
        gamma: (), discount, 1 allowed.
        offset: (), 0, the least b_k.
        b: (T+1,), b_k.
        steps: what changes from step to step: see :class:`Stepped`.
    """

    parts: tuple[QuadraticGaussian, ...]
    gamma: Float[Array, "*batch"]
    offset: Float[Array, "*batch"]
    b: Float[Array, "*batch K"]
    steps: dict[str, Array]
    origin: dataclasses.InitVar[object] = dataclasses.field(default=None, kw_only=True)

    def __post_init__(self, origin: object) -> None:
        """Refuse replacement; raises InputError."""
        self._refuse(origin, "cojax.finite_horizon.finite_horizon")


# --- on the host ---------------------------------------------------------------------------------


def finite_horizon(
    system: QuadraticGaussian,
    P_k: ArrayLike | None = None,
    *,
    T: int | None = None,
    terminal: ArrayLike | None = None,
    Q_k: ArrayLike | None = None,
    gamma: float | None = None,
    dtype: DTypeLike | None = None,
) -> FiniteHorizon:
    """A ``system`` of any family, with its limit of actions where it has one, that ends at step T.

    Args:
        system: of the paper's class, or that with a limit.
        P_k: of the values, P_0 … P_T, each in the forms of :func:`cojax.quadratic.build`; the
            system's P in all steps unless given.
        T: steps; as many as ``P_k`` says where it is given.
        terminal: P_T; the last ``P_k`` unless given.
        Q_k: of the costs, Q_0 … Q_{T-1} with 0 ⪯ Q_k ⪯ P_k; the system's in all steps unless given.
        gamma: discount, in (0, 1]; the system's unless given.
        dtype: of the leaves; by default that of the system.

    With one P and Q for all steps f, a* and A* are those of the system to the bit.
    Raises InputError, one line, for matrices that are not as stated, an unknown T, kinematics,
    actuators and noise of its own class.
    """
    name = "finite_horizon"
    stated = limited(name, system, dtype)
    d = system.state_dim
    if P_k is None and T is None:
        raise InputError("T: expected the number of steps, or P_k for each, got neither")
    if P_k is None:
        T = length(T)
        given = [stated["P"]] * (T + 1)
    else:
        given = _sequence("P_k", P_k, None if T is None else length(T) + 1)
        T = length(len(given) - 1)
    given = given if terminal is None else [*given[:-1], terminal]
    charged = [stated["Q"]] * T if Q_k is None else _sequence("Q_k", Q_k, T)
    P = [inputs.positive_definite(f"P_k[{k}]", x, d) for k, x in enumerate(given)]
    Q = [inputs.positive_semidefinite(f"Q_k[{k}]", x, d) for k, x in enumerate(charged)]
    energy = [inputs.above(f"Q_k[{k}]", *pair) for k, pair in enumerate(zip(P, Q, strict=False))]
    inner = undiscounted(stated, system, gamma)
    kind, discount = np.dtype(stated["dtype"]), float(inner.gamma)
    pairs = [*((x, stated["P"]) for x in P), *((x, stated["Q"]) for x in Q)]
    Sigma = linalg.to_full(stated["Sigma"])
    steps: dict[str, list[np.ndarray]] = {}
    if not all(_equal(x, y, kind) for x, y in pairs):
        steps = {"P": P, "P_hat": P[1:], "M0": [linalg.inverse_spd(x) / discount for x in P[1:]]}
        steps |= {"Q": Q, "P_minus_Q": energy, "sqrt_P_minus_Q": list(map(linalg.sqrt_psd, energy))}
    priced = [float(np.sum(linalg.to_full(x) * Sigma)) for x in P[1:]]
    return FiniteHorizon(
        parts=(inner,),
        gamma=inner.gamma,
        offset=linalg.to_device(0.0, kind),
        b=linalg.to_device(summed(priced, discount), kind),
        steps={n: linalg.to_device(stacked(x), kind) for n, x in steps.items()},
    )


def grid(T: int) -> int:
    """N, the least power of two that is at least T."""
    return 1 << (T - 1).bit_length()


def length(T: object) -> int:
    """T, a whole number of steps that τ in float32 can tell apart; raises InputError."""
    T = inputs.whole("T", T, 1)
    if T > MAX_STEPS:
        raise InputError(f"T: expected at most {MAX_STEPS} steps, got {T}")
    return T


def limited(name: str, system: QuadraticGaussian, dtype: DTypeLike | None = None) -> Options:
    """What a plain ``system`` was built of, its limit, and the ``dtype`` of what is made of them;
    raises InputError for one that the function called ``name`` cannot take.
    """
    limit = getattr(system, "limit", None)
    plain = system if limit is None else inputs.swapped(system, limit=None)
    stated = statement(name, plain, dtype)
    if type(system) is not QuadraticGaussian:
        kind = type(system).__name__
        raise InputError(f"{name}: expected a drift that is free in every row, got {kind}")
    host = jax.tree.map(lambda x: np.asarray(x, np.float64), limit)
    return stated | {"limit": host}


def undiscounted(
    stated: Options, system: QuadraticGaussian, gamma: float | None, **hats: ArrayLike
) -> QuadraticGaussian:
    """``system``, which is as ``stated``, with another γ, ``gamma``, 1 allowed, and ``hats``;
    itself where nothing is other. What the noise costs is not in it.
    """
    gamma = stated["gamma"] if gamma is None else inputs.discount("gamma", gamma, one=True)
    same = float(np.asarray(gamma, system.gamma.dtype)) == stated["gamma"]
    if same and not hats:
        return as_stated(system, stated)
    gamma = stated["gamma"] if same else gamma
    return assembled(stated | {"gamma": gamma, "noise_cost": 0.0, **hats})


def between(start: ArrayLike, end: ArrayLike, T: int, bend: float) -> list[np.ndarray]:
    """P_k = P_0 + (k/T)^bend (P_T - P_0) from ``start`` to ``end``, for a ``bend`` > 0."""
    P, ends = linalg.to_full(np.asarray(start, np.float64)), linalg.to_full(np.asarray(end))
    bend = inputs.number("bend", bend, 0.0, low_open=True)
    return [P + (k / T) ** bend * (ends - P) for k in range(T + 1)]


def summed(priced: list[float], gamma: float) -> np.ndarray:
    """b_k = γ (κ_{k+1} + b_{k+1}), (T+1,), of what the noise costs at each step, ``priced``,
    at a discount ``gamma``.
    """
    b = np.zeros(len(priced) + 1)
    for k in range(len(priced) - 1, -1, -1):
        b[k] = gamma * (priced[k] + b[k + 1])
    return b


def stacked(matrices: list[np.ndarray]) -> np.ndarray:
    """Symmetric matrices (K, d), or (K, d, d) where one is full."""
    full = any(x.ndim > 1 for x in matrices)
    return np.stack([linalg.to_full(x) if full else x for x in matrices])


def _sequence(name: str, values: object, num: int | None) -> list[object]:
    """A list of matrices, ``num`` of them where that is known."""
    if not isinstance(values, list | tuple | np.ndarray | jax.Array):
        raise InputError(f"{name}: expected a matrix for each step, got {values!r}")
    found = list(values) if getattr(values, "ndim", 1) else []
    expected = "at least 2" if num is None else f"{num}"
    if len(found) < 2 if num is None else len(found) != num:
        raise InputError(f"{name}: expected {expected} matrices, got {len(found)}")
    return found


def _equal(x: np.ndarray, y: np.ndarray, dtype: np.dtype) -> bool:
    """Whether two matrices are one in leaves of a ``dtype``."""
    return np.array_equal(linalg.to_full(x).astype(dtype), linalg.to_full(y).astype(dtype))
