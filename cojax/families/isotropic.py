"""Isotropic: a nonlinear system whose whole Pareto front of two costs is known.

    s' = r S(s) s + p G(s) a + w,  s = [x_1, …, x_n],  m = n     S, G orthogonal, Cov w of trace τ
    J_c = E Σ γᵏ q |s_k|²     J_d = E Σ γᵏ |a_k|²     to minimise: J_c + λ J_d, or J_c with J_d <= D

For every λ > 0 the optimum is a* = -K r Gᵀ S s (the length of a state is all that costs, and G
turns an action wherever it is wanted), with

    κ = q + γ r² κ λ/(λ + γp²κ)     K = γpκ/(λ + γp²κ)     V* = κ |s|² + γ/(1-γ) κ τ

and every gain K with γ r²(1-pK)² < 1, optimal or not, costs

    X(K) = (E|s_0|² + γτ/(1-γ))/(1 - γr²(1-pK)²)     J_c = q X     J_d = K²r² X

so that λ ↦ (J_d, J_c) is the front, K from 1/p (λ → 0) down to max(0, (γr²-1)/(γpr²)) (λ → ∞), and
λ = γpκ(1-pK)/K, κ = q/(1 - γr²(1-pK)). It is the construction of :mod:`cojax.quadratic_gaussian`
with P = κI, Q = qI, R = λI, which has r² = (κ-q)(1/(γκ) + p²/λ). T_t turns the pairs
(x_i, x_{i+h}), h = n/2 or (n-1)/2, by the angles 2 arctan t_i, without a sine, and C is a cyclic
shift by one:

    G(s) = T_t,  t_i = twist (1 + 2 x_i - x_{i+h})
    S(s) = T_u C T_v,  v_i = swirl (1 + x_i + 2 x_{i+h}),  u_i the same of C s

This family is no one of the paper's; the split of a cost is that of :mod:`cojax.budgets`.
"""

from __future__ import annotations

import dataclasses
import math
from typing import ClassVar

import jax.numpy as jnp
import numpy as np
from flax import struct
from jax.typing import ArrayLike, DTypeLike

from cojax import budgets, inputs, linalg, quadratic
from cojax.errors import InputError
from cojax.geometry import Knob
from cojax.initial import InitialLaw, Uniform
from cojax.inverse_sqrt import ConstantInverseSqrt
from cojax.quadratic import Geometry, QuadraticGaussian
from cojax.types import Array, Float, Option

PLAIN = {"limit": None, "state_noise": 0.0, "action_noise": 0.0, "P_hat": None, "Q_hat": None}
PLAIN |= {"R_hat": None, "noise_cost": None}


@struct.dataclass
class Isotropic(Geometry):
    """Geometry of the isotropic family; states and actions have no units.

    Attributes:
        swirl: gain of the turns of S.
        twist: of those of G.
        n: states, and actions.
    """

    swirl: Knob = 0.7
    twist: Knob = 0.6
    n: int = struct.field(pytree_node=False, default=2)

    family = "Isotropic"
    dimensions = ("n",)
    gains = ("swirl", "twist")
    horizon = 200
    action_limit = None
    ranges: ClassVar = {
        **Geometry.ranges,
        "swirl": {"uniform": [0.3, 1.0]},
        "twist": {"uniform": [0.3, 1.0]},
        "R": {"log_uniform": [0.3, 3.0]},
    }
    constant_input = False
    one_row_each = False

    @property
    def state_dim(self):
        """n."""
        return self.n

    @property
    def action_dim(self):
        """n."""
        return self.n

    def _twists(self, s: Float[Array, "n"]) -> Float[Array, "h"]:
        """t."""
        x, y = _pairs(s)
        return self.twist * (1.0 + 2.0 * x - y)

    def _swirls(self, s: Float[Array, "n"]) -> Float[Array, "h"]:
        """v."""
        x, y = _pairs(s)
        return self.swirl * (1.0 + x + 2.0 * y)

    def actuate(self, s, a):
        """G(s) a."""
        return _turned(a, self._twists(s))

    def actuate_transpose(self, s, v):
        """G(s)ᵀ v."""
        return _turned(v, -self._twists(s))

    def rotate(self, s, x, p):
        """S(s) x."""
        shifted = jnp.roll(_turned(x, self._swirls(s)), 1)
        return _turned(shifted, self._swirls(jnp.roll(s, 1)))

    def input_norm(self):
        """|G|₂ = 1."""
        return 1.0

    def largest_input(self, dtype):
        """1, in every entry."""
        return jnp.ones((self.n, self.n), dtype)

    def noise_order(self):
        """All rows."""
        return tuple(range(self.n))

    def initial_law(self, dtype=None):
        """x_i ~ U(-1, 1)."""
        high = jnp.asarray(np.ones(self.n), dtype)
        return Uniform(low=-high, high=high)

    @classmethod
    def defaults(cls, **given):
        """γ = 0.95, noise of variance 0.01, and R = I."""
        return {"gamma": 0.95, "Sigma": 0.01, "p": 0.9}

    @classmethod
    def build(
        cls,
        n: int = 2,
        p: float = 0.9,
        *,
        r: float = 1.0,
        multiplier: float | None = None,
        budget: float | None = None,
        gamma: float = 0.95,
        Sigma: ArrayLike = 0.01,
        swirl: float = 0.7,
        twist: float = 0.6,
        start: InitialLaw | None = None,
        dtype: DTypeLike | None = None,
    ) -> IsotropicGaussian:
        """Build the system with q = 1, at one point of its front. Only where it is optimal depends
        on that point: the dynamics are the same for all.

        Args:
            n: states and actions.
            p: control strength in (0, 1].
            r: how a state grows that is left alone, > 0.
            multiplier: λ > 0, by default 1.
            budget: D in its place: λ is then the one at which π* spends it.
            gamma: discount in (0, 1).
            Sigma: noise covariance.
            swirl, twist: gains of the turns of S and G.
            start: the law of s_0 that the budget is for; by default x_i ~ U(-1, 1).
            dtype: float32 or float64; by default what JAX computes in.

        Raises ValueError, one line, for anything unusable, and for a budget that no policy keeps or
        that the least J_c leaves unspent, with these ends. The family is not one of the paper's.
        """
        n, gamma = inputs.whole("n", n, 1), inputs.discount("gamma", gamma)
        p, r = (
            inputs.number("p", p, 0.0, 1.0, low_open=True),
            inputs.number("r", r, 0.0, low_open=True),
        )
        knobs = {k: cls.checked(k, v) for k, v in (("swirl", swirl), ("twist", twist))}
        geometry = cls(**knobs, n=n)
        Sigma = inputs.positive_semidefinite("Sigma", np.asarray(Sigma), n)
        if budget is not None:
            if multiplier is not None:
                raise InputError("multiplier: expected none where a budget is given")
            law = geometry.initial_law(dtype) if start is None else start
            front = Front(
                r, p, gamma, 1.0, second_moment(law), float(linalg.to_full(Sigma).trace())
            )
            multiplier = front.multiplier(front.gain_for(budget))
        multiplier = 1.0 if multiplier is None else multiplier
        multiplier = inputs.number("multiplier", multiplier, 0.0, low_open=True)
        kappa = Front(r, p, gamma, 1.0).curvature(multiplier)
        return geometry.assemble(
            P=kappa, Q=1.0, R=multiplier, gamma=gamma, p=p, Sigma=Sigma, dtype=dtype
        )  # pyright: ignore[reportReturnType]

    def assemble(self, **options: Option) -> QuadraticGaussian:
        """The system of this geometry with its front, where P, Q and R are multiples of I and
        nothing else is asked for than noise; else that of :func:`cojax.quadratic.build`.
        """
        built = quadratic.build(self, **options)
        given = {name: options.get(name, usual) for name, usual in PLAIN.items()}
        same = all(np.array_equal(x, PLAIN[k]) if PLAIN[k] is not None else x is None
                   for k, x in given.items())  # fmt: skip
        P, Q = (inputs.symmetric(k, options[k], self.n) for k in ("P", "Q"))
        R = inputs.symmetric("R", options["R"], self.n)
        if not same or any(A.ndim > 1 or np.ptp(A) for A in (P, Q, R)):
            return built
        kappa, q, multiplier = P[0], Q[0], R[0]
        gamma, p = float(options["gamma"]), float(options["p"])
        M = 1.0 / (gamma * kappa) + p**2 / multiplier
        r, K = math.sqrt((kappa - q) * M), p / (M * multiplier)
        e = (K * r) ** 2 / (1.0 - gamma * (r * (1.0 - p * K)) ** 2)
        dtype = built.gamma.dtype
        root = ConstantInverseSqrt(matrix=linalg.to_device(np.full(self.n, M**-0.5), dtype))
        Sigma = inputs.symmetric("Sigma", options["Sigma"], self.n)
        return budgets.known(
            inputs.swapped(built, inverse_sqrt=root),
            multiplier,
            P_d=np.full(self.n, e),
            Sigma=Sigma,
            of=IsotropicGaussian,
            R_d=linalg.to_device(np.ones(self.n), dtype),
        )  # fmt: skip


def _pairs(x: Float[Array, "n"]) -> tuple[Float[Array, "h"], Float[Array, "h"]]:
    """The first halves of all pairs, and the second."""
    half = x.shape[0] // 2
    return x[:half], x[half : 2 * half]


def _turned(x: Float[Array, "n"], t: Float[Array, "h"]) -> Float[Array, "n"]:
    """T x: cos 2 arctan t = (1 - t²)/(1 + t²) and sin 2 arctan t = 2t/(1 + t²)."""
    u, v = _pairs(x)
    scale = 2.0 / (1.0 + t * t)
    return jnp.concatenate(
        [u - scale * t * (t * u + v), v + scale * t * (u - t * v), x[2 * u.shape[0] :]]
    )


@inputs.guarded
@struct.dataclass(kw_only=True, repr=False)
class IsotropicGaussian(budgets.Budgeted):
    """A system of the isotropic family, with its front. Build it with :meth:`Isotropic.build`."""

    rebuilds: ClassVar[bool] = True

    @property
    def constant_curvature(self):
        """Yes: B = (λ + γp²κ) I."""
        return True

    def front(self, law: InitialLaw) -> Front:
        """The front for s_0 of a ``law``. Raises InputError where its moments are not known."""
        kappa, q, multiplier, gamma, p = (
            float(np.ravel(x)[0]) for x in (self.P, self.Q, self.R, self.gamma, self.p)
        )
        r = math.sqrt((kappa - q) * (1.0 / (gamma * kappa) + p**2 / multiplier))
        return Front(r, p, gamma, q, second_moment(law), _power(self))


def _power(system: QuadraticGaussian) -> float:
    """tr Σ."""
    covariance = np.asarray(system.noise.covariance(), np.float64)
    return float(covariance.sum() if covariance.ndim == 1 else np.trace(covariance))


def second_moment(law: InitialLaw) -> float:
    """E |s_0|²; raises InputError where it is not known."""
    mean, covariance = (np.asarray(x, np.float64) for x in law.moments())
    return float(mean @ mean + np.trace(covariance))


@dataclasses.dataclass(frozen=True)
class Front:
    """The Pareto front of an isotropic system, in float64 on the host.

    Attributes:
        r, p, gamma, q: of the system.
        start: E |s_0|².
        power: τ.
    """

    r: float
    p: float
    gamma: float
    q: float = 1.0
    start: float = 1.0
    power: float = 0.0

    @property
    def least_gain(self) -> float:
        """K as λ → ∞."""
        square = self.gamma * self.r**2
        return max(0.0, (square - 1.0) / (square * self.p))

    @property
    def least_budget(self) -> float:
        """J_d as λ → ∞: no policy spends less, nor as little."""
        return self.at(self.least_gain)[1] if self.least_gain else 0.0

    @property
    def largest_budget(self) -> float:
        """J_d as λ → 0: what the least J_c spends, and a larger budget leaves unspent."""
        return self.at(1.0 / self.p)[1]

    def curvature(self, multiplier: float) -> float:
        """κ of λ > 0."""
        gain, square = self.gamma * self.p**2, self.gamma * self.r**2
        half = 0.5 * (self.q * gain + multiplier * (square - 1.0))
        return (half + math.sqrt(half**2 + gain * self.q * multiplier)) / gain

    def gain(self, multiplier: float) -> float:
        """K of λ > 0."""
        kappa = self.curvature(multiplier)
        return self.gamma * self.p * kappa / (multiplier + self.gamma * self.p**2 * kappa)

    def multiplier(self, gain: float) -> float:
        """λ of K: infinite at the least gain and below, where nothing is optimal."""
        left = 1.0 - self.p * gain
        rest = 1.0 - self.gamma * self.r**2 * left
        if rest <= 0.0 or gain <= 0.0:
            return math.inf
        return self.gamma * self.p * self.q * left / (gain * rest)

    def at(self, gain: float) -> tuple[float, float]:
        """(J_c, J_d) of a gain K, optimal or not; both infinite where its loop is not bounded."""
        rest = 1.0 - self.gamma * (self.r * (1.0 - self.p * gain)) ** 2
        if rest <= 0.0:
            return math.inf, math.inf
        X = (self.start + self.gamma * self.power / (1.0 - self.gamma)) / rest
        return self.q * X, (gain * self.r) ** 2 * X

    def gain_for(self, budget: float) -> float:
        """K of which J_d is the ``budget``. Raises InputError, with the ends, outside of them."""
        budget = inputs.number("budget", budget, 0.0)
        low, high = self.least_budget, self.largest_budget
        if not budget > low:
            raise InputError(
                f"budget: expected more than {low:.6g}, which no policy keeps, got {budget:.6g}"
            )
        if not budget < high:
            raise InputError(
                f"budget: expected less than {high:.6g}, which least J_c needs, got {budget:.6g}"
            )
        square = self.gamma * self.r**2
        weight = self.start + self.gamma * self.power / (1.0 - self.gamma)
        a, half = self.r**2 * weight + budget * square * self.p**2, budget * square * self.p
        return (half + math.sqrt(half**2 - a * budget * (square - 1.0))) / a

    def objective(self, budget: float) -> float:
        """J_c* of a ``budget``, the least J_c with J_d <= budget: ∞ where no policy keeps it."""
        if not budget > self.least_budget:
            return math.inf
        slack = not budget < self.largest_budget
        return self.at(1.0 / self.p if slack else self.gain_for(budget))[0]

    def slope(self, budget: float) -> float:
        """-dJ_c*/dD = λ; 0 where the budget is not spent, ∞ where no policy keeps it."""
        if not budget > self.least_budget:
            return math.inf
        return 0.0 if not budget < self.largest_budget else self.multiplier(self.gain_for(budget))

    def curve(self, num: int = 200) -> tuple[Float[np.ndarray, " N"], Float[np.ndarray, " N"]]:
        """(J_d, J_c) at ``num`` gains between the ends."""
        low, high = self.least_gain, 1.0 / self.p
        gains = low + (high - low) * np.geomspace(1e-3, 1.0, num)
        J = np.array([self.at(K) for K in gains])
        return J[:, 1], J[:, 0]
