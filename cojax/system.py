"""What a system is: s' = f(s) + G(s) a + w with a known optimal value and policy.

The interface asks for nothing that is special to quadratics: the stage cost, the value and the
optimal action are functions of the family, so that non-quadratic values, state-dependent noise and
bounded inputs (theory beyond the paper's QG case) implement the same eight methods.

Every function takes one state, one action or one key. Batches come from ``jax.vmap``.
"""

from __future__ import annotations

import abc
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np

from cojax import labels
from cojax.distinct import Distinct
from cojax.types import Array, Bool, Float, PRNGKeyArray


class Optimum(NamedTuple):
    """What one evaluation of the construction at a state gives."""

    drift: Float[Array, "*batch d"]  # f(s)
    action: Float[Array, "*batch m"]  # a*(s)
    next_mean: Float[Array, "*batch d"]  # z*(s) = f(s) + G(s) a*(s)


class System(Distinct, abc.ABC):
    """A certified system: minimise E Σ γᵏ c(s_k, a_k); V* and π* are known in closed form.

    Implementations are pytrees. ``gamma`` and ``offset`` (b = V*(origin)) are leaves.
    """

    gamma: Float[Array, "*batch"]
    offset: Float[Array, "*batch"]

    @property
    @abc.abstractmethod
    def state_dim(self) -> int:
        """d, the dimension of s."""

    @property
    @abc.abstractmethod
    def action_dim(self) -> int:
        """m, the dimension of a."""

    @abc.abstractmethod
    def optimum(self, s: Float[Array, "d"]) -> Optimum:
        """Drift f(s), optimal action a*(s) and mean next state under it, from one computation."""

    @abc.abstractmethod
    def actuate(self, s: Float[Array, "d"], a: Float[Array, "m"]) -> Float[Array, "d"]:
        """G(s) a: what the action adds to the mean next state; it need not be linear in a."""

    def next_mean(
        self, s: Float[Array, "d"], a: Float[Array, "m"], optimum: Optimum
    ) -> Float[Array, "d"]:
        """z(s, a) = z*(s) + G(s) (a - a*(s)), exact at a = a*; another where G(s) a is not linear
        in a. ``optimum`` is ``self.optimum(s)``.
        """
        return optimum.next_mean + self.actuate(s, a - optimum.action)

    @abc.abstractmethod
    def stage_cost(self, s: Float[Array, "d"], a: Float[Array, "m"]) -> Float[Array, ""]:
        """c(s, a) = q(s) + ρ(a) >= 0."""

    def cost_at(
        self, s: Float[Array, "d"], a: Float[Array, "m"], optimum: Optimum
    ) -> Float[Array, ""]:
        """c(s, a), where ``optimum``, that at s, is at hand and the cost may need it."""
        return self.stage_cost(s, a)

    @abc.abstractmethod
    def value(self, s: Float[Array, "d"]) -> Float[Array, ""]:
        """V*(s), offset included."""

    @abc.abstractmethod
    def expected_value(
        self, s: Float[Array, "d"], z: Float[Array, "d"], a: Float[Array, "m"] | None = None
    ) -> Float[Array, ""]:
        """E V*(z + w) for the disturbance w at state s; ``a`` is wanted where w depends on it."""

    @abc.abstractmethod
    def excess_cost(
        self, s: Float[Array, "d"], delta: Float[Array, "m"], optimum: Optimum | None = None
    ) -> Float[Array, ""]:
        """A*(s, a*(s) + δ) = Q*(s, a*(s) + δ) - V*(s) >= 0 for a feasible action, exactly 0 at
        δ = 0. ``optimum`` is ``self.optimum(s)``, computed where it is wanted and not given.
        """

    @abc.abstractmethod
    def state_bound(self, radius: Float[Array, ""]) -> Float[Array, "d"]:
        """Row by row, the largest |s_i| with V*(s) - b <= radius²."""

    def reach(
        self, radius: Float[Array, ""], start: Float[Array, "d"], limit: Float[Array, "m"]
    ) -> Float[Array, "d"]:
        """Row by row, a bound of |s_i| after one step from a state with V*(s) - b <= radius² or
        |s_i| <= start_i, under actions |a_i| <= limit_i. By default a guess: four times what is
        inside.
        """
        return 4.0 * jnp.maximum(self.state_bound(radius), start)

    @abc.abstractmethod
    def sample_noise(
        self, s: Float[Array, "d"], key: PRNGKeyArray, a: Float[Array, "m"] | None = None
    ) -> Float[Array, "d"]:
        """One draw of w at state s; ``a`` is wanted where w depends on it."""

    @property
    def observed_dim(self) -> int:
        """How many of the first entries of a state an agent sees: all, but where some are hidden
        (:mod:`cojax.hidden`); decided by the structure.
        """
        return self.state_dim

    @property
    def known(self) -> System:
        """The same problem for one who knows what can be known, which certificates are about: the
        system itself, where nothing is hidden.
        """
        return self

    @property
    def constant_curvature(self) -> bool:
        """Whether A*(s, a* + δ) = δᵀB δ with one B for all states; decided by the structure."""
        return False

    @property
    def additive(self) -> bool:
        """Whether V^π - V* = E Σ γᵏ A*(s_k, a_k) for every policy; decided by the structure."""
        return True

    def certainty(
        self, s: Float[Array, "d"], values: Float[Array, "N"]
    ) -> tuple[Float[Array, ""], Float[Array, ""]]:
        """What draws of V*(s') after state s count for, as in :meth:`expected_value`, and the
        standard error: their mean, where risk has no price.
        """
        return jnp.mean(values), jnp.std(values) / values.shape[0] ** 0.5

    @property
    def constrained(self) -> bool:
        """Whether there are actions that are not feasible; decided by the structure alone."""
        return False

    def feasible(self, a: Float[Array, "m"]) -> Float[Array, "m"]:
        """The feasible action nearest to a; of actions without bounds, a itself."""
        return a

    def feasible_box(self) -> Float[np.ndarray, "m"] | None:
        """The limit of the smallest box around the feasible actions, on the host; or None."""
        return None

    def downhill(self, mean: Float[Array, "m"], rms: Float[Array, "m"]) -> Float[Array, "m"]:
        """Adam's direction from mean and root mean square of gradients, in a metric in which
        ``feasible`` is a projection: entry by entry, where that says nothing else.
        """
        return mean / rms

    def ended(self, s: Float[Array, "d"]) -> Bool[Array, ""]:
        """Whether s is where an episode has come to its end, from which nothing costs anything."""
        return jnp.zeros((), bool)

    def labels(self) -> labels.Labels:
        """Names and units of the entries of a state and of an action, in their order."""
        return labels.of("", {}, self.state_dim, self.action_dim)

    def project(self, s: Float[Array, "d"]) -> Float[Array, "d"]:
        """The state nearest to s: s itself, but where not every vector is a state."""
        return s

    def size(self, s: Float[Array, "d"]) -> Float[Array, ""]:
        """V*(s) less what noise alone costs from there on, and what was paid for what s remembers:
        V*(s) - b, where that is one number and nothing is remembered.
        """
        return self.value(s) - self.offset

    @property
    def noise_power(self) -> Float[Array, "*batch"]:
        """κ of E size(s') = size(z) + κ under π*, at the most: (1-γ) b/γ."""
        return (1.0 / self.gamma - 1.0) * self.offset

    @property
    def audited(self) -> bool:
        """Whether ``least_cost`` says that V* is the optimal value, and no condition on matrices;
        decided by the structure.
        """
        return False

    def least_cost(self, s: Float[Array, "d"]) -> Float[Array, ""]:
        """The least that is paid at s whatever is done there, and what was paid the step before for
        what s remembers, if ``size`` holds that too. Where it is >= β size(s), β > 0, V* is the
        optimal value, since γᵏ E V*(s_k) → 0 for every policy of finite cost; and under π*
        E size(s') <= (1-β)/γ size(s) + κ.
        """
        raise NotImplementedError

    @property
    def follows_mean(self) -> bool:
        """Whether V* - b is the least cost of the noise-free path, ``noise_price`` included;
        decided by the structure.
        """
        return True

    def noise_price(self, s: Float[Array, "d"], a: Float[Array, "m"]) -> Float[Array, ""]:
        """γ (E V*(z + w) - V*(z)) - (1-γ) b, z = f(s) + G(s) a: what the noise costs here beyond
        what it costs at the origin; 0 where neither s nor a enters.
        """
        return jnp.zeros((), s.dtype)

    @property
    def measures(self) -> tuple[str, ...]:
        """Names of sums Σ γᵏ m(s_k, a_k) that are followed beside the cost; decided by the
        structure. ``cost`` is what a budget is for (:mod:`cojax.budgets`).
        """
        return ()

    @property
    def measures_known(self) -> bool:
        """Whether the sums under π*, V_m, are known in closed form; decided by the structure."""
        return False

    def measured(
        self, s: Float[Array, "d"], a: Float[Array, "m"], optimum: Optimum
    ) -> Float[Array, "k"]:
        """m(s, a) of each of ``measures``. ``optimum`` is ``self.optimum(s)``."""
        return jnp.zeros(0, s.dtype)

    def measured_values(self, s: Float[Array, "d"]) -> Float[Array, "k"]:
        """V_m(s) = E Σ γᵏ m(s_k, a*_k) of each; where they are not known, a share of V*(s) each."""
        raise NotImplementedError

    def measured_means(
        self, mean: Float[Array, "d"], covariance: Float[Array, "d d"]
    ) -> Float[Array, "k"]:
        """E V_m(s_0) of each, or estimates of it, for s_0 of these moments."""
        raise NotImplementedError

    def measured_excess(
        self, s: Float[Array, "d"], delta: Float[Array, "m"], optimum: Optimum
    ) -> Float[Array, "k"]:
        """A_m = m(s, a* + δ) + γ E V_m(s') - V_m(s) of each, where V_m are known: of either sign,
        exactly 0 at δ = 0, and J_m - E V_m(s_0) = E Σ γᵏ A_m for every policy.
        """
        raise NotImplementedError


def mean_next_state(
    system: System, s: Float[Array, "d"], a: Float[Array, "m"]
) -> Float[Array, "d"]:
    """z(s, a) = f(s) + G(s) a."""
    return next_mean(system, s, a, system.optimum(s))


def next_mean(
    system: System, s: Float[Array, "d"], a: Float[Array, "m"], optimum: Optimum
) -> Float[Array, "d"]:
    """z(s, a), where the optimum at s is at hand: exact at a = a*."""
    return system.next_mean(s, a, optimum)


def step(
    system: System, s: Float[Array, "d"], a: Float[Array, "m"], key: PRNGKeyArray
) -> Float[Array, "d"]:
    """s' = f(s) + G(s) a + w, one transition."""
    return mean_next_state(system, s, a) + system.sample_noise(s, key, a)
