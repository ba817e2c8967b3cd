"""Soft actor-critic (Haarnoja et al. 2018, arXiv:1812.05905)."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from flax import struct

from cojax.agents import off_policy
from cojax.agents.algorithm import INF, leaf, static
from cojax.agents.distributions import tanh_gaussian_log_prob
from cojax.agents.off_policy_method import Learner, Minibatch, Networks, OffPolicyMethod


class SAC(struct.PyTreeNode):
    """Hyperparameters of SAC: the first group can be batched, the second decides shapes.

    Attributes:
        actor_learning_rate: Adam's step for the actor.
        critic_learning_rate: Adam's step for the critics.
        alpha_learning_rate: Adam's step for the log temperature.
        final_lr_fraction: last rates of actor and critics as a fraction of the first.
        gamma: discount; None takes the system's own.
        max_episode_steps: steps after which an episode is cut short while learning; None for the
            environment's own limit. Values stay those of the whole problem.
        polyak: step of the target networks, once per gradient step.
        max_grad_norm: global norm that gradients are clipped to.
        adam_eps: Adam's ε.
        alpha_init: first temperature, in units of the scaled reward, where it is learned.
        temperature: the temperature where it is not learned, in units of the raw reward.
        target_entropy: entropy per action dimension that the temperature steers to, in nats.
        log_std_init: log standard deviation before tanh at the start.
        log_std_min: lower limit of it.
        log_std_max: upper limit of it.
        warmup_scale: first actions are uniform over this fraction of the box.
        reward_scale: constant factor on rewards, for the learner only.
        obs_clip: normalised observations are clipped to ± this.
        average_rate: weight of the newest actor in the average that is the policy; 1 for the
            newest alone.
        relative_error: κ in the weight 1/(1 + (κ Q)²) of a critic's squared error: above 0, large
            values count by their relative error. The weight does not see the target, so its mean
            stays the aim.
        num_envs: environments stepped together.
        num_steps: steps of each between updates.
        gradient_steps: gradient steps per update, i.e. per num_envs × num_steps.
        batch_size: transitions of a gradient step.
        buffer_size: transitions kept.
        learning_starts: environment steps before the first gradient step.
        learn_temperature: whether the temperature is learned.
        num_critics: critics; the smallest counts.
        policy_delay: gradient steps of the critics for one of the actor.
        hidden: widths of hidden layers, of actor and critics alike.
        activation: nonlinearity, a name in ``networks.ACTIVATIONS``.
        normalize_observations: whether networks see standardised observations.
        normalize_actions: whether critics see standardised actions.
        normalize_rewards: whether rewards are divided by the std of discounted returns.
    """

    actor_learning_rate: Any = leaf(3e-4, 0.0)
    critic_learning_rate: Any = leaf(1e-3, 0.0)
    alpha_learning_rate: Any = leaf(1e-3, 0.0)
    final_lr_fraction: Any = leaf(1.0, 0.0)
    gamma: Any = leaf(None, 0.0, 1.0)
    max_episode_steps: Any = leaf(None, 1.0, INF)
    polyak: Any = leaf(0.005, 0.0, 1.0)
    max_grad_norm: Any = leaf(100.0, 0.0, INF)
    adam_eps: Any = leaf(1e-8, 0.0)
    alpha_init: Any = leaf(0.01, 0.0)
    temperature: Any = leaf(0.01, 0.0)
    target_entropy: Any = leaf(-1.0)
    log_std_init: Any = leaf(-1.0, -20.0, 2.0)
    log_std_min: Any = leaf(-10.0, -20.0, 2.0)
    log_std_max: Any = leaf(2.0, -20.0, 5.0)
    warmup_scale: Any = leaf(1.0, 0.0, 1.0)
    reward_scale: Any = leaf(1.0, 0.0)
    obs_clip: Any = leaf(10.0, 0.0, INF)
    average_rate: Any = leaf(1.0, 0.0, 1.0)
    relative_error: Any = leaf(0.0, 0.0)

    num_envs: int = static(8, 1)
    num_steps: int = static(8, 1)
    gradient_steps: int = static(32, 1)
    batch_size: int = static(256, 1)
    buffer_size: int = static(300_000, 1)
    learning_starts: int = static(4_000, 0, INF)
    learn_temperature: bool = static(True)
    num_critics: int = static(2, 1)
    policy_delay: int = static(1, 1)
    hidden: tuple[int, ...] = static((64, 64))
    activation: str = static("relu")
    normalize_observations: bool = static(True)
    normalize_actions: bool = static(True)
    normalize_rewards: bool = static(True)


def distribution(nets: Networks, actor: Any, obs: jax.Array, h: SAC) -> tuple[jax.Array, jax.Array]:
    """Mean and log standard deviation before tanh, each (..., m)."""
    mean, log_std = jnp.split(nets.output(actor, obs), 2, axis=-1)
    return mean, jnp.clip(log_std + h.log_std_init, h.log_std_min, h.log_std_max)


def draw(
    nets: Networks, actor: Any, obs: jax.Array, noise: jax.Array, h: SAC
) -> tuple[jax.Array, jax.Array]:
    """Action u = tanh(x), x = μ + σ · noise, and its log-density in action units, from x itself."""
    mean, log_std = distribution(nets, actor, obs, h)
    x = mean + jnp.exp(log_std) * noise
    return jnp.tanh(x), tanh_gaussian_log_prob(x, mean, log_std, nets.box.half_range())


def explore(nets: Networks, actor: Any, obs: jax.Array, key: jax.Array, h: SAC) -> jax.Array:
    """Return a sample of the policy."""
    noise = jax.random.normal(key, (*obs.shape[:-1], *nets.box.low.shape))
    return draw(nets, actor, obs, noise, h)[0]


def alpha(learner: Learner, batch: Minibatch, h: SAC) -> jax.Array:
    """Temperature in units of the learner's rewards, shape ()."""
    if h.learn_temperature:
        return jnp.exp(learner.params["log_alpha"])
    return h.temperature * batch.reward_factor


def target(learner: Learner, batch: Minibatch, nets: Networks, h: SAC) -> jax.Array:
    """y = r + γ (1 - terminated) (min_i Q̄_i(s', u') - α log π(u'|s')): the soft Q, shape (B,)."""
    rows = batch.rows
    u, log_prob = draw(nets, learner.params["actor"], rows.next_obs, batch.noise, h)
    q = jnp.min(nets.q_values(learner.targets["critics"], rows.next_obs, u), axis=0)
    soft = q - alpha(learner, batch, h) * log_prob
    return rows.reward + batch.gamma * (1.0 - rows.terminated) * soft


def actor_loss(
    actor: Any, learner: Learner, batch: Minibatch, nets: Networks, h: SAC
) -> tuple[jax.Array, dict[str, jax.Array]]:
    """E[α log π(u|s) - min_i Q_i(s, u)]."""
    temperature = alpha(learner, batch, h)
    u, log_prob = draw(nets, actor, batch.rows.obs, batch.noise, h)
    q = jnp.min(nets.q_values(learner.params["critics"], batch.rows.obs, u), axis=0)
    metrics = {"entropy": -jnp.mean(log_prob), "alpha": temperature}
    return jnp.mean(temperature * log_prob - q), metrics


def alpha_loss(
    log_alpha: jax.Array, metrics: dict[str, jax.Array], nets: Networks, h: SAC
) -> jax.Array:
    """-log α · E[log π + H̄] with H̄ = target_entropy · m."""
    return log_alpha * (metrics["entropy"] - h.target_entropy * nets.box.low.shape[0])


METHOD = OffPolicyMethod(
    outputs=2,
    explore=explore,
    target=target,
    actor_loss=actor_loss,
    metrics=("entropy", "alpha"),
    alpha_loss=alpha_loss,
    targets=("critics",),
    smallest=True,
)
ALGORITHM = off_policy.make("sac", SAC, METHOD)
