"""Run a study and write its folder, in one sitting or several."""

from __future__ import annotations

import dataclasses
import shutil
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from cojax.agents.loop import Progress
from cojax.errors import InputError
from cojax.fixtures import load_fixture
from cojax.io import files, locks, tables
from cojax.io.progress import Report, names, stage
from cojax.io.resume import begun, claim, settle, unfinished
from cojax.named_policies import MEMBERS, policy_from_text
from cojax.studies import engine, members
from cojax.studies.config import load_study
from cojax.studies.engine import Result
from cojax.studies.members import Chunk, Group, cut, groups
from cojax.studies.placement import Placement, place
from cojax.studies.results import Outcome, Trained, write
from cojax.studies.schema import Study
from cojax.studies.store import Store
from cojax.studies.systems import StartedFixture, load
from cojax.studies.tracking import Tracker
from cojax.types import Content, Row

if TYPE_CHECKING:
    from cojax.agents.population import Population

TELL_SECONDS = 1.0
FEW = 8  # chunks of a study that tells of every interval


class Task(NamedTuple):
    """A chunk to be trained, and how."""

    group: Group
    chunk: Chunk
    placed: Placement


@dataclasses.dataclass(frozen=True)
class Work:
    """What an engine is given.

    Attributes:
        config: the study.
        systems: all of its systems.
        tasks: chunks that are not done.
        store: where what is done is kept.
    """

    config: Study
    systems: Sequence[StartedFixture]
    tasks: Sequence[Task]
    store: Store


Engine = Callable[[Work, Callable[[Chunk], Progress]], Iterator[Result]]


def here(work: Work, on_progress: Callable[[Chunk], Progress]) -> Iterator[Result]:
    """The engine of this process: chunks one after another, each over all local devices.

    While one trains, the next is placed on the devices. Learners of a sweep are kept with their
    chunk, those of a run or a training every minute.
    """

    def prepare(task: Task) -> Future[Population]:
        group, chunk, placed = task
        return ahead.submit(engine.prepare, group, chunk, placed.layout, placed.length)

    with ThreadPoolExecutor(1, "prepare") as ahead:
        following = [prepare(task) for task in work.tasks[:1]]
        for number, (group, chunk, _) in enumerate(work.tasks):
            population = following.pop().result()
            following += [prepare(task) for task in work.tasks[number + 1 : number + 2]]
            yield engine.run(
                group,
                chunk,
                work.config,
                population,
                on_progress=on_progress(chunk),
                state=None if work.config.kind == "sweep" else work.store.state(chunk),
            )


def run_study(
    config: Study,
    folder: str | Path,
    *,
    resume: bool = False,
    engine: Engine = here,
    trackers: Sequence[Tracker] = (),
) -> Outcome:
    """Train and measure every member of a study, and write ``folder``.

    The folder, ``cojax.results/2``, holds ``config.yaml``, ``provenance.json``, ``rows.json`` and
    ``rows.parquet``, ``members.parquet``, ``trials.parquet``, ``curves.parquet``,
    ``fixtures/*.yaml`` and ``policies/*.npz``; of a run also tables, figures and ``report.html``;
    of a sweep ``figures/``. Of a search, these are of the winners and of the default settings,
    trained on fresh seeds and measured on streams of the next root; ``candidates.parquet`` and
    ``search.sqlite`` hold what was tried. The folder appears whole or not at all. Until then
    chunks are kept in ``FOLDER.unfinished`` as they end, and the learners of a run or a training
    every minute; ``resume`` goes on from there to the same files, bit for bit on CPU.

    Args:
        config: the study.
        folder: to be written.
        resume: whether to go on with what was interrupted there.
        engine: what runs chunks; its results may come in any order.
        trackers: told of every interval and chunk, and of the table.

    Raises InputError, one line, where the folder exists or something named in the study does not,
    for the state of other work, and where another process is at it.
    """
    folder = files.refuse_existing(folder)
    if config.kind == "train" and config.generate is None:
        config = config.resolved(load_fixture(name).family for name in config.fixtures)
    references = [policy_from_text(name) for name in config.evaluation.policies]
    fresh = not begun(unfinished(folder))
    with claim(folder, config.content(), resume, lambda file: load_study(file).content()) as state:
        store = Store(state)
        try:
            systems = load(config, state)
            members.check(config, systems)
            settle(state, {system.id: system.fixture.sha256 for system in systems})
            learned, candidates = config, None
            if config.search is None:
                everything = groups(config, systems)
            else:
                from cojax.studies import search

                candidates = search.run_searches(config, systems, state)
                learned, chosen = search.winners(config, candidates)
                everything = search.winner_groups(learned, chosen, systems)
            facts = _train(learned, systems, everything, store, engine=engine, trackers=trackers)
        except InputError:
            if fresh and not any((state / n).exists() for n in ("chunks", "search", "learners")):
                shutil.rmtree(state, ignore_errors=True)
            raise
        done = Trained(config, learned, systems, everything, store, facts, candidates)
        return write(done, folder, references=references, trackers=trackers)


def _train(
    config: Study,
    systems: Sequence[StartedFixture],
    everything: Sequence[Group],
    store: Store,
    *,
    engine: Engine,
    trackers: Sequence[Tracker],
) -> dict[int, Content]:
    """Train what is not done yet, and keep every chunk as it ends; what it took, by group."""
    done = store.done()
    policies = store.decide("policies", config.execution.policies or config.kind != "sweep")
    store.check()
    total = sum(group.size for group in everything)
    before = sum(chunk.size for chunk in done)
    facts: dict[int, Content] = {}
    if before == total:
        return facts
    learners = ", ".join(dict.fromkeys(group.spec.name for group in everything))
    with stage(f"{learners} on {names(systems)}, {total:,} members", announced=False) as report:
        for line in dict.fromkeys(group.origin(config) for group in everything):
            report(0.0, line)
        tasks: list[Task] = []
        for group in everything:
            if cut(group, group.size, done):
                placed = place(group, config, store, report)
                tasks += [Task(group, chunk, placed) for chunk in cut(group, placed.length, done)]
                facts[group.number] = {
                    "memory_bytes": placed.memory_bytes,
                    "compile_seconds": 0.0,
                    "steps_per_second": 0.0,
                }
                if (warning := group.warning()) is not None:
                    report(0.0, warning)
        timesteps = sum(group.total_timesteps * group.size for group in everything)
        watch = Watch(
            store, report, members=total, done=before, timesteps=timesteps,
            trackers=trackers, every=len(tasks) <= FEW,
        )  # fmt: skip
        of = {task.chunk: task.group for task in tasks}

        def keep(result: Result) -> None:
            group = of[result.chunk]
            store.write(group, result, policies)
            shutil.rmtree(store.state(result.chunk), ignore_errors=True)
            watch.done(result.chunk)
            fact = facts[group.number]
            fact["compile_seconds"] += result.compile_seconds
            fact["steps_per_second"] = max(fact["steps_per_second"], result.steps_per_second)
            gaps = result.curve[:, -1] if result.gaps is None else result.gaps.mean(axis=1)
            for tracker in trackers:
                tracker.chunk(int(watch.finished), gaps)

        with ThreadPoolExecutor(1, "keep") as writer:  # while the next chunk trains
            kept: Future[None] | None = None
            for result in engine(Work(config, systems, tasks, store), watch.of):
                if kept is not None:
                    kept.result()
                kept = writer.submit(keep, result)
            if kept is not None:
                kept.result()
    return facts


class Watch:
    """Members done, steps a second, time left and the gap, told to people and left for ``status``.

    Threads may tell it at once.
    """

    def __init__(
        self,
        store: Store,
        report: Report,
        *,
        members: int,
        done: int,
        timesteps: int,
        trackers: Sequence[Tracker] = (),
        every: bool = False,
    ) -> None:
        self.store, self.report, self.trackers, self.every = store, report, trackers, every
        self.members, self.finished = members, float(done)
        self.shares: dict[Chunk, float] = {}
        self.start, self.begun = time.perf_counter(), float(done)
        self.told = self.start
        self.per_member = timesteps / members
        self.lock = threading.Lock()
        store.note(members=members, done=done)

    def of(self, chunk: Chunk) -> Progress:
        """Told of each interval of a chunk."""

        def on_progress(steps: int, total: int, metrics: Row) -> None:
            for tracker in self.trackers:
                tracker.interval(chunk, steps, metrics)
            gaps = np.asarray(metrics["evaluation"], np.float64)
            median = float(np.median(np.where(np.isnan(gaps), np.inf, gaps)))
            with self.lock:
                self.shares[chunk] = steps / total * chunk.size
                self._tell(f", median gap {median:.3g} V*", now=self.every)

        return on_progress

    def done(self, chunk: Chunk) -> None:
        """A chunk is on disk."""
        with self.lock:
            self.shares.pop(chunk, None)
            self.finished += chunk.size
            self._tell(now=self.finished == self.members and not self.every)

    def _tell(self, gap: str = "", *, now: bool) -> None:
        if not now and time.perf_counter() - self.told < TELL_SECONDS:
            return
        self.told = time.perf_counter()
        done = self.finished + sum(self.shares.values())
        seconds = max(time.perf_counter() - self.start, 1e-9)
        speed = (done - self.begun) / seconds
        left = (self.members - done) / max(speed, 1e-9)
        rate = speed * self.per_member
        self.report(
            done / self.members,
            f"{self.finished:,.0f} of {self.members:,} members done, {rate:,.0f} steps/s, "
            f"{left:,.0f} s left{gap}",
        )
        self.store.note(
            members=self.members,
            done=int(self.finished),
            steps_per_second=rate,
            seconds_left=left,
        )


def standing(folder: str | Path) -> Content:
    """Where a study stands, running, interrupted or finished; InputError where there is none."""
    folder = Path(folder)
    if (folder / MEMBERS).exists():
        count = len(tables.read(folder / MEMBERS, ["seed"]))
        return {"folder": str(folder), "state": "finished", "members": count, "done": count}
    store = Store(_state(folder))
    done = sum(chunk.size for chunk in store.done())
    now = "interrupted" if locks.holder(store.folder) is None else "running"
    return {"folder": str(folder), "state": now, **store.noted(), "done": done}


def interrupted(folder: str | Path) -> Study:
    """The study that was interrupted in a folder; InputError where there is none."""
    return load_study(_state(folder) / "config.yaml")


def _state(folder: str | Path) -> Path:
    state = unfinished(folder)
    if not (state / "config.yaml").exists():
        raise InputError(f"{folder}: expected a study, finished or not; {state} is missing")
    return state
