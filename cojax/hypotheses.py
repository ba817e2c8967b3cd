"""Which of two constants pushes, and when it changes: the exact filter of a hidden Markov chain.

    z one of two unit vectors, P(i → j) = Π_ij     n = E z + w_a     belief π, chances
    π' = Πᵀπ⁺,  π⁺_i ∝ π_i exp(-|n - E_i|²/2) in the metric of Σ_a⁻¹
    r(π) = tr(B E Cov(z|π) Eᵀ) + γ E r(π')

The filter is not linear, and r is found on a grid, in float64 when a system is built.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from scipy.special import expit

from cojax import streams
from cojax.belief import Belief, Filter
from cojax.linalg import product
from cojax.types import Array, Float, PRNGKeyArray, PyTree

GRID = 801  # of r, in x = 2/π asin sqrt(π_1): r is steep at both ends


@struct.dataclass
class Hypotheses(Filter):
    """One of two hypotheses, which may change as a Markov chain does; b their chances.

    Attributes:
        effect, root_a, cov_a: see :class:`Filter`; the rows of ``effect`` are E_i.
        transition: (2, 2), Π.
        whiten: (m, m), a root of Σ_a⁻¹, transposed.
        start: (2,), the chances at first.
        prices: (GRID,), r on the grid.
        weight: (m, m), B.
        gamma: (), discount.
    """

    effect: Float[Array, "*batch h m"]
    root_a: Float[Array, "*batch m m"]
    cov_a: Float[Array, "*batch m m"]
    transition: Float[Array, "*batch h h"]
    whiten: Float[Array, "*batch m m"]
    start: Float[Array, "*batch h"]
    prices: Float[Array, "*batch k"]
    weight: Float[Array, "*batch m m"]
    gamma: Float[Array, "*batch"]

    def update(self, b, n):
        """Bayes' rule, and a step of the chain."""
        apart = product(n[None] - self.effect, self.whiten)
        log = -0.5 * jnp.sum(apart**2, axis=-1)
        likely = b * jnp.exp(log - jnp.max(jnp.where(b > 0.0, log, -jnp.inf)))
        return product(likely / jnp.sum(likely), self.transition)

    def ahead(self, b):
        """Πᵀπ."""
        return product(b, self.transition)

    def apart(self, b: Belief) -> Float[Array, "m m"]:
        """E Cov(z|b) Eᵀ."""
        mean = self.predicted(b)
        return product((b[:, None] * self.effect).T, self.effect) - mean[:, None] * mean[None]

    def spread(self, b):
        """That of the mean, and Σ_a."""
        return self.apart(b) + self.cov_a

    def price(self, b):
        """r(b), by third-order interpolation."""
        x = jnp.clip(b[0] / jnp.maximum(jnp.sum(b), jnp.finfo(b.dtype).tiny), 0.0, 1.0)
        at = 2.0 / jnp.pi * jnp.arctan2(jnp.sqrt(x), jnp.sqrt(1.0 - x)) * (GRID - 1)
        first = jnp.clip(jnp.floor(at).astype(jnp.int32) - 1, 0, GRID - 4)
        weights = jnp.stack(cubic(at - first.astype(at.dtype)))
        return jnp.sum(weights * jax.lax.dynamic_slice(self.prices, (first,), (4,)))

    def price_ahead(self, b):
        """(r(b) - tr(B E Cov(z|b) Eᵀ))/γ."""
        return (self.price(b) - jnp.sum(self.weight * self.apart(b))) / self.gamma

    @streams.pinned()
    def draw(self, b, key):
        """E_i of an i drawn by b, and w_a."""
        u = jax.random.uniform(jax.random.fold_in(key, 1), (), jnp.float32).astype(b.dtype)
        return self.effect[jnp.where(u < b[0], 0, 1)] + self.shake(key)

    def initial(self):
        """The chances at first."""
        return self.start

    @streams.pinned()
    def first(self, key):
        """By those chances."""
        return self._drawn(self.start, key)

    def moved(self, z):
        """Πᵀz."""
        return product(z, self.transition)

    @streams.pinned()
    def jolt(self, z, key):
        """What the chain moves beyond its mean, by the key's own words; and w_a."""
        mean = self.moved(z)
        return self._drawn(mean, key) - mean, self.shake(key)

    def _drawn(self, chances: Belief, key: PRNGKeyArray) -> Float[Array, "h"]:
        """A unit vector drawn by ``chances``, multiples of 2⁻²⁰."""
        word = streams.to_words(key)[0]
        u = (word >> 8).astype(chances.dtype) * 2.0**-24
        passed = jnp.where(u < chances[0], 0, 1)
        return (jnp.arange(self.hidden_dim) == passed).astype(chances.dtype)

    def project(self, b):
        """Sizes over their sum; where all are 0 the chances at first."""
        size = jnp.abs(b)
        total = jnp.sum(size)
        return jnp.where(total > 0.0, size / jnp.where(total > 0.0, total, 1.0), self.start)

    def project_hidden(self, z):
        """The unit vector of the largest."""
        return (jnp.arange(self.hidden_dim) == jnp.argmax(z)).astype(z.dtype)

    def bounds(self):
        """1."""
        one = jnp.ones_like(self.start)
        return one, one


# --- on the host ---------------------------------------------------------------------------------


def cubic(t: PyTree) -> tuple[PyTree, ...]:
    """Weights of the neighbours 0, 1, 2 and 3 in the polynomial through them, at a place ``t``."""
    return (
        -(t - 1.0) * (t - 2.0) * (t - 3.0) / 6.0,
        t * (t - 2.0) * (t - 3.0) / 2.0,
        -t * (t - 1.0) * (t - 3.0) / 2.0,
        t * (t - 1.0) * (t - 2.0) / 6.0,
    )


def prices_of_two(
    E: np.ndarray, chain: np.ndarray, *, B: np.ndarray, Sigma_a: np.ndarray, gamma: float
) -> Float[np.ndarray, " k"]:
    """r of two hypotheses on the grid, float64: the linear equation r = tr(B E Cov Eᵀ) + γ E r(π'),
    where E r(π') is integrated by Gauss-Hermite quadrature of the log-likelihood ratio, which is
    N(±κ/2, κ), κ = |E_1 - E_2|² in the metric of Σ_a⁻¹.
    """
    apart = E[:, 0] - E[:, 1]
    kappa = float(apart @ np.linalg.solve(Sigma_a, apart))
    chance = np.sin(0.5 * np.pi * np.linspace(0.0, 1.0, GRID)) ** 2
    with np.errstate(divide="ignore"):
        odds = np.log(chance) - np.log(np.cos(0.5 * np.pi * np.linspace(0.0, 1.0, GRID)) ** 2)
    odds[-1] = np.inf
    nodes, weights = np.polynomial.hermite_e.hermegauss(60)
    weights = weights / weights.sum()
    ahead = np.zeros((GRID, GRID))
    rows = np.arange(GRID)
    for sign, prior in ((1.0, chance), (-1.0, 1.0 - chance)):
        for x, w in zip(nodes, weights, strict=True):
            after = expit(odds + sign * 0.5 * kappa + np.sqrt(kappa) * x)
            after = np.clip(after * chain[0, 0] + (1.0 - after) * chain[1, 0], 0.0, 1.0)
            at = 2.0 / np.pi * np.arctan2(np.sqrt(after), np.sqrt(1.0 - after)) * (GRID - 1)
            first = np.clip(np.floor(at).astype(int) - 1, 0, GRID - 4)
            for j, part in enumerate(cubic(at - first)):
                np.add.at(ahead, (rows, first + j), w * prior * part)
    at_once = chance * (1.0 - chance) * float(apart @ B @ apart)
    return np.linalg.solve(np.eye(GRID) - gamma * ahead, at_once)
