"""One number has one meaning: page, terminal, CSV, table and Python say the same."""

from __future__ import annotations

import json

import matplotlib as mpl
import matplotlib.image
import numpy as np
import pandas as pd
import pytest
from helpers import run
from results_folder import make

import cojax
from cojax.evaluation import Evaluation, diagnose
from cojax.evaluation.aggregates import over_systems, scores
from cojax.report import style
from cojax.report.figures import gap_figure
from cojax.report.page import gather, write_report
from cojax.report.page_charts import curve_charts, forest
from cojax.report.printing import of_systems, print_rows, with_interval
from cojax.report.summary import Summary, table_one

NAMES = ["arm-n4-p0.80-s7", "nvdex-k1-easy", "arm-n2-p0.80-s7"]
METRIC = "relative_suboptimality"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return make(tmp_path_factory.mktemp("agreement") / "results", NAMES)


@pytest.fixture(scope="module")
def result(folder):
    return Evaluation.load(folder)


def test_rows_agree(folder, result, capsys):
    frame, page = result.to_frame(), gather(folder)["rows"]
    print_rows(result.rows())
    terminal = capsys.readouterr().out
    for row, line, shown in zip(result.rows(), frame.to_dict("records"), page, strict=True):
        cell = row[METRIC]
        assert [line[METRIC], line[f"{METRIC}_low"], line[f"{METRIC}_high"]] == list(cell.values())
        assert shown[METRIC]["value"] == cell["mean"]
        if not row["failures"]:
            assert shown[METRIC]["text"] == with_interval(cell)
            assert with_interval(cell) in terminal


def test_numbers_over_systems_agree(folder, result):
    curves = pd.read_parquet(folder / "curves.parquet")
    csv = table_one(Summary("made-up", ("ppo", "sac"), (), (result,), curves))
    said = {p["name"]: p for p in gather(folder)["said"]["policies"]}
    page, text = write_report(folder, folder.parent / "a.html").read_text(), result.table()
    for name, x in scores(result).items():
        cell = over_systems(x)
        assert {k: said[name]["gap"][k] for k in cell} == cell
        assert of_systems(cell) in text
        if name in ("ppo", "sac"):
            assert f"{name.upper()}: {of_systems(cell)}" in page
            row = csv[csv["algorithm"] == name].iloc[0]
            ends = [row[f"gap_median{end}"] for end in ("", "_lo", "_hi")]
            assert ends == [cell["mean"], cell["low"], cell["high"]]
    assert "failures on 1 of 3 systems" in said["sac"]["text"]


def test_of_one_system_it_is_the_row(result):
    one = result.rows()[0:4]
    for row, x in zip(one, scores(result).values(), strict=True):
        if not row["failures"]:
            found = over_systems(x[:1])
            assert {end: found[end] for end in ("mean", "low", "high")} == row[METRIC]


def test_terminal_and_python_agree():
    short = ["--trials", "8", "--steps", "20"]
    words = [w for name in ("arm-n2-p0.80-s7", "arm-n4-p0.80-s7") for w in ("--fixture", name)]
    status, out, err = run("evaluate", *words, "--policy", "zero", *short)
    assert status == 0, err
    names = words[1::2]
    result = cojax.evaluate("zero", [cojax.load_fixture(n) for n in names], 8, num_steps=20)
    assert of_systems(over_systems(scores(result)["zero"])) in out
    assert "median of 2 systems" in out
    status, out, _ = run("evaluate", *words, "--policy", "zero", *short, "--json")
    assert [row[METRIC] for row in json.loads(out)] == [row[METRIC] for row in result.rows()]


def test_evaluate_and_diagnose_agree():
    fixture = cojax.load_fixture("arm-n2-p0.80-s7")
    mean = cojax.evaluate("zero", fixture, 16, 3, num_steps=30).trials[METRIC].mean()
    found = diagnose("zero", fixture, num_trials=16, num_steps=30, root=3)
    assert found.relative_gap == pytest.approx(mean, rel=1e-5)


def test_comparisons_speak_of_the_same_metric(result):
    assert cojax.compare(result).metric == METRIC
    rows = cojax.evaluation.pairwise(result)
    assert {row["metric"] for row in rows} == {METRIC}


# --- failures stay visible ------------------------------------------------------------------------


def policies(*gaps):
    cells = [{"mean": g, "low": g, "high": g} for g in gaps]
    return [
        {"shown": f"p{k}", "gap": cell, "finite": np.isfinite(cell["mean"]), "learner": True,
         "text": ""} for k, cell in enumerate(cells)]  # fmt: skip


def test_a_policy_that_failed_has_a_place_in_the_forest():
    marks = forest(policies(0.1, np.inf))
    assert [mark["finite"] for mark in marks["marks"]] == [True, False]
    assert marks["marks"][1]["x"] == marks["lane"] > max(t["at"] for t in marks["ticks"])
    assert forest(policies(0.1, 0.2))["lane"] is None
    everything = forest(policies(np.inf, np.inf))
    assert len(everything["marks"]) == 2
    assert everything["ticks"]


def test_infinite_moments_have_a_lane_in_the_curves():
    rows = [("f", "ppo", s, t, np.inf if t == 0 else 0.5) for s in (0, 1) for t in (0, 10, 20)]
    columns = ["fixture", "algorithm", "seed", "timesteps", METRIC]
    frame = pd.DataFrame(rows, columns=columns)
    (chart,) = curve_charts(frame, ["ppo"])
    line = chart["series"][0]["line"]
    assert line[0][1] == chart["lane"]
    assert all(y > chart["lane"] for _, y in line[1:])
    (chart,) = curve_charts(frame[frame["timesteps"] > 0], ["ppo"])
    assert chart["lane"] is None
    (chart,) = curve_charts(frame.assign(**{METRIC: np.inf}), ["ppo"])
    assert {y for _, y in chart["series"][0]["line"]} == {chart["lane"]}


def test_infinite_values_have_a_lane_in_figures(tmp_path):
    axis = style.figure(3.0, 2.0).subplots()
    axis.set_yscale("log")
    drawn = style.lane(axis, [1.0, 2.0, np.inf])
    assert drawn.tolist() == [1.0, 2.0, 8.0]
    assert [text.get_text() for text in axis.texts] == ["∞"]
    assert style.lane(axis, [1.0, 1e9], 1e4).tolist() == [1.0, 1e4]
    infinite = {"mean": np.inf, "low": np.inf, "high": np.inf}
    rows = [{"fixture": "f", "policy": "ppo", METRIC: infinite}]
    curves = [{"fixture": "f", "algorithm": "ppo", METRIC: np.inf, "seed": 0, "timesteps": t}
              for t in (10, 20)]  # fmt: skip
    gap_figure(rows, pd.DataFrame(curves), tmp_path / "a.png")
    pixels = mpl.image.imread(tmp_path / "a.png")
    blue = np.abs(pixels[..., :3] - mpl.colors.to_rgb(style.colour(0))).max(axis=-1) < 0.02
    assert blue.sum() > 50  # the curve is there


def test_the_page_says_that_all_failed(folder, tmp_path):
    page = write_report(folder, tmp_path / "a.html").read_text()
    assert "∞, 1 of 16 failed" in page
    assert "none completed" not in page
