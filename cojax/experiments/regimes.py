"""The systems of an experiment: fixtures under its initial-state regime."""

from __future__ import annotations

import dataclasses

import numpy as np

from cojax import errors, initial, inputs, streams
from cojax.envs import EnvParams
from cojax.errors import InputError
from cojax.experiments.config import Experiment
from cojax.fixtures import Fixture, load_fixture


@dataclasses.dataclass(frozen=True)
class StartedFixture:
    """One system of an experiment.

    Attributes:
        fixture: complete; with its initial state fixed where the regime says so.
        params: what runs, float32.
        floor: resolution floor of the certificate, a fraction of V*; None without one. The residual
            that it bounds does not depend on the initial law.
    """

    fixture: Fixture
    params: EnvParams
    floor: float | None

    @classmethod
    def of(cls, fixture: Fixture) -> StartedFixture:
        """A fixture under its own initial law."""
        return cls(fixture, fixture.params, fixture.resolution_floor)

    @property
    def id(self) -> str:
        """The fixture's."""
        return self.fixture.id


def systems(experiment: Experiment) -> list[StartedFixture]:
    """All systems of an experiment, in order. Raises InputError for an unusable fixture."""
    fixtures = [load_fixture(name) for name in experiment.fixtures]
    if experiment.initial_states == "scheduled":
        if experiment.initial_seeds:
            raise InputError("initial_seeds: expected none where initial_states is 'scheduled'")
        found = [StartedFixture.of(f) for f in fixtures]
    else:
        found = [
            _fixed(fixture, seed)
            for fixture in fixtures
            for seed in experiment.initial_seeds or [fixture.seeds.initial_states]
        ]
    errors.distinct("fixtures", (system.id for system in found))
    return found


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
    return StartedFixture(derived, params, fixture.resolution_floor)
