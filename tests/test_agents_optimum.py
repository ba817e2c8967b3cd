"""Learners against the optimum of cojax's own systems.

With the policy held at π*, critics must become V* and Q*, whatever the time limit of the episodes
they see. SAC at a fixed temperature must become the soft optimum, N(π*, (α/2) B⁻¹) where B is
constant. All of it is slow; the same on a toy of known values runs always, in
``test_agents_training`` and ``test_agents_off_policy``.
"""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import pytest
from agents_toy import relative

import cojax
from cojax.agents import ddpg, off_policy, on_policy, replay, sac, td3, train

FIXTURE = "double-integrator"
GAIN = 0.03
METHODS = {"sac": sac.METHOD, "td3": td3.METHOD, "ddpg": ddpg.METHOD}


class AtOptimum:
    """The system with actions counted from π*(s), in units of ``GAIN``: a = π*(s) + GAIN · u.

    A learner whose mean stays near 0 follows π*, without being told what it is. The unit is small:
    an actor's first outputs are not exactly 0, and a critic's error at u = 0, which no sample of
    the noise is at, is multiplied by 1/(1-γ). ``faulty`` reports time limits as terminal states.
    """

    def __init__(self, faulty: bool):
        self.env, _ = cojax.make(FIXTURE)
        self.faulty, self.name, self.reset = faulty, "AtOptimum", self.env.reset
        self.action_space = self.env.action_space
        self.observation_space = self.env.observation_space

    def step(self, key, state, action, params):
        a = params.system.optimum(state.s).action + GAIN * action
        obs, state, reward, terminated, truncated, info = self.env.step(key, state, a, params)
        if self.faulty:
            terminated, truncated = terminated | truncated, jnp.zeros_like(truncated)
        return obs, state, reward, terminated, truncated, info


@functools.cache
def environment(faulty):
    return AtOptimum(faulty)


def trained(name, key, env, params, hyperparameters, steps):
    """Hyperparameters and last state of one learner."""
    run = train(
        name,
        params,
        jax.random.key(key),
        env=env,
        hyperparameters=hyperparameters,
        num_seeds=None,
        total_timesteps=steps,
        eval_every=steps,
        batching="loop",
    )
    return run.hyperparameters, run.states[0]


def held(name, key, horizon, faulty, hyperparameters, steps):
    """A learner under π* in episodes of ``horizon`` steps: (environment, parameters, h, state).

    Episodes start around 0. If they came from one side, as the fixture's do, the last states of
    short ones would be at the edge of what a critic has seen, and worth what it makes up there.
    """
    env, params = environment(faulty), cojax.make(FIXTURE)[1]
    start = params.initial_state
    start = start.replace(mean=jnp.zeros_like(start.mean), std=0.5 * start.std)
    params = params.replace(max_steps_in_episode=jnp.int32(horizon), initial_state=start)
    return env, params, *trained(name, key, env, params, hyperparameters, steps)


# Advantages are clipped to 0, so only the critic learns. A time limit of 16 steps magnifies an
# error of its shape tenfold: states near the limit are worth what the critic says of the next.
ON_POLICY = {
    "hidden": (64, 64),
    "activation": "silu",
    "max_grad_norm": 1e4,  # clipping biases a mean towards the median of skewed targets
    "advantage_clip": 0.0,
    "gae_lambda": 0.95,
    "popart_rate": 0.02,
    "log_std_init": -6.0,
}
OWN = {
    "ppo": {
        "num_envs": 256,
        "num_steps": 32,
        "learning_rate": 1e-2,
        "num_minibatches": 32,
        "update_epochs": 10,
    },
    "a2c": {"num_envs": 32, "num_steps": 16, "learning_rate": 3e-3},
}
STEPS = {"ppo": 2_000_000, "a2c": 8_000_000, "ddpg": 1_000_000, "td3": 1_000_000, "sac": 1_000_000}


def value_error(name, horizon, faulty):
    """Of V against V* over the states of a rollout."""
    h = ON_POLICY | OWN[name]
    env, params, h, state = held(name, 0, horizon, faulty, h, STEPS[name])
    obs = on_policy.collect(env, state, params, h, key=jax.random.key(1))[1].obs
    obs = obs.reshape(-1, state.obs.shape[-1])
    critic = on_policy.networks(env, params, h).critic
    learned = on_policy.value(critic, state, on_policy.normalize(state, obs, h))
    return relative(learned, -jax.vmap(params.system.value)(obs))


# The level of a value rests on the mean of all rewards kept, hence a million transitions: the
# standard error of it alone is 0.004 of the mean of |Q*|.
OFF_POLICY = {
    "num_envs": 256,
    "num_steps": 8,
    "gradient_steps": 64,
    "hidden": (64, 64),
    "activation": "silu",
    "learning_starts": 5_000,
    "actor_learning_rate": 0.0,
    "critic_learning_rate": 3e-3,
    "final_lr_fraction": 0.0,
    "polyak": 0.02,
    "relative_error": 1.0,
    "buffer_size": 1_000_000,
}
HELD = {
    "sac": {
        "learn_temperature": False,
        "temperature": 0.0,
        "log_std_init": -4.0,  # its critic is that of the policy with its spread
    },
    # The smaller of two critics is biased until both are exact; a quick target forgets that sooner.
    "td3": {"target_noise": 0.0, "exploration_noise": 0.5, "polyak": 0.1},
    "ddpg": {"exploration_noise": 0.5},
}


def q_error(name, horizon, faulty):
    """Of Q against Q*(s, a) = V*(s) + excess cost of a, over the replay."""
    h = OFF_POLICY | HELD[name]
    env, params, h, state = held(name, 1, horizon, faulty, h, STEPS[name])
    nets = off_policy.networks(METHODS[name], env, params, h, actions=state.actions)
    rows = replay.unpack(state.replay[: STEPS[name]][-20_000:], state.obs.shape[-1])
    z = off_policy.normalize(state, rows.obs, h)
    scale = state.rewards.moments.std()
    learned = scale * nets.q_values(state.learner.params["critics"], z, rows.u)[0]
    excess = jax.vmap(params.system.excess_cost)(rows.obs, GAIN * nets.box.to_action(rows.u))
    return relative(learned, -(jax.vmap(params.system.value)(rows.obs) + excess))


def error(name, horizon, faulty=False):
    return (value_error if name in OWN else q_error)(name, horizon, faulty)


@pytest.mark.slow
@pytest.mark.parametrize("horizon", [16, 64, 512])
@pytest.mark.parametrize("name", ["ppo", "a2c", "ddpg", "td3", "sac"])
def test_under_the_optimal_policy_critics_become_the_optimal_value(name, horizon):
    assert error(name, horizon) < 0.02


@pytest.mark.slow
@pytest.mark.parametrize("name", ["ppo", "a2c", "ddpg", "td3", "sac"])
def test_truncation_taken_for_terminal_fails_the_same_test(name):
    assert error(name, 64, faulty=True) > 0.2


def soft_optimum(temperature, system, obs):
    """Mean and standard deviations of N(π*, (α/2) B⁻¹), each (..., m), for a diagonal B."""
    star = jax.vmap(lambda s: cojax.oracle.action(system, s))(obs)

    def advantage(a):
        return cojax.oracle.advantage(system, obs[0], a)

    B = jax.hessian(advantage)(star[0]) / 2.0
    assert float(jnp.abs(B - jnp.diag(jnp.diagonal(B))).max()) < 1e-6
    return star, jnp.sqrt(temperature / 2.0 / jnp.diagonal(B))


def soft_errors(spread, steps):
    """How far SAC is from the soft optimum over the states it visits.

    The temperature is the one whose soft optimum has a standard deviation of ``spread`` times the
    limit of the first action. Returns the root mean square error of the mean in units of the soft
    optimum's standard deviation, and the learned standard deviations over it, each (..., m).
    """
    env, params = cojax.make("nvdex-k1-easy")
    limit = env.action_space(params).high
    obs = env.reset(jax.random.key(0), params)[0]
    _, unit = soft_optimum(1.0, params.system, obs[None])
    temperature = float((spread * limit[0] / unit[0]) ** 2)
    h = {
        "learn_temperature": False,
        "temperature": temperature,
        "hidden": (64, 64),
        "activation": "silu",
        "num_envs": 64,
        "num_steps": 8,
        "gradient_steps": 64,
        "learning_starts": 5_000,
        "warmup_scale": 3.0 * spread,
        "log_std_init": float(jnp.log(2.0 * spread)),  # not the answer
        "polyak": 0.03,
        "actor_ema_rate": 0.01,
        "final_lr_fraction": 0.01,
        "max_episode_steps": 64,
    }
    h, state = trained("sac", 0, env, params, h, steps)
    obs = replay.unpack(state.replay[:steps][-20_000:], state.obs.shape[-1]).obs
    nets = off_policy.networks(sac.METHOD, env, params, h, actions=state.actions)
    mean, log_std = sac.distribution(nets, state.average, off_policy.normalize(state, obs, h), h)
    u = jnp.tanh(mean)
    std = jnp.exp(log_std) * (1.0 - u**2) * nets.box.half_range()  # small: tanh is a line there
    known, known_std = soft_optimum(temperature, params.system, obs)
    error = jnp.sqrt(jnp.mean((nets.box.to_action(u) - known) ** 2, axis=0))
    return error / known_std, std / known_std


@pytest.mark.slow
def test_sac_becomes_the_soft_optimum():
    mean_error, std_ratio = soft_errors(0.05, 300_000)
    assert float(mean_error.max()) < 0.1
    assert float(jnp.abs(jnp.median(std_ratio, axis=0) - 1.0).max()) < 0.02
    assert float(jnp.abs(jnp.quantile(std_ratio, jnp.array([0.05, 0.95])) - 1.0).max()) < 0.06
