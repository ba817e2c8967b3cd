"""``cojax train``: the folder it writes, interruptions, and what it refuses."""

from __future__ import annotations

import dataclasses
import json
import struct
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pandas as pd
import pytest
from click.testing import CliRunner

from cojax.agents import load_policy
from cojax.cli import main
from cojax.errors import UncertifiedWarning
from cojax.fixtures import load_fixture, save_fixture
from cojax.studies import engine, load_agent, load_study, runner, study
from cojax.studies import schema as schema_module
from cojax.studies.runner import Watch

ARM, VEHICLE = "arm-n2-p0.80-s7", "nvdex-k1-easy"
SMALL = ["num_envs=4", "num_steps=16", "num_minibatches=2", "update_epochs=1", "hidden=[8]"]
SIZES = [word for setting in SMALL for word in ("--set", setting)]
SHORT = ["--seeds", "2", "--timesteps", "256", "--points", "4", *SIZES]


def invoke(*arguments):
    return CliRunner().invoke(main, ["train", *map(str, arguments)])


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """Two shapes, in an order that is not that of their names."""
    folder = tmp_path_factory.mktemp("train")
    done = invoke(
        "ppo", "--fixture", VEHICLE, "--fixture", ARM, *SHORT, "--set", "gamma=0.9",
        "--out", folder / "out", "--tensorboard", "--keep-learners", "--json",
    )  # fmt: skip
    assert done.exit_code == 0, done.output
    return folder, done


def curves_of(folder):
    return pd.read_parquet(folder / "curves.parquet")


def test_the_folder_holds_everything(finished):
    folder, _ = finished
    assert [entry.name for entry in folder.iterdir()] == ["out"]  # no state is left
    out = folder / "out"
    assert {entry.name for entry in out.iterdir()} == {
        "config.yaml", "curves.parquet", "fixtures", "learners", "members.parquet", "policies",
        "provenance.json", "rows.json", "rows.parquet", "tensorboard", "trials.parquet",
    }  # fmt: skip
    curves = curves_of(out)
    assert len(curves) == 2 * 2 * 4
    labels = ["fixture", "algorithm", "setting", "seed", "timesteps", "relative_suboptimality"]
    assert list(curves.columns[:6]) == labels
    assert {"policy_loss", "episode_return", "failed", "std"} <= set(curves.columns)
    counts = curves.groupby(["fixture", "setting", "seed"])["timesteps"].apply(list)
    assert len(counts) == 4
    assert all(x == [64, 128, 192, 256] for x in counts)
    assert np.isfinite(curves["relative_suboptimality"]).all()


def test_where_hyperparameters_come_from_is_said(finished):
    names = "gamma, hidden, num_envs, num_minibatches, num_steps, update_epochs"
    assert f"ppo: its defaults, with {names} as given" in finished[1].stderr
    config = load_study(finished[0] / "out" / "config.yaml")
    assert (config.profile, config.from_profile) == (None, None)
    tuned = load_study(finished[0] / "out" / "config.yaml", profile="tuned")
    assert tuned.resolved(["NVDEx"]).from_profile == "tuned"


def test_learners_that_were_kept_are_as_they_ended(finished, tmp_path):
    out = finished[0] / "out"
    for fixture in (VEHICLE, ARM):
        agents = [load_agent(out, fixture=fixture, seed=seed) for seed in (0, 1)]
        group = next(
            g for g in json.loads((out / "provenance.json").read_text())["groups"]
            if g["fixtures"] == [fixture]
        )  # fmt: skip
        saved = load_policy(out / "policies" / f"{group['name']}.npz")
        for seed, agent in enumerate(agents):
            kept = saved.member(fixture=0, seed=seed)
            jax.tree.map(np.testing.assert_array_equal, agent.policy.params, kept.params)
        assert agents[0].critic(np.ones(5 if fixture == VEHICLE else 4)) != agents[1].critic(
            np.ones(5 if fixture == VEHICLE else 4)
        )
    done = CliRunner().invoke(
        main,
        ["diagnose", str(out), "--fixture", ARM, "--seed", "1", "--trials", "4", "--steps", "8",
         "--out", str(tmp_path / "why.png"), "--json"],
    )  # fmt: skip
    assert done.exit_code == 0, done.output
    (row,) = json.loads(done.stdout)
    assert row["fixture"] == ARM
    assert row["value_error"] > 0
    assert abs(row["gradient_of_mean"]) <= 1
    assert (tmp_path / "why.png").read_bytes()[:4] == b"\x89PNG"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({}, "fixture: expected one of nvdex-k1-easy, arm-n2-p0.80-s7"),
        ({"fixture": "arm"}, "fixture: unknown 'arm'"),
        ({"fixture": ARM, "seed": 2}, "seed: unknown '2'"),
        ({"fixture": ARM, "algorithm": "sac"}, "algorithm: unknown 'sac'"),
    ],
)
def test_learners_that_are_not_there_are_one_line(finished, options, words):
    with pytest.raises(ValueError, match=words):
        load_agent(finished[0] / "out", **options)


def test_rows_are_medians_of_the_curves(finished):
    folder, done = finished
    rows = json.loads(done.stdout)
    assert rows == json.loads((folder / "out" / "rows.json").read_text())
    assert [row["fixture"] for row in rows] == [VEHICLE, ARM]
    curves = curves_of(folder / "out")
    for row in rows:
        mine = curves[curves["fixture"] == row["fixture"]]
        last = mine[mine["timesteps"] == 256]["relative_suboptimality"]
        best = mine.groupby("seed")["relative_suboptimality"].min()
        for name, x in (("last", last), ("best", best)):
            assert row[name] == {"median": x.median(), "low": x.min(), "high": x.max()}
        assert (row["num_seeds"], row["failed"], row["timesteps"]) == (2, 0, 256)
        assert row["gamma"] == pytest.approx(0.9)


def test_progress_tells_memory_speed_gap_and_another_gamma(finished):
    lines = finished[1].stderr.splitlines()
    assert any("needs" in line and "of" in line and "kB" in line for line in lines)
    assert sum("gamma: 0.9 is not the system's own 0.99" in line for line in lines) == 2
    assert sum("steps/s" in line and "s left, median gap" in line for line in lines) == 8
    assert "Warning" not in finished[1].stderr


def test_policies_and_provenance_fit_together(finished):
    out = finished[0] / "out"
    about = json.loads((out / "provenance.json").read_text())
    assert (about["schema"], about["kind"]) == ("cojax.results/2", "train")
    assert {"git", "versions", "device", "prng"} <= set(about)
    curves = curves_of(out)
    assert np.allclose(pd.read_parquet(out / "members.parquet")["gamma"], 0.9)
    for population in about["groups"]:
        assert population["memory_bytes"] > 0
        last = load_policy(out / "policies" / f"{population['name']}.npz")
        best = load_policy(out / "policies" / f"{population['name']}-best.npz")
        assert last.axes == best.axes == ("fixture", "seed")
        (fixture,) = population["fixtures"]
        mine = curves[curves["fixture"] == fixture]
        at = mine.loc[mine.groupby("seed")["relative_suboptimality"].idxmin()][
            "timesteps"
        ].to_numpy()
        moved = [
            any(
                not np.array_equal(x[0, seed], y[0, seed])
                for x, y in zip(
                    jax.tree.leaves(last.params), jax.tree.leaves(best.params), strict=True
                )
            )
            for seed in range(2)
        ]
        assert moved == list(at != 256)


def test_a_training_is_compared_and_reported_as_a_run_is(finished, tmp_path):
    """Its trials are those of every evaluation on the same root, at the policies' own shapes."""
    out, zero = finished[0] / "out", tmp_path / "zero"
    words = ["evaluate", "--policy", "zero", "--out", str(zero), "--trials", "256", "--json"]
    done = CliRunner().invoke(main, [*words, "--fixture", ARM, "--fixture", VEHICLE])
    assert done.exit_code == 0, done.output
    compared = CliRunner().invoke(main, ["compare", str(out), str(zero), "--json"])
    assert compared.exit_code == 0, compared.output
    rows = json.loads(compared.stdout)
    assert {(r["fixture"], r["first"], r["second"]) for r in rows} == {
        (name, "ppo", "zero") for name in (ARM, VEHICLE)
    }
    trained = {row["fixture"]: row for row in json.loads((out / "rows.json").read_text())}
    for row in rows:
        measured = pd.read_parquet(out / "trials.parquet").query("fixture == @row['fixture']")
        assert measured["optimal_value"].nunique() == 256
        gap = trained[row["fixture"]]["relative_suboptimality"]["mean"]
        if gap is not None and np.isfinite(row["difference"]["mean"] or np.nan):
            still = pd.read_parquet(zero / "trials.parquet").query("fixture == @row['fixture']")
            difference = gap - still["relative_suboptimality"].mean()
            assert row["difference"]["mean"] == pytest.approx(difference, rel=1e-6)
    page = CliRunner().invoke(main, ["report", str(out), "--out", str(tmp_path / "page.html")])
    assert page.exit_code == 0, page.output
    text = (tmp_path / "page.html").read_text("utf-8")
    assert "cojax train config.yaml" in text
    assert "PPO trained on 2 systems" in text


def scalars(folder):
    """(tag, step) -> value of the event files in a folder, read from their bytes."""
    from tensorboardX.proto.event_pb2 import Event

    found = {}
    for path in folder.glob("events.*"):
        data = path.read_bytes()
        while data:
            (length,) = struct.unpack("<Q", data[:8])
            event = Event.FromString(data[12 : 12 + length])
            data = data[16 + length :]
            for value in event.summary.value:
                found[value.tag, event.step] = value.simple_value
    return found


def test_event_files_say_what_the_curves_say(finished):
    out = finished[0] / "out"
    curves = curves_of(out)
    for fixture in (ARM, VEHICLE):
        seen = scalars(out / "tensorboard" / fixture / "setting-0" / "seed-1")
        mine = curves[(curves["fixture"] == fixture) & (curves["seed"] == 1)]
        for row in mine.itertuples():
            assert seen["relative_suboptimality", row.timesteps] == np.float32(
                row.relative_suboptimality
            )
            assert seen["policy_loss", row.timesteps] == np.float32(row.policy_loss)
        assert all(np.isfinite(x) for x in seen.values())


def test_interrupted_and_resumed_from_its_own_config(finished, tmp_path, monkeypatch):
    """In the middle of the second shape; the curves are those of the whole run, bit for bit."""
    monkeypatch.setattr(engine, "STATE_SECONDS", 0.0)
    of, calls = Watch.of, []

    def stop_at_the_sixth(self, chunk):
        inner = of(self, chunk)

        def progress(*args):
            inner(*args)
            calls.append(args[0])
            if len(calls) == 6:
                raise KeyboardInterrupt

        return progress

    monkeypatch.setattr(Watch, "of", stop_at_the_sixth)
    whole, out = finished[0] / "out", tmp_path / "out"
    stopped = invoke(whole / "config.yaml", "--out", out)
    assert stopped.exit_code == 130
    assert f"cojax train --resume --out {out}" in stopped.stderr
    assert not out.exists()
    refused = invoke(whole / "config.yaml", "--out", out)
    assert refused.exit_code == 2
    assert "holds interrupted work" in refused.stderr
    refused = invoke(whole / "config.yaml", "--out", out, "--resume", "--seed", "5")
    assert refused.exit_code == 2
    assert "of other work: seed: expected 0, got 5" in refused.stderr
    done = CliRunner().invoke(main, ["resume", str(out)])
    assert done.exit_code == 0, done.output
    assert calls == [64, 128, 192, 256, 64, 128, 192, 256]
    pd.testing.assert_frame_equal(curves_of(out), curves_of(whole), check_exact=True)
    assert load_study(out / "config.yaml") == load_study(whole / "config.yaml")
    again = invoke("--resume", "--out", out, "--json")
    assert again.exit_code == 0
    assert json.loads(again.stdout) == json.loads((whole / "rows.json").read_text())
    assert [entry.name for entry in tmp_path.iterdir()] == ["out"]


def test_settings_are_an_axis(finished, tmp_path):
    """The third decides shapes: it is trained apart, and stands in the same tables."""
    content = load_study(finished[0] / "out" / "config.yaml").content()
    content |= {"name": "three", "fixtures": [ARM], "total_timesteps": 64}
    content["algorithms"][0]["settings"] = [
        {"learning_rate": 1e-3}, {"learning_rate": 3e-4}, {"hidden": [4]},
    ]  # fmt: skip
    (tmp_path / "three.yaml").write_text(json.dumps(content))
    done = invoke(tmp_path / "three.yaml", "--out", tmp_path / "out", "--json", "--points", "1")
    assert done.exit_code == 0, done.output
    rows = json.loads(done.stdout)
    assert load_study(tmp_path / "out" / "config.yaml").name == "three"
    assert [row["setting"] for row in rows] == [0, 1, 2]
    assert [row["hyperparameters"] for row in rows] == content["algorithms"][0]["settings"]
    losses = curves_of(tmp_path / "out").set_index(["setting", "seed"])["policy_loss"]
    assert len(losses) == 6
    assert (losses[0] != losses[1]).all()
    trials = pd.read_parquet(tmp_path / "out" / "trials.parquet")
    assert trials.groupby("setting").size().to_dict() == dict.fromkeys(range(3), 2 * 256)
    for row, (_, mine) in zip(rows, trials.groupby("setting"), strict=True):
        if not mine["failed"].any():
            gap = mine["relative_suboptimality"].mean()
            assert row["relative_suboptimality"]["mean"] == pytest.approx(gap, rel=1e-9)
    policies = {
        file.stem: load_policy(file) for file in (tmp_path / "out" / "policies").glob("*.npz")
    }
    assert set(policies) == {"ppo-0", "ppo-0-best", "ppo-0-1", "ppo-0-1-best"}
    for name, num in (("ppo-0", 2), ("ppo-0-1", 1)):
        assert policies[name].axes == ("fixture", "hyperparameters", "seed")
        assert jax.tree.leaves(policies[name].params)[0].shape[:3] == (1, num, 2)


def test_tuned_defaults_lie_beneath_and_are_written_out(monkeypatch):
    monkeypatch.setattr(
        schema_module, "hyperparameters", lambda *_: {"learning_rate": 1.0, "hidden": [3]}
    )
    given = study(
        {
            "schema": "cojax.train/1",
            "fixtures": [ARM],
            "algorithm": {"name": "ppo", "hyperparameters": {"hidden": [8]}},
            "settings": [{"clip_eps": 0.1}, {"learning_rate": 2.0}],
        }
    )

    def settings_of(config):
        (algorithm,) = config.algorithms
        base = config.base(algorithm, "ConverseArm")
        return [{**base, **setting} for setting in config.settings(algorithm)]

    assert settings_of(given) == [
        {"learning_rate": 1.0, "hidden": [8], "clip_eps": 0.1},
        {"learning_rate": 2.0, "hidden": [8]},
    ]
    written = given.resolved(["ConverseArm"])
    monkeypatch.setattr(
        schema_module, "hyperparameters", lambda profile, *_: {"gamma": 0.1} if profile else {}
    )
    assert settings_of(written) == [
        {"learning_rate": 1.0, "hidden": [8], "clip_eps": 0.1},
        {"learning_rate": 2.0, "hidden": [8]},
    ]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (f"pp0 --fixture {ARM}", "unknown algorithm 'pp0'; did you mean 'ppo'?"),
        ("ppo --fixture arm-n2-p0.80-s8", "did you mean"),
        ("ppo", "fixtures: expected at least one"),
        ("", "ALGORITHM: expected ppo, a2c"),
        ("--resume", "--resume: expected --out"),
        ("--resume --out OUT", "expected a study, finished or not"),
        ("none.yaml", "none.yaml: no such file"),
        (f"ppo --fixture {ARM} --set learning_rat=1", "did you mean 'learning_rate'?"),
        (f"ppo --fixture {ARM} --set learning_rate=1e400", "1e400, beyond the range of float64"),
        (f"ppo --fixture {ARM} --set learning_rate=.inf", "expected a number in [0, inf), got inf"),
        (f"ppo --fixture {ARM} --set gamma=1.5", "gamma: expected a number in [0, 1], got 1.5"),
        (f"ppo --fixture {ARM} --set gamma", "--set: expected NAME=VALUE, got 'gamma'"),
        (f"ppo --fixture {ARM} --set gamma=[", "--set gamma=[: line"),
        (f"ppo --fixture {ARM} --set num_envs=2.5", "num_envs decides shapes"),
        (f"ppo --fixture {ARM} --seeds 0", "num_seeds: input should be greater"),
        (f"ppo --fixture {ARM} --timesteps -1", "total_timesteps: input should be greater"),
        (f"ppo --fixture {ARM} --config none.yaml", "none.yaml"),
        (f"sac --fixture {ARM} --memory-limit 1e-5 --out OUT", "one member of sac needs"),
        (f"sac --fixture {ARM} --memory-limit 0 --out OUT", "memory_limit: expected a number"),
    ],
)
def test_unusable_input_is_one_line_and_leaves_nothing(arguments, words, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    done = invoke(*arguments.replace("OUT", str(tmp_path / "out")).split())
    assert done.exit_code == 2, done.output
    last = done.stderr.strip().splitlines()[-1]
    assert words in last
    assert "Traceback" not in done.stderr
    assert not list(tmp_path.rglob("*.yaml"))
    assert not list(tmp_path.rglob("*.unfinished"))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"num_sedes": 2}, "num_sedes: unknown field; did you mean 'num_seeds'?"),
        ({"algorithm": {"name": "ppo", "families": {"ConverseArn": {}}}}, "'ConverseArm'"),
        ({"schema": "cojax.study/2"}, "schema: input should be 'cojax.study/1'"),
        ({"schema": "cojax.experiment/1"}, "kind: expected train, got run: use cojax run"),
    ],
)
def test_unusable_files_are_one_line(change, words, tmp_path):
    content = {"schema": "cojax.train/1", "fixtures": [ARM], "algorithm": {"name": "ppo"}} | change
    (tmp_path / "c.yaml").write_text(json.dumps(content))
    done = invoke(tmp_path / "c.yaml", "--out", tmp_path / "out")
    assert done.exit_code == 2, done.output
    (line,) = done.stderr.strip().splitlines()
    assert words in line
    assert [entry.name for entry in tmp_path.iterdir()] == ["c.yaml"]


def test_the_missing_extra_is_named(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "tensorboardX", None)
    done = invoke("ppo", "--fixture", ARM, "--tensorboard", "--out", tmp_path / "out")
    assert done.exit_code == 2
    assert done.stderr.strip() == (
        "cojax: tensorboard: expected the extra, pip install 'cojax[tensorboard]'"
    )


def test_an_existing_folder_is_refused(finished):
    done = invoke("ppo", "--fixture", ARM, "--out", finished[0] / "out")
    assert done.exit_code == 2
    assert "exists already" in done.stderr


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="threads are counted in /proc")
@pytest.mark.parametrize("threads", [1, 3])
def test_threads_are_those_of_the_pool(threads):
    code = f"""
import pathlib
from cojax.cli import main
try:
    main(["train", "ppo", "--fixture", "{ARM}", "--threads", "{threads}", "--set", "unknown=1"])
except SystemExit as stop:
    assert stop.code == 2
names = [file.read_text().strip() for file in pathlib.Path("/proc/self/task").glob("*/comm")]
print(names.count("tf_XLAEigen"))
"""
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert out.stdout.split() == [str(threads)], out.stderr


def test_no_threads_are_refused():
    result = invoke("ppo", "--threads", 0)
    assert result.exit_code == 2
    assert result.stderr.strip() == "cojax: threads: expected a whole number >= 1, got 0"


def test_an_infinite_hyperparameter_is_kept_and_resumed(tmp_path, monkeypatch):
    of = Watch.of
    monkeypatch.setattr(engine, "STATE_SECONDS", 0.0)

    def stop(self, chunk):
        def progress(steps, total, metrics):
            raise KeyboardInterrupt

        return progress

    monkeypatch.setattr(Watch, "of", stop)
    (tmp_path / "h.yaml").write_text("obs_clip: .inf\n")
    words = ["ppo", "--fixture", ARM, *SHORT, "--config", tmp_path / "h.yaml"]
    words += ["--set", "gamma=0.9"]  # given, as in ``finished``: the same program
    out = tmp_path / "out"
    assert invoke(*words, "--set", "max_grad_norm=.inf", "--out", out).exit_code == 130
    monkeypatch.setattr(Watch, "of", of)
    done = CliRunner().invoke(main, ["resume", str(out)])
    assert done.exit_code == 0, done.output
    kept = load_study(out / "config.yaml").algorithms[0].families["ConverseArm"]
    assert kept["max_grad_norm"] == kept["obs_clip"] == float("inf")
    about = json.loads((out / "provenance.json").read_text(), parse_constant=pytest.fail)
    family = about["configuration"]["algorithms"][0]["families"]["ConverseArm"]
    assert family["max_grad_norm"] == ".inf"


def test_a_resume_with_an_edited_fixture_is_refused(tmp_path, monkeypatch):
    fixture = load_fixture(ARM)
    save_fixture(fixture, tmp_path / "arm.yaml")
    monkeypatch.setattr(runner, "place", lambda *a: (_ for _ in ()).throw(SystemExit))
    words = ["ppo", "--fixture", tmp_path / "arm.yaml", *SHORT, "--out", tmp_path / "out"]
    invoke(*words)
    other = dataclasses.replace(load_fixture("arm-n4-p0.80-s7"), id=fixture.id)
    save_fixture(other, tmp_path / "arm.yaml")
    refused = invoke(*words, "--resume")
    assert refused.exit_code == 2
    assert f"of other work: fixture {fixture.id}: expected {fixture.sha256}" in refused.stderr


def test_training_on_a_draft_says_so(tmp_path, monkeypatch):
    draft = load_fixture(ARM).with_changes(gamma=0.98)
    save_fixture(draft, tmp_path / "draft.yaml")
    monkeypatch.setattr(runner, "place", lambda *a: (_ for _ in ()).throw(SystemExit))
    words = ["ppo", "--fixture", tmp_path / "draft.yaml", *SHORT, "--out", tmp_path / "out"]
    with pytest.warns(UncertifiedWarning, match=f"^{draft.id}: no certificate; what it calls"):
        invoke(*words)
