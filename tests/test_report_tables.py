"""Tables: the marks are right, and every format says the same numbers."""

from __future__ import annotations

import re

import numpy as np
import pytest
from test_evaluation_aggregate import evaluation

from cojax.report.tables import BEST, TIED, escaped, marks

RNG = np.random.default_rng(0)
NOISE = 0.1 * RNG.normal(size=(4, 2, 64))


def policies(**more):
    x = {"oracle": np.zeros((2, 64)), "good": 1.0 + NOISE[0], "alike": 1.0 + NOISE[1]}
    return evaluation(**x, bad=3.0 + NOISE[2], **more)


def test_the_best_and_what_cannot_be_told_apart_from_it():
    x = {name: values[:, None] for name, values in {
        "oracle": np.zeros((2, 64)), "good": 1.0 + NOISE[0], "alike": 1.0 + NOISE[1],
        "near": 1.0 + NOISE[0] + 5e-4, "bad": 3.0 + NOISE[2]}.items()}  # fmt: skip
    for found in marks(x, [1e-3, 1e-3]):
        assert sorted(found.values()).count(BEST) == 1
        assert {name for name, mark in found.items() if mark in (BEST, TIED)} == {
            "good", "alike", "near"}  # fmt: skip
    none = {"a": np.full((1, 1, 8), np.inf), "b": np.full((1, 1, 8), np.inf)}
    assert marks(none, [0.0]) == [{}]


@pytest.mark.parametrize("format", ["text", "markdown", "latex", "html"])
def test_formats_say_the_numbers_of_the_rows(format):
    result = policies()
    text = result.table(format)
    for row in result.rows():
        if row["policy"] != "oracle":
            assert f"[{row['relative_suboptimality']['low']:.3g}, " in text
    assert "f0" in text
    assert "paired trials" in text
    best = {
        "text": r"\d \[[\d., ]+\]\*",
        "markdown": r"\*\*[\d.]+\*\* \[",
        "latex": r"\\textbf\{[\d.]+\} \[",
        "html": r"<strong>[\d.]+</strong> \[",
    }
    assert len(re.findall(best[format], text)) == 2


def test_failures_are_said_in_words():
    some, none = 1.0 + NOISE[3], np.full((2, 64), np.inf)
    some[0, :3] = np.inf
    text = policies(some=some, none=none).table()
    assert "∞, 3 of 64 failed" in text
    assert "all 64 failed" in text
    assert "failures on 1 of 2 systems" in text
    assert "failures on all 2 systems" in text


def test_latex_is_escaped():
    assert escaped("a_b & 5% ∞") == r"a\_b \& 5\% $\infty$"
    assert escaped("^{}") == r"\^{}\{\}"


def test_unknown_formats_and_metrics_are_refused():
    with pytest.raises(ValueError, match="format: unknown 'pdf'"):
        policies().table("pdf")
    with pytest.raises(ValueError, match="metric: unknown"):
        policies().table(metric="regret")
