"""Settings of JAX that people switch on for their own code: no number changes, nothing stops.

Tests marked ``flags`` are run by .ci/run alone, under JAX_ENABLE_X64, and under JAX_DEBUG_NANS and
JAX_DEBUG_KEY_REUSE. Settings that find faults of one kind are switched on together here: each is
silent unless something is wrong, and then says itself what.
"""

from __future__ import annotations

import contextlib
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import cojax
from cojax import precision, streams
from cojax.adapters.batch import Batch
from cojax.agents import algorithm, population, training
from cojax.envs import CommonStreams, ConverseEnv
from cojax.evaluation import doctor
from cojax.evaluation.learning_curve import RelativeGap
from cojax.fixtures import batches, samples

NAME = "arm-n2-p0.80-s7"
GAPS = [0.40443545, 22.368981]  # of the zero and the random policy, relative, 4 × 8 steps
ON_POLICY = {"num_envs": 2, "num_steps": 4, "hidden": (4,)}
OFF_POLICY = ON_POLICY | {
    "gradient_steps": 2, "batch_size": 8, "buffer_size": 64, "learning_starts": 16,
}  # fmt: skip
LEARNERS = {
    "ppo": ON_POLICY | {"num_minibatches": 2, "update_epochs": 1},
    "a2c": ON_POLICY,
    "sac": OFF_POLICY,
    "td3": OFF_POLICY,
    "ddpg": OFF_POLICY,
    "crossq": OFF_POLICY,
    "shac": ON_POLICY | {"num_minibatches": 2, "update_epochs": 1},
}
NUMBERS = {  # what would change draws, or their precision
    "draws": {
        "jax_threefry_partitionable": False,
        "jax_random_seed_offset": 7,
        "jax_default_prng_impl": "rbg",
        "jax_enable_custom_prng": True,
    },
    "precision": {"jax_enable_x64": True},
}
SLIPS = {
    "jax_numpy_rank_promotion": "raise",
    "jax_numpy_dtype_promotion": "strict",
    "jax_debug_key_reuse": True,
}


@contextlib.contextmanager
def settings(values):
    before = {name: getattr(jax.config, name) for name in values}
    try:
        for name, value in values.items():
            jax.config.update(name, value)
        yield
    finally:
        for name, value in before.items():
            jax.config.update(name, value)


def arm():
    """Params in the precision of the moment."""
    return cojax.load_fixture(NAME).make_params()


def stepped(name="ConverseArm-v0"):
    """Observations and rewards of three ways to step one environment, and its oracle."""
    env, params = cojax.make(name)
    zero = jnp.zeros(params.system.action_dim)
    obs, state = env.reset(streams.root_key(3), params)
    after, _, reward, *_ = env.step(streams.root_key(4), state, zero, params)
    bare = env.step_env(streams.root_key(5), state, zero, params)[0]
    common = CommonStreams(env)
    keys = streams.stream_keys(0, 2)
    first, states = jax.vmap(common.reset, (0, None))(keys, params)
    second = jax.vmap(common.step, (None, 0, None, None))(keys[0], states, zero, params)[0]
    optimum = cojax.oracle.action(params.system, obs), cojax.oracle.value(params.system, obs)
    return [np.asarray(x) for x in (obs, after, reward, bare, first, second, *optimum)]


def scores(*policies, steps=8, **options):
    result = cojax.evaluate(list(policies), cojax.load_fixture(NAME), 4, num_steps=steps, **options)
    return result.trials["relative_suboptimality"][0]


def learned(name, **options):
    """A run of a few updates of two seeds on the arm."""
    options = {"total_timesteps": 32, "eval_every": 16, "num_seeds": 2} | options
    key = streams.root_key(1)
    return cojax.train(name, arm(), key, hyperparameters=LEARNERS[name], **options)


# --- run again under settings from outside -------------------------------------------------------


@pytest.mark.flags
@pytest.mark.parametrize("name", ["ConverseArm-v0", "NVDEx-v0"])
def test_environment(name):
    assert all(np.isfinite(x).all() for x in stepped(name))


@pytest.mark.flags
def test_evaluation():
    found = scores("zero", "random", "oracle", lambda obs: np.zeros(2), controls=True)
    np.testing.assert_allclose(found[:2].mean(axis=1), GAPS, rtol=1e-4)
    assert (found[2] == 0.0).all()
    np.testing.assert_allclose(found[3], found[0], rtol=1e-5)


@pytest.mark.flags
def test_policies_that_fail():
    """NaN and infinite actions are failures of a trial, not of the program."""
    worst = {
        "nan": lambda obs, key: jnp.full(2, jnp.nan) * obs[0],
        "draws": lambda obs, key: 1e-3 * jax.random.normal(key, (2,), jnp.float32),
    }
    result = cojax.evaluate(worst, cojax.load_fixture(NAME), 4, num_steps=4)
    assert result.trials["failed"][0].mean(axis=1).tolist() == [1.0, 0.0]


@pytest.mark.flags
@pytest.mark.parametrize("name", LEARNERS)
def test_learner(name):
    run = learned(name, evaluate=RelativeGap(2, 4))
    assert {leaf.dtype.name for leaf in jax.tree.leaves(run.policy.params)} == {"float32"}
    assert np.isfinite(run.curves).all()
    assert not run.failed.any()
    none = run.metrics["episodes"] == 0  # 0/0, and not a fault to stop at
    assert none.any()
    np.testing.assert_array_equal(np.isnan(run.metrics["episode_return"]), none)


@pytest.mark.flags
def test_what_was_learned_is_judged():
    run = learned("a2c", evaluate=RelativeGap(2, 4))
    assert np.isfinite(scores(run.policy, steps=4)).all()
    meters = cojax.evaluation.diagnose(
        run.agent(seed=1), arm(), num_trials=2, num_steps=4, batches=2
    )
    assert meters.gradient is not None
    assert np.isfinite(meters.gradient["cosine"])


@pytest.mark.flags
def test_gymnasium_stands_still_and_goes_on():
    batch = Batch(ConverseEnv(), arm(), 2)
    batch.reset(0)
    out = batch.step(np.zeros((2, 2)), hold=np.array([True, False]))
    assert (out.reward == 0.0).tolist() == [True, False]


# --- settings that would change numbers ----------------------------------------------------------


def everything():
    """Fingerprint, keys, starts and noise of environments, adapters, trials and the validator."""
    batch = Batch(ConverseEnv(), arm(), 2)
    host = [batch.reset(5), batch.step(np.zeros((2, 2))).obs]
    keys = [jax.random.key_data(streams.root_key(2**k + 5)) for k in (0, 31)]
    fixture = next(batches.batches([cojax.load_fixture(NAME)]))[1]
    return [*stepped(), *host, *keys, *samples.draw(fixture), scores("zero", "random")]


@pytest.fixture(scope="module")
def usual():
    return streams.fingerprint(), everything()


@pytest.mark.parametrize("name", NUMBERS)
def test_streams_are_the_same_under(name, usual):
    fingerprint, before = usual
    with settings(NUMBERS[name]):
        assert streams.fingerprint() == fingerprint
        after = everything()
    tolerance = {"rtol": 0.0} if name == "draws" else {"rtol": 2e-5, "atol": 1e-6}
    for x, y in zip(before, after, strict=True):
        np.testing.assert_allclose(x, y, **tolerance)


@pytest.mark.parametrize(("learner", "name"), [("a2c", "draws"), ("sac", "precision")])
def test_training_is_the_same_under(name, learner, tmp_path):
    """Also where the run is checkpointed."""
    before = learned(learner)
    with settings(NUMBERS[name]):
        after = learned(learner, checkpoint_dir=tmp_path)
    tolerance = {"rtol": 0.0} if name == "draws" else {"rtol": 1e-4, "atol": 1e-6}
    for x, y in zip(
        *map(jax.tree.leaves, (before.policy.params, after.policy.params)), strict=True
    ):
        assert x.dtype == y.dtype
        np.testing.assert_allclose(x, y, **tolerance)


def test_training_within_double_precision():
    before = learned("a2c")
    with precision.x64():
        after = learned("a2c")
    for x, y in zip(
        *map(jax.tree.leaves, (before.policy.params, after.policy.params)), strict=True
    ):
        assert x.dtype == y.dtype == np.float32
        np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-6)


def test_the_doctor_within_double_precision(monkeypatch):
    for name, value in {"REPEATS": 8, "TRIALS": 8, "NUM_STEPS": 10}.items():
        monkeypatch.setattr(doctor, name, value)
    few = {what: doctor.CLASSES[what] for what in ("noise in gusts", "risk")}
    monkeypatch.setattr(doctor, "CLASSES", few)
    monkeypatch.setattr(doctor, "HIDDEN", {})
    with precision.x64():
        findings = doctor.examine()
    assert [finding.check for finding in findings if not finding.passed] in ([], ["time"])


def test_other_generators_do_not_train():
    with pytest.raises(ValueError, match="key: expected the threefry2x32 generator, got rbg"):
        cojax.train("ppo", arm(), jax.random.key(0, impl="rbg"))


# --- settings that find slips in people's own code -----------------------------------------------


def test_environment_and_evaluation_under_all():
    with settings(SLIPS):
        stepped()
        scores("zero", "random", "lqr", "receding-horizon:2", lambda obs: np.zeros(2), steps=2)


@pytest.mark.parametrize("learner", LEARNERS)
def test_learners_are_traced_under_all(learner):
    """These settings speak while a program is traced: nothing is compiled here."""
    spec, env = training.lookup(learner), ConverseEnv()
    with settings(SLIPS):
        h = LEARNERS[learner]
        p, _ = population.grid(
            spec, env, arm(), streams.root_key(0), hyperparameters=[h, h], num_seeds=2,
            batching="vmap",
        )  # fmt: skip
        arguments = p.arguments()
        state = jax.eval_shape(partial(population.initialize, spec, env, p.layout), *arguments)
        population.advance.lower(
            spec, env, RelativeGap(2, 4), p.layout,
            state=state, num_updates=jnp.int32(1), env_params=arguments[0], h=arguments[1],
        )  # fmt: skip


def test_certificates_under_all():
    with settings(SLIPS):
        assert cojax.validate(NAME).passed


def test_without_compilation():
    """What ``jax_disable_jit`` is for: to step through with a debugger."""
    env, params = cojax.make("PointMass-v0")
    key = streams.root_key(0)

    def everything():
        obs, state = env.reset(key, params)
        out = env.step(key, state, jnp.zeros(2), params)
        policies = ["zero", lambda obs: np.zeros(2)]
        gaps = cojax.evaluate(policies, params, 1, num_steps=1, chunk=1).trials["suboptimality"]
        return out[0], out[2], cojax.oracle.value(params.system, obs), gaps

    before = everything()
    with jax.disable_jit():
        after = everything()
    for x, y in zip(before, after, strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("learner", LEARNERS)
def test_learners_without_compilation(learner):
    env, params = cojax.make("PointMass-v0")
    spec = training.lookup(learner)
    h = algorithm.hyperparameters(spec.hyperparameters, LEARNERS[learner] | {"num_envs": 1})
    with jax.disable_jit():
        state = spec.init(env, streams.root_key(0), params, h)
        for _ in range(5):  # beyond the warm-up
            state, _ = spec.update(env, state, params, h)
    assert not state.failed
