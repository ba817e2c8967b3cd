"""A curriculum: stages of one problem in one run, whose optimum stays what it is."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from click.testing import CliRunner

import cojax
from cojax.agents.algorithm import Clock
from cojax.agents.curriculum import Curriculum, curriculum
from cojax.cli import main
from cojax.envs.stages import knobs, stages
from cojax.errors import InputError
from cojax.io import yaml
from cojax.quadratic import rebuild
from cojax.system import mean_next_state

TINY = {"num_envs": 2, "num_steps": 4, "num_minibatches": 1, "update_epochs": 1, "hidden": (4,)}


def at(tree, i):
    return jax.tree.map(lambda x: x[i], tree)


@pytest.fixture(scope="module")
def arm():
    return cojax.make("arm-n2-p0.80-s7")[1]


@pytest.mark.parametrize("name", ["arm-n2-p0.80-s7", "double-integrator", "nvdex-k1-easy"])
def test_stages_are_the_problem_at_other_knobs_and_leave_its_value_alone(name):
    params = cojax.make(name)[1]
    values = [0.3, 0.5, float(params.system.p)]
    way = cojax.stack(stages(params, "p", values))
    s = params.initial_state.sample(jax.random.key(0))
    a = jnp.ones(params.system.action_dim, s.dtype)
    for i, p in enumerate(values):
        stage, known = at(way, i).system, rebuild(params.system, p=p)
        np.testing.assert_allclose(
            mean_next_state(stage, s, a), mean_next_state(known, s, a), rtol=1e-5, atol=1e-6
        )
        np.testing.assert_allclose(stage.value(s), params.system.value(s), rtol=1e-6)
    last = at(way, 2).system
    np.testing.assert_array_equal(mean_next_state(last, s, a), mean_next_state(params.system, s, a))


def test_the_clock_decides_which_stage_is_met(arm):
    way = curriculum(arm, p=0.2, until=0.5, num_stages=4)
    np.testing.assert_allclose(way.stages.system.p, [0.2, 0.4, 0.6, 0.8], rtol=1e-6)
    clock = Clock.create()
    assert float(way.at(clock).system.p) == float(arm.system.p)  # no plan: the problem itself
    found = [
        round(float(way.at(clock.planned(60).replace(update=jnp.int32(u))).system.p), 4)
        for u in (0, 9, 10, 20, 29, 30, 59, 60)
    ]
    assert found == [0.2, 0.2, 0.4, 0.6, 0.6, 0.8, 0.8, 0.8]


def test_every_knob_of_the_geometry_can_be_one(arm):
    assert set(knobs(arm.system)) == {"p", "alpha0", "beta0", "g0", "kappa1", "kappa2"}
    way = curriculum(arm, g0=0.0, num_stages=3)
    np.testing.assert_allclose(way.stages.system.geometry.g0, [0.0, 0.4, 0.8], rtol=1e-6)


def test_a_batch_may_begin_beyond_its_own_values():
    """Where stages are harder than the problem, series of unlike lengths meet."""
    names = ("arm-n12-p0.60-s7", "arm-n12-p0.80-s11")
    alone = [cojax.make(name)[1] for name in names]
    starts = [stages(one, "p", [1.0])[0].system.inverse_sqrt.length for one in alone]
    assert starts[0] != starts[1]
    way = curriculum(cojax.stack(alone), p=1.0, num_stages=2)
    np.testing.assert_allclose(way.stages.system.p, [[1.0, 0.6], [1.0, 0.8]], rtol=1e-6)


def trained(params, **options):
    key = jax.random.key(3)
    given = {"hyperparameters": TINY, "num_seeds": 2, "total_timesteps": 64, "eval_every": 32}
    return cojax.train("ppo", params, key, **(given | options))


def same(a, b):
    for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        np.testing.assert_array_equal(x, y)


def near(a, b):
    """Equal up to what another program rounds: runs or policies."""
    a, b = (getattr(x, "policy", x).params["actor"] for x in (a, b))
    for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-6)


def test_a_curriculum_of_one_value_is_training_without_and_another_is_not(arm):
    plain = trained(arm)
    still = Curriculum(
        arm, cojax.stack(stages(arm, "p", [float(arm.system.p)] * 2)), np.float32(0.5)
    )
    near(trained(still), plain)
    moved = trained(curriculum(arm, p=0.2, until=1.0))
    with pytest.raises(AssertionError):
        near(moved, plain)


def test_a_batch_is_a_population_of_curricula(arm):
    other = dataclasses.replace(arm, system=rebuild(arm.system, R=5.0))
    both = cojax.stack([arm, other])
    way = curriculum(both, p=0.2, num_stages=3)
    assert way.stages.system.p.shape == (2, 3)
    run = trained(way, batching="vmap")
    assert run.axes == ("fixture", "seed")
    alone = trained(curriculum(arm, p=0.2, num_stages=3))
    near(run.member(fixture=0), alone.policy)


def test_interrupted_and_continued_it_is_the_same_and_without_it_another_run(arm, tmp_path):
    class Stop(Exception):
        pass

    def stop(steps, total, metrics):
        raise Stop

    way = curriculum(arm, p=0.2, num_stages=3)
    with pytest.raises(Stop):
        trained(way, checkpoint_dir=tmp_path, progress=stop)
    with pytest.raises(InputError, match="params"):
        trained(curriculum(arm, p=0.3, num_stages=3), checkpoint_dir=tmp_path)
    same(trained(way, checkpoint_dir=tmp_path).policy.params, trained(way).policy.params)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "expected one knob"),
        ({"p": 0.2, "g0": 0.1}, "expected one knob"),
        ({"q": 0.2}, "curriculum: unknown 'q'"),
        ({"p": 0.0}, "p: expected"),
        ({"p": 0.2, "until": 0.0}, "until: expected"),
        ({"p": 0.2, "num_stages": 1}, "num_stages: expected a whole number >= 2"),
    ],
)
def test_what_it_refuses_in_one_line(arm, options, message):
    with pytest.raises(InputError, match=message) as error:
        curriculum(arm, **options)
    assert "\n" not in str(error.value)
    with pytest.raises(InputError, match="expected cojax's EnvParams, got dict"):
        curriculum({}, **options)  # pyright: ignore[reportArgumentType]


def test_on_the_command_line(tmp_path):
    def run(*arguments):
        return CliRunner().invoke(main, ["train", "ppo", "--fixture", "double-integrator",
                                         "--timesteps", "32", "--seeds", "1", "--points", "1",
                                         *(f"--set={k}={list(v) if k == 'hidden' else v}"
                                           for k, v in TINY.items()),
                                         *arguments])  # fmt: skip

    out = tmp_path / "run"
    done = run("--curriculum", "p=0.5", "--out", str(out))
    assert done.exit_code == 0, done.output
    kept = yaml.load(out / "config.yaml")["curriculum"]
    assert kept == {"knob": "p", "start": 0.5, "until": 0.5, "num_stages": 8}
    for word, message in (("g0=0.5", "g0"), ("p", "--curriculum: expected NAME=VALUE")):
        refused = run("--curriculum", word, "--out", str(tmp_path / "other"))
        assert refused.exit_code != 0
        assert message in refused.output
        assert "Traceback" not in refused.output
        assert not (tmp_path / "other").exists()
