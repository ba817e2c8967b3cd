"""Systems whose state remembers the last action, x = (s, α), with V* and π* in closed form.

Both are made of a quadratic-Gaussian system, s' = f(s) + p g(s) a + w, c = sᵀQ s + aᵀR a.

A price on the rate of actions, R and D diagonal and constant (:func:`action_rate`):

    c = sᵀQ s + aᵀR a + (a - α)ᵀD (a - α)     s' = f(s) + p g(s)(a - R̂⁻¹D α) + w     α' = a
    R̂ = R + D + γ P_a     P_a = D - D²R̂⁻¹     V* = sᵀP s + αᵀP_a α + b     a* = R̂⁻¹D α + ã

f and ã = -p R̂⁻¹gᵀy are those of the system with R̂ for R. Completing the square in a leaves
|a - R̂⁻¹D α|²_R̂ + αᵀP_a α of all that is paid for actions, so what is minimised over
a - R̂⁻¹D α is what that system minimises over its action: the actuators lead by R̂⁻¹D α.

Actions that act one step late (:func:`delayed`), α pending, E (d, m):

    s' = F(s, α) + w     α' = a     F = H^{-1/2} S(s) u     u = L (s + p E α)     L = (P - Q)^{1/2}
    V* = sᵀQ s + |u|² + b     H = γ (P - γ P_sα K̂⁻¹ P_αs)     K̂ = R + γ P_αα
    a* = -γ K̂⁻¹ P_αs F     A* = |a - a*|²_K̂     P_sα = p L² E,  P_αα = p² EᵀL²E

since min_a aᵀR a + γ V*(F, a) = FᵀH F + γ b/γ, which is |u|² + b. V* is that of the system at
s + p E α but for the price of s: the pending action moves the state before it drifts.
"""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from numpy.typing import ArrayLike

from cojax import inputs, linalg, precision
from cojax.actuators import CubicGaussian
from cojax.errors import InputError
from cojax.initial import Fixed, InitialLaw
from cojax.kinematic import KinematicGaussian
from cojax.labels import Labels
from cojax.linalg import dot, matvec, product, quadratic_form
from cojax.noise import WHITE
from cojax.quadratic import Geometry, QuadraticGaussian
from cojax.system import Optimum, System
from cojax.types import Array, Float, Options, PRNGKeyArray

CLOSE = 1e-9  # relative, of 1 - β and γ


@struct.dataclass
class Joined(InitialLaw):
    """x_0 = (s_0, memory): both drawn by their laws, s_0 as it is without a memory."""

    state: InitialLaw
    memory: InitialLaw

    def sample(self, key: PRNGKeyArray) -> Float[Array, "d"]:
        """Draw x_0; the memory by a key folded from that of s_0."""
        memory = self.memory.sample(jax.random.fold_in(key, 1))
        return jnp.concatenate([self.state.sample(key), memory])

    def bound(self):
        """Those of both."""
        key = jax.eval_shape(lambda: jax.random.key(0))
        parts = [
            jnp.broadcast_to(law.bound(), jax.eval_shape(law.sample, key).shape)
            for law in (self.state, self.memory)
        ]
        return jnp.concatenate(parts)


class Remembering(System):
    """x = (s, memory) of a system that is made of quadratic ones.

    Leaves are derived from one another: replacing one raises InputError; build it again.
    """

    parts: tuple[QuadraticGaussian, ...]

    @property
    def inner(self) -> QuadraticGaussian:
        """The first of ``parts``."""
        return self.parts[0]

    @property
    def action_dim(self):
        """m."""
        return self.inner.action_dim

    def _refuse(self, origin: object, maker: str) -> None:
        """Raise InputError where a leaf was replaced in ``origin``."""
        if origin is not None and (names := inputs.replaced(self, origin)):
            raise InputError(
                f"{names[0]}: leaves of a system depend on each other; use {maker} again"
            )


class LastAction(Remembering):
    """x = (s, α), α' = a."""

    @property
    def state_dim(self):
        """d + m."""
        return self.inner.state_dim + self.inner.action_dim

    def split(self, x: Float[Array, "n"]) -> tuple[Float[Array, "d"], Float[Array, "m"]]:
        """s and α."""
        return x[: self.inner.state_dim], x[self.inner.state_dim :]

    def initial_law(
        self, law: InitialLaw | None = None, memory: InitialLaw | None = None
    ) -> InitialLaw:
        """x_0 from the ``law`` of s_0, by default the family's, and that of α, by default 0."""
        dtype = self.gamma.dtype
        law = self.inner.geometry.initial_law(dtype) if law is None else law
        return Joined(law, Fixed(jnp.zeros(self.action_dim, dtype)) if memory is None else memory)

    def labels(self) -> Labels:
        """Those of the family, and the actions as what was done last."""
        states, actions = self.inner.geometry.labels()
        return [*states, *(f"last {name}" for name in actions)], actions

    def sample_noise(self, s, key, a=None):
        """That of s; 0 for α."""
        w = self.inner.sample_noise(self.split(s)[0], key)
        return jnp.concatenate([w, jnp.zeros(self.action_dim, w.dtype)])


@inputs.guarded
@struct.dataclass
class ActionRate(LastAction):
    """A system with a price on the rate of actions. Build it with :func:`action_rate`.

    Attributes:
        parts: the system with R̂ for R, alone.
        gamma: (), discount.
        offset: (), b.
        D: (m,), of the price.
        lead: (m,), R̂⁻¹D.
        P_a: (m,), of the value.
    """

    parts: tuple[QuadraticGaussian, ...]
    gamma: Float[Array, "*batch"]
    offset: Float[Array, "*batch"]
    D: Float[Array, "*batch m"]
    lead: Float[Array, "*batch m"]
    P_a: Float[Array, "*batch m"]
    origin: dataclasses.InitVar[object] = dataclasses.field(default=None, kw_only=True)

    def __post_init__(self, origin: object) -> None:
        """Refuse replacement; raises InputError."""
        self._refuse(origin, "cojax.memory.action_rate")

    @property
    def constant_curvature(self):
        """As without the price."""
        return self.inner.constant_curvature

    def optimum(self, s):
        """That of the system with R̂, its action led."""
        s, last = self.split(s)
        at, led = self.inner.optimum(s), self.lead * last
        action = at.action + led
        drift = jnp.concatenate([at.drift - self.inner.push(s, led), jnp.zeros_like(action)])
        return Optimum(drift, action, jnp.concatenate([at.next_mean, action]))

    def actuate(self, s, a):
        """(p g(s) a, a)."""
        return jnp.concatenate([self.inner.actuate(self.split(s)[0], a), a])

    def next_mean(self, s, a, optimum):
        """z* + p g(s) (a - a*), and a itself."""
        s, z = self.split(s)[0], self.split(optimum.next_mean)[0]
        return jnp.concatenate([z + self.inner.actuate(s, a - optimum.action), a])

    def stage_cost(self, s, a):
        """c = sᵀQ s + aᵀR a + (a - α)ᵀD (a - α)."""
        s, last = self.split(s)
        return self.inner.stage_cost(s, a) + quadratic_form(self.D, a - last)

    def value(self, s):
        """V* = sᵀP s + αᵀP_a α + b."""
        s, last = self.split(s)
        return self.inner.value(s) + quadratic_form(self.P_a, last)

    def expected_value(self, s, z, a=None):
        """E V*(z + w)."""
        z, following = self.split(z)
        known = self.inner.expected_value(self.split(s)[0], z)
        return known + quadratic_form(self.P_a, following)

    def excess_cost(self, s, delta, optimum=None):
        """A* = |δ|²_R̂ + γ p² |g δ|²_P."""
        return self.inner.excess_cost(self.split(s)[0], delta)

    def state_bound(self, radius):
        """Those of s, and radius/sqrt(P_a): no bound where actions may change for nothing."""
        last = radius / jnp.sqrt(self.P_a)
        return jnp.concatenate([self.inner.state_bound(radius), last])

    def reach(self, radius, start, limit):
        """That of s under actions within ``limit`` and their lead; the largest α."""
        start, last = self.split(start)
        most = jnp.maximum(limit, last)
        led = limit + self.lead * most
        return jnp.concatenate([self.inner.reach(radius, start, led), most])


@inputs.guarded
@struct.dataclass
class Delayed(LastAction):
    """A system whose actions act one step late. Build it with :func:`delayed`.

    Attributes:
        parts: the system without the delay, alone: S, L, Q, R, P and w are its own.
        gamma: (), discount.
        offset: (), b.
        pending: (m, d), αᵀ times it is p L E α.
        forward: (d, d), H^{-1/2}.
        gain: (d, m), zᵀ times it is -a*.
        effort: (m, m), K̂.
        spread: (d + m,), |x_i| <= spread_i wherever V* - b <= 1.
    """

    parts: tuple[QuadraticGaussian, ...]
    gamma: Float[Array, "*batch"]
    offset: Float[Array, "*batch"]
    pending: Float[Array, "*batch m d"]
    forward: Float[Array, "*batch d d"]
    gain: Float[Array, "*batch d m"]
    effort: Float[Array, "*batch m m"]
    spread: Float[Array, "*batch n"]
    origin: dataclasses.InitVar[object] = dataclasses.field(default=None, kw_only=True)

    def __post_init__(self, origin: object) -> None:
        """Refuse replacement; raises InputError."""
        self._refuse(origin, "cojax.memory.delayed")

    @property
    def constant_curvature(self):
        """Yes: B = K̂."""
        return True

    def moved(self, s: Float[Array, "d"], last: Float[Array, "m"]) -> Float[Array, "d"]:
        """u = L (s + p E α)."""
        return matvec(self.inner.sqrt_P_minus_Q, s) + product(last, self.pending)

    def optimum(self, s):
        """F, and the action for where it leads."""
        s, last = self.split(s)
        u = self.inner.geometry.rotate(s, self.moved(s, last), self.inner.p)
        z = product(u, self.forward)
        action = -product(z, self.gain)
        drift = jnp.concatenate([z, jnp.zeros_like(action)])
        return Optimum(drift, action, jnp.concatenate([z, action]))

    def actuate(self, s, a):
        """(0, a): it acts a step later."""
        return jnp.concatenate([jnp.zeros(self.inner.state_dim, a.dtype), a])

    def next_mean(self, s, a, optimum):
        """(F, a)."""
        return jnp.concatenate([self.split(optimum.next_mean)[0], a])

    def stage_cost(self, s, a):
        """c = sᵀQ s + aᵀR a, for the action as it is chosen."""
        return self.inner.stage_cost(self.split(s)[0], a)

    def value(self, s):
        """V* = sᵀQ s + |u|² + b."""
        return self._excess(s) + self.offset

    def expected_value(self, s, z, a=None):
        """V*(z) + tr(P Σ)."""
        return self._excess(z) + self.offset / self.gamma

    def excess_cost(self, s, delta, optimum=None):
        """A* = |δ|²_K̂."""
        return quadratic_form(self.effort, delta)

    def state_bound(self, radius):
        """radius times ``spread``."""
        return radius * self.spread

    def reach(self, radius, start, limit):
        """|F_i| <= |H^{-1/2} e_i| |u|, |u|² <= V* - b, and the noise; the largest α."""
        first, last = self.split(start)
        eps = jnp.finfo(self.gamma.dtype).eps  # the guard's own comparison rounds
        guard = radius**2 + 4.0 * eps * (radius**2 + self.offset)
        root = jnp.abs(self.inner.sqrt_P_minus_Q)
        u = matvec(root, first) + product(last, jnp.abs(self.pending))
        farthest = jnp.sqrt(jnp.maximum(guard, dot(u, u)))
        mean = farthest * jnp.sqrt(jnp.sum(self.forward**2, axis=-1))
        following = jnp.maximum(mean + self.inner.noise.bound(), first)
        return jnp.concatenate([following, jnp.maximum(limit, last)])

    def _excess(self, x: Float[Array, "n"]) -> Float[Array, ""]:
        """V* - b."""
        s, last = self.split(x)
        u = self.moved(s, last)
        return quadratic_form(self.inner.Q, s) + dot(u, u)


# --- on the host ---------------------------------------------------------------------------------


def action_rate(system: QuadraticGaussian, D: ArrayLike) -> ActionRate:
    """A ``system`` of any family with (a - α)ᵀD (a - α) added to its cost, α the last action.

    ``D`` >= 0 is a number or (m,). V* of s stays sᵀP s; at D = 0 all of it is as before, to the
    bit. P_a is the root >= 0 of γ P_a² + (R + D - γ D) P_a = D R for each action.
    Raises InputError, one line, for D < 0, an R that is not diagonal, and a system with a limit,
    actuators or noise of its own class.
    """
    stated = statement("action_rate", system)
    D = inputs.vector("D", D, system.action_dim)
    if (D < 0.0).any():
        raise InputError(f"D: expected numbers >= 0, got {D.min():g}")
    R, gamma = inputs.symmetric("R", stated["R"], len(D)), stated["gamma"]
    if R.ndim > 1:
        largest = np.abs(R - np.diag(np.diagonal(R))).max()
        raise InputError(f"action_rate: expected a diagonal R, got {largest:g} beside its diagonal")
    half = 0.5 * (R + D - gamma * D)
    P_a = D * R / (half + np.sqrt(half**2 + gamma * D * R))
    R_hat = R + D + gamma * P_a
    if D.any():
        inner = assembled(stated | {"R": R, "R_hat": R_hat})
    else:
        inner = inputs.swapped(system, R_hat=system.R)
    dtype = system.gamma.dtype
    leaves = {"D": D, "lead": D / R_hat, "P_a": P_a}
    derived: Options = {name: linalg.to_device(x, dtype) for name, x in leaves.items()}
    return ActionRate(parts=(inner,), gamma=inner.gamma, offset=inner.offset, **derived)


def delayed(
    system: QuadraticGaussian, steps: int = 1, *, effect: ArrayLike | None = None
) -> Delayed:
    """A ``system`` of any family whose actions act one step late.

    Args:
        system: S, P, Q, R, γ, p and w are taken from it. Its g is not used but for ``effect``;
            the drift is another, and what a pending action does is turned by S(s) with it.
        steps: of delay; 1. More are not exact with noise, where a drift is not linear.
        effect: E, (d, m); g(0) unless given. At 0 the actions do nothing, and F is the drift of
            the system at p = 0.

    Raises InputError, one line, for more than one step, for an SR form, for a system with
    kinematics, a limit, actuators or noise of its own class, and unless Q ⪰ β P for a β > 1 - γ,
    without which π* need not keep s bounded.
    """
    stated = statement("delayed", system)
    steps = inputs.whole("steps", steps, 1)
    if steps > 1:
        raise InputError(
            f"steps: expected 1, with which V* is exact under noise and without, got {steps}"
        )
    if isinstance(system, KinematicGaussian):
        raise InputError("delayed: expected a drift that is free in every row, got kinematics")
    if system.parameterization != "metric":
        raise InputError(
            f"delayed: expected parameterization='metric', got {system.parameterization!r}"
        )
    d, m, gamma, p = system.state_dim, system.action_dim, stated["gamma"], stated["p"]
    P, Q, R = (linalg.to_full(stated[name]) for name in ("P", "Q", "R"))
    unroot = linalg.inverse_sqrt_spd(P)
    beta = linalg.extreme_eigenvalues(unroot @ Q @ unroot)[0]
    if not beta > (1.0 - gamma) * (1.0 + CLOSE):
        raise InputError(
            f"Q: expected Q ⪰ βP with β > 1 - γ = {1.0 - gamma:.6g}, without which the optimal "
            f"policy need not keep the state bounded, got β = {beta:.6g}"
        )
    if effect is None:
        with precision.x64():
            push = jax.vmap(lambda a: stated["geometry"].actuate(jnp.zeros(d), a))
            E = np.asarray(push(jnp.eye(m))).T
    else:
        E = np.asarray(effect, np.float64)
        if E.shape != (d, m) or not np.isfinite(E).all():
            raise InputError(f"effect: expected finite numbers of shape ({d}, {m}), got {E.shape}")
    root = linalg.sqrt_psd(P - Q)
    L_a = p * root @ E
    P_sa, P_aa = root @ L_a, L_a.T @ L_a
    effort = R + gamma * P_aa
    gain = gamma * np.linalg.solve(effort, P_sa.T).T
    H = gamma * (P - P_sa @ gain.T)
    dtype = system.gamma.dtype
    leaves = {
        "pending": L_a.T,
        "forward": linalg.inverse_sqrt_spd(0.5 * (H + H.T)),
        "gain": gain,
        "effort": effort,
        "spread": _spread(np.block([[P, P_sa], [P_sa.T, P_aa]]), Q),
    }
    derived: Options = {name: linalg.to_device(x, dtype) for name, x in leaves.items()}
    return Delayed(parts=(system,), gamma=system.gamma, offset=system.offset, **derived)


def _spread(W: np.ndarray, Q: np.ndarray) -> np.ndarray:
    """sqrt((W⁻¹)_ii); where W is singular, what Q says of s, and no bound of α."""
    low, high = linalg.extreme_eigenvalues(W)
    if low > 1e-12 * high:
        return np.sqrt(np.diagonal(np.linalg.inv(W)))
    of_s = np.sqrt(np.diagonal(np.linalg.inv(Q)))
    return np.concatenate([of_s, np.full(len(W) - len(Q), np.inf)])


def statement(name: str, system: QuadraticGaussian) -> Options:
    """Geometry and matrices that a plain ``system`` was built of, float64 on the host. Raises
    InputError for one that the function called ``name`` cannot take.
    """
    if not isinstance(system, QuadraticGaussian):
        raise InputError(f"{name}: expected a quadratic system, got {type(system).__name__}")
    if np.ndim(system.gamma):
        raise InputError(f"{name}: expected one system, got a stacked batch")
    own = [n for n in ("limit", "state_noise", "action_noise") if getattr(system, n) is not None]
    if own:
        raise InputError(f"{name}: expected a system without {own[0]}")
    if not system.is_plain or isinstance(system, CubicGaussian):
        raise InputError(f"{name}: expected a system of the paper's class, without P_hat or η")
    if not isinstance(system.noise, WHITE):
        raise InputError(f"{name}: expected white noise, got {type(system.noise).__name__}")
    with precision.x64():
        host = jax.tree.map(lambda x: np.asarray(x, np.float64), (system.geometry, system.noise))
        Sigma = np.asarray(jax.tree.map(jnp.asarray, host[1]).covariance())
    leaves = {n: np.asarray(getattr(system, n), np.float64) for n in ("P", "Q", "R")}
    return leaves | {
        "geometry": host[0],
        "gamma": float(system.gamma),
        "p": float(system.p),
        "Sigma": Sigma,
        "law": host[1].law,
        "parameterization": system.parameterization,
        "dtype": system.gamma.dtype,
    }


def assembled(stated: Options) -> QuadraticGaussian:
    """The system of a :func:`statement`, with hats added to it."""
    geometry = stated["geometry"]
    assert isinstance(geometry, Geometry)
    return geometry.assemble(**{k: v for k, v in stated.items() if k != "geometry"})
