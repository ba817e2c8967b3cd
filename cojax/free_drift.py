"""Systems whose drift is given, as physics has it, and whose actions may be a finite set.

    s' = f(s) + p g a + w,  Cov w = Σ      c = q(s) + aᵀR a      V* = sᵀP s + b
    q(s) = sᵀP s - min_a [aᵀR a + γ |f(s) + p g a|²_P]           b = γ/(1-γ) tr(P Σ)

The cost of states pays for the drift, where :mod:`cojax.quadratic` chooses the drift for a cost
that is given. With B = R + γ p² gᵀP g, h = γ p gᵀP f and a constant g the bracket is
γ fᵀP f + 2 hᵀa + aᵀB a, so that

    a in ℝᵐ:           a* = -B⁻¹h,      q = sᵀP s - fᵀH f,  H = (P⁻¹/γ + p² g R⁻¹gᵀ)⁻¹
    a of a list of k:  a* by comparing  2 hᵀa_j + a_jᵀB a_j, 0 among the a_j
    A*(s, a* + δ) = δᵀB δ + 2 δᵀ(B a* + h),  whose second term is 0 in ℝᵐ

V* is optimal, and the optimal loop bounded, where q >= β sᵀP s with β > 0 in all states: where
fᵀH f <= (1-β) sᵀP s in ℝᵐ, also for an f that falls over by itself; and for a list where
γ fᵀP f <= (1-β) sᵀP s, which is enough everywhere and without which no list would do near the
origin, where its other actions are too large. A drift f(s) = A(s) s with A(s) in the convex hull
of known matrices meets this where the corners do, since the left sides are convex in A: that is a
proof. For another drift it is looked for in a box of states, and the system says "sampled".
"""

from __future__ import annotations

import abc
import dataclasses
from functools import partial
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from numpy.typing import ArrayLike, DTypeLike

from cojax import action_lists, inputs, linalg, precision
from cojax.drift_share import HULL, left
from cojax.errors import InputError
from cojax.geometry import BASE, Family
from cojax.io.described import About, described, number
from cojax.linalg import Symmetric, matvec, product, quadratic_form
from cojax.noise import Noise, white
from cojax.noise_laws import NORMAL, Law
from cojax.system import Optimum, System
from cojax.types import Array, Float, Option

LEAST = 1e-3  # β, unless stated


class DriftFamily(Family):
    """A page on a family of given drifts. Beside what every family says: :meth:`drift`, and
    :meth:`hull` where there is one. g does not depend on the state, and nothing is turned.
    """

    constant_input = True
    one_row_each = False

    @abc.abstractmethod
    def drift(self, s: Float[Array, "d"]) -> Float[Array, "d"]:
        """f(s), of a state s (d,); f(0) = 0."""

    def hull(self) -> Float[np.ndarray, "k d d"] | None:
        """Matrices A_1 … A_k, on the host, such that f(s) = A s with A in their convex hull at
        every state; None where none are known.
        """
        return None

    def domain(self) -> Float[np.ndarray, "d"]:
        """Where a drift without a hull is looked at: |s_i| <= domain_i; unless stated, three times
        what the initial law draws.
        """
        bound = np.asarray(self.initial_law(np.float32).bound(), np.float64)
        return np.broadcast_to(3.0 * bound, (self.state_dim,))

    def value_matrix(
        self, R: np.ndarray, *, gamma: float, p: float, finite: bool
    ) -> Float[np.ndarray, "d d"] | float:
        """P where none is given, at R (m, m) or (m,), gamma and p, for a ``finite`` set of actions
        or all.
        """
        return 1.0

    def rotate(self, s, x, p):
        """x: a drift that is given has no rotation."""
        return x

    def input_matrix(self) -> Float[np.ndarray, "d m"]:
        """g, without p, on the host."""
        with precision.x64():
            s, eye = jnp.zeros(self.state_dim), jnp.eye(self.action_dim)
            return np.asarray(jax.vmap(lambda a: self.actuate(s, a))(eye)).T

    def input_norm(self):
        """|g|₂."""
        return float(np.linalg.norm(self.input_matrix(), 2))

    @classmethod
    def arguments(cls):
        """Knobs, dimensions, and the arguments of :func:`build`."""
        base = (name for name in BASE if name != "Q")
        return (*cls.fields(), *base, "Sigma", "actions", "beta", "law", "dtype")

    @classmethod
    def completed(cls, **options):
        """As for every family, but that P is the family's own where it is not given; there is no
        Q. Raises InputError, one line.
        """
        rest = super().completed(**options)
        if options.get("P") is None:
            geometry = cls(**{name: rest[name] for name in cls.fields()})
            R = inputs.positive_definite("R", rest["R"], geometry.action_dim)
            finite = options.get("actions") is not None
            rest["P"] = geometry.value_matrix(R, gamma=rest["gamma"], p=rest["p"], finite=finite)
        return {name: value for name, value in rest.items() if name not in ("Q", "share")}

    @classmethod
    def build(cls, *args: Option, **options: Option) -> FreeDrift:
        """Build a system of the family; what is not given is as ``defaults`` says.

        Args:
            args: the dimensions and the control strength p, in this order.
            options: those by name, knobs, and P, R, gamma, Sigma, actions, beta, law and dtype: see
                :func:`build`.

        Raises InputError, one line, for anything unusable.
        """
        names = (*cls.dimensions, "p")
        if len(args) > len(names):
            expected = f"at most {', '.join(names)} without a name, got {len(args)} values"
            raise InputError(f"{cls.family}.build: expected {expected}")
        rest = cls.completed(**dict(zip(names, args, strict=False)) | options)
        return build(cls(**{name: rest.pop(name) for name in cls.fields()}), **rest)


def _about(system: FreeDrift) -> About:
    """What a system shows of itself."""
    listed = "of all" if system.actions is None else f"{np.shape(system.actions)[-2]} listed"
    facts = {
        "states": system.state_dim,
        "actions": f"{system.action_dim}, {listed}",
        "gamma": number(system.gamma),
        "p": number(system.p),
        "q / sᵀP s at least": f"{number(system.share)} ({system.shown})",
        "dtype": getattr(system.gamma, "dtype", ""),
    }
    return f"FreeDrift system: {system.geometry.family}", facts


@described(_about)
@inputs.guarded
@struct.dataclass
class FreeDrift(System):
    """A system of a drift that is given. Build it by a family's ``build`` or :func:`build`.

    Methods are of one state s (d,), action a or deviation ``delta`` = a - a* (m,), mean next state
    z, and ``key``; bounds of a ``radius`` of the guard, states |s_i| <= ``start`` and actions
    within ``limit``. Leaves are derived from one another: replacing one raises InputError.

    Attributes:
        geometry: f and g.
        P: of the value.
        R: (m, m) or (m,), of the cost of actions.
        gamma: (), discount.
        p: (), control strength.
        noise: the law of w.
        offset: (), b.
        B: (m, m), R + γ p² gᵀP g.
        pull: (d, m), γ p P g: h = pullᵀf.
        spent: what of f is paid for without actions: H in ℝᵐ, γP for a list.
        gain: (d, m), a* = -gainᵀf in ℝᵐ; None for a list.
        actions: (k, m), the list; None for ℝᵐ.
        prices: (k,), aᵀB a of the list; None for ℝᵐ.
        reaches: (2, d), the diagonals of P⁻¹ and H⁻¹.
        share: (), β with q >= β sᵀP s.
        shown: "hull" where β is proven, "sampled" where no state was found with less.
    """

    rebuilds: ClassVar[bool] = False
    geometry: DriftFamily
    P: Symmetric
    R: Symmetric
    gamma: Float[Array, "*batch"]
    p: Float[Array, "*batch"]
    noise: Noise
    offset: Float[Array, "*batch"]
    B: Float[Array, "*batch m m"]
    pull: Float[Array, "*batch d m"]
    spent: Symmetric
    reaches: Float[Array, "*batch 2 d"]
    share: Float[Array, "*batch"]
    gain: Float[Array, "*batch d m"] | None = None
    actions: Float[Array, "*batch k m"] | None = None
    prices: Float[Array, "*batch k"] | None = None
    shown: str = struct.field(pytree_node=False, default=HULL)
    origin: dataclasses.InitVar[object] = dataclasses.field(default=None, kw_only=True)

    def __post_init__(self, origin: object) -> None:
        """Refuse replacement; raises InputError."""
        if origin is not None and (names := inputs.replaced(self, origin)):
            raise InputError(
                f"{names[0]}: leaves of a system depend on each other; "
                "use cojax.free_drift.build again"
            )

    @property
    def state_dim(self):
        """d."""
        return self.geometry.state_dim

    @property
    def action_dim(self):
        """m."""
        return self.geometry.action_dim

    @property
    def constant_curvature(self):
        """Whether all actions are feasible: B is the same everywhere."""
        return self.actions is None

    @property
    def constrained(self):
        """Whether the actions are a list."""
        return self.actions is not None

    def feasible(self, a):
        """The action of the list that is nearest to a, the first of them; in ℝᵐ a itself."""
        return a if self.actions is None else action_lists.nearest(self.actions, a)

    def feasible_box(self):
        """The box around the list, on the host."""
        if self.actions is None:
            return None
        return np.abs(np.asarray(self.actions, np.float64)).max(axis=0)

    def labels(self):
        """Those of the family."""
        return self.geometry.labels()

    def chosen(self, f: Float[Array, "d"]) -> tuple[Float[Array, "m"], Float[Array, ""]]:
        """a* where the drift is ``f``, and what it adds to fᵀ spent f."""
        if self.gain is not None:
            return -product(f, self.gain), jnp.zeros((), f.dtype)
        assert self.actions is not None
        assert self.prices is not None
        worth = 2.0 * product(self.actions, product(f, self.pull)) + self.prices
        best = jnp.argmin(worth)
        return self.actions[best], worth[best]

    def optimum(self, s):
        """f(s), and a* and z* from it."""
        f = self.geometry.drift(s)
        action = self.chosen(f)[0]
        return Optimum(f, action, f + self.actuate(s, action))

    @property
    def audited(self):
        """Yes: ``state_cost`` says it."""
        return True

    def least_cost(self, s):
        """q(s) >= β sᵀP s."""
        return self.state_cost(s)

    def actuate(self, s, a):
        """p g a."""
        return self.p * self.geometry.actuate(s, a)

    def state_cost(self, s: Float[Array, "d"]) -> Float[Array, ""]:
        """q(s)."""
        f = self.geometry.drift(s)
        return quadratic_form(self.P, s) - quadratic_form(self.spent, f) - self.chosen(f)[1]

    def stage_cost(self, s, a):
        """c(s, a) = q(s) + aᵀR a."""
        return self.state_cost(s) + quadratic_form(self.R, a)

    def value(self, s):
        """V* = sᵀP s + b."""
        return quadratic_form(self.P, s) + self.offset

    def expected_value(self, s, z, a=None):
        """E V*(z + w) = zᵀP z + b/γ."""
        return quadratic_form(self.P, z) + self.offset / self.gamma

    def excess_cost(self, s, delta, optimum=None):
        """A* = δᵀB δ, for a list + 2 δᵀ(B a* + h), which is not below 0 but for rounding."""
        if self.actions is None:
            return quadratic_form(self.B, delta)
        at = self.optimum(s) if optimum is None else optimum
        slope = matvec(self.B, delta + 2.0 * at.action) + 2.0 * product(at.drift, self.pull)
        return jnp.maximum(linalg.dot(delta, slope), 0.0)

    def state_bound(self, radius):
        """|s_i| <= radius sqrt((P⁻¹)_ii) wherever |s|_P <= radius."""
        return radius * jnp.sqrt(self.reaches[0])

    def reach(self, radius, start, limit):
        """|f_i| <= |s|_P sqrt((H⁻¹)_ii), since fᵀH f <= sᵀP s; actions and noise beyond it."""
        eps = jnp.finfo(self.gamma.dtype).eps  # the guard's own comparison rounds, in units of V*
        guard = radius**2 + 4.0 * eps * (radius**2 + self.offset)
        farthest = jnp.sqrt(jnp.maximum(guard, quadratic_form(jnp.abs(self.P), start)))
        g = self.p * self.geometry.largest_input(self.gamma.dtype)  # (m, d)
        pushed = jnp.sum(limit[:, None] * g, axis=0)
        moved = farthest * jnp.sqrt(self.reaches[1]) + pushed + self.noise.bound()
        return jnp.maximum(moved, start)

    def sample_noise(self, s, key, a=None):
        """One draw of w."""
        return self.noise.sample(key, s)


# --- on the host ---------------------------------------------------------------------------------


def build(
    geometry: DriftFamily,
    *,
    P: ArrayLike,
    R: ArrayLike,
    gamma: float,
    p: float,
    Sigma: ArrayLike,
    actions: ArrayLike | None = None,
    beta: float = LEAST,
    law: Law = NORMAL,
    dtype: DTypeLike | None = None,
) -> FreeDrift:
    """Check the inputs and the drift, derive what a step needs in float64, and cast once.

    Args:
        geometry: f and g, with float64 or Python knobs.
        P: symmetric positive definite, (d, d), a diagonal (d,), or a number for a multiple of I.
        R: symmetric positive definite, (m, m), (m,), or a number.
        gamma: discount, in (0, 1).
        p: control strength, in (0, 1].
        Sigma: noise covariance, positive semidefinite.
        actions: the list of feasible actions, (k, m) or for m = 1 (k,), 0 among them; None for ℝᵐ.
        beta: β, what q must be of sᵀP s, in (0, 1).
        law: of the white noise that Sigma colours.
        dtype: of the leaves; by default the float dtype JAX computes in.

    Raises InputError, one line, where an input is not as stated, and for a drift that leaves less
    than β, with the state where it does and what is left there.
    """
    d, m = geometry.state_dim, geometry.action_dim
    gamma = inputs.discount("gamma", gamma)
    p = inputs.number("p", p, 0.0, 1.0, low_open=True)
    beta = inputs.number("beta", beta, 0.0, 1.0, low_open=True, high_open=True)
    P, R = inputs.positive_definite("P", P, d), inputs.positive_definite("R", R, m)
    Sigma = inputs.positive_semidefinite("Sigma", Sigma, d)
    dtype = precision.usable_float(dtype)
    listed = None if actions is None else action_lists.checked(actions, m)
    full, pushed = linalg.to_full(P), p * geometry.input_matrix()
    B = linalg.to_full(R) + gamma * pushed.T @ full @ pushed
    pull = gamma * full @ pushed
    gain = np.linalg.solve(B, pull.T).T
    H = gamma * full - gain @ pull.T
    H = 0.5 * (H + H.T)
    inverse = linalg.to_full(linalg.inverse_spd(P))
    M = inverse / gamma + pushed @ linalg.to_full(linalg.inverse_spd(R)) @ pushed.T
    spent = H if listed is None else gamma * full
    share, shown = left(geometry, full, spent, beta=beta)
    cast = partial(linalg.to_device, dtype=dtype)
    leaves = {"gain": gain}
    if listed is not None:
        leaves = {"actions": listed, "prices": np.sum((listed @ B) * listed, axis=1)}
    priced = float(np.sum(full * linalg.to_full(Sigma)))
    return FreeDrift(
        geometry=jax.tree.map(cast, geometry),
        P=cast(P),
        R=cast(R),
        gamma=cast(gamma),
        p=cast(p),
        noise=white(Sigma, geometry.noise_order(), dtype, law),
        offset=cast(gamma / (1.0 - gamma) * priced),
        B=cast(B),
        pull=cast(pull),
        spent=cast(spent),
        reaches=cast(np.stack([np.diagonal(inverse), np.diagonal(M)])),
        share=cast(share),
        shown=shown,
        **{name: cast(x) for name, x in leaves.items()},
    )
