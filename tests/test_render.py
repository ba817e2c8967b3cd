"""Animations show the evaluator's trial, and are written whole or not at all."""

from __future__ import annotations

import io
import shutil

import jax
import numpy as np
import pytest
from click.testing import CliRunner
from PIL import Image

import cojax
from cojax.cli import main
from cojax.report.animation import animate, frame

FIXTURE = "arm-n2-p0.80-s7"


@pytest.fixture(scope="module")
def arm():
    return cojax.load_fixture(FIXTURE)


@pytest.fixture(scope="module")
def made(arm):
    return animate(arm, "lqr", num_steps=12, trial=3, root=5)


def test_the_trial_is_the_evaluators(arm, made):
    result = cojax.evaluate(["lqr", "zero"], arm, num_trials=4, root=5, num_steps=12)
    discount = arm.gamma ** np.arange(12)
    for m, side in enumerate(made.sides):
        advantage = jax.vmap(cojax.oracle.advantage, (None, 0, 0))(
            made.params.system, side.states[:-1].astype(np.float32), side.actions.astype(np.float32)
        )
        gap = np.sum(discount * np.asarray(advantage))
        np.testing.assert_allclose(gap, result.trials["suboptimality"][0, m, 3], rtol=1e-4)
        np.testing.assert_allclose(side.values[0], result.trials["optimal_value"][0, m, 3])


def test_a_policy_of_zero_stands_beside_the_optimum(arm):
    made = animate(arm, "zero", num_steps=3)
    assert [side.label for side in made.sides] == ["no control", "π*"]
    assert (made.sides[0].actions == 0.0).all()


def test_frames_move_and_files_open(made, tmp_path, monkeypatch):
    with Image.open(made.save(tmp_path / "a.gif")) as picture:
        assert (picture.format, picture.n_frames) == ("GIF", 13)
        first = np.asarray(picture.convert("RGB"))
        picture.seek(8)
        assert (np.asarray(picture.convert("RGB")) != first).any()
    with Image.open(io.BytesIO(made._repr_png_())) as picture:
        assert picture.format == "PNG"
    assert made._repr_html_().startswith('<img alt="animation" src="data:image/gif;base64,R0lG')
    monkeypatch.setattr(shutil, "which", lambda name: None)
    assert made.save(tmp_path / "b.mp4") == tmp_path / "b.gif"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.gif", "b.gif"]


@pytest.mark.skipif(shutil.which("ffmpeg") is None, reason="no ffmpeg here")
def test_mp4(made, tmp_path):
    data = made.save(tmp_path / "a.mp4").read_bytes()
    assert data[4:8] == b"ftyp"


@pytest.mark.parametrize(
    "name",
    [FIXTURE, "nvdex-k2-easy", "unicycle", "point-mass", "manipulator-n2", "double-integrator",
     "kinematic-arm-n2", "planar-aerial", "aerial"],
)  # fmt: skip
def test_a_picture_of_every_family(name):
    params = cojax.load_fixture(name).params
    state = np.asarray(params.initial_state.sample(jax.random.key(0)))
    action = 0.5 * np.asarray(params.action_limit)
    trail = state + np.linspace(0.3, 0.0, 5)[:, None]
    pictures = [frame(params, state), frame(params, state, trail, action)]
    assert all(p.shape == (360, 360, 3) and p.dtype == np.uint8 for p in pictures)
    assert (pictures[0] != pictures[1]).any()
    assert (frame(params, state, trail, -action) != pictures[1]).any()


def test_a_system_of_no_known_family_gives_bars():
    assert frame(object(), np.array([1.0, -200.0, np.nan])).std() > 0.0


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["no-such"], "fixture"),
        ([FIXTURE, "--policy", "orcale"], "did you mean 'oracle'"),
        ([FIXTURE, "--policy", "no/such.npz"], "no such file"),
        ([FIXTURE, "--out", "a.avi"], "expected a file ending in .gif, .mp4, .png"),
        ([FIXTURE, "--out", "none/a.gif"], "no such folder"),
        ([FIXTURE, "--fps", "0"], "fps"),
        ([FIXTURE, "--fps", "60"], "fps"),
        ([FIXTURE, "--steps", "0"], "steps"),
        ([FIXTURE, "--trial", "-1"], "trial"),
        ([FIXTURE, "--member", "1"], "member"),
    ],
)
def test_bad_input_is_one_line(arguments, said, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(main, ["render", *arguments])
    assert result.exit_code == 2
    assert said in result.output
    assert result.output.count("\n") == 1
    assert not list(tmp_path.iterdir())


def test_the_command_writes_one_file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(main, ["render", FIXTURE, "--steps", "3"], catch_exceptions=False)
    assert "π*: V* " in result.output
    assert [path.name for path in tmp_path.iterdir()] == [f"{FIXTURE}-oracle.gif"]
