"""Populations: members along labelled axes, side by side or one after another."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from cojax import streams
from cojax.agents import algorithm as algorithms
from cojax.agents.algorithm import Algorithm, Clock
from cojax.agents.layout import Layout
from cojax.errors import InputError
from cojax.policy import Policy

AXES = ("fixture", "hyperparameters", "seed")
PER_EPISODE = ("episode_return", "episode_length")
STRETCH = 2**14  # updates


@dataclasses.dataclass(frozen=True)
class Population:
    """Learners to train: what varies, along which axis, and how they are batched.

    Attributes:
        spec: the algorithm.
        env: the environment, static.
        env_params: leaves with a leading axis if "fixture" is an axis.
        h: hyperparameters, leaves with a leading axis if "hyperparameters" is an axis.
        keys: typed keys, (num_seeds,) if "seed" is an axis.
        sizes: axis label -> length, in order, outermost first; or {"member": M} alone, where
            every leaf of all three has that axis.
        vmapped: whether one call of the program runs all members, not one.
        layout: how that call runs them, for the axis "member".
    """

    spec: Algorithm
    env: Any
    env_params: Any
    h: Any
    keys: jax.Array
    sizes: dict[str, int]
    vmapped: bool
    layout: Layout | None = None

    @classmethod
    def create(
        cls,
        spec: Algorithm,
        env: Any,
        params: Any,
        key: jax.Array,
        *,
        hyperparameters: Any,
        num_seeds: int | None,
        num_envs: int | None,
        batching: str,
    ) -> Population:
        """Check the arguments of ``train`` and label their axes."""
        if batching not in ("auto", "vmap", "loop"):
            raise InputError(f"batching: expected auto, vmap or loop, got {batching!r}")
        if not jnp.issubdtype(jnp.asarray(key).dtype, jax.dtypes.prng_key) or key.ndim:
            raise InputError("key: expected one typed key, jax.random.key(seed)")
        streams.require_threefry(key)
        if num_seeds is not None and num_seeds < 1:
            raise InputError(f"num_seeds: expected at least 1 or None, got {num_seeds}")
        sizes = {}
        env_params = algorithms.strong(params)
        if jnp.ndim(env_params.max_steps_in_episode) == 1:
            sizes["fixture"] = env_params.max_steps_in_episode.shape[0]
        overrides = {} if num_envs is None else {"num_envs": num_envs}
        h, settings = algorithms.one_or_several(spec.hyperparameters, hyperparameters, overrides)
        if settings is not None:
            sizes["hyperparameters"] = settings
        spec.check(h)
        keys = jax.random.clone(key)  # a name for this run, which may be trained again
        if num_seeds is not None:
            keys = jax.vmap(jax.random.fold_in, (None, 0))(key, jnp.arange(num_seeds))
            sizes["seed"] = num_seeds
        check_spaces(spec, env, env_params, "fixture" in sizes)
        vmapped = batching == "vmap" or (batching == "auto" and jax.default_backend() != "cpu")
        return cls(spec, env, env_params, h, keys, sizes, vmapped and bool(sizes))

    @classmethod
    def flat(
        cls, spec: Algorithm, env: Any, env_params: Any, h: Any, keys: jax.Array, layout: Layout
    ) -> Population:
        """Members in a row: every leaf of ``env_params``, ``h`` and ``keys`` is (M, ...)."""
        env_params = algorithms.strong(env_params)
        spec.check(h)
        check_spaces(spec, env, env_params, batched=True)
        return cls(spec, env, env_params, h, keys, {"member": keys.shape[0]}, True, layout)

    @property
    def axes(self) -> tuple[str, ...] | Layout:
        """How one call of the program runs its members: static, decides what is compiled."""
        if self.layout is not None:
            return self.layout
        return tuple(self.sizes) if self.vmapped else ()

    @property
    def shape(self) -> tuple[int, ...]:
        """Lengths of the axes."""
        return tuple(self.sizes.values())

    def arguments(self, index: tuple[int, ...] | None = None) -> tuple[Any, Any, jax.Array]:
        """(env_params, h, key) of the whole population, or of one member."""
        if index is None:
            return self.env_params, self.h, self.keys
        return self._take(index)

    def part(self, box: tuple[slice, ...]) -> Population:
        """The members in a box, one slice an axis; every axis stays."""
        env_params, h, keys = self._take(box)
        lengths = [len(range(*s.indices(n))) for s, n in zip(box, self.shape, strict=True)]
        sizes = dict(zip(self.sizes, lengths, strict=True))
        return dataclasses.replace(self, env_params=env_params, h=h, keys=keys, sizes=sizes)

    def along(self, label: str, values: Any) -> np.ndarray:
        """Values that vary along one axis, or not at all, for every member: (*axes)."""
        values = np.asarray(values)
        if values.ndim:
            lengths = [n if own in (label, "member") else 1 for own, n in self.sizes.items()]
            values = values.reshape(lengths)
        return np.broadcast_to(values, self.shape)

    def _take(self, index: tuple[Any, ...]) -> tuple[Any, Any, jax.Array]:
        """(env_params, h, keys) at an index or a slice for each axis."""
        at = dict(zip(self.sizes, index, strict=True))
        keys = jax.random.clone(self.keys)  # a member is taken more than once

        def take(label, tree):
            label = "member" if "member" in at else label
            return jax.tree.map(lambda x: x[at[label]], tree) if label in at else tree

        return (
            take("fixture", self.env_params),
            take("hyperparameters", self.h),
            take("seed", keys),
        )


def check_spaces(spec: Algorithm, env: Any, env_params: Any, batched: bool) -> None:
    """Raise ValueError unless actions are a one-dimensional Box (with finite bounds if needed)."""
    one = jax.tree.map(lambda x: x[0], env_params) if batched else env_params
    for kind, space in (
        ("action", env.action_space(one)),
        ("observation", env.observation_space(one)),
    ):
        if not (hasattr(space, "low") and hasattr(space, "high") and len(space.shape) == 1):
            raise InputError(
                f"{env.name}: expected a one-dimensional Box as {kind} space, got {space!r}"
            )
    space = env.action_space(one)
    if spec.bounded and not np.all(np.isfinite(space.low) & np.isfinite(space.high)):
        raise InputError(f"{env.name}: {spec.name} needs finite action bounds, got {space!r}")


def over_axes(
    function: Callable, axes: tuple[str, ...] | Layout, in_axes: Callable, out_axes: Any
) -> Callable:
    """Vmap ``function`` once for each label, innermost last; ``in_axes(label)`` gives the axes.

    A layout runs it over the axis "member".
    """
    if isinstance(axes, Layout):
        return axes.spread(function, in_axes("member"), out_axes)
    for label in reversed(axes):
        function = jax.vmap(function, in_axes=in_axes(label), out_axes=out_axes)
    return function


def argument_axes(label: str) -> tuple[Any, Any, Any]:
    """Which of (env_params, h, key) the axis ``label`` belongs to."""
    fixture, setting, seed = (0 if label in (own, "member") else None for own in AXES)
    return fixture, setting, seed


def state_axes(state: Any, axes: tuple[str, ...] | Layout) -> Any:
    """Axes of a state: all batched but the clock, unless each member has its own."""
    shared = None if not (isinstance(axes, Layout) and axes.own_clocks) else 0
    names = [f.name for f in dataclasses.fields(state)]
    return type(state)(**{name: shared if name == "clock" else 0 for name in names})


@partial(jax.jit, static_argnums=(0, 1, 2))
def initialize(spec: Algorithm, env: Any, axes: Any, env_params: Any, h: Any, key: Any):
    """First states of a population with the given vmapped axes."""

    def init(env_params, h, key):
        state = spec.init(env, key, env_params, h)
        return state.replace(clock=None)

    state = over_axes(init, axes, argument_axes, 0)(env_params, h, key)
    clock = Clock.create()
    if isinstance(axes, Layout) and axes.own_clocks:
        clock = jax.tree.map(lambda x: jnp.broadcast_to(x, key.shape), clock)
    return state.replace(clock=clock)


@partial(jax.jit, static_argnums=(0, 1, 2, 3), donate_argnums=(4,))
def advance(
    spec: Algorithm,
    env: Any,
    evaluate: Any,
    axes: tuple[str, ...] | Layout,
    state: Any,
    num_updates: jax.Array,
    env_params: Any,
    h: Any,
):
    """Do ``num_updates`` updates (traced: one compilation for any number), then evaluate.

    Returns the state, which is donated; sums over the updates, for :func:`averages`; and what
    ``evaluate`` gave. They are summed inside the loop: nothing is stacked over updates; and over
    stretches first, since a sum of millions in float32 no longer sees what is added.
    """

    def member(state, env_params, h):
        def body(i, carry):
            state, total, sums = carry
            state, metrics = spec.update(env, state, env_params, h)
            sums = jax.tree.map(jnp.add, sums, metrics)
            ends = i % STRETCH == STRETCH - 1
            total = jax.tree.map(lambda t, s: jnp.where(ends, t + s, t), total, sums)
            return state, total, jax.tree.map(lambda s: jnp.where(ends, 0, s), sums)

        shapes = jax.eval_shape(partial(spec.update, env), state, env_params, h)[1]
        zeros = jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), shapes)
        state, total, sums = jax.lax.fori_loop(0, num_updates, body, (state, zeros, zeros))
        sums = jax.tree.map(jnp.add, total, sums)
        sums |= {"failed": state.failed}
        curve = None
        if evaluate is not None:
            learned = spec.policy_params(env, state, env_params, h)
            policy = Policy(learned, spec.policy_apply(env, env_params, h), spec.name)
            curve = evaluate(policy, env_params, streams.root_key(0))
        return state, sums, curve

    clock = state_axes(state, axes)

    def in_axes(label):
        return (clock, *argument_axes(label)[:2])

    return over_axes(member, axes, in_axes, (clock, 0, 0))(state, env_params, h)


def averages(sums: dict[str, np.ndarray], num_updates: int) -> dict[str, np.ndarray]:
    """Metrics of ``num_updates`` updates by their sums, as :func:`advance` gives them.

    On the host: 0/0, of no update or no episode, is no fault for ``jax_debug_nans`` to stop at.
    """
    by = {"failed": None, "episodes": None, **dict.fromkeys(PER_EPISODE, sums["episodes"])}
    with np.errstate(invalid="ignore", divide="ignore"):
        return {
            name: x if (n := by.get(name, np.float32(num_updates))) is None else x / n
            for name, x in sums.items()
        }


@partial(jax.jit, static_argnums=(0, 1, 2))
def extract(spec: Algorithm, env: Any, axes: Any, state: Any, env_params: Any, h: Any):
    """Policy parameters of a population."""

    def one(state, env_params, h):
        return spec.policy_params(env, state, env_params, h)

    clock = state_axes(state, axes)
    return over_axes(one, axes, lambda a: (clock, *argument_axes(a)[:2]), 0)(state, env_params, h)


def each(population: Population) -> list[tuple[int, ...] | None]:
    """Indices of the programs to call: [None] for a vmapped population, or every member."""
    return [None] if population.vmapped else list(np.ndindex(population.shape))


def gather(population: Population, trees: list[Any], stack: Callable) -> Any:
    """Put results of ``each`` together: leaves with the axes of the population in front."""
    if population.vmapped:
        return trees[0]
    return jax.tree.map(
        lambda *leaves: stack(leaves).reshape(population.shape + leaves[0].shape), *trees
    )
