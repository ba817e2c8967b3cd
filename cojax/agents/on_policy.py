"""The on-policy engine: a rollout, its advantages, epochs of minibatches.

PPO and A2C are this engine with a loss each. All of it is pure and works on one learner;
``training`` batches it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import struct

from cojax import streams
from cojax.agents import algorithm, returns
from cojax.agents.algorithm import Algorithm, Clock, Episodes, normalize
from cojax.agents.distributions import ActionBox, gaussian_log_prob
from cojax.agents.inspect import value_function
from cojax.agents.networks import MLP, activation, forward, scale_head
from cojax.agents.normalization import Moments, PopArt, RewardScale
from cojax.agents.optimization import (
    descend,
    global_norm,
    optimizer,
    pack,
    permutation,
    polyak,
)
from cojax.agents.policies import ActorPolicy, actor_params
from cojax.errors import InputError
from cojax.linalg import lift


class OnPolicyState(struct.PyTreeNode):
    """Everything a learner carries from one update to the next (N = num_envs).

    Attributes:
        clock: counters, shared by a population.
        key: typed PRNG key of this learner.
        params: ``{"actor", "critic", "log_std"}``; log_std has shape (m,).
        opt_state: the optimiser's, of the parameters as ``pack`` gives them.
        rate_factor: what the Kullback-Leibler target has made of the learning rate, shape ().
        average: running average of the actor's parameters, what ``policy_params`` gives.
        observations: moments of the observations, frozen during an update.
        rewards: scale of the rewards.
        targets: mean and std of the critic's targets.
        env_state: states of the N environments.
        obs: current observations, shape (N, d).
        episodes: returns in progress.
        failed: whether a parameter has ever been non-finite, shape ().
    """

    clock: Clock
    key: jax.Array
    params: Any
    opt_state: Any
    rate_factor: jax.Array
    average: Any
    observations: Moments
    rewards: RewardScale
    targets: PopArt
    env_state: Any
    obs: jax.Array
    episodes: Episodes
    failed: jax.Array


class Transition(NamedTuple):
    """One rollout, arrays of shape (T, N, ...).

    ``u`` is the unclipped action in units of the box and ``log_prob`` its log-density there;
    ``final_obs`` is the observation after the step and before any reset.
    """

    obs: jax.Array
    u: jax.Array
    log_prob: jax.Array
    reward: jax.Array
    terminated: jax.Array
    truncated: jax.Array
    final_obs: jax.Array


class Batch(NamedTuple):
    """What a loss sees of B samples; observations are normalised, targets in critic units."""

    obs: jax.Array  # (B, d)
    u: jax.Array  # (B, m)
    log_prob: jax.Array  # (B,)
    advantage: jax.Array  # (B,)
    target: jax.Array  # (B,)


class Networks(NamedTuple):
    """Actor: observation (..., d) to mean (..., m). Critic: (..., d) to value (..., 1)."""

    actor: MLP
    critic: MLP


def networks(env: Any, env_params: Any, h: Any) -> Networks:
    """Actor and critic for an environment's shapes."""
    num_actions = env.action_space(env_params).shape[0]
    return Networks(
        MLP(h.hidden, num_actions, h.activation, 0.01), MLP(h.hidden, 1, h.activation, 1.0)
    )


def init(env: Any, key: jax.Array, env_params: Any, h: Any) -> OnPolicyState:
    """First state of a learner; environment i is reset with ``fold_in(reset_key, i)``."""
    env_params = algorithm.shorten_episodes(env_params, h)
    key, reset_key, actor_key, critic_key = jax.random.split(key, 4)
    obs, env_state = algorithm.reset_all(env, reset_key, env_params, h.num_envs)
    if h.stagger_episodes:
        env_state = algorithm.stagger_episodes(reset_key, env_state, env_params)
    obs = jnp.asarray(obs, jnp.float32)
    actor, critic = networks(env, env_params, h)
    params = {
        "actor": actor.init(actor_key, obs[0]),
        "critic": critic.init(critic_key, obs[0]),
        "log_std": jnp.full((actor.out,), h.log_std_init, jnp.float32),
    }
    state = OnPolicyState(
        clock=Clock.create(),
        key=key,
        params=params,
        opt_state=optimizer(h.max_grad_norm, h.adam_eps).init(pack(params)[0]),
        rate_factor=jnp.ones(()),
        average=params["actor"],
        observations=Moments.create(obs.shape[1:]).merge(obs),
        rewards=RewardScale.create(h.num_envs),
        targets=PopArt.create(),
        env_state=env_state,
        obs=obs,
        episodes=Episodes.create(h.num_envs),
        failed=jnp.zeros((), bool),
    )
    return algorithm.strong(state)


def collect(
    env: Any, state: OnPolicyState, key: jax.Array, env_params: Any, h: Any
) -> tuple[OnPolicyState, Transition, dict[str, jax.Array]]:
    """Step the N environments T times with the current policy.

    Returns the advanced state, the rollout, and sums over the episodes that ended in it.
    """
    actor, _ = networks(env, env_params, h)
    env_params = algorithm.shorten_episodes(env_params, h)
    box = ActionBox.of(env.action_space(env_params))
    log_std = state.params["log_std"]
    noise_key, step_key = jax.random.split(key)
    shape = (h.num_steps, h.num_envs)
    noise = jax.random.normal(noise_key, (*shape, actor.out))
    step_env = jax.vmap(env.step, (0, 0, 0, None))

    def step(carry, inputs):
        env_state, obs, episodes, sums = carry
        xi, words = inputs
        mean = forward(actor, state.params["actor"], normalize(state, obs, h))
        u = mean + lift(jnp.exp(log_std), xi) * xi
        action = box.clip(box.to_action(u))
        next_obs, env_state, reward, terminated, truncated, info = step_env(
            streams.of_words(words), env_state, action, env_params
        )
        episodes, ended = episodes.step(reward, terminated | truncated)
        transition = Transition(
            obs,
            u,
            gaussian_log_prob(u, mean, log_std),
            reward,
            terminated,
            truncated,
            info["final_observation"],
        )
        sums = jax.tree.map(jnp.add, sums, ended)
        return (env_state, next_obs, episodes, sums), transition

    zeros = {name: jnp.zeros(()) for name in ("episode_return", "episode_length", "episodes")}
    carry, rollout = jax.lax.scan(
        step,
        (state.env_state, state.obs, state.episodes, zeros),
        (noise, streams.to_words(jax.random.split(step_key, shape))),
    )
    env_state, obs, episodes, sums = carry
    return state.replace(env_state=env_state, obs=obs, episodes=episodes), rollout, sums


def value(critic: MLP, state: OnPolicyState, obs: jax.Array) -> jax.Array:
    """V(s) in reward units from normalised observations (..., d); shape (...)."""
    out = forward(critic, state.params["critic"], obs)[..., 0]
    return state.targets.mean() + state.targets.std() * out


def prepare(
    env: Any, state: OnPolicyState, rollout: Transition, env_params: Any, h: Any
) -> tuple[OnPolicyState, Batch]:
    """Turn a rollout into the batch of an update, and refresh the scales of values and rewards.

    The value function is the same before and after: when its scale moves, the critic's head is
    corrected. Observation statistics are merged later, by ``update``.
    """
    _, critic = networks(env, env_params, h)
    gamma = algorithm.discount(env_params, h)
    reward = rollout.reward * h.reward_scale
    if h.normalize_rewards:
        done = rollout.terminated | rollout.truncated
        state = state.replace(rewards=state.rewards.merge(reward, done, gamma))
        reward = reward / state.rewards.moments.std()
    obs = normalize(state, rollout.obs, h)
    values = value(critic, state, obs)
    final_values = value(critic, state, normalize(state, rollout.final_obs, h))
    advantages = returns.gae(
        reward,
        values,
        final_values,
        rollout.terminated,
        rollout.truncated,
        gamma=gamma,
        gae_lambda=h.gae_lambda,
    )
    targets = advantages + values
    if h.normalize_values:
        state = _rescale(state, state.targets.merge(targets, h.popart_rate))
    batch = Batch(
        obs,
        rollout.u,
        rollout.log_prob,
        advantages,
        (targets - state.targets.mean()) / state.targets.std(),
    )
    return state, jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), batch)


def _rescale(state: OnPolicyState, targets: PopArt) -> OnPolicyState:
    """Move to new target statistics without changing the value function."""
    old, std = state.targets, targets.std()
    critic = scale_head(
        state.params["critic"], old.std() / std, (old.mean() - targets.mean()) / std
    )
    return state.replace(params={**state.params, "critic": critic}, targets=targets)


def standardize(advantage: jax.Array, clip: jax.Array | float) -> jax.Array:
    """(A - mean)/std, clipped to ±clip: one runaway state must not silence all the others."""
    centred = advantage - jnp.mean(advantage)
    return jnp.clip(centred / (jnp.std(advantage) + 1e-8), -clip, clip)


def optimize(
    loss: Callable[..., Any], nets: Networks, state: OnPolicyState, batch: Batch, key: Any, h: Any
) -> tuple[OnPolicyState, dict[str, jax.Array]]:
    """Epochs of minibatch gradient steps: one permutation and one gather an epoch.

    With a Kullback-Leibler target the rate follows the policy's movement instead of a schedule of
    its own: it is divided by 1.2 after a minibatch that sees more than twice the target and
    multiplied by 1.2 below half of it (Schulman et al. 2017, §4); the target is annealed.
    """
    size = h.num_envs * h.num_steps
    adaptive = h.target_kl is not None
    annealed = state.clock.anneal(jnp.ones(()), h.final_lr_fraction)
    opt = optimizer(h.max_grad_norm, h.adam_eps)

    packed, unpack = pack(state.params)

    def minibatch_step(carry, minibatch):
        params, opt_state, factor = carry
        (_, metrics), grads = jax.value_and_grad(
            lambda packed: loss(unpack(packed), minibatch, nets, h), has_aux=True
        )(params)
        if adaptive:
            kl, target = metrics["approx_kl"], h.target_kl * annealed
            factor = jnp.where(kl > 2.0 * target, factor / 1.2, factor)
            factor = jnp.where(kl < 0.5 * target, factor * 1.2, factor)
            factor = jnp.clip(factor, 1e-3, 10.0)
        rate = h.learning_rate * (factor if adaptive else annealed)
        params, opt_state = descend(opt, params, grads, opt_state, rate)
        metrics = metrics | {"grad_norm": global_norm(grads), "learning_rate": rate}
        return (params, opt_state, factor), metrics

    def epoch(carry, words):
        order = permutation(streams.of_words(words), size)
        shuffled = jax.tree.map(
            lambda x: x[order].reshape(h.num_minibatches, -1, *x.shape[1:]), batch
        )
        return jax.lax.scan(minibatch_step, carry, shuffled)

    (params, opt_state, factor), metrics = jax.lax.scan(
        epoch,
        (packed, state.opt_state, state.rate_factor),
        streams.to_words(jax.random.split(key, h.update_epochs)),
    )
    state = state.replace(params=unpack(params), opt_state=opt_state, rate_factor=factor)
    return state, jax.tree.map(jnp.mean, metrics)


def update(
    loss: Callable[..., Any], env: Any, state: OnPolicyState, env_params: Any, h: Any
) -> tuple[OnPolicyState, dict[str, jax.Array]]:
    """One rollout of num_steps × num_envs and the gradient steps on it.

    Statistics of observations stay as they were until the gradient steps are done: the policy's
    ratio in the first epoch is exactly 1.
    """
    key, rollout_key, epoch_key = jax.random.split(state.key, 3)
    state, rollout, sums = collect(env, state, rollout_key, env_params, h)
    state, batch = prepare(env, state, rollout, env_params, h)
    state, metrics = optimize(loss, networks(env, env_params, h), state, batch, epoch_key, h)
    if h.normalize_observations:
        flat = rollout.obs.reshape(-1, *rollout.obs.shape[2:])
        seen = state.observations
        state = state.replace(observations=seen.merge(seen.winsorize(flat, h.obs_clip)))
    finite = jnp.isfinite(global_norm(state.params))
    state = state.replace(
        key=key,
        average=polyak(state.average, state.params["actor"], h.actor_ema_rate),
        failed=state.failed | ~finite,
        clock=state.clock.replace(update=state.clock.update + 1),
    )
    metrics = metrics | {
        "reward": jnp.mean(rollout.reward),
        "std": jnp.mean(jnp.exp(state.params["log_std"])),
    }
    return algorithm.strong(state), metrics | sums


def actor(state: OnPolicyState) -> Any:
    """Parameters of the actor that learns."""
    return state.params["actor"]


def actor_gradients(
    loss: Callable[..., Any],
    env: Any,
    state: OnPolicyState,
    env_params: Any,
    h: Any,
    key: jax.Array,
    num: int,
) -> Any:
    """Gradients of the loss at the first minibatch of an update, of ``num`` rollouts in turn."""
    nets = networks(env, env_params, h)
    size = h.num_envs * h.num_steps

    def one(moved, key):
        rollout_key, order_key = jax.random.split(key)
        moved, rollout, _ = collect(env, moved, rollout_key, env_params, h)
        ready, batch = prepare(env, moved, rollout, env_params, h)
        chosen = permutation(order_key, size)[: size // h.num_minibatches]
        minibatch = jax.tree.map(lambda x: x[chosen], batch)
        grads, _ = jax.grad(loss, has_aux=True)(ready.params, minibatch, nets, h)
        return moved, grads["actor"]

    return jax.lax.scan(one, state, jax.random.split(key, num))[1]


def policy_params(env: Any, state: OnPolicyState, env_params: Any, h: Any) -> dict[str, Any]:
    """Parameters of the deterministic policy, the Gaussian's mean."""
    box = ActionBox.of(env.action_space(env_params))
    seen = state.observations if h.normalize_observations else None
    return actor_params(state.average, seen, h.obs_clip, box, state.obs.shape[-1])


def policy_apply(env: Any, env_params: Any, h: Any) -> ActorPolicy:
    """Return the static half of that policy."""
    num_actions = env.action_space(env_params).shape[0]
    return ActorPolicy(h.hidden, h.activation, num_actions, num_actions, squash=False)


def check(h: Any) -> None:
    """Raise ValueError unless the minibatches divide the rollout and the activation exists."""
    size = h.num_envs * h.num_steps
    if size % h.num_minibatches:
        raise InputError(
            f"num_minibatches: {h.num_minibatches} does not divide num_envs × num_steps = {size}"
        )
    activation(h.activation)


def make(name: str, hyperparameters: type, loss: Callable[..., Any]) -> Algorithm:
    """Make an on-policy algorithm of ``loss(params, batch, networks, h) -> (loss, metrics)``."""
    return Algorithm(
        name=name,
        hyperparameters=hyperparameters,
        init=init,
        update=partial(update, loss),
        policy_params=policy_params,
        policy_apply=policy_apply,
        steps_per_update=lambda h: h.num_envs * h.num_steps,
        check=check,
        actor=actor,
        critic=value_function,
        actor_gradients=partial(actor_gradients, loss),
    )
