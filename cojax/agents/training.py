"""The front: ``train`` runs one algorithm over fixtures × hyperparameters × seeds."""

from __future__ import annotations

import dataclasses
import os
import time
import warnings
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Literal

import jax
import numpy as np

from cojax.agents import (
    a2c,
    checkpoint,
    contract,
    crossq,
    ddpg,
    loop,
    memory_budget,
    ppo,
    ppo_lagrangian,
    sac,
    settings,
    shac,
    td3,
    tuned,
)
from cojax.agents import algorithm as algorithms
from cojax.agents.algorithm import Algorithm, Environment
from cojax.agents.curriculum import problem_of
from cojax.agents.loop import Plan, Progress
from cojax.agents.population import Evaluate, Population, grid
from cojax.agents.run import Run, assemble, labelled
from cojax.agents.settings import Settings, one_or_several
from cojax.agents.tuned import Profile
from cojax.errors import InputError, nearest
from cojax.io.progress import shown
from cojax.types import Content, Float, PRNGKeyArray, PyTree

ALGORITHMS: dict[str, Algorithm] = {
    module.ALGORITHM.name: module.ALGORITHM
    for module in (ppo, a2c, sac, td3, ddpg, shac, crossq, ppo_lagrangian)
}


BUILT_IN = tuple(ALGORITHMS)


class DiscountWarning(Warning):
    """The learner's γ is not the system's own: another problem is learned."""


def train(
    algorithm: str,
    params: PyTree,
    key: PRNGKeyArray,
    *,
    env: Environment | None = None,
    hyperparameters: Settings = None,
    profile: Profile | None = None,
    num_seeds: int | None = 4,
    total_timesteps: int | None = None,
    num_envs: int | None = None,
    progress: Progress | Literal["auto"] | None = "auto",
    evaluate: Evaluate | None = None,
    eval_every: int | None = None,
    batching: str = "auto",
    memory_limit: float | None = None,
    checkpoint_dir: str | os.PathLike | None = None,
) -> Run:
    """Train one learner for every fixture × hyperparameter setting × seed.

    Seed i of a population uses ``jax.random.fold_in(key, i)``: the solo run with that key and
    ``num_seeds=None`` is the same run.

    A population that would take more than ``memory_limit`` is trained in chunks, one after
    another. Where members run one after another anyway ("loop") the result is the same to the
    bit; side by side ("vmap") it is the same as far as products of another batch size round alike.

    Args:
        algorithm: one of ``ALGORITHMS``.
        params: environment parameters, or a fixture; a stacked batch (leading axis on every leaf)
            is an axis.
        key: typed key, ``jax.random.key(seed)``, of the threefry generator.
        env: a gymnax environment with a Box action space; None for cojax's own, as a constrained
            problem (:mod:`cojax.envs.constrained`) for an algorithm that keeps budgets.
        hyperparameters: None, a mapping, an instance, or a sequence of those (an axis); what is
            not named has the algorithm's default.
        profile: "tuned" or "published" hyperparameters for the system's family in place of the
            defaults, where there are any; an instance is complete and takes none.
        num_seeds: length of the seed axis; None for a single run without one.
        total_timesteps: environment steps of each member, rounded up to whole updates; None for
            the algorithm's own: a million of PPO and A2C, 300,000 of the others.
        num_envs: shorthand for the hyperparameter of that name.
        progress: "auto" shows a bar on a terminal and in notebooks, and nothing else; None is
            silent; or it is called on the host after each interval as
            ``progress(steps, total, metrics)``;
            what ``evaluate`` returned is ``metrics["evaluation"]``, and environment steps of all
            members a second are ``metrics["steps_per_second"]``. In chunks, ``steps`` is the mean
            over all members and the metrics are those of the chunk, its members in a row.
        evaluate: pure ``(policy, env_params, key) -> pytree of arrays``, hashable, run for every
            member after each interval inside the compiled program, always with the same key.
            Where it returns one number, the policy of the lowest is kept as ``Run.best``.
        eval_every: environment steps of an interval; None divides training into 20.
        batching: "vmap" runs members side by side, "loop" one after another through one compiled
            program (members are then bitwise what solo runs are). "auto": "vmap" on accelerators
            and "loop" on CPU, where the small batched products of a population are slower.
        memory_limit: bytes; None takes 80% of the device's, or of what the host has available.
        checkpoint_dir: a folder that holds the full state after each interval; a run that finds
            its own state there continues from it, bit for bit.

    Returns:
        A ``Run``.

    Raises:
        ValueError: an unknown algorithm or hyperparameter (the nearest name is offered), a value
            out of range, a static hyperparameter that varies, an action space that is no Box, a
            checkpoint of another run, a member that does not fit into the memory.

    Warns:
        DiscountWarning: once, where a γ is given that is not the system's own.
    """
    given = dict(locals())
    del given["progress"]
    if not (callable(progress) or progress in ("auto", None)):
        raise InputError(f"progress: expected auto, None or a function, got {progress!r}")
    job = prepare(**given)
    if job.warning is not None:
        warnings.warn(job.warning, DiscountWarning, stacklevel=2)
    if progress is None or callable(progress):
        return job.run(progress)
    with shown(job.origin) as bar:
        return job.run(None if bar is None else lambda steps, total, _: bar(steps / total))


@dataclasses.dataclass(frozen=True)
class Job:
    """Training that is checked, compiled and measured, and has not begun.

    Attributes:
        population: all members, in a row.
        sizes: axes of the result, label -> length, outermost first.
        plan: updates and intervals.
        evaluate: as given to ``train``.
        gamma: discount of each member, (*axes).
        warning: a line, where γ is not the system's own; else None.
        chunks: members that are trained one chunk after another, at least one.
        memory_bytes: peak memory of the largest, estimated from the compiled program.
        memory_limit: what it was to stay within, bytes.
        compile_seconds: time it took to compile.
        checkpoint_dir: as given to ``train``.
        origin: where the hyperparameters come from, in words.
    """

    population: Population
    sizes: dict[str, int]
    plan: Plan
    evaluate: Evaluate | None
    gamma: np.ndarray
    warning: str | None
    chunks: list[slice]
    memory_bytes: int
    memory_limit: int
    compile_seconds: float
    checkpoint_dir: Path | None
    origin: str

    @algorithms.learning()
    def run(self, progress: Progress | None = None, checkpoint_seconds: float = 0.0) -> Run:
        """Train, telling ``progress`` of each interval as ``train`` does.

        States are written at most every ``checkpoint_seconds``.
        """
        runs, several = [], len(self.chunks) > 1
        for number, members in enumerate(self.chunks):
            folder = self.checkpoint_dir
            run = loop.run(
                self.population.part(members),
                self.plan,
                self.gamma.reshape(-1)[members],
                memory_bytes=self.memory_bytes,
                progress=progress and self._overall(progress, number),
                evaluate=self.evaluate,
                checkpoint_dir=folder / f"chunk-{number:04d}" if folder and several else folder,
                checkpoint_seconds=checkpoint_seconds,
            )
            seconds = run.compile_seconds + (0.0 if number else self.compile_seconds)
            states = [] if several else run.states
            runs.append(dataclasses.replace(run, compile_seconds=seconds, states=states))
        run = assemble(self.sizes, self.chunks, runs, self.population.h)
        return dataclasses.replace(run, origin=self.origin)

    def _overall(self, progress: Progress, number: int) -> Progress:
        """Progress of a chunk as that of all members, the mean of their steps; by their axes where
        it is the only chunk.
        """

        def on_progress(steps, total, metrics):
            if len(self.chunks) == 1:
                rate = metrics.pop("steps_per_second")
                metrics = labelled(metrics, self.sizes) | {"steps_per_second": rate}
            progress((number * total + steps) // len(self.chunks), total, metrics)

        return on_progress


@algorithms.learning()
def prepare(
    algorithm: str,
    params: PyTree,
    key: PRNGKeyArray,
    *,
    env: Environment | None = None,
    hyperparameters: Settings = None,
    profile: Profile | None = None,
    num_seeds: int | None = 4,
    total_timesteps: int | None = None,
    num_envs: int | None = None,
    evaluate: Evaluate | None = None,
    eval_every: int | None = None,
    batching: str = "auto",
    memory_limit: float | None = None,
    checkpoint_dir: str | os.PathLike | None = None,
) -> Job:
    """Check the arguments of ``train``, compile its program and estimate its memory.

    Args:
        algorithm: as in ``train``, like all others: one of ``ALGORITHMS``.
        params: environment parameters, one or stacked.
        key: typed key.
        env: a gymnax environment; None for cojax's own.
        hyperparameters: None, a mapping, an instance, or a sequence of those.
        profile: "tuned", "published" or None.
        num_seeds: length of the seed axis, or None.
        total_timesteps: environment steps of each member, or None.
        num_envs: shorthand for the hyperparameter of that name.
        evaluate: run for every member after each interval.
        eval_every: environment steps of an interval.
        batching: "vmap", "loop" or "auto".
        memory_limit: bytes, or None.
        checkpoint_dir: folder of the full state, or None.

    Raises InputError as ``train`` does.
    """
    if total_timesteps is None:
        total_timesteps = lookup(algorithm).budget
    if total_timesteps < 1:
        raise InputError(f"total_timesteps: expected at least 1, got {total_timesteps}")
    if memory_limit is not None and not memory_limit > 0:
        raise InputError(f"memory_limit: expected a number of bytes > 0, got {memory_limit}")
    if env is None:
        from cojax.envs import ConverseEnv, constrained

        env, params = ConverseEnv(), getattr(params, "params", params)
        if jax.tree_util.all_leaves([params]):
            found = type(params).__name__
            raise InputError(f"params: expected EnvParams or a fixture, got {found}")
        if getattr(lookup(algorithm), "constrained", False):
            env = constrained(env)
    hyperparameters, origin = _beneath(profile, algorithm, params, hyperparameters)
    population, sizes = grid(
        lookup(algorithm),
        env,
        params,
        key,
        hyperparameters=hyperparameters,
        num_seeds=num_seeds,
        num_envs=num_envs,
        batching=batching,
    )
    steps = population.spec.steps_per_update(population.h)
    plan = Plan.of(steps, total_timesteps, eval_every)
    gamma, warning = discounts(population)
    limit = memory_budget.default_limit() if memory_limit is None else int(memory_limit)
    folder = None if checkpoint_dir is None else Path(checkpoint_dir)
    members = None if folder is None else checkpoint.read_chunk(folder)
    start = time.perf_counter()
    if folder is not None and members is not None:
        part = population.part(slice(0, min(members, population.size)))
        first = folder / "chunk-0000" if part is not population else folder
        checkpoint.verify(first, checkpoint.identify(part, plan, evaluate))  # before it is compiled
    chunks, memory_bytes = memory_budget.fit(population, evaluate, limit, members)
    seconds = time.perf_counter() - start
    if folder is not None and members is None:
        checkpoint.write_chunk(folder, chunks[0].stop)
    return Job(
        population=population,
        sizes=sizes,
        plan=plan,
        evaluate=evaluate,
        gamma=labelled(gamma, sizes),
        warning=warning,
        chunks=chunks,
        memory_bytes=memory_bytes,
        memory_limit=limit,
        compile_seconds=seconds,
        checkpoint_dir=folder,
        origin=origin,
    )


def _beneath(
    profile: Profile | None, algorithm: str, params: PyTree, given: Settings
) -> tuple[Settings, str]:
    """The settings with those of a profile beneath them, and where they come from in words."""
    geometry = getattr(getattr(problem_of(params), "system", None), "geometry", None)
    family = getattr(geometry, "family", None)
    found = tuned.hyperparameters(tuned.named(profile), algorithm, family or "")
    each = list(given) if isinstance(given, Sequence) else [given]
    named = [one or {} for one in each if one is None or isinstance(one, Mapping)]
    if len(named) < len(each):
        if profile is not None:
            raise InputError("profile: expected hyperparameters as mappings, or none")
        return given, f"{algorithm}: as given"
    names = {name for one in named for name in one}
    line = tuned.origin(profile, algorithm, family, names)
    if not found:
        return given, line
    merged = [{**found, **current_names(algorithm, one)} for one in named]
    return (merged if isinstance(given, Sequence) else merged[0]), line


def discounts(p: Population) -> tuple[Float[np.ndarray, " M"], str | None]:
    """γ of each member, and a line where one is not the system's own."""
    used = np.broadcast_to(algorithms.discount(p.env_params, p.h), p.shape)
    own = np.broadcast_to(getattr(p.env_params, "discount", np.nan), p.shape)
    other = ~np.isclose(used, own, rtol=1e-6, atol=0.0) & ~np.isnan(own)
    if not other.any():
        return used, None
    at = int(np.argmax(other))
    return used, (
        f"gamma: {used[at]:g} is not the system's own {own[at]:g}: the learner's optimum is of "
        "another problem"
    )


def check(algorithm: str, hyperparameters: Settings = None) -> None:
    """Raise ValueError, one line, for what ``train`` would refuse of these two, before any work."""
    spec = lookup(algorithm)
    spec.check(one_or_several(spec.hyperparameters, hyperparameters, {})[0])


def current_names(algorithm: str, hyperparameters: Mapping[str, object]) -> Content:
    """Hyperparameters by the names they have now, see ``settings.current_names``; of an algorithm
    that is not known they stay as they are.
    """
    if algorithm not in ALGORITHMS:
        return dict(hyperparameters)
    return settings.current_names(ALGORITHMS[algorithm].hyperparameters, hyperparameters)


def lookup(name: str) -> Algorithm:
    """Return the algorithm called ``name``; ValueError offering the nearest name, and for one that
    is not ours and does not keep the contract.
    """
    if name not in ALGORITHMS:
        hint = nearest(name, ALGORITHMS, 0.0)
        raise InputError(f"unknown algorithm {name!r}{hint} (known: {', '.join(ALGORITHMS)})")
    spec = ALGORITHMS[name]
    if name not in BUILT_IN and (reason := _traced_problem(spec)) is not None:
        raise InputError(f"algorithm {name}: {reason}")
    return spec


def register(algorithm: Algorithm) -> Algorithm:
    """Add an algorithm: ``train`` and studies then know it by its name.

    An algorithm of the same hyperparameters' name and module, such as a cell of a notebook that is
    run again gives, takes the place of the one before. Raises InputError, one line that says what
    was expected, for what does not keep the contract (:mod:`cojax.agents.contract`), and for a name
    that is taken.
    """
    name = str(getattr(algorithm, "name", algorithm))
    reason = contract.problem(name, algorithm) or _traced_problem(algorithm)
    if reason is not None:
        raise InputError(f"algorithm {name}: {reason}")
    old, new = ALGORITHMS.get(name, algorithm).hyperparameters, algorithm.hyperparameters
    same_place = (old.__module__, old.__qualname__) == (new.__module__, new.__qualname__)
    if name in BUILT_IN or not same_place:
        raise InputError(f"algorithm {name}: the name is taken")
    ALGORITHMS[name] = algorithm
    return algorithm


_traced_problem = lru_cache(maxsize=None)(contract.traced_problem)
