"""Deep deterministic policy gradient (Lillicrap et al. 2016, arXiv:1509.02971)."""

from __future__ import annotations

from typing import Any

import jax
from flax import struct

from cojax.agents import off_policy
from cojax.agents.algorithm import INF, leaf, static
from cojax.agents.off_policy_method import Learner, Minibatch, Networks, OffPolicyMethod
from cojax.agents.td3 import act, actor_loss, explore


class DDPG(struct.PyTreeNode):
    """Hyperparameters of DDPG, with the meanings they have in ``td3.TD3`` and ``sac.SAC``."""

    actor_learning_rate: Any = leaf(3e-4, 0.0)
    critic_learning_rate: Any = leaf(1e-3, 0.0)
    final_lr_fraction: Any = leaf(1.0, 0.0)
    gamma: Any = leaf(None, 0.0, 1.0)
    max_episode_steps: Any = leaf(None, 1.0, INF)
    polyak: Any = leaf(0.005, 0.0, 1.0)
    max_grad_norm: Any = leaf(100.0, 0.0, INF)
    adam_eps: Any = leaf(1e-8, 0.0)
    exploration_noise: Any = leaf(0.1, 0.0)
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
    hidden: tuple[int, ...] = static((64, 64))
    activation: str = static("relu")
    normalize_observations: bool = static(True)
    normalize_actions: bool = static(True)
    normalize_rewards: bool = static(True)

    # Not hyperparameters: one critic, and an actor that moves at every gradient step.
    num_critics = 1
    policy_delay = 1


def target(learner: Learner, batch: Minibatch, nets: Networks, h: DDPG) -> jax.Array:
    """y = r + γ (1 - terminated) Q̄(s', π̄(s')), shape (B,)."""
    rows = batch.rows
    u = act(nets, learner.targets["actor"], rows.next_obs)
    q = nets.q_values(learner.targets["critics"], rows.next_obs, u)[0]
    return rows.reward + batch.gamma * (1.0 - rows.terminated) * q


METHOD = OffPolicyMethod(outputs=1, explore=explore, target=target, actor_loss=actor_loss)
ALGORITHM = off_policy.make("ddpg", DDPG, METHOD)
