"""The loop over intervals: one compiled program, called until the updates are done."""

from __future__ import annotations

import dataclasses
import os
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from cojax import streams
from cojax.agents import checkpoint
from cojax.agents.algorithm import MOST_UPDATES, learning
from cojax.agents.curriculum import problem_of
from cojax.agents.policies import own_policy
from cojax.agents.population import (
    Arguments,
    Evaluate,
    Population,
    advance,
    averages,
    extract,
    initialize,
)
from cojax.agents.run import Best, Run, numbers
from cojax.errors import InputError
from cojax.policy import Policy
from cojax.types import Bool, Content, Float, PyTree, Row

Progress = Callable[[int, int, Row], None]


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
    def of(cls, steps: int, timesteps: int, eval_every: int | None) -> Plan:
        """Updates of ``steps`` steps, in intervals of ``eval_every`` steps, or 20 of them."""
        total = -(-timesteps // steps)
        every = -(-total // 20) if eval_every is None else max(1, round(eval_every / steps))
        return cls(steps, total, (*range(every, total, every), total))

    @property
    def timesteps(self) -> int:
        """Environment steps of one member."""
        return self.total * self.steps


@dataclasses.dataclass
class Members:
    """A population in training.

    Attributes:
        p: the population.
        plan: its updates.
        arguments: of each call of the program.
        states: of each call.
    """

    p: Population
    plan: Plan
    arguments: list[Arguments]
    states: list[PyTree]

    @classmethod
    def create(cls, p: Population, plan: Plan) -> Members:
        """First states."""
        arguments = p.calls()
        states = [_begun(p, plan, one) for one in arguments]
        return cls(p, plan, arguments, jax.block_until_ready(states))

    def compile(self, evaluate: Evaluate | None) -> list[PyTree]:
        """Call the program once for no update; return what an interval's record looks like."""
        record = jax.block_until_ready(self._call(0, evaluate, 0))
        return self._record([record] * len(self.states), 0)

    def advance(self, evaluate: Evaluate | None, num_updates: int) -> list[PyTree]:
        """Do updates; return the record of the interval on the host: [metrics, curve]."""
        records = [self._call(i, evaluate, num_updates) for i in range(len(self.states))]
        return self._record(records, num_updates)

    def _call(self, i: int, evaluate: Evaluate | None, num_updates: int) -> list[PyTree]:
        env_params, h, _ = self.arguments[i]
        self.states[i], *record = advance(
            self.p.spec, self.p.env, evaluate, self.p.layout,
            state=self.states[i], num_updates=jnp.int32(num_updates), env_params=env_params, h=h,
        )  # fmt: skip
        return record

    def _record(self, records: list[PyTree], num_updates: int) -> list[PyTree]:
        sums, curve = self._row(jax.device_get(records), np.stack)
        return [averages(sums, num_updates), curve]

    def _row(self, trees: list[PyTree], stack: Callable) -> PyTree:
        """What the calls gave as one tree of leaves (M, ...)."""
        if self.p.layout is not None:
            return trees[0]
        return jax.tree.map(lambda *leaves: stack(leaves), *trees)

    def policies(self) -> PyTree:
        """Parameters of the policies as they are now, leaves (M, ...)."""
        one = partial(extract, self.p.spec, self.p.env, self.p.layout)
        calls = zip(self.states, self.arguments, strict=True)
        return self._row([one(state, *a[:2]) for state, a in calls], jnp.stack)

    def restart(self, members: Bool[np.ndarray, " M"], p: Population) -> None:
        """Let some members begin anew, and all go on by the arguments of ``p``, a population of
        the same shape and layout. Its members must have clocks of their own.
        """
        self.p, self.arguments = p, p.calls()
        (state,), (arguments,) = self.states, self.arguments
        self.states = [_choose(jnp.asarray(members), _begun(p, self.plan, arguments), state)]

    def save(self, target: Path) -> None:
        """Keep the states in a folder."""
        checkpoint.save_tree(target, self.states)

    def load(self, source: Path, p: Population) -> None:
        """Go on from kept states, by the arguments of ``p``, a population of the same shape."""
        self.p, self.arguments = p, p.calls()
        self.states = checkpoint.load_tree(source, self.states)


def _begun(p: Population, plan: Plan, arguments: Arguments) -> PyTree:
    state = initialize(p.spec, p.env, p.layout, *arguments)
    return state.replace(clock=state.clock.planned(plan.total))


@jax.jit
def _choose(mask, new, old):
    return jax.tree.map(partial(streams.choose, mask), new, old)


@learning()
def run(
    p: Population,
    plan: Plan,
    gamma: Float[np.ndarray, " M"],
    *,
    memory_bytes: int = 0,
    progress: Progress | None = None,
    evaluate: Evaluate | None = None,
    checkpoint_dir: str | os.PathLike | None = None,
    checkpoint_seconds: float = 0.0,
    identity: Content | None = None,
    keep_end: bool = True,
    keep_best: bool = True,
) -> Run:
    """Train a population in intervals; the run has the one axis "member".

    Without ``keep_best`` only the last policies are kept. The full state is kept in
    ``checkpoint_dir`` after any interval that ends at least ``checkpoint_seconds`` after the state
    before it and, with ``keep_end``, after the last. A state is gone on with where it has the same
    ``identity``: what the caller knows it by, or all that its programs and arguments decide.
    """
    known: Content = {}
    if checkpoint_dir is not None:
        known = checkpoint.identify(p, plan, evaluate) if identity is None else identity
        checkpoint.verify(checkpoint_dir, known)
    start = time.perf_counter()
    members = Members.create(p, plan)
    empty = members.compile(evaluate)
    compile_seconds = time.perf_counter() - start

    best = None
    if keep_best and numbers(empty[1], p.shape) is not None:
        best = Best.create(p.shape, jax.device_get(members.policies()))
    history = []
    if checkpoint_dir is not None:
        members.states, history = checkpoint.restore(checkpoint_dir, members.states, empty, best)
    done = begun = plan.ends[len(history) - 1] if history else 0
    saved = start = time.perf_counter()
    for end in plan.ends[len(history) :]:
        history.append(members.advance(evaluate, end - done))
        done = end
        metrics, curve = history[-1]
        value = numbers(curve, p.shape)
        if best is not None and value is not None:
            best.see(len(history) - 1, value, jax.device_get(members.policies()))
        now = time.perf_counter()
        rate = (done - begun) * plan.steps * p.size / (now - start)
        due = keep_end if done == plan.total else now - saved >= checkpoint_seconds
        if checkpoint_dir is not None and due:
            checkpoint.save(checkpoint_dir, known, members.states, history=history, best=best)
            saved = time.perf_counter()
        if progress is not None:
            seen = {**metrics, "steps_per_second": rate}
            seen |= {} if curve is None else {"evaluation": curve}
            progress(done * plan.steps, plan.timesteps, seen)
    seconds = max(time.perf_counter() - start, 1e-9)
    metrics, curves = jax.tree.map(lambda *x: np.stack(x, axis=1), *history)
    env_params, h, _ = p.arguments(0)
    apply = own_policy(p.spec.policy_apply, p.env, problem_of(env_params), h)
    timesteps = np.asarray(plan.ends) * plan.steps

    def policies(params):
        return Policy(jax.tree.map(jnp.asarray, params), apply, p.spec.name, ("member",))

    return Run(
        algorithm=p.spec.name,
        axes=("member",),
        policy=policies(members.policies()),
        best=None if best is None else policies(best.params),
        best_timesteps=None if best is None else timesteps[best.interval],
        metrics=metrics,
        curves=curves,
        timesteps=timesteps,
        failed=metrics["failed"][:, -1],
        gamma=gamma,
        steps_per_second=(plan.total - begun) * plan.steps * p.size / seconds,
        compile_seconds=compile_seconds,
        memory_bytes=memory_bytes,
        chunks=1,
        hyperparameters=p.h,
        states=members.states,
    )
