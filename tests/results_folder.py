"""A results folder as ``cojax run`` writes it, with numbers that are made up."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pandas as pd

import cojax
from cojax.evaluation import provenance
from cojax.evaluation.metrics import METRICS
from cojax.evaluation.result import Evaluation, Member
from cojax.fixtures.shelf import find
from cojax.io import yaml

MARKUP = '<img src=x onerror="boom()">&</script><script>boom()</script>'


def make(folder: Path, names: list[str], num_trials: int = 8, num_seeds: int = 2) -> Path:
    """PPO and SAC, with a failed trial, beside the oracle and zero, on fixtures by these names.

    Those that are shipped get their file in ``fixtures/``; markup stands wherever words can.
    """
    rng = np.random.default_rng(0)
    members = [Member("oracle"), Member("zero")]
    members += [Member(a, None, s) for a in ("ppo", "sac") for s in range(num_seeds)]
    F, M = len(names), len(members)
    level = np.r_[[0.0, 8.0], [0.04] * num_seeds, [0.3] * num_seeds][:, None]
    gap = level * rng.lognormal(0.0, 0.4, (F, M, num_trials)) * rng.lognormal(0, 1, (F, 1, 1))
    failed = np.zeros(gap.shape)
    failed[0, M - 1, 0] = 1.0
    trials = {name: np.where(failed > 0, np.inf, gap) for name in METRICS}
    for name in ("paper_optgap", "discounted_return", "undiscounted_return"):
        trials[name] = -trials[name]
    extra = {"optimal_value": 1.0, "steps": 9.0, "saturated": 0.0, "reached": 1.0, "nonfinite": 0.0}
    trials |= {name: np.full(gap.shape, value) for name, value in extra.items()}
    trials |= {"failed": failed, "diverged": failed}
    hashes = tuple(_sha256(name) for name in names)
    result = Evaluation(
        tuple(names), tuple(members), trials, np.full(F, 9), 0, "float32", (1e-6,) * F, hashes
    )
    configuration = {"name": "made-up", "total_timesteps": 4096, "num_seeds": num_seeds}
    provenance.save(result, folder, configuration)
    (folder / "config.yaml").write_text(yaml.dump(configuration))
    _curves(names, num_seeds).to_parquet(folder / "curves.parquet", index=False)
    for name in ("fixtures", "tables", "figures"):
        (folder / name).mkdir()
    for name, sha256 in zip(names, hashes, strict=True):
        if sha256 is not None:
            shutil.copy(find(name), folder / "fixtures" / f"{name}.yaml")
    table = {"algorithm": ["ppo", MARKUP], "gap_mean": [0.04, np.inf], "trials": [64, 64]}
    pd.DataFrame(table).to_csv(folder / "tables" / "table_1.csv", index=False)
    index = {"table_1": {"title": "Table I", "caption": MARKUP, "command": f"cojax run '{MARKUP}'"}}
    (folder / "tables" / "index.json").write_text(json.dumps(index))
    svg = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 90 50">{_shapes()}</svg>'
    (folder / "figures" / "gap_over_p.svg").write_text(svg)
    return folder


def _sha256(name: str) -> str | None:
    try:
        return cojax.load_fixture(name).sha256
    except ValueError:
        return None


def _shapes() -> str:
    return (
        '<script>boom()</script><image href="http://127.0.0.1:9/x.png" width="9" height="9"/>'
        '<path d="M5 5 C 30 45, 60 45, 85 20" fill="none" stroke="#0072B2"/>'
    )


def _curves(names: list[str], num_seeds: int) -> pd.DataFrame:
    steps = np.linspace(0, 4096, 9).astype(int)
    rng = np.random.default_rng(1)
    rows = [
        (name, algorithm, seed, k, end + 8.0 * np.exp(-k / 800.0) * rng.lognormal(0.0, 0.2))
        for name in names
        for algorithm, end in (("ppo", 0.04), ("sac", 0.3))
        for seed in range(num_seeds)
        for k in steps
    ]
    columns = ["fixture", "algorithm", "seed", "timesteps", "relative_suboptimality"]
    return pd.DataFrame(rows, columns=columns)
