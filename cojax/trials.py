"""One trial of the common streams: the loop under curves, diagnosis, animation and plots.

:mod:`cojax.evaluation.rollout` runs many trials of many policies together and reduces as it goes;
this is for programs that look at a single one, and those that batch it by ``vmap``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, TypeAlias, TypeVar

import chex
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from cojax import streams
from cojax.envs import EnvParams
from cojax.system import Optimum, System, next_mean
from cojax.types import Array, Bool, Float, Int, PRNGKeyArray, PyTree

Total = TypeVar("Total")
Carry: TypeAlias = tuple[Float[Array, "d"], Bool[Array, ""], PyTree]
Figures = TypeVar("Figures", jax.Array, np.ndarray)


class Step(NamedTuple):
    """Step k of a trial, as ``observe`` is told of it.

    Attributes:
        k: its number, from 0.
        s: the state before it, (d,); once a trial has failed, the last one it was well in.
        optimum: a* and what belongs to it at ``s``.
        action: (m,) as the system received it; 0 where it was not finite.
        acts: whether the trial had not failed before and the action is finite.
        following: the state after it, (d,).
        alive: whether it has not failed in this step either.
    """

    k: Int[Array, ""]
    s: Float[Array, "d"]
    optimum: Optimum
    action: Float[Array, "m"]
    acts: Bool[Array, ""]
    following: Float[Array, "d"]
    alive: Bool[Array, ""]

    def advantage(self, system: System) -> Float[Array, ""]:
        """A*(s, a) of its action."""
        return system.excess_cost(self.s, self.action - self.optimum.action, self.optimum)


def initial_state(params: EnvParams, stream: PRNGKeyArray) -> Float[Array, "d"]:
    """s_0 of episode 0 of a stream key."""
    return params.initial_state.sample(streams.initial_key(streams.episode_key(stream, 0)))


def scan_trial(
    act: Callable[[Optimum, Float[Array, "d"], PRNGKeyArray], Float[Array, "m"]],
    params: EnvParams,
    stream: PRNGKeyArray,
    num_steps: int,
    *,
    observe: Callable[[Total, Step], tuple[Total, PyTree]],
    total: Total,
    remat: bool = False,
) -> tuple[Total, PyTree]:
    """Run one trial: s_{k+1} = E[s_{k+1} | s_k, a_k] + w_k, on episode 0 of a stream.

    A trial fails where an action is not finite, or the state leaves the divergence guard or is not
    a number; it then stays where it was.

    Args:
        act: ``(optimum, s, key) -> a``, (m,); learners leave the optimum alone.
        params: of one system.
        stream: stream key; the noise and the keys of ``act`` are those of every other trial on it.
        num_steps: T, static.
        observe: ``(total, step) -> (total, row)``, called for every step: what is summed and what
            is kept.
        total: before the first step.
        remat: whether steps are computed again for a gradient instead of kept.

    Returns:
        The last total, and the rows stacked, leaves (T, ...).
    """
    step = trial_step(act, params, stream, observe=observe)
    step = jax.checkpoint(step) if remat else step
    start = (initial_state(params, stream), jnp.array(True), total)
    (_, _, total), rows = lax.scan(step, start, jnp.arange(num_steps))
    return total, rows


def trial_step(
    act: Callable[[Optimum, Float[Array, "d"], PRNGKeyArray], Float[Array, "m"]],
    params: EnvParams,
    stream: PRNGKeyArray,
    *,
    observe: Callable[[Total, Step], tuple[Total, PyTree]],
) -> Callable[[Carry, Int[Array, ""]], tuple[Carry, PyTree]]:
    """The step of :func:`scan_trial`, ``(carry, k) -> (carry, row)``, for loops on the host; carry
    is (s, whether it has not failed, total).
    """
    episode = streams.episode_key(stream, 0)
    noise_root, policy_root = streams.noise_root(episode), streams.policy_root(episode)
    system = params.system

    def step(carry, k):
        s, alive, total = carry
        optimum = system.optimum(s)
        a = act(optimum, s[: system.observed_dim], jax.random.fold_in(policy_root, k))
        a = a.astype(s.dtype)
        chex.assert_shape(a, (system.action_dim,))  # another would be broadcast
        a = params.clip(a)
        acts = alive & jnp.isfinite(a).all()
        a = jnp.where(acts, a, 0.0)
        noise = system.sample_noise(s, jax.random.fold_in(noise_root, k), a)
        following = next_mean(system, s, a, optimum) + noise
        inside = system.value(following) - system.offset <= params.divergence_radius**2
        alive = acts & inside
        total, row = observe(total, Step(k, s, optimum, a, acts, following, alive))
        return (jnp.where(alive, following, s), alive, total), row

    return step


def relative(gap: Figures, value: Figures | float) -> Figures:
    """``gap``/``value``, (...), of NumPy or JAX: 0 where there is no gap, infinite where there is
    one and the value is 0 (no noise, and a start in the origin).
    """
    where = jnp.where if isinstance(gap, jax.Array) else np.where
    with np.errstate(invalid="ignore", divide="ignore"):
        return where(gap == 0.0, 0.0, gap / value)  # pyright: ignore
