"""How near to the optimum each algorithm comes: relative suboptimality over seeds.

    python benchmarks/quality.py [--fixtures F ...] [--algorithms A ...] [--seeds 10]
                                 [--timesteps 300000] [--set num_steps=16 ...]
                                 [--out quality.jsonl] [--figure curves.png]

Hyperparameters are the tuned ones (``cojax/agents/tuned.yaml``). Seeds and streams are others than
those of the search: key 0 and evaluation streams of root 7. ``--set`` changes hyperparameters. What
``--out`` already holds for this budget and these changes is not run again. ``--figure`` draws the
learning curves: thin lines are seeds, the marker their median with the quartiles.
"""

from __future__ import annotations

import argparse
import json
import pathlib

import jax
import numpy as np
import pandas as pd
import yaml

import cojax
from cojax.agents import train
from cojax.agents.tuned import tuned
from cojax.evaluation.learning_curve import RelativeGap
from cojax.report.figures import gap_figure

FIXTURES = ("arm-n4-p0.50-s7", "arm-n4-p0.80-s7", "nvdex-k1-easy")
ALGORITHMS = ("ppo", "a2c", "sac", "td3", "ddpg")


def measure(
    algorithm: str, fixture: str, seeds: int, timesteps: int, trials: int, changes: dict
) -> dict:
    """Train ``seeds`` learners; return one row of the table."""
    env, params = cojax.make(fixture)
    family = cojax.load_fixture(fixture).family
    run = train(
        algorithm,
        params,
        jax.random.key(0),
        env=env,
        hyperparameters=tuned(algorithm, family) | changes,
        num_seeds=seeds,
        total_timesteps=timesteps,
        evaluate=RelativeGap(num_trials=trials, root=7),
    )
    curves = np.asarray(run.curves)
    final = np.where(run.failed, np.inf, curves[:, -1])
    return {
        "fixture": fixture,
        "algorithm": algorithm,
        "timesteps": timesteps,
        "changes": changes,
        "seeds": seeds,
        "median": float(np.median(final)),
        "low": float(np.quantile(final, 0.25)),
        "high": float(np.quantile(final, 0.75)),
        "final": final.tolist(),
        "curve_timesteps": run.timesteps.tolist(),
        "curves": np.round(curves, 5).tolist(),
        "steps_per_second": run.steps_per_second,
        "compile_seconds": run.compile_seconds,
    }


def draw(rows: list[dict], path: pathlib.Path) -> None:
    """Learning curves, a panel for each fixture."""
    learners = [
        {
            "fixture": row["fixture"],
            "policy": row["algorithm"],
            "relative_suboptimality": {
                "mean": row["median"],
                "low": row["low"],
                "high": row["high"],
            },
        }
        for row in rows
    ]
    curves = pd.DataFrame(
        [
            {
                "fixture": row["fixture"],
                "algorithm": row["algorithm"],
                "seed": seed,
                "timesteps": timesteps,
                "relative_suboptimality": gap,
            }
            for row in rows
            for seed, curve in enumerate(row["curves"])
            for timesteps, gap in zip(row["curve_timesteps"], curve, strict=True)
        ]
    )
    gap_figure(learners, curves, path)


def assignment(word: str) -> tuple[str, object]:
    """Name and value of ``NAME=VALUE``; the value as YAML writes it."""
    name, _, value = word.partition("=")
    if not (name.isidentifier() and value):
        raise argparse.ArgumentTypeError(f"expected NAME=VALUE, got {word!r}")
    return name, yaml.safe_load(value)


def main() -> None:
    """Run what is missing, print every row."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--fixtures", nargs="+", default=FIXTURES)
    parser.add_argument("--algorithms", nargs="+", default=ALGORITHMS)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--timesteps", type=int, default=300_000)
    parser.add_argument("--trials", type=int, default=64)
    parser.add_argument("--set", nargs="+", default=[], type=assignment, metavar="NAME=VALUE")
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("quality.jsonl"))
    parser.add_argument("--figure", type=pathlib.Path)
    options = parser.parse_args()
    lines = options.out.read_text("utf-8").splitlines() if options.out.exists() else []
    changes = dict(options.set)
    what = options.timesteps, changes
    rows = [r for r in map(json.loads, lines) if (r["timesteps"], r.get("changes", {})) == what]
    done = {(r["fixture"], r["algorithm"]): r for r in rows}
    shown = []
    for fixture in options.fixtures:
        for algorithm in options.algorithms:
            row = done.get((fixture, algorithm))
            if row is None:
                row = measure(
                    algorithm, fixture, options.seeds, options.timesteps, options.trials, changes
                )
                with options.out.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(row) + "\n")
            low, median, high = (f"{row[name]:.3g}" for name in ("low", "median", "high"))
            print(f"{fixture:18} {algorithm:5} {median:>8} [{low}, {high}]", flush=True)
            shown.append(row)
    if options.figure:
        draw(shown, options.figure)


if __name__ == "__main__":
    main()
