"""PPO with a multiplier: the best return whose discounted cost stays within a budget.

    maximise E Σ γᵏ r_k  so that  J_d = E Σ γᵏ d_k <= D        d_k = info["cost"]

PPO on the reward (r - μ d)/(1 + μ), and between updates (Ray, Achiam and Amodei 2019, "Benchmarking
safe exploration in deep reinforcement learning"; with the logarithm of μ, which needs no scale)

    x = clip((Ĵ_d - D)/D, -1, 1)     m += rate · x     log μ = m + gain · x

An integral alone swings, since Ĵ_d follows the policy, and that follows μ; the term in proportion
damps it (Stooke, Achiam and Abbeel 2020, "Responsive safety in reinforcement learning by PID
Lagrangian methods").

Ĵ_d is measured. J_d is 1/(1-γ) times the mean of d over steps k that are drawn with probability
(1-γ) γᵏ, so it is the mean of means over classes of steps, those of equal 1 - γᵏ: running sums of
γᵏ d_k and of γᵏ in each, k counted from the start of an episode. An episode that is cut short, by
whatever limit, only leaves the later classes to others, or to the class before. One critic is that
of the sum of both. The steps of a rollout count alike, and early ones matter most: episodes of
about 1/(1-γ) steps (``max_episode_steps``) serve both ends.
"""

from __future__ import annotations

import dataclasses
from functools import partial

import jax
import jax.numpy as jnp

from cojax.agents import algorithm, on_policy, ppo
from cojax.agents.algorithm import Environment, Metrics
from cojax.agents.hyperparameters import Number
from cojax.agents.learner import Rollout
from cojax.agents.on_policy import OnPolicyState
from cojax.agents.ppo import PPO
from cojax.agents.settings import INF, traced
from cojax.errors import InputError
from cojax.types import Float, PRNGKeyArray, PyTree

CLASSES = 16  # of steps
COUNTED = 4096  # steps whose share of a class is counted; the last class has the rest
SMALLEST = 1e-6
LARGEST = 1e6


class PPOLagrangian(PPO):
    """Hyperparameters of PPO with a multiplier.

    Attributes:
        budget: D; None takes the environment's own.
        multiplier: μ at the start.
        multiplier_rate: how far m goes in an update at a violation of 100% or more, at the start;
            it is annealed as the learning rate is.
        multiplier_gain: how far log μ is from m at such a violation.
        cost_rate: weight of the newest batch in Ĵ_d.
    """

    budget: Number | None = traced(None, 0.0, optional=True)
    multiplier: Number = traced(1.0, SMALLEST, LARGEST)
    multiplier_rate: Number = traced(0.03, 0.0, INF)
    multiplier_gain: Number = traced(2.0, 0.0, INF)
    target_kl: Number | None = traced(0.015, 0.0, optional=True)
    episode_growth: Number = traced(0.0, 0.0)
    cost_rate: Number = traced(0.05, 0.0, 1.0)


class LagrangianState(OnPolicyState):
    """What the learner carries beside what PPO does.

    Attributes:
        multiplier: e^m.
        sums: running sums of γᵏ d_k and of γᵏ in each class.
        weight: γᵏ of the next step of each environment.
    """

    multiplier: Float[jax.Array, "*M"]
    sums: Float[jax.Array, "*M 2 classes"]
    weight: Float[jax.Array, "*M num_envs"]


def init(env: Environment, key: PRNGKeyArray, env_params: PyTree, h: PyTree) -> LagrangianState:
    """First state of a learner; raises InputError without a budget."""
    _budget(env_params, h)
    state = on_policy.init(env, key, env_params, h)
    fields: PyTree = {field.name: getattr(state, field.name) for field in dataclasses.fields(state)}
    fields |= {"multiplier": jnp.asarray(h.multiplier, jnp.float32)}
    fields |= {"sums": jnp.zeros((2, CLASSES)), "weight": jnp.ones(h.num_envs)}
    return algorithm.strong(LagrangianState(**fields))


def _budget(env_params: PyTree, h: PyTree) -> Number:
    """D; raises InputError where nobody says."""
    budget = getattr(env_params, "budget", None) if h.budget is None else h.budget
    if budget is None:
        raise InputError("budget: expected a number, or an environment with a budget of its own")
    return budget


def _by_class(x: Float[jax.Array, "k N"], weight: Float[jax.Array, " N"]) -> jax.Array:
    """Sums of x (k, N) over the steps of each class, by their γᵏ; (k, CLASSES)."""
    own = jnp.minimum((CLASSES * (1.0 - weight)).astype(jnp.int32), CLASSES - 1)
    member = (own[:, None] == jnp.arange(CLASSES)[None]).astype(x.dtype)
    return jnp.matmul(x, member, precision=jax.lax.Precision.HIGHEST)


def discounted_sum(sums: Float[jax.Array, "2 classes"], gamma: Number) -> Float[jax.Array, ""]:
    """Ĵ_d of the ``sums`` by class; one that was not met has the mean of that before it."""
    weights = jnp.power(gamma, jnp.arange(COUNTED, dtype=jnp.float32))
    share = (1.0 - gamma) * _by_class(weights[None], weights)[0]
    share = share.at[-1].add(1.0 - jnp.sum(share))
    met = sums[1] > SMALLEST
    mean = sums[0] / jnp.where(met, sums[1], 1.0)
    last = jax.lax.cummax(jnp.where(met, jnp.arange(CLASSES), 0))
    return jnp.sum(share * mean[last]) / (1.0 - gamma)


def adapt(
    state: LagrangianState, rollout: Rollout, env_params: PyTree, h: PyTree
) -> tuple[LagrangianState, Rollout, Metrics]:
    """Measure the cost of a ``rollout``, move μ, and give the rewards that PPO learns from."""
    assert rollout.told is not None
    cost, gamma = rollout.told["cost"], algorithm.discount(env_params, h)
    done = rollout.terminated | rollout.truncated

    def step(weight, row):
        d, end = row
        found = weight[None] * jnp.stack([d, jnp.ones_like(d)])  # (2, N)
        return jnp.where(end, 1.0, gamma * weight), _by_class(found, weight)

    weight, found = jax.lax.scan(step, state.weight, (cost, done))
    sums = state.sums + h.cost_rate * (jnp.sum(found, axis=0) - state.sums)
    measured, budget = discounted_sum(sums, gamma), _budget(env_params, h)
    excess = jnp.clip((measured - budget) / jnp.maximum(budget, SMALLEST), -1.0, 1.0)
    rate = state.clock.anneal(h.multiplier_rate, h.final_lr_fraction)
    steady = jnp.clip(state.multiplier * jnp.exp(rate * excess), SMALLEST, LARGEST)
    multiplier = jnp.clip(steady * jnp.exp(h.multiplier_gain * excess), SMALLEST, LARGEST)
    reward = (rollout.reward - multiplier * cost) / (1.0 + multiplier)
    state = state.replace(multiplier=steady, sums=sums, weight=weight)
    return state, rollout._replace(reward=reward), {"multiplier": multiplier, "cost": measured}


ADAPTED = {"adapt": adapt, "tell": ("cost",)}
ALGORITHM = dataclasses.replace(
    ppo.ALGORITHM,
    name="ppo_lagrangian",
    hyperparameters=PPOLagrangian,
    init=init,
    update=partial(on_policy.update, loss=ppo.loss, **ADAPTED),
    actor_gradients=partial(on_policy.actor_gradients, loss=ppo.loss, **ADAPTED),
    constrained=True,
)
