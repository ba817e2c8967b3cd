"""What training gives: policies, curves, and the best policy met on the way."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from cojax.agents import inspect
from cojax.agents.inspect import Agent, Critic
from cojax.errors import InputError
from cojax.policy import Policy


@dataclasses.dataclass(frozen=True)
class Run:
    """What training gave. ``axes`` label the leading axes of every array: K intervals follow them.

    Attributes:
        algorithm: its name.
        axes: those present of ``("fixture", "hyperparameters", "seed")``.
        policy: deterministic policies at the end, with these axes.
        best: each member's policy at its interval of lowest ``evaluate``, with these axes; None
            unless ``evaluate`` returned one number. Where no interval was finite, the first.
        best_timesteps: environment steps when ``best`` was met, (*axes); None with it.
        metrics: per-interval means, each (*axes, K); ``episode_return`` and ``episode_length``
            average over the episodes that ended in the interval (NaN if none did).
        curves: what ``evaluate`` returned after each interval, leaves (*axes, K, ...), or None.
        timesteps: environment steps of one member at the end of each interval, (K,).
        failed: members that had a non-finite parameter, (*axes).
        gamma: discount that each member learned with, (*axes).
        steps_per_second: environment steps of all members by the wall time after compilation.
        compile_seconds: time to compile, and of a first call that does no step.
        memory_bytes: peak memory as estimated before training.
        chunks: parts that were trained one after another to stay within the memory.
        hyperparameters: as used, leaves with the axis ``hyperparameters`` if present.
        states: of the learners: one, batched, if members ran side by side, else one a member;
            empty if there was more than one chunk.
    """

    algorithm: str
    axes: tuple[str, ...]
    policy: Policy
    best: Policy | None
    best_timesteps: np.ndarray | None
    metrics: dict[str, np.ndarray]
    curves: Any
    timesteps: np.ndarray
    failed: np.ndarray
    gamma: np.ndarray
    steps_per_second: float
    compile_seconds: float
    memory_bytes: int
    chunks: int
    hyperparameters: Any
    states: list[Any] = dataclasses.field(repr=False)

    def member(self, which: str = "last", **index: int) -> Policy:
        """One member's policy, e.g. ``run.member(fixture=0, seed=3)``; it runs alone.

        ``which`` is "last", the policy at the end, or "best"; ``index`` names axes and where to
        take them. Axes that are not named stay.
        Raises ValueError for another word, an unknown axis, and "best" where there is none.
        """
        if which not in ("last", "best"):
            raise InputError(f"which: expected last or best, got {which!r}")
        policy = self.policy if which == "last" else self.best
        if policy is None:
            raise InputError("which: there is no best policy; train with evaluate, a number")
        return policy.member(**index)

    def agent(self, **index: int) -> Agent:
        """One member as training left it, with its critic and its gradient: ``run.agent(seed=3)``.

        Axes of length 1 may be left out. Raises ValueError for an unknown axis, an index out of
        range or missing, where training in several chunks kept no states, and for an algorithm
        that says nothing of its critic or gradient.
        """
        from cojax.agents.training import lookup

        return inspect.agent(lookup(self.algorithm), self, **index)

    def critic(self, **index: int) -> Critic:
        """The critic of one member, V̂(s) or Q̂(s, a) in raw reward; see :meth:`agent`."""
        from cojax.agents.training import lookup

        return inspect.critic(lookup(self.algorithm), self, **index)


@dataclasses.dataclass
class Best:
    """The best policy of each member so far, on the host.

    Attributes:
        value: what ``evaluate`` gave for it, (*axes).
        interval: when it was met, (*axes); -1 before the first interval.
        params: of the policies, leaves (*axes, ...).
    """

    value: np.ndarray
    interval: np.ndarray
    params: Any

    @classmethod
    def create(cls, shape: tuple[int, ...], params: Any) -> Best:
        """Nothing seen yet; ``params`` give shapes and types."""
        value = np.full(shape, np.inf, np.float32)
        return cls(value, np.full(shape, -1, np.int32), jax.tree.map(np.array, params))

    def see(self, interval: int, value: np.ndarray, params: Any) -> None:
        """Keep the policies of members whose value is lower than ever, or the first they have.

        What is not finite is no value: any number is better.
        """
        lower = ~np.isfinite(self.value) | (value < self.value)
        better = (np.isfinite(value) & lower) | (self.interval < 0)
        self.value = np.where(better, value, self.value).astype(np.float32)
        self.interval = np.where(better, interval, self.interval).astype(np.int32)

        def choose(new, old):
            return np.where(
                better.reshape(better.shape + (1,) * (new.ndim - better.ndim)), new, old
            )

        self.params = jax.tree.map(choose, jax.tree.map(np.asarray, params), self.params)

    def tree(self) -> dict[str, Any]:
        """As a pytree, for a checkpoint."""
        return {"value": self.value, "interval": self.interval, "params": self.params}


def numbers(curve: Any, shape: tuple[int, ...]) -> np.ndarray | None:
    """What ``evaluate`` returned, if it is one number a member: shape ``shape``; else None."""
    leaves = jax.tree.leaves(curve)
    if len(leaves) != 1 or np.shape(leaves[0]) != shape:
        return None
    return np.asarray(leaves[0])


def assemble(sizes: dict[str, int], parts: Sequence[tuple[tuple[slice, ...], Run]], h: Any) -> Run:
    """One run of the runs of its chunks; ``parts`` say where each belongs. States are dropped."""
    runs = [run for _, run in parts]
    first, shape = runs[0], tuple(sizes.values())

    def whole(take: Callable[[Run], Any]) -> Any:
        trees = [take(run) for run in runs]

        def place(*leaves):
            leaves = [np.asarray(leaf) for leaf in leaves]
            out = np.zeros(shape + leaves[0].shape[len(shape) :], leaves[0].dtype)
            for (where, _), leaf in zip(parts, leaves, strict=True):
                out[where] = leaf
            return out

        return jax.tree.map(place, *trees)

    def policies(policy: Policy, take: Callable[[Run], Any]) -> Policy:
        return dataclasses.replace(policy, params=jax.tree.map(jnp.asarray, whole(take)))

    steps = {
        i: run.failed.size * int(run.timesteps[-1])
        for i, run in enumerate(runs)
        if run.steps_per_second > 0  # a chunk that was found finished took none
    }
    seconds = sum(n / runs[i].steps_per_second for i, n in steps.items())
    return dataclasses.replace(
        first,
        policy=policies(first.policy, lambda run: run.policy.params),
        best=None if first.best is None else policies(first.best, lambda run: run.best.params),  # pyright: ignore
        best_timesteps=whole(lambda run: run.best_timesteps),
        metrics=whole(lambda run: run.metrics),
        curves=whole(lambda run: run.curves),
        failed=whole(lambda run: run.failed),
        gamma=whole(lambda run: run.gamma),
        steps_per_second=sum(steps.values()) / seconds if steps else 0.0,
        compile_seconds=sum(run.compile_seconds for run in runs),
        memory_bytes=max(run.memory_bytes for run in runs),
        chunks=len(runs),
        hyperparameters=h,
        states=[],
    )
