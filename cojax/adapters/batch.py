"""N environments side by side on the device, NumPy on the host: what host adapters stand on."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from gymnax.environments import spaces
from gymnax.environments.environment import Environment

from cojax import envs, inputs, streams
from cojax.envs.params import MAX_HORIZON
from cojax.errors import InputError
from cojax.labels import Labels
from cojax.labels import of as labels_of
from cojax.registration import make
from cojax.types import Array, Key, Options, PyTree


def missing(library: str, extra: str) -> InputError:
    """The error of an adapter whose library is not installed, one line."""
    return InputError(f"{library}: expected the extra, pip install 'cojax[{extra}]'")


def resolve(system: object, options: Options) -> tuple[Environment, PyTree]:
    """(env, params) from a name of :func:`cojax.make` with its options, ``EnvParams``, a stacked
    batch, a fixture, or a pair (env, params) of any gymnax 1.0 environment.

    Raises InputError, one line, for anything else, for options that come without a name, and in a
    process forked from one where JAX runs.
    """
    require_unforked()
    if isinstance(system, str):
        return make(system, **options)
    if options:
        raise InputError(f"{next(iter(options))}: an option needs a name, such as ConverseArm-v0")
    if isinstance(system, tuple) and len(system) == 2:
        return system
    if hasattr(system, "make_params"):
        system = system.make_params()  # pyright: ignore[reportAttributeAccessIssue]
    if isinstance(system, envs.EnvParams):
        return envs.environment_of(system), system
    raise InputError(
        "system: expected a name, EnvParams, a fixture, or (env, params); "
        f"got {type(system).__name__}"
    )


class _Fork:
    """Whether JAX ran in the process that this one was forked from."""

    started = lost = False


def _before_fork() -> None:
    bridge = sys.modules.get("jax._src.xla_bridge")
    _Fork.started = getattr(bridge, "backends_are_initialized", lambda: True)()


def _after_fork() -> None:
    _Fork.lost = _Fork.lost or _Fork.started


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork, after_in_child=_after_fork)


def require_unforked() -> None:
    """Raise InputError, one line, in a process forked from one where JAX runs: a fork takes none
    of JAX's threads along, and the first call of JAX would wait for them for ever.
    """
    if _Fork.lost:
        raise InputError(
            "fork: JAX waits for ever in a process forked after it started; expected processes "
            "started by spawn or forkserver"
        )


def box(space: PyTree) -> tuple[np.ndarray, np.ndarray]:
    """Bounds (low, high) of a gymnax Box, float32, in the shape of the space."""
    if not hasattr(space, "low"):
        raise InputError(f"action_space: expected a Box, got {type(space).__name__}")
    low, high = (np.asarray(x, np.float32) for x in (space.low, space.high))
    return np.broadcast_to(low, space.shape).copy(), np.broadcast_to(high, space.shape).copy()


def to_numpy(action: PyTree) -> np.ndarray:
    """A NumPy array from what a learner calls an action: NumPy, JAX, a list, or a torch tensor on
    any device, bfloat16 included. Raises InputError, one line, for lists of several lengths.
    """
    if hasattr(action, "detach"):
        tensor = action.detach().cpu()
        try:
            action = tensor.numpy()
        except TypeError:  # NumPy has no bfloat16
            action = tensor.float().numpy()
    try:
        return np.asarray(action)
    except ValueError:
        raise InputError("action: expected numbers, as many in every row") from None


class Step(NamedTuple):
    """What one step of N environments gives, in NumPy."""

    obs: np.ndarray  # (N, d) float32; of the next episode where one ended
    final_obs: np.ndarray  # (N, d) float32, before that reset
    reward: np.ndarray  # (N,) float32
    terminated: np.ndarray  # (N,) bool
    truncated: np.ndarray  # (N,) bool
    clipped: np.ndarray  # (N,) bool: the action was outside of the box
    told: dict[str, np.ndarray]  # (N,) float64 each: the measures of the system


class Batch:
    """N environments that reset by themselves in the step that ends an episode.

    Environment i of ``reset(seed)`` is the one environment of ``reset(seed + i)``: its draws do
    not depend on N, and what is computed of them is the same up to rounding.

    Args:
        env, params: of :func:`resolve`; environment i of a stacked batch of F is system i mod F.
        num_envs: N; None for F, or 1.
        normalize_actions: whether actions are in [-1, 1]^m, 1 being the limit, and not in the
            units of the environment.

    Attributes:
        low, high: bounds of the action, (m,); of an index, ().
        num_choices: how many actions there are to choose from, by their index; None where actions
            are vectors.
        scale: (m,), actions in the units of the environment are ``scale * action``.
        problem: ``params`` as they were given.
        measures: names of what ``info`` tells of a step beside the rest.
        horizon: the largest time limit of an episode; None where there is none.
        num_clipped: how many actions were outside of the bounds so far.

    Raises InputError, one line, where the parts do not fit.
    """

    def __init__(
        self,
        env: Environment,
        params: PyTree,
        num_envs: int | None = None,
        *,
        normalize_actions: bool = True,
    ):
        self.env = env
        self.problem = params
        count = envs.num_instances(params)
        self.num_envs = inputs.whole("num_envs", (count or 1) if num_envs is None else num_envs, 1)
        first = params
        horizon = int(np.max(params.max_steps_in_episode))
        self.horizon = horizon if horizon < MAX_HORIZON else None
        self.stacked = count is not None
        if count is not None:
            first = jax.tree.map(lambda leaf: leaf[0], params)
            index = np.arange(self.num_envs) % count
            params = jax.tree.map(lambda leaf: leaf[index], params)
        self.params = params
        self.measures: tuple[str, ...] = getattr(getattr(params, "system", None), "measures", ())
        space = env.action_space(first)
        self.num_choices = space.n if isinstance(space, spaces.Discrete) else None
        if self.num_choices is None:
            self.low, self.high = box(space)
            self._require_one_box(env, count)
        else:
            self.low, self.high = np.zeros((), np.float32), np.float32(self.num_choices - 1)
        self.scale = np.ones_like(self.high)
        if normalize_actions and self.num_choices is None:
            if not np.array_equal(self.low, -self.high):
                raise InputError("normalize_actions: expected a symmetric box of actions")
            self.scale = self.high
            self.low, self.high = self.low / self.scale, self.high / self.scale
        # finite numbers that float32 cannot hold, or not times the scale, are cut to these
        self._largest = float(np.finfo(np.float32).max / (2.0 * max(1.0, self.scale.max())))
        observation = box(env.observation_space(first)) if count is None else self._widest(env)
        self.obs_low, self.obs_high = observation
        self.num_clipped = 0
        self._keys: PyTree = None
        self._state: PyTree = None
        self._obs: PyTree = None

    def _require_one_box(self, env: Environment, count: int | None) -> None:
        if count is None:
            return
        bounds = jax.vmap(lambda p: env.action_space(p).high)(self.params)
        if (np.asarray(bounds) != self.high).any():
            raise InputError("action_limit: expected the same in all systems of one batch")

    def _widest(self, env: Environment) -> tuple[np.ndarray, np.ndarray]:
        def bounds(params):
            space = env.observation_space(params)
            low, high = (jnp.broadcast_to(x, space.shape) for x in (space.low, space.high))
            return low, high

        low, high = (np.asarray(x, np.float32) for x in jax.vmap(bounds)(self.params))
        return low.min(axis=0), high.max(axis=0)

    @property
    def started(self) -> bool:
        """Whether there is an episode to step in."""
        return self._state is not None

    def reset(
        self,
        seeds: int | Sequence[int | None] | None = None,
        mask: np.ndarray | bool = True,
        drawn: np.ndarray | bool = False,
    ) -> np.ndarray:
        """Begin new episodes; observations (N, d).

        Args:
            seeds: of environment 0, the others following, or one each; None goes on drawing
                where the last episodes left off.
            mask: (N,) bool, who begins; the others stand where they are.
            drawn: (N,) bool, whose last step has begun the next episode already: it is theirs
                where no seed is given.

        Raises InputError, one line, for seeds that are no whole numbers in [0, 2⁶⁴).
        """
        require_unforked()
        words, given = self._seed_words(seeds)
        begin = np.broadcast_to(mask, self.num_envs)
        if self.started:
            begin = begin & (given | ~np.broadcast_to(drawn, self.num_envs))
        elif not (begin & given).all():
            raise InputError("reset: expected a seed of every environment the first time")
        if begin.any():
            given &= begin
            keys = _keys(words) if given.any() else self._keys
            if given.any() and not given.all():
                keys = streams.choose(given, keys, self._keys)
            now = None if begin.all() else (begin, (self._keys, self._state, self._obs))
            out = _reset(self.env, self.stacked, self.params, keys, now=now)
            self._keys, self._state, self._obs = out
        return np.array(self._obs)

    def _seed_words(self, seeds: PyTree) -> tuple[np.ndarray, np.ndarray]:
        """(N, 2) uint32, the words of each key as JAX makes it of 64 bits; (N,) which are given."""
        if hasattr(seeds, "tolist"):
            seeds = seeds.tolist()  # pyright: ignore[reportOptionalMemberAccess]
        if seeds is None:
            seeds = [None] * self.num_envs
        elif np.ndim(seeds) == 0:
            first = inputs.whole("seed", seeds, 0)
            seeds = [first + i for i in range(self.num_envs)]
        if len(seeds) != self.num_envs:
            raise InputError(f"seed: expected {self.num_envs} seeds, got {len(seeds)}")
        found = [0 if seed is None else inputs.whole("seed", seed, 0) for seed in seeds]
        if max(found) >= 2**64:
            raise InputError(f"seed: expected whole numbers below 2**64, got {max(found)}")
        words = [(seed >> 32, seed % 2**32) for seed in found]
        return np.asarray(words, np.uint32), np.asarray([seed is not None for seed in seeds])

    def step(self, actions: PyTree, hold: np.ndarray | None = None) -> Step:
        """One step of all under actions (N, m), clipped to the bounds where the environment has
        any. Those in the mask ``hold`` (N,) stand still: reward 0, their observation once more.

        Raises InputError, one line, for another shape, and what is no finite number.
        """
        require_unforked()
        actions = self.checked(actions)
        if not self.started:
            raise InputError("step: expected a call of reset before it")
        outside = (actions < self.low) | (actions > self.high)
        clipped = outside.reshape(self.num_envs, -1).any(axis=-1)
        if hold is not None:
            clipped &= ~hold
        self.num_clipped += int(clipped.sum())
        now = (self._keys, self._state, self._obs)
        actions = self.scale * actions if self.num_choices is None else actions
        self._keys, self._state, self._obs, out = _step(
            self.env,
            self.stacked,
            self.params,
            now,
            actions=actions,
            hold=hold,
            measures=self.measures,
        )
        out = np.array(out)  # one copy from the device; five would cost more than the step
        last = out[:, out.shape[1] - len(self.measures) :].astype(np.float64)
        told = dict(zip(self.measures, last.T, strict=True))
        out = out[:, : out.shape[1] - len(told)]
        obs, final_obs = np.split(out[:, :-3], 2, axis=1)
        return Step(obs, final_obs, out[:, -3], out[:, -2] > 0, out[:, -1] > 0, clipped, told)

    def checked(self, actions: PyTree) -> np.ndarray:
        """Actions (N, m), float32, or indices (N,), int32. Raises InputError as :meth:`step`."""
        array = to_numpy(actions)
        if self.num_choices is not None:
            return self._indices(array)
        shape = (self.num_envs, *self.low.shape)
        if array.shape != shape or array.dtype.kind not in "iuf":
            raise InputError(
                f"action: expected numbers of shape {shape}, got {array.shape} of {array.dtype}"
            )
        if not np.isfinite(array).all():
            raise InputError("action: expected finite numbers")
        wide = array.astype(np.promote_types(array.dtype, np.float32))  # float16 lacks the bounds
        return np.clip(wide, -self._largest, self._largest).astype(np.float32)

    def _indices(self, array: np.ndarray) -> np.ndarray:
        shape, most = (self.num_envs,), int(self.high)
        if array.shape != shape or array.dtype.kind not in "iu":
            raise InputError(
                f"action: expected indices of shape {shape}, whole numbers, got {array.shape} of "
                f"{array.dtype}"
            )
        if not ((array >= 0) & (array <= most)).all():
            wrong = array[(array < 0) | (array > most)][0]
            raise InputError(f"action: expected an index in [0, {most}], got {wrong}")
        return array.astype(np.int32)

    @property
    def labels(self) -> Labels:
        """Names and units of the entries of an observation and of an action; numbered ones where
        the environment has none.
        """
        own = getattr(self.env, "labels", None)
        if own is not None:
            return own(self.params)
        return labels_of("", {}, self.obs_low.shape[-1], self.low.size)

    def member(self, index: int) -> tuple[PyTree, PyTree]:
        """Params of environment ``index``, and its state."""
        state = jax.tree.map(lambda leaf: leaf[index], self._state)
        params = self.params
        if self.stacked:
            params = jax.tree.map(lambda leaf: leaf[index], params)
        return params, state


@jax.jit
def _keys(words: jax.Array) -> jax.Array:
    return jax.random.wrap_key_data(words, impl=streams.IMPLEMENTATION)


@partial(jax.jit, static_argnums=(0, 1))
@streams.pinned()
def _reset(
    env: Environment, stacked: bool, params: PyTree, keys: Key[Array, "N"], *, now: PyTree
) -> tuple:
    keys, draws = _split(keys)
    obs, state = jax.vmap(env.reset, (0, 0 if stacked else None))(draws, params)
    begun = (keys, state, obs.astype(jnp.float32))
    return begun if now is None else jax.tree.map(partial(streams.choose, now[0]), begun, now[1])


@partial(jax.jit, static_argnums=(0, 1), static_argnames=("measures",))
@streams.pinned()
def _step(
    env: Environment,
    stacked: bool,
    params: PyTree,
    now: tuple,
    *,
    actions: PyTree,
    hold: PyTree,
    measures: tuple[str, ...],
) -> tuple:
    keys, draws = _split(now[0])
    step = jax.vmap(env.step, (0, 0, 0, 0 if stacked else None))
    obs, state, reward, terminated, truncated, info = step(draws, now[1], actions, params)
    obs, final, reward = (
        x.astype(jnp.float32) for x in (obs, info["final_observation"], jnp.ravel(reward))
    )
    after = (keys, state, obs)
    told = [info[name] for name in measures]
    if hold is not None:
        told = [jnp.where(hold, 0.0, x) for x in told]
        after = jax.tree.map(partial(streams.choose, hold), now, after)
        final = streams.choose(hold, now[2], final)
        reward = jnp.where(hold, 0.0, reward)
        terminated, truncated = terminated & ~hold, truncated & ~hold
    flags = [x[:, None].astype(jnp.float32) for x in (reward, terminated, truncated, *told)]
    return *after, jnp.concatenate([after[2], final, *flags], axis=1)


def _split(keys: jax.Array) -> tuple[jax.Array, jax.Array]:
    pairs = jax.vmap(jax.random.split)(keys)
    return pairs[:, 0], pairs[:, 1]
