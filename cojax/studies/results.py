"""The results folder of a study: what it gave, measured and written."""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from cojax.agents import save_policy
from cojax.evaluation import Evaluation, evaluate, provenance
from cojax.evaluation.games import with_bounds
from cojax.evaluation.references import ReferencePolicy
from cojax.fixtures.store import save_fixture
from cojax.io import files, tables, yaml
from cojax.io.described import About, described, number
from cojax.io.progress import names, stage
from cojax.io.resume import finish, part
from cojax.named_policies import MEMBERS
from cojax.policy import Policy
from cojax.studies.members import Group
from cojax.studies.rows import flat_rows, learner_rows
from cojax.studies.schema import Study
from cojax.studies.store import BEST, CURVES, DATABASE, LEARNERS, POLICIES, Store, trial_frame
from cojax.studies.systems import StartedFixture
from cojax.studies.tracking import Tracker
from cojax.types import Content, Row

if TYPE_CHECKING:
    import pandas as pd


def _about(outcome: Outcome) -> About:
    """What an outcome shows of itself."""
    facts = {
        "learners": len(outcome.members),
        "systems": len(outcome.systems),
        "rows": len(outcome.rows),
        "median gap": number(outcome.curves.groupby(["fixture", "seed"]).gap.last().median())
        if "gap" in outcome.curves
        else "",
    }
    return f"Outcome of {outcome.study.name!r}, in {outcome.folder}", facts


@described(_about)
@dataclasses.dataclass(frozen=True)
class Outcome:
    """What a study gave.

    Attributes:
        study: what was done.
        systems: its systems, in order.
        rows: one dict for each system, policy and setting: of learners what
            :func:`cojax.studies.rows.learner_rows` says, and of all how they were measured (see
            ``Evaluation.rows``). Of a sweep the best come first.
        members: one line for each member.
        trials: one line for each system, policy, setting, seed and trial.
        curves: one line for each member and interval.
        evaluations: of a run and a training, one for each block of systems, or more where settings
            decide shapes.
        policies: of a run and a training, the last and the best policies by their file name.
        candidates: of a search, one line for each setting that was tried.
        folder: where it was written.
    """

    study: Study
    systems: Sequence[StartedFixture]
    rows: list[Row]
    members: pd.DataFrame
    trials: pd.DataFrame
    curves: pd.DataFrame
    evaluations: list[Evaluation]
    policies: dict[str, Policy]
    candidates: pd.DataFrame | None
    folder: Path


@dataclasses.dataclass(frozen=True)
class Trained:
    """A study whose members are all in the store.

    Attributes:
        config: the study.
        learned: what its members learned by and are measured by; of a search, the winners'.
        systems: in order.
        groups: all of them.
        store: what was trained.
        facts: what this sitting says of groups, by number: memory, time.
        candidates: of a search, what was tried.
    """

    config: Study
    learned: Study
    systems: Sequence[StartedFixture]
    groups: Sequence[Group]
    store: Store
    facts: dict[int, Content]
    candidates: pd.DataFrame | None


def write(
    trained: Trained,
    folder: Path,
    *,
    references: Sequence[ReferencePolicy | Policy],
    trackers: Sequence[Tracker],
) -> Outcome:
    """Measure what was trained, beside ``references``, and write everything into the folder, which
    appears whole or not at all.
    """
    config, store = trained.config, trained.store
    members, curves = (_ordered(store.read(name), trained) for name in (MEMBERS, CURVES))
    rows = learner_rows(trained.groups, members)
    evaluations: list[Evaluation] = []
    policies: dict[str, Policy] = {}
    if config.kind == "sweep":
        trials = trial_frame(members)
        rows.sort(key=lambda row: (row["fixture"], row["bound"]))
    else:
        evaluations, trials, policies, rows = _measured(trained, references, rows)
        members = _placed(members, trained.groups)
    outcome = Outcome(
        study=config,
        systems=trained.systems,
        rows=rows,
        members=members.drop(columns="trial_gaps", errors="ignore"),
        trials=trials,
        curves=curves,
        evaluations=evaluations,
        policies=policies,
        candidates=trained.candidates,
        folder=folder,
    )
    with part(store.folder, "results") as new:
        _fill(outcome, new, _provenance(trained, evaluations), store)
        for tracker in trackers:
            tracker.end(rows, outcome.curves, new)
    finish(store.folder, "results", folder)
    return outcome


def _ordered(table: pd.DataFrame, trained: Trained) -> pd.DataFrame:
    """Lines by system and algorithm as the study names them, then setting and seed."""
    places = {
        "fixture": {system.id: i for i, system in enumerate(trained.systems)},
        "algorithm": {one.name: i for i, one in enumerate(trained.config.algorithms)},
    }
    return table.sort_values(
        ["fixture", "algorithm", "setting", "seed"],
        key=lambda column: column.map(places.get(str(column.name), lambda x: x)),
        kind="stable",
        ignore_index=True,
    )


def _measured(
    trained: Trained, references: Sequence[ReferencePolicy | Policy], learned: Sequence[Row]
) -> tuple[list[Evaluation], pd.DataFrame, dict[str, Policy], list[Row]]:
    """Evaluations, their trials, the policies, and rows of both training and evaluation.

    References and one group of each algorithm are measured together; further groups of an
    algorithm, whose settings decide shapes, after them, on the same trials.
    """
    import pandas as pd

    config, store, everything = trained.config, trained.store, trained.groups
    about = {(row["fixture"], row["policy"], row["setting"]): row for row in learned}
    evaluations, frames, policies = [], [], {}
    rows: dict[str, list[Row]] = {}
    counts = {a.name: len(config.settings(a)) for a in config.algorithms}
    for together in _together(everything):
        learners = []
        for group in together:
            settings = counts[group.spec.name] > 1
            name = file_name(group, everything)
            policies[name] = store.policies(group, POLICIES, settings=settings)
            learners.append(policies[name])
            if config.kind == "train":
                policies[f"{name}-best"] = store.policies(group, BEST, settings=settings)
        first = together[0].systems[0].id not in rows
        measured = [*(references if first else ()), *learners]
        found = measure(config, together[0].systems, measured)
        params = {one.id: one.params for one in together[0].systems}
        numbers = {group.spec.name: group.settings for group in together}
        for row in with_bounds(found, measured, params):
            if row["policy"] in numbers:
                setting = int(numbers[row["policy"]][row.get("setting", 0)])
                row = {**about[row["fixture"], row["policy"], setting], **row, "setting": setting}
                if config.kind == "run" and counts[row["policy"]] == 1:
                    del row["setting"]  # it is the algorithm, not one of its settings
            rows.setdefault(row["fixture"], []).append(row)
        frame = found.frame()
        if "setting" in frame:
            frame["setting"] = [
                numbers[policy][int(setting)] if setting == setting else setting
                for policy, setting in zip(frame["policy"], frame["setting"], strict=True)
            ]
        evaluations.append(found)
        frames.append(frame)
    ordered = dict.fromkeys(row["fixture"] for row in learned)
    return (
        evaluations,
        pd.concat(frames, ignore_index=True),
        policies,
        [row for fixture in ordered for row in rows[fixture]],
    )


def file_name(group: Group, everything: Sequence[Group]) -> str:
    """Of a group's policies: ALGORITHM-BLOCK, with a number where settings decide shapes."""
    name = f"{group.spec.name}-{group.block}"
    first = next(g for g in everything if g.block == group.block and g.spec.name == group.spec.name)
    return name if first is group else f"{name}-{group.number}"


def _placed(members: pd.DataFrame, everything: Sequence[Group]) -> pd.DataFrame:
    """Members with the file of their policy, and its place among its axes laid in a row."""
    members = members.assign(policy_file="", policy_index=0)
    for group in everything:
        mine = members["group"] == group.number
        settings = {number: place for place, number in enumerate(group.settings)}
        systems = {system.id: place for place, system in enumerate(group.systems)}
        at = (
            members.loc[mine, "fixture"].map(systems),
            members.loc[mine, "setting"].map(settings),
            members.loc[mine, "seed"],
        )
        shape = (len(systems), len(settings), group.num_seeds)
        members.loc[mine, "policy_index"] = np.ravel_multi_index(at, shape)
        members.loc[mine, "policy_file"] = f"{file_name(group, everything)}.npz"
    return members


def _together(everything: Sequence[Group]) -> list[list[Group]]:
    """Groups of one block, of each algorithm one: what is measured at once."""
    found: list[list[Group]] = []
    for group in sorted(everything, key=lambda group: group.block):
        for others in found:
            known = {other.spec.name for other in others}
            if others[0].block == group.block and group.spec.name not in known:
                others.append(group)
                break
        else:
            found.append([group])
    return found


def measure(
    config: Study, systems: Sequence[StartedFixture], policies: Sequence[ReferencePolicy | Policy]
) -> Evaluation:
    """The final evaluation: all policies on systems of one shape, on the same streams."""
    with stage(f"evaluate {names(systems)}") as report:
        params = {one.id: one.params for one in systems}
        trials = config.evaluation
        result = evaluate(policies, params, trials.num_trials, trials.root, progress=None)
        report(1.0, f"{result.num_trials} paired trials")
    floors = tuple(one.floor for one in systems)
    hashes = tuple(one.fixture.sha256 for one in systems)
    return dataclasses.replace(result, floors=floors, hashes=hashes)


def _fill(outcome: Outcome, new: Path, about: Content, store: Store) -> None:
    """Write everything into a folder that is being made."""
    from cojax.report import sweep_figures
    from cojax.report.page import write_report
    from cojax.report.write import write_report_files

    files.write_whole(new / "config.yaml", yaml.dump(outcome.study.content()))
    provenance.write(new, about, outcome.rows, outcome.trials)
    tables.write(flat_rows(outcome.rows), new / "rows.parquet")
    tables.write(outcome.members, new / MEMBERS)
    tables.write(outcome.curves, new / CURVES)
    (new / "fixtures").mkdir()
    for system in outcome.systems:
        save_fixture(system.fixture, new / "fixtures" / f"{system.id}.yaml")
    if store.decide("policies"):
        (new / "policies").mkdir()
        for name, policy in outcome.policies.items():
            save_policy(new / "policies" / f"{name}.npz", policy)
        for chunk in store.done() if outcome.study.kind == "sweep" else ():
            source = store.chunks / chunk.name / POLICIES
            shutil.copyfile(source, new / "policies" / f"{chunk.name}.npz")
    for chunk in store.done():
        if (learners := store.chunks / chunk.name / LEARNERS).exists():
            shutil.copytree(learners, new / LEARNERS / chunk.name)
    if outcome.candidates is not None:
        tables.write(outcome.candidates, new / "candidates.parquet")
        for file in (store.folder / "search").glob("*/importance.json"):
            shutil.copyfile(file, new / f"importance-{file.parent.name}.json")
        if (store.folder / DATABASE).exists():
            shutil.copyfile(store.folder / DATABASE, new / DATABASE)
    if outcome.study.kind == "sweep":
        sweep_figures.write(outcome.rows, outcome.candidates, new)
    if outcome.study.kind == "run":
        write_report_files(outcome, new)
        write_report(new)


def _provenance(trained: Trained, evaluations: Sequence[Evaluation]) -> Content:
    """All that decides, or may explain, the figures of a study; JSON data."""
    config = trained.config
    if evaluations:
        found = provenance.provenance(config.kind, evaluations, config.content())
    else:
        known = {
            one.id: provenance.about_fixture(one.fixture.sha256, one.fixture.horizon, one.floor)
            for one in trained.systems
        }
        chosen = trained.learned.evaluation
        trials = {"root": chosen.root, "num_trials": chosen.num_trials, "precision": "float32"}
        found = provenance.described(config.kind, known, trials, config.content())
    if config.kind != "run":  # whose files are the same whatever it took
        found["execution"] = config.execution.model_dump(mode="json")
        found["groups"] = [
            {
                "name": file_name(group, trained.groups),
                "algorithm": group.spec.name,
                "fixtures": [system.id for system in group.systems],
                "settings": list(group.settings),
                "num_seeds": group.num_seeds,
                **trained.facts.get(group.number, {}),
            }
            for group in trained.groups
        ]
    return found
