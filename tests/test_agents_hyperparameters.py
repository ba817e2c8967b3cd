"""Hyperparameters: what is refused, what they mean, and the names they had."""

from __future__ import annotations

import dataclasses
import inspect
import json
import re

import jax
import numpy as np
import pytest

import cojax
from cojax.agents import RenamedWarning, ppo, settings, td3, training, tuned
from cojax.agents.settings import hyperparameters
from cojax.errors import InputError
from cojax.studies import study as study_of


def test_a_hyperparameter_of_the_wrong_kind_is_named():
    build = settings.hyperparameters
    with pytest.raises(ValueError, match=r"unknown hyperparameter 'learning_rat'.*'learning_rate'"):
        build(ppo.PPO, {"learning_rat": 1e-3})
    with pytest.raises(ValueError, match=r"PPO.gamma: expected a number in \[0, 1\], got 1.5"):
        build(ppo.PPO, {"gamma": 1.5})
    with pytest.raises(ValueError, match=r"PPO.learning_rate: expected a number.*nan"):
        build(ppo.PPO, {"learning_rate": float("nan")})
    with pytest.raises(ValueError, match=r"PPO.num_envs decides shapes"):
        build(ppo.PPO, {"num_envs": 2.5})
    with pytest.raises(ValueError, match=r"PPO.num_envs: expected at least 1"):
        build(ppo.PPO, {"num_envs": 0})
    with pytest.raises(ValueError, match=r"PPO.hidden: expected positive integers"):
        build(ppo.PPO, {"hidden": [64, -1]})
    with pytest.raises(ValueError, match=r"PPO.learning_rate: expected one number"):
        build(ppo.PPO, {"learning_rate": "fast"})
    with pytest.raises(ValueError, match="cannot vary in one run"):
        settings.stack_hyperparameters(ppo.PPO, [{"num_envs": 2}, {"num_envs": 4}], {})
    with pytest.raises(ValueError, match="in every setting or in none"):
        settings.stack_hyperparameters(ppo.PPO, [{"gamma": 0.9}, {}], {})


@pytest.mark.parametrize("algorithm", ["ppo", "td3"])
def test_tuned_hyperparameters_are_valid(algorithm):
    for family in tuned.table()["algorithms"][algorithm]:
        given = tuned.tuned(algorithm, family)
        assert given
        training.check(algorithm, given)
    assert tuned.tuned(algorithm, "no such family") == {}


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("learning_rate", np.inf, "expected a number in [0, inf), got inf"),
        ("learning_rate", 1e39, "expected a number in [0, inf), got 1e+39"),
        ("ent_coef", -np.inf, "expected a number in (-inf, inf), got -inf"),
        ("max_grad_norm", np.nan, "expected a number in [0, inf], got nan"),
        ("max_grad_norm", 10**400, "expected a number in [0, inf], got 1000"),
        ("learning_rate", {"a": 1}, "expected one number, got {'a': 1}"),
        ("num_envs", 10**30, "expected at most 2,147,483,647"),
        ("hidden", [True], "expected positive integers"),
    ],
)
def test_numbers_that_float32_cannot_hold_are_refused(name, value, words):
    with pytest.raises(InputError, match=re.escape(words)):
        hyperparameters(ppo.PPO, {name: value})
    assert float(hyperparameters(ppo.PPO, {"max_grad_norm": np.inf}).max_grad_norm) == np.inf


@pytest.mark.parametrize("name", ["ppo", "a2c", "sac", "td3", "ddpg", "crossq"])
def test_help_says_what_every_hyperparameter_means(name):
    cls = training.ALGORITHMS[name].hyperparameters
    words = inspect.getdoc(cls)
    for field in dataclasses.fields(cls):
        assert words.count(f"\n    {field.name}: ") == 1, field.name
    fixed = {"a2c": ("num_minibatches", "update_epochs"), "ddpg": ("num_critics", "policy_delay")}
    for other in fixed.get(name, ()):
        assert getattr(cls, other) == 1
        assert f"{other}:" not in words


@pytest.mark.filterwarnings("always::cojax.agents.RenamedWarning")
def test_the_last_versions_names_are_accepted_with_a_warning():
    given = {"average_rate": 0.5, "gamma": 0.9, "random_phase": True}
    with pytest.warns(RenamedWarning, match=r"^PPO: average_rate is now called actor_ema_rate; "):
        h = hyperparameters(ppo.PPO, given)
    assert (float(h.actor_ema_rate), h.stagger_episodes) == (0.5, True)
    both = {"value_rate": 0.1, "popart_rate": 0.1}
    with pytest.raises(InputError, match=r"^PPO: value_rate is now called popart_rate; give one"):
        hyperparameters(ppo.PPO, both)
    with pytest.raises(InputError, match="unknown hyperparameter 'value_rate'"):
        hyperparameters(td3.TD3, {"value_rate": 0.1})


def test_files_with_the_last_versions_names_say_what_they_said():
    """Beneath and above the tuned defaults, which have the new ones; order and all."""

    def both_ways(read, old):
        with pytest.warns(RenamedWarning):
            ours = read(old)
        words = json.dumps(old)
        for name, new in settings.RENAMED.items():
            words = words.replace(name, new)
        assert ours == read(json.loads(words))
        return ours

    learner = {
        "name": "ppo",
        "hyperparameters": {"average_rate": 0.5, "gamma": 0.9},
        "families": {"ConverseArm": {"value_rate": 0.3}},
    }
    content = {"schema": "cojax.train/1", "fixtures": ["x"], "algorithm": learner}
    content["settings"] = [{"random_phase": True}, {}]
    ours = both_ways(study_of, content)
    (learned,) = ours.algorithms
    setting = {**ours.base(learned, "ConverseArm"), **ours.settings(learned)[0]}
    hyperparameters(ppo.PPO, setting)  # neither is there twice
    assert (setting["actor_ema_rate"], setting["stagger_episodes"]) == (0.5, True)
    space = {"random_phase": [True, False], "value_rate": {"low": 0.1, "high": 0.2, "num": 2,
             "when": {"random_phase": [True]}}, "gamma": [0.9]}  # fmt: skip
    learner = {"name": "ppo", "hyperparameters": {"average_rate": 0.5}, "space": space}
    content = {"schema": "cojax.sweep/1", "fixtures": ["x"], "algorithms": [learner]}
    swept = both_ways(study_of, content)
    assert len(swept.settings(swept.algorithms[0])) == 3
    assert list(swept.algorithms[0].space) == ["stagger_episodes", "popart_rate", "gamma"]


def test_origin_names_profile_family_and_what_is_given():
    assert tuned.origin(None, "ppo", "NVDEx") == "ppo: its defaults"
    assert tuned.origin("tuned", "ppo", "NVDEx", ["gamma"]) == (
        "ppo: tuned for NVDEx, with gamma as given"
    )
    assert tuned.origin("tuned", "ddpg", "ConverseArm") == (
        "ddpg: its defaults (nothing tuned for ConverseArm)"
    )
    with pytest.raises(ValueError, match="profile: expected tuned, published or None, got 'best'"):
        tuned.origin("best", "ppo", None)  # pyright: ignore[reportArgumentType]


def test_a_profile_lies_beneath_what_is_given():
    env, params = cojax.make("NVDEx-v0", K=1)
    key = jax.random.key(0)

    def job(hyperparameters, **options):
        return training.prepare(
            "ppo", params, key, env=env, hyperparameters=hyperparameters, total_timesteps=1,
            num_seeds=None, **options,
        )  # fmt: skip

    small = {"hidden": [4], "num_envs": 2, "num_steps": 2, "num_minibatches": 1}
    found = job([small, {**small, "gae_lambda": 0.5}], profile="tuned")
    h, known = found.population.h, tuned.tuned("ppo", "NVDEx")
    assert known["gae_lambda"] != ppo.PPO().gae_lambda
    np.testing.assert_allclose(h.gae_lambda, [known["gae_lambda"], 0.5], rtol=1e-6)
    assert set(np.ravel(h.max_episode_steps)) == {known["max_episode_steps"]}
    assert h.num_envs == 2
    assert found.origin.startswith("ppo: tuned for NVDEx, with gae_lambda, hidden, num_envs")
    assert job(small).origin.startswith("ppo: its defaults, with hidden")
    with pytest.raises(ValueError, match="profile: expected hyperparameters as mappings"):
        job(ppo.PPO(num_envs=2, num_steps=2, num_minibatches=1), profile="tuned")
