"""Evaluations leave Python, and come back: folders, frames, tables, figures, joins."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from helpers import run
from test_evaluation_provenance import evaluation

import cojax
from cojax.evaluation import Evaluation, provenance
from cojax.evaluation.result import Member

ARM, SMALL = "arm-n4-p0.80-s7", "arm-n2-p0.80-s7"


def same(first, second):
    assert first.trials.keys() == second.trials.keys()
    for name, values in first.trials.items():
        np.testing.assert_array_equal(values, second.trials[name], err_msg=name)
    for name in ("fixtures", "members", "root", "dtype", "floors", "hashes"):
        assert getattr(first, name) == getattr(second, name), name
    np.testing.assert_array_equal(first.horizons, second.horizons)


def test_what_is_saved_is_read_to_the_bit(tmp_path):
    whole = evaluation()
    whole.save(tmp_path / "a")
    same(Evaluation.load(tmp_path / "a"), whole)
    members = tuple(Member("ppo", hyperparameters=k, seed=0) for k in (-1, 0, 7))
    swept = dataclasses.replace(whole, members=members)
    swept.save(tmp_path / "b")
    same(Evaluation.load(tmp_path / "b"), swept)
    with pytest.raises(ValueError, match="exists already"):
        whole.save(tmp_path / "a")


def test_a_folder_of_other_streams_or_uneven_policies_is_refused(tmp_path, monkeypatch):
    whole = evaluation()
    whole.save(tmp_path / "a")
    frame = whole.frame()
    uneven = frame[(frame["fixture"] == "f") | (frame["policy"] == "zero")]
    about = provenance.provenance("run", [whole])
    (tmp_path / "b").mkdir()
    provenance.write(tmp_path / "b", about, whole.rows(), uneven)
    with pytest.raises(ValueError, match="the same policies and trials on every fixture"):
        Evaluation.load(tmp_path / "b")
    monkeypatch.setattr(provenance.streams, "fingerprint", lambda: "other")
    with pytest.raises(ValueError, match="stream_fingerprint"):
        Evaluation.load(tmp_path / "a")


def test_frames_are_flat_and_say_what_rows_say():
    whole = evaluation()
    frame = whole.to_frame()
    for row, (_, line) in zip(whole.rows(), frame.iterrows(), strict=True):
        cell = row["relative_suboptimality"]
        assert line["relative_suboptimality"] == cell["mean"]
        assert line["relative_suboptimality_low"] == cell["low"]
        assert line["relative_suboptimality_high"] == cell["high"]
    assert all(np.ndim(value) == 0 for value in frame.iloc[0])


def test_evaluations_on_the_same_trials_join():
    whole = evaluation()
    parts = [
        dataclasses.replace(
            whole,
            members=tuple(whole.members[k] for k in own),
            trials={name: values[:, own] for name, values in whole.trials.items()},
        )
        for own in ([0], [1, 2])
    ]
    same(parts[0].join(parts[1]), whole)
    assert whole.join(whole).members == whole.members  # the same trials are there once
    both = whole.join(evaluation(shift=0.5))
    assert [m.policy for m in both.members] == ["zero", "ppo", "ppo", "ppo#2", "ppo#2"]
    for changes, words in (
        ({"root": 1}, "root"),
        ({"dtype": "float64"}, "dtype"),
        ({"horizons": np.array([5, 7])}, "horizons"),
        ({"hashes": ("aa", "cc")}, "hashes"),
    ):
        with pytest.raises(ValueError, match=f"other: {words}: expected"):
            whole.join(evaluation(**changes))


def test_three_lines_and_a_table_of_html():
    whole = evaluation()
    lines = repr(whole).splitlines()
    assert len(lines) == 3
    assert "2 fixtures, 2 policies, 16 paired trials" in lines[0]
    assert whole._repr_html_().startswith("<table>")


def test_figures(tmp_path):
    whole = evaluation()
    for name in ("suboptimality", "relative_suboptimality"):
        whole.trials[name] = whole.trials[name].copy()
        whole.trials[name][0, 1, 2] = np.inf
    whole.trials["failed"][0, 1, 2] = 1.0
    drawing = whole.plot(tmp_path / "a.pdf")
    assert (tmp_path / "a.pdf").read_bytes().count(b"FontFile2") >= 1  # embedded
    first, second = drawing.axes[:2]
    words = [text.get_text() for text in first.texts]
    assert "1 of 32 failed" in words
    assert "∞" in words  # a lane of its own
    assert not second.texts
    with pytest.raises(ValueError, match="expected a name that ends in"):
        whole.plot(tmp_path / "a.bmp")


def test_a_policy_for_each_fixture_in_one_call():
    fixtures = [cojax.load_fixture(name) for name in (ARM, SMALL)]
    own = {ARM: "detuned-oracle:0.8", SMALL: lambda obs: np.zeros(2)}
    options = {"num_trials": 4, "num_steps": 20}
    result = cojax.evaluate({"mine": own, "zero": "zero"}, fixtures, **options)
    assert result.fixtures == (ARM, SMALL)
    assert result.hashes == tuple(one.sha256 for one in fixtures)
    assert [member.policy for member in result.members] == ["mine", "zero"]
    gaps = result.trials["suboptimality"]
    np.testing.assert_allclose(gaps[1, 0], gaps[1, 1], rtol=1e-6)
    alone = cojax.evaluate("detuned-oracle:0.8", fixtures[0], **options)
    np.testing.assert_allclose(gaps[0, 0], alone.trials["suboptimality"][0, 0], rtol=1e-5)
    with pytest.raises(ValueError, match=f"policy mine: .* got none for {SMALL}"):
        cojax.evaluate({"mine": {ARM: "zero"}}, fixtures, **options)


SOURCE = """
import numpy as np
GAIN = 0.0
def brake(observation):
    return GAIN * observation[:2]
def jax_zero(observation, key):
    return 0.0 * observation[:2]
"""


def test_own_policies_from_the_command_line(tmp_path):
    (tmp_path / "own.py").write_text(SOURCE)
    short = ["--fixture", SMALL, "--trials", "4", "--steps", "20"]
    policies = [f"mine={tmp_path}/own.py:brake", f"{tmp_path}/own.py:jax_zero", "none=zero"]
    words = [word for one in policies for word in ("--policy", one)]
    places = ["--out", str(tmp_path / "a"), "--where", str(tmp_path / "where.png")]
    status, _, err = run("evaluate", *short, *words, *places)
    assert status == 0, err
    assert (tmp_path / "where.png").stat().st_size > 1000
    result = Evaluation.load(tmp_path / "a")
    assert [member.policy for member in result.members] == ["mine", "jax_zero", "none"]
    gaps = result.trials["suboptimality"][0]
    np.testing.assert_allclose(gaps[0], gaps[2], rtol=1e-6)
    np.testing.assert_allclose(gaps[1], gaps[2], rtol=1e-6)


@pytest.mark.parametrize(
    ("policy", "words"),
    [
        ("own.py", "expected a function of it, own.py:FUNCTION"),
        ("own.py:brak", "did you mean 'brake'"),
        ("none.py:brake", "none.py: no such file"),
        ("broken.py:brake", "cannot be run: ZeroDivisionError"),
        ("mine=orcle", "did you mean 'oracle'"),
    ],
)
def test_unusable_policies_are_one_line(tmp_path, monkeypatch, policy, words):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own.py").write_text(SOURCE)
    (tmp_path / "broken.py").write_text("1 / 0")
    status, _, err = run("evaluate", "--fixture", SMALL, "--policy", policy)
    assert status == 2
    assert words in err
    assert len(err.strip().splitlines()) == 1
