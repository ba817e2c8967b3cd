"""CrossQ: critics with batch normalisation and no target networks (Bhatt et al. 2024,
arXiv:1902.05605, ICLR).

Targets are what the critic itself says of the next states. Both halves, (s, a) and (s', a'), go
through it in one batch, so that its statistics are those of their mixture. Without the
normalisation such a critic runs away; with it no slow copy is needed.

Of the paper's learner four things are others here. The first two were measured (see
``benchmarks/RESULTS.md``):

* One critic, and not the smaller of two. Where costs are discounted by nearly 1, the smaller is too
  low by the two's disagreement at every step. Nothing that is slow holds that back, and it adds up.
* The actor is deterministic, as TD3's, and not SAC's.
* The actor moves at every gradient step, and has no normalisation of its own.
* Critics are as wide as the actor, and learn once in eight steps of an environment.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from cojax.agents import off_policy
from cojax.agents.algorithm import Scalar
from cojax.agents.hyperparameters import Number, OffPolicyHyperparameters
from cojax.agents.off_policy_method import (
    Learner,
    Minibatch,
    Networks,
    OffPolicyMethod,
    one_step_return,
    weighted_error,
)
from cojax.agents.settings import static, traced
from cojax.agents.td3 import act, actor_loss, explore
from cojax.types import Array, Float, PyTree


class CrossQ(OffPolicyHyperparameters):
    """Hyperparameters of CrossQ. There are no target networks for ``polyak`` to move.

    Attributes:
        exploration_noise: std of the noise on actions, in their unit.
        adam_beta1: decay of the mean of gradients in Adam.
        policy_delay: gradient steps of the critic for one of the actor.
    """

    exploration_noise: Number = traced(0.5, 0.0)
    adam_beta1: Number = traced(0.5, 0.0, 0.999)

    policy_delay: int = static(1, 1)

    # Not a hyperparameter: one critic.
    num_critics = 1


def joint(
    critics: PyTree, learner: Learner, batch: Minibatch, nets: Networks, *, h: CrossQ
) -> tuple[Float[Array, " critics B"], Float[Array, " B"], tuple[PyTree, ...]]:
    """Q(s, a) and y = r + γ (1 - terminated) Q(s', π(s')) by one pass through the critics, and
    their running averages after it; y is a constant to gradients.
    """
    rows = batch.rows
    u = act(nets, learner.params["actor"], rows.next_obs)
    values, statistics = nets.training_q_values(
        critics, jnp.concatenate([rows.obs, rows.next_obs]), jnp.concatenate([rows.u, u])
    )
    q, following = jnp.split(values, 2, axis=-1)
    return q, jax.lax.stop_gradient(one_step_return(batch, following[0], h)), statistics


def target(learner: Learner, batch: Minibatch, nets: Networks, h: CrossQ) -> Float[Array, " B"]:
    """y = r + γ (1 - terminated) Q(s', π(s')), as the joint pass has it."""
    return joint(learner.params["critics"], learner, batch, nets, h=h)[1]


def critic_loss(
    critics: PyTree, learner: Learner, batch: Minibatch, nets: Networks, *, h: CrossQ
) -> tuple[Scalar, tuple[Scalar, tuple[PyTree, ...]]]:
    """E[w (Q(s, a) - y)²], w = 1/(1 + (κ Q)²) held constant, of the joint pass."""
    q, y, statistics = joint(critics, learner, batch, nets, h=h)
    return weighted_error(q, y, nets.kappa), (jnp.mean(q), statistics)


METHOD = OffPolicyMethod(
    outputs=1,
    explore=explore,
    target=target,
    actor_loss=actor_loss,
    targets=(),
    critic_loss=critic_loss,
)
ALGORITHM = off_policy.make("crossq", CrossQ, METHOD)
