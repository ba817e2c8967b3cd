"""Train the members of a chunk by one compiled program, and measure them on held-out streams."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from cojax import streams
from cojax.agents import loop
from cojax.agents.algorithm import learning
from cojax.agents.layout import Layout
from cojax.agents.population import Population
from cojax.evaluation.learning_curve import RelativeGap, TrialGaps
from cojax.policy import Policy
from cojax.sweeps.config import Sweep
from cojax.sweeps.groups import Chunk, Group

Told = Callable[[float], None]  # the share of a chunk that is done


@dataclasses.dataclass(frozen=True)
class Result:
    """What a chunk gave, for its M members in order, on the host.

    Attributes:
        chunk: which.
        gaps: relative suboptimality on the held-out streams, (M, num_trials); inf for a trial
            that diverged.
        curve: mean gap after each interval, on the streams of the curve, (M, K).
        timesteps: environment steps of a member at the end of each interval, (K,).
        metrics: means of the last interval, each (M,).
        failed: members that had a parameter that is not finite, (M,).
        policy: the last policies, axis "member".
        compile_seconds: of its programs; a fraction of a second where they were compiled before.
    """

    chunk: Chunk
    gaps: np.ndarray
    curve: np.ndarray
    timesteps: np.ndarray
    metrics: dict[str, np.ndarray]
    failed: np.ndarray
    policy: Policy
    compile_seconds: float


def prepare(group: Group, chunk: Chunk, layout: Layout, length: int) -> Population:
    """Members ``chunk.start`` to ``chunk.stop`` on their devices, not trained yet.

    They are repeated up to ``length``, so that chunks of one length share their programs.
    """
    members = np.arange(chunk.start, chunk.stop)
    members = np.concatenate([members, np.repeat(members[-1:], max(length - len(members), 0))])
    return group.population(members, layout)


@learning()
def run(
    group: Group,
    chunk: Chunk,
    config: Sweep,
    population: Population,
    told: Told | None = None,
) -> Result:
    """Train the ``population`` of a chunk, as :func:`prepare` made it; ``told`` the share done."""
    M = chunk.stop - chunk.start

    def progress(steps: int, total: int, metrics: dict[str, Any]) -> None:
        del metrics
        if told is not None:
            told(steps / total)

    trained = loop.run(
        population,
        group.plan(config.curve.points),
        np.zeros(population.shape),
        progress=progress,
        evaluate=curve_measure(group, config),
        keep_best=False,
    )
    gaps = np.asarray(measure(population, trained.policy, final_measure(group, config)))
    params = jax.tree.map(lambda x: np.asarray(x)[:M], trained.policy.params)
    return Result(
        chunk=chunk,
        gaps=gaps[:M],
        curve=np.asarray(trained.curves)[:M],
        timesteps=trained.timesteps,
        metrics={name: np.asarray(x)[:M, -1] for name, x in trained.metrics.items()},
        failed=np.asarray(trained.failed)[:M],
        policy=dataclasses.replace(trained.policy, params=params),
        compile_seconds=trained.compile_seconds,
    )


def curve_measure(group: Group, config: Sweep) -> RelativeGap:
    """What is measured after each interval."""
    return RelativeGap(config.curve.num_trials, group.horizon, config.curve.root)


def final_measure(group: Group, config: Sweep) -> TrialGaps:
    """What is measured at the end."""
    return TrialGaps(config.evaluation.num_trials, group.horizon, config.evaluation.root)


def measure(population: Population, policy: Policy, gaps: TrialGaps) -> jax.Array:
    """Gaps of a population in a row, (M, num_trials), by the layout that trained it."""
    assert population.layout is not None
    return _measure(policy.apply, gaps, population.layout, policy.params, population.env_params)


@partial(jax.jit, static_argnums=(0, 1, 2))
def _measure(apply: Any, gaps: TrialGaps, layout: Layout, params: Any, env_params: Any):
    def one(params: Any, env_params: Any) -> jax.Array:
        found = gaps(Policy(params, apply), env_params, streams.root_key(0))
        return jnp.where(jnp.isnan(found), jnp.inf, found)

    return layout.spread(one, (0, 0), 0)(params, env_params)
