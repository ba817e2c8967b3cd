"""Proximal policy optimisation (Schulman et al. 2017, arXiv:1707.06347)."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from flax import struct

from cojax.agents import on_policy
from cojax.agents.algorithm import INF, leaf, static
from cojax.agents.distributions import gaussian_entropy, gaussian_log_prob
from cojax.agents.networks import forward
from cojax.agents.on_policy import Batch, Networks, standardize


class PPO(struct.PyTreeNode):
    """Hyperparameters of PPO: the first group can be batched, the second decides shapes.

    Attributes:
        learning_rate: Adam's step, at the start.
        final_lr_fraction: its last value as a fraction of the first; linear in updates.
        gamma: discount; None takes the system's own.
        max_episode_steps: steps after which an episode is cut short while learning; None for the
            environment's own limit. Values stay those of the whole problem.
        gae_lambda: trace decay of the advantages.
        target_kl: Kullback-Leibler divergence that an update should move the policy by, at the
            start; None leaves the learning rate to its schedule.
        clip_eps: half-width of the interval that the probability ratio is clipped to.
        ent_coef: weight of the entropy bonus.
        vf_coef: weight of the value loss.
        max_grad_norm: global norm that gradients are clipped to.
        adam_eps: Adam's ε.
        log_std_init: first log standard deviation, in units of the half range of the action box.
        reward_scale: constant factor on rewards, for the learner only.
        obs_clip: normalised observations are clipped to ± this.
        average_rate: weight of the newest actor in the average that is the policy; 1 for the
            newest alone.
        advantage_clip: normalised advantages are clipped to ± this.
        value_rate: weight of the newest targets in the running mean and std of targets.
        num_envs: environments stepped together.
        num_steps: steps of each between updates.
        num_minibatches: gradient steps per epoch.
        update_epochs: passes over each rollout.
        hidden: widths of hidden layers, of actor and critic alike.
        activation: nonlinearity, a name in ``networks.ACTIVATIONS``.
        random_phase: whether the first episodes begin at random steps.
        normalize_observations: whether networks see standardised observations.
        normalize_rewards: whether rewards are divided by the std of discounted returns.
        normalize_values: whether the critic's targets are standardised (PopArt).
    """

    learning_rate: Any = leaf(3e-4, 0.0)
    final_lr_fraction: Any = leaf(0.0, 0.0)
    gamma: Any = leaf(None, 0.0, 1.0)
    max_episode_steps: Any = leaf(None, 1.0, INF)
    gae_lambda: Any = leaf(0.95, 0.0, 1.0)
    target_kl: Any = leaf(None, 0.0)
    clip_eps: Any = leaf(0.2, 0.0, INF)
    ent_coef: Any = leaf(0.0)
    vf_coef: Any = leaf(0.5, 0.0)
    max_grad_norm: Any = leaf(0.5, 0.0, INF)
    adam_eps: Any = leaf(1e-5, 0.0)
    log_std_init: Any = leaf(-2.0, -20.0, 5.0)
    reward_scale: Any = leaf(1.0, 0.0)
    obs_clip: Any = leaf(10.0, 0.0, INF)
    average_rate: Any = leaf(1.0, 0.0, 1.0)
    advantage_clip: Any = leaf(10.0, 0.0, INF)
    value_rate: Any = leaf(0.1, 0.0, 1.0)

    num_envs: int = static(32, 1)
    num_steps: int = static(64, 1)
    num_minibatches: int = static(8, 1)
    update_epochs: int = static(10, 1)
    hidden: tuple[int, ...] = static((64, 64))
    activation: str = static("tanh")
    random_phase: bool = static(False)
    normalize_observations: bool = static(True)
    normalize_rewards: bool = static(False)
    normalize_values: bool = static(True)


def loss(
    params: Any, batch: Batch, nets: Networks, h: PPO
) -> tuple[jax.Array, dict[str, jax.Array]]:
    """Clipped surrogate, squared value error and entropy bonus of one minibatch.

        ρ = π(u|s)/π_old(u|s),   L = -E[min(ρ A, clip(ρ, 1±ε) A)] + c_v E[(V(s) - G)²] - c_e H

    A is standardised over the minibatch; u is the unclipped action.
    """
    mean, log_std = forward(nets.actor, params["actor"], batch.obs), params["log_std"]
    log_ratio = gaussian_log_prob(batch.u, mean, log_std) - batch.log_prob
    ratio = jnp.exp(log_ratio)
    advantage = standardize(batch.advantage, h.advantage_clip)
    # Where clipping lowers the surrogate its gradient is 0, and elsewhere it changes nothing.
    surrogate = ratio * advantage
    clipped = jax.lax.stop_gradient(jnp.clip(ratio, 1.0 - h.clip_eps, 1.0 + h.clip_eps) * advantage)
    values = forward(nets.critic, params["critic"], batch.obs)[..., 0]
    means = jnp.mean(
        jnp.stack(
            (
                -jnp.where(surrogate <= clipped, surrogate, clipped),
                (values - batch.target) ** 2,
                jax.lax.stop_gradient(ratio - 1.0 - log_ratio),
                jax.lax.stop_gradient(jnp.abs(ratio - 1.0) > h.clip_eps).astype(jnp.float32),
            )
        ),
        axis=-1,
    )
    policy_loss, value_loss, approx_kl, clip_fraction = means
    entropy = gaussian_entropy(log_std)
    total = policy_loss + h.vf_coef * value_loss - h.ent_coef * entropy
    metrics = {
        "policy_loss": policy_loss,
        "value_loss": value_loss,
        "entropy": entropy,
        "approx_kl": approx_kl,
        "clip_fraction": clip_fraction,
    }
    return total, metrics


ALGORITHM = on_policy.make("ppo", PPO, loss)
