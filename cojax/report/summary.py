"""What an experiment says, over its systems: the paper's Table I and the exact gap beside it."""

from __future__ import annotations

import dataclasses
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from scipy import stats

from cojax.evaluation.aggregates import aggregate, floors, over_systems, scores
from cojax.evaluation.metrics import METRIC, WORST
from cojax.evaluation.result import Evaluation
from cojax.evaluation.targets import average_runtime, steps_to_targets
from cojax.types import Float, Row

if TYPE_CHECKING:
    import pandas as pd

    from cojax.fixtures import Fixture

GAP = METRIC
PAPERS = {"optgap": "paper_optgap", "regret": "paper_regret"}  # in tables, and as a metric
TARGETS = (10.0, 3.0, 1.0, 0.3, 0.1, 0.03, 0.01)


@dataclasses.dataclass(frozen=True)
class Summary:
    """An experiment as tables and figures need it.

    Attributes:
        name: of the experiment; the paper's Table I is looked up by it.
        learners: names of the algorithms, in order.
        fixtures: fixtures, in the order of the evaluations.
        evaluations: one for each shape of fixture.
        curves: see ``studies.results.Outcome``; ``stage_reward`` is the mean of training episodes.
    """

    name: str
    learners: tuple[str, ...]
    fixtures: tuple[Fixture, ...]
    evaluations: tuple[Evaluation, ...]
    curves: pd.DataFrame

    @classmethod
    def of(cls, outcome: Any) -> Summary:
        """The summary of the outcome of an experiment."""
        by_id = {one.id: one.fixture for one in outcome.systems}
        curves = outcome.curves
        reward = curves["episode_return"] / curves["episode_length"]
        return cls(
            outcome.study.name,
            tuple(algorithm.name for algorithm in outcome.study.algorithms),
            tuple(by_id[name] for e in outcome.evaluations for name in e.fixtures),
            tuple(outcome.evaluations),
            curves.assign(stage_reward=reward),
        )

    def scores(self, policy: str, metric: str) -> Float[np.ndarray, "F S N"]:
        """Scores over all fixtures in the metric's own sign; failures ±inf."""
        sign = 1.0 if WORST[metric] > 0 else -1.0
        return sign * np.concatenate([scores(e, metric)[policy] for e in self.evaluations])

    def runs(self, policy: str, metric: str) -> Float[np.ndarray, "F S"]:
        """Mean over the completed trials of each run; NaN where none was completed."""
        x = self.scores(policy, metric)
        completed = np.isfinite(x)
        with np.errstate(invalid="ignore"):
            return np.where(completed, x, 0.0).sum(axis=-1) / completed.sum(axis=-1)

    def floors(self, metric: str) -> Float[np.ndarray, " F"]:
        """Resolution floors of the fixtures in the metric's units."""
        return np.concatenate([floors(e, metric) for e in self.evaluations])

    def failures(self, policy: str) -> Float[np.ndarray, "F S"]:
        """Share of failed trials of each run."""
        return (~np.isfinite(self.scores(policy, "suboptimality"))).mean(axis=-1)

    @cached_property
    def panels(self) -> dict[str, list[int]]:
        """Indices of fixtures by size: the links of an arm, the modules of a vehicle, or d."""
        found: dict[str, list[int]] = {}
        for index, fixture in enumerate(self.fixtures):
            sizes = [f"{n} = {fixture.knobs[n]}" for n in fixture.geometry.dimensions[:1]]
            found.setdefault(sizes[0] if sizes else f"d = {fixture.state_dim}", []).append(index)
        return found

    @cached_property
    def settings(self) -> tuple[str, ...]:
        """What a fixture is beside its size, for each: its p, and the preset of a vehicle."""
        words = [fixture.geometry.setting(fixture.id) for fixture in self.fixtures]
        return tuple(
            f"{fixture.p:.3g}" + (f"\n{word}" if word else "")
            for fixture, word in zip(self.fixtures, words, strict=True)
        )


def interval_of_runs(runs: Float[np.ndarray, "F S"]) -> tuple[float, float, float]:
    """Mean of runs (F, S) without NaN, and its 95% interval over the seeds of these systems,
    Student's; a point where no system has two seeds.
    """
    ok = ~np.isnan(runs)
    if not ok.any():
        return float("nan"), float("nan"), float("nan")
    mean = float(runs[ok].mean())
    several = ok.sum(axis=1) > 1
    if not several.any():
        return mean, mean, mean
    num = ok.sum(axis=1)[several]
    shares = num / ok.sum()
    variances = shares**2 * np.nanvar(runs[several], axis=1, ddof=1) / num
    freedom = variances.sum() ** 2 / max(np.sum(variances**2 / (num - 1)), 1e-300)
    half = stats.t.ppf(0.975, max(freedom, 1.0)) * np.sqrt(variances.sum())
    return mean, float(mean - half), float(mean + half)


def table_one(summary: Summary) -> pd.DataFrame:
    """A row an algorithm: OptGap and Regret by the paper's definitions, ours and, of the paper's
    experiments, the paper's, then mean, median and IQM of the exact gap in units of V*, and the
    failed trials.

    Intervals are 95%, over the seeds of these systems and, for the exact gap, trials. The paper's
    measures are means over completed trials; the exact gap counts a failed run as infinite.
    """
    import pandas as pd

    theirs = published(summary.name)
    rows = []

    def cells(name, interval):
        return {
            f"{name}{end}": float(v) for end, v in zip(("", "_lo", "_hi"), interval, strict=True)
        }

    for algorithm in summary.learners:
        row: Row = {"experiment": summary.name, "algorithm": algorithm}
        for name, metric in PAPERS.items():
            row |= cells(name, interval_of_runs(summary.runs(algorithm, metric)))
            found = theirs.get(algorithm, {})
            ends = ("mean", "lo", "hi") if theirs else ()
            row |= {f"paper_{name}_{k}": found.get(f"{name}_{k}") for k in ends}
        x = summary.scores(algorithm, "relative_suboptimality")
        for statistic in ("mean", "iqm"):
            mean, low, high = aggregate(x, statistic)
            row |= cells(f"gap_{statistic}", (mean, max(float(low), 0.0), high))
        one = over_systems(x)
        row |= cells("gap_median", [one[end] for end in ("mean", "low", "high")])
        some = np.isfinite(summary.runs(algorithm, "paper_optgap")).any(axis=1)
        row["systems_with_completed_trials"] = int(some.sum())  # what OptGap and Regret are over
        row["systems"] = one["systems"]
        row["systems_without_failures"] = one["complete"]
        row["failed_trials"] = int((~np.isfinite(x)).sum())
        row["trials"] = int(x.size)
        rows.append(row)
    return pd.DataFrame(rows)


def published(experiment: str) -> dict[str, dict[str, float]]:
    """The paper's Table I for one experiment, by algorithm; empty where it has none."""
    import pandas as pd

    rows = pd.read_csv(Path(__file__).with_name("paper_table_1.csv")).to_dict("records")
    chosen = [row for row in rows if row["experiment"].lower() == experiment.lower()]
    return {row["algorithm"].lower(): row for row in chosen}


def systems_table(summary: Summary) -> pd.DataFrame:
    """A row a fixture and algorithm: exact gap, OptGap, Regret and discounted reward, means over
    seeds and trials, and the failed trials.
    """
    import pandas as pd

    rows = []
    for f, fixture in enumerate(summary.fixtures):
        for algorithm in summary.learners:
            row: Row = {"fixture": fixture.id, "algorithm": algorithm}
            x = summary.scores(algorithm, "relative_suboptimality")[f]
            row["gap"] = float(x.mean())
            row["gap_best_seed"] = float(x.mean(axis=-1).min())
            row["gap_worst_seed"] = float(x.mean(axis=-1).max())
            for name in ("paper_optgap", "paper_regret", "discounted_return"):
                runs = summary.runs(algorithm, name)[f]
                row[name] = float(np.nanmean(runs)) if np.isfinite(runs).any() else float("nan")
            row["failed_trials"] = int((~np.isfinite(x)).sum())
            row["trials"] = int(x.size)
            rows.append(row)
    return pd.DataFrame(rows)


def hits(
    summary: Summary, algorithm: str, targets: npt.ArrayLike = TARGETS
) -> tuple[Float[np.ndarray, "runs targets"], float]:
    """Steps at which each run first met each target, and the budget in steps."""
    of_learner = summary.curves[summary.curves["algorithm"] == algorithm]
    index = ["fixture", "seed"]
    table = of_learner.pivot_table(GAP, index, "timesteps", dropna=False)
    steps = table.columns.to_numpy()
    floor = dict(zip((f.id for f in summary.fixtures), summary.floors(GAP), strict=True))
    of_runs = [floor[name] for name in table.index.get_level_values("fixture")]
    return steps_to_targets(steps, table.to_numpy(), targets, of_runs), float(steps[-1])


def targets_table(summary: Summary) -> pd.DataFrame:
    """A row an algorithm and target: the share of runs that met it, and the average runtime aRT."""
    import pandas as pd

    rows = []
    for algorithm in summary.learners:
        met, budget = hits(summary, algorithm)
        runtime = average_runtime(met, budget)
        for k, target in enumerate(TARGETS):
            row: Row = {"algorithm": algorithm, "gap": target}
            row["runs_that_met_it"] = float(np.isfinite(met[:, k]).mean())
            rows.append(row | {"aRT_steps": float(runtime[k])})
    return pd.DataFrame(rows)
