"""``cojax evaluate`` and the references it names."""

import json

import numpy as np
import pytest
import scipy.linalg
from click.testing import CliRunner

import cojax
from cojax.cli import main
from cojax.evaluation import lqr_gain, parse_policy
from cojax.evaluation.linearised import linearisation
from cojax.families import ConverseArm
from cojax.io import json_text

FIXTURE = "arm-n4-p0.80-s7"


def invoke(*arguments):
    return CliRunner().invoke(main, ["evaluate", *arguments])


def test_json_is_rows_and_nothing_else():
    policies = ["--policy", "oracle", "--policy", "zero"]
    short = ["--trials", "8", "--steps", "20"]
    done = invoke("--fixture", FIXTURE, *policies, *short, "--json")
    assert done.exit_code == 0
    rows = json.loads(done.stdout)
    assert [(r["fixture"], r["policy"]) for r in rows] == [(FIXTURE, "oracle"), (FIXTURE, "zero")]
    assert rows[0]["suboptimality"] == {"mean": 0.0, "low": 0.0, "high": 0.0}
    zero = rows[1]["suboptimality"]
    assert 0.0 < zero["low"] < zero["mean"] < zero["high"]
    for metric in ("tail_corrected", "paper_optgap", "paper_regret", "coupled_regret"):
        assert set(rows[1][metric]) == {"mean", "low", "high"}
    table = invoke("--fixture", FIXTURE, *policies, *short)
    assert table.exit_code == 0
    assert "oracle" in table.output
    assert "failures" in table.output


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("--fixture arm-n4-p0.80-s7 --policy orcle", "did you mean 'oracle'"),
        ("--fixture arm-n4-p0.80-s7 --trials 0", "num_trials"),
        ("--fixture arm-n4-p0.80-s9", "did you mean"),
        ("--fixture arm-n4-p0.80-s7 --policy no/such/file", "no/such/file"),
    ],
)
def test_unusable_input_is_one_line_and_status_2(arguments, words):
    done = invoke(*arguments.split())
    assert done.exit_code == 2
    assert words in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


def test_infinite_means_are_null_in_json():
    text = json_text.rows_text([{"failures": 1, "suboptimality": {"mean": np.inf, "low": 0.0}}])
    assert json.loads(text)[0]["suboptimality"]["mean"] is None


def test_names_of_references():
    for text in ("oracle", "zero", "random", "lqr", "dithered-oracle:0.05", "detuned-oracle:-0.8"):
        assert parse_policy(text).name == text
    assert hash(parse_policy("lqr")) == hash(parse_policy("lqr"))


def test_lqr_solves_the_discounted_riccati_equation():
    system = ConverseArm.build(n=2, p=0.8)
    A, B, Q, R = linearisation(system)
    K, gamma = lqr_gain(system), 0.99
    closed = A - B @ K
    X = scipy.linalg.solve_discrete_lyapunov(
        np.sqrt(gamma) * closed.T, Q + K.T @ R @ K
    )  # the cost of playing K
    better = gamma * np.linalg.solve(R + gamma * B.T @ X @ B, B.T @ X @ A)
    np.testing.assert_allclose(better, K, atol=1e-7)  # no greedy improvement is left
    P = np.asarray(system.P)
    np.testing.assert_allclose(X, P, rtol=1e-4)  # at the origin V* is the regulator's value


def test_lqr_of_the_square_root_form_is_finite():
    params = cojax.make("NVDEx-v0", parameterization="sqrt")[1]
    assert np.isfinite(lqr_gain(params.system)).all()
