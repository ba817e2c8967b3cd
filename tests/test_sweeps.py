from __future__ import annotations

import dataclasses
import json
import os
import signal
import subprocess
import sys
import time

import jax
import numpy as np
import pandas as pd
import pytest
from click.testing import CliRunner

import cojax
from cojax.agents import load_policy
from cojax.agents.settings import stack_hyperparameters
from cojax.agents.training import lookup
from cojax.cli import main
from cojax.errors import InputError
from cojax.io.resume import unfinished
from cojax.studies.branches import branches
from cojax.studies.members import Chunk, cut, groups
from cojax.studies.placement import fit
from cojax.studies.rows import log_gap_upper_bound
from cojax.studies.runner import here
from cojax.studies.space import draw
from cojax.studies.store import Store
from cojax.studies.systems import StartedFixture
from cojax.sweeps import load_sweep, run_sweep, sweep

SMALL = {
    "schema": "cojax.sweep/1",
    "name": "small",
    "fixtures": ["nvdex-k1-easy"],  # nothing runs away, which would depend on rounding
    "algorithms": [
        {
            "name": "ppo",
            "hyperparameters": {
                "hidden": [8], "num_envs": 4, "num_steps": 16, "num_minibatches": 2,
            },
            "space": {"learning_rate": {"low": 1e-4, "high": 1e-2, "log": True, "num": 3}},
        }
    ],
    "num_seeds": 2,
    "total_timesteps": 256,
    "curve": {"points": 2, "num_trials": 2},
    "evaluation": {"num_trials": 4},
    "execution": {"chunk_members": 2},
}  # fmt: skip
TABLES = ("members.parquet", "trials.parquet", "curves.parquet", "rows.parquet", "rows.json")


def changed(**fields):
    return sweep({**SMALL, **fields})


def of(*names):
    return [StartedFixture.of(cojax.load_fixture(name)) for name in names]


def same(a, b, names=TABLES):
    for name in names:
        assert (a / name).read_bytes() == (b / name).read_bytes(), name


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sweep")
    (folder / "small.yaml").write_text(json.dumps(SMALL))
    result = CliRunner().invoke(
        main, ["sweep", str(folder / "small.yaml"), "--out", str(folder / "out"), "--json"]
    )
    assert result.exit_code == 0, result.output
    return folder, json.loads(result.stdout)


def test_the_table_and_the_folder(finished):
    folder, rows = finished
    out = folder / "out"
    assert {entry.name for entry in out.iterdir()} == {
        *TABLES, "config.yaml", "fixtures", "figures", "policies", "provenance.json",
    }  # fmt: skip
    assert not unfinished(out).exists()
    assert [row["bound"] for row in rows] == sorted(row["bound"] for row in rows)
    assert {row["hyperparameters"]["learning_rate"] for row in rows} == {1e-4, 1e-3, 1e-2}
    members = pd.read_parquet(out / "members.parquet")
    assert list(members["setting"]) == [0, 0, 1, 1, 2, 2]
    assert list(members["seed"]) == [0, 1] * 3
    assert len(pd.read_parquet(out / "curves.parquet")) == 6 * 2
    about = json.loads((out / "provenance.json").read_text())
    assert about["configuration"]["seed"] == 0


@pytest.mark.parametrize("exact", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_a_member_is_the_solo_run_and_its_gap_can_be_measured_again(finished, exact):
    """To the bit, but where programs are compiled with fewer passes, as quick tests are."""
    folder, _ = finished
    members = pd.read_parquet(folder / "out" / "members.parquet")
    line = members.iloc[3]
    saved = load_policy(folder / "out" / "policies" / line["policy_file"])
    policy = saved.member(member=int(line["policy_index"]))
    fixture = cojax.load_fixture("nvdex-k1-easy")
    config = load_sweep(folder / "small.yaml")
    base = config.base(config.algorithms[0], fixture.family)
    key = jax.random.key(0, impl="threefry2x32")
    solo = cojax.train(
        "ppo",
        fixture.params,
        jax.random.fold_in(key, int(line["seed"])),
        hyperparameters={**base, "learning_rate": 1e-3},
        num_seeds=None,
        total_timesteps=256,
    )
    for ours, theirs in zip(
        jax.tree.leaves(policy.params), jax.tree.leaves(solo.policy.params), strict=True
    ):
        np.testing.assert_allclose(ours, theirs, rtol=0.0 if exact else 1e-4)
    measured = cojax.evaluate({"ppo": policy}, fixture.params, num_trials=4, root=2)
    gaps = measured.frame().query("policy == 'ppo'")["relative_suboptimality"]
    trials = pd.read_parquet(folder / "out" / "trials.parquet")
    mine = trials.query(f"setting == {line['setting']} and seed == {line['seed']}")
    mine = mine["relative_suboptimality"].to_numpy()
    np.testing.assert_allclose(mine, gaps.to_numpy(), rtol=2e-5)
    assert line["relative_suboptimality"] == pytest.approx(np.mean(mine), rel=1e-6)


def test_a_setting_of_a_sweep_is_evaluated_as_a_policy(finished, tmp_path):
    out = finished[0] / "out"
    words = ["evaluate", "--fixture", "nvdex-k1-easy", "--trials", "4", "--root", "2"]
    done = CliRunner().invoke(
        main, [*words, "--policy", f"{out}@ppo:1", "--out", str(tmp_path / "again")]
    )
    assert done.exit_code == 0, done.output
    again = pd.read_parquet(tmp_path / "again" / "trials.parquet")
    first = pd.read_parquet(out / "trials.parquet").query("setting == 1")
    assert list(again["policy"].unique()) == ["ppo (1)"]
    np.testing.assert_allclose(
        again["relative_suboptimality"], first["relative_suboptimality"], rtol=2e-5
    )
    chunk = next((out / "policies").iterdir())
    for text, words_of in {
        f"{out}@ppo": "expected a setting, ppo:0",
        f"{out}@ppo:7": "setting: unknown '7'",
        f"{out}@sac": "algorithm: unknown 'sac'",
        str(chunk): "members of a sweep; name a setting",
    }.items():
        refused = CliRunner().invoke(main, [*words, "--policy", text])
        assert refused.exit_code == 2
        assert words_of in refused.stderr
        assert len(refused.stderr.strip().splitlines()) == 1


def test_a_sweep_is_compared_and_reported_as_a_run_is(finished, tmp_path, monkeypatch):
    out = finished[0] / "out"
    words = ["compare", str(out), str(out), "--json"]
    compared = CliRunner().invoke(main, [*words, "--metric", "suboptimality"])
    assert compared.exit_code == 2
    assert "its trials have no suboptimality" in compared.stderr
    compared = CliRunner().invoke(main, words)
    assert compared.exit_code == 0, compared.output
    rows = json.loads(compared.stdout)
    assert [(r["first"], r["difference"]["mean"]) for r in rows] == [
        (f"ppo ({setting})", 0.0) for setting in range(3)
    ]
    monkeypatch.setattr("cojax.report.page.BEST", 2)
    page = CliRunner().invoke(main, ["report", str(out), "--out", str(tmp_path / "page.html")])
    assert page.exit_code == 0, page.output
    text = (tmp_path / "page.html").read_text("utf-8")
    assert "The 2 best of 3 settings" in text
    assert "cojax sweep config.yaml" in text
    best = json.loads((out / "rows.json").read_text())
    assert [f"ppo ({row['setting']})" in text for row in best] == [True, True, False]
    assert f"learning_rate {best[0]['hyperparameters']['learning_rate']:.4g}" in text


def test_how_it_is_cut_changes_nothing(finished, tmp_path):
    folder, _ = finished
    whole = changed(execution={"chunk_members": 5})
    run_sweep(whole, tmp_path / "out")
    columns = ["setting", "seed", "relative_suboptimality", "last_on_curve"]
    columns += ["failed", "episode_return"]
    a, b = (
        pd.read_parquet(where / "out" / "members.parquet")[columns] for where in (folder, tmp_path)
    )
    pd.testing.assert_frame_equal(a, b, check_exact=True)
    same(folder / "out", tmp_path / "out", ("curves.parquet", "rows.json"))


def test_interrupted_and_resumed_gives_the_same_files(finished, tmp_path):
    folder, _ = finished

    def stops(work, on_progress):
        yield from here(dataclasses.replace(work, tasks=work.tasks[:1]), on_progress)
        raise KeyboardInterrupt

    config = sweep(SMALL)
    with pytest.raises(KeyboardInterrupt):
        run_sweep(config, tmp_path / "out", engine=stops)
    assert not (tmp_path / "out").exists()
    status = CliRunner().invoke(main, ["sweep", "status", str(tmp_path / "out"), "--json"])
    about = json.loads(status.stdout)
    assert (about["state"], about["done"], about["members"]) == ("interrupted", 2, 6)
    with pytest.raises(InputError, match="holds interrupted work"):
        run_sweep(config, tmp_path / "out")
    with pytest.raises(InputError, match="of other work: num_seeds"):
        run_sweep(changed(num_seeds=3), tmp_path / "out", resume=True)
    counted = []

    def counts(work, on_progress):
        for result in here(work, on_progress):
            counted.append(result.chunk)
            yield result

    run_sweep(config, tmp_path / "out", resume=True, engine=counts)
    assert counted == [Chunk(0, 2, 4), Chunk(0, 4, 6)]
    same(folder / "out", tmp_path / "out")
    status = CliRunner().invoke(main, ["sweep", "status", str(tmp_path / "out")])
    assert status.stdout.strip().endswith("finished, 6 of 6 members done")


def command_of(folder, out):
    """The sweep of a folder as a process of its own."""
    command = [sys.executable, "-m", "cojax", "sweep", str(folder / "small.yaml")]
    return [*command, "--out", str(out), "--devices", "1"]


def kill_and_compare(folder, tmp_path, seconds):
    """Kill a sweep of its own process after each of some times, then let it end."""
    out = tmp_path / "out"
    command = command_of(folder, out)
    kills = 0
    for wait in seconds:
        extra = ["--resume"] if unfinished(out).exists() else []
        with (tmp_path / "log").open("a") as log:
            run = subprocess.Popen([*command, *extra], stderr=log, stdout=log)
            try:
                run.wait(wait)
            except subprocess.TimeoutExpired:
                os.kill(run.pid, signal.SIGKILL)
                run.wait()
                kills += 1
        if out.exists():
            break
        chunks = unfinished(out) / "chunks"
        for chunk in chunks.glob("*[0-9]") if chunks.exists() else []:
            assert len(pd.read_parquet(chunk / "members.parquet")) == 2
    while not out.exists():
        extra = ["--resume"] if unfinished(out).exists() else []
        done = subprocess.run([*command, *extra], capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stderr
    same(folder / "out", out)
    return kills


def test_killed_once_and_resumed(finished, tmp_path):
    """Killed when its first chunk is there: nothing finished is lost, and the end is the same."""
    folder, _ = finished
    out = tmp_path / "out"
    command = command_of(folder, out)
    run = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    while not (unfinished(out) / "chunks" / Chunk(0, 0, 2).name).exists():
        assert run.poll() is None
        time.sleep(0.05)
    os.kill(run.pid, signal.SIGKILL)
    run.wait()
    before = {path: path.stat().st_mtime_ns for path in unfinished(out).glob("chunks/*/*")}
    assert before
    run_sweep(sweep(SMALL), out, resume=True)
    same(folder / "out", out)


@pytest.mark.slow
def test_killed_at_twenty_moments(finished, tmp_path):
    folder, _ = finished
    rng = np.random.default_rng(0)
    kills = 0
    for attempt in range(20):  # one kill each: a sweep that is killed at once never ends
        place = tmp_path / str(attempt)
        place.mkdir()
        kills += kill_and_compare(folder, place, [rng.uniform(3.0, 10.0)])
    assert kills >= 10


def test_groups_by_shape_and_by_what_decides_shapes():
    space = {"num_steps": {"values": [16, 32]}, "clip_eps": {"values": [0.1, 0.2, 0.3]}}
    algorithm = {"name": "ppo", "space": space}
    config = changed(algorithms=[algorithm])
    found = groups(config, of("arm-n2-p0.80-s7", "nvdex-k1-easy"))
    assert [(g.systems[0].fixture.family, g.h.num_steps, g.shape) for g in found] == [
        ("ConverseArm", 16, (3, 1, 2)),
        ("ConverseArm", 32, (3, 1, 2)),
        ("NVDEx", 16, (3, 1, 2)),
        ("NVDEx", 32, (3, 1, 2)),
    ]
    assert sorted(found[0].settings + found[1].settings) == list(range(6))


def test_cutting_covers_what_is_not_done():
    group = groups(sweep(SMALL), of("nvdex-k1-easy"))[0]
    assert cut(group, 4) == [Chunk(0, 0, 4), Chunk(0, 4, 6)]
    assert cut(group, 4, [Chunk(0, 2, 4), Chunk(1, 0, 2)]) == [Chunk(0, 0, 2), Chunk(0, 4, 6)]
    assert cut(group, 4, [Chunk(0, 0, 6)]) == []
    assert Chunk.named(Chunk(3, 12, 40).name) == Chunk(3, 12, 40)


def test_a_chunk_stays_within_the_memory():
    from cojax.agents.layout import Layout

    config = sweep(SMALL)
    group = groups(config, of("nvdex-k1-easy"))[0]
    length, needed = fit(group, config, Layout(1), length=2, limit=10**9)
    assert length == 2
    shorter, less = fit(group, config, Layout(1), length=2, limit=int(needed * 0.7))
    assert shorter == 1
    assert less <= needed * 0.7
    with pytest.raises(InputError, match="memory_limit"):
        fit(group, config, Layout(1), length=6, limit=1000)


def test_the_bound():
    gaps = np.array([[0.1, 0.1], [0.1, 0.1], [0.1, 0.1]])
    assert log_gap_upper_bound(gaps, 0.9) == pytest.approx(0.1)
    spread = np.array([[0.01], [1.0]])
    from scipy import stats

    expected = 10 ** (-1 + stats.t.ppf(0.9, 1) * np.std([-2, 0], ddof=1) / 2**0.5)
    assert log_gap_upper_bound(spread, 0.9) == pytest.approx(expected)
    assert log_gap_upper_bound(np.array([[0.1], [np.inf]]), 0.9) > 100
    one = np.array([[0.1, 0.3]])
    assert log_gap_upper_bound(one, 0.9) > 0.2
    assert log_gap_upper_bound(np.array([[np.inf, 0.3]]), 0.9) == 1e6


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"fixtures": []}, "fixtures: expected at least one"),
        ({"fixture": ["x"]}, "fixture: unknown field; did you mean 'fixtures'"),
        ({"num_seeds": 0}, "num_seeds: "),
        ({"num_seeds": "two"}, "num_seeds: "),
        ({"num_settings": 4}, "num_settings: a grid has as many"),
        ({"sampler": "random"}, "num_settings: expected a number"),
        ({"sampler": "best"}, "sampler: "),
        ({"algorithms": []}, "algorithms: "),
        ({"algorithms": [{"name": "pp"}]}, "unknown algorithm 'pp'"),
        ({"algorithms": [{"name": "ppo"}], "search": {}}, "empty, there is nothing to search"),
        (
            {"algorithms": [{"name": "ppo", "space": {"num_envs": {"low": 1, "high": 9}}}]},
            "num_envs decides shapes and cannot vary within a population",
        ),
        (
            {
                "algorithms": [
                    {
                        "name": "ppo",
                        "hyperparameters": {"clip_eps": 0.1},
                        "space": {"clip_eps": {"values": [0.2]}},
                    }
                ]
            },
            "clip_eps is both fixed and varied",
        ),
        ({"algorithms": [{"name": "ppo", "space": {"clip_eps": {"low": 2, "high": 1}}}]}, "low"),
        (
            {"algorithms": [{"name": "ppo", "space": {"target_kl": [None, 0.02]}}], "search": {}},
            "space: only hyperparameters that decide shapes, or are null",
        ),
    ],
)
def test_unusable_sweeps_are_one_line(fields, words, tmp_path):
    (tmp_path / "bad.yaml").write_text(json.dumps({**SMALL, **fields}))
    result = CliRunner().invoke(
        main, ["sweep", str(tmp_path / "bad.yaml"), "--out", str(tmp_path / "out")]
    )
    assert result.exit_code == 2
    line = result.stderr.strip()
    assert line.startswith("cojax: bad.yaml: ")
    assert words in line
    assert "\n" not in line
    assert [entry.name for entry in tmp_path.iterdir()] == ["bad.yaml"]


def test_work_that_cannot_begin_leaves_nothing(tmp_path):
    with pytest.raises(InputError, match=r"execution\.devices: expected at most"):
        run_sweep(changed(execution={"devices": 4096}), tmp_path / "out")
    with pytest.raises(InputError, match="memory_limit"):
        run_sweep(changed(execution={"memory_gb": 1e-6}), tmp_path / "out")
    with pytest.raises(InputError, match="unknown 'arm-n2'"):
        run_sweep(changed(fixtures=["arm-n2"]), tmp_path / "out")
    with pytest.raises(InputError, match="is named more than once"):
        run_sweep(changed(fixtures=SMALL["fixtures"] * 2), tmp_path / "out")
    assert list(tmp_path.iterdir()) == []
    for folder, words in ((tmp_path, "expected a study"), (tmp_path / "x", "expected a study")):
        result = CliRunner().invoke(main, ["sweep", "status", str(folder)])
        assert result.exit_code == 2, words


@pytest.mark.slow
def test_generated_fixtures_are_made_once(tmp_path):
    config = changed(
        fixtures=[],
        generate={"family": "ConverseArm", "num": 1, "ranges": {"n": 2}},
        algorithms=[{**SMALL["algorithms"][0], "space": {}}],
        num_seeds=1,
    )
    swept = run_sweep(config, tmp_path / "out")
    assert len(swept.rows) == 1
    assert len(list((tmp_path / "out" / "fixtures").iterdir())) == 1


SEARCH = {
    **SMALL,
    "num_seeds": 1,
    "search": {
        "population": 3, "budget": 6, "startup": 3, "winners": 1, "winner_seeds": 2, "rungs": [0.5],
    },
}  # fmt: skip


def searched():
    content = json.loads(json.dumps(SEARCH))
    content["algorithms"][0]["space"]["learning_rate"].pop("num")
    return sweep(content)


def test_a_search_ends_in_winners_and_resumes_to_the_same(tmp_path, monkeypatch):
    pytest.importorskip("optuna")
    from cojax.studies import search

    monkeypatch.setattr(search, "STATE_SECONDS", 0.0)
    config = searched()
    first = run_sweep(config, tmp_path / "first")
    assert [row["setting"] for row in first.rows].count(search.DEFAULTS) == 1
    assert len(first.rows) == 2
    trials = pd.read_parquet(tmp_path / "first" / "candidates.parquet")
    complete = trials[trials["state"] == "complete"]
    best = complete.sort_values("bound").iloc[0]
    winner = next(row for row in first.rows if row["setting"] != search.DEFAULTS)
    assert winner["setting"] == best["trial"]
    assert winner["hyperparameters"] == json.loads(best["setting"])
    assert (tmp_path / "first" / "search.sqlite").exists()
    assert (tmp_path / "first" / "figures" / "history-000-ppo.png").exists()

    called = []
    call = search._Population.call

    def stops(self, *args):
        called.append(1)
        if len(called) == 3:
            raise KeyboardInterrupt
        return call(self, *args)

    monkeypatch.setattr(search._Population, "call", stops)
    with pytest.raises(KeyboardInterrupt):
        run_sweep(config, tmp_path / "second")
    monkeypatch.setattr(search._Population, "call", call)

    def stops_at_once(work, on_progress):
        raise KeyboardInterrupt
        yield

    with pytest.raises(KeyboardInterrupt):
        run_sweep(config, tmp_path / "second", resume=True, engine=stops_at_once)
    monkeypatch.setattr(search, "_Population", None)  # the search has ended: it is not run again
    run_sweep(config, tmp_path / "second", resume=True)
    same(tmp_path / "first", tmp_path / "second", (*TABLES, "candidates.parquet"))


def test_event_files_hold_the_curves(tmp_path):
    pytest.importorskip("tensorboardX")
    from cojax.studies.tracking import trackers

    config = changed(algorithms=[{**SMALL["algorithms"][0], "space": {}}])
    run_sweep(config, tmp_path / "out", trackers=trackers(config, tmp_path / "out", True, None))
    files = list((tmp_path / "out" / "tensorboard").rglob("*tfevents*"))
    assert len(files) == 2  # one for each seed


def test_weights_and_biases_offline(tmp_path, monkeypatch):
    pytest.importorskip("wandb")
    from cojax.studies.tracking import trackers

    monkeypatch.setenv("WANDB_MODE", "offline")
    config = changed(algorithms=[{**SMALL["algorithms"][0], "space": {}}], num_seeds=1)
    run_sweep(config, tmp_path / "out", trackers=trackers(config, tmp_path / "out", False, "tests"))
    assert list((tmp_path / "wandb").glob("offline-run-*/*.wandb"))


def test_null_beside_numbers_is_searched_in_studies_of_their_own():
    space = {"target_kl": [None, 0.02, 0.04], "clip_eps": [0.1, 0.2], "num_minibatches": [2, 4]}
    config = changed(
        algorithms=[{"name": "ppo", "space": space}], search={"budget": 8, "population": 2}
    )
    found = branches(config)
    assert [study.fixed for study in found] == [
        {"target_kl": None, "num_minibatches": 2},
        {"target_kl": None, "num_minibatches": 4},
        {"num_minibatches": 2},
        {"num_minibatches": 4},
    ]
    assert [list(study.space) for study in found] == [["clip_eps"]] * 2 + [
        ["target_kl", "clip_eps"]
    ] * 2
    assert found[2].space["target_kl"].values == [0.02, 0.04]
    assert [study.budget for study in found] == [2.0] * 4
    spec = lookup("ppo")
    for study in found:  # whatever is drawn can be stacked
        drawn = [{**study.fixed, **setting} for setting in draw(study.space, "grid", None, 0)]
        stack_hyperparameters(spec.hyperparameters, drawn, {})


def test_what_a_learner_refuses_is_said_before_any_search(tmp_path):
    pytest.importorskip("optuna")
    space = {"num_minibatches": [2, 7], "clip_eps": [0.1, 0.2]}
    config = changed(algorithms=[{"name": "ppo", "space": space}], search={})
    with pytest.raises(InputError, match="num_minibatches: 7 does not divide"):
        run_sweep(config, tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


def test_a_damaged_chunk_is_one_line_and_named(finished, tmp_path):
    def stops(work, on_progress):
        for result in here(work, on_progress):
            yield result
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_sweep(changed(execution={"chunk_members": 2}), tmp_path / "out", engine=stops)
    store = Store(tmp_path / "out.unfinished")
    (chunk, *_) = store.done()
    for name in ("members.parquet", "curves.parquet", "policies.npz"):
        file = store.chunks / chunk.name / name
        whole = file.read_bytes()
        turned = bytearray(whole)
        turned[len(whole) // 2] ^= 4
        for content in (b"", whole[: len(whole) // 2], whole[:-1], bytes(turned), None):
            file.unlink()
            file.mkdir() if content is None else file.write_bytes(content)
            with pytest.raises(InputError, match="damaged, its files are not as written") as caught:
                store.check()
            assert str(file.parent) in str(caught.value)
            assert "\n" not in str(caught.value)
            if content is None:
                file.rmdir()
            file.write_bytes(whole)
    store.check()
