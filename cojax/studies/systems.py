"""The systems of a study: fixtures, named or generated, under its initial-state regime."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from cojax import errors, initial, inputs, streams
from cojax.envs import EnvParams
from cojax.fixtures import Fixture, generate, load_fixture
from cojax.fixtures.store import save_fixture
from cojax.io.progress import stage
from cojax.io.resume import check_part, part
from cojax.studies.schema import Generated, Study


@dataclasses.dataclass(frozen=True)
class StartedFixture:
    """One system of a study.

    Attributes:
        fixture: complete; with its initial state fixed where the regime says so.
        params: what runs, float32.
        floor: resolution floor of the certificate, a fraction of V*; None without one. The residual
            that it bounds does not depend on the initial law.
        source: the fixture as it was named.
    """

    fixture: Fixture
    params: EnvParams
    floor: float | None
    source: Fixture

    @classmethod
    def of(cls, fixture: Fixture) -> StartedFixture:
        """A fixture under its own initial law."""
        return cls(fixture, fixture.params, fixture.resolution_floor, fixture)

    @property
    def id(self) -> str:
        """The fixture's."""
        return self.fixture.id


def load(config: Study, state: Path) -> list[StartedFixture]:
    """All systems of a study, in order; those generated are kept in its ``state``, so that later
    sittings read them. Raises InputError for an unusable fixture.
    """
    fixtures = [load_fixture(name) for name in config.fixtures]
    if config.generate is not None:
        if not (state / "generated").exists():
            _generate(config.generate, state)
        check_part(state, "generated")
        fixtures += [load_fixture(file) for file in sorted((state / "generated").glob("*.yaml"))]
    return systems(config, fixtures)


def systems(config: Study, fixtures: Sequence[Fixture]) -> list[StartedFixture]:
    """Fixtures under the initial-state regime of a study, in order.

    Raises InputError where one is named more than once.
    """
    if config.initial_states == "scheduled":
        found = [StartedFixture.of(fixture) for fixture in fixtures]
    else:
        found = [
            _fixed(fixture, seed)
            for fixture in fixtures
            for seed in config.initial_seeds or [fixture.seeds.initial_states]
        ]
    errors.distinct("fixtures", (system.id for system in found))
    return found


def _generate(asked: Generated, state: Path) -> None:
    title = f"generate {asked.num} {asked.family}"
    with stage(title) as report, part(state, "generated") as new:
        found = generate(
            asked.family,
            asked.num,
            asked.seed,
            ranges=asked.ranges,
            progress=lambda done, num: report(done / num),
        )
        for number, fixture in enumerate(found):
            save_fixture(fixture, new / f"{number:06d}.yaml")


def _fixed(fixture: Fixture, seed: int) -> StartedFixture:
    """The fixture started from one state: s_0 of trial 0 of the streams of root ``seed``.

    Where the law is uniform the params keep its kind, on a box of one point, so that fixed and
    scheduled starts share a compilation.
    """
    key = streams.initial_key(streams.episode_key(streams.stream_key(seed, 0), 0))
    law = fixture.params.initial_state
    state = law.sample(key)
    name = f"{fixture.id}-from{seed}"
    derived = fixture.with_changes(
        id=name, initial_state={"law": "fixed", "state": np.asarray(state).tolist()}
    )
    point = initial.Fixed(state)
    if isinstance(law, initial.Uniform):
        point = initial.Uniform(low=state, high=state)
    params = inputs.swapped(fixture.params, initial_state=point)  # the guard is the fixture's
    return StartedFixture(derived, params, fixture.resolution_floor, fixture)
