"""Comparisons of results and of policies of one result, in Python and from the command line."""

from __future__ import annotations

import dataclasses
import json

import pytest
from helpers import run
from test_evaluation_provenance import evaluation

import cojax
from cojax.evaluation.result import Member


@pytest.fixture
def a():
    return evaluation()


@pytest.fixture
def b():
    """The same trials, half a unit worse for the learner, which has another name."""
    members = (Member("zero"), Member("old", seed=0), Member("old", seed=1))
    return dataclasses.replace(evaluation(shift=0.5), members=members)


def pairs(comparison):
    return [(row["first"], row["second"]) for row in comparison.rows() if row["fixture"] == "f"]


def test_evaluations_and_folders_give_one_comparison(tmp_path, a, b):
    a.save(tmp_path / "a")
    b.save(tmp_path / "b")
    in_memory = cojax.compare(a, b, policies="ppo=old")
    assert cojax.compare(tmp_path / "a", b, policies="ppo=old").rows() == in_memory.rows()
    status, out, _ = run(
        "compare", str(tmp_path / "a"), str(tmp_path / "b"), "--policy", "ppo=old", "--json"
    )
    assert status == 0
    assert [row["difference"] for row in json.loads(out)] == [
        row["difference"] for row in in_memory.rows()
    ]
    frame = in_memory.to_frame()
    assert frame["difference"].tolist() == pytest.approx([-0.5, -0.5])
    assert (frame["difference_low"] <= frame["difference"]).all()
    assert frame["metric"].unique().tolist() == ["relative_suboptimality"]
    assert len(repr(in_memory).splitlines()) == 3


@pytest.mark.parametrize(
    ("chosen", "expected"),
    [
        ((), [("zero", "zero")]),
        (["ppo=old"], [("ppo", "old")]),
        (["ppo=old", "zero"], [("ppo", "old"), ("zero", "zero")]),
        (["ppo", "old"], [("ppo", "old")]),
        (["ppo"], [("ppo", "zero"), ("ppo", "old")]),
    ],
)
def test_which_policies_of_two_are_compared(a, b, chosen, expected):
    assert pairs(cojax.compare(a, b, policies=chosen)) == expected


@pytest.mark.parametrize(
    ("chosen", "expected"),
    [((), [("zero", "ppo")]), (["ppo", "zero"], [("ppo", "zero")]), ("ppo", [("ppo", "zero")])],
)
def test_policies_of_one_result_are_compared_in_the_order_given(a, chosen, expected):
    assert pairs(cojax.compare(a, policies=chosen)) == expected


def test_from_the_command_line_within_one_folder(tmp_path, a):
    a.save(tmp_path / "a")
    status, out, _ = run("compare", str(tmp_path / "a"), "--policy", "ppo", "--policy", "zero")
    assert status == 0
    assert "ppo - zero" in out
    assert "relative_suboptimality" in out


def test_what_cannot_be_compared_is_refused_with_all_reasons(a, b):
    other = dataclasses.replace(b, root=1, dtype="float64")
    with pytest.raises(ValueError, match=r"root: 0 and 1.*precision: float32 and float64"):
        cojax.compare(a, other)
    for words in ("pop", "ppo=odl", "pop=old"):
        with pytest.raises(ValueError, match="did you mean"):
            cojax.compare(a, b, policies=words)
    with pytest.raises(ValueError, match="metric"):
        cojax.compare(a, b, "regret")
