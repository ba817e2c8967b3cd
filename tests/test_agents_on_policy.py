"""Advantages, PPO's loss, and what becomes of its actor and its rate."""

from __future__ import annotations

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from agents_toy import PLAIN_PPO, Toy, ToyParams

from cojax.agents import distributions, networks, on_policy, ppo, returns, train
from cojax.agents.algorithm import strong


def numpy_gae(r, v, w, terminated, truncated, gamma, lam):
    """The documented recursion, step by step."""
    advantages, later = np.zeros_like(r), np.zeros_like(r[0])
    for t in reversed(range(len(r))):
        for i in range(r.shape[1]):
            next_value = 0.0 if terminated[t, i] else w[t, i]
            delta = r[t, i] + gamma * next_value - v[t, i]
            trace = 0.0 if terminated[t, i] or truncated[t, i] else later[i]
            advantages[t, i] = later[i] = delta + gamma * lam * trace
    return advantages


def test_gae_against_a_loop_with_mixed_flags():
    rng = np.random.default_rng(0)
    r, v, w = rng.normal(size=(3, 37, 5)).astype(np.float32)
    terminated, truncated = rng.random((2, 37, 5)) < 0.2
    assert (terminated & truncated).any()
    assert (truncated & ~terminated).any()
    ours = returns.gae(
        r, v, w, terminated=terminated, truncated=truncated, gamma=0.97, gae_lambda=0.9
    )
    want = numpy_gae(r, v, w, terminated, truncated, 0.97, 0.9)
    np.testing.assert_allclose(ours, want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("moved", [0.0, 0.3])
def test_ppo_loss_is_the_clipped_surrogate_and_so_is_its_gradient(moved):
    """Beside the textbook's minimum of two products, on both sides of the clip and at ratio 1."""
    h = ppo.PPO(ent_coef=0.01)
    nets = on_policy.Networks(networks.MLP((8,), 2), networks.MLP((8,), 1))
    keys = jax.random.split(jax.random.key(0), 7)
    obs, u = jax.random.normal(keys[0], (64, 3)), jax.random.normal(keys[1], (64, 2))
    params = {
        "actor": nets.actor.init(keys[2], obs[0]),
        "critic": nets.critic.init(keys[3], obs[0]),
        "log_std": jnp.array([0.1, -0.2]),
    }

    def log_prob(params):
        mean = networks.forward(nets.actor, params["actor"], obs)
        return distributions.gaussian_log_prob(u, mean, params["log_std"])

    old = log_prob(params) + moved * jax.random.normal(keys[4], (64,))
    advantage, target = jax.random.normal(keys[5], (64,)), jax.random.normal(keys[6], (64,))
    batch = on_policy.Batch(obs, u, old, advantage, target)

    def textbook(params):
        ratio = jnp.exp(log_prob(params) - old)
        a = (advantage - advantage.mean()) / advantage.std()
        surrogate = jnp.minimum(ratio * a, jnp.clip(ratio, 0.8, 1.2) * a)
        error = networks.forward(nets.critic, params["critic"], obs)[:, 0] - target
        entropy = jnp.sum(params["log_std"] + 0.5 * jnp.log(2.0 * jnp.pi * jnp.e))
        return -surrogate.mean() + 0.5 * jnp.mean(error**2) - 0.01 * entropy

    (value, metrics), grads = jax.value_and_grad(ppo.loss, has_aux=True)(params, batch, nets, h)
    expected, expected_grads = jax.value_and_grad(textbook)(params)
    np.testing.assert_allclose(value, expected, rtol=1e-5)
    chex.assert_trees_all_close(grads, expected_grads, rtol=1e-4, atol=1e-6)
    log_ratio = np.asarray(log_prob(params) - old, float)
    kl = np.mean(np.expm1(log_ratio) - log_ratio)
    np.testing.assert_allclose(metrics["approx_kl"], kl, rtol=1e-3, atol=1e-6)
    clipped = np.mean(np.abs(np.expm1(log_ratio)) > 0.2)
    assert metrics["clip_fraction"] == clipped
    assert (clipped > 0.2) == (moved > 0.0)


def policy_of(**hyperparameters):
    """A short PPO run on the toy: its state and what ``policy_params`` gives."""
    h = PLAIN_PPO | {"num_envs": 4, "num_steps": 8, "hidden": (8,)}
    h |= {"num_minibatches": 2, "update_epochs": 4}
    run = train(
        "ppo",
        strong(ToyParams()),
        jax.random.key(0),
        env=Toy(),
        hyperparameters=h | hyperparameters,
        num_seeds=None,
        total_timesteps=640,
        eval_every=640,
        batching="loop",
    )
    return run.states[0], run


def test_the_policy_is_the_average_of_the_actors():
    newest, _ = policy_of()
    for a, b in zip(
        *(jax.tree.leaves(x) for x in (newest.average, newest.params["actor"])), strict=False
    ):
        np.testing.assert_array_equal(a, b)
    averaged, run = policy_of(actor_ema_rate=0.25)
    np.testing.assert_array_equal(
        averaged.params["actor"]["params"]["head"]["kernel"],
        newest.params["actor"]["params"]["head"]["kernel"],
    )
    kernel = averaged.average["params"]["head"]["kernel"]
    assert float(jnp.abs(kernel - averaged.params["actor"]["params"]["head"]["kernel"]).max()) > 0
    assert any(np.array_equal(kernel, x) for x in jax.tree.leaves(run.policy.params))


def test_a_critic_of_its_own_rate_is_not_slowed_by_the_divergence_target():
    """A target that stops the actor leaves the critic's steps, and ends with the schedule."""
    stopped = {"learning_rate": 1e-9, "target_kl": None, "final_lr_fraction": 1.0}
    both, _ = policy_of(**stopped)
    own, _ = policy_of(**stopped, critic_learning_rate=3e-3)
    moved = jax.tree.map(lambda a, b: np.max(np.abs(a - b)), both.params, own.params)
    assert max(jax.tree.leaves(moved["actor"])) < 1e-6
    assert max(jax.tree.leaves(moved["critic"])) > 1e-3


def test_a_divergence_target_is_kept():
    """Too large a rate is brought down, too small a one up; without a target nothing moves."""
    loose = {"learning_rate": 0.03, "final_lr_fraction": 1.0, "log_std_init": -2.0}
    _, free = policy_of(**loose)
    held_state, held = policy_of(**loose, target_kl=0.01)
    kl = {"free": free.metrics["approx_kl"][-1], "held": held.metrics["approx_kl"][-1]}
    assert kl["held"] < 0.5 * kl["free"], kl
    assert float(held_state.rate_factor) < 0.8
    slow_state, _ = policy_of(**(loose | {"learning_rate": 1e-6}), target_kl=0.01)
    assert float(slow_state.rate_factor) > 2.0
