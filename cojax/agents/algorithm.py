"""What an algorithm is, and the hyperparameters that describe one run of it."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from cojax import precision, streams
from cojax.errors import InputError, nearest
from cojax.types import Array, Bool, Content, Float, Int, PRNGKeyArray, PyTree

if TYPE_CHECKING:
    from cojax.agents.inspect import Critic
    from cojax.policy import Policy

INF = float("inf")
LARGEST = float(np.finfo(np.float32).max)  # finite in the precision of the learners
MOST_UPDATES = 2**31 - 1  # what 32 bits count, updates and rows alike
RENAMED = {  # hyperparameters, from the names that the last version had
    "value_rate": "popart_rate",
    "average_rate": "actor_ema_rate",
    "random_phase": "stagger_episodes",
}

Space: TypeAlias = Any  # of gymnax: one of its boxes, or what is refused
Given: TypeAlias = object  # None, a mapping or an instance: the hyperparameters of one run
Settings: TypeAlias = object  # the same, or a sequence of those
Scalar: TypeAlias = Float[Array, ""]
Number: TypeAlias = Scalar | float
Metrics: TypeAlias = dict[str, Scalar]


@runtime_checkable
class Environment(Protocol):
    """What learners need of an environment of gymnax, whose parameters have a limit of steps."""

    @property
    def name(self) -> str:
        """For messages."""
        ...

    def reset(self, key: PRNGKeyArray, params: PyTree) -> tuple[Array, PyTree]:
        """(obs, state)."""
        ...

    def step(self, key: PRNGKeyArray, state: PyTree, action: Array, params: PyTree) -> tuple:
        """(obs, state, reward, terminated, truncated, info)."""
        ...

    def action_space(self, params: PyTree) -> Space:
        """Of these parameters."""
        ...

    def observation_space(self, params: PyTree) -> Space:
        """Of these parameters."""
        ...


class RenamedWarning(FutureWarning):
    """A hyperparameter is given by the name it had before; the next version will refuse it."""


@contextmanager
def learning() -> Iterator[None]:
    """The scope, or decorator, that learners work in, whatever is set outside: float32 and int32,
    and draws of the form that streams have. So one key trains one policy under every setting.
    """
    with precision.x32(), streams.pinned():
        yield


def traced(
    default: float | None,
    low: float = -LARGEST,
    high: float = LARGEST,
    *,
    optional: bool | None = None,
) -> Any:
    """Return a field for a hyperparameter that may be batched, with its closed range.

    Bounds that infinity turns off have the range up to ``INF``. ``optional`` ones may be None: by
    default those that are.
    """
    optional = default is None if optional is None else optional
    metadata = {"pytree_node": True, "range": (low, high), "optional": optional}
    return dataclasses.field(default=default, metadata=metadata)


def static(default: object, low: float = -INF, high: float = MOST_UPDATES) -> Any:
    """Return a field for a hyperparameter that decides shapes or structure: one value per run."""
    return dataclasses.field(default=default, metadata={"pytree_node": False, "range": (low, high)})


@dataclasses.dataclass(frozen=True)
class Algorithm:
    """Pure functions that make a learner; ``env`` is static and ``h`` are its hyperparameters.

    Attributes:
        name: how it is asked for.
        hyperparameters: dataclass of its hyperparameters, all with defaults.
        init: ``(env, key, env_params, h) -> state``; the state has a field ``clock``, the only
            one that population members share.
        update: ``(env, state, env_params, h) -> (state, metrics)``.
        policy_params: ``(env, state, env_params, h) -> params`` of the deterministic policy.
        policy_apply: ``(env, env_params, h) -> apply``, hashable, static.
        steps_per_update: ``h -> int``, environment steps of one update.
        check: ``h -> None``, raises ValueError for hyperparameters that do not fit together.
        bounded: whether it needs finite action bounds.
        differentiable: whether it needs gradients through the environment's transition.
        actor: ``state -> tree``, the parameters that the next update of the actor would change.
        critic: ``(state, h, policy) -> inspect.Critic`` of one member and its policy.
        actor_gradients: ``(env, state, env_params, h, *, key, num) -> tree`` like ``actor``, with a
            leading axis of ``num``; see ``inspect.Agent``.

    The last three are for diagnosis alone. With ``actor``, policy_params gives a dict whose "actor"
    is that tree; without what they need, ``run.critic()`` and ``run.agent()`` raise InputError.
    :mod:`cojax.agents.contract` checks the rest.
    """

    name: str
    hyperparameters: type
    init: Callable[[Environment, PRNGKeyArray, PyTree, PyTree], PyTree]
    update: Callable[[Environment, PyTree, PyTree, PyTree], tuple[PyTree, Metrics]]
    policy_params: Callable[[Environment, PyTree, PyTree, PyTree], PyTree]
    policy_apply: Callable[[Environment, PyTree, PyTree], Callable]
    steps_per_update: Callable[[PyTree], int]
    check: Callable[[PyTree], None]
    bounded: bool = False
    differentiable: bool = False
    actor: Callable[[PyTree], PyTree] | None = None
    critic: Callable[[PyTree, PyTree, Policy], Critic] | None = None
    actor_gradients: Callable[..., PyTree] | None = None


class Clock(struct.PyTreeNode):
    """Counters that all members of a population share: they stay unbatched under ``vmap``.

    Attributes:
        update: updates done, int32.
        total: updates planned, int32; schedules run from 0 to it.
    """

    update: Int[Array, "*M"]
    total: Int[Array, "*M"]

    @classmethod
    def create(cls) -> Clock:
        """Return a clock at update 0 without a plan: schedules stay at their start."""
        return cls(jnp.zeros((), jnp.int32), jnp.zeros((), jnp.int32))

    def planned(self, total: int) -> Clock:
        """The same, with ``total`` updates planned."""
        return self.replace(total=jnp.full_like(self.total, total))

    def anneal(self, start: Float[Array, ""], final_fraction: Float[Array, ""]) -> Float[Array, ""]:
        """Linear schedule counted in updates, from ``start`` to ``start · final_fraction``."""
        progress = jnp.clip(self.update / jnp.maximum(self.total, 1), 0.0, 1.0)
        progress = jnp.where(self.total > 0, progress, 0.0)
        return start * (1.0 - (1.0 - final_fraction) * progress)


class Episodes(struct.PyTreeNode):
    """Returns of the episodes in progress, one for each environment.

    Attributes:
        returns: undiscounted return so far, shape (num_envs,).
        lengths: steps so far, shape (num_envs,), int32: float32 would stop counting at 2²⁴.
    """

    returns: Float[Array, "*M num_envs"]
    lengths: Int[Array, "*M num_envs"]

    @classmethod
    def create(cls, num_envs: int) -> Episodes:
        """Return the record of episodes that have just begun."""
        return cls(jnp.zeros(num_envs), jnp.zeros(num_envs, jnp.int32))

    def step(
        self, reward: Float[Array, " num_envs"], done: Bool[Array, " num_envs"]
    ) -> tuple[Episodes, Metrics]:
        """Count one step; also return sums over the episodes that ended in it."""
        returns, lengths = self.returns + reward, self.lengths + 1
        sums = {
            "episode_return": jnp.sum(jnp.where(done, returns, 0.0)),
            "episode_length": jnp.sum(jnp.where(done, lengths, 0).astype(jnp.float32)),
            "episodes": jnp.sum(done.astype(jnp.float32)),
        }
        return Episodes(jnp.where(done, 0.0, returns), jnp.where(done, 0, lengths)), sums


def strong(tree: PyTree) -> PyTree:
    """Return the tree with weak types made strong, so that equal shapes share a compilation.

    Within :func:`learning` leaves of 64 bits, of a system in double precision, are cut to 32.
    """

    def convert(x):
        if not isinstance(x, jax.Array):
            if isinstance(x, bool):
                x = np.bool_(x)
            elif isinstance(x, int):
                x = np.int32(x)
            elif isinstance(x, float):
                x = np.float32(x)
            return jnp.asarray(x)
        if jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
            return x
        return jax.lax.convert_element_type(x, jax.dtypes.canonicalize_dtype(x.dtype))

    return jax.tree.map(convert, tree)


def reset_all(
    env: Environment, key: PRNGKeyArray, env_params: PyTree, num_envs: int
) -> tuple[Float[Array, "num_envs o"], PyTree]:
    """Reset environments 0 ≤ i < num_envs with keys ``fold_in(key, i)``.

    Environment i starts at the same state whatever ``num_envs`` is.
    """
    keys = jax.vmap(jax.random.fold_in, (None, 0))(key, jnp.arange(num_envs))
    return jax.vmap(env.reset, (0, None))(keys, env_params)


def shorten_episodes(env_params: PyTree, h: PyTree) -> PyTree:
    """Environment parameters under which episodes end after ``h.max_episode_steps`` at the latest.

    A limit of the learner's own, reported as truncation: values stay those of the whole problem.
    Where a poor policy lets states run away, most of a long episode is spent in states that no
    action brings back; short ones begin anew where something can be learned (Pardo et al. 2018,
    arXiv:1712.00378). None leaves the limit of the environment, which is never exceeded.

    Raises InputError for an environment without gymnax's ``max_steps_in_episode``.
    """
    if h.max_episode_steps is None:
        return env_params
    if not hasattr(env_params, "max_steps_in_episode"):
        raise InputError(
            "max_episode_steps: expected an environment whose parameters have "
            f"max_steps_in_episode, got {type(env_params).__name__}"
        )
    limit = jnp.asarray(env_params.max_steps_in_episode)
    own = jnp.round(jnp.asarray(h.max_episode_steps))
    # Compared before it is an integer: beyond 32 bits the conversion may give anything.
    shorter = jnp.where(own < limit, own.astype(limit.dtype), limit)
    return env_params.replace(max_steps_in_episode=shorter)


def stagger_episodes(key: PRNGKeyArray, env_state: PyTree, env_params: PyTree) -> PyTree:
    """Return environments whose clocks read a uniform step of their first episode.

    Where all environments begin together, a rollout shorter than an episode sees one stretch of
    it at a time, and the learner forgets the others. Afterwards every rollout sees all of them.
    Only the first episodes are shorter. An environment without gymnax's ``time`` is left alone.
    """
    if not hasattr(env_state, "time"):
        return env_state
    indices = jnp.arange(env_state.time.shape[0])
    keys = jax.vmap(lambda i: jax.random.fold_in(jax.random.fold_in(key, i), 1))(indices)
    limit = env_params.max_steps_in_episode
    time = jax.vmap(lambda k: jax.random.randint(k, (), 0, limit, jnp.int32))(keys)
    return env_state.replace(time=time.astype(env_state.time.dtype))


def hyperparameters(
    cls: type, given: Given, overrides: Mapping[str, object] | None = None
) -> PyTree:
    """Build the hyperparameters of one run: ``given`` is None, a mapping or an instance.

    Raises ValueError in one line for an unknown name, a wrong type or a value out of range.
    """
    h = host_hyperparameters(cls, given, overrides or {})
    return jax.tree.map(lambda x: jnp.asarray(x, jnp.float32), h)


def current_names(cls: type, given: Mapping[str, object]) -> Content:
    """The same values, in the same order, by the names that hyperparameters of ``cls`` have now.

    Warns RenamedWarning, one line, for a name of before; raises InputError where both are given.
    """
    fields = {f.name for f in dataclasses.fields(cls)}
    found = {}
    for name, value in given.items():
        new = RENAMED.get(name, name)
        if name in fields or new not in fields:  # a plug-in may use the name for its own
            new = name
        if new != name:
            told = f"{cls.__name__}: {name} is now called {new}"
            if new in given:
                raise InputError(f"{told}; give one of them")
            warnings.warn(f"{told}; the old name will be refused", RenamedWarning, stacklevel=2)
        found[new] = value
    return found


def host_hyperparameters(cls: type, given: Given, overrides: Mapping[str, object]) -> PyTree:
    """``hyperparameters`` with leaves as they were given, so that thousands are quick to make."""
    if isinstance(given, cls):
        given = {f.name: getattr(given, f.name) for f in dataclasses.fields(cls)}
    if given is not None and not isinstance(given, Mapping):
        raise InputError(
            f"hyperparameters: expected a mapping or {cls.__name__}, got {type(given).__name__}"
        )
    values = current_names(cls, given or {}) | current_names(cls, overrides)
    fields = {f.name: f for f in dataclasses.fields(cls)}
    for name, value in values.items():
        if name not in fields:
            raise InputError(
                f"{cls.__name__}: unknown hyperparameter {name!r}{nearest(name, fields, 0.0)}"
            )
        values[name] = checked(cls.__name__, fields[name], value)
    return cls(**values)


def checked(owner: str, field: dataclasses.Field, value: Any) -> object:
    """Return ``value`` as the field of an ``owner`` keeps it, or raise ValueError."""
    low, high = field.metadata["range"]
    where = f"{owner}.{field.name}"
    if "check" in field.metadata:
        return field.metadata["check"](where, value)
    if field.metadata["pytree_node"]:
        if value is None and field.metadata.get("optional", field.default is None):
            return None
        try:
            if value is None or isinstance(value, bool | str) or np.ndim(value) != 0:
                raise TypeError
            inside = low <= float(value) <= high
        except TypeError:
            raise InputError(f"{where}: expected one number, got {value!r}") from None
        except OverflowError:  # an integer beyond float64
            inside = False
        if not inside:
            ends = ("(-inf" if low == -LARGEST else f"[{low:g}") + ", "
            ends += "inf)" if high == LARGEST else f"{high:g}]"
            raise InputError(f"{where}: expected a number in {ends}, got {value!r}")
        return value
    if isinstance(field.default, tuple):
        if not isinstance(value, Sequence) or not all(
            type(v) is int and 0 < v <= high for v in value
        ):
            raise InputError(f"{where}: expected positive integers, got {value!r}")
        return tuple(value)
    if type(value) is not type(field.default):
        raise InputError(
            f"{where} decides shapes: expected one {type(field.default).__name__}, got {value!r}"
        )
    if isinstance(value, int) and value < low:
        raise InputError(f"{where}: expected at least {low:g}, got {value!r}")
    if isinstance(value, int) and value > high:
        raise InputError(f"{where}: expected at most {high:,}, got {value!r}")
    return value


def stack_hyperparameters(
    cls: type, given: Sequence[Given], overrides: Mapping[str, object]
) -> PyTree:
    """Stack several settings: every leaf gets a leading axis; static values must agree."""
    settings = [host_hyperparameters(cls, g, overrides) for g in given]
    if not settings:
        raise InputError("hyperparameters: the list is empty")
    for f in dataclasses.fields(cls):
        values = [getattr(s, f.name) for s in settings]
        if not f.metadata["pytree_node"] and any(v != values[0] for v in values):
            told = f"{cls.__name__}.{f.name} decides shapes and cannot vary in one run: {values}"
            raise InputError(" ".join(told.split()))  # networks say themselves in several lines
        if len({v is None for v in values}) > 1:
            raise InputError(f"{cls.__name__}.{f.name}: give it in every setting or in none")
    # on the host: stacking thousands of device arrays would be a program of thousands of inputs
    return jax.tree.map(lambda *leaves: jnp.asarray(np.asarray(leaves, np.float32)), *settings)


def one_or_several(
    cls: type, given: Settings, overrides: Mapping[str, object]
) -> tuple[PyTree, int | None]:
    """Hyperparameters of one setting and None, or of a sequence, stacked, and its length."""
    if isinstance(given, Sequence) and not isinstance(given, str):
        return stack_hyperparameters(cls, given, overrides), len(given)
    return hyperparameters(cls, given, overrides), None


def discount(env_params: PyTree, h: PyTree) -> Number:
    """Return γ: the hyperparameter, or else the system's own, or else 0.99."""
    return getattr(env_params, "discount", 0.99) if h.gamma is None else h.gamma


def reward_factor(state: PyTree, h: PyTree) -> Scalar:
    """What the environment's rewards are multiplied by for the learner, shape ()."""
    return h.reward_scale / state.rewards.moments.std() if h.normalize_rewards else h.reward_scale


def normalize(state: PyTree, obs: Float[Array, "*batch o"], h: PyTree) -> Float[Array, "*batch o"]:
    """Observations as the networks see them."""
    return state.observations.normalize(obs, h.obs_clip) if h.normalize_observations else obs
