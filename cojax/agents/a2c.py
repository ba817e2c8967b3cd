"""Advantage actor-critic, synchronous (Mnih et al. 2016, arXiv:1602.01783)."""

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


class A2C(struct.PyTreeNode):
    """Hyperparameters of A2C, with the meanings they have in ``ppo.PPO``.

    There is one gradient step per rollout, on all of it.
    """

    learning_rate: Any = leaf(1e-3, 0.0)
    final_lr_fraction: Any = leaf(0.0, 0.0)
    gamma: Any = leaf(None, 0.0, 1.0)
    max_episode_steps: Any = leaf(None, 1.0, INF)
    gae_lambda: Any = leaf(0.95, 0.0, 1.0)
    ent_coef: Any = leaf(0.0)
    vf_coef: Any = leaf(0.5, 0.0)
    max_grad_norm: Any = leaf(0.5, 0.0, INF)
    adam_eps: Any = leaf(1e-5, 0.0)
    log_std_init: Any = leaf(-2.0, -20.0, 5.0)
    reward_scale: Any = leaf(1.0, 0.0)
    obs_clip: Any = leaf(10.0, 0.0, INF)
    average_rate: Any = leaf(1.0, 0.0, 1.0)
    advantage_clip: Any = leaf(10.0, 0.0, INF)
    value_rate: Any = leaf(0.02, 0.0, 1.0)

    num_envs: int = static(32, 1)
    num_steps: int = static(8, 1)
    hidden: tuple[int, ...] = static((64, 64))
    activation: str = static("tanh")
    random_phase: bool = static(False)
    normalize_observations: bool = static(True)
    normalize_rewards: bool = static(False)
    normalize_values: bool = static(True)

    # Not hyperparameters: what the engine needs to know about an on-policy update.
    num_minibatches = 1
    update_epochs = 1
    target_kl = None


def loss(
    params: Any, batch: Batch, nets: Networks, h: A2C
) -> tuple[jax.Array, dict[str, jax.Array]]:
    """L = -E[A log π(u|s)] + c_v E[(V(s) - G)²] - c_e H, with A standardised over the batch."""
    mean, log_std = forward(nets.actor, params["actor"], batch.obs), params["log_std"]
    advantage = standardize(batch.advantage, h.advantage_clip)
    policy_loss = -jnp.mean(advantage * gaussian_log_prob(batch.u, mean, log_std))
    values = forward(nets.critic, params["critic"], batch.obs)[..., 0]
    value_loss = jnp.mean((values - batch.target) ** 2)
    entropy = gaussian_entropy(log_std)
    total = policy_loss + h.vf_coef * value_loss - h.ent_coef * entropy
    metrics = {"policy_loss": policy_loss, "value_loss": value_loss, "entropy": entropy}
    return total, metrics


ALGORITHM = on_policy.make("a2c", A2C, loss)
