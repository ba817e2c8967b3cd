"""Short-horizon actor-critic: the gradient of rewards through the transition (Xu et al. 2022,
arXiv:2204.07137).

The actor descends the negative of

    J = E[Σ_{t<T} γ^t r_t + γ^T V(s_T)]

through T steps of the environment itself, and V learns from λ-returns of the same steps. The noise
of a gradient by samples of actions is gone: what such a learner reaches is what there is to be had.
"""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
from flax import linen as nn

from cojax import streams
from cojax.agents import algorithm, learner, returns
from cojax.agents.algorithm import Algorithm, Environment, Metrics, normalize
from cojax.agents.distributions import ActionBox
from cojax.agents.hyperparameters import Hyperparameters, Number
from cojax.agents.inspect import value_function
from cojax.agents.learner import Rollout
from cojax.agents.networks import forward, scale_head
from cojax.agents.normalization import PopArt
from cojax.agents.on_policy import check, networks, policy_apply
from cojax.agents.optimization import (
    descend,
    global_norm,
    optimizer,
    pack,
    permutation,
    polyak,
)
from cojax.agents.policies import policy_params
from cojax.agents.settings import INF, static, traced
from cojax.agents.state_slopes import bounded, inexact, moved, replaced
from cojax.linalg import lift
from cojax.types import Array, Float, PRNGKeyArray, PyTree


class SHAC(Hyperparameters):
    """Hyperparameters of SHAC.

    Attributes:
        actor_learning_rate: Adam's step for the actor.
        critic_learning_rate: Adam's step for the critic.
        gae_lambda: trace decay of the critic's targets.
        polyak: step of the slow critic that returns end in, once an update.
        exploration_noise: std of the noise on actions, in their unit.
        popart_rate: weight of the newest targets in the running mean and std of targets.
        slope_coef: weight of the error of the critic's slopes.
        num_minibatches: gradient steps of the critic per epoch.
        update_epochs: passes of the critic over each rollout.
    """

    actor_learning_rate: Number = traced(6e-3, 0.0)
    critic_learning_rate: Number = traced(2e-3, 0.0)
    gae_lambda: Number = traced(0.95, 0.0, 1.0)
    polyak: Number = traced(0.05, 0.0, 1.0)
    exploration_noise: Number = traced(0.1, 0.0)
    popart_rate: Number = traced(0.05, 0.0, 1.0)
    slope_coef: Number = traced(1.0, 0.0)
    max_grad_norm: Number = traced(0.3, 0.0, INF)
    final_lr_fraction: Number = traced(0.02, 0.0)
    actor_ema_rate: Number = traced(0.1, 0.0, 1.0)

    num_minibatches: int = static(4, 1)
    update_epochs: int = static(4, 1)
    stagger_episodes: bool = static(True)
    num_envs: int = static(16, 1)
    num_steps: int = static(8, 1)
    activation: str = static("silu")
    normalize_rewards: bool = static(False)


STEEP = 10.0  # largest derivative of a return to a state, in standard deviations of both


class SHACState(learner.State):
    """Everything a learner carries from one update to the next.

    Attributes:
        params: ``{"actor", "critic"}``.
        slow: the critic that returns end in.
        opt_states: the optimisers', by the same names, of the parameters as ``pack`` gives them.
        targets: mean and std of the critic's targets.
    """

    params: dict[str, PyTree]
    slow: PyTree
    opt_states: dict[str, PyTree]
    targets: PopArt


def init(env: Environment, key: PRNGKeyArray, env_params: PyTree, h: PyTree) -> SHACState:
    """First state of a learner."""
    fields, actor_key, critic_key = learner.begin(env, key, env_params, h)
    actor, critic = networks(env, env_params, h)
    params = {
        "actor": actor.init(actor_key, fields["obs"][0]),
        "critic": critic.init(critic_key, fields["obs"][0]),
    }
    opt = optimizer(h.max_grad_norm, h.adam_eps)
    state = SHACState(
        **fields,
        params=params,
        slow=params["critic"],
        opt_states={name: opt.init(pack(x)[0]) for name, x in params.items()},
        average=params["actor"],
        targets=PopArt.create(),
    )
    return algorithm.strong(state)


def value(
    critic: nn.Module, params: PyTree, state: SHACState, obs: Float[Array, "*batch o"], *, h: PyTree
) -> Float[Array, "*batch"]:
    """V(s) in reward units."""
    out = forward(critic, params, normalize(state, obs, h))[..., 0]
    return state.targets.mean() + state.targets.std() * out


def at_rest(state: SHACState, h: PyTree) -> list[Array]:
    """No nudge to any state of a rollout."""
    return [jnp.zeros((h.num_steps, *x.shape)) for x in inexact(state.env_state)]


def actor_loss(
    moving: tuple[PyTree, PyTree],
    env: Environment,
    state: SHACState,
    env_params: PyTree,
    *,
    h: PyTree,
    key: PRNGKeyArray,
) -> tuple[Float[Array, ""], tuple[SHACState, Rollout, Metrics, Float[Array, "T N"]]]:
    """Minus the return of N short rollouts, ended by the slow critic; also the state after them.

    ``moving`` are the actor and what states are nudged by. An episode that ends within is closed
    by its own value, and what follows is a rollout of its own. A rollout that begins where values
    are far from their mean counts less, by how many of their standard deviations: of a state that
    has run away there is little to learn.
    """
    actor, nudge = moving
    nets = networks(env, env_params, h)
    box = ActionBox.of(env.action_space(env_params), state.unit)
    gamma = algorithm.discount(env_params, h)
    noise_key, step_key = jax.random.split(key)
    noise = jax.random.normal(noise_key, (h.num_steps, h.num_envs, *box.low.shape))

    scale = [jnp.std(x, axis=0) + 1e-8 for x in inexact(state.env_state)]
    most = STEEP * state.targets.std()

    def damp(env_state):
        leaves = bounded(inexact(env_state), scale, most)
        return replaced(env_state, leaves)

    def act(z, xi):
        return box.inside(
            box.squash(forward(nets.actor, actor, z)) + h.exploration_noise * xi
        ), None

    state, rollout, sums = learner.collect(
        env.with_transition_gradients(),  # pyright: ignore
        state,
        env_params,
        h,
        key=step_key,
        act=act,
        inputs=(noise,),
        nudge=nudge,
        damp=damp,
    )
    closes = (rollout.terminated | rollout.truncated).at[-1].set(True)
    last = value(nets.critic, state.slow, state, rollout.final_obs, h=h)
    last = jnp.clip(last, *returns.bounds(rollout.reward * h.reward_scale, gamma))
    last = jnp.where(rollout.terminated, 0.0, last)
    first = jax.lax.stop_gradient(value(nets.critic, state.slow, state, rollout.obs, h=h))
    far = jnp.abs(first - state.targets.mean()) / state.targets.std()

    # what a reward counts: gamma to the steps since its part began, times the weight of the part
    def forth(weight, step):
        opens, far = step
        weight = jnp.where(opens, 1.0 / (1.0 + far), gamma * weight)
        return weight, weight

    opens = jnp.concatenate([jnp.ones_like(closes[:1]), closes[:-1]])
    _, weight = jax.lax.scan(forth, jnp.zeros(h.num_envs), (opens, far))
    reward = rollout.reward * h.reward_scale + gamma * jnp.where(closes, last, 0.0)
    loss = -jnp.sum(weight * reward)
    return loss, jax.lax.stop_gradient((state, rollout, sums, weight))


def learn_values(
    env: Environment,
    state: SHACState,
    env_params: PyTree,
    h: PyTree,
    *,
    rollout: Rollout,
    slopes: list[Array],
    key: PRNGKeyArray,
) -> tuple[SHACState, Metrics]:
    """Epochs of minibatches on the λ-returns of a rollout, and on the slopes of its returns."""
    critic = networks(env, env_params, h).critic
    rewards, gamma = rollout.reward * h.reward_scale, algorithm.discount(env_params, h)
    values, last = (
        jnp.clip(value(critic, state.slow, state, obs, h=h), *returns.bounds(rewards, gamma))
        for obs in (rollout.obs, rollout.final_obs)
    )
    advantages = returns.gae(
        rewards,
        values,
        last,
        terminated=rollout.terminated,
        truncated=rollout.truncated,
        gamma=gamma,
        gae_lambda=h.gae_lambda,
    )
    targets = (advantages + values).reshape(-1)
    old, new = state.targets, state.targets.merge(targets, h.popart_rate)
    ratio, shift = old.std() / new.std(), (old.mean() - new.mean()) / new.std()
    online = scale_head(state.params["critic"], ratio, shift)
    slow = scale_head(state.slow, ratio, shift)
    targets = (targets - new.mean()) / new.std()
    flat = jax.tree.map(lambda x: x.reshape(targets.shape[0], *x.shape[2:]), rollout.env_state)
    spread = [jnp.std(x, axis=0) + 1e-8 for x in inexact(flat)]
    slopes = [
        jnp.nan_to_num(x.reshape(y.shape) * lift(r, y) / new.std(), posinf=0.0, neginf=0.0)
        for x, y, r in zip(slopes, inexact(flat), spread, strict=True)
    ]
    opt = optimizer(h.max_grad_norm, h.adam_eps)
    rate = state.clock.anneal(h.critic_learning_rate, h.final_lr_fraction)
    packed, unpack = pack(online)

    def loss(packed, env_state, target, slope):
        params = unpack(packed)

        def of(by, env_state):
            by = [x * r for x, r in zip(by, spread, strict=True)]
            there = moved(env_state, by)
            obs = env.get_obs(there, env_params)  # pyright: ignore[reportAttributeAccessIssue]
            return forward(critic, params, normalize(state, obs, h))[0]

        zero = [jnp.zeros_like(x) for x in inexact(env_state)]
        v, dv = jax.vmap(jax.value_and_grad(of))(zero, env_state)
        weight = 1.0 / (1.0 + jax.lax.stop_gradient(v) ** 2)
        error = (v - target) ** 2
        wrong = sum(
            jnp.sum((x - y) ** 2, axis=tuple(range(1, x.ndim)))
            for x, y in zip(dv, slope, strict=True)
        )
        return jnp.mean(weight * (error + h.slope_coef * wrong)), (jnp.mean(error), jnp.mean(wrong))

    def minibatch_step(carry, minibatch):
        params, opt_state = carry
        errors, grads = jax.grad(loss, has_aux=True)(params, *minibatch)[::-1]
        return descend(opt, params, grads, opt_state, rate=rate), errors

    def epoch(carry, words):
        order = permutation(streams.of_words(words), targets.shape[0])
        order = order.reshape(h.num_minibatches, -1)
        batches = jax.tree.map(lambda x: x[order], (flat, targets, slopes))
        return jax.lax.scan(minibatch_step, carry, batches)

    words = streams.to_words(jax.random.split(key, h.update_epochs))
    (packed, opt_state), errors = jax.lax.scan(epoch, (packed, state.opt_states["critic"]), words)
    online = unpack(packed)
    state = state.replace(
        params=state.params | {"critic": online},
        slow=polyak(slow, online, h.polyak),
        opt_states=state.opt_states | {"critic": opt_state},
        targets=new,
    )
    return state, dict(zip(("value_loss", "slope_loss"), map(jnp.mean, errors), strict=True))


def update(
    env: Environment, state: SHACState, env_params: PyTree, h: PyTree
) -> tuple[SHACState, Metrics]:
    """One rollout, one step of the actor along its gradient, epochs of the critic."""
    key, rollout_key, epoch_key = jax.random.split(state.key, 3)
    packed, unpack = pack(state.params["actor"])

    def loss(packed, nudge):
        return actor_loss((unpack(packed), nudge), env, state, env_params, h=h, key=rollout_key)

    (value_, (after, rollout, sums, weight)), (grads, slopes) = jax.value_and_grad(
        loss, argnums=(0, 1), has_aux=True
    )(packed, at_rest(state, h))
    slopes = [-x / weight.reshape(weight.shape + (1,) * (x.ndim - 2)) for x in slopes]
    grads = jax.tree.map(lambda g: g / (weight.size * after.targets.std()), grads)
    norm = global_norm(grads)
    grads = jax.tree.map(lambda g: jnp.where(jnp.isfinite(norm), g, 0.0), grads)
    opt = optimizer(h.max_grad_norm, h.adam_eps)
    rate = after.clock.anneal(h.actor_learning_rate, h.final_lr_fraction)
    packed, opt_state = descend(opt, packed, grads, after.opt_states["actor"], rate=rate)
    state, metrics = learn_values(
        env, after, env_params, h, rollout=rollout, slopes=slopes, key=epoch_key
    )
    state = state.replace(
        params=state.params | {"actor": unpack(packed)},
        opt_states=state.opt_states | {"actor": opt_state},
    )
    state = learner.finish(state, rollout, state.params, key=key, h=h)
    metrics |= {"policy_loss": value_, "grad_norm": norm, "reward": jnp.mean(rollout.reward)}
    return state, metrics | sums


def actor_gradients(
    env: Environment,
    state: SHACState,
    env_params: PyTree,
    h: PyTree,
    *,
    key: PRNGKeyArray,
    num: int,
) -> PyTree:
    """Gradients of the actor's loss at ``num`` rollouts in turn."""

    def one(state, key):
        def loss(actor):
            return actor_loss((actor, at_rest(state, h)), env, state, env_params, h=h, key=key)

        grads, (state, *_) = jax.grad(loss, has_aux=True)(state.params["actor"])
        return state, grads

    return jax.lax.scan(one, state, jax.random.split(key, num))[1]


ALGORITHM = Algorithm(
    name="shac",
    hyperparameters=SHAC,
    init=init,
    update=update,
    policy_params=policy_params,
    policy_apply=partial(policy_apply, squash=True),
    steps_per_update=lambda h: h.num_envs * h.num_steps,
    check=check,
    differentiable=True,
    actor=lambda state: state.params["actor"],
    critic=value_function,
    actor_gradients=actor_gradients,
)
