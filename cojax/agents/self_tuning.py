"""What a learner finds out by itself: how large a useful action is, how long an episode it holds.

Both come from rewards alone, of the environment that it learns in.
"""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
from flax import struct

from cojax import streams
from cojax.agents.algorithm import Environment, Number, reset_all
from cojax.agents.distributions import ActionBox
from cojax.types import Array, Bool, Float, Int, PRNGKeyArray, PyTree

LEVELS = 11  # fractions of the box that are tried: 1, 1/2, ... 1/1024
TRIED = (8, 24)  # environments and steps of each
WORSE = 1.0  # what random actions may cost, in mean |reward| of doing nothing
FIRST = 16.0  # steps of the first episodes
SHORTEST = 8.0
FAR = 20.0  # mean |early rewards|, by which one is lower where a state has run away
FORGET = 0.2  # weight of the newest rewards


def action_unit(env: Environment, key: PRNGKeyArray, env_params: PyTree) -> Float[Array, ""]:
    """The fraction of the action box in which useful actions lie.

    Uniform actions in 1, 1/2, 1/4, … of the box are compared with doing nothing (the centre of the
    box), on the same starts, noise and directions. The answer is the largest fraction such that it
    and no smaller one loses more than the mean |reward| of doing nothing. Where the whole box is
    useful that is 1; where a box is a thousand times what good actions need, about a thousandth.
    """
    num_envs, num_steps = TRIED
    reset_key, step_key, direction_key = jax.random.split(key, 3)
    box = ActionBox.of(env.action_space(env_params))
    obs, start = reset_all(env, reset_key, env_params, num_envs)
    del obs
    shape = (num_steps, num_envs, *box.low.shape)
    directions = jax.random.uniform(direction_key, shape, minval=-1.0, maxval=1.0)
    words = streams.to_words(jax.random.split(step_key, (num_steps, num_envs)))
    step_env = jax.vmap(env.step, (0, 0, 0, None))

    def of(fraction):
        def step(carry, inputs):
            state, total, size = carry
            words, u = inputs
            action = box.clip(box.to_action(fraction * u))
            _, state, reward, *_ = step_env(streams.of_words(words), state, action, env_params)
            reward = jnp.nan_to_num(jnp.mean(reward), nan=-1e30, neginf=-1e30)
            return (state, total + reward, size + jnp.abs(reward)), None

        zero = jnp.zeros(())
        (_, total, size), _ = jax.lax.scan(step, (start, zero, zero), (words, directions))
        return total, size

    fractions = 0.5 ** jnp.arange(LEVELS, dtype=jnp.float32)
    totals, sizes = jax.lax.map(of, jnp.concatenate([fractions, jnp.zeros(1)]))
    harmless = totals[:-1] >= totals[-1] - WORSE * sizes[-1]
    # from the smallest up, as long as it does no harm
    fine = jnp.cumprod(harmless[::-1].astype(jnp.int32))[::-1]
    return jnp.maximum(jnp.max(fractions * fine.astype(jnp.float32)), fractions[-1])


class EpisodeLimit(struct.PyTreeNode):
    """The time limit that a learner sets itself, longer the longer its policy holds the state.

    Attributes:
        steps: the limit.
        early: running mean of rewards in the first quarter of episodes.
        late: the same of their last quarter.
        seen: 1 where early, late ones have been seen.
    """

    steps: Float[Array, "*M"]
    early: Float[Array, "*M"]
    late: Float[Array, "*M"]
    seen: Float[Array, "*M 2"]

    @classmethod
    def create(cls) -> EpisodeLimit:
        """Before the first episode."""
        return cls(jnp.asarray(FIRST), jnp.zeros(()), jnp.zeros(()), jnp.zeros(2))

    def sums(self, time: Int[Array, "*N"], reward: Float[Array, "*N"]) -> Float[Array, "4"]:
        """What one step of N environments, ``time`` steps into their episodes, adds."""
        time = time.astype(jnp.float32)
        early, late = time < 0.25 * self.steps, time >= 0.75 * self.steps - 1.0
        reward = jnp.where(jnp.isfinite(reward), reward, -1e30)

        def both(where):
            return jnp.sum(jnp.where(where, reward, 0.0)), jnp.sum(where.astype(jnp.float32))

        return jnp.stack([*both(early), *both(late)])

    def spread(self, num_envs: int) -> Float[Array, "N"]:
        """Limits of N environments, from ``FIRST`` to the longest, evenly by their logarithms.

        Many episodes are short: what a value is discounted by falls with the steps, too.
        """
        share = jnp.linspace(1.0, 0.0, num_envs)
        return jnp.minimum(FIRST, self.steps) ** (1.0 - share) * self.steps**share

    def away(self, reward: Float[Array, "*N"]) -> Bool[Array, "*N"]:
        """Whether an environment has run away: its reward is far below those of the start."""
        return (self.seen[0] > 0) & ~(reward >= self.early - FAR * jnp.abs(self.early))

    def follow(self, sums: Float[Array, "4"], num_steps: int, growth: Number) -> EpisodeLimit:
        """The limit after ``num_steps`` steps of each environment.

        Longer by ``growth`` times the steps where late rewards, of which some were seen in them,
        are at most one |early reward| below the early ones, shorter by as much where it is more
        than four.
        """
        totals, counts = sums[::2], sums[1::2]
        now = counts > 0
        old = jnp.stack([self.early, self.late])
        rate = jnp.where(self.seen > 0, FORGET, 1.0)
        new = old + rate * (totals / jnp.maximum(counts, 1.0) - old)
        early, late = jnp.where(now, new, old)
        seen = jnp.maximum(self.seen, now.astype(jnp.float32))
        loss = (early - late) / (jnp.abs(early) + 1e-30)
        change = jnp.where(loss < 1.0, 1.0, jnp.where(loss > 4.0, -1.0, 0.0))
        change = growth * num_steps * jnp.where(now[1] & (seen[0] > 0), change, 0.0)
        steps = jnp.maximum(self.steps + change, SHORTEST)
        return EpisodeLimit(steps, early, late, seen)


def limits(
    limit: EpisodeLimit, env_params: PyTree, h: PyTree
) -> tuple[Callable[[Bool[Array, "N"]], PyTree], PyTree]:
    """Parameters of N environments, each with a time limit of its own, and their axes for vmap.

    The first is of which environments have run away: their limit is 0, so that they begin anew at
    the next step. Without ``h.episode_growth``, or where the time limit is a part of the problem
    (``terminal_value="optimal"``), all have the environment's own.
    """
    paths, tree = jax.tree_util.tree_flatten_with_path(env_params)
    leaves = [x for _, x in paths]
    limited = [path == (jax.tree_util.GetAttrKey("max_steps_in_episode"),) for path, _ in paths]
    own = jnp.asarray(env_params.max_steps_in_episode)
    free = getattr(env_params, "terminal_value", "none") != "optimal"
    on = (h.episode_growth > 0) & free
    mine = jnp.ceil(jnp.minimum(limit.spread(h.num_envs), own.astype(jnp.float32))).astype(
        own.dtype
    )
    mine = jnp.where(on, mine, own)

    def of(away):
        now = jnp.where(away & on, jnp.zeros_like(mine), mine)
        return tree.unflatten([now if x else y for x, y in zip(limited, leaves, strict=True)])

    return of, tree.unflatten([0 if x else None for x in limited])
