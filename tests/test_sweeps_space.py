from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from cojax.agents.training import lookup
from cojax.errors import InputError
from cojax.studies.space import Parameter, check, draw, from_unit, ordered

SPACE = {
    "target_kl": Parameter(low=0.01, high=0.1, when={"num_minibatches": [4]}),
    "learning_rate": Parameter(low=1e-4, high=1e-2, log=True),
    "num_minibatches": Parameter.model_validate([2, 4]),
    "update_epochs": Parameter(low=2, high=8, int=True),
}


def test_a_grid_is_every_combination_once():
    space = {
        "learning_rate": Parameter(low=1e-4, high=1e-2, log=True, num=3),
        "update_epochs": Parameter(low=2, high=4, int=True),
        "clip_eps": Parameter(values=[0.1, 0.2], when={"update_epochs": [4]}),
    }
    settings = draw(space, "grid", None, 0)
    # 3 rates × (2 epochs without clip_eps + 1 epoch with two values of it)
    assert len(settings) == 3 * 4
    assert [s["learning_rate"] for s in settings[::4]] == pytest.approx([1e-4, 1e-3, 1e-2])
    assert all(("clip_eps" in s) == (s["update_epochs"] == 4) for s in settings)
    assert draw({}, "grid", None, 0) == [{}]


@pytest.mark.parametrize("sampler", ["random", "sobol"])
def test_setting_i_does_not_depend_on_how_many_are_asked_for(sampler):
    few, many = (draw(SPACE, sampler, num, 3) for num in (5, 64))
    assert many[:5] == few
    assert draw(SPACE, sampler, 5, 4) != few


@pytest.mark.parametrize("sampler", ["random", "sobol"])
def test_draws_are_uniform_on_their_scale(sampler):
    settings = draw(SPACE, sampler, 1024, 0)
    exponents = np.log10([s["learning_rate"] for s in settings])
    assert np.mean(exponents) == pytest.approx(-3, abs=0.06)
    assert np.std(exponents) == pytest.approx(2 / np.sqrt(12), abs=0.03)
    epochs, counts = np.unique([s["update_epochs"] for s in settings], return_counts=True)
    assert epochs.tolist() == [2, 3, 4, 5, 6, 7, 8]  # both ends as often as the middle
    assert counts.min() > 0.75 * counts.max()


@given(st.lists(st.floats(0, 1, exclude_max=True), min_size=4, max_size=4))
def test_every_point_is_a_setting_within_its_bounds(u):
    setting = from_unit(SPACE, u)
    assert 1e-4 * (1 - 1e-12) <= setting["learning_rate"] <= 1e-2 * (1 + 1e-12)
    assert setting["update_epochs"] in range(2, 9)
    assert ("target_kl" in setting) == (setting["num_minibatches"] == 4)


def test_a_parameter_comes_after_what_it_depends_on():
    names = ordered(SPACE)
    assert names.index("target_kl") > names.index("num_minibatches")


@pytest.mark.parametrize(
    ("space", "words"),
    [
        ({"learning_rat": Parameter(values=[1])}, "did you mean 'learning_rate'"),
        ({"num_steps": Parameter(low=16, high=64)}, "decides shapes"),
        ({"clip_eps": Parameter(values=[1], when={"clip": [1]})}, "another parameter"),
        ({"clip_eps": Parameter(values=[0.1, True])}, "space.clip_eps: .* one number, got True"),
        ({"clip_eps": Parameter(values=[0.1, "0.2"])}, "one number, got '0.2'"),
        ({"clip_eps": Parameter(values=[0.1, None])}, "one number, got None"),
        ({"clip_eps": Parameter(values=[0.1, [0.2]])}, "one number, got"),
        ({"learning_rate": Parameter(values=[float("inf")])}, "got inf"),
        ({"gamma": Parameter(low=0.9, high=1.1)}, r"a number in \[0, 1\], got 1.1"),
        ({"num_envs": Parameter(values=[4, 8.0])}, "expected one int, got 8.0"),
        ({"normalize_rewards": Parameter(values=[True, 1])}, "expected one bool, got 1"),
        ({"hidden": Parameter(values=[[8], 8])}, "expected positive integers, got 8"),
        (
            {
                "clip_eps": Parameter(values=[1], when={"gae_lambda": [1]}),
                "gae_lambda": Parameter(values=[1], when={"clip_eps": [1]}),
            },
            "circle",
        ),
    ],
)
def test_a_space_that_cannot_be_used(space, words):
    with pytest.raises(InputError, match=words):
        check(lookup("ppo"), space)


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"values": []},
        {"values": [1], "low": 0.0, "high": 1.0},
        {"low": 1.0, "high": 1.0},
        {"low": 0.0, "high": 1.0, "log": True},
        {"low": 0.5, "high": 2.0, "int": True},
        {"low": "a", "high": 2.0},
    ],
)
def test_a_parameter_that_cannot_be_used(fields):
    with pytest.raises(ValidationError):
        Parameter.model_validate(fields)


def test_counts():
    with pytest.raises(InputError, match="expected a number of settings"):
        draw(SPACE, "random", None, 0)
    with pytest.raises(InputError, match="leave it out"):
        draw(SPACE, "grid", 4, 0)
    with pytest.raises(InputError, match="expected num"):
        draw(SPACE, "grid", None, 0)
