"""The suite's table: what it counts, without training anything."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import numpy as np
import pandas as pd
import pytest


@pytest.fixture(scope="module")
def suite():
    path = Path(__file__).parents[1] / "benchmarks" / "suite.py"
    spec = importlib.util.spec_from_file_location("suite", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def medians():
    return pd.DataFrame(
        {"a": [0.005, 0.04, np.inf], "b": [0.3, 0.15, 2.0], "zero": [8.0, 0.1, 1.0]},
        index=["x", "y", "z"],
    )


def test_shares_failures_and_losses_are_counted(suite, medians):
    found = suite.summary(medians, ["zero"])
    assert found.loc["a", ["<= 0.01", "<= 0.05", "<= 0.2", "infinite"]].tolist() == [1, 2, 2, 1]
    assert found.loc["b", "worse than zero or lqr"] == 2
    assert np.isnan(found.loc["zero", "worse than zero or lqr"])
    assert np.isinf(found.loc["a", "worst"])
    assert found.loc["a", "median"] == 0.04


def test_table_and_figure_are_written(suite, medians, tmp_path):
    text = suite.markdown(medians)
    assert text.splitlines()[2] == "| x | 0.005 | 0.3 | 8 |"
    assert "∞" in text.splitlines()[4]
    suite.draw(medians, ["zero"], tmp_path / "suite.png")
    assert (tmp_path / "suite.png").stat().st_size > 5000
