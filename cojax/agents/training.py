"""The front: ``train`` runs one algorithm over fixtures × hyperparameters × seeds."""

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

from cojax.agents import a2c, checkpoint, ddpg, ppo, sac, td3
from cojax.agents import algorithm as algorithms
from cojax.agents.algorithm import Algorithm
from cojax.agents.population import Population, advance, each, extract, gather, initialize
from cojax.inputs import InputError
from cojax.policy import Policy

ALGORITHMS: dict[str, Algorithm] = {
    module.ALGORITHM.name: module.ALGORITHM for module in (ppo, a2c, sac, td3, ddpg)
}


@dataclasses.dataclass(frozen=True)
class Run:
    """What training gave. ``axes`` label the leading axes of every array: K intervals follow them.

    Attributes:
        algorithm: its name.
        axes: those present of ``("fixture", "hyperparameters", "seed")``.
        policy: deterministic policies, with these axes.
        metrics: per-interval means, each (*axes, K); ``episode_return`` and ``episode_length``
            average over the episodes that ended in the interval (NaN if none did).
        curves: what ``evaluate`` returned after each interval, leaves (*axes, K, ...), or None.
        timesteps: environment steps of one member at the end of each interval, (K,).
        failed: members that had a non-finite parameter, (*axes).
        steps_per_second: environment steps of all members by the wall time after compilation.
        compile_seconds: time of the first call, which does no step.
        hyperparameters: as used, leaves with the axis ``hyperparameters`` if present.
        states: of the learners: one, batched, if members ran side by side, else one a member.
    """

    algorithm: str
    axes: tuple[str, ...]
    policy: Policy
    metrics: dict[str, np.ndarray]
    curves: Any
    timesteps: np.ndarray
    failed: np.ndarray
    steps_per_second: float
    compile_seconds: float
    hyperparameters: Any
    states: list[Any] = dataclasses.field(repr=False)

    def member(self, **index: int) -> Policy:
        """One member's policy, e.g. ``run.member(fixture=0, seed=3)``; it runs alone."""
        return self.policy.member(**index)


def train(
    algorithm: str,
    params: Any,
    key: jax.Array,
    *,
    env: Any = None,
    hyperparameters: Any = None,
    num_seeds: int | None = 4,
    total_timesteps: int = 300_000,
    num_envs: int | None = None,
    progress: Callable[[int, int, dict[str, np.ndarray]], None] | None = None,
    evaluate: Callable[[Any, Any, jax.Array], Any] | None = None,
    eval_every: int | None = None,
    batching: str = "auto",
    checkpoint_dir: str | os.PathLike | None = None,
) -> Run:
    """Train one learner for every fixture × hyperparameter setting × seed.

    Seed i of a population uses ``jax.random.fold_in(key, i)``: the solo run with that key and
    ``num_seeds=None`` is the same run.

    Args:
        algorithm: one of ``ALGORITHMS``.
        params: environment parameters; a stacked batch (leading axis on every leaf) is an axis.
        key: typed key, ``jax.random.key(seed)``.
        env: a gymnax environment with a Box action space; None for cojax's own.
        hyperparameters: None, a mapping, an instance, or a sequence of those (an axis).
        num_seeds: length of the seed axis; None for a single run without one.
        total_timesteps: environment steps of each member, rounded up to whole updates.
        num_envs: shorthand for the hyperparameter of that name.
        progress: called on the host after each interval as ``progress(steps, total, metrics)``;
            what ``evaluate`` returned is ``metrics["evaluation"]``.
        evaluate: pure ``(policy, env_params, key) -> pytree of arrays``, hashable, run for every
            member after each interval inside the compiled program, always with the same key.
        eval_every: environment steps of an interval; None divides training into 20.
        batching: "vmap" runs members side by side, "loop" one after another through one compiled
            program (members are then bitwise what solo runs are). "auto": "vmap" on accelerators
            and "loop" on CPU, where the small batched products of a population are slower.
        checkpoint_dir: a folder that holds the full state after each interval; a run that finds
            its own state there continues from it, bit for bit.

    Returns:
        A ``Run``.

    Raises:
        ValueError: an unknown algorithm or hyperparameter (the nearest name is offered), a value
            out of range, a static hyperparameter that varies, an action space that is no Box, a
            checkpoint of another run.
    """
    if total_timesteps < 1:
        raise InputError(f"total_timesteps: expected at least 1, got {total_timesteps}")
    if env is None:
        from cojax.envs import ConverseEnv

        env = ConverseEnv()
    population = Population.create(
        lookup(algorithm), env, params, key, hyperparameters, num_seeds, num_envs, batching
    )
    plan = Plan.create(population, total_timesteps, eval_every)
    return run(population, plan, progress, evaluate, checkpoint_dir)


def check(algorithm: str, hyperparameters: Any = None) -> None:
    """Raise ValueError, one line, for what ``train`` would refuse of these two, before any work."""
    spec = lookup(algorithm)
    spec.check(algorithms.hyperparameters(spec.hyperparameters, hyperparameters, {}))


def lookup(name: str) -> Algorithm:
    """Return the algorithm called ``name``; ValueError offering the nearest name."""
    if name not in ALGORITHMS:
        hint = algorithms.nearest(str(name), list(ALGORITHMS))
        raise InputError(f"unknown algorithm {name!r}; {hint}")
    return ALGORITHMS[name]


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

    @classmethod
    def create(cls, population: Population, timesteps: int, eval_every: int | None) -> Plan:
        """Divide training into intervals of ``eval_every`` steps, or into 20."""
        steps = population.spec.steps_per_update(population.h)
        total = -(-timesteps // steps)
        every = -(-total // 20) if eval_every is None else max(1, round(eval_every / steps))
        return cls(steps, total, (*range(every, total, every), total))


def run(
    population: Population,
    plan: Plan,
    progress: Callable[[int, int, dict[str, np.ndarray]], None] | None = None,
    evaluate: Callable[[Any, Any, jax.Array], Any] | None = None,
    checkpoint_dir: str | os.PathLike | None = None,
) -> Run:
    """Train a population in intervals, by calls of one compiled program."""
    p = population
    axes = tuple(p.sizes) if p.vmapped else ()
    arguments = [p.arguments(index) for index in each(p)]
    states = [initialize(p.spec, p.env, axes, *a) for a in arguments]
    states = [s.replace(clock=s.clock.replace(total=jnp.int32(plan.total))) for s in states]
    call = partial(advance, p.spec, p.env, evaluate, axes)

    jax.block_until_ready(states)
    start = time.perf_counter()
    states[0], *shapes = jax.block_until_ready(call(states[0], jnp.int32(0), *arguments[0][:2]))
    compile_seconds = time.perf_counter() - start

    history, identity = [], checkpoint.identify(p, plan) if checkpoint_dir is not None else None
    if identity is not None:
        empty = gather(p, [jax.device_get(shapes)] * len(states), np.stack)
        states, history = checkpoint.restore(checkpoint_dir, identity, states, empty)
    begun = plan.ends[len(history) - 1] if history else 0
    start, done = time.perf_counter(), begun
    for end in plan.ends[len(history) :]:
        outputs = [
            call(state, jnp.int32(end - done), *a[:2])
            for state, a in zip(states, arguments, strict=True)
        ]
        states = [output[0] for output in outputs]
        history.append(gather(p, [jax.device_get(list(o[1:])) for o in outputs], np.stack))
        done = end
        if identity is not None:
            checkpoint.save(checkpoint_dir, identity, states, history)
        if progress is not None:
            metrics, curve = history[-1]
            seen = metrics if curve is None else {**metrics, "evaluation": curve}
            progress(done * plan.steps, plan.total * plan.steps, seen)
    seconds = max(time.perf_counter() - start, 1e-9)
    steps = (plan.total - begun) * plan.steps * int(np.prod(p.shape))
    return finish(p, plan, states, arguments, history, steps / seconds, compile_seconds)


def finish(
    p: Population,
    plan: Plan,
    states: list[Any],
    arguments: list[Any],
    history: list[Any],
    steps_per_second: float,
    compile_seconds: float,
) -> Run:
    """Collect policies and the record of all intervals."""
    axes = tuple(p.sizes) if p.vmapped else ()
    metrics, curves = jax.tree.map(lambda *x: np.stack(x, axis=len(p.shape)), *history)
    policies = [
        extract(p.spec, p.env, axes, s, *a[:2]) for s, a in zip(states, arguments, strict=True)
    ]
    apply = p.spec.policy_apply(p.env, p.arguments((0,) * len(p.shape))[0], p.h)
    return Run(
        algorithm=p.spec.name,
        axes=tuple(p.sizes),
        policy=Policy(gather(p, policies, jnp.stack), apply, p.spec.name, tuple(p.sizes)),
        metrics=metrics,
        curves=curves,
        timesteps=np.asarray(plan.ends) * plan.steps,
        failed=metrics["failed"][..., -1],
        steps_per_second=steps_per_second,
        compile_seconds=compile_seconds,
        hyperparameters=p.h,
        states=states,
    )
