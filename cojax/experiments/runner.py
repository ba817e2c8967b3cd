"""Run an experiment and write its folder, in one sitting or several."""

from __future__ import annotations

import dataclasses
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from cojax import errors
from cojax.agents import load_policy, prepare, save_policy
from cojax.agents.training import check
from cojax.envs import CommonStreams, ConverseEnv
from cojax.evaluation import Evaluation, provenance
from cojax.evaluation.evaluator import group_by_shape
from cojax.evaluation.result import METRICS
from cojax.experiments.config import Algorithm, Experiment, load_experiment
from cojax.experiments.regimes import StartedFixture, systems
from cojax.experiments.training import arguments, measure
from cojax.families import FAMILIES
from cojax.fixtures.store import save_fixture
from cojax.io import files, tables, yaml
from cojax.io.progress import names, stage
from cojax.io.resume import (
    begun,
    check_part,
    claim,
    finish,
    part,
    settle,
    unfinished,
)
from cojax.named_policies import policy_from_text
from cojax.policy import Policy

if TYPE_CHECKING:
    import pandas as pd

STATE_SECONDS = 60.0  # at most this much training is lost, and the interval that is under way


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What an experiment gave.

    Attributes:
        experiment: what was run.
        systems: its systems, in order.
        rows: one dict for each fixture and policy; see ``Evaluation.rows``.
        trials: one line for each fixture, policy, seed and trial.
        curves: the gap and the stage reward while training, one line for each fixture, algorithm,
            seed and moment.
        evaluations: one for each shape of fixture.
        policies: trained populations by their file name.
        folder: where it was written.
    """

    experiment: Experiment
    systems: list[StartedFixture]
    rows: list[dict[str, Any]]
    trials: pd.DataFrame
    curves: pd.DataFrame
    evaluations: list[Evaluation]
    policies: dict[str, Policy]
    folder: Path


def run_experiment(experiment: Experiment, folder: str | Path, *, resume: bool = False) -> Outcome:
    """Train every algorithm on every fixture, evaluate all on common streams, write ``folder``.

    Fixtures of one shape are trained by one compiled program. The folder holds ``config.yaml``,
    ``fixtures/*.yaml``, ``rows.parquet`` and ``rows.json``, ``trials.parquet``,
    ``curves.parquet``, ``provenance.json``, ``policies/*.npz``, ``figure.png``, tables in
    ``tables/``, figures in ``figures/`` and ``report.html``; it appears whole or not at all. Until
    then its state is kept in ``FOLDER.unfinished``, training every minute, and ``resume`` goes
    on from there to the same files.

    Raises InputError, one line, where the folder exists or something named in the experiment
    does not, and for the state of other work.
    """
    folder = files.refuse_existing(folder)
    everything = systems(experiment)
    families = {system.fixture.family for system in everything}
    for algorithm in experiment.algorithms:
        families |= {errors.one_of("families", name, FAMILIES) for name in algorithm.families}
        for family in sorted(families):
            check(algorithm.name, experiment.on(algorithm, family))
    for name in experiment.evaluation.policies:
        policy_from_text(name)
    fresh = not begun(unfinished(folder))
    with claim(folder, _content(experiment), resume, _read_content) as state:
        settle(state, {system.fixture.id: system.fixture.sha256 for system in everything})
        try:
            outcome = _run(experiment, everything, folder, state)
        except errors.InputError:
            if fresh and not list(state.glob("*-*")):  # nothing was trained
                shutil.rmtree(state, ignore_errors=True)
            raise
        _write(outcome, state)
    return outcome


def _content(experiment: Experiment) -> dict[str, Any]:
    return experiment.model_dump(mode="json", by_alias=True)


def _read_content(file: Path) -> dict[str, Any]:
    return _content(load_experiment(str(file)))


def _run(
    experiment: Experiment, everything: list[StartedFixture], folder: Path, state: Path
) -> Outcome:
    import pandas as pd

    policies = [policy_from_text(name) for name in experiment.evaluation.policies]
    rows: dict[str, list[dict[str, Any]]] = {}
    evaluations, curves, trained = [], [], {}
    for number, indices in enumerate(group_by_shape([one.params for one in everything])):
        members = [everything[i] for i in indices]
        for algorithm in experiment.algorithms:
            name = f"{algorithm.name}-{number}"
            if not (state / name).exists():
                _train(experiment, algorithm, members, state, name)
            check_part(state, name)
            trained[name] = load_policy(state / name / "policy.npz")
            curves.append(tables.read(state / name / "curves.parquet"))
        learners = [trained[f"{a.name}-{number}"] for a in experiment.algorithms]
        result = measure(experiment, members, [*policies, *learners])
        for row in result.rows():
            rows.setdefault(row["fixture"], []).append(row)
        evaluations.append(result)
    return Outcome(
        experiment=experiment,
        systems=everything,
        rows=[row for system in everything for row in rows[system.id]],
        trials=pd.concat([e.frame() for e in evaluations], ignore_index=True),
        curves=pd.concat(curves, ignore_index=True),
        evaluations=evaluations,
        policies=trained,
        folder=folder,
    )


def _train(
    experiment: Experiment,
    algorithm: Algorithm,
    members: list[StartedFixture],
    state: Path,
    name: str,
) -> None:
    """One algorithm on systems of one shape, all seeds; its policies and curves in the state.

    The training streams depend on seed and environment alone, not on what learns.
    """
    with stage(f"{algorithm.name} on {names(members)}") as report:

        def progress(steps: int, total: int, metrics: dict[str, Any]) -> None:
            gap = float(np.median(metrics["evaluation"]))
            rate = metrics["steps_per_second"]
            told = f"{steps:,} steps each, {rate:,.0f} steps/s, median gap {gap:.3g} V*"
            report(steps / total, told)

        sitting = state / f"{name}.state"
        job = prepare(
            algorithm.name,
            env=CommonStreams(ConverseEnv()),
            hyperparameters=experiment.on(algorithm, members[0].fixture.family),
            **arguments(experiment, [one.params for one in members], experiment.budget(algorithm)),
            checkpoint_dir=sitting,
        )
        run = job.run(progress, STATE_SECONDS)
        with part(state, name) as folder:
            save_policy(folder / "policy.npz", run.policy)
            tables.write(_curve_frame(run, algorithm.name, members), folder / "curves.parquet")
        shutil.rmtree(sitting)


def _curve_frame(run: Any, name: str, members: list[StartedFixture]) -> pd.DataFrame:
    """The gap and the mean stage reward of training episodes at each moment, long form."""
    import pandas as pd

    gaps = np.asarray(run.curves, np.float64)  # (fixture, seed, moment)
    F, S, K = gaps.shape
    returns, lengths = (run.metrics[f"episode_{n}"] for n in ("return", "length"))
    with np.errstate(invalid="ignore", divide="ignore"):
        reward = np.asarray(returns, np.float64) / np.asarray(lengths, np.float64)
    return pd.DataFrame(
        {
            "fixture": np.repeat([one.id for one in members], S * K),
            "algorithm": name,
            "setting": 0,
            "seed": np.tile(np.repeat(np.arange(S), K), F),
            "timesteps": np.tile(run.timesteps, F * S),
            "relative_suboptimality": gaps.ravel(),
            "stage_reward": reward.ravel(),
        }
    )


def _write(outcome: Outcome, state: Path) -> None:
    """Everything into the folder, which appears whole or not at all."""
    from cojax.report.page import write_report
    from cojax.report.write import write_report_files

    content = _content(outcome.experiment)
    with part(state, "results") as folder:
        files.write_whole(folder / "config.yaml", yaml.dump(content))
        about = provenance.provenance("run", outcome.evaluations, content)
        provenance.write(folder, about, outcome.rows, outcome.trials)
        tables.write(flat_rows(outcome.rows), folder / "rows.parquet")
        tables.write(outcome.curves, folder / "curves.parquet")
        for name in ("policies", "fixtures"):
            (folder / name).mkdir()
        for name, policy in outcome.policies.items():
            save_policy(folder / "policies" / f"{name}.npz", policy)
        for system in outcome.systems:
            save_fixture(system.fixture, folder / "fixtures" / f"{system.id}.yaml")
        write_report_files(outcome, folder)
        write_report(folder)
    finish(state, "results", outcome.folder)


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
