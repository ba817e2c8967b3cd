"""The loop over intervals: one compiled program, called until the updates are done."""

from __future__ import annotations

import dataclasses
import os
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from cojax.agents import checkpoint
from cojax.agents.algorithm import MOST_UPDATES, learning
from cojax.agents.layout import Layout
from cojax.agents.population import Population, advance, averages, each, extract, gather, initialize
from cojax.agents.run import Best, Run, numbers
from cojax.errors import InputError
from cojax.policy import Policy

Progress = Callable[[int, int, dict[str, Any]], None]


@dataclasses.dataclass(frozen=True)
class Plan:
    """How many updates, and where intervals end.

    Attributes:
        steps: environment steps of one update.
        total: updates.
        ends: updates done at the end of each interval; the last is ``total``.
    """

    steps: int
    total: int
    ends: tuple[int, ...]

    def __post_init__(self) -> None:
        if self.total > MOST_UPDATES:
            raise InputError(
                f"total_timesteps: expected at most {MOST_UPDATES:,} updates, got {self.total:,} "
                f"of {self.steps:,} environment steps; raise num_envs or num_steps"
            )

    @classmethod
    def create(cls, population: Population, timesteps: int, eval_every: int | None) -> Plan:
        """Divide training into intervals of ``eval_every`` steps, or into 20."""
        return cls.of(population.spec.steps_per_update(population.h), timesteps, eval_every)

    @classmethod
    def of(cls, steps: int, timesteps: int, eval_every: int | None) -> Plan:
        """The same, for updates of ``steps`` environment steps."""
        total = -(-timesteps // steps)
        every = -(-total // 20) if eval_every is None else max(1, round(eval_every / steps))
        return cls(steps, total, (*range(every, total, every), total))

    @property
    def timesteps(self) -> int:
        """Environment steps of one member."""
        return self.total * self.steps


@dataclasses.dataclass
class Members:
    """A population in training: its states and what calls of the program need.

    Attributes:
        p: the population.
        axes: those that the program is vmapped over.
        arguments: (env_params, h, key) of each call.
        states: of each call.
    """

    p: Population
    axes: tuple[str, ...] | Layout
    arguments: list[tuple[Any, Any, jax.Array]]
    states: list[Any]

    @classmethod
    def create(cls, p: Population, plan: Plan) -> Members:
        """First states."""
        axes = p.axes
        arguments = [p.arguments(index) for index in each(p)]
        states = [initialize(p.spec, p.env, axes, *a) for a in arguments]
        states = [s.replace(clock=s.clock.planned(plan.total)) for s in states]
        return cls(p, axes, arguments, jax.block_until_ready(states))

    def compile(self, evaluate: Callable | None) -> Any:
        """Call the program once for no update; return what an interval's record looks like."""
        call = partial(advance, self.p.spec, self.p.env, evaluate, self.axes)
        self.states[0], *record = jax.block_until_ready(
            call(self.states[0], jnp.int32(0), *self.arguments[0][:2])
        )
        return self._record([record] * len(self.states), 0)

    def advance(self, evaluate: Callable | None, num_updates: int) -> Any:
        """Do updates; return the record of the interval on the host: [metrics, curve]."""
        call = partial(advance, self.p.spec, self.p.env, evaluate, self.axes)
        records = []
        for i, (env_params, h, _) in enumerate(self.arguments):
            self.states[i], *record = call(self.states[i], jnp.int32(num_updates), env_params, h)
            records.append(record)
        return self._record(records, num_updates)

    def _record(self, records: list[Any], num_updates: int) -> Any:
        """[metrics, curve] of all members, of what each call gave."""
        sums, curve = gather(self.p, jax.device_get(records), np.stack)
        return [averages(sums, num_updates), curve]

    def policies(self) -> Any:
        """Parameters of the policies as they are now, leaves (*axes, ...)."""
        p = self.p
        found = [
            extract(p.spec, p.env, self.axes, state, *a[:2])
            for state, a in zip(self.states, self.arguments, strict=True)
        ]
        return gather(p, found, jnp.stack)


@learning()
def run(
    p: Population,
    plan: Plan,
    gamma: np.ndarray,
    *,
    memory_bytes: int = 0,
    progress: Progress | None = None,
    evaluate: Callable | None = None,
    checkpoint_dir: str | os.PathLike | None = None,
    checkpoint_seconds: float = 0.0,
    keep_best: bool = True,
) -> Run:
    """Train a population in intervals; without ``keep_best`` only the last policies are kept.

    The full state is kept in ``checkpoint_dir`` after the last interval, and after any other that
    ends at least ``checkpoint_seconds`` after the state before it.
    """
    start = time.perf_counter()
    members = Members.create(p, plan)
    empty = members.compile(evaluate)
    compile_seconds = time.perf_counter() - start

    best = None
    if keep_best and numbers(empty[1], p.shape) is not None:
        best = Best.create(p.shape, jax.device_get(members.policies()))
    history, identity = [], None
    if checkpoint_dir is not None:
        identity = checkpoint.identify(p, plan, evaluate)
        members.states, history = checkpoint.restore(
            checkpoint_dir, identity, members.states, empty, best
        )
    begun = plan.ends[len(history) - 1] if history else 0
    start, done = time.perf_counter(), begun
    saved = start
    for end in plan.ends[len(history) :]:
        history.append(members.advance(evaluate, end - done))
        done = end
        metrics, curve = history[-1]
        value = numbers(curve, p.shape)
        if best is not None and value is not None:
            best.see(len(history) - 1, value, jax.device_get(members.policies()))
        now = time.perf_counter()
        rate = (done - begun) * plan.steps * int(np.prod(p.shape)) / (now - start)
        if identity is not None and (done == plan.total or now - saved >= checkpoint_seconds):
            checkpoint.save(checkpoint_dir, identity, members.states, history, best)
            saved = time.perf_counter()
        if progress is not None:
            seen = {**metrics, "steps_per_second": rate}
            seen |= {} if curve is None else {"evaluation": curve}
            progress(done * plan.steps, plan.timesteps, seen)
    seconds = max(time.perf_counter() - start, 1e-9)
    steps = (plan.total - begun) * plan.steps * int(np.prod(p.shape))
    metrics, curves = jax.tree.map(lambda *x: np.stack(x, axis=len(p.shape)), *history)
    apply = p.spec.policy_apply(p.env, p.arguments((0,) * len(p.shape))[0], p.h)
    policy = Policy(members.policies(), apply, p.spec.name, tuple(p.sizes))
    timesteps = np.asarray(plan.ends) * plan.steps
    return Run(
        algorithm=p.spec.name,
        axes=tuple(p.sizes),
        policy=policy,
        best=None
        if best is None
        else dataclasses.replace(policy, params=jax.tree.map(jnp.asarray, best.params)),
        best_timesteps=None if best is None else timesteps[best.interval],
        metrics=metrics,
        curves=curves,
        timesteps=timesteps,
        failed=metrics["failed"][..., -1],
        gamma=gamma,
        steps_per_second=steps / seconds,
        compile_seconds=compile_seconds,
        memory_bytes=memory_bytes,
        chunks=1,
        hyperparameters=p.h,
        states=members.states,
    )
