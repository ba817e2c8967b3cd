from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pytest
from click.testing import CliRunner

from cojax.agents import load_policy
from cojax.cli import main
from cojax.experiments import load_experiment, run_experiment, shipped_experiments
from cojax.experiments.config import Experiment

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
    import cojax

    out = finished[0] / "out"
    policy = load_policy(out / "policies" / "ppo-0.npz")
    assert policy.axes == ("fixture", "seed")
    again = cojax.evaluate(policy, [cojax.load_fixture("nvdex-k1-easy")], num_trials=8, root=3)
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


def test_nothing_is_left_of_a_run_that_fails_while_writing(tmp_path, monkeypatch):
    from cojax.experiments import runner

    def fail(*args):
        raise OSError("disk full")

    monkeypatch.setattr(runner, "gap_figure", fail)
    content = dict(load_experiment_from(SMALL, tmp_path))
    content["fixtures"] = ["nvdex-k1-easy"]
    with pytest.raises(OSError, match="disk full"):
        run_experiment(Experiment.model_validate(content), tmp_path / "out")
    assert not (tmp_path / "out").exists()
    assert [e.name for e in tmp_path.iterdir()] == ["small.yaml"]


def load_experiment_from(text, folder):
    (folder / "small.yaml").write_text(text)
    return load_experiment(str(folder / "small.yaml")).model_dump(mode="json", by_alias=True)


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
