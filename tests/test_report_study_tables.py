"""Table I for a paper: few columns, marks that hold, a caption that explains every word."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from results_folder import make

from cojax.evaluation import Evaluation
from cojax.report import study_tables
from cojax.report.summary import Summary, table_one
from cojax.report.tables import BEST, TIED, latex

NAMES = ["arm-n4-p0.80-s7", "nvdex-k1-easy", "arm-n2-p0.80-s7"]


@pytest.fixture(scope="module")
def result(tmp_path_factory):
    return Evaluation.load(make(tmp_path_factory.mktemp("tables") / "a", NAMES, num_seeds=5))


def summary(result, name="made-up"):
    return Summary(name, ("ppo", "sac"), (), (result,), pd.DataFrame())


def columns(source: str) -> list[str]:
    head = re.search(r"\\toprule\n(.*?) \\\\\n", source)
    assert head is not None
    return head[1].split(" & ")


def test_columns_of_the_styles(result):
    found = {
        style: columns(latex(study_tables.compact_table(summary(result, "nvdex"), style)))
        for style in study_tables.STYLES
    }
    assert found["gap"] == ["algorithm", "gap / $V^*$", "failed trials"]
    assert found["compact"] == [*found["gap"][:2], "OptGap", "Regret", "failed trials"]
    assert found["paper"][2:] == ["OptGap", "OptGap, paper", "Regret", "Regret, paper"]


def test_what_is_not_the_papers_has_nothing_beside_it(result):
    ours = table_one(summary(result))
    theirs = table_one(summary(result, "nvdex"))
    assert not [name for name in ours if name.startswith("paper")]
    assert len([name for name in theirs if name.startswith("paper")]) == 6


def test_numbers_are_those_of_the_csv_and_every_word_is_explained(result):
    row = table_one(summary(result)).iloc[0]
    table = study_tables.compact_table(summary(result))
    gap = f"{row['gap_median']:.3g} [{row['gap_median_lo']:.3g}, {row['gap_median_hi']:.3g}]"
    assert table.lines[0][1].text == gap
    assert table.lines[1][4].text == "1 of 120"
    for word in ("median over 3 systems", "OptGap", "Regret", "∞", "Bold", "Failed trials"):
        assert word in table.caption
    source = latex(table)
    assert rf"\textbf{{{row['gap_median']:.3g}}} [" in source
    assert not re.search(r"[∞†γΣ₀ᵏ]", source)


def test_marks_tell_apart_what_is_apart(result):
    assert study_tables.marks_over_systems(summary(result)) == {"ppo": BEST}
    twins = summary(result)
    rng = np.random.default_rng(0)
    for values in twins.evaluations[0].trials.values():
        values[:, 7:] = values[:, 2:7]
    metric = result.trials["relative_suboptimality"]
    metric[:, 7:] = metric[:, 2:7] * rng.lognormal(0.0, 0.3, (3, 5, 1))
    assert sorted(study_tables.marks_over_systems(twins).values()) == [BEST, TIED]


def test_captions_hold_no_paper_where_there_is_none():
    words = Path(study_tables.__file__).with_name("templates").joinpath("captions.yaml")
    assert "beside the paper's" not in words.read_text("utf-8")
