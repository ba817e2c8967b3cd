"""Results folders, comparisons and the doctor."""

import dataclasses
import io
import json

import numpy as np
import pandas as pd
import pytest
from click.testing import CliRunner

import cojax
from cojax import streams
from cojax.cli import main
from cojax.evaluation import doctor, provenance
from cojax.evaluation.metrics import WORST
from cojax.evaluation.result import Evaluation, Member
from cojax.report.printing import print_findings, print_rows


def evaluation(shift=0.0, **changes):
    rng = np.random.default_rng(0)
    x = 10.0 + rng.normal(size=(2, 3, 16))
    x[:, 1:] += shift
    trials = {name: x if worst > 0 else -x for name, worst in WORST.items()}
    trials |= {"optimal_value": np.ones_like(x), "failed": np.zeros_like(x)}
    trials |= {name: np.zeros_like(x) for name in ("saturated", "reached", "diverged")}
    trials |= {"nonfinite": np.zeros_like(x), "steps": np.ones_like(x)}
    members = (Member("zero"), Member("ppo", seed=0), Member("ppo", seed=1))
    settings = {"floors": (1e-6, None), "hashes": ("aa", "bb"), "horizons": np.array([5, 6])}
    given = {"fixtures": ("f", "g"), "root": 0, "dtype": "float32", **settings}
    return Evaluation(members=members, trials=trials, **{**given, **changes})


def folders(tmp_path, first, second):
    provenance.save(first, tmp_path / "a", {"seed": 1})
    provenance.save(second, tmp_path / "b")
    return str(tmp_path / "a"), str(tmp_path / "b")


def invoke(*arguments):
    return CliRunner().invoke(main, list(arguments))


def test_a_folder_says_what_was_run(tmp_path):
    provenance.save(evaluation(), tmp_path / "a", {"seed": 1})
    content = json.loads((tmp_path / "a" / "provenance.json").read_text())
    assert content["schema"] == provenance.SCHEMA
    assert content["fixtures"]["g"] == {"sha256": "bb", "horizon": 6, "resolution_floor": None}
    assert content["stream_fingerprint"] == streams.fingerprint()
    assert content["configuration"] == {"seed": 1}
    assert {"jax", "numpy", "cojax", "python"} <= set(content["versions"])
    for name in ("prng", "backend", "device", "git", "precision", "root", "num_trials"):
        assert name in content
    rows = json.loads((tmp_path / "a" / "rows.json").read_text())
    assert rows[1]["policy"] == "ppo"
    with pytest.raises(ValueError, match="exists already"):
        provenance.save(evaluation(), tmp_path / "a")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a"]


def test_comparison_answers(tmp_path):
    a, b = folders(tmp_path, evaluation(), evaluation(shift=0.5))
    done = invoke("compare", a, b, "--json")
    assert done.exit_code == 0
    rows = json.loads(done.stdout)
    assert [(r["fixture"], r["first"]) for r in rows] == [
        ("f", "zero"),
        ("f", "ppo"),
        ("g", "zero"),
        ("g", "ppo"),
    ]
    assert rows[0]["verdict"] == "≤ floor"
    assert rows[1]["difference"]["mean"] == pytest.approx(-0.5)
    table = invoke("compare", a, b, "--policy", "ppo", "--metric", "discounted_return")
    assert table.exit_code == 0
    assert "zero" not in table.output


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"root": 1}, "root: 0 and 1"),
        ({"dtype": "float64"}, "precision: float32 and float64"),
        ({"hashes": ("aa", "cc")}, "fixture g: its content differs"),
        ({"horizons": np.array([5, 7])}, "fixture g: 6 and 7 steps"),
        ({"fixtures": ("x", "y")}, "none in common"),
    ],
)
def test_comparison_refuses_and_says_why(tmp_path, changes, words):
    a, b = folders(tmp_path, evaluation(), evaluation(**changes))
    done = invoke("compare", a, b)
    assert done.exit_code == 1
    assert words in done.stderr
    with pytest.raises(ValueError, match=words):
        cojax.compare(a, b)


def test_damaged_folders_are_one_line(tmp_path):
    a, b = folders(tmp_path, evaluation(), evaluation())
    trials, about = tmp_path / "b" / "trials.parquet", tmp_path / "b" / "provenance.json"
    whole, content = trials.read_bytes(), json.loads(about.read_text())

    def refused(words):
        done = invoke("compare", a, b)
        assert done.exit_code == 2
        assert words in done.stderr
        assert len(done.stderr.strip().splitlines()) == 1

    trials.write_bytes(whole[: len(whole) // 2])
    refused("trials.parquet: damaged")
    frame = pd.read_parquet(io.BytesIO(whole))
    frame.drop(columns="paper_regret").to_parquet(trials)
    refused("column paper_regret is missing")
    frame.assign(suboptimality="much").to_parquet(trials)
    refused("column suboptimality: expected numbers")
    frame.iloc[:-3].to_parquet(trials)
    refused("expected 16 trials of every policy, got 13")
    frame[frame["fixture"] == "f"].to_parquet(trials)
    refused("fixture g: not the provenance's fixtures")
    trials.write_bytes(whole)
    about.write_text(json.dumps({**content, "fixtures": ["f", "g"]}))
    refused("fixtures: expected a sha256")
    about.write_text(json.dumps({**content, "schema": "cojax.results/0"}))
    refused("expected cojax.results/2, got cojax.results/0; it was written by another version")
    about.write_text(json.dumps({**content, "schema": "cojax.results/3"}))
    refused("got cojax.results/3; it was written by a newer version: update cojax")
    about.write_text(json.dumps({**content, "schema": "cojax.training/1"}))
    refused("which has no trials; measure its policies: cojax evaluate --policy")
    about.write_text("{")
    refused("expected JSON")
    about.unlink()
    refused("provenance.json is missing")
    assert invoke("compare", a, "nowhere").exit_code == 2
    assert "did you mean" in invoke("compare", a, a, "--metric", "suboptimalty").stderr


def test_a_folder_of_the_schema_before_is_read(tmp_path):
    a, b = folders(tmp_path, evaluation(), evaluation(shift=0.5))
    now = json.loads(invoke("compare", a, b, "--json").stdout)
    trials, about = tmp_path / "b" / "trials.parquet", tmp_path / "b" / "provenance.json"
    content = json.loads(about.read_text())
    del content["kind"]
    about.write_text(json.dumps({**content, "schema": "cojax.results/1"}))
    frame = pd.read_parquet(trials)
    frame.rename(columns={"setting": "hyperparameters"}).to_parquet(trials)
    assert json.loads(invoke("compare", a, b, "--json").stdout) == now
    frame = frame.assign(hyperparameters=pd.array([0] * len(frame), dtype="Int64"))
    frame.to_parquet(trials)
    assert provenance.load(b).policies("f") == ["zero (0)", "ppo (0)"]


def test_the_table_says_what_pairing_is_worth(tmp_path):
    a = folders(tmp_path, evaluation(), evaluation(shift=0.5))[0]
    noisy = evaluation()
    noise = 0.1 * np.random.default_rng(1).normal(size=(2, 3, 16))
    metric = "relative_suboptimality"
    noisy.trials[metric] = noisy.trials[metric] + noise
    provenance.save(noisy, tmp_path / "c")
    rows = json.loads(invoke("compare", a, str(tmp_path / "c"), "--json").stdout)
    assert all(row["pairing_correlation"] > 0.95 for row in rows)
    assert all(row["variance_reduction"] > 20.0 for row in rows)
    text = invoke("compare", a, str(tmp_path / "c")).stdout
    assert "variance" in text
    assert f"{rows[0]['variance_reduction']:.0f}" in text


def test_the_table_warns_of_few_seeds(capsys):
    print_rows(evaluation().rows(num_resamples=100))
    assert "Intervals over 2 seeds are Student's" in capsys.readouterr().out


def test_populations_of_settings_are_told_apart(tmp_path):
    members = tuple(Member("ppo", hyperparameters=k) for k in range(3))
    provenance.save(dataclasses.replace(evaluation(), members=members), tmp_path / "a")
    loaded = provenance.load(tmp_path / "a")
    assert loaded.policies("f") == ["ppo (0)", "ppo (1)", "ppo (2)"]
    assert loaded.scores("f", "ppo (1)", "suboptimality").shape == (1, 16)


def test_the_golden_hash_of_the_doctor_is_that_of_the_streams():
    assert streams.fingerprint() == doctor.GOLDEN_STREAMS


def test_the_doctors_verdict_is_in_words(capsys):
    sound = doctor.Finding("streams", "a", "a", True)
    print_findings([sound], doctor.machine())
    assert "Sound" in capsys.readouterr().out
    print_findings([sound, sound._replace(check="oracle", passed=False)], {})
    assert "Not sound: oracle" in capsys.readouterr().out


@pytest.mark.slow
def test_the_doctor_finds_this_machine_sound():
    done = invoke("doctor", "--json")
    assert done.exit_code == 0, done.stdout
    assert all(finding["passed"] for finding in json.loads(done.stdout))
