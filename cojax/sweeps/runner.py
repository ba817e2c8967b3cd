"""Run a sweep and write its folder, in one sitting or several."""

from __future__ import annotations

import dataclasses
import shutil
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cojax import errors
from cojax.errors import InputError
from cojax.evaluation import provenance
from cojax.fixtures import Fixture, generate, load_fixture
from cojax.fixtures.store import save_fixture
from cojax.io import files, locks, tables, yaml
from cojax.io.progress import Report, stage
from cojax.io.resume import check_part, claim, finish, part, settle, unfinished
from cojax.sweeps import engine
from cojax.sweeps.config import Sweep, load_sweep
from cojax.sweeps.engine import Result, Told
from cojax.sweeps.groups import Chunk, Group, cut, groups
from cojax.sweeps.placement import Placement, place
from cojax.sweeps.rows import rows_of
from cojax.sweeps.store import CURVES, DATABASE, MEMBERS, POLICIES, Store, trial_frame
from cojax.sweeps.tracking import Tracker

if TYPE_CHECKING:
    import pandas as pd

    from cojax.agents.population import Population

TELL_SECONDS = 1.0

Task = tuple[Group, Chunk, Placement]
Engine = Callable[[Sweep, Sequence[Task], Callable[[Chunk], Told]], Iterator[Result]]


@dataclasses.dataclass(frozen=True)
class Swept:
    """What a sweep gave.

    Attributes:
        rows: one dict for each algorithm, setting and fixture, the best first; see
            :func:`cojax.sweeps.rows.rows_of`.
        members: one line for each member.
        curves: one line for each member and interval.
        folder: where it was written.
    """

    rows: list[dict[str, Any]]
    members: pd.DataFrame
    curves: pd.DataFrame
    folder: Path


def here(config: Sweep, tasks: Sequence[Task], told: Callable[[Chunk], Told]) -> Iterator[Result]:
    """The engine of this process: chunks one after another, each over all local devices.

    While one trains, the next is placed on the devices.
    """

    def prepare(task: Task) -> Future[Population]:
        group, chunk, placed = task
        return ahead.submit(engine.prepare, group, chunk, placed.layout, placed.length)

    with ThreadPoolExecutor(1, "prepare") as ahead:
        following = [prepare(task) for task in tasks[:1]]
        for number, (group, chunk, _) in enumerate(tasks):
            population = following.pop().result()
            following += [prepare(task) for task in tasks[number + 1 : number + 2]]
            yield engine.run(group, chunk, config, population, told(chunk))


def run_sweep(
    config: Sweep,
    folder: str | Path,
    *,
    resume: bool = False,
    engine: Engine = here,
    trackers: Sequence[Tracker] = (),
) -> Swept:
    """Train and measure every member of a sweep, and write ``folder``.

    The folder holds ``config.yaml``, ``fixtures/*.yaml``, ``members.parquet``,
    ``trials.parquet``, ``curves.parquet``, ``rows.json`` and ``rows.parquet``, ``figures/``,
    ``provenance.json``, and ``policies/*.npz``, one for each chunk. Of a search, these are of the
    winners and of the default settings, trained on fresh seeds and measured on streams of the next
    root; ``candidates.parquet`` and ``search.sqlite`` hold what was tried. It appears whole or not
    at all. Until then chunks are kept in ``FOLDER.unfinished`` as they end, and ``resume`` goes on
    from there to the same files.

    Args:
        config: the sweep.
        folder: to be written.
        resume: whether to go on with what was interrupted there.
        engine: what runs chunks; its results may come in any order.
        trackers: told of every chunk as it ends, and of the table.

    Raises InputError, one line, where the folder exists, for the state of other work, and where
    another process is at it.
    """
    folder = files.refuse_existing(folder)
    with claim(folder, config.content(), resume, lambda file: load_sweep(file).content()) as state:
        try:
            fixtures = _fixtures(config, state)
            settle(state, {fixture.id: fixture.sha256 for fixture in fixtures})
            trials = None
            trained = config
            if config.search is not None:
                from cojax.sweeps import search

                trials = search.run_searches(config, fixtures, state)
                trained, chosen = search.winners(config, trials)
                everything = search.winner_groups(trained, chosen, fixtures)
            else:
                everything = groups(config, fixtures)
            compiled = run_groups(trained, everything, Store(state), engine, trackers)
        except InputError:
            if not any((state / name).exists() for name in ("chunks", "search")):
                shutil.rmtree(state, ignore_errors=True)
            raise
        about = {"compile_seconds": compiled}
        return write(config, everything, fixtures, Store(state), folder, about, trackers, trials)


def _fixtures(config: Sweep, state: Path) -> list[Fixture]:
    """The fixtures of a sweep; generated ones are kept, so that later sittings read them."""
    made = state / "generated"
    if config.generate is not None and not made.exists():
        g = config.generate
        with stage(f"generate {g.num} {g.family}") as report, part(state, "generated") as new:
            found = generate(
                g.family,
                g.num,
                g.seed,
                ranges=g.ranges,
                progress=lambda done, num: report(done / num),
            )
            for number, fixture in enumerate(found):
                save_fixture(fixture, new / f"{number:06d}.yaml")
    fixtures = [load_fixture(name) for name in config.fixtures]
    if made.exists():
        check_part(state, "generated")
        fixtures += [load_fixture(file) for file in sorted(made.glob("*.yaml"))]
    errors.distinct("fixtures", (fixture.id for fixture in fixtures))
    return fixtures


def run_groups(
    config: Sweep,
    everything: list[Group],
    store: Store,
    engine: Engine,
    trackers: Sequence[Tracker] = (),
) -> float:
    """Run what is not done yet, and keep every chunk as it ends; seconds of compilation."""
    done = store.done()
    policies = store.decide("policies", config.execution.policies)
    store.check()
    sizes = sum(group.size for group in everything)
    before = sum(chunk.stop - chunk.start for chunk in done)
    if before == sizes:
        return 0.0
    with stage(f"sweep of {sizes:,} members in {len(everything)} groups") as report:
        tasks: list[Task] = []
        for group in everything:
            if cut(group, group.size, done):
                placed = place(group, config, store, report)
                tasks += [(group, chunk, placed) for chunk in cut(group, placed.length, done)]
        timesteps = sum(group.total_timesteps * group.size for group in everything)
        watch = Watch(store, report, sizes, before, timesteps)
        compiled = 0.0
        of = {chunk: group for group, chunk, _ in tasks}

        def keep(result: Result) -> None:
            store.write(of[result.chunk], result, policies)
            watch.done(result.chunk)
            for tracker in trackers:
                tracker.chunk(int(watch.finished), result.gaps.mean(axis=1))

        with ThreadPoolExecutor(1, "keep") as writer:  # while the next chunk trains
            kept: Future[None] | None = None
            for result in engine(config, tasks, watch.of):
                compiled += result.compile_seconds
                if kept is not None:
                    kept.result()
                kept = writer.submit(keep, result)
            if kept is not None:
                kept.result()
    return compiled


class Watch:
    """Members done, steps a second and time left, told to people and left for ``status``.

    Threads may tell it at once.
    """

    def __init__(
        self, store: Store, report: Report, members: int, done: int, timesteps: int
    ) -> None:
        self.store, self.report = store, report
        self.members, self.finished = members, float(done)
        self.shares: dict[Chunk, float] = {}
        self.start, self.begun = time.perf_counter(), float(done)
        self.told = self.start
        self.per_member = timesteps / members
        self.lock = threading.Lock()
        store.note(members=members, done=done)

    def of(self, chunk: Chunk) -> Told:
        """Told of the chunk's share done."""

        def told(share: float) -> None:
            with self.lock:
                self.shares[chunk] = share * (chunk.stop - chunk.start)
                if time.perf_counter() - self.told > TELL_SECONDS:
                    self._tell()

        return told

    def done(self, chunk: Chunk) -> None:
        """A chunk is on disk."""
        with self.lock:
            self.shares.pop(chunk, None)
            self.finished += chunk.stop - chunk.start
            last = self.finished == self.members
            if last or time.perf_counter() - self.told > TELL_SECONDS:
                self._tell()

    def _tell(self) -> None:
        self.told = time.perf_counter()
        now = self.finished + sum(self.shares.values())
        seconds = max(time.perf_counter() - self.start, 1e-9)
        speed = (now - self.begun) / seconds
        left = (self.members - now) / max(speed, 1e-9)
        rate = speed * self.per_member
        self.report(
            now / self.members,
            f"{self.finished:,.0f} of {self.members:,} members done, {rate:,.0f} steps/s, "
            f"{left:,.0f} s left",
        )
        self.store.note(
            members=self.members,
            done=int(self.finished),
            steps_per_second=rate,
            seconds_left=left,
        )


def write(
    config: Sweep,
    everything: list[Group],
    fixtures: list[Fixture],
    store: Store,
    folder: Path,
    about: dict[str, Any],
    trackers: Sequence[Tracker] = (),
    trials: pd.DataFrame | None = None,
) -> Swept:
    """Everything into the results folder, which appears whole or not at all."""
    from cojax.experiments.runner import flat_rows
    from cojax.report import sweep_figures

    members, curves = store.read(MEMBERS), store.read(CURVES)
    rows = rows_of(everything, members, 0.9)
    with part(store.folder, "results") as new:
        files.write_whole(new / "config.yaml", yaml.dump(config.content()))
        tables.write(members.drop(columns="trial_gaps"), new / MEMBERS)
        tables.write(curves, new / CURVES)
        tables.write(flat_rows(rows), new / "rows.parquet")
        provenance.write(new, _provenance(config, fixtures, about), rows, trial_frame(members))
        (new / "fixtures").mkdir()
        for fixture in fixtures:
            save_fixture(fixture, new / "fixtures" / f"{fixture.id}.yaml")
        if store.decide("policies", config.execution.policies):
            (new / "policies").mkdir()
            for chunk in store.done():
                source = store.chunks / chunk.name / POLICIES
                shutil.copyfile(source, new / "policies" / f"{chunk.name}.npz")
        if trials is not None:
            tables.write(trials, new / "candidates.parquet")
            for file in (store.folder / "search").glob("*/importance.json"):
                shutil.copyfile(file, new / f"importance-{file.parent.name}.json")
            if (store.folder / DATABASE).exists():
                shutil.copyfile(store.folder / DATABASE, new / DATABASE)
        sweep_figures.write(rows, trials, new)
        for tracker in trackers:
            tracker.end(rows, curves, new)
    finish(store.folder, "results", folder)
    return Swept(rows, members, curves, folder)


def _provenance(config: Sweep, fixtures: list[Fixture], about: dict[str, Any]) -> dict[str, Any]:
    """All that decides, or may explain, the figures of a sweep; JSON data."""
    known = {
        one.id: provenance.about_fixture(one.sha256, one.horizon, one.resolution_floor)
        for one in fixtures
    }
    chosen = config.evaluation
    root = chosen.root + (config.search is not None)  # winners: streams the search has not seen
    trials = {"root": root, "num_trials": chosen.num_trials, "precision": "float32"}
    facts = provenance.described("sweep", known, trials, config.content())
    return facts | {"execution": config.execution.model_dump(mode="json"), **about}


def found_in(folder: str | Path) -> dict[str, Any]:
    """Where a sweep stands, running, interrupted or finished; InputError where there is none."""
    folder = Path(folder)
    if (folder / MEMBERS).exists():
        members = len(tables.read(folder / MEMBERS, ["seed"]))
        return {"folder": str(folder), "state": "finished", "members": members, "done": members}
    state = unfinished(folder)
    if not (state / "config.yaml").exists():
        raise InputError(f"{folder}: expected a sweep, finished or not; {state} is missing")
    store = Store(state)
    done = sum(chunk.stop - chunk.start for chunk in store.done())
    running = "interrupted" if locks.holder(state) is None else "running"
    return {"folder": str(folder), "state": running, **store.noted(), "done": done}
