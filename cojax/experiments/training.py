"""Train one algorithm and write its folder, at once or in several sittings."""

from __future__ import annotations

import contextlib
import dataclasses
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from cojax import errors, streams
from cojax.agents import prepare, save_policy
from cojax.agents.memory_budget import size_text
from cojax.agents.run import Run
from cojax.agents.training import Job, check
from cojax.envs import EnvParams, stack
from cojax.errors import InputError
from cojax.evaluation import Evaluation, evaluate, provenance
from cojax.evaluation.evaluator import group_by_shape
from cojax.evaluation.learning_curve import RelativeGap
from cojax.experiments import events
from cojax.experiments.config import Experiment, Training, load_training
from cojax.experiments.regimes import StartedFixture
from cojax.families import FAMILIES
from cojax.fixtures import Fixture, load_fixture
from cojax.fixtures.store import save_fixture
from cojax.io import files, tables, yaml
from cojax.io.progress import Report, names, stage
from cojax.io.resume import begun, claim, finish, part, settle, unfinished

if TYPE_CHECKING:
    import pandas as pd

STATE_SECONDS = 60.0  # at most this much work is lost, and the interval that is under way


@dataclasses.dataclass(frozen=True)
class Trained:
    """What a training gave.

    Attributes:
        rows: one dict for each fixture and setting: those of the evaluation of the last policies
            (see ``Evaluation.rows``), and ``last`` and ``best``, median, low and high over the
            seeds of the gap on the curve, in units of V*.
        trials: one line for each fixture, setting, seed and trial of that evaluation.
        curves: one line for each fixture, setting, seed and interval.
        evaluations: one for each shape of fixture.
        runs: trained populations, one for each shape of fixture.
        folder: where it was written.
    """

    rows: list[dict[str, Any]]
    trials: pd.DataFrame
    curves: pd.DataFrame
    evaluations: list[Evaluation]
    runs: list[Run]
    folder: Path


def interrupted(folder: str | Path) -> Training:
    """The training that was interrupted in a folder; InputError where there is none."""
    file = unfinished(folder) / "config.yaml"
    if not file.exists():
        raise InputError(f"{folder}: expected an interrupted training, {file} is missing")
    return load_training(file)


def run_training(
    config: Training,
    folder: str | Path,
    *,
    resume: bool = False,
    tensorboard: bool = False,
    memory_limit: float | None = None,
) -> Trained:
    """Train on all fixtures, those of one shape by one program, and write ``folder``.

    The folder holds ``config.yaml``, ``curves.parquet``, ``trials.parquet``, ``rows.json``,
    ``provenance.json``, ``fixtures/*.yaml``, ``policies/*.npz`` (the last, and the best by its gap
    in training) and, with ``tensorboard``, event files. It appears whole or not at all.
    Until then the full state is kept beside it, in ``FOLDER.unfinished``, every minute, and
    ``resume`` continues from there, bit for bit on CPU.

    Raises InputError, one line, where the folder exists, where something named in the training
    does not, and for the interrupted state of other work.
    """
    folder = files.refuse_existing(folder)
    if tensorboard:
        events.require()
    for family in config.algorithm.families:
        errors.one_of("families", family, FAMILIES)
    check(config.algorithm.name, config.algorithm.hyperparameters)
    fixtures = [load_fixture(name) for name in config.fixtures]
    config = config.resolved(fixture.family for fixture in fixtures)
    for family in {fixture.family for fixture in fixtures}:
        check(config.algorithm.name, config.on(family))
    fresh = not begun(unfinished(folder))
    groups = group_by_shape([fixture.params for fixture in fixtures])
    members = [[fixtures[i] for i in indices] for indices in groups]
    runs = []
    with claim(folder, _content(config), resume, lambda file: _content(load_training(file))) as at:
        settle(at, {fixture.id: fixture.sha256 for fixture in fixtures})
        try:
            for number, group in enumerate(members):
                runs.append(_train(config, group, at / str(number), tensorboard, memory_limit))
        except InputError:
            if fresh and not runs:  # nothing was trained
                shutil.rmtree(at, ignore_errors=True)
            raise
        trained = _gather(config, fixtures, members, runs, folder)
        _write(config, trained, members, at, tensorboard)
    return trained


def _gather(
    config: Training,
    fixtures: list[Fixture],
    members: list[list[Fixture]],
    runs: list[Run],
    folder: Path,
) -> Trained:
    """Tables over all groups, in the order the fixtures were named."""
    import pandas as pd

    order = {fixture.id: i for i, fixture in enumerate(fixtures)}
    measured = [
        measure(config, [StartedFixture.of(one) for one in group], [run.policy])
        for run, group in zip(runs, members, strict=True)
    ]
    rows = [row for k in zip(runs, members, measured, strict=True) for row in _rows(*k)]
    return Trained(
        rows=sorted(rows, key=lambda row: (order[row["fixture"]], row["setting"])),
        trials=pd.concat([one.frame() for one in measured], ignore_index=True),
        curves=pd.concat([curve_frame(r, g) for r, g in zip(runs, members, strict=True)]),
        evaluations=measured,
        runs=runs,
        folder=folder,
    )


def _content(config: Training) -> dict[str, Any]:
    return config.model_dump(mode="json", by_alias=True)


def _train(
    config: Training,
    fixtures: list[Fixture],
    state: Path,
    tensorboard: bool,
    memory_limit: float | None,
) -> Run:
    """Train on fixtures of one shape: all settings and seeds, with the gap on the way."""
    with contextlib.ExitStack() as stack_:
        report = stack_.enter_context(stage(f"{config.algorithm.name} on {names(fixtures)}"))
        job = prepare(
            config.algorithm.name,
            hyperparameters=config.on(fixtures[0].family),
            **arguments(config, [one.params for one in fixtures], config.total_timesteps),
            memory_limit=memory_limit,
            checkpoint_dir=state,
        )
        report(0.0, memory_line(job))
        if job.warning is not None:
            report(0.0, job.warning)
        live = None
        if tensorboard:
            live = stack_.enter_context(
                contextlib.closing(events.Live(state.parent / "tensorboard" / state.name))
            )
        return job.run(_progress(report, job, live), STATE_SECONDS)


def arguments(
    config: Training | Experiment, systems: Sequence[EnvParams], total_timesteps: int
) -> dict[str, Any]:
    """Arguments of ``train`` that do not depend on the algorithm, for systems of one shape."""
    horizon = max(int(params.max_steps_in_episode) for params in systems)
    return {
        "params": stack(list(systems)),
        "key": streams.seed_key(config.seed),
        "num_seeds": config.num_seeds,
        "total_timesteps": total_timesteps,
        "evaluate": RelativeGap(config.curve.num_trials, horizon, config.curve.root),
        "eval_every": -(-total_timesteps // config.curve.points),
    }


def measure(
    config: Training | Experiment, systems: Sequence[StartedFixture], policies: Sequence[Any]
) -> Evaluation:
    """The final evaluation: all policies on systems of one shape, on the same streams."""
    with stage(f"evaluate {names(systems)}") as report:
        params = {one.id: one.params for one in systems}
        result = evaluate(policies, params, config.evaluation.num_trials, config.evaluation.root)
        report(1.0, f"{result.num_trials} paired trials")
    floors = tuple(one.floor for one in systems)
    hashes = tuple(one.fixture.sha256 for one in systems)
    return dataclasses.replace(result, floors=floors, hashes=hashes)


def memory_line(job: Job) -> str:
    """What the training needs and may take, for people."""
    line = f"needs {size_text(job.memory_bytes)} of {size_text(job.memory_limit)}"
    return line + (f", in {len(job.chunks)} chunks" if len(job.chunks) > 1 else "")


def _progress(report: Report, job: Job, live: events.Live | None) -> Any:
    """Tell of each interval: steps, speed, time left, gap."""
    members = int(np.prod(job.population.shape))

    def progress(steps: int, total: int, metrics: dict[str, Any]) -> None:
        rate = metrics["steps_per_second"]
        left = (total - steps) * members / max(rate, 1e-9)
        gap = float(np.median(_gaps(metrics["evaluation"])))
        report(
            steps / total,
            f"{steps:,} steps each, {rate:,.0f} steps/s, {left:,.0f} s left, "
            f"median gap {gap:.3g} V*",
        )
        if live is not None:
            live.write(steps, metrics)

    return progress


def _gaps(gaps: Any) -> np.ndarray:
    """Gaps in float64; one that is not a number is infinite, a failure."""
    gaps = np.asarray(gaps, np.float64)
    return np.where(np.isnan(gaps), np.inf, gaps)


def _with_settings(run: Run, x: np.ndarray) -> np.ndarray:
    """(fixture, setting, seed, ...), also where there is no axis of settings."""
    return x if "hyperparameters" in run.axes else x[:, None]


def curve_frame(run: Run, fixtures: list[Fixture]) -> pd.DataFrame:
    """Gap and metrics of each interval, long form."""
    import pandas as pd

    gaps = _with_settings(run, _gaps(run.curves))
    F, H, S, K = gaps.shape
    labels = [np.arange(n).reshape([-1 if i == j else 1 for j in range(4)]) for i, n in
              enumerate((F, H, S, K))]  # fmt: skip
    f, h, s, k = (np.broadcast_to(x, gaps.shape).ravel() for x in labels)
    metrics = {
        name: _with_settings(run, x).ravel().astype(np.float64) for name, x in run.metrics.items()
    }
    return pd.DataFrame(
        {
            "fixture": np.array([fixture.id for fixture in fixtures], object)[f],
            "algorithm": run.algorithm,
            "setting": h,
            "seed": s,
            "timesteps": run.timesteps[k],
            "relative_suboptimality": gaps.ravel(),
            **metrics,
        }
    )


def _rows(run: Run, fixtures: list[Fixture], measured: Evaluation) -> list[dict[str, Any]]:
    """One row for each fixture and setting."""
    of = {(row["fixture"], row.get("setting", 0)): row for row in measured.rows()}
    gaps = _with_settings(run, _gaps(run.curves))
    failed, gamma = (_with_settings(run, x) for x in (run.failed, run.gamma))

    def over_seeds(x: np.ndarray) -> dict[str, float]:
        return {"median": float(np.median(x)), "low": float(x.min()), "high": float(x.max())}

    return [
        {
            **of[fixture.id, h],
            "setting": h,
            "num_seeds": gaps.shape[2],
            "timesteps": int(run.timesteps[-1]),
            "gamma": float(gamma[f, h, 0]),
            "last": over_seeds(gaps[f, h, :, -1]),
            "best": over_seeds(gaps[f, h].min(axis=-1)),
            "failed": int(failed[f, h].sum()),
        }
        for f, fixture in enumerate(fixtures)
        for h in range(gaps.shape[1])
    ]


def _write(
    config: Training,
    trained: Trained,
    groups: list[list[Fixture]],
    state: Path,
    tensorboard: bool,
) -> None:
    """Everything into the folder, which appears whole or not at all."""
    content = _content(config)
    with part(state, "results") as folder:
        files.write_whole(folder / "config.yaml", yaml.dump(content))
        tables.write(trained.curves, folder / "curves.parquet")
        for name in ("policies", "fixtures"):
            (folder / name).mkdir()
        populations = []
        for number, (run, group) in enumerate(zip(trained.runs, groups, strict=True)):
            name = f"{run.algorithm}-{number}"
            save_policy(folder / "policies" / f"{name}.npz", run.policy)
            if run.best is not None:
                save_policy(folder / "policies" / f"{name}-best.npz", run.best)
            populations.append(_about(name, run, group))
            for fixture in group:
                save_fixture(fixture, folder / "fixtures" / f"{fixture.id}.yaml")
        about = provenance.provenance("train", trained.evaluations, content)
        provenance.write(folder, about | {"populations": populations}, trained.rows, trained.trials)
        if tensorboard:
            events.write_curves(folder / "tensorboard", trained.curves)
    finish(state, "results", trained.folder)


def _about(name: str, run: Run, fixtures: list[Fixture]) -> dict[str, Any]:
    """What decides, or may explain, the figures of one population; JSON data."""
    return {
        "name": name,
        "axes": list(run.axes),
        "fixtures": {
            fixture.id: {"sha256": fixture.sha256, "horizon": fixture.horizon}
            for fixture in fixtures
        },
        "gamma": run.gamma.tolist(),
        "failed": run.failed.tolist(),
        "memory_bytes": run.memory_bytes,
        "chunks": run.chunks,
        "compile_seconds": run.compile_seconds,
        "steps_per_second": run.steps_per_second,
    }
