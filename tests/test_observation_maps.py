"""Observation maps: values by NumPy, what is lost by round trip, gaps on the problem as it is."""

from __future__ import annotations

import dataclasses
import pickle
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import cojax
from cojax import observation_maps as maps
from cojax import streams
from cojax.envs import CommonStreams, ConverseEnv, observed
from cojax.errors import InputError
from cojax.policy import Policy
from cojax.testing import Oracle, check_env

KEY = jax.random.key(0)
C = np.array([[1.0, 2.0, 0.0, 0.0], [0.0, 1.0, -1.0, 0.5], [0.0, 0.0, 0.5, 0.0], [1, 0, 0, 1.5]])
SINES = maps.Sines((0, 2), 4)
LIFT = maps.lifted(4, 9, 3, scale=[2.0, 1.0, 2.0, 1.0])
MAPS = {
    "sines": SINES,
    "scaled": maps.scaled([2.0, -0.5, 1.0, 3.0]),
    "warped": maps.warped([2.0, 1.0, 0.5, 4.0]),
    "linear": maps.linear(C),
    "rotation": maps.rotation(4, 1),
    "lifted": LIFT,
    "chained": maps.chained(maps.scaled([0.5] * 4), maps.rotation(4, 2), maps.lifted(4, 6, 0)),
    "sines turned": maps.chained(SINES, maps.rotation(6, 0)),
}
NUMPY = {
    "sines": lambda s: np.r_[np.sin(s[0]), np.cos(s[0]), s[1], np.sin(s[2]), np.cos(s[2]), s[3]],
    "scaled": lambda s: s * [2.0, -0.5, 1.0, 3.0],
    "warped": lambda s: np.tanh(s / [2.0, 1.0, 0.5, 4.0]) * [2.0, 1.0, 0.5, 4.0],
    "linear": lambda s: C @ s,
    "lifted": lambda s: np.tanh(np.array(LIFT.matrix) @ (s / np.array([2.0, 1.0, 2.0, 1.0]))),
}  # fmt: skip


def states(num=64, size=0.8):
    return (size * np.random.default_rng(0).normal(size=(num, 4))).astype(np.float32)


@pytest.mark.parametrize("name", NUMPY)
def test_values_are_those_of_numpy(name):
    found = jax.vmap(MAPS[name])(states())
    np.testing.assert_allclose(found, [NUMPY[name](s) for s in states()], rtol=2e-6, atol=2e-6)


@pytest.mark.parametrize("name", MAPS)
def test_what_is_lost_is_what_a_round_trip_loses(name):
    """Near the origin nothing; far from it what ``lossless_on`` says, and no more."""
    m = MAPS[name]
    wide = np.concatenate([states(), states(256, 4.0)])
    back = np.asarray(jax.vmap(lambda s: m.inverse(m(s)))(wide))
    kept = np.abs(back - wide).max(-1) <= 2e-3 * np.maximum(1.0, np.abs(wide).max(-1))
    said = np.asarray(jax.vmap(m.lossless_on)(wide))
    assert said[: len(states())].mean() > 0.6
    assert kept[said].all()
    assert jax.vmap(m)(wide).shape == (len(wide), m.size)
    if name in ("sines", "sines turned"):
        assert not m.lossless
        np.testing.assert_array_equal(kept, said)
        assert not said.all()
        # and no inverse could do better: another state looks the same
        s = wide[np.argmin(said)]
        twin = s + 2.0 * np.pi * np.array([1.0, 0.0, 0.0, 0.0], np.float32)
        np.testing.assert_allclose(m(s), m(twin), atol=2e-6)
    else:
        assert m.lossless
    if name in ("scaled", "linear", "rotation"):
        assert said.all()


def test_half_a_turn_is_kept_on_one_side():
    s = jnp.array([np.pi, 0.0, -np.pi, 0.0], jnp.float32)
    assert bool(SINES.lossless_on(s.at[2].set(0.0)))
    assert not bool(SINES.lossless_on(s))
    assert not bool(SINES.lossless_on(s.at[1].set(jnp.nan)))


def test_angles_are_found_by_their_units():
    found = {}
    for name in ("ConverseArm-v0", "KinematicArm-v0", "Manipulator-v0"):
        env, _ = cojax.make(name, n=2)
        m = maps.sines(env.labels()[0])
        wrapped = observed(env, m)
        found[name] = wrapped.labels()[0]
        assert wrapped.observation_space().shape == (6,) == (len(found[name]),)
    words = ["sin θ_1", "cos θ_1", "ω_1 [rad/s]", "sin θ_2", "cos θ_2", "ω_2 [rad/s]"]
    assert found["KinematicArm-v0"] == words
    assert found["Manipulator-v0"] == [*words[:2], *words[3:5], words[2], words[5]]
    env, _ = cojax.make("DoubleIntegrator-v0")
    with pytest.raises(InputError, match="sines: expected states with angles"):
        maps.sines(env.labels()[0])


@pytest.mark.parametrize("name", MAPS)
def test_the_space_holds_the_extremes(name):
    """High is what the map makes of corners of the box of states, at least, and finite."""
    m = MAPS[name]
    env, params = cojax.make("KinematicArm-v0", n=2)
    space = observed(env, m).observation_space(params)
    high = np.asarray(env.observation_space(params).high)
    signs = np.array(np.meshgrid(*[[-1, 1]] * 4)).reshape(4, -1).T.astype(np.float32)
    inside = np.random.default_rng(0).uniform(-1, 1, (64, 4)).astype(np.float32)
    for s in np.concatenate([signs, inside]) * high:
        assert bool(space.contains(m(s)))
    assert space.shape == (m.size,)
    assert np.isfinite(space.high).all()
    small = np.asarray(m.box(np.array([0.5, 1.0, 0.5, 1.0], np.float32)))
    seen = np.abs([m(s) for s in signs * np.array([0.5, 1.0, 0.5, 1.0], np.float32)]).max(0)
    assert (small >= seen).all()
    if name in ("scaled", "linear", "rotation", "warped"):
        np.testing.assert_allclose(small, seen, rtol=1e-3)  # and no larger than it need be
    assert len(m.labels(["a", "b", "c", "d"])) == m.size


def test_the_mapped_environment_conforms():
    """By its own oracle, of observations, which can be inverted."""
    m = maps.chained(MAPS["scaled"], MAPS["rotation"])
    env, params = cojax.make("KinematicArm-v0", n=2)
    system = params.system
    seen = Oracle(
        action=lambda o: system.optimum(m.inverse(o)).action,
        value=lambda o: system.value(m.inverse(o)),
        advantage=None,
        discount=system.gamma,
    )
    check_env(observed(env, m), params, seen, num_states=3, num_draws=512)


def test_transitions_are_those_of_the_problem():
    """Observations, final ones included, are m of those without the map; the rest is the same."""
    env, params = cojax.make("KinematicArm-v0", n=2, max_steps_in_episode=3)
    wrapped = observed(env, SINES)
    streamed = CommonStreams(wrapped), CommonStreams(env)
    for mapped, plain in ((wrapped, env), streamed):
        a, b = mapped.reset(KEY, params), plain.reset(KEY, params)
        np.testing.assert_allclose(a[0], SINES(b[0]), rtol=1e-6)
        a, b = a[1], b[1]
        for k in range(4):
            key = jax.random.key(k)
            action = jnp.array([0.2, -0.3])
            x, y = mapped.step(key, a, action, params), plain.step(key, b, action, params)
            np.testing.assert_allclose(x[0], SINES(y[0]), rtol=1e-5, atol=1e-6)
            final = SINES(y[5]["final_observation"])
            np.testing.assert_allclose(x[5]["final_observation"], final, rtol=1e-5, atol=1e-6)
            assert bool(x[5]["diverged"]) == bool(y[5]["diverged"])
            assert (float(x[2]), bool(x[3]), bool(x[4])) == (float(y[2]), bool(y[3]), bool(y[4]))
            assert bool(x[4]) == (k == 2)
            a, b = x[1], y[1]
    np.testing.assert_array_equal(wrapped.get_obs(b.env, params), SINES(b.env.s))


def test_wrappers_are_equal_where_their_maps_are():
    env, params = cojax.make("KinematicArm-v0", n=2)
    one, same = observed(env, maps.rotation(4, 1)), observed(ConverseEnv(), maps.rotation(4, 1))
    assert one == same
    assert hash(one) == hash(same)
    assert one != observed(env, maps.rotation(4, 2))
    assert one != env
    assert one.with_transition_gradients().transition_gradients_enabled
    assert not one.transition_gradients_enabled
    assert pickle.loads(pickle.dumps(MAPS["chained"])) == MAPS["chained"]
    assert one.name == "Observed"
    assert one.num_actions == 2
    assert one.action_space(params).shape == (2,)


def linear_policy(params, obs, key):
    return jnp.matmul(params, obs, precision="highest")


def test_a_policy_of_observations_is_judged_on_the_problem():
    """-K s, written in mapped coordinates, has the gap of LQR; with another map it has not."""
    _, params = cojax.make("KinematicArm-v0", n=2)
    K = cojax.evaluation.lqr_gain(params.system)
    K_seen = jnp.asarray(-K @ np.linalg.inv(C), jnp.float32)
    policy = maps.seen_through(Policy(K_seen, linear_policy, "lqr seen"), MAPS["linear"])
    wrong = dataclasses.replace(policy, apply=linear_policy, name="not seen")
    several = maps.seen_through(
        Policy(jnp.stack([K_seen, 0.9 * K_seen]), linear_policy, "two", axes=("seed",)),
        MAPS["linear"],
    )
    found = cojax.evaluate(["lqr", policy, wrong, several], params, 8, num_steps=40, progress=None)
    gaps = found.trials["suboptimality"][0]
    np.testing.assert_allclose(gaps[1], gaps[0], rtol=2e-4)
    np.testing.assert_allclose(gaps[3], gaps[0], rtol=2e-4)
    assert not np.allclose(gaps[2], gaps[0], rtol=0.05)
    assert not np.allclose(gaps[4], gaps[0], rtol=0.01)


def test_learners_see_the_map_alone():
    """Trained through sines and a lift, by gradients of transitions, on params side by side; the
    gap is measured on the problem as it is, where the return that the mapped environment pays is
    the same.
    """
    _, params = cojax.make("KinematicArm-v0", n=1, max_steps_in_episode=20)
    m = maps.chained(maps.sines(ConverseEnv(params).labels()[0]), maps.lifted(3, 5, 0))
    small = {"num_envs": 2, "num_steps": 4, "num_minibatches": 1, "hidden": (4,)}
    env = observed(ConverseEnv(), m)
    options = {"hyperparameters": small, "num_seeds": 1, "total_timesteps": 16, "progress": None}
    run = cojax.train("shac", cojax.stack([params, params]), KEY, env=env, **options)
    assert not run.failed.any()
    policy = run.policy.member(fixture=0, seed=0)
    seen = maps.seen_through(policy, m)
    found = cojax.evaluate(seen, params, 4, num_steps=20, progress=None)
    with pytest.raises(InputError, match="cannot take an observation of shape"):
        cojax.evaluate(policy, params, 4, num_steps=20, progress=None)
    wrapped = CommonStreams(env)

    @jax.jit
    def paid(stream):
        obs, state = wrapped.reset(stream, params)
        total = 0.0
        for k in range(20):
            action = policy(obs, KEY)
            obs, state, reward, *_ = wrapped.step(KEY, state, action, params)
            total += params.discount**k * reward
        return total

    expected = [float(paid(stream)) for stream in streams.stream_keys(0, 4)]
    np.testing.assert_allclose(found.trials["discounted_return"][0, 0], expected, rtol=1e-4)


def test_bad_input_is_refused_in_one_line():
    env, params = cojax.make("KinematicArm-v0", n=2)
    refused = [
        (lambda: maps.scaled([1.0, 0.0]), "scaled: expected numbers other than 0"),
        (lambda: maps.scaled([]), "scaled: expected a list of finite numbers"),
        (lambda: maps.warped([1.0, -1.0]), "warped: expected numbers > 0, got -1"),
        (lambda: maps.warped([1.0, np.nan]), "warped: expected a list of finite numbers"),
        (lambda: maps.linear(np.ones((2, 4))), "linear: expected rank 4, one for each state"),
        (lambda: maps.linear(np.ones(4)), "linear: expected a (k, d) matrix of finite numbers"),
        (lambda: maps.rotation(0), "dim: expected a whole number >= 1"),
        (lambda: maps.rotation(4, -1), "seed: expected a whole number >= 0"),
        (lambda: maps.lifted(4, 4), "size: expected a whole number >= 5"),
        (lambda: maps.lifted(4, 5, scale=[1.0, 2.0]), "scale: expected 4 numbers, got 2"),
        (lambda: maps.lifted(4, 5, scale=0.0), "scale: expected numbers > 0"),
        (lambda: maps.chained(), "chained: expected at least one map"),
        (lambda: maps.chained(SINES, maps.rotation(4)), "expected a map of 6 numbers after Sines"),
        (lambda: observed(params, SINES), "env: expected a gymnax environment, got EnvParams"),
        (lambda: observed(env, jnp.sin), "map: expected an ObservationMap"),
        (lambda: observed(env, maps.rotation(3)), "expected a state of shape (3,), got (4,)"),
        (lambda: maps.seen_through(jnp.sin, SINES), "policy: expected a cojax Policy"),
        (lambda: maps.seen_through(Policy((), linear_policy), jnp.sin), "map: expected an Obs"),
    ]
    for call, message in refused:
        with pytest.raises(InputError, match=re.escape(message)) as error:
            call()
        assert "\n" not in str(error.value)
