"""Proximal policy optimisation (Schulman et al. 2017, arXiv:1707.06347)."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from cojax.agents import on_policy
from cojax.agents.algorithm import Metrics, Scalar
from cojax.agents.distributions import gaussian_entropy, gaussian_log_prob
from cojax.agents.hyperparameters import Number, OnPolicyHyperparameters
from cojax.agents.networks import forward
from cojax.agents.on_policy import Batch, Networks, standardize
from cojax.agents.settings import INF, static, traced
from cojax.types import PyTree


class PPO(OnPolicyHyperparameters):
    """Hyperparameters of PPO.

    Attributes:
        target_kl: Kullback-Leibler divergence that an update should move the policy by, at the
            start; None leaves the learning rate to its schedule.
        clip_eps: half-width of the interval that the probability ratio is clipped to.
        num_minibatches: gradient steps per epoch.
        update_epochs: passes over each rollout.
    """

    target_kl: Number | None = traced(0.03, 0.0, optional=True)
    clip_eps: Number = traced(0.2, 0.0, INF)
    learning_rate: Number = traced(1.4e-3, 0.0)
    critic_learning_rate: Number | None = traced(3e-3, 0.0, optional=True)
    gae_lambda: Number = traced(0.925, 0.0, 1.0)
    actor_ema_rate: Number = traced(0.1, 0.0, 1.0)
    obs_clip: Number = traced(5.0, 0.0, INF)

    num_minibatches: int = static(4, 1)
    update_epochs: int = static(4, 1)
    num_steps: int = static(16, 1)
    stagger_episodes: bool = static(True)


def loss(params: PyTree, batch: Batch, nets: Networks, h: PPO) -> tuple[Scalar, Metrics]:
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
