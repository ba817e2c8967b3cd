"""Twin delayed deep deterministic policy gradient (Fujimoto et al. 2018, arXiv:1802.09477)."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from cojax.agents import off_policy
from cojax.agents.algorithm import Metrics, Scalar
from cojax.agents.hyperparameters import Number, OffPolicyHyperparameters
from cojax.agents.off_policy_method import (
    Learner,
    Minibatch,
    Networks,
    OffPolicyMethod,
    one_step_return,
)
from cojax.agents.settings import INF, static, traced
from cojax.agents.value_output import state_weight
from cojax.types import Array, Float, PRNGKeyArray, PyTree


class TD3(OffPolicyHyperparameters):
    """Hyperparameters of TD3.

    Attributes:
        exploration_noise: std of the noise on actions, in their unit.
        target_noise: std of the smoothing noise on target actions, the same unit.
        target_noise_clip: it is clipped to ± this, the same unit.
        num_critics: critics; the smallest counts in targets, the first for the actor.
        policy_delay: gradient steps of the critics for one of the actor and the targets.
    """

    exploration_noise: Number = traced(0.5, 0.0)
    target_noise: Number = traced(0.2, 0.0)
    target_noise_clip: Number = traced(0.5, 0.0, INF)

    num_critics: int = static(2, 1)
    policy_delay: int = static(2, 1)


def act(nets: Networks, actor: PyTree, obs: Float[Array, "*batch o"]) -> Float[Array, "*batch m"]:
    """u = tanh(unit · actor(s))/unit."""
    return nets.box.squash(nets.output(actor, obs))


def explore(
    nets: Networks, actor: PyTree, obs: Float[Array, "*batch o"], key: PRNGKeyArray, *, h: PyTree
) -> Float[Array, "*batch m"]:
    """Return the action with Gaussian noise, inside the box."""
    u = act(nets, actor, obs)
    return nets.box.inside(u + h.exploration_noise * jax.random.normal(key, u.shape))


def target(learner: Learner, batch: Minibatch, nets: Networks, h: TD3) -> Float[Array, " B"]:
    """y = r + γ (1 - terminated) min_i Q̄_i(s', clip(π̄(s') + clip(ε))), ε ~ N(0, target_noise²)."""
    rows = batch.rows
    u = act(nets, learner.targets["actor"], rows.next_obs)
    noise = jnp.clip(h.target_noise * batch.noise, -h.target_noise_clip, h.target_noise_clip)
    u = nets.box.inside(u + noise)
    q = jnp.min(nets.q_values(learner.targets["critics"], rows.next_obs, u), axis=0)
    return one_step_return(batch, q, h)


def actor_loss(
    actor: PyTree, learner: Learner, batch: Minibatch, nets: Networks, *, h: PyTree
) -> tuple[Scalar, Metrics]:
    """-E[w Q_1(s, π(s))], w = 1/√(1 + (κ Q_1)²) held constant."""
    u = act(nets, actor, batch.rows.obs)
    q = nets.q_values(learner.params["critics"], batch.rows.obs, u, num=1)
    return -jnp.mean(state_weight(q, nets.kappa) * q), {}


METHOD = OffPolicyMethod(outputs=1, explore=explore, target=target, actor_loss=actor_loss)
ALGORITHM = off_policy.make("td3", TD3, METHOD)
