"""The five-value adapter and brax: each against the environment itself."""

import subprocess
import sys

import gymnax
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import cojax
from cojax.adapters.five_values import five_values

SHORT = 8


@pytest.fixture(scope="module")
def made():
    return cojax.make("DoubleIntegrator-v0", max_steps_in_episode=SHORT, action_limit=2.0)


def test_five_values_are_the_six(made):
    env, params = five_values(made)
    key = jax.random.key(0)
    obs, state = env.reset(key, params)
    action = jnp.full(1, 0.5)
    for k in range(SHORT):
        ours = env.step(jax.random.key(k), state, action, params)
        theirs = made[0].step(jax.random.key(k), state, action, params)
        obs, state, reward, done, info = ours
        np.testing.assert_array_equal(obs, theirs[0])
        assert (float(reward), bool(done)) == (float(theirs[2]), k == SHORT - 1)
    assert bool(info["truncated"])
    assert type(env.action_space().high) is float
    assert env.observation_space(params).shape == obs.shape
    assert env.num_actions == 1


def test_five_values_of_other_environments():
    env, params = five_values(gymnax.make("Pendulum-v1"))
    _, state = env.reset(jax.random.key(0), params)
    assert len(env.step(jax.random.key(1), state, jnp.zeros(1), params)) == 5
    with pytest.raises(ValueError, match="expected a Box"):
        five_values(gymnax.make("CartPole-v1"))
    with pytest.raises(ValueError, match="one number for all"):
        five_values("ConverseArm-v0", n=2, action_limit=(1.0, 2.0))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ["PPO", "SAC"])
def test_rejax_trains(name, made):
    rejax = pytest.importorskip("rejax")
    env, params = five_values(made)
    small = {
        "PPO": {"num_envs": 4, "num_steps": 8, "num_epochs": 1, "num_minibatches": 2},
        "SAC": {"num_envs": 2, "buffer_size": 64, "fill_buffer": 16, "batch_size": 8},
    }
    learner = getattr(rejax, name).create(
        env=env, env_params=params, total_timesteps=64, eval_freq=64,
        skip_initial_evaluation=True, **small[name],
    )  # fmt: skip
    state, (lengths, returns) = jax.jit(learner.train)(jax.random.key(0))
    assert int(lengths.max()) == SHORT
    assert bool((returns < 0.0).all())
    act = learner.make_act(state)
    policy = {name: lambda obs, key: jnp.reshape(act(obs, key), (1,))}  # m = 1: it gives a number
    result = cojax.evaluate(policy, params, 2, num_steps=4)
    assert result.rows()[0]["suboptimality"]["mean"] > 0.0


@pytest.mark.filterwarnings("ignore")
def test_brax(made):
    pytest.importorskip("brax")
    from brax.envs.wrappers import training

    from cojax.adapters.brax import Env

    env = Env(made)
    assert (env.observation_size, env.action_size, env.episode_length) == (2, 1, SHORT)
    wrapped = training.wrap(env, episode_length=env.episode_length)
    state = jax.jit(wrapped.reset)(jax.random.split(jax.random.PRNGKey(0), 3))
    first, step = state.obs, jax.jit(wrapped.step)
    cost = jax.vmap(cojax.oracle.stage_cost, (None, 0, None))(
        made[1].system, state.obs, jnp.full(1, 0.5)
    )
    state = step(state, jnp.full((3, 1), 0.25))
    np.testing.assert_allclose(state.reward, -cost, rtol=1e-5)
    for _ in range(SHORT - 1):
        state = step(state, jnp.zeros((3, 1)))
    assert (state.done == 1.0).all()
    assert (state.info["truncation"] == 1.0).all()
    np.testing.assert_array_equal(state.obs, first)  # brax resets to where it began


def test_without_the_library_one_line():
    extras = {"brax": "brax", "dm_env": "dm_env", "stable_baselines3": "sb3"}
    code = "import importlib, sys\n"
    for library in extras:
        code += (
            f"sys.modules[{library!r}] = None\n"
            f"try:\n    importlib.import_module('cojax.adapters.{library}')\n"
            "except ValueError as error:\n    print(error)\n"
        )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert out.stdout.splitlines() == [
        f"{library}: expected the extra, pip install 'cojax[{extra}]'"
        for library, extra in extras.items()
    ]
