"""Policies against a budget: what they spend, what they cost, and how far the optimum is.

    violation = J_d - D      gap = J_c - J_c*      distance = gap + λ violation = E Σ γᵏ A* >= 0

of the policy that hands over to π* at the horizon, as all gaps here. Where V_d is known
(:mod:`cojax.budgets`) each is a mean of sums that are 0 under π* in every trial, Σ γᵏ A_d,
Σ γᵏ A_c and Σ γᵏ A*, so that no noise of J_c* or D is in it; else J_d is Σ γᵏ d itself, over a
horizon that leaves out 1e-4 of it. A violation ε buys at most λ ε of gap.

Of a system whose whole front J_c*(D) is known (:mod:`cojax.families.isotropic`) there is also the
gap at the budget that a policy spends, J_c - J_c*(J_d) >= 0, and the interval of its linearisation.
"""

from __future__ import annotations

import dataclasses
import importlib
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from cojax.budgets import Budgeted
from cojax.coordinates import innermost
from cojax.envs import EnvParams
from cojax.errors import InputError
from cojax.evaluation.evaluator import evaluate
from cojax.evaluation.metrics import cell_of, flat, summarize
from cojax.evaluation.named_systems import named_systems, scope
from cojax.evaluation.result import Evaluation
from cojax.families.isotropic import Front
from cojax.fixtures import Fixture
from cojax.types import Option, Row

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

LEFT = 1e-4  # γᵀ of what a sum leaves out where V_d is not known
CELLS = {  # of a row: which column of trials it is the mean of
    "gap": "excess_objective",
    "violation": "excess_cost",
    "distance": "suboptimality",
    "own_gap": "excess_own",
}


@dataclasses.dataclass(frozen=True)
class Problem:
    """What is known of one problem with a budget.

    Attributes:
        multiplier: λ.
        budget: D.
        interval: the ends of its interval, D twice where it is exact.
        objective: J_c*.
        known: whether V_d is.
        front: J_c* at every budget; None where it is not known.
    """

    multiplier: float
    budget: float
    interval: tuple[float, float]
    objective: float
    known: bool
    front: Front | None

    @classmethod
    def of(cls, params: EnvParams, name: str = "params") -> Problem:
        """Read off the ``params`` of one problem, called ``name`` in messages. Raises InputError
        for a system without a budget, and a D estimated for another law.
        """
        system = innermost(params.system)[0]
        if not isinstance(system, Budgeted):
            raise InputError(f"{name}: expected a system with a budget (cojax.budgets)")
        make = getattr(params.system, "front", None)
        with scope(params):
            moments = params.initial_state.moments()
            objective, D = np.asarray(params.system.measured_means(*moments), np.float64)
            front = None if make is None else make(params.initial_state)
        multiplier, ends = float(system.multiplier), (float(D), float(D))
        if system.estimate is not None:
            low, high, expected = map(float, np.asarray(system.estimate)[1:])
            ends, found = (low, high), objective + multiplier * D
            if not math.isclose(expected, found, rel_tol=1e-4):
                raise InputError(
                    f"{name}: initial_state: expected the law that D was estimated for, with "
                    f"E V*(s_0) = {expected:.6g}, got {found:.6g}; use energy_budget(…, law=…)"
                )
        return cls(multiplier, float(D), ends, float(objective), system.measures_known, front)


def front(params: EnvParams) -> Front:
    """The Pareto front of a problem of the isotropic family: (J_d, J_c) of all budgets.

    ``params`` are of one problem. Raises InputError where the front is not known.
    """
    found = Problem.of(params).front
    if found is None:
        raise InputError("front: expected a system of the isotropic family, whose front is known")
    return found


@dataclasses.dataclass(frozen=True, repr=False)
class BudgetEvaluation:
    """Policies against the budgets of problems: :meth:`rows`, :meth:`table` and :meth:`plot`.

    Attributes:
        evaluation: all trials.
        problems: what is known of each problem, in the order of its fixtures.
    """

    evaluation: Evaluation
    problems: tuple[Problem, ...]

    def rows(self, **options: float | str) -> list[Row]:
        """A row for each problem and policy.

        ``objective`` and ``cost`` are J_c and J_d, ``gap``, ``violation`` and ``distance`` as
        above, ``own_gap`` J_c - J_c*(J_d), each ``{"mean", "low", "high"}`` with a 95% interval
        over trials (and seeds); ``own_gap`` and ``own_objective``, J_c*(J_d), are None where the
        front is not known, or no policy spends as little. ``budget`` is D and ``budget_low`` and
        ``budget_high`` its interval. ``options`` are those of
        :func:`cojax.evaluation.intervals.interval_of_mean`.
        """
        e = self.evaluation
        heads = [
            {"fixture": name, "policy": policy} | ({} if setting is None else {"setting": setting})
            for name in e.fixtures
            for policy, setting in e.populations()
        ]
        cells = _cells(e, self.problems, options)
        return [head | own for head, own in zip(heads, cells, strict=True)]

    def to_frame(self, **options: float | str) -> pd.DataFrame:
        """The :meth:`rows` with a number a column; ``options`` are those of :meth:`rows`."""
        import pandas as pd

        return pd.DataFrame([flat(row) for row in self.rows(**options)])

    def table(self, format: str = "text") -> str:
        """A line for each problem and policy, in a ``format`` of
        :meth:`cojax.evaluation.Evaluation.table`. Raises ValueError for another.
        """
        return _shown().budget_table(self, format)

    def plot(self, path: str | Path | None = None) -> Figure:
        """The plane of J_d and J_c, a panel for each problem: the front where it is known, the
        supporting line at π*, the budget, and the policies with their intervals.

        ``path`` is where to write it, too: .pdf, .png or .svg. Raises ValueError for others.
        """
        return _shown().budget_figure(self, path)

    def __repr__(self) -> str:
        e = self.evaluation
        return (
            f"BudgetEvaluation({len(e.fixtures)} problems, {len(e.populations())} policies, "
            f"{e.num_trials} paired trials)\n  .rows(), .to_frame(), .table(), .plot()"
        )


def on_budget(
    policies: object, params: object, num_trials: int = 256, root: int = 0, **options: Option
) -> BudgetEvaluation:
    """Run ``policies`` on problems with a budget, on the same streams.

    Arguments are those of :func:`cojax.evaluate`: ``params``, ``num_trials``, ``root`` and
    ``options`` by name. Episodes start by the initial law, which the budget is for.

    Raises ValueError, one line, as that does, for systems without a budget, for states to start
    from, and for a D that was estimated for another law.
    """
    if options.get("initial_states") is not None:
        raise InputError("initial_states: expected none: the budget is for the initial law")
    subjects = named_systems(params, options.get("names"))
    problems = tuple(Problem.of(one.params, one.name) for one in subjects)
    unknown = [
        float(one.params.system.gamma)
        for one, problem in zip(subjects, problems, strict=True)
        if not problem.known
    ]
    if unknown and options.get("num_steps") is None:
        options["num_steps"] = math.ceil(math.log(LEFT) / math.log(max(unknown)))
    return BudgetEvaluation(evaluate(policies, params, num_trials, root, **options), problems)


def columns(evaluation: Evaluation, fixtures: Sequence[Fixture]) -> list[Row]:
    """What rows of an ``evaluation`` of ``fixtures`` say more where there is a budget, in their
    order; empty for other systems, and where V_d is not known.

    ``cost_gap`` is J_c - J_c*, ``violation`` J_d - D and ``front_gap`` J_c - J_c*(J_d), None where
    no front is known, as in :meth:`BudgetEvaluation.rows`; ``budget`` is D, ``multiplier`` λ.
    """
    spent = evaluation.trials.get("measured_cost")
    known = []
    for f, fixture in enumerate(fixtures):
        found = None
        if spent is not None and not np.isnan(spent[f]).all():
            found = Problem.of(fixture.make_params(), fixture.id)
        known.append(found if found is not None and found.known else None)
    names = {"cost_gap": "gap", "violation": "violation", "front_gap": "own_gap"}
    names |= {name: name for name in ("budget", "multiplier")}
    return [
        {name: row[of] for name, of in names.items() if row}
        for row in _cells(evaluation, known, {})
    ]


def _cells(
    evaluation: Evaluation, problems: Sequence[Problem | None], options: Row
) -> Iterator[Row]:
    """Of each fixture and population :func:`_row`; empty where there is no problem."""
    for f, problem in enumerate(problems):
        for members in evaluation.populations().values():
            trials = {n: x[f, members] for n, x in evaluation.trials.items()}
            yield {} if problem is None else _row(problem, trials, options)


def _row(problem: Problem, trials: dict[str, np.ndarray], options: Row) -> Row:
    """Cells of one policy on one problem, of its ``trials`` (S, N)."""
    distance, failed = trials["suboptimality"], trials["failed"].astype(bool)
    D, known = problem.budget, problem.known
    violation = trials["excess_cost"] if known else trials["measured_cost"] - D
    with np.errstate(invalid="ignore"):
        gap = distance - problem.multiplier * violation
    columns = {"failed": trials["failed"], "suboptimality": distance}
    columns |= {"excess_cost": violation, "excess_objective": np.where(failed, np.inf, gap)}
    J_c, J_d = problem.objective + gap, D + violation
    own = None
    if problem.front is not None and not failed.any():
        spent = float(J_d.mean())
        own, slope = problem.front.objective(spent), problem.front.slope(spent)
        if math.isfinite(own):
            columns["excess_own"] = J_c - own + slope * (J_d - spent)
        else:
            own = None
    found = summarize(columns, options)
    row: Row = {name: found.get(column) for name, column in CELLS.items()}
    shift = {"objective": ("gap", problem.objective), "cost": ("violation", problem.budget)}
    row |= {name: cell_of(*(x + by for x in row[of].values())) for name, (of, by) in shift.items()}
    row |= {"own_objective": own, "optimal_objective": problem.objective}
    row |= {"budget": problem.budget, "multiplier": problem.multiplier}
    row |= dict(zip(("budget_low", "budget_high"), problem.interval, strict=True))
    return row | {name: found[name] for name in ("failures", "num_trials")}


def _shown() -> Any:
    """The module that shows them. It stands above this one, so it is looked up when asked for."""
    return importlib.import_module("cojax.report.budget_figure")
