"""What an algorithm of one's own must be, said in one line; and one that is, all the way."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import own_learner
import pytest
from flax import struct
from own_learner import ALGORITHM, State

import cojax
from cojax.agents import ALGORITHMS, contract, load_policy, register, save_policy
from cojax.agents.settings import static, traced
from cojax.errors import InputError

SHORT = {"num_envs": 4, "num_steps": 8}


@pytest.fixture
def reinforce():
    register(ALGORITHM)
    yield "reinforce"
    del ALGORITHMS["reinforce"]


def test_ours_keep_the_contract():
    for name in ("ppo", "ddpg"):
        assert contract.problem(name, ALGORITHMS[name]) is None
        assert contract.traced_problem(ALGORITHMS[name]) is None
    assert contract.traced_problem(ALGORITHMS["shac"]) is None  # cannot be told here


def changed(**parts):
    return dataclasses.replace(ALGORITHM, **parts)


def updated(change):
    """An algorithm whose update is followed by a change of state and metrics."""

    def update(env, state, env_params, h):
        return change(*own_learner.update(env, state, env_params, h))

    return changed(update=update)


def without(name):
    return updated(lambda s, m: (s, {k: v for k, v in m.items() if k != name}))


class Loose(struct.PyTreeNode):
    gamma: float | None = traced(None, 0.0, 1.0)
    rate: float = 0.1


class NoGamma(struct.PyTreeNode):
    rate: float = traced(0.1, 0.0)


class NoNumber(struct.PyTreeNode):
    gamma: float | None = traced(None, 0.0, 1.0)
    num_envs: int = static(8, 1)


class Bare(struct.PyTreeNode):
    clock: jax.Array


def failed(env, key, env_params, h):
    return own_learner.init(env, key, env_params, h).replace(failed=jnp.zeros(()))


def broken(env, key, env_params, h):
    raise KeyError("weights\nmore")


class Unhashable:
    __hash__ = None  # pyright: ignore

    def __call__(self, params, obs, key):
        return own_learner.act(params, obs, key)


BROKEN = {
    "no algorithm": (3, "algorithm 3: expected a cojax.agents.algorithm.Algorithm, got 3 without"),
    "call": (changed(update=lambda state: state), r"update: expected update\(env, state, env_par"),
    "mutable": (changed(hyperparameters=dict), "hyperparameters: expected a flax.struct.PyTree"),
    "bounds": (changed(hyperparameters=Loose), "hyperparameters: rate: expected a default and bo"),
    "gamma": (changed(hyperparameters=NoGamma), r"expected gamma = traced\(None, 0.0, 1.0\)"),
    "no number": (changed(hyperparameters=NoNumber), "expected one at least that is traced"),
    "steps": (changed(steps_per_update=lambda h: 1.5), "whole number of at least 1, got 1.5"),
    "fails": (changed(init=broken), "init fails on gymnax's pendulum with KeyError: 'weights"),
    "clock": (changed(init=lambda *a: Bare(jnp.zeros(()))), "init: expected a state with clock ="),
    "dict": (changed(init=lambda *a: {"clock": 0}), "expected a flax.struct.PyTreeNode, got a dic"),
    "failed": (changed(init=failed), "init: expected a state with failed = "),
    "one result": (updated(lambda s, m: s), r"update: expected \(state, metrics\), metrics a dict"),
    "episodes": (without("episodes"), "update: expected a metric 'episodes', a sum over"),
    "array": (updated(lambda s, m: (s, m | {"x": jnp.ones(2)})), r"metric x: .*got float32\[2\]"),
    "shape": (
        updated(lambda s, m: (s.replace(actor=s.actor[0]), m)),
        r"state.actor: expected float32\[1, 3\] as in init, got float32\[3\]",
    ),
    "hash": (changed(policy_apply=lambda *a: Unhashable()), "can be hashed, got Unhashable"),
    "action": (
        changed(policy_apply=lambda *a: lambda p, o, k: o),
        r"the policy: expected an action float32\[1\], got float32\[3\]",
    ),
    "actor": (changed(actor=lambda s: s.actor[0]), "expected a dict whose 'actor' is a tree as"),
    "taken": (changed(name="ppo"), "algorithm ppo: the name is taken"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_what_is_missing_is_one_line(case):
    spec, words = BROKEN[case]
    with pytest.raises(InputError, match=words) as caught:
        register(spec)  # pyright: ignore[reportArgumentType]
    assert "\n" not in str(caught.value)
    assert "reinforce" not in ALGORITHMS


def test_a_clock_that_stands_still_is_found():
    def update(env, state, env_params, h):
        after, metrics = own_learner.update(env, state, env_params, h)
        return State(state.clock, after.key, after.actor, after.failed), metrics

    with pytest.raises(InputError, match=r"update: expected clock.update to grow by 1"):
        register(changed(update=update))


def test_a_plugin_that_breaks_it_is_refused_before_it_trains(monkeypatch):
    monkeypatch.setitem(ALGORITHMS, "reinforce", without("episodes"))
    params = cojax.load_fixture("arm-n2-p0.80-s7").params
    with pytest.raises(InputError, match="algorithm reinforce: update: expected a metric 'episo"):
        cojax.train("reinforce", params, jax.random.key(0), total_timesteps=64)
    with pytest.raises(InputError, match=r"did you mean 'reinforce'\? \(known: ppo, "):
        cojax.train("reinforces", params, jax.random.key(0))


def test_a_learner_of_ones_own_goes_all_the_way(reinforce, tmp_path):
    """Trained over settings and seeds, saved, read, evaluated and diagnosed."""
    assert register(ALGORITHM) is ALGORITHM  # again, as a cell of a notebook
    fixture = cojax.load_fixture("arm-n2-p0.80-s7")
    settings = [{**SHORT, "std": std} for std in (0.1, 0.2)]
    run = cojax.train(
        reinforce, fixture.params, jax.random.key(0), hyperparameters=settings, num_seeds=3,
        total_timesteps=640,
    )  # fmt: skip
    assert run.policy.axes == ("hyperparameters", "seed")
    assert not run.failed.any()
    assert (run.metrics["episode_length"] == 8.0).all()
    save_policy(tmp_path / "own.npz", run.policy)
    read = load_policy(tmp_path / "own.npz")
    gaps = cojax.evaluate([run.policy, read], fixture, 4, num_steps=20).trials["suboptimality"][0]
    np.testing.assert_allclose(gaps[6:], gaps[:6], rtol=1e-4)
    assert len({*gaps[:6, 0].tolist()}) == 6
    save_policy(tmp_path / "again.npz", read)
    assert (tmp_path / "again.npz").read_bytes() == (tmp_path / "own.npz").read_bytes()
    reading = cojax.evaluation.diagnose(
        run.agent(hyperparameters=1, seed=2), fixture, num_trials=4, num_steps=8, batches=4
    )
    assert reading.critic is None
    assert reading.gradient is not None
    assert -1.0 <= reading.gradient["cosine"] <= 1.0


def test_a_policy_of_any_kind_is_saved_by_its_observations(tmp_path):
    def apply(params, obs, key):
        gain, (bias,) = params
        return gain @ obs + bias * jax.random.normal(key, (2,))

    params = (jnp.arange(8.0).reshape(2, 4), [jnp.full((), 0.5)])
    policy = cojax.policy.Policy(params, apply, "mine")
    with pytest.raises(InputError, match="mine: expected observation_length"):
        save_policy(tmp_path / "mine.npz", policy)
    save_policy(tmp_path / "mine.npz", policy, observation_length=4)
    read = load_policy(tmp_path / "mine.npz")
    obs, key = jnp.arange(4.0), jax.random.key(3, impl="threefry2x32")
    np.testing.assert_allclose(read(obs, key), policy(obs, jax.random.clone(key)), rtol=1e-6)
    keys = jax.random.split(jax.random.key(4, impl="threefry2x32"), 5)
    many = jax.vmap(read, (None, 0))(obs, keys)
    np.testing.assert_allclose(many, jax.vmap(policy, (None, 0))(obs, keys), rtol=1e-5)
