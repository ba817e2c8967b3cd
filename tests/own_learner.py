"""REINFORCE from nothing but the contract: a linear Gaussian policy and the batch's mean return."""

import jax
import jax.numpy as jnp
from flax import struct

from cojax.agents.algorithm import Algorithm, Clock, discount, reset_all
from cojax.agents.settings import static, traced


class Reinforce(struct.PyTreeNode):
    """Hyperparameters, each with a default and its bounds."""

    gamma: float | None = traced(None, 0.0, 1.0)
    learning_rate: float = traced(0.01, 0.0)
    std: float = traced(0.1, 1e-3)
    num_envs: int = static(32, 1)
    num_steps: int = static(64, 1)


class State(struct.PyTreeNode):
    """What is carried from one update to the next; ``clock`` and ``failed`` are asked for."""

    clock: Clock
    key: jax.Array
    actor: jax.Array
    failed: jax.Array


def init(env, key, env_params, h):
    m, d = env.action_space(env_params).shape[0], env.observation_space(env_params).shape[0]
    return State(Clock.create(), key, jnp.zeros((m, d)), jnp.zeros((), bool))


def act(params, obs, key):
    return jnp.clip(params["actor"] @ obs, params["low"], params["high"])


def policy_params(env, state, env_params, h):
    box = env.action_space(env_params)
    low, high = jnp.asarray(box.low, jnp.float32), jnp.asarray(box.high, jnp.float32)
    return {"actor": state.actor, "low": low, "high": high}


def gradient(env, actor, env_params, h, *, key):
    """Of -E[Σ_k γᵏ log π(a_k|s_k) (G_k - mean G_k)]; and rewards (T, N)."""
    start, *keys = jax.random.split(key, h.num_steps + 1)
    obs, env_state = reset_all(env, start, env_params, h.num_envs)

    def step(carry, key):
        obs, env_state = carry
        noise, *keys = jax.random.split(key, h.num_envs + 1)
        eps = jax.random.normal(noise, (h.num_envs, actor.shape[0]))
        action = obs @ actor.T + h.std * eps
        after, env_state, reward, *_ = jax.vmap(env.step, (0, 0, 0, None))(
            jnp.stack(keys), env_state, action, env_params
        )
        return (after, env_state), (obs, eps, reward)

    _, (obs, eps, reward) = jax.lax.scan(step, (obs, env_state), jnp.stack(keys))
    gamma = discount(env_params, h)
    _, to_go = jax.lax.scan(
        lambda g, r: (r + gamma * g, r + gamma * g), jnp.zeros(h.num_envs), reward, reverse=True
    )
    weight = (gamma ** jnp.arange(h.num_steps, dtype=jnp.float32))[:, None]
    advantage = weight * (to_go - to_go.mean(axis=1, keepdims=True)) / (1e-6 + to_go.std())
    return -jnp.einsum("tn,tnm,tno->mo", advantage, eps, obs) / (h.std * h.num_envs), reward


def update(env, state, env_params, h):
    key, now = jax.random.split(state.key)
    slope, reward = gradient(env, state.actor, env_params, h, key=now)
    actor = state.actor - h.learning_rate * slope / (1e-6 + jnp.linalg.norm(slope))
    clock = state.clock.replace(update=state.clock.update + 1)
    failed = state.failed | ~jnp.isfinite(actor).all()
    episodes = jnp.float32(h.num_envs)
    metrics = {
        "episode_return": reward.sum(),
        "episode_length": episodes * h.num_steps,
        "episodes": episodes,
        "grad_norm": jnp.linalg.norm(slope),
    }
    return State(clock, key, actor, failed), metrics


def actor_gradients(env, state, env_params, h, *, key, num):
    def one(key):
        return gradient(env, state.actor, env_params, h, key=key)[0]

    return jax.lax.map(one, jax.random.split(key, num))


def nothing_to_check(h):
    del h


ALGORITHM = Algorithm(
    name="reinforce",
    hyperparameters=Reinforce,
    init=init,
    update=update,
    policy_params=policy_params,
    policy_apply=lambda env, env_params, h: act,
    steps_per_update=lambda h: h.num_envs * h.num_steps,
    check=nothing_to_check,
    actor=lambda state: state.actor,
    actor_gradients=actor_gradients,
)
