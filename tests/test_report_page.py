"""The page of a results folder: what is on it, and what is refused."""

from __future__ import annotations

import json
import re
import shlex
import shutil

import pytest
from click.testing import CliRunner
from results_folder import MARKUP, make

import cojax
from cojax.cli import main
from cojax.evaluation import provenance
from cojax.report.page import gather, write_report

NAMES = ["arm-n4-p0.80-s7", "nvdex-k1-easy", MARKUP]


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    return make(tmp_path_factory.mktemp("page") / "results", NAMES)


@pytest.fixture
def folder(whole, tmp_path):
    return shutil.copytree(whole, tmp_path / "results")


def run(*arguments):
    return CliRunner().invoke(main, [str(a) for a in arguments])


def test_everything_is_on_it_and_escaped(folder):
    page = write_report(folder).read_text()
    assert "<img src=x" not in page
    assert page.count("<script>") == 1
    assert "&lt;img src=x onerror=&#34;boom()" in page
    for title in ("Table I", "Gap over p", "certificate passed", "Provenance", "made-up"):
        assert title in page
    assert page.count('<tr data-policy="') == 12
    assert "1 of 144 trials failed" in page
    assert not re.search(r'(src|href)="(?!#|data:)', page)
    assert " style=" not in page  # the policy of the page forbids it


def test_the_summary_is_that_of_the_rows(folder):
    content = gather(folder)
    trials = provenance.load(folder).trials
    ppo = trials[trials["policy"] == "ppo"]
    runs = ppo.groupby(["fixture", "seed"])["relative_suboptimality"].mean()
    said = next(p for p in content["said"]["policies"] if p["name"] == "ppo")
    assert said["gap"]["mean"] == pytest.approx(runs.median())
    assert said["gap"]["low"] < runs.median() < said["gap"]["high"]
    assert (said["failed"], said["runs"]) == (0, 6)
    assert [p["name"] for p in content["said"]["policies"]] == ["oracle", "ppo", "sac", "zero"]


def test_a_smoke_run_says_that_it_shows_nothing(folder):
    assert "Smoke scale" not in write_report(folder).read_text()
    file = folder / "provenance.json"
    content = json.loads(file.read_text())
    content["configuration"]["scale"] = "smoke"
    file.write_text(json.dumps(content))
    assert "these numbers say nothing about the algorithms" in write_report(folder).read_text()


def test_measures_that_nothing_has_are_left_out(folder):
    rows = json.loads((folder / "rows.json").read_text())
    titles = [f'<th scope="col" class="n">{name}</th>' for name in ("OptGap", "Regret")]
    page = write_report(folder).read_text()
    assert all(title in page for title in titles)
    bare = [{k: v for k, v in row.items() if not k.startswith("paper_")} for row in rows]
    (folder / "rows.json").write_text(json.dumps(bare))
    page = write_report(folder).read_text()
    assert not any(title in page for title in titles)


def test_the_command_of_a_number_gives_the_number(tmp_path, monkeypatch):
    result = cojax.evaluate(["lqr"], cojax.load_fixture("arm-n2-p0.80-s7"), 8, num_steps=20)
    provenance.save(result, tmp_path / "results", {"fixtures": ["arm-n2-p0.80-s7"]})
    content = gather(tmp_path / "results")
    command = shlex.split(content["rows"][0]["command"])
    assert command[:2] == ["cojax", "evaluate"]
    again = json.loads(run(*command[1:], "--json").output)
    assert again[0]["suboptimality"] == result.rows()[0]["suboptimality"]
    assert write_report(tmp_path / "results", tmp_path / "a.html").exists()


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda f: shutil.rmtree(f), "no such results folder"),
        (lambda f: (f / "rows.json").unlink(), "rows.json is missing"),
        (lambda f: (f / "curves.parquet").unlink(), "curves.parquet is missing"),
        (lambda f: (f / "provenance.json").unlink(), "provenance.json is missing"),
        (lambda f: (f / "curves.parquet").write_bytes(b"PAR1"), "curves.parquet: damaged"),
        (lambda f: (f / "trials.parquet").write_bytes(b"PAR1"), "trials.parquet: damaged"),
        (lambda f: (f / "rows.json").write_text("[1"), "rows.json: expected JSON"),
        (lambda f: (f / "rows.json").write_text("[{}]"), "row 0: fixture is missing"),
        (lambda f: (f / "tables" / "index.json").write_text("[]"), "expected a mapping"),
        (lambda f: (f / "tables" / "table_1.csv").write_text(""), "table_1.csv: damaged"),
        (lambda f: (f / "fixtures" / f"{NAMES[0]}.yaml").write_text("a: 1"), "a"),
    ],
)
def test_a_damaged_folder_is_refused_in_one_line(folder, damage, said):
    damage(folder)
    result = run("report", folder)
    assert result.exit_code == 2, result.output
    assert said in result.output
    assert result.output.count("\n") == 1
    assert not (folder / "report.html").exists()


def test_where_it_is_written(folder, tmp_path):
    assert "written to" in run("report", folder, "--out", tmp_path / "a.html").output
    assert (tmp_path / "a.html").stat().st_size > 30_000
    refused = run("report", folder, "--out", tmp_path / "none" / "a.html")
    assert refused.exit_code == 2
    assert "a folder that exists" in refused.output
