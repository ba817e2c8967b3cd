"""Deep deterministic policy gradient (Lillicrap et al. 2016, arXiv:1509.02971)."""

from __future__ import annotations

from cojax.agents import off_policy
from cojax.agents.hyperparameters import Number, OffPolicyHyperparameters
from cojax.agents.off_policy_method import (
    Learner,
    Minibatch,
    Networks,
    OffPolicyMethod,
    one_step_return,
)
from cojax.agents.settings import traced
from cojax.agents.td3 import act, actor_loss, explore
from cojax.types import Array, Float


class DDPG(OffPolicyHyperparameters):
    """Hyperparameters of DDPG.

    Attributes:
        exploration_noise: std of the noise on actions, in their unit.
    """

    exploration_noise: Number = traced(0.5, 0.0)

    # Not hyperparameters: one critic, and an actor that moves at every gradient step.
    num_critics = 1
    policy_delay = 1


def target(learner: Learner, batch: Minibatch, nets: Networks, h: DDPG) -> Float[Array, " B"]:
    """y = r + γ (1 - terminated) Q̄(s', π̄(s'))."""
    rows = batch.rows
    u = act(nets, learner.targets["actor"], rows.next_obs)
    q = nets.q_values(learner.targets["critics"], rows.next_obs, u)[0]
    return one_step_return(batch, q, h)


METHOD = OffPolicyMethod(outputs=1, explore=explore, target=target, actor_loss=actor_loss)
ALGORITHM = off_policy.make("ddpg", DDPG, METHOD)
