"""What learners of every kind carry, how they see an environment, and how an update ends."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp
from flax import struct

from cojax import streams
from cojax.agents import algorithm, self_tuning
from cojax.agents.algorithm import Clock, Environment, Episodes, Metrics, normalize
from cojax.agents.distributions import ActionBox
from cojax.agents.normalization import Moments, RewardScale
from cojax.agents.optimization import global_norm, polyak
from cojax.agents.self_tuning import EpisodeLimit
from cojax.agents.state_slopes import moved
from cojax.errors import InputError
from cojax.types import Array, Bool, Float, PRNGKeyArray, PyTree


class State(struct.PyTreeNode):
    """What a learner of any kind carries from one update to the next (N = num_envs).

    Attributes:
        clock: counters, shared by a population.
        key: typed PRNG key of this learner.
        average: running average of the actor's parameters, what ``policy_params`` gives.
        observations: moments of the observations, frozen during an update.
        rewards: scale of the rewards.
        env_state: states of the N environments.
        obs: current observations.
        episodes: returns in progress.
        unit: fraction of the action box that actions are measured in.
        limit: the time limit that the learner sets itself.
        failed: whether a parameter has ever been non-finite.
    """

    clock: Clock
    key: PRNGKeyArray
    average: PyTree
    observations: Moments
    rewards: RewardScale
    env_state: PyTree
    obs: Float[Array, "*M N o"]
    episodes: Episodes
    unit: Float[Array, "*M"]
    limit: EpisodeLimit
    failed: Bool[Array, "*M"]


class Rollout(NamedTuple):
    """T steps of N environments; ``u`` is the unclipped action in units of the box, and
    ``final_obs`` the observation after the step and before any reset.
    """

    obs: Float[Array, "T N o"]
    u: Float[Array, "T N m"]
    log_prob: Float[Array, "T N"] | None  # density of u, where the learner asks for it
    reward: Float[Array, "T N"]
    terminated: Bool[Array, "T N"]
    truncated: Bool[Array, "T N"]
    final_obs: Float[Array, "T N o"]
    env_state: PyTree = None  # before the step, where the learner asks for it
    told: dict[str, Float[Array, "T N"]] | None = None  # what ``info`` tells of what it asks for


def begin(
    env: Environment, key: PRNGKeyArray, env_params: PyTree, h: PyTree
) -> tuple[dict[str, PyTree], PRNGKeyArray, PRNGKeyArray]:
    """All fields of a first state but ``average``, and keys for the actor's and critic's weights.

    Environment i is reset with ``fold_in(reset_key, i)``.
    """
    env_params = algorithm.shorten_episodes(env_params, h)
    key, reset_key, actor_key, critic_key = jax.random.split(key, 4)
    obs, env_state = algorithm.reset_all(env, reset_key, env_params, h.num_envs)
    if h.stagger_episodes:
        env_state = algorithm.stagger_episodes(reset_key, env_state, env_params)
    obs = jnp.asarray(obs, jnp.float32)
    fields = {
        "clock": Clock.create(),
        "key": key,
        "observations": Moments.create(obs.shape[1:]).merge(obs),
        "rewards": RewardScale.create(h.num_envs),
        "env_state": env_state,
        "obs": obs,
        "episodes": Episodes.create(h.num_envs),
        "unit": self_tuning.action_unit(env, jax.random.fold_in(reset_key, 1), env_params)
        if h.action_unit is None
        else jnp.asarray(h.action_unit, jnp.float32),
        "limit": EpisodeLimit.create(),
        "failed": jnp.zeros((), bool),
    }
    return fields, actor_key, critic_key


def collect(
    env: Environment,
    state: PyTree,
    env_params: PyTree,
    h: PyTree,
    *,
    key: PRNGKeyArray,
    act: Callable[..., tuple[Array, Array | None]],
    inputs: tuple[PyTree, ...],
    nudge: PyTree = None,
    damp: Callable[[PyTree], PyTree] = lambda env_state: env_state,
    tell: tuple[str, ...] = (),
) -> tuple[PyTree, Rollout, Metrics]:
    """Step the N environments T times by ``act(z, *inputs_t) -> (u, log_prob)`` of normalised
    observations z (N, o); ``inputs`` have leaves (T, ...). Episodes end by the learner's own limits
    too: see ``self_tuning``.

    ``nudge``, of the inexact leaves of T × N states in a list, is added to the states before each
    step: zeros, to take derivatives by. ``damp`` is then
    applied to the states, and the rollout holds them. What ``tell`` names of ``info`` it holds too.

    Returns the advanced state, the rollout, and sums over the episodes that ended in it. Raises
    InputError where ``info`` does not tell it.
    """
    env_params = algorithm.shorten_episodes(env_params, h)
    box = ActionBox.of(env.action_space(env_params), state.unit)
    limits, axes = self_tuning.limits(state.limit, env_params, h)
    step_env = jax.vmap(env.step, (0, 0, 0, axes))

    def step(carry, inputs):
        env_state, obs, episodes, away, sums = carry
        words, push, *mine = inputs
        before = None
        if nudge is not None:
            before = env_state = damp(moved(env_state, push))
            see = env.get_obs  # pyright: ignore[reportAttributeAccessIssue]
            obs = jax.vmap(see, (0, None))(env_state, env_params)
        u, log_prob = act(normalize(state, obs, h), *mine)
        next_obs, env_state, reward, terminated, truncated, info = step_env(
            streams.of_words(words), env_state, box.clip(box.to_action(u)), limits(away)
        )
        chex.assert_shape((reward, terminated, truncated), (h.num_envs,))  # (N, 1) would broadcast
        held = state.limit.sums(episodes.lengths, reward)
        away = state.limit.away(reward) & jnp.logical_not(terminated | truncated)
        episodes, ended = episodes.step(reward, terminated | truncated)
        ended |= {"held": held}
        final = info["final_observation"]
        told = _told(info, tell) if tell else None
        row = Rollout(obs, u, log_prob, reward, terminated, truncated, final, before, told)
        return (env_state, next_obs, episodes, away, jax.tree.map(jnp.add, sums, ended)), row

    zeros = {name: jnp.zeros(()) for name in ("episode_return", "episode_length", "episodes")}
    zeros |= {"held": jnp.zeros(4)}
    keys = streams.to_words(jax.random.split(key, (h.num_steps, h.num_envs)))
    none = jnp.zeros(h.num_envs, bool)
    start = (state.env_state, state.obs, state.episodes, none, zeros)
    (env_state, obs, episodes, _, sums), rollout = jax.lax.scan(step, start, (keys, nudge, *inputs))
    limit = state.limit.follow(sums.pop("held"), h.num_steps, h.episode_growth)
    sums["episode_limit"] = limit.steps
    state = state.replace(env_state=env_state, obs=obs, episodes=episodes, limit=limit)
    return state, rollout, sums


def _told(info: PyTree, names: tuple[str, ...]) -> dict[str, Array]:
    """What ``info`` tells of each name."""
    try:
        return {name: jnp.asarray(info[name], jnp.float32) for name in names}
    except KeyError as error:
        raise InputError(f"env: expected info[{error}] of every step") from None


def finish(
    state: PyTree, rollout: Rollout, params: PyTree, *, key: PRNGKeyArray, h: PyTree
) -> PyTree:
    """The state after an update that ended in ``params``: moments of observations, the average of
    actors, whether it failed, the clock and the next key.
    """
    if h.normalize_observations:
        flat = rollout.obs.reshape(-1, rollout.obs.shape[-1])
        seen = state.observations
        state = state.replace(observations=seen.merge(seen.winsorize(flat, h.obs_clip)))
    state = state.replace(
        key=key,
        average=polyak(state.average, params["actor"], h.actor_ema_rate),
        failed=state.failed | ~jnp.isfinite(global_norm(params)),
        clock=state.clock.replace(update=state.clock.update + 1),
    )
    return algorithm.strong(state)
