"""The on-policy engine: a rollout, its advantages, epochs of minibatches.

PPO and A2C are this engine with a loss each. All of it is pure and works on one learner;
``training`` batches it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
from flax import linen as nn

from cojax import streams
from cojax.agents import algorithm, learner, own_networks, returns
from cojax.agents.algorithm import Algorithm, Environment, Metrics, Number, Scalar, normalize
from cojax.agents.distributions import gaussian_log_prob
from cojax.agents.inspect import value_function
from cojax.agents.learner import Rollout
from cojax.agents.networks import activation, forward, scale_head
from cojax.agents.normalization import PopArt
from cojax.agents.optimization import descend, global_norm, of_each, optimizer, pack, permutation
from cojax.agents.own_networks import actor_network, critic_network, rescalable
from cojax.agents.policies import ActorPolicy, actor_policy, policy_params
from cojax.errors import InputError
from cojax.linalg import lift
from cojax.types import Array, Float, PRNGKeyArray, PyTree


class OnPolicyState(learner.State):
    """Everything a learner carries from one update to the next.

    Attributes:
        params: ``{"actor", "critic", "log_std"}``; log_std has shape (m,).
        opt_state: the optimiser's, of the parameters as ``pack`` gives them.
        rate_factor: what the Kullback-Leibler target has made of the learning rate.
        targets: mean and std of the critic's targets.
    """

    params: PyTree
    opt_state: PyTree
    rate_factor: Float[Array, "*M"]
    targets: PopArt


class Batch(NamedTuple):
    """What a loss sees of B samples; observations are normalised, targets in critic units."""

    obs: Float[Array, "B o"]
    u: Float[Array, "B m"]
    log_prob: Float[Array, " B"]
    advantage: Float[Array, " B"]
    target: Float[Array, " B"]


class Networks(NamedTuple):
    """Actor: observation (..., o) to mean (..., m). Critic: (..., o) to value (..., 1)."""

    actor: nn.Module
    critic: nn.Module


Loss: TypeAlias = Callable[[PyTree, Batch, Networks, PyTree], tuple[Scalar, Metrics]]
Adapt: TypeAlias = Callable[[PyTree, Rollout, PyTree, PyTree], tuple[PyTree, Rollout, Metrics]]


def networks(env: Environment, env_params: PyTree, h: PyTree) -> Networks:
    """Actor and critic for an environment's shapes."""
    dim, m = own_networks.dimensions(env, env_params)
    return Networks(actor_network(h, dim, m), rescalable(critic_network(h, dim), dim))


def init(env: Environment, key: PRNGKeyArray, env_params: PyTree, h: PyTree) -> OnPolicyState:
    """First state of a learner."""
    fields, actor_key, critic_key = learner.begin(env, key, env_params, h)
    actor, critic = networks(env, env_params, h)
    num_actions = env.action_space(env_params).shape[0]
    params = {
        "actor": actor.init(actor_key, fields["obs"][0]),
        "critic": critic.init(critic_key, fields["obs"][0]),
        "log_std": jnp.full((num_actions,), h.log_std_init, jnp.float32),
    }
    state = OnPolicyState(
        **fields,
        params=params,
        opt_state=optimizer(h.max_grad_norm, h.adam_eps).init(pack(params)[0]),
        rate_factor=jnp.ones(()),
        average=params["actor"],
        targets=PopArt.create(),
    )
    return algorithm.strong(state)


def collect(
    env: Environment,
    state: OnPolicyState,
    env_params: PyTree,
    h: PyTree,
    *,
    key: PRNGKeyArray,
    tell: tuple[str, ...] = (),
) -> tuple[OnPolicyState, Rollout, Metrics]:
    """Step the environments with the current policy, as ``learner.collect`` does."""
    actor, _ = networks(env, env_params, h)
    log_std = state.params["log_std"]
    noise_key, step_key = jax.random.split(key)
    noise = jax.random.normal(noise_key, (h.num_steps, h.num_envs, *log_std.shape))

    def act(z, xi):
        mean = forward(actor, state.params["actor"], z)
        u = mean + lift(jnp.exp(log_std), xi) * xi
        return u, gaussian_log_prob(u, mean, log_std)

    inputs = (noise,)
    return learner.collect(
        env, state, env_params, h, key=step_key, act=act, inputs=inputs, tell=tell
    )


def value(
    critic: nn.Module, state: OnPolicyState, obs: Float[Array, "*batch o"]
) -> Float[Array, "*batch"]:
    """V(s) in reward units from normalised observations."""
    out = forward(critic, state.params["critic"], obs)[..., 0]
    return state.targets.mean() + state.targets.std() * out


def prepare(
    env: Environment, state: OnPolicyState, env_params: PyTree, h: PyTree, *, rollout: Rollout
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
    most = returns.bounds(reward, gamma, h.episode_growth > 0)
    values = jnp.clip(value(critic, state, obs), *most)
    advantages = returns.gae(
        reward,
        values,
        jnp.clip(value(critic, state, normalize(state, rollout.final_obs, h)), *most),
        terminated=rollout.terminated,
        truncated=rollout.truncated,
        gamma=gamma,
        gae_lambda=h.gae_lambda,
    )
    targets = advantages + values
    if h.normalize_values:
        state = _rescale(state, state.targets.merge(targets, h.popart_rate))
    targets = (targets - state.targets.mean()) / state.targets.std()
    batch = Batch(obs, rollout.u, rollout.log_prob, advantages, targets)  # pyright: ignore[reportArgumentType]
    return state, jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), batch)


def _rescale(state: OnPolicyState, targets: PopArt) -> OnPolicyState:
    """Move to new target statistics without changing the value function."""
    old, std = state.targets, targets.std()
    critic = scale_head(
        state.params["critic"], old.std() / std, (old.mean() - targets.mean()) / std
    )
    return state.replace(params={**state.params, "critic": critic}, targets=targets)


def standardize(advantage: Float[Array, " B"], clip: Number) -> Float[Array, " B"]:
    """(A - mean)/std, clipped to ±clip: one runaway state must not silence all the others."""
    centred = advantage - jnp.mean(advantage)
    return jnp.clip(centred / (jnp.std(advantage) + 1e-8), -clip, clip)


def optimize(
    loss: Loss, nets: Networks, state: OnPolicyState, batch: Batch, *, key: PRNGKeyArray, h: PyTree
) -> tuple[OnPolicyState, Metrics]:
    """Epochs of minibatch gradient steps: one permutation and one gather an epoch.

    With a Kullback-Leibler target the rate follows the policy's movement instead of a schedule of
    its own: it is divided by 1.2 after a minibatch that sees more than twice the target and
    multiplied by 1.2 below half of it (Schulman et al. 2017, §4); the target is annealed. A critic
    with a rate of its own follows the schedule.
    """
    adaptive = h.target_kl is not None
    annealed = state.clock.anneal(jnp.ones(()), h.final_lr_fraction)
    opt = optimizer(h.max_grad_norm, h.adam_eps)
    packed, unpack = pack(state.params)
    own = {}
    if h.critic_learning_rate is not None:
        own["critic"] = state.clock.anneal(h.critic_learning_rate, h.final_lr_fraction)

    def minibatch_step(carry, minibatch):
        params, opt_state, factor = carry
        (_, metrics), grads = jax.value_and_grad(
            lambda packed: loss(unpack(packed), minibatch, nets, h), has_aux=True
        )(params)
        kl = metrics.get("approx_kl") if adaptive else None  # own losses may not tell
        if kl is not None:
            target = h.target_kl * annealed
            factor = jnp.where(kl > 2.0 * target, factor / 1.2, factor)
            factor = jnp.where(kl < 0.5 * target, factor * 1.2, factor)
            factor = jnp.clip(factor, 1e-3, 10.0)
        rate = h.learning_rate * (annealed if kl is None else factor)
        each = of_each(state.params, own, rate) if own else rate
        params, opt_state = descend(opt, params, grads, opt_state, rate=each)
        metrics = metrics | {"grad_norm": global_norm(grads), "learning_rate": rate}
        return (params, opt_state, factor), metrics

    def epoch(carry, words):
        order = permutation(streams.of_words(words), h.num_envs * h.num_steps)
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


def as_it_is(
    state: PyTree, rollout: Rollout, env_params: PyTree, h: PyTree
) -> tuple[PyTree, Rollout, Metrics]:
    """Learn from the ``rollout`` as it is."""
    return state, rollout, {}


def update(
    env: Environment,
    state: OnPolicyState,
    env_params: PyTree,
    h: PyTree,
    *,
    loss: Loss,
    adapt: Adapt = as_it_is,
    tell: tuple[str, ...] = (),
) -> tuple[OnPolicyState, Metrics]:
    """One rollout of num_steps × num_envs and the gradient steps on it, as ``adapt`` makes it of
    what was met and of what ``info`` was to ``tell``.

    Statistics of observations stay as they were until the gradient steps are done: the policy's
    ratio in the first epoch is exactly 1.
    """
    key, rollout_key, epoch_key = jax.random.split(state.key, 3)
    state, rollout, sums = collect(env, state, env_params, h, key=rollout_key, tell=tell)
    state, rollout, more = adapt(state, rollout, env_params, h)
    state, batch = prepare(env, state, env_params, h, rollout=rollout)
    nets = networks(env, env_params, h)
    state, metrics = optimize(loss, nets, state, batch, key=epoch_key, h=h)
    state = learner.finish(state, rollout, state.params, key=key, h=h)
    std = jnp.mean(jnp.exp(state.params["log_std"]))
    return state, metrics | {"reward": jnp.mean(rollout.reward), "std": std} | more | sums


def actor_gradients(
    env: Environment,
    state: OnPolicyState,
    env_params: PyTree,
    h: PyTree,
    *,
    key: PRNGKeyArray,
    num: int,
    loss: Loss,
    adapt: Adapt = as_it_is,
    tell: tuple[str, ...] = (),
) -> PyTree:
    """Gradients of the loss at the first minibatch of an update, of ``num`` rollouts in turn."""
    nets = networks(env, env_params, h)
    size = h.num_envs * h.num_steps

    def one(moved, key):
        rollout_key, order_key = jax.random.split(key)
        moved, rollout, _ = collect(env, moved, env_params, h, key=rollout_key, tell=tell)
        moved, rollout, _ = adapt(moved, rollout, env_params, h)
        ready, batch = prepare(env, moved, env_params, h, rollout=rollout)
        chosen = permutation(order_key, size)[: size // h.num_minibatches]
        minibatch = jax.tree.map(lambda x: x[chosen], batch)
        grads, _ = jax.grad(loss, has_aux=True)(ready.params, minibatch, nets, h)
        return moved, grads["actor"]

    return jax.lax.scan(one, state, jax.random.split(key, num))[1]


def policy_apply(
    env: Environment, env_params: PyTree, h: PyTree, *, squash: bool = False
) -> ActorPolicy:
    """Return the static half of the policy, the actor's mean."""
    return actor_policy(env, env_params, h, outputs=1, squash=squash)


def check(h: PyTree) -> None:
    """Raise InputError unless the minibatches divide the rollout and the activation exists."""
    size = h.num_envs * h.num_steps
    if size % h.num_minibatches:
        raise InputError(
            f"num_minibatches: {h.num_minibatches} does not divide num_envs × num_steps = {size}"
        )
    activation(h.activation)


def make(name: str, hyperparameters: type, loss: Loss) -> Algorithm:
    """Make an on-policy algorithm of ``loss(params, batch, networks, h) -> (loss, metrics)``."""
    return Algorithm(
        name=name,
        hyperparameters=hyperparameters,
        init=init,
        update=partial(update, loss=loss),
        policy_params=policy_params,
        policy_apply=policy_apply,
        steps_per_update=lambda h: h.num_envs * h.num_steps,
        check=check,
        budget=1_000_000,
        actor=lambda state: state.params["actor"],
        critic=value_function,
        actor_gradients=partial(actor_gradients, loss=loss),
    )
