"""One trial of the common streams, a step at a time: how it begins, and where an action leads.

:mod:`cojax.evaluation.rollout` runs many trials of many policies together and reduces as it goes;
this is for programs that look at a single one.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from cojax import streams
from cojax.envs import EnvParams
from cojax.system import Optimum, next_mean


class Trial(NamedTuple):
    """What is fixed before the first step: s_0, (d,), and the roots to fold steps into."""

    s0: jax.Array
    noise: jax.Array
    policy: jax.Array


def begin(params: EnvParams, stream: jax.Array) -> Trial:
    """Episode 0 of a stream key."""
    episode = streams.episode_key(stream, 0)
    s0 = params.initial_state.sample(streams.initial_key(episode))
    return Trial(s0, streams.noise_root(episode), streams.policy_root(episode))


def follow(
    params: EnvParams, trial: Trial, k: jax.Array, s: jax.Array, a: jax.Array, optimum: Optimum
) -> tuple[jax.Array, jax.Array]:
    """The state after step k, (d,), and whether it is a number inside the divergence guard."""
    system = params.system
    noise = system.sample_noise(s, jax.random.fold_in(trial.noise, k))
    following = next_mean(system, s, a, optimum) + noise
    return following, system.value(following) - system.offset <= params.divergence_radius**2


def relative(gap: Any, value: Any) -> Any:
    """``gap``/``value``, (...), of NumPy or JAX: 0 where there is no gap, infinite where there is
    one and the value is 0 (no noise, and a start in the origin).
    """
    where = jnp.where if isinstance(gap, jax.Array) else np.where
    with np.errstate(invalid="ignore", divide="ignore"):
        return where(gap == 0.0, 0.0, gap / value)
