"""The off-policy engine: step environments, write the replay, take gradient steps.

SAC, TD3, DDPG and CrossQ are this engine with an ``OffPolicyMethod`` each: how to explore, what a
critic should be worth, what the actor loses. All of it is pure and works on one learner.
"""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp

from cojax import streams
from cojax.agents import algorithm, learner, replay
from cojax.agents.algorithm import MOST_UPDATES, Algorithm, Environment, Metrics, Number, normalize
from cojax.agents.inspect import q_function
from cojax.agents.learner import Rollout
from cojax.agents.networks import activation
from cojax.agents.normalization import Moments
from cojax.agents.off_policy_method import (
    NETWORKS,
    Learner,
    Minibatch,
    Networks,
    OffPolicyMethod,
    critic_loss,
    networks,
)
from cojax.agents.optimization import descend, optimizer, pack, polyak
from cojax.agents.policies import ActorPolicy, actor_policy, policy_params
from cojax.agents.replay import Sample
from cojax.errors import InputError
from cojax.types import Array, Bool, Float, Int, PRNGKeyArray, PyTree

MOST_DELAY = 32_768  # its square is counted in 32 bits


class OffPolicyState(learner.State):
    """Everything a learner carries from one update to the next; the clock also gives the replay's
    pointer.

    Attributes:
        learner: networks and optimisers.
        replay: ring of packed transitions.
        actions: moments of the actions in units of the box, frozen during an update.
    """

    learner: Learner
    replay: Float[Array, "*M rows width"]
    actions: Moments


def block(h: PyTree) -> int:
    """Transitions of one update."""
    return h.num_envs * h.num_steps


def warming(updates: Int[Array, ""], h: PyTree) -> Bool[Array, ""]:
    """Whether ``updates`` updates are fewer than ``learning_starts`` environment steps.

    Counted in updates: environment steps pass 2³¹ where 32 bits end.
    """
    return updates < min(-(-h.learning_starts // block(h)), MOST_UPDATES)


def init(
    env: Environment, key: PRNGKeyArray, env_params: PyTree, h: PyTree, *, method: OffPolicyMethod
) -> OffPolicyState:
    """First state of a learner."""
    fields, actor_key, critic_key = learner.begin(env, key, env_params, h)
    obs = fields["obs"]
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
    opt = optimizer(h.max_grad_norm, h.adam_eps, getattr(h, "adam_beta1", 0.9))
    opt_states = {name: opt.init(x) for name, x in learned.items()}
    state = OffPolicyState(
        **fields,
        learner=Learner(params=params, targets=targets, opt_states=opt_states),
        average=params["actor"],
        replay=replay.create(replay.capacity(h.buffer_size, block(h)), dim, num_actions),
        actions=Moments.create((num_actions,)),
    )
    return algorithm.strong(state)


def collect(
    env: Environment,
    state: OffPolicyState,
    env_params: PyTree,
    h: PyTree,
    *,
    key: PRNGKeyArray,
    method: OffPolicyMethod,
) -> tuple[OffPolicyState, Rollout, Metrics]:
    """Step the environments, exploring, as ``learner.collect`` does.

    Until ``learning_starts`` steps have been taken actions are uniform over ``warmup_scale``
    times the box.
    """
    nets = networks(method, env, env_params, h, unit=state.unit)
    explore_key, warm_key, step_key = jax.random.split(key, 3)
    shape = (h.num_steps, h.num_envs, *nets.box.low.shape)
    warm = warming(state.clock.update, h)
    uniform = jax.random.uniform(warm_key, shape, minval=-1.0, maxval=1.0)
    words = streams.to_words(jax.random.split(explore_key, h.num_steps))

    def act(z, uniform_u, words):
        u = method.explore(nets, state.learner.params["actor"], z, streams.of_words(words), h=h)
        return jnp.where(warm, h.warmup_scale * uniform_u, u), None

    inputs = (uniform, words)
    return learner.collect(env, state, env_params, h, key=step_key, act=act, inputs=inputs)


def remember(state: OffPolicyState, rollout: Rollout, gamma: Number, h: PyTree) -> OffPolicyState:
    """Write a rollout to the replay and, before critics learn, refresh the scale of rewards.

    It stays what it was when learning began: all that critics have learned is in its units.
    """
    reward, done = rollout.reward * h.reward_scale, rollout.terminated | rollout.truncated
    sample = Sample(rollout.obs, rollout.u, reward, rollout.terminated, rollout.final_obs)
    rows = replay.pack(sample)
    buffer = replay.write(state.replay, rows.reshape(-1, rows.shape[-1]), state.clock.update)
    if not h.normalize_rewards:
        return state.replace(replay=buffer)
    early = warming(state.clock.update, h) | (state.clock.update == 0)
    refreshed = partial(state.rewards.merge, reward, done, gamma)
    rewards = jax.lax.cond(early, refreshed, lambda: state.rewards)
    return state.replace(replay=buffer, rewards=rewards)


def draw(
    state: OffPolicyState,
    key: PRNGKeyArray,
    blocks: Int[Array, ""],
    shape: tuple[int, ...],
    *,
    h: PyTree,
) -> Sample:
    """Transitions from the ``blocks`` blocks written, as networks see them, (*shape, ...)."""
    rows = replay.sample(key, state.replay, blocks, block(h), shape=shape)
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
    key: PRNGKeyArray,
    *,
    gamma: Number,
    h: PyTree,
) -> tuple[Learner, Metrics]:
    """``gradient_steps`` steps of the critics; every ``policy_delay``-th also moves the actor and,
    where it is learned, the temperature.

    Targets follow whenever the actor moves: once per gradient step where the delay is 1.
    """
    sample_key, noise_key = jax.random.split(key)
    shape = (h.gradient_steps, h.batch_size)
    rows = draw(state, sample_key, state.clock.update + 1, shape, h=h)
    # All at once, which is cheaper than two small draws in each step.
    noise = jax.random.normal(noise_key, (2, *shape, *nets.box.low.shape))
    factor = algorithm.reward_factor(state, h)
    trees = {name: pack(state.learner.params[name])[1] for name in NETWORKS}
    nets = nets._replace(actor_tree=trees["actor"], critic_trees=trees["critics"])
    opt = optimizer(h.max_grad_norm, h.adam_eps, getattr(h, "adam_beta1", 0.9))
    actor_rate, critic_rate = (
        state.clock.anneal(rate, h.final_lr_fraction)
        for rate in (h.actor_learning_rate, h.critic_learning_rate)
    )

    def descended(learner, name, grads, rate):
        old = learner.opt_states[name]
        params, opt_state = descend(opt, learner.params[name], grads, old, rate=rate)
        return learner.replace(
            params={**learner.params, name: params},
            opt_states={**learner.opt_states, name: opt_state},
        )

    def improve(learner, batch):
        (value, metrics), grads = jax.value_and_grad(method.actor_loss, has_aux=True)(
            learner.params["actor"], learner, batch, nets, h=h
        )
        learner = descended(learner, "actor", grads, actor_rate)
        if method.alpha_loss is not None and h.learn_temperature:
            slope = jax.grad(method.alpha_loss)(learner.params["log_alpha"], metrics, nets, h)
            learner = descended(learner, "log_alpha", slope, h.alpha_learning_rate)
        online = {name: learner.params[name] for name in learner.targets}
        learner = learner.replace(targets=polyak(learner.targets, online, h.polyak))
        return learner, {"actor_loss": value, **metrics}

    def wait(learner, batch):
        return learner, {name: jnp.zeros(()) for name in ("actor_loss", *method.metrics)}

    def step(learner, inputs):
        index, rows, critic_noise, actor_noise = inputs
        batch = Minibatch(rows, critic_noise, gamma, factor)
        critics = learner.params["critics"]
        if method.critic_loss is None:
            y = jax.lax.stop_gradient(method.target(learner, batch, nets, h))
            (value, q), grads = jax.value_and_grad(critic_loss, has_aux=True)(
                critics, y, rows, nets
            )
            learner = descended(learner, "critics", grads, critic_rate)
        else:
            (value, (q, statistics)), grads = jax.value_and_grad(method.critic_loss, has_aux=True)(
                critics, learner, batch, nets, h=h
            )
            learner = descended(learner, "critics", grads, critic_rate)
            critics = nets.refreshed(learner.params["critics"], statistics)
            learner = learner.replace(params={**learner.params, "critics": critics})
        batch = batch._replace(noise=actor_noise)
        if h.policy_delay == 1:
            learner, more = improve(learner, batch)
        else:
            due = index % h.policy_delay == 0
            learner, more = jax.lax.cond(due, improve, wait, learner, batch)
        return learner, {"critic_loss": value, "q_value": q} | more

    def over_networks(learner, change):
        def changed(part):
            return part | {name: change(name, part[name]) for name in NETWORKS if name in part}

        return learner.replace(params=changed(learner.params), targets=changed(learner.targets))

    # The index comes from the shared clock: unbatched, so the delay stays a branch under vmap.
    # It is counted modulo the delay, for the steps of all updates would pass 2³¹.
    first = (state.clock.update % h.policy_delay) * (h.gradient_steps % h.policy_delay)
    inputs = (first + jnp.arange(h.gradient_steps), rows, *noise)
    packed = over_networks(state.learner, lambda _, params: pack(params)[0])
    learned, metrics = jax.lax.scan(step, packed, inputs)
    learned = over_networks(learned, lambda name, params: trees[name](params))
    return learned, jax.tree.map(jnp.mean, metrics)


def update(
    env: Environment,
    state: OffPolicyState,
    env_params: PyTree,
    h: PyTree,
    *,
    method: OffPolicyMethod,
) -> tuple[OffPolicyState, Metrics]:
    """num_steps × num_envs environment steps, then (after warm-up) gradient_steps updates."""
    key, rollout_key, gradient_key = jax.random.split(state.key, 3)
    gamma = algorithm.discount(env_params, h)
    nets = networks(method, env, env_params, h, actions=state.actions, unit=state.unit)
    state, rollout, sums = collect(env, state, env_params, h, key=rollout_key, method=method)
    state = remember(state, rollout, gamma, h)

    def learn(state):
        return gradient_steps(method, nets, state, gradient_key, gamma=gamma, h=h)

    def wait(state):
        names = ("critic_loss", "q_value", "actor_loss", *method.metrics)
        return state.learner, {name: jnp.zeros(()) for name in names}

    warm = warming(state.clock.update + 1, h)
    learned, metrics = jax.lax.cond(warm, wait, learn, state)
    u = rollout.u.reshape(-1, rollout.u.shape[-1])
    state = state.replace(actions=state.actions.merge(u), learner=learned)
    state = learner.finish(state, rollout, learned.params, key=key, h=h)
    return state, metrics | {"reward": jnp.mean(rollout.reward)} | sums


def actor_gradients(
    env: Environment,
    state: OffPolicyState,
    env_params: PyTree,
    h: PyTree,
    *,
    key: PRNGKeyArray,
    num: int,
    method: OffPolicyMethod,
) -> PyTree:
    """Gradients of the actor's loss at ``num`` batches from the replay."""
    nets = networks(method, env, env_params, h, actions=state.actions, unit=state.unit)
    learned, blocks = state.learner, jnp.maximum(state.clock.update, 1)
    gamma, factor = algorithm.discount(env_params, h), algorithm.reward_factor(state, h)

    def one(_, key):
        sample_key, noise_key = jax.random.split(key)
        rows = draw(state, sample_key, blocks, (h.batch_size,), h=h)
        batch = Minibatch(rows, jax.random.normal(noise_key, rows.u.shape), gamma, factor)
        loss = jax.grad(method.actor_loss, has_aux=True)
        return None, loss(learned.params["actor"], learned, batch, nets, h=h)[0]

    return jax.lax.scan(one, None, jax.random.split(key, num))[1]


def policy_apply(
    method: OffPolicyMethod, env: Environment, env_params: PyTree, h: PyTree
) -> ActorPolicy:
    """Return the static half of the deterministic policy tanh(mean)."""
    return actor_policy(env, env_params, h, outputs=method.outputs, squash=True)


def check(h: PyTree) -> None:
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
        init=partial(init, method=method),
        update=partial(update, method=method),
        policy_params=policy_params,
        policy_apply=partial(policy_apply, method),
        steps_per_update=block,
        check=check,
        bounded=True,
        actor=lambda state: state.learner.params["actor"],
        critic=partial(q_function, method),
        actor_gradients=partial(actor_gradients, method=method),
    )
