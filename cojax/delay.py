"""Systems whose actions act one step late, x = (s, α), α pending, with V* and π* in closed form.

With S, P, Q, R, γ, p and w of a quadratic-Gaussian system, and E (d, m):

    s' = F(s, α) + w     α' = a     F = H^{-1/2} S(s) u     u = L (s + p E α)     L = (P - Q)^{1/2}
    V* = sᵀQ s + |u|² + b     H = γ (P - γ P_sα K̂⁻¹ P_αs)     K̂ = R + γ P_αα
    a* = -γ K̂⁻¹ P_αs F     A* = |a - a*|²_K̂     P_sα = p L² E,  P_αα = p² EᵀL²E

since min_a aᵀR a + γ E V*(F + w, a) = FᵀH F + b, which is |u|² + b. V* is that of the system at
s + p E α but for the price of s: the pending action moves the state before it drifts.
"""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from numpy.typing import ArrayLike, DTypeLike

from cojax import inputs, linalg, precision
from cojax.errors import InputError
from cojax.kinematic import KinematicGaussian
from cojax.linalg import dot, matvec, product, quadratic_form
from cojax.memory import LastAction, as_stated, statement
from cojax.quadratic import QuadraticGaussian
from cojax.system import Optimum
from cojax.types import Array, Float, Options

CLOSE = 1e-9  # relative, of 1 - β and γ


@inputs.guarded
@struct.dataclass
class Delayed(LastAction):
    """A system whose actions act one step late. Build it with :func:`delayed`.

    Methods are of one state, action a or deviation ``delta`` = a - a* (m,), and ``key``; bounds of
    a ``radius`` of the guard, states |x_i| <= ``start`` and actions within ``limit``.

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
        self._refuse(origin, "cojax.delay.delayed")

    @property
    def constant_curvature(self):
        """Yes: B = K̂."""
        return True

    def moved(self, s: Float[Array, "d"], last: Float[Array, "m"]) -> Float[Array, "d"]:
        """u = L (s + p E α), α the ``last`` action."""
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

    def least_cost(self, s):
        """sᵀQ s + αᵀR α, the last paid when α was chosen."""
        s, last = self.split(s)
        return quadratic_form(self.inner.Q, s) + quadratic_form(self.inner.R, last)

    def size(self, s):
        """V* - b + αᵀR α."""
        return self._excess(s) + quadratic_form(self.inner.R, self.split(s)[1])

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


def delayed(
    system: QuadraticGaussian,
    steps: int = 1,
    *,
    effect: ArrayLike | None = None,
    dtype: DTypeLike | None = None,
) -> Delayed:
    """A ``system`` of any family whose actions act one step late.

    Args:
        system: S, P, Q, R, γ, p and w are taken from it. Its g is not used but for ``effect``;
            the drift is another, and what a pending action does is turned by S(s) with it.
        steps: of delay; 1. More are not exact with noise, where a drift is not linear.
        effect: E, (d, m); g(0) unless given. At 0 the actions do nothing, and F is the drift of
            the system at p = 0.
        dtype: of the leaves; by default that of the system.

    Raises InputError, one line, for more than one step, for an SR form, for a system with
    kinematics, a limit, actuators or noise of its own class, and unless Q ⪰ β P for a β > 1 - γ,
    without which π* need not keep s bounded.
    """
    stated = statement("delayed", system, dtype)
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
    beta = linalg.largest_share(Q, P)
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
    inner = as_stated(system, stated)
    leaves = {
        "pending": L_a.T,
        "forward": linalg.inverse_sqrt_spd(0.5 * (H + H.T)),
        "gain": gain,
        "effort": effort,
        "spread": _spread(np.block([[P, P_sa], [P_sa.T, P_aa]]), Q),
    }
    derived: Options = {name: linalg.to_device(x, inner.gamma.dtype) for name, x in leaves.items()}
    return Delayed(parts=(inner,), gamma=inner.gamma, offset=inner.offset, **derived)


def _spread(W: np.ndarray, Q: np.ndarray) -> np.ndarray:
    """sqrt((W⁻¹)_ii); where W is singular, what Q says of s, and no bound of α."""
    low, high = linalg.extreme_eigenvalues(W)
    if low > 1e-12 * high:
        return np.sqrt(np.diagonal(np.linalg.inv(W)))
    of_s = np.sqrt(np.diagonal(np.linalg.inv(Q)))
    return np.concatenate([of_s, np.full(len(W) - len(Q), np.inf)])
