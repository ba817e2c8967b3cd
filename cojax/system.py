"""What a system is: s' = f(s) + G(s) a + w with a known optimal value and policy.

The interface asks for nothing that is special to quadratics: the stage cost, the value and the
optimal action are functions of the family, so that non-quadratic values, state-dependent noise and
bounded inputs (theory beyond the paper's QG case) implement the same eight methods.

Every function takes one state, one action or one key. Batches come from ``jax.vmap``.
"""

from __future__ import annotations

import abc
from typing import NamedTuple

import jax
import jax.numpy as jnp


class Optimum(NamedTuple):
    """What one evaluation of the construction at a state gives."""

    drift: jax.Array  # (d,) f(s)
    action: jax.Array  # (m,) a*(s)
    next_mean: jax.Array  # (d,) z*(s) = f(s) + G(s) a*(s)


class System(abc.ABC):
    """A certified system: minimise E Σ γᵏ c(s_k, a_k); V* and π* are known in closed form.

    Implementations are pytrees. ``gamma`` and ``offset`` (b = V*(origin)) are leaves.
    """

    gamma: jax.Array
    offset: jax.Array

    @property
    @abc.abstractmethod
    def state_dim(self) -> int:
        """d, the dimension of s."""

    @property
    @abc.abstractmethod
    def action_dim(self) -> int:
        """m, the dimension of a."""

    @abc.abstractmethod
    def optimum(self, s: jax.Array) -> Optimum:
        """Drift f(s), optimal action a*(s) and mean next state under it, from one computation."""

    @abc.abstractmethod
    def actuate(self, s: jax.Array, a: jax.Array) -> jax.Array:
        """G(s) a, shape (d,): what the action adds to the mean next state."""

    @abc.abstractmethod
    def stage_cost(self, s: jax.Array, a: jax.Array) -> jax.Array:
        """c(s, a) = q(s) + ρ(a) >= 0."""

    @abc.abstractmethod
    def value(self, s: jax.Array) -> jax.Array:
        """V*(s), offset included."""

    @abc.abstractmethod
    def expected_value(self, s: jax.Array, z: jax.Array) -> jax.Array:
        """E V*(z + w) for the disturbance w at state s."""

    @abc.abstractmethod
    def excess_cost(self, s: jax.Array, delta: jax.Array) -> jax.Array:
        """A*(s, a*(s) + δ) = Q*(s, a*(s) + δ) - V*(s) >= 0, exactly 0 at δ = 0; δ is (m,)."""

    @abc.abstractmethod
    def state_bound(self, radius: jax.Array) -> jax.Array:
        """Row by row, the largest |s_i| with V*(s) - b <= radius²; shape (d,)."""

    def reach(self, radius: jax.Array, start: jax.Array, limit: jax.Array) -> jax.Array:
        """Row by row, a bound of |s_i| after one step from a state with V*(s) - b <= radius² or
        |s_i| <= start_i, under actions |a_i| <= limit_i; shape (d,). By default a guess: four
        times what is inside.
        """
        return 4.0 * jnp.maximum(self.state_bound(radius), start)

    @abc.abstractmethod
    def sample_noise(self, s: jax.Array, key: jax.Array) -> jax.Array:
        """One draw of w at state s, shape (d,)."""


def mean_next_state(system: System, s: jax.Array, a: jax.Array) -> jax.Array:
    """z(s, a) = f(s) + G(s) a, shape (d,)."""
    return next_mean(system, s, a, system.optimum(s))


def next_mean(system: System, s: jax.Array, a: jax.Array, optimum: Optimum) -> jax.Array:
    """z(s, a) = z*(s) + G(s) (a - a*(s)), where the optimum at s is at hand: exact at a = a*."""
    return optimum.next_mean + system.actuate(s, a - optimum.action)


def step(system: System, s: jax.Array, a: jax.Array, key: jax.Array) -> jax.Array:
    """s' = f(s) + G(s) a + w, one transition; shape (d,)."""
    return mean_next_state(system, s, a) + system.sample_noise(s, key)
