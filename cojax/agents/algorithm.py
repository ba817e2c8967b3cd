"""What an algorithm is, and what all of them share."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from cojax import precision, streams
from cojax.errors import InputError
from cojax.types import Array, Bool, Float, Int, PRNGKeyArray, PyTree

if TYPE_CHECKING:
    from cojax.agents.inspect import Critic
    from cojax.policy import Policy

MOST_UPDATES = 2**31 - 1  # what 32 bits count, updates and rows alike
Space: TypeAlias = Any  # of gymnax: one of its boxes, or what is refused
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


@contextmanager
def learning() -> Iterator[None]:
    """The scope, or decorator, that learners work in, whatever is set outside: float32 and int32,
    and draws of the form that streams have. So one key trains one policy under every setting.
    """
    with precision.x32(), streams.pinned():
        yield


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
        constrained: whether it keeps the budget of an environment that tells its cost apart.
        budget: environment steps of a learner that is not told how many.
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
    constrained: bool = False
    budget: int = 300_000
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


def discount(env_params: PyTree, h: PyTree) -> Number:
    """Return γ: the hyperparameter, or else the system's own, or else 0.99."""
    return getattr(env_params, "discount", 0.99) if h.gamma is None else h.gamma


def reward_factor(state: PyTree, h: PyTree) -> Scalar:
    """What the environment's rewards are multiplied by for the learner, shape ()."""
    return h.reward_scale / state.rewards.moments.std() if h.normalize_rewards else h.reward_scale


def normalize(state: PyTree, obs: Float[Array, "*batch o"], h: PyTree) -> Float[Array, "*batch o"]:
    """Observations as the networks see them."""
    return state.observations.normalize(obs, h.obs_clip) if h.normalize_observations else obs
