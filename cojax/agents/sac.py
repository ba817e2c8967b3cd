"""Soft actor-critic (Haarnoja et al. 2018, arXiv:1812.05905)."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from cojax.agents import off_policy
from cojax.agents.algorithm import Metrics, Scalar
from cojax.agents.distributions import tanh_gaussian_log_prob
from cojax.agents.hyperparameters import Number, OffPolicyHyperparameters
from cojax.agents.off_policy_method import (
    Learner,
    Minibatch,
    Networks,
    OffPolicyMethod,
    one_step_return,
)
from cojax.agents.settings import static, traced
from cojax.agents.value_output import state_weight
from cojax.types import Array, Float, PRNGKeyArray, PyTree


class SAC(OffPolicyHyperparameters):
    """Hyperparameters of SAC.

    Attributes:
        alpha_learning_rate: Adam's step for the log temperature.
        alpha_init: first temperature, in units of the scaled reward, where it is learned.
        temperature: the temperature where it is not learned, in units of the raw reward.
        target_entropy: entropy per action dimension that the temperature steers to, in nats.
        log_std_init: log standard deviation before tanh at the start.
        log_std_min: lower limit of it.
        log_std_max: upper limit of it.
        learn_temperature: whether the temperature is learned.
        num_critics: critics; the smallest counts.
        policy_delay: gradient steps of the critics for one of the actor and the targets.
    """

    alpha_learning_rate: Number = traced(1e-3, 0.0)
    alpha_init: Number = traced(0.01, 0.0)
    temperature: Number = traced(0.01, 0.0)
    target_entropy: Number = traced(-1.0)
    log_std_init: Number = traced(-1.0, -20.0, 2.0)
    log_std_min: Number = traced(-10.0, -20.0, 2.0)
    log_std_max: Number = traced(2.0, -20.0, 5.0)

    learn_temperature: bool = static(True)
    num_critics: int = static(2, 1)
    policy_delay: int = static(1, 1)


def distribution(
    nets: Networks, actor: PyTree, obs: Float[Array, "*batch o"], h: SAC
) -> tuple[Float[Array, "*batch m"], Float[Array, "*batch m"]]:
    """Mean and log standard deviation before tanh."""
    mean, log_std = jnp.split(nets.output(actor, obs), 2, axis=-1)
    return mean, jnp.clip(log_std + h.log_std_init, h.log_std_min, h.log_std_max)


def draw(
    nets: Networks,
    actor: PyTree,
    obs: Float[Array, "*batch o"],
    noise: Float[Array, "*batch m"],
    *,
    h: SAC,
) -> tuple[Float[Array, "*batch m"], Float[Array, "*batch"]]:
    """Action u = tanh(x), x = μ + σ · noise, and its log-density, from x itself."""
    mean, log_std = distribution(nets, actor, obs, h)
    x = mean + jnp.exp(log_std) * noise
    log_prob = tanh_gaussian_log_prob(
        x, mean, log_std, nets.box.half_range() / nets.box.unit, unit=nets.box.unit
    )
    return nets.box.squash(x), log_prob


def explore(
    nets: Networks, actor: PyTree, obs: Float[Array, "*batch o"], key: PRNGKeyArray, *, h: SAC
) -> Float[Array, "*batch m"]:
    """Return a sample of the policy."""
    noise = jax.random.normal(key, (*obs.shape[:-1], *nets.box.low.shape))
    return draw(nets, actor, obs, noise, h=h)[0]


def alpha(learner: Learner, batch: Minibatch, h: SAC) -> Scalar:
    """Temperature in units of the learner's rewards."""
    if h.learn_temperature:
        return jnp.exp(learner.params["log_alpha"])
    return h.temperature * batch.reward_factor


def target(learner: Learner, batch: Minibatch, nets: Networks, h: SAC) -> Float[Array, " B"]:
    """y = r + γ (1 - terminated) (min_i Q̄_i(s', u') - α log π(u'|s')): the soft Q."""
    rows = batch.rows
    u, log_prob = draw(nets, learner.params["actor"], rows.next_obs, batch.noise, h=h)
    q = jnp.min(nets.q_values(learner.targets["critics"], rows.next_obs, u), axis=0)
    return one_step_return(batch, q, h, bonus=-alpha(learner, batch, h) * log_prob)


def actor_loss(
    actor: PyTree, learner: Learner, batch: Minibatch, nets: Networks, *, h: SAC
) -> tuple[Scalar, Metrics]:
    """E[w (α log π(u|s) - min_i Q_i(s, u))], w = 1/√(1 + (κ Q)²) held constant."""
    temperature = alpha(learner, batch, h)
    u, log_prob = draw(nets, actor, batch.rows.obs, batch.noise, h=h)
    q = jnp.min(nets.q_values(learner.params["critics"], batch.rows.obs, u), axis=0)
    metrics = {"entropy": -jnp.mean(log_prob), "alpha": temperature}
    weight = state_weight(q, nets.kappa)
    return jnp.mean(weight * (temperature * log_prob - q)), metrics


def alpha_loss(log_alpha: Scalar, metrics: Metrics, nets: Networks, h: SAC) -> Scalar:
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
