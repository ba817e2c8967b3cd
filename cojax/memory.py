"""A system whose state remembers the last action, x = (s, α), with V* and π* in closed form.

It is made of a quadratic-Gaussian one, s' = f(s) + p g(s) a + w, c = sᵀQ s + aᵀR a; so are those
of :mod:`cojax.delay` and :mod:`cojax.markov_jump`.

A price on the rate of actions, R and D diagonal and constant (:func:`action_rate`):

    c = sᵀQ s + aᵀR a + (a - α)ᵀD (a - α)     s' = f(s) + p g(s)(a - R̂⁻¹D α) + w     α' = a
    R̂ = R + D + γ P_a     P_a = D - D²R̂⁻¹     V* = sᵀP s + αᵀP_a α + b     a* = R̂⁻¹D α + ã

f and ã = -p R̂⁻¹gᵀy are those of the system with R̂ for R. Completing the square in a leaves
|a - R̂⁻¹D α|²_R̂ + αᵀP_a α of all that is paid for actions, so what is minimised over
a - R̂⁻¹D α is what that system minimises over its action: the actuators lead by R̂⁻¹D α.
"""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from numpy.typing import ArrayLike, DTypeLike

from cojax import inputs, linalg, precision
from cojax.actuators import CubicGaussian
from cojax.errors import InputError
from cojax.initial import Fixed, InitialLaw
from cojax.labels import Labels
from cojax.linalg import quadratic_form
from cojax.noise import WHITE
from cojax.quadratic import Geometry, QuadraticGaussian
from cojax.system import Optimum, System
from cojax.types import Array, Float, Options, PRNGKeyArray

APART = 2**20  # number of a key that is folded: none of a split has it


@struct.dataclass
class Joined(InitialLaw):
    """x_0 = (s_0, memory): both drawn by their laws, s_0 as it is without a memory.

    Attributes:
        state: the law of s_0.
        memory: that of the rest.
    """

    state: InitialLaw
    memory: InitialLaw

    def sample(self, key: PRNGKeyArray) -> Float[Array, "d"]:
        """Draw x_0; the memory by a key of its own, which is none that laws of s_0 split off."""
        memory = self.memory.sample(jax.random.fold_in(key, APART))
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

    def initial_law(
        self, law: InitialLaw | None = None, memory: InitialLaw | None = None
    ) -> InitialLaw:
        """x_0 from the ``law`` of s_0, by default the family's, and that of the ``memory``, by
        default :meth:`initial_memory`.
        """
        law = self.inner.geometry.initial_law(self.gamma.dtype) if law is None else law
        return Joined(law, self.initial_memory() if memory is None else memory)

    def initial_memory(self) -> InitialLaw:
        """What an episode begins with beside s_0."""
        raise NotImplementedError

    @property
    def audited(self):
        """Yes: conditions on the matrices of a part do not say it."""
        return True

    def _refuse(self, origin: object, maker: str) -> None:
        """Raise InputError where a leaf was replaced in ``origin``."""
        if origin is not None and (names := inputs.replaced(self, origin)):
            raise InputError(
                f"{names[0]}: leaves of a system depend on each other; use {maker} again"
            )


class LastAction(Remembering):
    """x = (s, α), α' = a. Methods are of one state x, action a and ``key``."""

    @property
    def state_dim(self):
        """d + m."""
        return self.inner.state_dim + self.inner.action_dim

    def split(self, x: Float[Array, "n"]) -> tuple[Float[Array, "d"], Float[Array, "m"]]:
        """s and α."""
        return x[: self.inner.state_dim], x[self.inner.state_dim :]

    def initial_memory(self):
        """α = 0."""
        return Fixed(jnp.zeros(self.action_dim, self.gamma.dtype))

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

    Methods are of one state, action a or deviation ``delta`` = a - a* (m,), and ``key``; bounds of
    a ``radius`` of the guard, states |x_i| <= ``start`` and actions within ``limit``.

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

    def least_cost(self, s):
        """sᵀQ s + αᵀ(R⁻¹ + D⁻¹)⁻¹α."""
        s, last = self.split(s)
        R = self.inner.R if self.inner.R.ndim == 1 else jnp.diagonal(self.inner.R)
        return quadratic_form(self.inner.Q, s) + quadratic_form(R * self.D / (R + self.D), last)

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


# --- on the host ---------------------------------------------------------------------------------


def action_rate(
    system: QuadraticGaussian, D: ArrayLike, *, dtype: DTypeLike | None = None
) -> ActionRate:
    """A ``system`` of any family with (a - α)ᵀD (a - α) added to its cost, α the last action.

    ``D`` >= 0 is a number or (m,); leaves are of ``dtype``, by default that of the system. V* of s
    stays sᵀP s; at D = 0 all of it is as before, to the bit. P_a is the root >= 0 of
    γ P_a² + (R + D - γ D) P_a = D R for each action.
    Raises InputError, one line, for D < 0, an R that is not diagonal, and a system with a limit,
    actuators or noise of its own class.
    """
    stated = statement("action_rate", system, dtype)
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
        inner = as_stated(system, stated)
        inner = inputs.swapped(inner, R_hat=inner.R)
    leaves = {"D": D, "lead": D / R_hat, "P_a": P_a}
    derived: Options = {name: linalg.to_device(x, stated["dtype"]) for name, x in leaves.items()}
    return ActionRate(parts=(inner,), gamma=inner.gamma, offset=inner.offset, **derived)


def statement(name: str, system: QuadraticGaussian, dtype: DTypeLike | None = None) -> Options:
    """Geometry and matrices that a plain ``system`` was built of, float64 on the host, and the
    ``dtype`` of what is made of them, that of the system by default. Raises InputError for a system
    that the function called ``name`` cannot take.
    """
    if not isinstance(system, QuadraticGaussian):
        raise InputError(f"{name}: expected a quadratic system, got {type(system).__name__}")
    if np.ndim(system.gamma):
        raise InputError(f"{name}: expected one system, got a stacked batch")
    own = ("limit", "state_noise", "action_noise", "state_columns")
    own = [n for n in own if getattr(system, n) is not None]
    if own:
        raise InputError(f"{name}: expected a system without {own[0]}")
    if not system.is_plain or isinstance(system, CubicGaussian):
        raise InputError(f"{name}: expected a system of the paper's class, without P_hat or η")
    if system.measures:
        raise InputError(f"{name}: expected a system without a budget")
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
        "dtype": np.dtype(dtype or system.gamma.dtype),
    }


def as_stated(system: QuadraticGaussian, stated: Options) -> QuadraticGaussian:
    """The ``system``, or one built of what is ``stated`` where that is of another dtype."""
    return system if system.gamma.dtype == stated["dtype"] else assembled(stated)


def assembled(stated: Options) -> QuadraticGaussian:
    """The system of what is ``stated``, a :func:`statement`, with hats added to it."""
    geometry = stated["geometry"]
    assert isinstance(geometry, Geometry)
    return geometry.assemble(**{k: v for k, v in stated.items() if k != "geometry"})
