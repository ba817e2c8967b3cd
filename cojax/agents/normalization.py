"""Running statistics: of observations, of discounted returns (reward scale), of value targets.

Each is changed once per update, between updates: inside one, all networks see the same numbers.
"""

from __future__ import annotations

from functools import partial
from typing import TypeAlias

import jax
import jax.numpy as jnp
from flax import struct

from cojax.linalg import lift
from cojax.types import Array, Bool, Float, PyTree

EPSILON = 1e-8
EXACT = 2.0**24  # up to where float32 counts one by one
Number: TypeAlias = Float[Array, ""] | float


class Moments(struct.PyTreeNode):
    """Mean and variance of a stream, per dimension.

    Attributes:
        mean: of each dimension, or of a number.
        var: population variance.
        count: number of samples seen.
        rest: what rounding has left of (mean, var, count), 0 up to 2²⁴ samples.
    """

    mean: Float[Array, "*batch"]
    var: Float[Array, "*batch"]
    count: Float[Array, "*M"]
    rest: PyTree = None

    def __post_init__(self) -> None:
        if self.rest is None:
            nothing = tuple(jnp.zeros_like(x) for x in (self.mean, self.var, self.count))
            object.__setattr__(self, "rest", nothing)

    @classmethod
    def create(cls, shape: tuple[int, ...]) -> Moments:
        """One pretended sample of mean 0 and variance 1: no dimension ever has zero variance."""
        return cls(jnp.zeros(shape), jnp.ones(shape), jnp.ones(()))

    def std(self) -> Float[Array, "*batch"]:
        """√(var + ε)."""
        return jnp.sqrt(self.var + EPSILON)

    def merge(self, batch: Float[Array, " n *d"]) -> Moments:
        """Statistics of everything seen so far and ``batch``.

        With δ = mean_batch - mean and N = count + n (Chan, Golub and LeVeque 1983):

            mean' = mean + δ n/N,   var' = (count·var + n·var_batch + δ² count·n/N) / N

        From 2²⁴ samples on a batch may be less than the rounding of what it is added to. Then
        the same changes are added with the rest of those before (Kahan 1965):

            mean' = mean + δ n/N,   var' = var + (var_batch - var + δ² count/N) n/N
        """
        n = batch.shape[0]
        mean, var = jnp.mean(batch, axis=0), jnp.var(batch, axis=0)
        delta, total = mean - self.mean, self.count + n
        spread = self.count * self.var + n * var + delta**2 * (self.count * n / total)
        few = Moments(self.mean + delta * (n / total), spread / total, total, self.rest)
        share = n / total
        change = delta * share, (var - self.var + (1 - share) * delta**2) * share, n
        old = self.mean, self.var, self.count
        pairs = [_add(*x) for x in zip(old, self.rest, change, strict=True)]
        many = Moments(*(x for x, _ in pairs), rest=tuple(y for _, y in pairs))
        return jax.tree.map(partial(jnp.where, total < EXACT), few, many)

    def normalize(self, x: Float[Array, "*batch d"], clip: Number) -> Float[Array, "*batch d"]:
        """(x - mean)/std, clipped to ±clip."""
        return jnp.clip((x - lift(self.mean, x)) / lift(self.std(), x), -clip, clip)

    def winsorize(self, x: Float[Array, "*batch d"], clip: Number) -> Float[Array, "*batch d"]:
        """x with every dimension moved inside mean ± clip·std.

        Merging winsorised samples lets one runaway state move the statistics by a bounded factor
        per update instead of by its square. A NaN becomes the mean.
        """
        mean, reach = lift(self.mean, x), lift(clip * self.std(), x)
        x = jnp.clip(x, mean - reach, mean + reach)
        return jnp.where(jnp.isnan(x), mean, x)


def _add(x: Array, rest: Array, change: Array | float) -> tuple[Array, Array]:
    """x + rest + change as a number and what rounding left of it."""
    change = change + rest
    total = x + change
    return total, change - (total - x)


class RewardScale(struct.PyTreeNode):
    """Scale of rewards: the standard deviation of the discounted return so far.

        G_t = r_t + γ G_{t-1},     scale = std(G)

    Attributes:
        moments: of every G_t seen.
        accumulator: G of each environment's episode.
    """

    moments: Moments
    accumulator: Float[Array, "*M num_envs"]

    @classmethod
    def create(cls, num_envs: int) -> RewardScale:
        """No return seen yet."""
        return cls(Moments.create(()), jnp.zeros(num_envs))

    def merge(
        self, rewards: Float[Array, "T num_envs"], done: Bool[Array, "T num_envs"], gamma: Number
    ) -> RewardScale:
        """Add rewards and end-of-episode flags.

        G is zeroed after the last reward of an episode has been counted, so that reward counts,
        and nothing leaks into the next episode.
        """

        def step(accumulator, inputs):
            reward, end = inputs
            accumulator = reward + gamma * accumulator
            return jnp.where(end, 0.0, accumulator), accumulator

        accumulator, returns = jax.lax.scan(step, self.accumulator, (rewards, done), unroll=8)
        return RewardScale(self.moments.merge(returns.reshape(-1)), accumulator)


class PopArt(struct.PyTreeNode):
    """Mean and standard deviation of value targets, exponentially forgotten.

    A critic outputs (V - mean)/std. Where a policy's cost falls by orders of magnitude while it
    learns, an average over all the past would stay at the scale of the first, worst policies;
    forgetting follows. With its head corrected for every change of (mean, std) the function V
    itself does not change (PopArt: van Hasselt et al. 2016, arXiv:1602.07714).

    Attributes:
        first: weighted sum of x.
        second: weighted sum of x².
        weight: sum of weights, in [0, 1): dividing by it removes the bias of the start.
    """

    first: Float[Array, "*M"]
    second: Float[Array, "*M"]
    weight: Float[Array, "*M"]

    @classmethod
    def create(cls) -> PopArt:
        """No target seen yet: mean 0, std 1."""
        return cls(jnp.zeros(()), jnp.zeros(()), jnp.zeros(()))

    def mean(self) -> Float[Array, "*M"]:
        """Weighted mean; 0 before the first merge."""
        return jnp.where(self.weight > 0, self.first / jnp.maximum(self.weight, EPSILON), 0.0)

    def std(self) -> Float[Array, "*M"]:
        """Weighted standard deviation, at least 1e-3 of the mean; 1 before the first merge."""
        second = self.second / jnp.maximum(self.weight, EPSILON)
        spread = jnp.sqrt(jnp.maximum(second - self.mean() ** 2, 0.0))
        spread = jnp.maximum(spread, 1e-3 * jnp.abs(self.mean()) + EPSILON)
        return jnp.where(self.weight > 0, spread, 1.0)

    def merge(self, targets: Float[Array, "*batch"], rate: Number) -> PopArt:
        """x̄ ← (1-rate) x̄ + rate · mean(x), and the same for x²."""
        return PopArt(
            (1 - rate) * self.first + rate * jnp.mean(targets),
            (1 - rate) * self.second + rate * jnp.mean(targets**2),
            (1 - rate) * self.weight + rate,
        )
