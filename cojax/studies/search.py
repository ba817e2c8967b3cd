"""The search: a population of settings trained side by side, the poor replaced on the way."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import jax
import numpy as np

from cojax.agents import checkpoint
from cojax.agents.algorithm import learning
from cojax.agents.layout import Layout
from cojax.agents.loop import Members, Plan
from cojax.agents.population import Population
from cojax.agents.settings import host_hyperparameters
from cojax.agents.training import lookup
from cojax.errors import InputError
from cojax.io import files, json_text
from cojax.io.progress import Report, stage
from cojax.studies.branches import Branch, branches
from cojax.studies.candidates import Proposer, Storage, importances
from cojax.studies.engine import final_measure
from cojax.studies.members import Group, blocks, group
from cojax.studies.placement import DEFAULT, devices, kind
from cojax.studies.rows import log_gap_upper_bound
from cojax.studies.schema import Study
from cojax.studies.space import Setting
from cojax.studies.store import DATABASE
from cojax.studies.systems import StartedFixture

if TYPE_CHECKING:
    import pandas as pd

FRESH = 1_000_003  # added to the seed of the search for that of the winners
STATE_SECONDS = 60.0
FINISHED = "finished"  # a file in the folder of a branch that has ended
Chosen: TypeAlias = dict[str, list[tuple[int, Setting]]]  # numbered, by algorithm
DEFAULTS = -1  # number of the setting that varies nothing


@learning()
def run_searches(config: Study, systems: Sequence[StartedFixture], state: Path) -> pd.DataFrame:
    """Run every branch, or go on with it; one line for each trial, and a SQLite file beside."""
    import pandas as pd

    assert config.search is not None
    found = branches(config)
    for branch in found:
        _check(config, branch, systems)
    frames = []
    for branch in found:
        with stage(f"search {branch.name}") as report:
            kept = Storage(config.search.storage or f"sqlite:///{state / DATABASE}",
                           f"{config.name}/{branch.name}")  # fmt: skip
            place = state / "search" / branch.name
            proposer = _run(config, branch, systems, place, storage=kept, report=report)
        frames.append(_frame(branch, proposer))
        shares = json.dumps(importances(proposer))
        files.write_whole(state / "search" / branch.name / "importance.json", shares)
    trials = pd.concat(frames, ignore_index=True)
    return trials.assign(trial=np.arange(len(trials)))


def _check(config: Study, branch: Branch, systems: Sequence[StartedFixture]) -> None:
    """Raise InputError for fixtures that do not train side by side, and for what the learner
    refuses of the hyperparameters that decide shapes: before any branch has begun.
    """
    families = {system.fixture.family for system in systems}
    if (count := len(blocks(systems))) > 1:
        raise InputError(
            f"search: expected fixtures of one family and shape, got {count} of "
            f"{', '.join(sorted(families))}"
        )
    spec = lookup(branch.algorithm.name)
    base = config.base(branch.algorithm, families.pop())
    spec.check(host_hyperparameters(spec.hyperparameters, {**base, **branch.fixed}, {}))


def winners(config: Study, trials: pd.DataFrame) -> tuple[Study, Chosen]:
    """The best complete trials of each algorithm and its defaults, to be trained on fresh seeds
    and measured on streams that no choice has seen; by algorithm.
    """
    assert config.search is not None
    chosen: Chosen = {}
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


def winner_groups(config: Study, chosen: Chosen, systems: Sequence[StartedFixture]) -> list[Group]:
    """The groups that train the winners."""
    found: list[Group] = []
    for name, settings in chosen.items():
        found += group(config, name, settings, systems, first=len(found))
    return found


def _setting(words: str) -> Setting:
    """A setting from JSON, lists as tuples."""
    return {k: tuple(v) if isinstance(v, list) else v for k, v in json.loads(words).items()}


def _frame(branch: Branch, proposer: Proposer) -> pd.DataFrame:
    import pandas as pd

    return pd.DataFrame(
        [
            {
                "algorithm": branch.algorithm.name,
                "study": branch.name,
                "number": trial.number,
                "setting": json.dumps({**branch.fixed, **trial.setting}),
                "state": trial.state,
                "share": len(trial.bounds) / proposer.calls,
                "bound": 10**trial.value,
            }
            for trial in proposer.trials
        ]
    )


def _run(
    config: Study,
    branch: Branch,
    systems: Sequence[StartedFixture],
    folder: Path,
    *,
    storage: Storage,
    report: Report,
) -> Proposer:
    """One branch, call by call, from its start or from the last state that was kept.

    The bounds of every call are kept as they come; the states of the learners at most every
    minute, and the calls after the last of them are done again, to the same bounds.
    """
    assert config.search is not None
    folder.mkdir(parents=True, exist_ok=True)
    proposer = Proposer(config.search, branch.space, branch.budget, branch.seed)
    known = _calls(folder)
    if (folder / FINISHED).exists():
        for bounds in known:
            proposer.feed(bounds)
        return proposer
    kept = _last_state(folder)
    population = _Population(config, branch, systems, proposer)
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
        note = f"{len(complete)} settings trained to the end, {pruned} stopped at a rung"
        if complete:
            note += f", lowest bound {10 ** min(complete):.3g} V*"
        report(min(1.0, float(proposer.spent) / total), note)
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
        self, config: Study, branch: Branch, systems: Sequence[StartedFixture], proposer: Proposer
    ) -> None:
        assert config.search is not None
        self.config, self.branch, self.systems = config, branch, list(systems)
        using = devices(config)
        size = config.search.population * len(systems) * config.num_seeds
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
        numbered = [(i, {**self.branch.fixed, **s}) for i, s in enumerate(self.settings)]
        found = group(self.config, self.branch.algorithm.name, numbered, self.systems)
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
