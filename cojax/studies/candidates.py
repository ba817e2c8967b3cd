"""What a search tries next: Optuna proposes, successive halving stops what falls behind.

The proposer is a state machine without a clock or a file: fed with the same results it makes the
same proposals. An interrupted search is replayed through a new one (:meth:`Proposer.feed`).
"""

from __future__ import annotations

import dataclasses
import importlib
import math
from collections.abc import Mapping, Sequence
from fractions import Fraction
from types import ModuleType
from typing import TYPE_CHECKING

import numpy as np

from cojax.errors import InputError
from cojax.studies.schema import Search
from cojax.studies.space import Parameter, Setting, active, ordered
from cojax.types import Json

if TYPE_CHECKING:
    import optuna
    from optuna.trial import Trial

WORST = 6.0  # log10 of a gap that could not be measured


@dataclasses.dataclass
class Candidate:
    """One setting and what became of it.

    Attributes:
        number: in order of proposal.
        setting: hyperparameters.
        bounds: (calls done, log10 upper bound of the gap), one for each call.
        state: "running", "complete" or "pruned".
    """

    number: int
    setting: Setting
    bounds: list[tuple[int, float]] = dataclasses.field(default_factory=list)
    state: str = "running"

    @property
    def value(self) -> float:
        """The last bound."""
        return self.bounds[-1][1] if self.bounds else WORST


def calls_of(rungs: Sequence[float]) -> tuple[int, list[int]]:
    """Calls of equal length in which every rung ends one: how many in all, and the rungs' own."""
    shares = [Fraction(rung).limit_denominator(64) for rung in rungs]
    calls = math.lcm(*(share.denominator for share in shares)) if shares else 1
    return calls, [int(share * calls) for share in shares]


class Proposer:
    """Keeps ``population`` places filled with settings until the budget is spent.

    A call trains every place for one share of the training. A place whose setting is done, or is
    not among the ``keep`` best of all that reached its rung (asynchronous successive halving, Li
    et al., 2020), is given a new setting.

    Attributes:
        places: the trial at each place; None where there is nothing left to try.
        trials: all, in order of proposal.
        study: Optuna's, in memory.
    """

    def __init__(self, search: Search, space: Mapping[str, Parameter], budget: float, seed: int):
        self.search, self.space, self.budget = search, dict(space), budget
        self.calls, self.rungs = calls_of(search.rungs)
        self.reached: dict[int, list[float]] = {rung: [] for rung in self.rungs}
        self.spent = Fraction(0)
        self.trials: list[Candidate] = []
        self.study = _study(search, seed)
        self._asked: dict[int, Trial] = {}
        self.places: list[Candidate | None] = [self._ask() for _ in range(search.population)]

    @property
    def running(self) -> bool:
        """Whether any place has a setting."""
        return any(trial is not None for trial in self.places)

    def feed(self, bounds: Sequence[float]) -> list[bool]:
        """Take the upper bounds of a call, one for each place; which places have a new setting.

        Bounds of empty places are ignored.
        """
        for trial, bound in zip(self.places, bounds, strict=True):
            if trial is not None:
                y = math.log10(bound) if math.isfinite(bound) and bound > 0 else WORST
                trial.bounds.append((len(trial.bounds) + 1, min(y, WORST)))
                self.spent += Fraction(1, self.calls)
                if len(trial.bounds) in self.reached:
                    self.reached[len(trial.bounds)].append(trial.value)
        for place, trial in enumerate(self.places):
            if trial is None:
                continue
            if len(trial.bounds) == self.calls:
                self._tell(trial, "complete")
            elif len(trial.bounds) in self.reached and not self._passes(trial):
                self._tell(trial, "pruned")
            else:
                continue
            self.places[place] = None
        replaced = [False] * len(self.places)
        for place, trial in enumerate(self.places):  # after every result was told
            if trial is None and self._left():
                self.places[place], replaced[place] = self._ask(), True
        return replaced

    def _left(self) -> bool:
        """Whether the budget allows another setting, with all under way trained to the end."""
        going = sum(
            Fraction(self.calls - len(trial.bounds), self.calls)
            for trial in self.places
            if trial is not None
        )
        return self.spent + going + 1 <= self.budget

    def _passes(self, trial: Candidate) -> bool:
        seen = self.reached[len(trial.bounds)]
        rank = sum(other < trial.value for other in seen)
        return rank < math.ceil(self.search.keep * len(seen))

    def _ask(self) -> Candidate:
        asked = self.study.ask()
        setting: Setting = {}
        for name in ordered(self.space):
            if active(self.space[name], setting):
                setting[name] = _suggest(asked, name, self.space[name])
        trial = Candidate(len(self.trials), setting)
        self.trials.append(trial)
        self._asked[trial.number] = asked
        return trial

    def _tell(self, trial: Candidate, state: str) -> None:
        from optuna.trial import TrialState

        trial.state = state
        asked = self._asked.pop(trial.number)
        for step, value in trial.bounds:
            asked.report(value, step)
        if state == "complete":
            self.study.tell(asked, trial.value)
        else:
            self.study.tell(asked, state=TrialState.PRUNED)


def _study(search: Search, seed: int) -> optuna.Study:
    """An Optuna study in memory. Raises InputError where an extra is not installed."""
    optuna = require()
    samplers = optuna.samplers
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    make = {
        "tpe": lambda: samplers.TPESampler(
            seed=seed, n_startup_trials=search.startup, constant_liar=True
        ),
        "cmaes": lambda: samplers.CmaEsSampler(seed=seed, n_startup_trials=search.startup),
        "gp": lambda: samplers.GPSampler(seed=seed, n_startup_trials=search.startup),
        "random": lambda: samplers.RandomSampler(seed=seed),
    }
    try:
        if search.sampler == "gp":
            importlib.import_module("torch")  # Optuna asks for it after the first trials
        sampler = make[search.sampler]()
        return optuna.create_study(direction="minimize", sampler=sampler)
    except ImportError as error:
        raise InputError(
            f"search.sampler: {search.sampler!r} expected a package: {error}"
        ) from None


def require() -> ModuleType:
    """Optuna; InputError, one line, where the extra is not installed."""
    try:
        import optuna
    except ImportError:
        raise InputError("search: expected the extra, pip install 'cojax[search]'") from None
    return optuna


def _suggest(trial: Trial, name: str, parameter: Parameter) -> Json:
    """Ask for one value."""
    if parameter.values is not None:
        words = [tuple(v) if isinstance(v, list) else v for v in parameter.values]
        return words[trial.suggest_categorical(name, list(range(len(words))))]
    assert parameter.low is not None
    assert parameter.high is not None
    if parameter.int_:
        low, high = int(parameter.low), int(parameter.high)
        return trial.suggest_int(name, low, high, log=parameter.log)
    return trial.suggest_float(name, parameter.low, parameter.high, log=parameter.log)


class Storage:
    """An Optuna storage that gets every finished trial, for Optuna's own tools to read.

    Raises InputError, one line, for a storage that cannot be opened.
    """

    def __init__(self, url: str, name: str) -> None:
        optuna = require()
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        try:
            self.study = optuna.create_study(
                storage=url, study_name=name, direction="minimize", load_if_exists=True
            )
        except Exception as error:  # drivers, addresses, rights: whatever the storage says
            line = str(error).strip().partition("\n")[0] or type(error).__name__
            raise InputError(f"search.storage: {url!r} cannot be opened: {line}") from None

    def keep(self, proposer: Proposer) -> None:
        """Add what finished and is not there yet."""
        have = self.study.get_trials(deepcopy=False)
        there = {trial.user_attrs.get("number") for trial in have}
        for trial, frozen in zip(proposer.trials, proposer.study.get_trials(), strict=True):
            if trial.state != "running" and trial.number not in there:
                frozen.set_user_attr("number", trial.number)
                frozen.set_user_attr("setting", {k: str(v) for k, v in trial.setting.items()})
                self.study.add_trial(frozen)


def importances(proposer: Proposer, least: int = 8) -> dict[str, float]:
    """Share of each parameter in what separates good settings from others, by PED-ANOVA
    (Watanabe et al., 2023); {} of fewer than ``least`` complete trials.
    """
    optuna = require()
    done = [trial for trial in proposer.trials if trial.state == "complete"]
    if len(done) < least:
        return {}
    importance = optuna.importance
    try:
        found = importance.get_param_importances(
            proposer.study, evaluator=importance.PedAnovaImportanceEvaluator()
        )
    except (ValueError, RuntimeError):  # too few that differ
        return {}
    return {name: float(np.nan_to_num(share)) for name, share in found.items()}
