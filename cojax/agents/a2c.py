"""Advantage actor-critic, synchronous (Mnih et al. 2016, arXiv:1602.01783)."""

from __future__ import annotations

import jax.numpy as jnp

from cojax.agents import on_policy
from cojax.agents.algorithm import Metrics, Scalar
from cojax.agents.distributions import gaussian_entropy, gaussian_log_prob
from cojax.agents.hyperparameters import Number, OnPolicyHyperparameters
from cojax.agents.networks import forward
from cojax.agents.on_policy import Batch, Networks, standardize
from cojax.agents.settings import static, traced
from cojax.types import PyTree


class A2C(OnPolicyHyperparameters):
    """Hyperparameters of A2C; there is one gradient step per rollout, on all of it."""

    learning_rate: Number = traced(1e-3, 0.0)
    popart_rate: Number = traced(0.02, 0.0, 1.0)

    num_steps: int = static(8, 1)

    # Not hyperparameters: what the engine needs to know about an on-policy update.
    num_minibatches = 1
    update_epochs = 1
    target_kl = None


def loss(params: PyTree, batch: Batch, nets: Networks, h: A2C) -> tuple[Scalar, Metrics]:
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
