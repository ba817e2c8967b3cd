"""Games in which one side plays a given policy: what the other side then faces.

:class:`Opposed` is the agent's problem against a policy σ of the disturbance, :class:`Adversarial`
the disturbance's against a policy π of the agent. The optimum of neither is known in general, but
the value of the game is: for every pair of policies

    J_T(π, σ) + γᵀ E V*(s_T) - V* = E Σ_{k<T} γᵏ (Q* - V*)(s_k, a_k, d_k)

of either sign, >= 0 where d = d*, <= 0 where a = a*. In the latter case -(Q* - V*) = |d - d*|²_B_d,
and :class:`Adversarial` is an ordinary problem with the optimum d*.
"""

from __future__ import annotations

# gamma and offset are those of the game, not leaves of their own.
# pyright: reportIncompatibleVariableOverride=false
import jax.numpy as jnp
import numpy as np
from flax import struct
from numpy.typing import DTypeLike

from cojax import linalg, streams
from cojax.labels import Labels
from cojax.linalg import quadratic_form
from cojax.policy import Policy
from cojax.system import Optimum, System
from cojax.types import Array, Float, PRNGKeyArray, PyTree
from cojax.zero_sum import Game


def stays_away(dim: int, dtype: DTypeLike) -> Policy:
    """d = 0, of ``dim`` entries in a ``dtype``: the nominal problem."""
    return Policy(linalg.to_device(np.zeros(dim), dtype), _constant, "none")


def _constant(params: PyTree, obs: Array, key: PRNGKeyArray) -> Array:
    """Always ``params``."""
    return params


class _Side(System):
    """What both sides have from the game; see :class:`Opposed` and :class:`Adversarial`."""

    game: Game

    @property
    def gamma(self):
        """γ."""
        return self.game.gamma

    @property
    def state_dim(self):
        """d."""
        return self.game.state_dim

    def state_bound(self, radius):
        """That of V*."""
        return self.game.state_bound(radius)

    def sample_noise(self, s, key, a=None):
        """That of the game."""
        return self.game.sample_noise(s, key)


@struct.dataclass
class Opposed(_Side):
    """The agent's problem where a ``policy`` plays the disturbance. No certified system: a* is that
    of the game, not of this problem, and ``excess_cost`` is Q*(s, a, σ(s)) - V*(s), of either sign.

    Methods are of one state s, action a or deviation ``delta`` = a - a*, and ``key``; ``optimum``
    is that at s, its next mean that of the saddle point. σ is asked with one key: draws it makes
    from it are always the same (:class:`cojax.envs.games.AgentEnv` gives it fresh ones).

    Attributes:
        game: whatever its own adversary.
        policy: σ, of a state to (k,).
    """

    game: Game
    policy: Policy

    @property
    def offset(self):
        """b."""
        return self.game.offset

    @property
    def action_dim(self):
        """m."""
        return self.game.action_dim

    def labels(self):
        """Those of the family."""
        return self.game.labels()

    def disturbance(self, s: Float[Array, "d"]) -> Float[Array, "k"]:
        """σ(s)."""
        return jnp.asarray(self.policy(s, streams.root_key(0)), s.dtype)

    def departure(self, s: Float[Array, "d"], optimum: Optimum) -> Float[Array, "k"]:
        """ε = σ(s) - d*(s)."""
        return self.disturbance(s) - self.game.disturbance(optimum)

    def optimum(self, s):
        """a* and z* of the saddle point, and what the state drifts to under σ."""
        at = self.game.inner.optimum(s)
        drift = at.drift + self.game.disturb(s, self.departure(s, at))
        return Optimum(drift, at.action, at.next_mean)

    def actuate(self, s, a):
        """p g(s) a."""
        return self.game.inner.push(s, a)

    def next_mean(self, s, a, optimum):
        """z* + p g (a - a*) + h ε."""
        moved = self.actuate(s, a - optimum.action)
        return optimum.next_mean + moved + self.game.disturb(s, self.departure(s, optimum))

    def stage_cost(self, s, a):
        """c = sᵀQ s + aᵀR a - σᵀΓ σ."""
        spent = quadratic_form(self.game.Gamma, self.disturbance(s))
        return self.game.inner.stage_cost(s, a) - spent

    def value(self, s):
        """V* of the game."""
        return self.game.value(s)

    def expected_value(self, s, z, a=None):
        """E V*(z + w)."""
        return self.game.expected_value(s, z)

    def excess_cost(self, s, delta, optimum=None):
        """Q* - V*, of either sign."""
        at = self.game.inner.optimum(s) if optimum is None else optimum
        return self.game.advantage(s, delta, self.departure(s, at))


@struct.dataclass
class Adversarial(_Side):
    """The disturbance's problem where a ``policy`` plays the agent, as one of costs -c, actions d
    and value -V*; an ordinary problem with the optimum d* where the agent plays a*.

    Methods are as those of :class:`Opposed`, with d (k,) for a and ``delta`` = d - d*. The guard of
    an environment is left to :class:`cojax.envs.games.AdversaryEnv`.

    Attributes:
        game: whatever its own adversary.
        policy: π, of a state to (m,); None for a*.
    """

    game: Game
    policy: Policy | None = None

    @property
    def offset(self):
        """-b."""
        return -self.game.offset

    @property
    def action_dim(self):
        """k."""
        return self.game.disturbance_dim

    def labels(self) -> Labels:
        """States of the family, and the disturbances by number."""
        return self.game.labels()[0], [f"disturbance {i + 1}" for i in range(self.action_dim)]

    def agent(self, s: Float[Array, "d"], optimum: Optimum) -> Float[Array, "m"]:
        """π(s); ``optimum`` is that of the game."""
        if self.policy is None:
            return optimum.action
        return jnp.asarray(self.policy(s, streams.root_key(0)), s.dtype)

    def optimum(self, s):
        """d*, and f + p g π."""
        at = self.game.inner.optimum(s)
        pushed = self.game.inner.push(s, self.agent(s, at) - at.action)
        d, mean = self.game.disturbance(at), at.next_mean + pushed
        return Optimum(mean - self.game.disturb(s, d), d, mean)

    def actuate(self, s, a):
        """h(s) d."""
        return self.game.disturb(s, a)

    def stage_cost(self, s, a):
        """-c = dᵀΓ d - sᵀQ s - πᵀR π."""
        action = self.agent(s, self.game.inner.optimum(s))
        return quadratic_form(self.game.Gamma, a) - self.game.inner.stage_cost(s, action)

    def value(self, s):
        """-V*."""
        return -self.game.value(s)

    def expected_value(self, s, z, a=None):
        """-E V*(z + w)."""
        return -self.game.expected_value(s, z)

    def excess_cost(self, s, delta, optimum=None):
        """|δ|²_B_d where the agent plays a*, else V* - Q* of either sign."""
        if self.policy is None:
            return self.game.spent(s, delta)
        at = self.game.inner.optimum(s)
        return -self.game.advantage(s, self.agent(s, at) - at.action, delta)
