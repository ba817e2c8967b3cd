"""Train the members of a chunk by one compiled program, and measure them on held-out streams."""

from __future__ import annotations

import dataclasses
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from cojax import streams
from cojax.agents import inspect, loop
from cojax.agents.algorithm import learning
from cojax.agents.curriculum import problem_of
from cojax.agents.layout import Layout
from cojax.agents.loop import Progress
from cojax.agents.population import Population
from cojax.agents.training import discounts
from cojax.evaluation.learning_curve import RelativeGap, TrialGaps
from cojax.policy import Policy
from cojax.studies.members import Chunk, Group
from cojax.studies.schema import Study
from cojax.types import Array, Float, PyTree, Row

STATE_SECONDS = 60.0  # at most this much training is lost, and the interval that is under way


@dataclasses.dataclass(frozen=True)
class Result:
    """What a chunk gave, for its M members in order, on the host.

    Attributes:
        chunk: which.
        gaps: relative suboptimality on the held-out streams, (M, num_trials); inf for a trial
            that diverged. Of a sweep alone: others are measured beside reference policies.
        curve: mean gap after each interval, on the streams of the curve, (M, K).
        timesteps: environment steps of a member at the end of each interval, (K,).
        metrics: of each interval, (M, K) each.
        failed: members that had a parameter that is not finite, (M,).
        gamma: discount that each learned with, (M,).
        policy: the last policies, axis "member".
        best: those of the lowest gap on the curve, of a training alone.
        learners: their states at the end, leaves (M, ...), where they are to be kept.
        compile_seconds: of its programs; a fraction of a second where they were compiled before.
        steps_per_second: environment steps of all members by the wall time after compilation.
    """

    chunk: Chunk
    gaps: np.ndarray | None
    curve: np.ndarray
    timesteps: np.ndarray
    metrics: dict[str, np.ndarray]
    failed: np.ndarray
    gamma: np.ndarray
    policy: Policy
    best: Policy | None
    learners: PyTree
    compile_seconds: float
    steps_per_second: float

    def of(self, members: int) -> Result:
        """The same of the first members alone: the others are padding."""

        def first(x):
            return np.asarray(x)[:members]

        def policies(policy):
            params = jax.tree.map(first, policy.params)
            return dataclasses.replace(policy, params=params)

        return dataclasses.replace(
            self,
            gaps=None if self.gaps is None else first(self.gaps),
            curve=first(self.curve),
            metrics={name: first(x) for name, x in self.metrics.items()},
            failed=first(self.failed),
            gamma=first(self.gamma),
            policy=policies(self.policy),
            best=None if self.best is None else policies(self.best),
            learners=jax.tree.map(lambda x: x[:members], self.learners),
        )


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
    config: Study,
    population: Population,
    *,
    on_progress: Progress | None = None,
    state: Path | None = None,
) -> Result:
    """Train the ``population`` of a chunk, as :func:`prepare` made it.

    ``on_progress`` is told of each interval, as ``train`` does. The learners' state is kept in the
    folder ``state`` every minute, and training goes on from what is there.
    """

    def progress(steps: int, total: int, metrics: Row) -> None:
        if on_progress is not None:
            on_progress(steps, total, {n: np.asarray(x)[: chunk.size] if np.ndim(x) else x
                                       for n, x in metrics.items()})  # fmt: skip

    gamma, _ = discounts(population)
    trained = loop.run(
        population,
        group.plan(config.curve.points),
        gamma,
        progress=progress,
        evaluate=curve_measure(group, config),
        checkpoint_dir=state,
        checkpoint_seconds=STATE_SECONDS,
        identity={"chunk": chunk.name, "members": population.size},  # the study has the rest
        keep_end=False,
        keep_best=config.kind == "train",
    )
    gaps = None
    if config.kind == "sweep":
        gaps = np.asarray(measure(population, trained.policy, final_measure(group, config)))
    return Result(
        chunk=chunk,
        gaps=gaps,
        curve=trained.curves,
        timesteps=trained.timesteps,
        metrics=trained.metrics,
        failed=trained.failed,
        gamma=gamma,
        policy=trained.policy,
        best=trained.best,
        learners=inspect.row_of_states(trained) if config.execution.learners else None,
        compile_seconds=trained.compile_seconds,
        steps_per_second=trained.steps_per_second,
    ).of(chunk.size)


def curve_measure(group: Group, config: Study) -> RelativeGap:
    """What is measured after each interval."""
    return RelativeGap(config.curve.num_trials, group.horizon, config.curve.root)


def final_measure(group: Group, config: Study) -> TrialGaps:
    """What is measured at the end."""
    return TrialGaps(config.evaluation.num_trials, group.horizon, config.evaluation.root)


def measure(population: Population, policy: Policy, gaps: TrialGaps) -> Float[Array, "M N"]:
    """Gaps of a population in a row, by the layout that trained it."""
    assert population.layout is not None
    return _measure(
        policy.apply, gaps, population.layout, policy.params, problem_of(population.env_params)
    )


@partial(jax.jit, static_argnums=(0, 1, 2))
def _measure(apply, gaps: TrialGaps, layout: Layout, *arguments: PyTree):
    def one(params, env_params):
        found = gaps(Policy(params, apply), env_params, streams.root_key(0))
        return jnp.where(jnp.isnan(found), jnp.inf, found)

    return layout.spread(one, (0, 0), 0)(*arguments)
