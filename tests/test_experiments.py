from __future__ import annotations

import json

import jax
import numpy as np
import pandas as pd
import pytest
from click.testing import CliRunner

import cojax
from cojax.agents import load_policy
from cojax.cli import main
from cojax.errors import InputError
from cojax.experiments import load_experiment, run_experiment, shipped_experiments
from cojax.named_policies import policy_from_text
from cojax.studies import engine, run_study, study
from cojax.studies.results import measure
from cojax.studies.runner import here
from cojax.studies.store import Store
from cojax.studies.systems import systems

SMALL = """
schema: cojax.experiment/1
name: small
fixtures: [nvdex-k1-easy, arm-n2-p0.80-s7]
algorithms:
  - name: ppo
    hyperparameters: {num_envs: 4, num_steps: 16, num_minibatches: 2, hidden: [8]}
num_seeds: 2
total_timesteps: 256
evaluation: {policies: [oracle, zero], num_trials: 8, root: 3}
curve: {num_trials: 2, points: 2}
"""


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    folder = tmp_path_factory.mktemp("results")
    (folder / "small.yaml").write_text(SMALL)
    result = CliRunner().invoke(
        main, ["run", str(folder / "small.yaml"), "--out", str(folder / "out"), "--json"]
    )
    assert result.exit_code == 0, result.output
    return folder, result


def test_the_folder_holds_everything(finished):
    folder, result = finished
    out = folder / "out"
    names = {"config.yaml", "provenance.json", "policies", "figure.png", "rows.json"}
    names |= {"members.parquet"}
    names |= {"fixtures", "tables", "figures", "report.html"}
    assert names | {f"{n}.parquet" for n in ("rows", "trials", "curves")} == {
        entry.name for entry in out.iterdir()
    }
    assert [entry.name for entry in folder.iterdir() if entry.name.startswith(".")] == []
    rows = pd.read_parquet(out / "rows.parquet")
    assert len(rows) == 2 * 3
    printed = json.loads(result.stdout)
    assert [row["fixture"] for row in printed][::3] == ["nvdex-k1-easy", "arm-n2-p0.80-s7"]
    for row, line in zip(printed, rows.itertuples(), strict=True):
        assert row["suboptimality"]["mean"] == line.suboptimality_mean
        assert row["suboptimality"]["low"] <= row["suboptimality"]["high"]
    assert not any("setting" in row for row in printed)  # an algorithm of one setting is itself
    assert "ppo (0)" not in (out / "report.html").read_text("utf-8")
    oracle = rows[rows["policy"] == "oracle"]
    assert (oracle["suboptimality_mean"] == 0.0).all()
    assert (rows[rows["policy"] == "zero"]["suboptimality_mean"] > 0.0).all()
    assert (rows["suboptimality_low"] >= 0.0).all()  # an interval of what cannot be negative
    trials = pd.read_parquet(out / "trials.parquet")
    assert len(trials) == 2 * (2 + 2) * 8
    curves = pd.read_parquet(out / "curves.parquet")
    assert curves.groupby(["fixture", "seed"]).size().eq(2).all()
    assert np.isfinite(curves["relative_suboptimality"]).all()
    assert (out / "figure.png").stat().st_size > 10_000


def test_the_written_config_runs_the_same_experiment(finished):
    written = load_experiment(str(finished[0] / "out" / "config.yaml"))
    assert written == load_experiment(str(finished[0] / "small.yaml"))


def test_checkpoints_load_and_are_what_was_evaluated(finished):
    out = finished[0] / "out"
    policy = load_policy(out / "policies" / "ppo-0.npz")
    assert policy.axes == ("fixture", "seed")
    again = cojax.evaluate(policy, [cojax.load_fixture("nvdex-k1-easy")], num_trials=8, root=3)
    (member,) = (
        pd.read_parquet(out / "members.parquet")
        .query("fixture == 'arm-n2-p0.80-s7' and seed == 1")[["policy_file", "policy_index"]]
        .to_numpy()
    )
    assert tuple(member) == ("ppo-1.npz", 1)
    with pytest.raises(InputError, match="expected systems of one shape, got 2"):
        policy_from_text(f"{out}@ppo")
    trials = pd.read_parquet(out / "trials.parquet")
    same = trials.query("fixture == 'nvdex-k1-easy' and policy == 'ppo'")
    np.testing.assert_allclose(
        again.trials["suboptimality"].ravel(), same["suboptimality"], rtol=1e-4
    )


def test_an_existing_folder_is_refused(finished):
    folder, _ = finished
    result = CliRunner().invoke(
        main, ["run", str(folder / "small.yaml"), "--out", str(folder / "out")]
    )
    assert result.exit_code == 2
    assert "exists already" in result.stderr


def files(folder):
    return {p.relative_to(folder): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def test_a_run_that_fails_while_writing_resumes_to_the_same_files(finished, tmp_path, monkeypatch):
    from cojax.report import write

    def fail(*args):
        raise OSError("disk full")

    experiment = load_experiment(str(finished[0] / "small.yaml"))
    with monkeypatch.context() as patched:
        patched.setattr(write, "gap_figure", fail)
        with pytest.raises(OSError, match="disk full"):
            run_experiment(experiment, tmp_path / "out")
    assert [e.name for e in tmp_path.iterdir()] == ["out.unfinished"]
    with pytest.raises(InputError, match="holds interrupted work"):
        run_experiment(experiment, tmp_path / "out")
    other = experiment.model_copy(update={"num_seeds": 3})
    with pytest.raises(InputError, match="of other work: num_seeds: expected 2, got 3"):
        run_experiment(other, tmp_path / "out", resume=True)
    run_experiment(experiment, tmp_path / "out", resume=True)
    assert files(tmp_path / "out") == files(finished[0] / "out")
    assert [e.name for e in tmp_path.iterdir()] == ["out"]


def test_a_run_stopped_in_training_resumes_to_the_same_files(finished, tmp_path, monkeypatch):
    experiment = load_experiment(str(finished[0] / "small.yaml"))
    monkeypatch.setattr(engine, "STATE_SECONDS", 0.0)

    def stops_in_the_second(work, on_progress):
        def told(chunk):
            def stop(steps, total, metrics):
                if chunk.group == 1:
                    raise KeyboardInterrupt

            return stop

        yield from here(work, told)

    with pytest.raises(KeyboardInterrupt):
        run_study(experiment, tmp_path / "out", engine=stops_in_the_second)
    state = tmp_path / "out.unfinished"
    assert [chunk.name for chunk in Store(state).done()] == ["000-0000000-0000002"]
    assert [entry.name for entry in (state / "learners").iterdir()] == ["001-0000000-0000002"]
    told = CliRunner().invoke(main, ["status", str(tmp_path / "out")])
    assert told.stdout.strip().endswith("interrupted, 2 of 4 members done")
    seen = []

    def counts(work, on_progress):
        def told(chunk):
            return lambda steps, total, metrics: seen.append((chunk.group, steps))

        yield from here(work, told)

    run_study(experiment, tmp_path / "out", resume=True, engine=counts)
    assert seen == [(1, 256)]  # the first training was finished, and half of the second
    told = CliRunner().invoke(main, ["status", str(tmp_path / "out")])
    assert told.stdout.strip().endswith("finished, 4 of 4 members done")
    assert files(tmp_path / "out") == files(finished[0] / "out")


def test_two_runs_cannot_write_one_folder(finished, tmp_path):
    from cojax.io.resume import claim

    experiment = load_experiment(str(finished[0] / "small.yaml"))
    content = experiment.content()
    with (
        claim(tmp_path / "out", content, False, lambda file: content),
        pytest.raises(InputError, match="another process is writing there"),
    ):
        run_experiment(experiment, tmp_path / "out", resume=True)


def test_fixed_starts_are_one_state_and_another_problem(finished):
    def under(content):
        config = study(content, "run")
        return systems(config, [cojax.load_fixture(name) for name in config.fixtures])

    content = load_experiment(str(finished[0] / "small.yaml")).model_dump(by_alias=True)
    content |= {"initial_states": "fixed", "initial_seeds": [7, 11]}
    found = under(content)
    assert [one.id for one in found] == [
        f"{name}-from{seed}" for name in ("nvdex-k1-easy", "arm-n2-p0.80-s7") for seed in (7, 11)
    ]
    for one in found:
        law = one.params.initial_state
        first, second = (np.asarray(law.sample(jax.random.key(k))) for k in range(2))
        np.testing.assert_array_equal(first, second)
        np.testing.assert_array_equal(first, np.float32(one.fixture.initial_state.state))
        assert one.floor is not None
    assert not np.array_equal(
        found[0].fixture.initial_state.state, found[1].fixture.initial_state.state
    )
    started = study(content | {"evaluation": {"num_trials": 2}}, "run")
    rows = measure(started, found[:2], ["zero"]).rows()
    assert [row["resolution_floor"] for row in rows] == [one.floor for one in found[:2]]
    content["initial_states"] = "scheduled"
    with pytest.raises(InputError, match="initial_seeds: expected none"):
        under(content)


@pytest.mark.parametrize("name", ["serial_random", "serial_fixed", "nvdex"])
@pytest.mark.parametrize("scale", ["smoke", "small", "paper"])
def test_shipped_experiments_are_complete(name, scale):
    from cojax.agents.training import check
    from cojax.fixtures import load_fixture

    for profile in ("tuned", "published"):
        experiment = load_experiment(name, scale, profile)
        assert [a.name for a in experiment.algorithms] == ["ppo", "a2c", "sac", "td3", "ddpg"]
        assert experiment.initial_states == ("scheduled" if name == "serial_random" else "fixed")
        for family in {load_fixture(f).family for f in experiment.fixtures}:
            for algorithm in experiment.algorithms:
                check(algorithm.name, experiment.base(algorithm, family))
    if scale == "paper":
        assert len(experiment.fixtures) == (8 if name == "nvdex" else 24)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ("serial_randm", "did you mean 'serial_random'"),
        ("serial_random --scale big", "scale: unknown 'big'"),
        ("quickstart --scale small", "the file has no scales"),
        ("serial_random --resume", "--resume: expected --out"),
        ("nvdex nvdex", "experiments: expected different names"),
    ],
)
def test_run_refuses_in_one_line(arguments, expected):
    result = CliRunner().invoke(main, ["run", *arguments.split()])
    assert result.exit_code == 2
    assert expected in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1


def load_experiment_from(text, folder):
    (folder / "small.yaml").write_text(text)
    return load_experiment(str(folder / "small.yaml")).content()


def test_quickstart_is_shipped():
    assert "quickstart" in shipped_experiments()
    experiment = load_experiment("quickstart")
    families = {name.split("-")[0] for name in experiment.fixtures}
    assert families == {"arm", "nvdex"}
    assert experiment.num_seeds == 4


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("num_seeds: 2", "num_seeds: two"), "num_seeds: input should be a valid integer"),
        (("num_seeds: 2", "num_sedes: 2"), "num_sedes: unknown field; did you mean 'num_seeds'?"),
        (("name: small", "nam: small"), "nam: unknown field; did you mean 'name'?"),
        (("total_timesteps: 256", "total_timesteps: 0"), "total_timesteps: input should be"),
        (
            ("nvdex-k1-easy", "nvdex-k1-eazy"),
            "unknown 'nvdex-k1-eazy'; did you mean 'nvdex-k1-easy'",
        ),
        (("name: ppo", "name: pro"), "unknown algorithm 'pro'"),
        (("num_envs: 4", "num_env: 4"), "num_env"),
        (("oracle, zero", "oracel"), "did you mean 'oracle'"),
        (("fixtures: [", "fixtures: [nvdex-k1-easy, "), "nvdex-k1-easy is named more than once"),
        (("fixtures: [", "fixtures: !!python/object:os.system ["), "small.yaml: line"),
    ],
)
def test_bad_configs_give_one_line_and_status_2(tmp_path, change, message):
    (tmp_path / "small.yaml").write_text(SMALL.replace(*change))
    result = CliRunner().invoke(
        main, ["run", str(tmp_path / "small.yaml"), "--out", str(tmp_path / "out")]
    )
    assert result.exit_code == 2, result.output
    last = result.stderr.strip().splitlines()[-1]
    assert message in last
    assert not (tmp_path / "out").exists()


def test_unknown_experiment_suggests_the_nearest():
    result = CliRunner().invoke(main, ["run", "quikstart"])
    assert result.exit_code == 2
    assert "did you mean 'quickstart'?" in result.stderr
    assert "Traceback" not in result.stderr
