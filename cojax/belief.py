"""What is known of a hidden z that pushes the actuators: n = E z + w_a, w_a ~ N(0, Σ_a).

n is seen after the step in which it acts, and neither states nor actions enter it: the posterior of
z, the belief, is the same under every policy. Three laws of z, three exact filters:

    Kalman      z' = Φ z + ε, ε ~ N(0, Σ_ε), from the stationary Π     belief ẑ
                ẑ' = Φẑ + L (n - Eẑ)     L = ΦΠEᵀS⁻¹,  S = EΠEᵀ + Σ_a,  Π = ΦΠΦᵀ + Σ_ε - L S Lᵀ
    Constant    z' = z, z_0 ~ N(ẑ_0, Π_0)                               belief (ẑ, k)
                ẑ' = ẑ + Π_{k+1}EᵀΣ_a⁻¹ (n - Eẑ)     Π_k = (Π_0⁻¹ + k EᵀΣ_a⁻¹E)⁻¹
    Hypotheses  z one of two unit vectors, a Markov chain (:mod:`cojax.hypotheses`)

The prices that not knowing z has (:mod:`cojax.hidden`) are r(belief), with B = R + γp²gᵀP g,

    r(b) = tr(B E Cov(z|b) Eᵀ) + γ E r(b')

a number for Kalman, a sequence in k for Constant, a function on a grid for Hypotheses. Matrices are
kept transposed: products are xᵀA.
"""

from __future__ import annotations

import abc

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from cojax import streams
from cojax.distinct import Distinct
from cojax.initial import InitialLaw
from cojax.linalg import product
from cojax.memory import APART
from cojax.noise_laws import LARGEST_NORMAL
from cojax.types import Array, Float, PRNGKeyArray

COUNT = 2**12  # k is kept as k/COUNT, exact in every precision; r_k of Constant is listed so far
Belief = Float[Array, "b"]


def normals(key: PRNGKeyArray, like: Float[Array, "n"]) -> Float[Array, "n"]:
    """As many standard normal numbers as ``like`` has entries, drawn in float32."""
    return jax.random.normal(key, like.shape, jnp.float32).astype(like.dtype)


class Filter(Distinct, abc.ABC):
    """A law of z and the filter of it. Methods are of one belief b, hidden z (h,), push n (m,) and
    ``key``; ``first``, ``draw`` and ``jolt`` draw.

    Attributes:
        effect: (h, m), Eᵀ.
        root_a: (m, m), a root of Σ_a, transposed.
        cov_a: (m, m), Σ_a.
    """

    effect: Float[Array, "*batch h m"]
    root_a: Float[Array, "*batch m m"]
    cov_a: Float[Array, "*batch m m"]

    @property
    def hidden_dim(self) -> int:
        """h."""
        return self.effect.shape[-2]

    @property
    def belief_dim(self) -> int:
        """Entries of b."""
        return self.hidden_dim

    @property
    def settled(self) -> bool:
        """Whether the spread does not depend on b; decided by the structure."""
        return False

    def predicted(self, b: Belief) -> Float[Array, "m"]:
        """E E[z|b]."""
        return product(b, self.effect)

    @abc.abstractmethod
    def update(self, b: Belief, n: Float[Array, "m"]) -> Belief:
        """b', the push n seen."""

    @abc.abstractmethod
    def ahead(self, b: Belief) -> Belief:
        """E b'."""

    @abc.abstractmethod
    def spread(self, b: Belief) -> Float[Array, "m m"]:
        """Cov(n|b)."""

    def price(self, b: Belief) -> Float[Array, ""]:
        """r(b) less the least of all r."""
        return jnp.zeros((), b.dtype)

    def price_ahead(self, b: Belief) -> Float[Array, ""]:
        """E price(b')."""
        return jnp.zeros((), b.dtype)

    @abc.abstractmethod
    def draw(self, b: Belief, key: PRNGKeyArray) -> Float[Array, "m"]:
        """n of one who knows b alone."""

    @abc.abstractmethod
    def initial(self) -> Belief:
        """b_0."""

    @abc.abstractmethod
    def first(self, key: PRNGKeyArray) -> Float[Array, "h"]:
        """z_0, by its law."""

    @abc.abstractmethod
    def moved(self, z: Float[Array, "h"]) -> Float[Array, "h"]:
        """E z'."""

    @abc.abstractmethod
    def jolt(
        self, z: Float[Array, "h"], key: PRNGKeyArray
    ) -> tuple[Float[Array, "h"], Float[Array, "m"]]:
        """z' - E z' and the w_a that comes with z', one draw of both."""

    def project(self, b: Belief) -> Belief:
        """The belief nearest to b."""
        return b

    def project_hidden(self, z: Float[Array, "h"]) -> Float[Array, "h"]:
        """The z nearest to z."""
        return z

    @abc.abstractmethod
    def bounds(self) -> tuple[Float[Array, "b"], Float[Array, "h"]]:
        """About how far b and z go, entry by entry."""

    def names(self) -> list[str]:
        """Names of the entries of b."""
        return [f"belief {i + 1}" for i in range(self.belief_dim)]

    def pushed(self, z: Float[Array, "h"]) -> Float[Array, "m"]:
        """E z."""
        return product(z, self.effect)

    def shake(self, key: PRNGKeyArray) -> Float[Array, "m"]:
        """w_a, one draw."""
        return product(normals(key, self.root_a[0]), self.root_a)


@struct.dataclass
class Kalman(Filter):
    """A linear hidden z from its stationary state on; b = ẑ.

    Attributes:
        effect, root_a, cov_a: see :class:`Filter`.
        transition: (h, h), Φᵀ.
        gain: (m, h), Lᵀ.
        S: (m, m), Cov(n|b).
        root_S: (m, m), its root, transposed.
        root_Pi: (h, h), that of Π, Cov(z|b).
        root_e: (h, h), that of Σ_ε.
        start: (h,), ẑ_0.
        reach: (h,), standard deviations of z.
    """

    effect: Float[Array, "*batch h m"]
    root_a: Float[Array, "*batch m m"]
    cov_a: Float[Array, "*batch m m"]
    transition: Float[Array, "*batch h h"]
    gain: Float[Array, "*batch m h"]
    S: Float[Array, "*batch m m"]
    root_S: Float[Array, "*batch m m"]
    root_Pi: Float[Array, "*batch h h"]
    root_e: Float[Array, "*batch h h"]
    start: Float[Array, "*batch h"]
    reach: Float[Array, "*batch h"]

    @property
    def settled(self):
        """Yes."""
        return True

    def update(self, b, n):
        """Φẑ + L (n - Eẑ)."""
        return product(b, self.transition) + product(n - self.predicted(b), self.gain)

    def ahead(self, b):
        """Φẑ."""
        return product(b, self.transition)

    def spread(self, b):
        """S."""
        return self.S

    @streams.pinned()
    def draw(self, b, key):
        """Eẑ, and noise of S."""
        return self.predicted(b) + product(normals(key, self.root_S[0]), self.root_S)

    def initial(self):
        """ẑ_0."""
        return self.start

    @streams.pinned()
    def first(self, key):
        """N(ẑ_0, Π)."""
        return self.start + product(normals(key, self.start), self.root_Pi)

    def moved(self, z):
        """Φz."""
        return product(z, self.transition)

    @streams.pinned()
    def jolt(self, z, key):
        """ε and w_a."""
        h = self.hidden_dim
        xi = normals(key, jnp.concatenate([z, self.root_a[0]]))
        return product(xi[:h], self.root_e), product(xi[h:], self.root_a)

    def bounds(self):
        """What the largest draws make of stationary deviations."""
        high = jnp.abs(self.start) + LARGEST_NORMAL * self.reach
        return high, high


@struct.dataclass
class Constant(Filter):
    """A constant of the episode; b = (ẑ, k/COUNT).

    Attributes:
        effect, root_a, cov_a: see :class:`Filter`.
        inward: (m, h), Σ_a⁻¹E W, with Π_k = W diag(1/(1 + kκ)) Wᵀ.
        outward: (h, h), Wᵀ.
        kappa: (h,), κ.
        start: (h,), ẑ_0.
        prices: (COUNT,), r_k.
    """

    effect: Float[Array, "*batch h m"]
    root_a: Float[Array, "*batch m m"]
    cov_a: Float[Array, "*batch m m"]
    inward: Float[Array, "*batch m h"]
    outward: Float[Array, "*batch h h"]
    kappa: Float[Array, "*batch h"]
    start: Float[Array, "*batch h"]
    prices: Float[Array, "*batch k"]

    @property
    def belief_dim(self):
        """h + 1."""
        return self.hidden_dim + 1

    def steps(self, b: Belief) -> Float[Array, ""]:
        """k."""
        return jnp.maximum(jnp.round(b[-1] * COUNT), 0.0)

    def predicted(self, b):
        """Eẑ."""
        return product(b[:-1], self.effect)

    def update(self, b, n):
        """ẑ + Π_{k+1}EᵀΣ_a⁻¹ (n - Eẑ), and k + 1."""
        k = self.steps(b) + 1.0
        seen = product(n - self.predicted(b), self.inward) / (1.0 + k * self.kappa)
        return jnp.concatenate([b[:-1] + product(seen, self.outward), (k / COUNT)[None]])

    def ahead(self, b):
        """ẑ, and k + 1."""
        return b.at[-1].add(1.0 / COUNT)

    def spread(self, b):
        """EΠ_kEᵀ + Σ_a."""
        pushed = product(self.outward, self.effect)
        left = pushed / (1.0 + self.steps(b) * self.kappa)[:, None]
        return product(left.T, pushed) + self.cov_a

    def price(self, b):
        """r_k; beyond the list its last."""
        last = COUNT - 1
        return self.prices[jnp.minimum(self.steps(b), last).astype(jnp.int32)]

    def price_ahead(self, b):
        """r_{k+1}."""
        return self.price(self.ahead(b))

    @streams.pinned()
    def draw(self, b, key):
        """Eẑ, and noise of EΠ_kEᵀ and of Σ_a."""
        scaled = normals(key, self.kappa) / jnp.sqrt(1.0 + self.steps(b) * self.kappa)
        apart = product(product(scaled, self.outward), self.effect)
        return self.predicted(b) + apart + self.shake(jax.random.fold_in(key, 1))

    def initial(self):
        """ẑ_0 and 0."""
        return jnp.concatenate([self.start, jnp.zeros_like(self.start[:1])])

    @streams.pinned()
    def first(self, key):
        """N(ẑ_0, Π_0)."""
        return self.start + product(normals(key, self.start), self.outward)

    def moved(self, z):
        """z."""
        return z

    @streams.pinned()
    def jolt(self, z, key):
        """0 and w_a."""
        return jnp.zeros_like(z), self.shake(key)

    def project(self, b):
        """At a whole k within the list."""
        return b.at[-1].set(jnp.minimum(self.steps(b), COUNT - 2.0) / COUNT)

    def bounds(self):
        """What the largest draws make; 1 for k."""
        std = jnp.sqrt(jnp.sum(self.outward**2, axis=0))
        high = jnp.abs(self.start) + LARGEST_NORMAL * std
        return jnp.concatenate([high, jnp.ones_like(high[:1])]), high

    def names(self):
        """ẑ, and the step."""
        return [*super().names()[:-1], f"step / {COUNT} [-]"]


@struct.dataclass
class FirstBelief(InitialLaw):
    """b_0, the same in every episode."""

    filter: Filter

    def sample(self, key):
        """Return b_0."""
        return self.filter.initial()

    def bound(self):
        """|b_0|."""
        return jnp.abs(self.filter.initial())


@struct.dataclass
class FirstHidden(InitialLaw):
    """(b_0, z_0, n_0)."""

    filter: Filter

    @streams.pinned()
    def sample(self, key):
        """Draw z_0 and n_0, by keys that laws of s_0, which split theirs, do not come upon."""
        z = self.filter.first(jax.random.fold_in(key, APART))
        n = self.filter.pushed(z) + self.filter.shake(jax.random.fold_in(key, APART + 1))
        return jnp.concatenate([self.filter.initial(), z, n])

    def bound(self):
        """Those of all."""
        b, z = self.filter.bounds()
        return jnp.concatenate([b, z, farthest_push(self.filter)])


def farthest_push(filter: Filter) -> Float[Array, "m"]:
    """About how far n of a ``filter`` goes, entry by entry."""
    noise = LARGEST_NORMAL * jnp.sqrt(jnp.diagonal(filter.cov_a))
    return product(filter.bounds()[1], jnp.abs(filter.effect)) + noise


# --- on the host ---------------------------------------------------------------------------------


def stationary(
    Phi: np.ndarray, E: np.ndarray, Sigma_e: np.ndarray, Sigma_a: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Π, S and L of :class:`Kalman`, the fixed point that the recursion comes to from the
    stationary covariance of z; (h, h), (m, m) and (h, m), float64.
    """
    Pi = np.linalg.solve(
        np.eye(Phi.size) - np.kron(Phi, Phi), Sigma_e.reshape(-1)
    ).reshape(Phi.shape)  # fmt: skip
    for _ in range(100_000):
        S = E @ Pi @ E.T + Sigma_a
        L = Phi @ Pi @ E.T @ np.linalg.pinv(S, hermitian=True)
        new = Phi @ Pi @ Phi.T + Sigma_e - L @ S @ L.T
        new = 0.5 * (new + new.T)
        done = np.abs(new - Pi).max() <= 1e-15 * np.abs(new).max()
        Pi = new
        if done:
            break
    S = E @ Pi @ E.T + Sigma_a
    return Pi, S, Phi @ Pi @ E.T @ np.linalg.pinv(S, hermitian=True)


def prices_of_constant(
    omega: np.ndarray, kappa: np.ndarray, gamma: float
) -> Float[np.ndarray, " k"]:
    """r_k = Σ_j γʲ Σ_i ω_i/(1 + (k + j) κ_i) for k < COUNT, float64, by recursion from where γʲ has
    gone; exact but for rounding.
    """
    more = int(np.ceil(40.0 / -np.log(gamma)))
    k = np.arange(COUNT + more)
    at_once = (omega[None] / (1.0 + k[:, None] * kappa[None])).sum(axis=1)
    r = np.zeros(len(k) + 1)
    r[-1] = at_once[-1] / (1.0 - gamma)
    for i in range(len(k) - 1, -1, -1):
        r[i] = at_once[i] + gamma * r[i + 1]
    return r[:COUNT]
