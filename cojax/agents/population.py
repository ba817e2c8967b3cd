"""Populations: M learners in a row, and the programs that begin, train and read them."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import TypeAlias

import jax
import jax.numpy as jnp
import numpy as np

from cojax import streams
from cojax.agents import algorithm as algorithms
from cojax.agents.algorithm import Algorithm, Clock, Environment
from cojax.agents.curriculum import problem_of, stage_of
from cojax.agents.layout import Axes, Layout
from cojax.agents.settings import Settings, one_or_several
from cojax.errors import InputError
from cojax.policy import Policy
from cojax.types import Array, Int, PRNGKeyArray, PyTree

PER_EPISODE = ("episode_return", "episode_length")
STRETCH = 2**14  # updates

Arguments: TypeAlias = tuple[PyTree, PyTree, PRNGKeyArray]  # (env_params, h, keys)
Evaluate: TypeAlias = Callable[[Policy, PyTree, PRNGKeyArray], PyTree]


@dataclasses.dataclass(frozen=True)
class Population:
    """M learners to train, in a row. Raises InputError for hyperparameters that the algorithm
    refuses, and for an environment whose actions it cannot take.

    Attributes:
        spec: the algorithm.
        env: the environment, static.
        env_params: leaves (M, ...), or without that axis where all members share one system; of
            an environment, or a curriculum of them.
        h: hyperparameters, in the same two ways.
        keys: typed keys, (M,).
        layout: how one call of a program runs all members; None where each is a call of its own.
    """

    spec: Algorithm
    env: Environment
    env_params: PyTree
    h: PyTree
    keys: PRNGKeyArray
    layout: Layout | None

    def __post_init__(self) -> None:
        self.spec.check(self.h)
        one, env = problem_of(self.arguments(0)[0]), self.env
        spaces = {"action": env.action_space(one), "observation": env.observation_space(one)}
        for kind, space in spaces.items():
            if not (hasattr(space, "low") and hasattr(space, "high") and len(space.shape) == 1):
                raise InputError(
                    f"{env.name}: expected a one-dimensional Box as {kind} space, got {space!r}"
                )
        if self.spec.differentiable and not getattr(env, "supports_transition_gradients", False):
            raise InputError(
                f"{env.name}: {self.spec.name} needs gradients through the transition, an "
                "environment that supports_transition_gradients"
            )
        box = spaces["action"]
        if self.spec.bounded and not np.all(np.isfinite(box.low) & np.isfinite(box.high)):
            raise InputError(
                f"{env.name}: {self.spec.name} needs finite action bounds, got {box!r}"
            )

    @classmethod
    def flat(
        cls, spec: Algorithm, env: Environment, env_params: PyTree, *rest: PyTree
    ) -> Population:
        """The same, of parameters as they come; ``rest`` are h, keys and layout."""
        return cls(spec, env, algorithms.strong(env_params), *rest)

    @property
    def size(self) -> int:
        """M."""
        return self.keys.shape[0]

    @property
    def shape(self) -> tuple[int]:
        """(M,)."""
        return (self.size,)

    def arguments(self, members: int | slice | None = None) -> Arguments:
        """(env_params, h, keys) of all members, of some, or of one, then without the axis."""
        keys = jax.random.clone(self.keys)  # a member is taken more than once
        if members is None:
            return self.env_params, self.h, keys

        def take(tree, axis):
            return tree if axis is None else jax.tree.map(lambda x: x[members], tree)

        axes = member_axes(self.env_params, self.h)
        return take(self.env_params, axes[0]), take(self.h, axes[1]), keys[members]

    def calls(self) -> list[Arguments]:
        """The arguments of each call of a program: of all members, or of every one."""
        if self.layout is None:
            return jax.device_put([self.arguments(i) for i in range(self.size)])
        return [jax.device_put(self.arguments())]

    def part(self, members: slice) -> Population:
        """Some members in a row."""
        if members == slice(0, self.size):
            return self
        env_params, h, keys = self.arguments(members)
        layout = self.layout and self.layout.narrowed(keys.shape[0])
        return Population(self.spec, self.env, env_params, h, keys, layout)


def grid(
    spec: Algorithm,
    env: Environment,
    params: PyTree,
    key: PRNGKeyArray,
    *,
    hyperparameters: Settings = None,
    num_seeds: int | None = None,
    num_envs: int | None = None,
    batching: str = "auto",
) -> tuple[Population, dict[str, int]]:
    """Fixtures × hyperparameters × seeds in a row, the seeds innermost, and the lengths of those
    of the three that are there, by label: the axes of the result.

    Raises InputError as ``train`` does.
    """
    if batching not in ("auto", "vmap", "loop"):
        raise InputError(f"batching: expected auto, vmap or loop, got {batching!r}")
    if not jnp.issubdtype(jnp.asarray(key).dtype, jax.dtypes.prng_key) or key.ndim:
        raise InputError("key: expected one typed key, jax.random.key(seed)")
    streams.require_threefry(key)
    if num_seeds is not None and num_seeds < 1:
        raise InputError(f"num_seeds: expected at least 1 or None, got {num_seeds}")
    env_params = algorithms.strong(params)
    overrides = {} if num_envs is None else {"num_envs": num_envs}
    h, settings = one_or_several(spec.hyperparameters, hyperparameters, overrides)
    fixtures = jnp.shape(env_params.max_steps_in_episode)
    sizes = {"fixture": fixtures[0]} if fixtures else {}
    sizes |= {} if settings is None else {"hyperparameters": settings}
    sizes |= {} if num_seeds is None else {"seed": num_seeds}
    size = math.prod(sizes.values())
    places = np.indices(tuple(sizes.values())).reshape(len(sizes), size)
    at = dict(zip(sizes, places, strict=True))

    def each(label, tree):
        index = at.get(label)
        return tree if index is None else jax.tree.map(lambda x: np.asarray(x)[index], tree)

    if num_seeds is None:
        keys = jnp.broadcast_to(jax.random.clone(key), (size,))  # it may name another run later
    else:
        keys = jax.vmap(jax.random.fold_in, (None, 0))(key, jnp.asarray(at["seed"], jnp.uint32))
    together = batching == "vmap" or (batching == "auto" and jax.default_backend() != "cpu")
    layout = Layout(size) if together and size > 1 else None
    env_params, h = each("fixture", env_params), each("hyperparameters", h)
    return Population(spec, env, env_params, h, keys, layout), sizes


def member_axes(env_params: PyTree, h: PyTree) -> tuple[Axes, Axes]:
    """For each 0, or None where all members share it: one number in place of one a member."""
    some = env_params.max_steps_in_episode, jax.tree.leaves(h)[0]
    return tuple(0 if jnp.ndim(x) else None for x in some)  # pyright: ignore[reportReturnType]


def state_axes(state: PyTree, layout: Layout) -> PyTree:
    """Axes of a state: all batched but the clock, unless each member has its own."""
    names = [f.name for f in dataclasses.fields(state)]
    axes = dict.fromkeys(names, 0) | {"clock": 0 if layout.own_clocks else None}
    return type(state)(**axes)


@partial(jax.jit, static_argnums=(0, 1, 2))
def initialize(  # noqa: PLR0917, arguments of programs are static by position
    spec: Algorithm,
    env: Environment,
    layout: Layout | None,
    env_params: PyTree,
    h: PyTree,
    keys: PRNGKeyArray,
) -> PyTree:
    """First states of one call: of all members by a layout, or of one without."""

    def init(env_params, h, key):
        return spec.init(env, key, problem_of(env_params), h).replace(clock=None)

    clock = Clock.create()
    if layout is None:
        return init(env_params, h, keys).replace(clock=clock)
    state = layout.spread(init, (*member_axes(env_params, h), 0), 0)(env_params, h, keys)
    if layout.own_clocks:
        clock = jax.tree.map(lambda x: jnp.broadcast_to(x, keys.shape), clock)
    return state.replace(clock=clock)


@partial(jax.jit, static_argnums=(0, 1, 2, 3), donate_argnames="state")
def advance(
    spec: Algorithm,
    env: Environment,
    evaluate: Evaluate | None,
    layout: Layout | None,
    *,
    state: PyTree,
    num_updates: Int[Array, ""],
    env_params: PyTree,
    h: PyTree,
) -> tuple[PyTree, dict[str, Array], PyTree]:
    """Do ``num_updates`` updates (traced: one compilation for any number), then evaluate.

    Returns the state, which is donated; sums over the updates, for :func:`averages`; and what
    ``evaluate`` gave. They are summed inside the loop: nothing is stacked over updates; and over
    stretches first, since a sum of millions in float32 no longer sees what is added.
    """

    def member(state, env_params, h):
        problem = problem_of(env_params)

        def body(i, carry):
            state, total, sums = carry
            state, metrics = spec.update(env, state, stage_of(env_params, state.clock), h)
            sums = jax.tree.map(jnp.add, sums, metrics)
            ends = i % STRETCH == STRETCH - 1
            total = jax.tree.map(lambda t, s: jnp.where(ends, t + s, t), total, sums)
            return state, total, jax.tree.map(lambda s: jnp.where(ends, 0, s), sums)

        shapes = jax.eval_shape(partial(spec.update, env), state, problem, h)[1]
        zeros = jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), shapes)
        state, total, sums = jax.lax.fori_loop(0, num_updates, body, (state, zeros, zeros))
        sums = jax.tree.map(jnp.add, total, sums)
        sums |= {"failed": state.failed}
        curve = None
        if evaluate is not None:
            learned = spec.policy_params(env, state, problem, h)
            policy = Policy(learned, spec.policy_apply(env, problem, h), spec.name)
            curve = evaluate(policy, problem, streams.root_key(0))
        return state, sums, curve

    if layout is None:
        return member(state, env_params, h)
    axes = state_axes(state, layout)
    spread = layout.spread(member, (axes, *member_axes(env_params, h)), (axes, 0, 0))
    return spread(state, env_params, h)


def averages(sums: Mapping[str, np.ndarray], num_updates: int) -> dict[str, np.ndarray]:
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
def extract(
    spec: Algorithm, env: Environment, layout: Layout | None, state: PyTree, *arguments: PyTree
) -> PyTree:
    """Policy parameters of one call, of its state and its ``(env_params, h)``."""

    def one(state, env_params, h):
        return spec.policy_params(env, state, problem_of(env_params), h)

    if layout is None:
        return one(state, *arguments)
    axes = (state_axes(state, layout), *member_axes(*arguments))
    return layout.spread(one, axes, 0)(state, *arguments)
