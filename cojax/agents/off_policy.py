"""The off-policy engine: step environments, write the replay, take gradient steps.

SAC, TD3 and DDPG are this engine with an ``OffPolicyMethod`` each: how to explore, what a critic
should be worth, what the actor loses. All of it is pure and works on one learner.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct

from cojax import streams
from cojax.agents import algorithm, replay
from cojax.agents.algorithm import MOST_UPDATES, Algorithm, Clock, Episodes, normalize
from cojax.agents.distributions import ActionBox
from cojax.agents.inspect import q_function
from cojax.agents.networks import activation, scale_head
from cojax.agents.normalization import Moments, RewardScale
from cojax.agents.off_policy_method import (
    NETWORKS,
    Learner,
    Minibatch,
    Networks,
    OffPolicyMethod,
    actor_step,
    critic_step,
    networks,
    over_networks,
)
from cojax.agents.optimization import global_norm, optimizer, pack, polyak
from cojax.agents.policies import ActorPolicy, actor_params
from cojax.agents.replay import Sample
from cojax.errors import InputError

MOST_DELAY = 32_768  # its square is counted in 32 bits


class OffPolicyState(struct.PyTreeNode):
    """Everything a learner carries from one update to the next (N = num_envs).

    Attributes:
        clock: counters, shared by a population; they also give the replay's pointer.
        key: typed PRNG key of this learner.
        learner: networks and optimisers.
        average: running average of the actor's parameters, what ``policy_params`` gives.
        replay: ring of packed transitions, (rows, width).
        observations: moments of the observations, frozen during an update.
        actions: moments of the actions in units of the box, frozen during an update.
        rewards: scale of the rewards, frozen during an update.
        env_state: states of the N environments.
        obs: current observations, (N, d).
        episodes: returns in progress.
        failed: whether a parameter has ever been non-finite, shape ().
    """

    clock: Clock
    key: jax.Array
    learner: Learner
    average: Any
    replay: jax.Array
    observations: Moments
    actions: Moments
    rewards: RewardScale
    env_state: Any
    obs: jax.Array
    episodes: Episodes
    failed: jax.Array


def block(h: Any) -> int:
    """Transitions of one update."""
    return h.num_envs * h.num_steps


def warming(updates: jax.Array, h: Any) -> jax.Array:
    """Whether ``updates`` updates are fewer than ``learning_starts`` environment steps.

    Counted in updates: environment steps pass 2³¹ where 32 bits end.
    """
    return updates < min(-(-h.learning_starts // block(h)), MOST_UPDATES)


def init(
    method: OffPolicyMethod, env: Any, key: jax.Array, env_params: Any, h: Any
) -> OffPolicyState:
    """First state of a learner; environment i is reset with ``fold_in(reset_key, i)``."""
    env_params = algorithm.shorten_episodes(env_params, h)
    key, reset_key, actor_key, critic_key = jax.random.split(key, 4)
    obs, env_state = algorithm.reset_all(env, reset_key, env_params, h.num_envs)
    obs = jnp.asarray(obs, jnp.float32)
    nets = networks(method, env, env_params, h)
    dim, num_actions = obs.shape[-1], nets.box.low.shape[0]
    x = jnp.zeros(dim + num_actions)
    critic_keys = jax.random.split(critic_key, h.num_critics)
    params = {
        "actor": nets.actor.init(actor_key, obs[0]),
        "critics": tuple(nets.critic.init(k, x) for k in critic_keys),
        "log_alpha": jnp.log(jnp.asarray(getattr(h, "alpha_init", 1.0), jnp.float32)),
    }
    targets = {name: params[name] for name in method.targets}
    learned = params | {name: pack(params[name])[0] for name in NETWORKS}
    opt = optimizer(h.max_grad_norm, h.adam_eps)
    opt_states = {name: opt.init(x) for name, x in learned.items()}
    learner = Learner(params=params, targets=targets, opt_states=opt_states)
    rows = replay.capacity(h.buffer_size, block(h))
    state = OffPolicyState(
        clock=Clock.create(),
        key=key,
        learner=learner,
        average=params["actor"],
        replay=replay.create(rows, dim, num_actions),
        observations=Moments.create((dim,)).merge(obs),
        actions=Moments.create((num_actions,)),
        rewards=RewardScale.create(h.num_envs),
        env_state=env_state,
        obs=obs,
        episodes=Episodes.create(h.num_envs),
        failed=jnp.zeros((), bool),
    )
    return algorithm.strong(state)


def collect(
    method: OffPolicyMethod,
    env: Any,
    state: OffPolicyState,
    key: jax.Array,
    env_params: Any,
    h: Any,
) -> tuple[OffPolicyState, Sample, jax.Array, dict[str, jax.Array]]:
    """Step the N environments T times, exploring.

    Until ``learning_starts`` steps have been taken actions are uniform over ``warmup_scale``
    times the box. Returns the advanced state, transitions (T, N, ...), end-of-episode flags
    (T, N), and sums over the episodes that ended.
    """
    env_params = algorithm.shorten_episodes(env_params, h)
    nets = networks(method, env, env_params, h)
    box = nets.box
    explore_key, warm_key, step_key = jax.random.split(key, 3)
    shape = (h.num_steps, h.num_envs)
    warm = warming(state.clock.update, h)
    uniform = jax.random.uniform(warm_key, (*shape, *box.low.shape), minval=-1.0, maxval=1.0)
    step_env = jax.vmap(env.step, (0, 0, 0, None))

    def step(carry, inputs):
        env_state, obs, episodes, sums = carry
        uniform_u, *words = inputs
        noise_key, keys = (streams.of_words(x) for x in words)
        z = normalize(state, obs, h)
        u = method.explore(nets, state.learner.params["actor"], z, noise_key, h)
        u = jnp.where(warm, h.warmup_scale * uniform_u, u)
        action = box.clip(box.to_action(u))
        next_obs, env_state, reward, terminated, truncated, info = step_env(
            keys, env_state, action, env_params
        )
        done = terminated | truncated
        episodes, ended = episodes.step(reward, done)
        row = Sample(obs, u, reward, terminated, info["final_observation"])
        return (env_state, next_obs, episodes, jax.tree.map(jnp.add, sums, ended)), (row, done)

    zeros = {name: jnp.zeros(()) for name in ("episode_return", "episode_length", "episodes")}
    inputs = (
        uniform,
        streams.to_words(jax.random.split(explore_key, h.num_steps)),
        streams.to_words(jax.random.split(step_key, shape)),
    )
    carry, (rollout, done) = jax.lax.scan(
        step, (state.env_state, state.obs, state.episodes, zeros), inputs
    )
    env_state, obs, episodes, sums = carry
    return state.replace(env_state=env_state, obs=obs, episodes=episodes), rollout, done, sums


def remember(
    state: OffPolicyState, rollout: Sample, done: jax.Array, gamma: Any, h: Any
) -> OffPolicyState:
    """Write a rollout to the replay and refresh the reward scale; Q itself does not change.

    When the scale moves by a factor, the heads of the critics and of their targets move by its
    inverse.
    """
    rollout = rollout._replace(reward=rollout.reward * h.reward_scale)
    rows = replay.pack(rollout)
    buffer = replay.write(state.replay, rows.reshape(-1, rows.shape[-1]), state.clock.update)
    if not h.normalize_rewards:
        return state.replace(replay=buffer)
    rewards = state.rewards.merge(rollout.reward, done, gamma)
    ratio = state.rewards.moments.std() / rewards.moments.std()

    def rescale(trees):
        critics = tuple(scale_head(c, ratio, jnp.zeros(())) for c in trees["critics"])
        return {**trees, "critics": critics}

    learner = state.learner.replace(
        params=rescale(state.learner.params), targets=rescale(state.learner.targets)
    )
    return state.replace(replay=buffer, rewards=rewards, learner=learner)


def draw(
    state: OffPolicyState, key: jax.Array, blocks: jax.Array, shape: tuple[int, ...], h: Any
) -> Sample:
    """Transitions from the ``blocks`` blocks written, as networks see them, (*shape, ...)."""
    rows = replay.sample(key, state.replay, blocks, block(h), shape)
    batch = replay.unpack(rows, state.obs.shape[-1])
    scale = 1.0 / state.rewards.moments.std() if h.normalize_rewards else jnp.ones(())
    return batch._replace(
        obs=normalize(state, batch.obs, h),
        next_obs=normalize(state, batch.next_obs, h),
        reward=batch.reward * scale,
    )


def gradient_steps(
    method: OffPolicyMethod,
    nets: Networks,
    state: OffPolicyState,
    key: jax.Array,
    gamma: Any,
    h: Any,
) -> tuple[Learner, dict[str, jax.Array]]:
    """``gradient_steps`` steps of the critics; every ``policy_delay``-th also moves the actor.

    Targets follow whenever the actor moves: once per gradient step where the delay is 1.
    """
    sample_key, noise_key = jax.random.split(key)
    shape = (h.gradient_steps, h.batch_size)
    rows = draw(state, sample_key, state.clock.update + 1, shape, h)
    # All at once, which is cheaper than two small draws in each step.
    noise = jax.random.normal(noise_key, (2, *shape, *nets.box.low.shape))
    factor = algorithm.reward_factor(state, h)
    trees = {name: pack(state.learner.params[name])[1] for name in NETWORKS}
    nets = nets._replace(actor_tree=trees["actor"], critic_trees=trees["critics"])
    actor_rate, critic_rate = (
        state.clock.anneal(rate, h.final_lr_fraction)
        for rate in (h.actor_learning_rate, h.critic_learning_rate)
    )

    def improve(learner, batch):
        learner, metrics = actor_step(method, nets, learner, batch, actor_rate, h)
        online = {name: learner.params[name] for name in learner.targets}
        return learner.replace(targets=polyak(learner.targets, online, h.polyak)), metrics

    def wait(learner, batch):
        return learner, {name: jnp.zeros(()) for name in ("actor_loss", *method.metrics)}

    def step(learner, inputs):
        index, rows, critic_noise, actor_noise = inputs
        batch = Minibatch(rows, critic_noise, gamma, factor)
        learner, metrics = critic_step(method, nets, learner, batch, critic_rate, h)
        batch = batch._replace(noise=actor_noise)
        if h.policy_delay == 1:
            learner, more = improve(learner, batch)
        else:
            due = index % h.policy_delay == 0
            learner, more = jax.lax.cond(due, improve, wait, learner, batch)
        return learner, metrics | more

    # The index comes from the shared clock: unbatched, so the delay stays a branch under vmap.
    # It is counted modulo the delay, for the steps of all updates would pass 2³¹.
    first = (state.clock.update % h.policy_delay) * (h.gradient_steps % h.policy_delay)
    inputs = (first + jnp.arange(h.gradient_steps), rows, *noise)
    learner, metrics = jax.lax.scan(
        step, over_networks(state.learner, lambda _, params: pack(params)[0]), inputs
    )
    learner = over_networks(learner, lambda name, params: trees[name](params))
    return learner, jax.tree.map(jnp.mean, metrics)


def update(
    method: OffPolicyMethod, env: Any, state: OffPolicyState, env_params: Any, h: Any
) -> tuple[OffPolicyState, dict[str, jax.Array]]:
    """num_steps × num_envs environment steps, then (after warm-up) gradient_steps updates."""
    key, rollout_key, gradient_key = jax.random.split(state.key, 3)
    gamma = algorithm.discount(env_params, h)
    nets = networks(method, env, env_params, h, state.actions)
    state, rollout, done, sums = collect(method, env, state, rollout_key, env_params, h)
    state = remember(state, rollout, done, gamma, h)

    def learn(state):
        return gradient_steps(method, nets, state, gradient_key, gamma, h)

    def wait(state):
        names = ("critic_loss", "q_value", "actor_loss", *method.metrics)
        return state.learner, {name: jnp.zeros(()) for name in names}

    warm = warming(state.clock.update + 1, h)
    learner, metrics = jax.lax.cond(warm, wait, learn, state)
    if h.normalize_observations:
        flat, seen = rollout.obs.reshape(-1, rollout.obs.shape[-1]), state.observations
        state = state.replace(observations=seen.merge(seen.winsorize(flat, h.obs_clip)))
    u = rollout.u.reshape(-1, rollout.u.shape[-1])
    state = state.replace(
        key=key,
        actions=state.actions.merge(u),
        average=polyak(state.average, learner.params["actor"], h.actor_ema_rate),
        learner=learner,
        failed=state.failed | ~jnp.isfinite(global_norm(learner.params)),
        clock=state.clock.replace(update=state.clock.update + 1),
    )
    return algorithm.strong(state), metrics | {"reward": jnp.mean(rollout.reward)} | sums


def actor(state: OffPolicyState) -> Any:
    """Parameters of the actor that learns."""
    return state.learner.params["actor"]


def actor_gradients(
    method: OffPolicyMethod,
    env: Any,
    state: OffPolicyState,
    env_params: Any,
    h: Any,
    key: jax.Array,
    num: int,
) -> Any:
    """Gradients of the actor's loss at ``num`` batches from the replay."""
    nets = networks(method, env, env_params, h, state.actions)
    blocks = jnp.maximum(state.clock.update, 1)
    gamma, factor = algorithm.discount(env_params, h), algorithm.reward_factor(state, h)

    def one(_, key):
        sample_key, noise_key = jax.random.split(key)
        rows = draw(state, sample_key, blocks, (h.batch_size,), h)
        batch = Minibatch(rows, jax.random.normal(noise_key, rows.u.shape), gamma, factor)
        loss = jax.grad(method.actor_loss, has_aux=True)
        return None, loss(actor(state), state.learner, batch, nets, h)[0]

    return jax.lax.scan(one, None, jax.random.split(key, num))[1]


def policy_params(env: Any, state: OffPolicyState, env_params: Any, h: Any) -> dict[str, Any]:
    """Parameters of the deterministic policy tanh(mean)."""
    box = ActionBox.of(env.action_space(env_params))
    seen = state.observations if h.normalize_observations else None
    return actor_params(state.average, seen, h.obs_clip, box, state.obs.shape[-1])


def policy_apply(method: OffPolicyMethod, env: Any, env_params: Any, h: Any) -> ActorPolicy:
    """Return the static half of that policy."""
    m = env.action_space(env_params).shape[0]
    return ActorPolicy(h.hidden, h.activation, m, method.outputs * m, squash=True)


def check(h: Any) -> None:
    """Raise ValueError for settings that do not fit together."""
    activation(h.activation)
    if h.buffer_size < block(h):
        raise InputError(
            f"buffer_size: expected at least num_envs × num_steps = {block(h)}, got {h.buffer_size}"
        )
    if replay.capacity(h.buffer_size, block(h)) > MOST_UPDATES:
        raise InputError(f"buffer_size: expected at most {MOST_UPDATES:,}, got {h.buffer_size:,}")
    if h.policy_delay > MOST_DELAY:
        raise InputError(f"policy_delay: expected at most {MOST_DELAY:,}, got {h.policy_delay:,}")


def make(name: str, hyperparameters: type, method: OffPolicyMethod) -> Algorithm:
    """Make an off-policy algorithm of a method."""
    return Algorithm(
        name=name,
        hyperparameters=hyperparameters,
        init=partial(init, method),
        update=partial(update, method),
        policy_params=policy_params,
        policy_apply=partial(policy_apply, method),
        steps_per_update=block,
        check=check,
        bounded=True,
        actor=actor,
        critic=partial(q_function, method.smallest),
        actor_gradients=partial(actor_gradients, method),
    )
