"""What training gives: policies, curves, and the best policy met on the way."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
import numpy as np

from cojax.agents import inspect
from cojax.agents.inspect import Agent, Critic
from cojax.errors import InputError
from cojax.io.described import About, described, number
from cojax.policy import Policy, Setting
from cojax.types import Float, PyTree, Row

if TYPE_CHECKING:
    import pandas as pd


def _about(run: Run) -> About:
    """What a run shows of itself."""
    sizes = zip(run.axes, run.failed.shape, strict=True)
    members = ", ".join(f"{axis} {n}" for axis, n in sizes) or "one learner"
    gaps = numbers(run.curves, (*run.failed.shape, len(run.timesteps)))
    last = "" if gaps is None else number(np.where(np.isnan(gaps[..., -1]), np.inf, gaps[..., -1]))
    facts = {
        "hyperparameters": run.origin,
        "failed": f"{int(run.failed.sum())} of {run.failed.size}",
        "last evaluation": last,
        "speed": f"{run.steps_per_second:,.0f} steps/s after {run.compile_seconds:.1f} s of "
        "compilation",
    }
    return f"Run of {run.algorithm}: {members}; {int(run.timesteps[-1]):,} steps each", facts


@described(_about)
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
        origin: where the hyperparameters come from, in words.
        hyperparameters: as used, leaves with the axis ``hyperparameters`` if present.
        states: of the learners: one, with all members in a row in front, if they ran side by side,
            else one a member; empty if there was more than one chunk.
    """

    algorithm: str
    axes: tuple[str, ...]
    policy: Policy
    best: Policy | None
    best_timesteps: np.ndarray | None
    metrics: dict[str, np.ndarray]
    curves: PyTree
    timesteps: np.ndarray
    failed: np.ndarray
    gamma: np.ndarray
    steps_per_second: float
    compile_seconds: float
    memory_bytes: int
    chunks: int
    hyperparameters: PyTree
    states: list[PyTree] = dataclasses.field(repr=False)
    origin: str = ""

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

    def settings(self) -> list[Row]:
        """The hyperparameters that differ between settings, by value, one dict for each setting;
        [{}] where there is one alone.
        """
        return [dict(pairs) for pairs in self.policy.settings] or [{}]

    def frame(self) -> pd.DataFrame:
        """Learning curves, one line for each member and interval: its axes, the hyperparameters
        that were varied by value, ``timesteps``, ``evaluation`` where there was one number, and
        every metric (``metric_NAME`` where a hyperparameter has the name).
        """
        import pandas as pd

        shape = (*self.failed.shape, len(self.timesteps))
        places = np.indices(shape).reshape(len(shape), -1)
        at = dict(zip((*self.axes, "interval"), places, strict=True))
        columns: Row = {axis: at[axis] for axis in self.axes}
        settings, own = self.settings(), at.get("hyperparameters", np.zeros(1, int))
        for name in settings[0]:
            columns[name] = np.array([setting[name] for setting in settings])[own]
        columns["timesteps"] = self.timesteps[at["interval"]]
        if (curve := numbers(self.curves, shape)) is not None:
            columns["evaluation"] = curve.reshape(-1)
        for name, x in self.metrics.items():
            columns[f"metric_{name}" if name in columns else name] = np.asarray(x).reshape(-1)
        return pd.DataFrame(columns)

    def rows(self, fixtures: Sequence[str] | None = None) -> list[Row]:
        """One row for each fixture and setting: its number, its ``hyperparameters`` by value, and
        the last evaluation over its ``seeds``: {"median", "low", "high"}, the ends being the
        lowest and the highest seed, and what failed counting as infinite. ``fixtures`` are names.

        Raises InputError where training was not given an ``evaluate`` of one number.
        """
        shape = (*self.failed.shape, len(self.timesteps))
        curve = numbers(self.curves, shape)
        if curve is None:
            raise InputError("run: no evaluation; train with evaluate, a number")
        last = np.where(self.failed | np.isnan(curve[..., -1]), np.inf, curve[..., -1])
        sizes = dict(zip(self.axes, last.shape, strict=True))
        counts = [sizes.get(axis, 1) for axis in ("fixture", "hyperparameters", "seed")]
        names = fixtures or [f"fixture {i}" for i in range(counts[0])]
        if len(names) != counts[0]:
            raise InputError(f"fixtures: expected {counts[0]} names, got {len(names)}")
        last, settings, rows = last.reshape(counts), self.settings(), []
        for fixture, setting in np.ndindex(*counts[:2]):
            rows.append(
                {
                    "fixture": names[fixture],
                    "policy": self.algorithm,
                    "setting": setting,
                    "hyperparameters": settings[setting],
                    "num_seeds": counts[2],
                    "seeds": over_seeds(last[fixture, setting]),
                }
            )
        return rows

    def agent(self, **index: int) -> Agent:
        """One member as training left it, with its critic and its gradient: ``run.agent(seed=3)``.

        Axes of length 1 may be left out. Raises ValueError for an unknown axis, an index out of
        range or missing, where training in several chunks kept no states, and for an algorithm
        that says nothing of its critic or gradient.
        """
        from cojax.agents.training import lookup

        return inspect.agent(lookup(self.algorithm), self, index)

    def critic(self, **index: int) -> Critic:
        """The critic of one member, V̂(s) or Q̂(s, a) in raw reward; see :meth:`agent`."""
        from cojax.agents.training import lookup

        return inspect.critic(lookup(self.algorithm), self, index)


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
    params: PyTree

    @classmethod
    def create(cls, shape: tuple[int, ...], params: PyTree) -> Best:
        """Nothing seen yet; ``params`` give shapes and types."""
        value = np.full(shape, np.inf, np.float32)
        return cls(value, np.full(shape, -1, np.int32), jax.tree.map(np.array, params))

    def see(self, interval: int, value: np.ndarray, params: PyTree) -> None:
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

    def tree(self) -> dict[str, PyTree]:
        """As a pytree, for a checkpoint."""
        return {"value": self.value, "interval": self.interval, "params": self.params}


def over_seeds(x: Float[np.ndarray, " S"]) -> dict[str, float]:
    """What a table holds of one number a seed."""
    return {"median": float(np.median(x)), "low": float(x.min()), "high": float(x.max())}


def varied(h: PyTree, count: int) -> tuple[Setting, ...]:
    """What differs between ``count`` settings, pairs (name, value) of each."""
    found: list[Row] = [{} for _ in range(count)]
    for field in dataclasses.fields(h):
        values = getattr(h, field.name)
        if isinstance(values, jax.Array) and len(np.unique(np.asarray(values))) > 1:
            for row, value in zip(found, np.asarray(values), strict=True):
                row[field.name] = float(f"{value:.6g}")
    return tuple(tuple(row.items()) for row in found)


def numbers(curve: PyTree, shape: tuple[int, ...]) -> np.ndarray | None:
    """What ``evaluate`` returned, if it is one number a member: shape ``shape``; else None."""
    leaves = jax.tree.leaves(curve)
    if len(leaves) != 1 or np.shape(leaves[0]) != shape:
        return None
    return np.asarray(leaves[0])


def labelled(tree: PyTree, sizes: Mapping[str, int]) -> PyTree:
    """Leaves (M, ...) as (*axes, ...), for axes of some lengths whose product is M."""
    shape = tuple(sizes.values())
    return jax.tree.map(lambda x: x.reshape(shape + x.shape[1:]), tree)


ARRAYS = ("policy", "best", "best_timesteps", "metrics", "curves", "failed", "gamma")


def assemble(sizes: dict[str, int], chunks: Sequence[slice], runs: Sequence[Run], h: PyTree) -> Run:
    """The run with labelled axes of those of its chunks, each a row of members; ``h`` are the
    hyperparameters of all members. States are kept where there is one chunk.
    """
    size = math.prod(sizes.values())

    def place(*parts):
        out = np.zeros((size, *parts[0].shape[1:]), parts[0].dtype)
        for members, x in zip(chunks, parts, strict=True):
            out[members] = x
        return out

    found = {name: getattr(runs[0], name) for name in ARRAYS}
    if len(runs) > 1:
        found = jax.tree.map(place, *[{name: getattr(r, name) for name in ARRAYS} for r in runs])
    found = labelled(found, sizes)
    for name in ("policy", "best"):
        if found[name] is not None:
            params = jax.tree.map(jnp.asarray, found[name].params)
            found[name] = dataclasses.replace(found[name], params=params, axes=tuple(sizes))
    at = tuple(slice(None) if label == "hyperparameters" else 0 for label in sizes)
    if "hyperparameters" in sizes:
        h = jax.tree.map(lambda x: jnp.asarray(x)[at], labelled(h, sizes))
    told = varied(h, sizes["hyperparameters"]) if "hyperparameters" in sizes else ()
    for name in ("policy", "best"):
        if found[name] is not None:
            found[name] = dataclasses.replace(found[name], settings=told)
    trained = [run for run in runs if run.steps_per_second > 0]  # not what was found finished
    steps = [run.failed.size * int(run.timesteps[-1]) for run in trained]
    seconds = sum(n / run.steps_per_second for n, run in zip(steps, trained, strict=True))
    return dataclasses.replace(
        runs[0],
        **found,
        axes=tuple(sizes),
        steps_per_second=sum(steps) / seconds if steps else 0.0,
        compile_seconds=sum(run.compile_seconds for run in runs),
        memory_bytes=max(run.memory_bytes for run in runs),
        chunks=len(runs),
        hyperparameters=h,
        states=runs[0].states if len(runs) == 1 else [],
    )
