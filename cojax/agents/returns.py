"""Advantages and λ-returns that tell a terminal state from a time limit."""

from __future__ import annotations

import chex
import jax
import jax.numpy as jnp

from cojax.agents.algorithm import Number, Scalar
from cojax.types import Array, Bool, Float


def bounds(
    rewards: Float[Array, " T *N"], gamma: Number, on: Bool[Array, ""] | bool = True
) -> tuple[Scalar, Scalar]:
    """Between min(r, 0)/(1-γ) and max(r, 0)/(1-γ) is every value, of rewards that these bound.

    Where a learner cuts episodes short, nothing has taught its critic what the states after them
    are worth. Without bounds where not ``on``.
    """
    rewards = jax.lax.stop_gradient(rewards)
    low, high = jnp.minimum(jnp.min(rewards), 0.0), jnp.maximum(jnp.max(rewards), 0.0)
    rest = jnp.maximum(1.0 - gamma, 1e-6)
    return jnp.where(on, low / rest, -jnp.inf), jnp.where(on, high / rest, jnp.inf)


def gae(
    rewards: Float[Array, " T *N"],
    values: Float[Array, " T *N"],
    final_values: Float[Array, " T *N"],
    *,
    terminated: Bool[Array, " T *N"],
    truncated: Bool[Array, " T *N"],
    gamma: Number,
    gae_lambda: Number,
) -> Float[Array, " T *N"]:
    """Generalised advantage estimates of steps 0 ≤ t < T (Schulman et al. 2016, arXiv:1506.02438).

        δ_t = r_t + γ (1 - terminated_t) V(s'_t) - V(s_t)
        A_t = δ_t + γλ (1 - terminated_t)(1 - truncated_t) A_{t+1},      A_T = 0

    A terminal state is worth 0; a time limit only ends the sum, and the state it cut at, s'_t,
    keeps its value. A_t + V(s_t) is the λ-return.

    Args:
        rewards: r_t.
        values: V(s_t).
        final_values: V(s'_t) where s'_t is ``info["final_observation"]``, the state *before* any
            reset.
        terminated: flags of terminal states.
        truncated: flags of time limits.
        gamma: discount γ.
        gae_lambda: trace decay λ.

    Returns A_t.
    """
    chex.assert_equal_shape((rewards, values, final_values, terminated, truncated))
    delta = rewards + gamma * jnp.where(terminated, 0.0, final_values) - values
    decay = gamma * gae_lambda * (1.0 - (terminated | truncated).astype(rewards.dtype))
    return _backward(delta, decay)


def exponential_gae(
    rewards: Float[Array, " T *N"],
    values: Float[Array, " T *N"],
    final_values: Float[Array, " T *N"],
    *,
    terminated: Bool[Array, " T *N"],
    truncated: Bool[Array, " T *N"],
    gamma: Number,
    gae_lambda: Number,
    theta: Number,
    most: Number,
) -> Float[Array, " T *N"]:
    """Advantages where costs -r count by the exponential of θ times their sum.

        A_t = γ (1 - x_t)/θ + γλ (1 - terminated_t)(1 - truncated_t) x_t A_{t+1}

    with x_t = exp(-θδ_t/γ) and δ_t as in :func:`gae`, which this is at θ = 0. The mean of A_t is 0
    where -V(s) is the certainty equivalent (1/θ) log E exp(θ Σ -r), at γ = 1 for every λ: 1 - θ A_t
    is then the same mixture of exponentials of n-step returns as a λ-return is of those returns.
    With γ < 1 it is so for λ = 0 and the recursion V = -c - (γ/θ) log E exp(-θ V(s')). So
    A_t + V(s_t) is what least squares fits that V to.

    Args:
        rewards: r_t.
        values: V(s_t).
        final_values: V(s'_t), as in :func:`gae`.
        terminated: flags of terminal states.
        truncated: flags of time limits.
        gamma: γ.
        gae_lambda: λ.
        theta: θ, in the inverse of the unit of the rewards.
        most: logarithms of x_t and of 1 - θ A_t/γ are clipped to ± this, while values are far off.

    Returns A_t.
    """
    chex.assert_equal_shape((rewards, values, final_values, terminated, truncated))
    delta = rewards + gamma * jnp.where(terminated, 0.0, final_values) - values
    going_on = 1.0 - (terminated | truncated).astype(rewards.dtype)
    averse = theta != 0.0
    scale = jnp.where(averse, theta, 1.0) / gamma
    ends = jnp.where(averse, -jnp.expm1(jnp.stack([-most, most])) / scale, jnp.inf)
    ends = (jnp.where(averse, ends.min(), -jnp.inf), ends.max())
    exponent = jnp.clip(-scale * delta, -most, most)
    first = jnp.where(averse, -jnp.expm1(exponent) / scale, delta)
    decay = gamma * gae_lambda * going_on * jnp.where(averse, jnp.exp(exponent), 1.0)
    return _backward(first, decay, ends)


def _backward(
    delta: Float[Array, " T *N"],
    decay: Float[Array, " T *N"],
    ends: tuple[Scalar, Scalar] | None = None,
) -> Float[Array, " T *N"]:
    """A_t = δ_t + decay_t A_{t+1}, A_T = 0, each between the ``ends``."""

    def backward(advantage, step):
        delta_t, decay_t = step
        advantage = delta_t + decay_t * advantage
        advantage = advantage if ends is None else jnp.clip(advantage, *ends)
        return advantage, advantage

    _, advantages = jax.lax.scan(
        backward, jnp.zeros_like(delta[0]), (delta, decay), reverse=True, unroll=8
    )
    return advantages
