"""Public objects show themselves in three lines, whatever they hold."""

from __future__ import annotations

import jax
import numpy as np
import pytest

import cojax
from cojax.io.described import number, table, text
from cojax.policy import Policy
from cojax.studies import load_study


def apply(params, obs, key):
    return params["gain"] @ obs


def objects():
    params = cojax.load_fixture("arm-n2-p0.80-s7").params
    batch = cojax.stack([params, cojax.load_fixture("arm-n2-p0.80-s7").params])
    policy = Policy({"gain": np.ones((3, 2, 4))}, apply, "own", ("seed",))
    env, _ = cojax.make("PointMass-v0")
    study = load_study("quickstart")
    fixture = cojax.load_fixture("arm-n2-p0.80-s7")
    reference = cojax.evaluation.detuned_oracle(0.5)
    shown = [params, batch, params.system, policy, env, study]
    return [*shown, reference, fixture, fixture.certificate]


@pytest.mark.parametrize("shown", objects(), ids=lambda shown: type(shown).__name__)
def test_an_object_is_three_lines_and_a_table(shown):
    for words in (repr(shown), str(shown)):
        assert len(words.splitlines()) <= 3
        assert len(words) < 400
        assert type(shown).__name__ in words
    assert shown._repr_html_().startswith("<table>")


def test_what_is_shown_is_what_is_there():
    params, batch, system, policy, env, study, *_, certificate = map(repr, objects())
    assert "EnvParams of ConverseArm\n" in params
    assert "states 4, actions 2, gamma 0.99" in params
    assert "2 side by side" in batch
    assert "p 0.8" in system
    assert "'own'" in policy
    assert "parameters 24" in policy
    assert "seed 3" in policy
    assert "\n" not in env
    assert "arm-n4-p0.50-s7, nvdex-k1-easy" in study
    assert "checks 17 of 17 passed" in certificate


def test_traced_objects_show_themselves():
    params = cojax.load_fixture("arm-n2-p0.80-s7").params
    seen = []
    jax.jit(lambda p: (seen.append(repr(p)), p.system.gamma)[1])(params)
    assert "gamma traced" in seen[0]


def test_numbers_and_facts():
    assert number(np.float32(0.98765)) == "0.988"
    assert number([1.0, 3.0, 2.0]) == "1 to 3"
    assert not number([])
    assert text("title", {"a": 1, "none": None, "empty": ""}) == "title\n  a 1"
    assert "<td style='text-align:left'>&lt;b&gt;</td>" in table("t", {"a": "<b>"})
