"""Populations: equal to solo runs, isolated, compiled once; policies that leave and come back."""

from __future__ import annotations

import dataclasses
import random

import gymnax
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from agents_toy import GAMMA, PLAIN_PPO, SMALL, Discrete, Toy, ToyParams, relative, value
from click.testing import CliRunner

from cojax.agents import load_policy, on_policy, ppo, save_policy, train
from cojax.agents import population as population_module
from cojax.agents.algorithm import strong
from cojax.agents.settings import hyperparameters
from cojax.cli import main
from cojax.errors import InputError
from cojax.fixtures import load_fixture

ENV = Toy()


def small(**kwargs):
    options = {"env": ENV, "hyperparameters": SMALL, "total_timesteps": 320, "eval_every": 160}
    return train("ppo", ToyParams(), jax.random.key(3), **(options | kwargs))


def assert_same(a, b, **tolerance):
    for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        if tolerance:
            np.testing.assert_allclose(x, y, **tolerance)
        else:
            np.testing.assert_array_equal(x, y)


def policy_of(run, **index):
    return run.member(**index).params


@pytest.fixture(scope="module")
def fixtures():
    """Three systems; the second has NaN rewards."""
    members = [ToyParams(), ToyParams(target=0.2, blow_up=1.0), ToyParams(target=0.4)]
    return jax.tree.map(lambda *x: jnp.stack(x), *[strong(p) for p in members])


def train_population(fixtures, batching):
    return train(
        "ppo",
        fixtures,
        jax.random.key(3),
        env=ENV,
        hyperparameters=[SMALL | {"learning_rate": 1e-3}, SMALL | {"learning_rate": 3e-3}],
        num_seeds=2,
        total_timesteps=320,
        eval_every=160,
        batching=batching,
    )


@pytest.fixture(scope="module")
def population(fixtures):
    return train_population(fixtures, "loop")


@pytest.fixture(scope="module")
def batched(fixtures):
    return train_population(fixtures, "vmap")


def test_axes_are_labelled(population):
    assert population.axes == population.policy.axes == ("fixture", "hyperparameters", "seed")
    assert population.failed.shape == (3, 2, 2)
    assert population.metrics["policy_loss"].shape == (3, 2, 2, 2)
    np.testing.assert_array_equal(population.timesteps, [160, 320])
    member = population.member(fixture=2, hyperparameters=0, seed=1)
    action = member(jnp.array([0.5]), jax.random.key(0))
    assert action.shape == (2,)
    assert np.all(np.abs(action) <= [1.0, 4.0])


def solo(fixtures, batching="loop"):
    """What member (2, 1, 1) of ``population`` should be."""
    one = jax.tree.map(lambda x: x[2], fixtures)
    return train(
        "ppo",
        one,
        jax.random.fold_in(jax.random.key(3), 1),
        env=ENV,
        hyperparameters=SMALL | {"learning_rate": 3e-3},
        num_seeds=None,
        total_timesteps=320,
        eval_every=160,
        batching=batching,
    )


def test_a_member_is_its_solo_run_bit_for_bit(population, fixtures):
    alone = solo(fixtures)
    assert alone.axes == ()
    assert_same(alone.policy.params, policy_of(population, fixture=2, hyperparameters=1, seed=1))
    for name, x in alone.metrics.items():
        np.testing.assert_array_equal(x, population.metrics[name][2, 1, 1], err_msg=name)


def test_the_agent_of_a_member_is_its_own(population, batched):
    """Whether states are kept in a row or one by one."""
    for run, states in ((population, 12), (batched, 1)):
        assert len(run.states) == states
        for f, h, seed in ((0, 1, 1), (2, 0, 1), (2, 1, 0)):
            index = {"fixture": f, "hyperparameters": h, "seed": seed}
            agent = run.agent(**index)
            assert_same(agent.actor, policy_of(run, **index)["actor"], rtol=1e-5, atol=1e-9)
            assert run.critic(**index)(jnp.ones(1)) == agent.critic(jnp.ones(1))


def test_members_of_a_vmapped_population_are_their_solo_runs(batched, population):
    """Batched products round differently: 20 gradient steps keep within 1e-4."""
    assert batched.axes == population.axes
    assert_same(batched.policy.params, population.policy.params, rtol=1e-4, atol=1e-4)


def test_one_compilation_for_many_instances(population, fixtures):
    """Another fixture, seed, length and learning rate of the same shapes trace nothing anew."""
    solo(fixtures)
    before = population_module.advance._cache_size(), population_module.initialize._cache_size()
    for target in (0.1, 0.3):
        train(
            "ppo",
            ToyParams(target=target),
            jax.random.key(8),
            env=ENV,
            hyperparameters=SMALL | {"learning_rate": target},
            num_seeds=3,
            total_timesteps=96,
            batching="loop",
        )
    assert (
        population_module.advance._cache_size(),
        population_module.initialize._cache_size(),
    ) == before


def test_a_member_that_diverges_is_reported_and_leaves_the_others_alone(batched, population):
    """Fixture 1 has NaN rewards; the others equal their solo runs by the tests above."""
    for run in (batched, population):
        np.testing.assert_array_equal(run.failed[:, 0, 0], [False, True, False])
        np.testing.assert_array_equal(run.failed, np.broadcast_to(run.failed[:, :1, :1], (3, 2, 2)))
        for fixture in (0, 2):
            leaves = jax.tree.leaves(run.member(fixture=fixture).params)
            assert all(np.isfinite(x).all() for x in leaves)


def test_progress_and_evaluation_see_every_interval(population):
    calls = []
    run = small(
        num_seeds=2,
        progress=lambda steps, total, metrics: calls.append((steps, total, metrics["failed"])),
        evaluate=mean_action,
        batching="loop",
    )
    assert [c[:2] for c in calls] == [(160, 320), (320, 320)]
    assert calls[0][2].shape == (2,)
    assert run.curves.shape == (2, 2, 2)
    assert run.steps_per_second > 0
    final = run.member(seed=1)(jnp.array([0.3]), jax.random.key(0))
    np.testing.assert_allclose(run.curves[1, -1], final, rtol=1e-6)


def mean_action(policy, env_params, key):
    return policy(jnp.array([0.3]), key)


def test_environment_i_starts_the_same_whatever_the_number():
    h = hyperparameters(ppo.PPO, SMALL)
    few = on_policy.init(ENV, jax.random.key(0), ToyParams(), h)
    many = on_policy.init(ENV, jax.random.key(0), ToyParams(), h.replace(num_envs=16))
    np.testing.assert_array_equal(few.obs, many.obs[:4])
    assert len(np.unique(many.obs)) == 16


def test_first_epoch_ratio_is_one():
    """Also after the observation statistics have moved, and with per-dimension bounds."""
    h = hyperparameters(ppo.PPO, SMALL | {"log_std_init": 0.5})
    update = jax.jit(lambda s: ppo.ALGORITHM.update(ENV, s, ToyParams(), h)[0])
    state = on_policy.init(ENV, jax.random.key(0), ToyParams(), h)
    nets = on_policy.networks(ENV, ToyParams(), h)

    @jax.jit
    def first_loss(state):
        state, rollout, _ = on_policy.collect(ENV, state, ToyParams(), h, key=jax.random.key(1))
        state, batch = on_policy.prepare(ENV, state, ToyParams(), h, rollout=rollout)
        return ppo.loss(state.params, batch, nets, h)[1], jnp.max(jnp.abs(rollout.u))

    for _ in range(3):
        state = update(state)
        metrics, largest = first_loss(state)
        assert float(largest) > 1.0  # some actions were clipped
        assert abs(float(metrics["approx_kl"])) < 1e-6
        assert float(metrics["clip_fraction"]) == 0.0


def test_rescaling_targets_leaves_the_value_function_alone():
    h = hyperparameters(ppo.PPO, SMALL)
    state = on_policy.init(ENV, jax.random.key(0), ToyParams(), h)
    critic = on_policy.networks(ENV, ToyParams(), h).critic
    moved = on_policy._rescale(state, state.targets.merge(jnp.array([-500.0, 100.0]), 0.1))
    obs = jnp.linspace(-2.0, 2.0, 9)[:, None]
    before, after = (on_policy.value(critic, s, obs) for s in (state, moved))
    np.testing.assert_allclose(before, after, rtol=1e-4, atol=1e-3)


# The policy is held (every advantage is clipped to 0) while the critic learns.
VALUE = PLAIN_PPO | {
    "num_envs": 64,
    "num_steps": 32,
    "num_minibatches": 4,
    "update_epochs": 4,
    "hidden": (32, 32),
    "max_grad_norm": 100.0,  # clipping biases a mean towards the median of skewed targets
    "advantage_clip": 0.0,
    "learning_rate": 3e-3,
    "gae_lambda": 0.8,
    "popart_rate": 0.02,
    "log_std_init": -1.0,
}


def value_error(horizon, **faults):
    """Mean |V - V^π| over the states of a rollout, relative to mean |V^π|."""
    params = strong(ToyParams(max_steps_in_episode=horizon, gain=0.0, **faults))
    run = train(
        "ppo",
        params,
        jax.random.key(0),
        env=ENV,
        hyperparameters=VALUE,
        num_seeds=None,
        total_timesteps=600_000,
        eval_every=600_000,
        batching="loop",
    )
    h, state = run.hyperparameters, run.states[0]
    obs = on_policy.collect(ENV, state, params, h, key=jax.random.key(1))[1].obs
    critic = on_policy.networks(ENV, params, h).critic
    learned = on_policy.value(critic, state, on_policy.normalize(state, obs, h))
    known = value(obs[..., 0], float(jnp.exp(h.log_std_init)))
    return relative(learned, known)


@pytest.mark.parametrize("horizon", [16, pytest.param(64, marks=pytest.mark.slow)])
def test_value_converges_whatever_the_time_limit(horizon):
    assert value_error(horizon) < 0.02


def test_truncation_taken_for_terminal_fails_the_same_test():
    assert value_error(16, limit_is_terminal=1.0) > 0.1


def test_policies_leave_and_come_back(population, tmp_path):
    member = population.member(fixture=1, hyperparameters=1, seed=0)
    for policy in (member, population.policy):
        save_policy(tmp_path / "policy.npz", policy)
        loaded = load_policy(tmp_path / "policy.npz")
        assert loaded.apply == policy.apply
        assert (loaded.axes, loaded.name) == (policy.axes, policy.name)
        assert_same(loaded.params, policy.params)
    assert [p.name for p in tmp_path.iterdir()] == ["policy.npz"]
    obs = jnp.array([0.4])
    again = loaded.member(fixture=1, hyperparameters=1, seed=0)(obs, jax.random.key(0))
    np.testing.assert_array_equal(again, member(obs, jax.random.key(0)))


def test_a_file_that_is_no_policy_is_named(tmp_path):
    (tmp_path / "x.npz").write_text("hello")
    with pytest.raises(ValueError, match=r"x\.npz: expected a policy saved by cojax"):
        load_policy(tmp_path / "x.npz")
    with pytest.raises(ValueError, match=r"none\.npz: expected a policy"):
        load_policy(tmp_path / "none.npz")


def test_a_damaged_policy_is_one_line(population, tmp_path):
    """Cut short anywhere, or with a bit turned: one line, or the policy as it was saved."""
    file, rng = tmp_path / "p.npz", random.Random(0)
    save_policy(file, population.policy)
    whole = file.read_bytes()
    damaged = [whole[:n] for n in (0, 1, 3, 30, len(whole) // 2, len(whole) - 1)]
    for _ in range(60):
        turned = bytearray(whole)
        turned[rng.randrange(len(whole))] ^= 1 << rng.randrange(8)
        damaged.append(bytes(turned))
    np.save(tmp_path / "array.npy", np.zeros(3))
    damaged.append((tmp_path / "array.npy").read_bytes())
    refused = []
    for content in damaged:
        file.write_bytes(content)
        try:
            assert_same(load_policy(file).params, population.policy.params)
        except InputError as error:
            refused.append(str(error))
    assert len(refused) > 40
    assert all(words.startswith(f"{file}: ") and "\n" not in words for words in refused)
    with pytest.raises(InputError, match="expected a policy saved by cojax"):
        load_policy(tmp_path)
    done = CliRunner().invoke(
        main, ["evaluate", "--fixture", "nvdex-k1-easy", "--policy", str(file)]
    )
    assert done.exit_code == 2
    assert done.stderr.startswith(f"cojax: policy {file}: ")


def test_bad_arguments_are_one_line():
    with pytest.raises(ValueError, match="unknown algorithm 'pp0'; did you mean 'ppo'"):
        train("pp0", ToyParams(), jax.random.key(0), env=ENV)
    with pytest.raises(ValueError, match="one-dimensional Box as action space"):
        small(env=Discrete())
    with pytest.raises(ValueError, match="num_minibatches: 3 does not divide"):
        small(hyperparameters=SMALL | {"num_minibatches": 3})
    with pytest.raises(ValueError, match="activation: unknown 'tan'"):
        small(hyperparameters=SMALL | {"activation": "tan"})
    with pytest.raises(ValueError, match="key: expected one typed key"):
        train("ppo", ToyParams(), jnp.zeros(2, jnp.uint32), env=ENV)
    with pytest.raises(ValueError, match="num_seeds: expected at least 1"):
        small(num_seeds=0)
    with pytest.raises(ValueError, match="batching: expected auto, vmap or loop"):
        small(batching="pmap")


def test_a_fixture_is_trained_on_as_its_params_are():
    fixture = load_fixture("arm-n2-p0.80-s7")
    options = {"num_seeds": None, "total_timesteps": 256, "num_envs": 4, "progress": None}
    runs = [train("a2c", of, jax.random.key(3), **options) for of in (fixture, fixture.params)]
    first, second = (jax.tree.leaves(run.policy.params) for run in runs)
    for a, b in zip(first, second, strict=True):
        np.testing.assert_array_equal(a, b)
    with pytest.raises(ValueError, match="params: expected EnvParams or a fixture, got str"):
        train("a2c", fixture.id, jax.random.key(3), **options)


def test_gamma_is_the_systems_unless_given():
    h = hyperparameters(ppo.PPO, SMALL)
    assert h.gamma is None
    assert on_policy.algorithm.discount(ToyParams(), h) == GAMMA
    assert on_policy.algorithm.discount(gymnax.make("Pendulum-v1")[1], h) == 0.99
    given = dataclasses.replace(h, gamma=jnp.float32(0.5))
    assert on_policy.algorithm.discount(ToyParams(), given) == 0.5


@pytest.mark.slow
def test_pendulum_is_swung_up():
    env, params = gymnax.make("Pendulum-v1")
    run = train("ppo", params, jax.random.key(0), env=env, num_seeds=3, total_timesteps=300_000)
    assert np.median(run.metrics["episode_return"][..., -1]) > -300


def test_the_toy_is_learned():
    """The optimum is a_1 = target-ish: returns rise from the first interval to the last."""
    run = small(
        hyperparameters={"num_envs": 64, "num_steps": 32, "learning_rate": 1e-3, "hidden": (32,)},
        num_seeds=None,
        total_timesteps=60_000,
        eval_every=10_000,
    )
    returns = run.metrics["episode_return"]
    assert returns[-1] > 0.8 * returns[0]
    a = run.policy(jnp.array([0.8]), jax.random.key(0))
    assert float(a[0]) < -0.2
