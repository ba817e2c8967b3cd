"""The search: a population of settings trained side by side, the poor replaced on the way."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from cojax.agents import algorithm as algorithms
from cojax.agents import checkpoint
from cojax.agents.algorithm import learning
from cojax.agents.layout import Layout
from cojax.agents.loop import Members, Plan
from cojax.agents.population import Population
from cojax.agents.training import lookup
from cojax.errors import InputError
from cojax.evaluation.evaluator import group_by_shape
from cojax.fixtures import Fixture
from cojax.io import files, json_text
from cojax.io.progress import Report, stage
from cojax.sweeps.config import Sweep
from cojax.sweeps.engine import final_measure
from cojax.sweeps.groups import Group, group
from cojax.sweeps.placement import DEFAULT, devices, kind
from cojax.sweeps.proposals import Proposer, Storage, importances
from cojax.sweeps.rows import log_gap_upper_bound
from cojax.sweeps.space import Setting
from cojax.sweeps.store import DATABASE
from cojax.sweeps.studies import Study, studies

if TYPE_CHECKING:
    import pandas as pd

FRESH = 1_000_003  # added to the seed of the search for that of the winners
STATE_SECONDS = 60.0
FINISHED = "finished"  # a file in the folder of a study that has ended
DEFAULTS = -1  # number of the setting that varies nothing


@learning()
def run_searches(config: Sweep, fixtures: Sequence[Fixture], state: Path) -> pd.DataFrame:
    """Run every study, or go on with it; one line for each trial, and a SQLite file beside."""
    import pandas as pd

    assert config.search is not None
    found = studies(config)
    for study in found:
        _check(config, study, fixtures)
    frames = []
    for study in found:
        with stage(f"search {study.name}") as report:
            kept = Storage(config.search.storage or f"sqlite:///{state / DATABASE}",
                           f"{config.name}/{study.name}")  # fmt: skip
            proposer = _run(config, study, fixtures, state / "search" / study.name, kept, report)
        frames.append(_frame(study, proposer))
        shares = json.dumps(importances(proposer))
        files.write_whole(state / "search" / study.name / "importance.json", shares)
    trials = pd.concat(frames, ignore_index=True)
    return trials.assign(trial=np.arange(len(trials)))


def _check(config: Sweep, study: Study, fixtures: Sequence[Fixture]) -> None:
    """Raise InputError for fixtures that do not train side by side, and for what the learner
    refuses of the hyperparameters that decide shapes: before any study has begun.
    """
    shapes = group_by_shape([fixture.params for fixture in fixtures])
    families = {fixture.family for fixture in fixtures}
    if len(shapes) * len(families) > 1:
        raise InputError(
            f"search: expected fixtures of one family and shape, got {len(shapes)} shapes of "
            f"{', '.join(sorted(families))}"
        )
    spec = lookup(study.algorithm.name)
    base = config.on(study.algorithm, families.pop())
    spec.check(algorithms.host_hyperparameters(spec.hyperparameters, {**base, **study.fixed}, {}))


def winners(config: Sweep, trials: pd.DataFrame) -> tuple[Sweep, dict[str, list[tuple[int, Any]]]]:
    """The best complete trials of each algorithm and its defaults, to be trained on fresh seeds
    and measured on streams that no choice has seen; by algorithm.
    """
    assert config.search is not None
    chosen: dict[str, list[tuple[int, Any]]] = {}
    for algorithm in config.algorithms:
        mine = trials[(trials["algorithm"] == algorithm.name) & (trials["state"] == "complete")]
        order = np.argsort(np.asarray(mine["bound"]), kind="stable")[: config.search.winners]
        words = np.asarray(mine["setting"])
        numbers = np.asarray(mine["trial"])
        settings = [(int(numbers[i]), _setting(str(words[i]))) for i in order]
        chosen[algorithm.name] = [(DEFAULTS, {}), *settings]
    evaluation = config.evaluation.model_copy(update={"root": config.evaluation.root + 1})
    fresh = config.model_copy(
        update={
            "num_seeds": config.search.winner_seeds,
            "seed": config.seed + FRESH,
            "evaluation": evaluation,
        }
    )
    return fresh, chosen


def winner_groups(
    config: Sweep, chosen: dict[str, list[tuple[int, Any]]], fixtures: Sequence[Fixture]
) -> list[Group]:
    """The groups that train the winners."""
    found: list[Group] = []
    for name, settings in chosen.items():
        found += group(config, name, settings, fixtures, len(found))
    return found


def _setting(words: str) -> Setting:
    """A setting from JSON, lists as tuples."""
    return {k: tuple(v) if isinstance(v, list) else v for k, v in json.loads(words).items()}


def _frame(study: Study, proposer: Proposer) -> pd.DataFrame:
    import pandas as pd

    return pd.DataFrame(
        [
            {
                "algorithm": study.algorithm.name,
                "study": study.name,
                "number": trial.number,
                "setting": json.dumps({**study.fixed, **trial.setting}),
                "state": trial.state,
                "share": len(trial.bounds) / proposer.calls,
                "bound": 10**trial.value,
            }
            for trial in proposer.trials
        ]
    )


def _run(
    config: Sweep,
    study: Study,
    fixtures: Sequence[Fixture],
    folder: Path,
    storage: Storage,
    report: Report,
) -> Proposer:
    """One study, call by call, from its start or from the last state that was kept.

    The bounds of every call are kept as they come; the states of the learners at most every
    minute, and the calls after the last of them are done again, to the same bounds.
    """
    assert config.search is not None
    folder.mkdir(parents=True, exist_ok=True)
    proposer = Proposer(config.search, study.space, study.budget, study.seed)
    known = _calls(folder)
    if (folder / FINISHED).exists():
        for bounds in known:
            proposer.feed(bounds)
        return proposer
    kept = _last_state(folder)
    population = _Population(config, study, fixtures, proposer)
    if kept:
        for bounds in known[:kept]:
            proposer.feed(bounds)
        population.load(folder / str(kept), proposer)
    calls, saved, total = kept, time.perf_counter(), proposer.budget
    while proposer.running:
        bounds = population.call()
        calls += 1
        files.write_whole(folder / f"call-{calls:06d}.json", json.dumps(bounds))
        replaced = proposer.feed(bounds)
        population.replace(replaced, proposer)
        now = time.perf_counter()
        if now - saved >= STATE_SECONDS and proposer.running:
            population.save(folder / str(calls))
            _forget(folder, calls)
            storage.keep(proposer)
            saved = time.perf_counter()
        complete = [trial.value for trial in proposer.trials if trial.state == "complete"]
        pruned = sum(trial.state == "pruned" for trial in proposer.trials)
        told = f"{len(complete)} settings trained to the end, {pruned} stopped at a rung"
        if complete:
            told += f", lowest bound {10 ** min(complete):.3g} V*"
        report(min(1.0, float(proposer.spent) / total), told)
    storage.keep(proposer)
    files.write_whole(folder / FINISHED, "")
    return proposer


def _calls(folder: Path) -> list[list[float]]:
    files = sorted(folder.glob("call-*.json"))
    return [json_text.load(file, list) for file in files]


def _last_state(folder: Path) -> int:
    """Number of calls done at the last whole state; 0 for none."""
    return max((int(p.name) for p in folder.iterdir() if p.name.isdigit()), default=0)


def _forget(folder: Path, keep: int) -> None:
    for entry in folder.iterdir():
        if entry.name.isdigit() and int(entry.name) != keep:
            checkpoint.remove_tree(entry)


class _Population:
    """The learners of a search: places × fixtures × seeds, each with a clock of its own."""

    def __init__(
        self, config: Sweep, study: Study, fixtures: Sequence[Fixture], proposer: Proposer
    ) -> None:
        assert config.search is not None
        self.config, self.study, self.fixtures = config, study, list(fixtures)
        using = devices(config)
        size = config.search.population * len(fixtures) * config.num_seeds
        width = min(config.execution.width or DEFAULT[kind()], -(-size // len(using)))
        self.layout = Layout.over(using, width, own_clocks=True)
        self.settings: list[Setting] = [
            trial.setting for trial in proposer.places if trial is not None
        ]
        self.group = self._group()
        spec, h = self.group.spec, self.group.h
        steps = spec.steps_per_update(jax.tree.map(lambda x: x[0], h))
        self.updates = max(1, -(-config.total_timesteps // (steps * proposer.calls)))
        self.plan = Plan(steps, self.updates * proposer.calls, (self.updates * proposer.calls,))
        self.measure = final_measure(self.group, config)
        everyone = np.arange(self.group.size)
        self.members = Members.create(self.group.population(everyone, self.layout), self.plan)

    def _group(self) -> Group:
        numbered = [(i, {**self.study.fixed, **s}) for i, s in enumerate(self.settings)]
        found = group(self.config, self.study.algorithm.name, numbered, self.fixtures)
        if len(found) > 1:
            raise InputError(
                "search: expected fixtures of one family and shape, and settings of one shape; "
                f"got {len(found)} groups"
            )
        return found[0]

    def call(self) -> list[float]:
        """Train everyone for one share of the training; the bound of each place."""
        assert self.config.search is not None
        _, gaps = self.members.advance(self.measure, self.updates)
        gaps = np.where(np.isnan(gaps), np.inf, gaps)[: self.group.size]
        by_place = gaps.reshape(len(self.settings), -1, gaps.shape[-1])
        confidence = self.config.search.confidence
        return [log_gap_upper_bound(place, confidence) for place in by_place]

    def replace(self, places: Sequence[bool], proposer: Proposer) -> None:
        """Begin anew at some places, with their new settings."""
        if not any(places):
            return
        fresh = self._take(proposer)
        mask = np.repeat(np.asarray(places), self.group.size // len(self.settings))
        self.members.restart(np.append(mask, np.zeros(fresh.size - len(mask), bool)), fresh)

    def _take(self, proposer: Proposer) -> Population:
        """Let the hyperparameters be those of the places; the population."""
        for place, trial in enumerate(proposer.places):
            if trial is not None:
                self.settings[place] = trial.setting
        self.group = self._group()
        return self.group.population(np.arange(self.group.size), self.layout)

    def save(self, target: Path) -> None:
        """Keep the states of all learners."""
        self.members.save(target)

    def load(self, source: Path, proposer: Proposer) -> None:
        """Go on from states that were kept, with the settings that the places have now."""
        self.members.load(source, self._take(proposer))
