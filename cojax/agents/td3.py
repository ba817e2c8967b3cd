"""Twin delayed deep deterministic policy gradient (Fujimoto et al. 2018, arXiv:1802.09477)."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from flax import struct

from cojax.agents import off_policy
from cojax.agents.algorithm import INF, leaf, static
from cojax.agents.off_policy_method import Learner, Minibatch, Networks, OffPolicyMethod


class TD3(struct.PyTreeNode):
    """Hyperparameters of TD3; those not listed mean what they do in ``sac.SAC``.

    Attributes:
        exploration_noise: std of the noise on actions, as a fraction of the half range.
        target_noise: std of the smoothing noise on target actions, the same unit.
        target_noise_clip: it is clipped to ± this, the same unit.
        policy_delay: gradient steps of the critics for one of the actor and the targets.
    """

    actor_learning_rate: Any = leaf(3e-4, 0.0)
    critic_learning_rate: Any = leaf(1e-3, 0.0)
    final_lr_fraction: Any = leaf(1.0, 0.0)
    gamma: Any = leaf(None, 0.0, 1.0)
    max_episode_steps: Any = leaf(None, 1.0, INF)
    polyak: Any = leaf(0.005, 0.0, 1.0)
    max_grad_norm: Any = leaf(100.0, 0.0, INF)
    adam_eps: Any = leaf(1e-8, 0.0)
    exploration_noise: Any = leaf(0.1, 0.0)
    target_noise: Any = leaf(0.2, 0.0)
    target_noise_clip: Any = leaf(0.5, 0.0, INF)
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
    num_critics: int = static(2, 1)
    policy_delay: int = static(2, 1)
    hidden: tuple[int, ...] = static((64, 64))
    activation: str = static("relu")
    normalize_observations: bool = static(True)
    normalize_actions: bool = static(True)
    normalize_rewards: bool = static(True)


def act(nets: Networks, actor: Any, obs: jax.Array) -> jax.Array:
    """u = tanh(actor(s)), shape (..., m)."""
    return jnp.tanh(nets.output(actor, obs))


def explore(nets: Networks, actor: Any, obs: jax.Array, key: jax.Array, h: Any) -> jax.Array:
    """Return the action with Gaussian noise, inside the box."""
    u = act(nets, actor, obs)
    return jnp.clip(u + h.exploration_noise * jax.random.normal(key, u.shape), -1.0, 1.0)


def target(learner: Learner, batch: Minibatch, nets: Networks, h: TD3) -> jax.Array:
    """y = r + γ (1 - terminated) min_i Q̄_i(s', clip(π̄(s') + clip(ε))), ε ~ N(0, target_noise²)."""
    rows = batch.rows
    u = act(nets, learner.targets["actor"], rows.next_obs)
    noise = jnp.clip(h.target_noise * batch.noise, -h.target_noise_clip, h.target_noise_clip)
    u = jnp.clip(u + noise, -1.0, 1.0)
    q = jnp.min(nets.q_values(learner.targets["critics"], rows.next_obs, u), axis=0)
    return rows.reward + batch.gamma * (1.0 - rows.terminated) * q


def actor_loss(
    actor: Any, learner: Learner, batch: Minibatch, nets: Networks, h: Any
) -> tuple[jax.Array, dict[str, jax.Array]]:
    """-E[Q_1(s, π(s))]."""
    u = act(nets, actor, batch.rows.obs)
    return -jnp.mean(nets.q_values(learner.params["critics"], batch.rows.obs, u, num=1)), {}


METHOD = OffPolicyMethod(outputs=1, explore=explore, target=target, actor_loss=actor_loss)
ALGORITHM = off_policy.make("td3", TD3, METHOD)
