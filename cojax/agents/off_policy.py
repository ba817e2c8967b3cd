"""The off-policy engine: step environments, write the replay, take gradient steps.

SAC, TD3 and DDPG are this engine with a ``Rule`` each: how to explore, what a critic should be
worth, how to improve the actor. All of it is pure and works on one learner.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import struct

from cojax import streams
from cojax.agents import algorithm, replay
from cojax.agents.algorithm import MOST_UPDATES, Algorithm, Clock, Episodes
from cojax.agents.distributions import ActionBox
from cojax.agents.networks import MLP, activation, forward, scale_head
from cojax.agents.normalization import Moments, RewardScale
from cojax.agents.optimization import descend, global_norm, optimizer, pack, polyak
from cojax.agents.policies import ActorPolicy, actor_params
from cojax.agents.replay import Sample
from cojax.errors import InputError
from cojax.linalg import lift


class Networks(NamedTuple):
    """Actor: (..., d) to (..., outputs). Critic: (..., d + m) to (..., 1). ``box`` of actions.

    ``actions`` are the moments of the actions seen: critics see standardised actions. Where good
    actions fill a hundredth of the box, a critic of the raw ones can hardly tell them apart.
    ``actor_tree`` and ``critic_trees`` turn parameters, as ``pack`` may have left them, into trees.
    """

    actor: MLP
    critic: MLP
    box: ActionBox
    actions: Moments | None
    actor_tree: Callable[[Any], Any] = lambda params: params
    critic_trees: Callable[[Any], tuple[Any, ...]] = lambda params: params

    def output(self, actor: Any, obs: jax.Array) -> jax.Array:
        """What the actor's network says of ``obs``, shape (..., outputs)."""
        return forward(self.actor, self.actor_tree(actor), obs)

    def q_values(
        self, critics: Any, obs: jax.Array, u: jax.Array, num: int | None = None
    ) -> jax.Array:
        """Q_i(s, u) of the first ``num`` critics, or of all, shape (num_critics, ...)."""
        if self.actions is not None:
            u = (u - lift(self.actions.mean, u)) / lift(self.actions.std(), u)
        x = jnp.concatenate([obs, u], axis=-1)
        trees = self.critic_trees(critics)[:num]
        return jnp.stack([forward(self.critic, c, x)[..., 0] for c in trees])


class Learner(struct.PyTreeNode):
    """What gradient steps change. Critics are in units of the reward scale.

    Attributes:
        params: ``{"actor", "critics", "log_alpha"}``; critics is a tuple, log_alpha has shape ().
        targets: slow copies of those of ``{"actor", "critics"}`` that the rule names.
        opt_states: the optimisers', by the same names as ``params``; those of networks are of what
            ``pack`` makes of them.
    """

    params: dict[str, Any]
    targets: dict[str, Any]
    opt_states: dict[str, Any]


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


NETWORKS = ("actor", "critics")
MOST_DELAY = 32_768  # its square is counted in 32 bits


@dataclasses.dataclass(frozen=True)
class Rule:
    """What makes an off-policy algorithm.

    ``reward_factor`` is what the environment's rewards were multiplied by, shape (), and ``noise``
    is standard normal, (B, m).

    Attributes:
        outputs: width of the actor's output per action.
        explore: ``(nets, actor_params, obs, key, h) -> u`` in [-1, 1]^m.
        target: ``(nets, learner, sample, noise, gamma, reward_factor, h) -> y``, shape (B,).
        improve: ``(nets, learner, sample, noise, rate, reward_factor, h) -> (learner,
            metrics)``, the actor's step.
        metrics: names of the metrics of ``improve``.
        targets: networks that ``target`` wants slow copies of.
    """

    outputs: int
    explore: Callable[..., Any]
    target: Callable[..., Any]
    improve: Callable[..., Any]
    metrics: tuple[str, ...]
    targets: tuple[str, ...] = NETWORKS


def networks(
    rule: Rule, env: Any, env_params: Any, h: Any, actions: Moments | None = None
) -> Networks:
    """Actor and critic for an environment's shapes; ``actions`` standardise the critic's input."""
    box = ActionBox.of(env.action_space(env_params))
    outputs = rule.outputs * box.low.shape[0]
    return Networks(
        MLP(h.hidden, outputs, h.activation, 0.01),
        MLP(h.hidden, 1, h.activation, 1.0),
        box,
        actions if h.normalize_actions else None,
    )


def block(h: Any) -> int:
    """Transitions of one update."""
    return h.num_envs * h.num_steps


def warming(updates: jax.Array, h: Any) -> jax.Array:
    """Whether ``updates`` updates are fewer than ``learning_starts`` environment steps.

    Counted in updates: environment steps pass 2³¹ where 32 bits end.
    """
    return updates < min(-(-h.learning_starts // block(h)), MOST_UPDATES)


def init(rule: Rule, env: Any, key: jax.Array, env_params: Any, h: Any) -> OffPolicyState:
    """First state of a learner; environment i is reset with ``fold_in(reset_key, i)``."""
    env_params = algorithm.shorten_episodes(env_params, h)
    key, reset_key, actor_key, critic_key = jax.random.split(key, 4)
    obs, env_state = algorithm.reset_all(env, reset_key, env_params, h.num_envs)
    obs = jnp.asarray(obs, jnp.float32)
    nets = networks(rule, env, env_params, h)
    dim, num_actions = obs.shape[-1], nets.box.low.shape[0]
    x = jnp.zeros(dim + num_actions)
    critic_keys = jax.random.split(critic_key, h.num_critics)
    params = {
        "actor": nets.actor.init(actor_key, obs[0]),
        "critics": tuple(nets.critic.init(k, x) for k in critic_keys),
        "log_alpha": jnp.log(jnp.asarray(getattr(h, "alpha_init", 1.0), jnp.float32)),
    }
    targets = {name: params[name] for name in rule.targets}
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


def normalize(state: OffPolicyState, obs: jax.Array, h: Any) -> jax.Array:
    """Observations as the networks see them."""
    return state.observations.normalize(obs, h.obs_clip) if h.normalize_observations else obs


def collect(
    rule: Rule, env: Any, state: OffPolicyState, key: jax.Array, env_params: Any, h: Any
) -> tuple[OffPolicyState, Sample, jax.Array, dict[str, jax.Array]]:
    """Step the N environments T times, exploring.

    Until ``learning_starts`` steps have been taken actions are uniform over ``warmup_scale``
    times the box. Returns the advanced state, transitions (T, N, ...), end-of-episode flags
    (T, N), and sums over the episodes that ended.
    """
    env_params = algorithm.shorten_episodes(env_params, h)
    nets = networks(rule, env, env_params, h)
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
        u = rule.explore(nets, state.learner.params["actor"], z, noise_key, h)
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


def critic_step(
    rule: Rule,
    nets: Networks,
    learner: Learner,
    batch: Sample,
    noise: jax.Array,
    gamma: Any,
    rate: Any,
    reward_factor: Any,
    h: Any,
) -> tuple[Learner, dict[str, jax.Array]]:
    """One gradient step on Σ_i E[(Q_i(s, u) - y)²] towards the rule's target y."""
    y = jax.lax.stop_gradient(rule.target(nets, learner, batch, noise, gamma, reward_factor, h))

    def loss(critics):
        q = nets.q_values(critics, batch.obs, batch.u)
        weight = 1.0 / (1.0 + (h.relative_error * jax.lax.stop_gradient(q)) ** 2)
        return jnp.sum(jnp.mean(weight * (q - y[None]) ** 2, axis=-1)), jnp.mean(q)

    critics = learner.params["critics"]
    (value, q), grads = jax.value_and_grad(loss, has_aux=True)(critics)
    critics, opt_state = descend(
        optimizer(h.max_grad_norm, h.adam_eps), critics, grads, learner.opt_states["critics"], rate
    )
    learner = learner.replace(
        params={**learner.params, "critics": critics},
        opt_states={**learner.opt_states, "critics": opt_state},
    )
    return learner, {"critic_loss": value, "q_value": q}


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


def over_networks(learner: Learner, change: Callable[[str, Any], Any]) -> Learner:
    """Parameters and targets of actor and critics, each replaced by ``change(name, params)``."""

    def changed(trees):
        return trees | {name: change(name, trees[name]) for name in NETWORKS if name in trees}

    return learner.replace(params=changed(learner.params), targets=changed(learner.targets))


def gradient_steps(
    rule: Rule, nets: Networks, state: OffPolicyState, key: jax.Array, gamma: Any, h: Any
) -> tuple[Learner, dict[str, jax.Array]]:
    """``gradient_steps`` steps of the critics; every ``policy_delay``-th also moves the actor.

    Targets follow whenever the actor moves: once per gradient step where the delay is 1.
    """
    sample_key, noise_key = jax.random.split(key)
    shape = (h.gradient_steps, h.batch_size)
    batch = draw(state, sample_key, state.clock.update + 1, shape, h)
    # All at once, which is cheaper than two small draws in each step.
    noise = jax.random.normal(noise_key, (2, *shape, *nets.box.low.shape))
    factor = algorithm.reward_factor(state, h)
    trees = {name: pack(state.learner.params[name])[1] for name in NETWORKS}
    nets = nets._replace(actor_tree=trees["actor"], critic_trees=trees["critics"])
    rates = {
        name: state.clock.anneal(getattr(h, name), h.final_lr_fraction)
        for name in ("actor_learning_rate", "critic_learning_rate")
    }

    def improve(learner, minibatch, noise):
        learner, metrics = rule.improve(
            nets, learner, minibatch, noise, rates["actor_learning_rate"], factor, h
        )
        online = {name: learner.params[name] for name in learner.targets}
        return learner.replace(targets=polyak(learner.targets, online, h.polyak)), metrics

    def wait(learner, minibatch, noise):
        return learner, {name: jnp.zeros(()) for name in rule.metrics}

    def step(learner, inputs):
        index, minibatch, critic_noise, actor_noise = inputs
        learner, metrics = critic_step(
            rule,
            nets,
            learner,
            minibatch,
            critic_noise,
            gamma,
            rates["critic_learning_rate"],
            factor,
            h,
        )
        if h.policy_delay == 1:
            learner, more = improve(learner, minibatch, actor_noise)
        else:
            due = index % h.policy_delay == 0
            learner, more = jax.lax.cond(due, improve, wait, learner, minibatch, actor_noise)
        return learner, metrics | more

    # The index comes from the shared clock: unbatched, so the delay stays a branch under vmap.
    # It is counted modulo the delay, for the steps of all updates would pass 2³¹.
    first = (state.clock.update % h.policy_delay) * (h.gradient_steps % h.policy_delay)
    inputs = (first + jnp.arange(h.gradient_steps), batch, *noise)
    learner, metrics = jax.lax.scan(
        step, over_networks(state.learner, lambda _, params: pack(params)[0]), inputs
    )
    learner = over_networks(learner, lambda name, params: trees[name](params))
    return learner, jax.tree.map(jnp.mean, metrics)


def update(
    rule: Rule, env: Any, state: OffPolicyState, env_params: Any, h: Any
) -> tuple[OffPolicyState, dict[str, jax.Array]]:
    """num_steps × num_envs environment steps, then (after warm-up) gradient_steps updates."""
    key, rollout_key, gradient_key = jax.random.split(state.key, 3)
    gamma = algorithm.discount(env_params, h)
    nets = networks(rule, env, env_params, h, state.actions)
    state, rollout, done, sums = collect(rule, env, state, rollout_key, env_params, h)
    state = remember(state, rollout, done, gamma, h)

    def learn(state):
        return gradient_steps(rule, nets, state, gradient_key, gamma, h)

    def wait(state):
        names = ("critic_loss", "q_value", *rule.metrics)
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
        average=polyak(state.average, learner.params["actor"], h.average_rate),
        learner=learner,
        failed=state.failed | ~jnp.isfinite(global_norm(learner.params)),
        clock=state.clock.replace(update=state.clock.update + 1),
    )
    return algorithm.strong(state), metrics | {"reward": jnp.mean(rollout.reward)} | sums


def policy_params(env: Any, state: OffPolicyState, env_params: Any, h: Any) -> dict[str, Any]:
    """Parameters of the deterministic policy tanh(mean)."""
    box = ActionBox.of(env.action_space(env_params))
    seen = state.observations if h.normalize_observations else None
    return actor_params(state.average, seen, h.obs_clip, box, state.obs.shape[-1])


def policy_apply(rule: Rule, env: Any, env_params: Any, h: Any) -> ActorPolicy:
    """Return the static half of that policy."""
    m = env.action_space(env_params).shape[0]
    return ActorPolicy(h.hidden, h.activation, m, rule.outputs * m, squash=True)


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


def make(name: str, hyperparameters: type, rule: Rule) -> Algorithm:
    """Make an off-policy algorithm of a rule."""
    return Algorithm(
        name=name,
        hyperparameters=hyperparameters,
        init=partial(init, rule),
        update=partial(update, rule),
        policy_params=policy_params,
        policy_apply=partial(policy_apply, rule),
        steps_per_update=block,
        check=check,
        bounded=True,
    )
