"""``cojax evaluate`` where risk has a price, and where costs have a budget; folders and pages."""

from __future__ import annotations

import dataclasses
import json

import numpy as np
import pandas as pd
import pytest
from click.testing import CliRunner

import cojax
from cojax.cli import main
from cojax.report.page import gather, write_report

AVERSE = "arm-n2-risk-averse"


def invoke(*arguments):
    return CliRunner().invoke(main, ["evaluate", *map(str, arguments)])


@pytest.fixture(scope="module")
def risky(tmp_path_factory):
    """The table, and the folder, of an evaluation at another θ than the file's."""
    folder = tmp_path_factory.mktemp("risk") / "results"
    policies = ("--policy", "oracle", "--policy", "lqr", "--policy", "zero")
    done = invoke(
        "--fixture", AVERSE, *policies, "--risk", 0.5, "--steps", 6, "--trials", 96, "--out", folder
    )
    assert done.exit_code == 0, done.output
    return done.output, folder


def test_risk_gaps_are_those_of_the_trials(risky):
    """(1/θ) log mean exp(θ S) by hand from the folder's trials; refused where one carries all."""
    _, folder = risky
    oracle, lqr, zero = rows = json.loads((folder / "rows.json").read_text())
    trials = pd.read_parquet(folder / "trials.parquet")
    assert {row["theta"] for row in rows} == {0.5}
    for row in rows:
        S = trials.loc[trials["policy"] == row["policy"], "suboptimality"].to_numpy()
        weights = np.exp(0.5 * S)
        effective = weights.sum() ** 2 / (weights**2).sum()
        assert row["effective_sample_size"] == pytest.approx(effective, rel=1e-6)
        assert (row["risk_gap"] is None) == (effective < 50.0 or bool(row["refused"]))
        if row["risk_gap"] is not None:
            known = 2.0 * np.log(weights.mean())
            assert row["risk_gap"]["mean"] == pytest.approx(known, rel=1e-6)
            scale = row["risk_gap"]["mean"] / row["optimal_value"]
            assert row["relative_risk_gap"]["mean"] == pytest.approx(scale, rel=1e-9)
    assert oracle["risk_gap"] == {"mean": 0.0, "low": 0.0, "high": 0.0}
    assert lqr["risk_gap"]["low"] > lqr["suboptimality"]["mean"] * 0.9 > 0.0  # E_tilt S, below it
    assert lqr["plain_effective_sample_size"] < lqr["effective_sample_size"]
    assert zero["risk_gap"] is None
    assert zero["refused"].startswith("effective sample size")
    assert {row["moments"] for row in rows} == {"finite"}


def test_tables_and_pages_show_them(risky):
    table, folder = risky
    for words in ("risk gap / V*", "plain estimate", "effective", "refused"):
        assert words in table
    content = gather(folder)
    assert [title for _, title in content["measures"]] == ["Tilted Σ γᵏ A* / V*", "Risk gap / V*"]
    texts = [row["relative_risk_gap"]["text"] for row in content["rows"]]
    assert texts[0] == "0"
    assert texts[2] == "refused"
    page = write_report(folder).read_text()
    assert texts[1].partition(" [")[0] in page
    assert "Trials are of the tilted system" in page
    assert "--steps 6 --risk 0.5" in content["again"]
    done = CliRunner().invoke(main, ["compare", str(folder)])
    assert done.exit_code == 2
    assert "means are no gaps" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (f"--fixture {AVERSE} --risk 9", "2θ λ_max(ΣP) <= 0.95, beyond which the cost has no"),
        (f"--fixture {AVERSE} --risk -30", "without which the optimal loop diverges, got 2.29"),
        ("--fixture arm-n4-p0.80-s7 --risk 1", "action_limit: expected one that V* knows"),
        ("--fixture arm-n4-delay --risk 1", "got kind 'delay'"),
        (f"--fixture {AVERSE} --fixture arm-n4-box", "arm-n4-box: expected a price of risk"),
        (f"--fixture {AVERSE} --risk 1 --adversary myopic", "--risk: expected neither"),
        (f"--fixture {AVERSE} --risk nan", "theta: input should be a finite number"),
    ],
)
def test_what_has_no_risk_gap_is_refused_in_one_line(arguments, words):
    done = invoke(*arguments.split())
    assert done.exit_code == 2
    assert words in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


def test_without_another_price_a_fixture_is_itself():
    fixture = cojax.load_fixture(AVERSE)
    own = fixture.extension
    assert cojax.evaluation.repriced(fixture) is fixture
    assert cojax.evaluation.repriced(fixture, own.theta, own.T) is fixture
    changed = cojax.evaluation.repriced(fixture, -1.0, 3)
    assert (changed.id, changed.horizon) == (f"{AVERSE}-theta-1-T3", 3)
    assert changed.certificate is None
    assert float(changed.system().theta) == -1.0


def test_budgets_have_columns_of_their_own(tmp_path):
    """Identities between the cells of a row, and the front of a gain written out."""
    folder = tmp_path / "results"
    names = ("oracle", "detuned-oracle:0.7", "zero")
    policies = [word for name in names for word in ("--policy", name)]
    fixtures = ("--fixture", "isotropic-n2", "--fixture", "point-mass-budget")
    done = invoke(*fixtures, *policies, "--trials", 32, "--out", folder)
    assert done.exit_code == 0, done.output
    for words in ("J_c - J_c*", "J_d - D", "J_c - J_c*(J_d)"):
        assert words.split()[-1] in done.output
    rows = json.loads((folder / "rows.json").read_text())
    for row in rows:
        line = row["cost_gap"]["mean"] + row["multiplier"] * row["violation"]["mean"]
        assert line == pytest.approx(row["suboptimality"]["mean"], rel=1e-5, abs=1e-5)
    less = rows[1]
    assert less["budget"] == pytest.approx(0.35, rel=1e-5)
    assert less["violation"]["high"] < 0.0 < less["cost_gap"]["low"]
    gamma, p, start = 0.95, 0.9, 2.0 / 3.0 + 0.95 * 0.02 / 0.05
    K = np.linspace(1e-3, 1.0 / p, 200_001)
    X = start / (1.0 - gamma * (1.0 - p * K) ** 2)
    spent = less["budget"] + less["violation"]["mean"]
    least = np.interp(spent, K**2 * X, X)
    best = np.interp(less["budget"], K**2 * X, X)
    known = best + less["cost_gap"]["mean"] - least
    assert less["front_gap"]["mean"] == pytest.approx(known, rel=1e-2, abs=2e-4)
    assert rows[2]["front_gap"] is None  # no policy spends nothing
    assert rows[4]["front_gap"] is None  # no front is known
    titles = [title for _, title in gather(folder)["measures"]]
    assert titles == ["Gap / V*", "J_c - J_c*", "J_d - D", "J_c - J_c*(J_d)"]
    assert gather(folder)["rows"][2]["front_gap"]["text"] == "–"


# --- two policies, by advantages and by costs ----------------------------------------------------


def test_differences_by_advantages_and_by_costs_are_one_number():
    """Agreement within intervals and less variance, and standard errors against resampling."""
    pairs = [("lqr", "oracle"), ("detuned-oracle:0.8", "lqr")]
    names = ["oracle", "lqr", "detuned-oracle:0.8"]
    subject = cojax.evaluation.repriced(cojax.load_fixture(AVERSE), 0.5, 6)
    risk = cojax.evaluation.at_risk(names, subject, 512, 3)
    budget = cojax.evaluate(names, "isotropic-n2", 512, 3, num_steps=100)
    for found, theta in ((risk, 0.5), (budget, 0.0)):
        for row in cojax.evaluation.policy_pairs(found, pairs):
            assert row["agree"]
            assert row["variance_ratio"] < 0.95
            assert abs(row["advantages"]) > 5.0 * row["advantages_error"]
            assert row["difference"] == pytest.approx(row["advantages"] - row["costs"])
            at = [names.index(name) for name in (row["first"], row["second"])]
            tilted = risk.evaluation if theta else budget
            plain = risk.plain if theta else budget
            columns = (tilted.trials["suboptimality"], plain.trials["tail_corrected"])
            drawn = np.random.default_rng(0).integers(512, size=(2000, 512))
            again = [_difference(x[0, at], theta, drawn) for x in columns]
            assert row["advantages_error"] == pytest.approx(again[0].std(), rel=0.1)
            assert row["costs_error"] == pytest.approx(again[1].std(), rel=0.1)
            assert row["difference_error"] == pytest.approx((again[0] - again[1]).std(), rel=0.1)
    steep = dataclasses.replace(risk, thetas=(30.0,))
    refused = cojax.evaluation.policy_pairs(steep, pairs)[0]
    assert refused["agree"] is refused["variance_ratio"] is refused["advantages"] is None


def _difference(values, theta, drawn):
    """Of two policies, in each of the resamples that are ``drawn``."""
    resampled = values[:, drawn].astype(np.float64)
    if theta:
        resampled = np.exp(theta * resampled)
    means = resampled.mean(axis=-1)
    first, second = np.log(means) / theta if theta else means
    return first - second
