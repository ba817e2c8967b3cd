"""Run an experiment and write its folder."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from cojax import inputs
from cojax.agents import save_policy, train
from cojax.agents.training import Run, check
from cojax.evaluation import Evaluation, evaluate, provenance, tables
from cojax.evaluation.checkpoints import policy_from_text
from cojax.evaluation.evaluator import group_by_shape
from cojax.evaluation.result import METRICS
from cojax.experiments.config import Algorithm, Experiment
from cojax.experiments.progress import names, stage
from cojax.experiments.training import arguments
from cojax.families import FAMILIES
from cojax.fixtures import Fixture, load_fixture, text
from cojax.report.figures import gap_figure

if TYPE_CHECKING:
    import pandas as pd


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What an experiment gave.

    Attributes:
        rows: one dict for each fixture and policy; see ``Evaluation.rows``.
        trials: one line for each fixture, policy, seed and trial.
        curves: the gap while training, one line for each fixture, algorithm, seed and moment.
        runs: trained populations by their file name.
        folder: where it was written.
    """

    rows: list[dict[str, Any]]
    trials: pd.DataFrame
    curves: pd.DataFrame
    runs: dict[str, Run]
    folder: Path


def run_experiment(experiment: Experiment, folder: str | Path) -> Outcome:
    """Train every algorithm on every fixture, evaluate all on common streams, write ``folder``.

    Fixtures of one shape are trained by one compiled program. The folder holds ``config.yaml``,
    ``rows.parquet`` and ``rows.json``, ``trials.parquet``, ``curves.parquet``, ``provenance.json``,
    ``policies/*.npz`` and ``figure.png``; it appears whole or not at all.

    Raises InputError, one line, where the folder exists or something named in the experiment
    does not.
    """
    folder = provenance.refuse_existing(folder)
    for algorithm in experiment.algorithms:
        for family in (inputs.one_of("families", f, FAMILIES) for f in algorithm.families):
            check(algorithm.name, algorithm.on(family))
        check(algorithm.name, algorithm.hyperparameters)
    policies = [policy_from_text(name) for name in experiment.evaluation.policies]
    fixtures = [load_fixture(name) for name in experiment.fixtures]
    groups = group_by_shape([fixture.params for fixture in fixtures])
    rows: dict[str, list[dict[str, Any]]] = {}
    evaluations, curves, runs = [], [], {}
    for number, indices in enumerate(groups):
        members = [fixtures[i] for i in indices]
        trained = []
        for algorithm in experiment.algorithms:
            run = _train(experiment, algorithm, members)
            trained.append(run)
            runs[f"{algorithm.name}-{number}"] = run
            curves.append(_curve_frame(run, algorithm.name, members))
        with stage(f"evaluate {names(members)}") as report:
            everyone = [*policies, *(run.policy for run in trained)]
            result = evaluate(
                everyone, members, experiment.evaluation.num_trials, experiment.evaluation.root
            )
            for row in result.rows():
                rows.setdefault(row["fixture"], []).append(row)
            evaluations.append(result)
            report(1.0, f"{result.num_trials} paired trials")
    import pandas as pd

    outcome = Outcome(
        rows=[row for fixture in fixtures for row in rows[fixture.id]],
        trials=pd.concat([e.frame() for e in evaluations], ignore_index=True),
        curves=pd.concat(curves, ignore_index=True),
        runs=runs,
        folder=folder,
    )
    _write(experiment, outcome, evaluations)
    return outcome


def _train(experiment: Experiment, algorithm: Algorithm, fixtures: list[Fixture]) -> Run:
    """One algorithm on fixtures of one shape, all seeds, with its gap on the way."""
    with stage(f"{algorithm.name} on {names(fixtures)}") as report:

        def progress(steps: int, total: int, metrics: dict[str, Any]) -> None:
            gap = float(np.median(metrics["evaluation"]))
            report(steps / total, f"{steps:,} steps each, median gap {gap:.3g} V*")

        return train(
            algorithm.name,
            hyperparameters=algorithm.on(fixtures[0].family),
            progress=progress,
            **arguments(experiment, fixtures),
        )


def _curve_frame(run: Run, name: str, fixtures: list[Fixture]) -> pd.DataFrame:
    """The gap at each moment, long form."""
    import pandas as pd

    gaps = np.asarray(run.curves, np.float64)  # (fixture, seed, moment)
    F, S, K = gaps.shape
    return pd.DataFrame(
        {
            "fixture": np.repeat([fixture.id for fixture in fixtures], S * K),
            "algorithm": name,
            "seed": np.tile(np.repeat(np.arange(S), K), F),
            "timesteps": np.tile(run.timesteps, F * S),
            "relative_suboptimality": gaps.ravel(),
        }
    )


def _write(experiment: Experiment, outcome: Outcome, evaluations: list[Evaluation]) -> None:
    """Everything into the folder, which appears whole or not at all."""
    content = experiment.model_dump(mode="json", by_alias=True)
    with provenance.whole_folder(outcome.folder) as folder:
        text.write_whole(folder / "config.yaml", text.dump(content))
        flat_rows(outcome.rows).to_parquet(folder / "rows.parquet", index=False)
        outcome.trials.to_parquet(folder / "trials.parquet", index=False)
        outcome.curves.to_parquet(folder / "curves.parquet", index=False)
        (folder / "rows.json").write_text(tables.to_json(outcome.rows) + "\n")
        provenance.write_provenance(folder, evaluations, content)
        (folder / "policies").mkdir()
        for name, run in outcome.runs.items():
            save_policy(folder / "policies" / f"{name}.npz", run.policy)
        gap_figure(outcome.rows, outcome.curves, folder / "figure.png")


def flat_rows(rows: list[dict[str, Any]]) -> pd.DataFrame:
    """Rows with one column a number: ``suboptimality_mean``, ``_low``, ``_high`` and so on."""
    import pandas as pd

    flat = []
    for row in rows:
        line: dict[str, Any] = {}
        for name, value in row.items():
            if isinstance(value, dict):
                line |= {f"{name}_{part}": number for part, number in value.items()}
            elif name.removesuffix("_completed") not in METRICS:
                line[name] = value
        flat.append(line)
    return pd.DataFrame(flat)
