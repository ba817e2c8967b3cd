"""A sweep as groups: members whose programs differ in data alone, so that each compiles once."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from cojax import streams
from cojax.agents import algorithm as algorithms
from cojax.agents.algorithm import Algorithm
from cojax.agents.layout import Layout
from cojax.agents.loop import Plan
from cojax.agents.population import Population
from cojax.agents.training import current_names, lookup
from cojax.envs import ConverseEnv, stack
from cojax.evaluation.evaluator import group_by_shape
from cojax.fixtures import Fixture
from cojax.sweeps.config import Sweep

ENV = ConverseEnv()


@dataclasses.dataclass(frozen=True, order=True)
class Chunk:
    """Members ``start`` to ``stop`` of a group: trained together, kept whole or not at all."""

    group: int
    start: int
    stop: int

    @property
    def name(self) -> str:
        """Of its files."""
        return f"{self.group:03d}-{self.start:07d}-{self.stop:07d}"

    @classmethod
    def named(cls, name: str) -> Chunk:
        """Inverse of ``name``."""
        return cls(*(int(part) for part in name.split("-")))


@dataclasses.dataclass(frozen=True)
class Group:
    """Settings × fixtures × seeds of one algorithm, of one shape; the settings outermost.

    Attributes:
        number: its place in the sweep.
        spec: the algorithm.
        fixtures: of one family and shape.
        settings: numbers of the settings, as the algorithm's space gives them.
        varied: what the space gives, one mapping for each setting.
        hyperparameters: complete, one mapping for each setting.
        num_seeds: members of each setting on each fixture.
        seed: of the keys; member k of a setting has ``fold_in(key(seed), k)``.
        total_timesteps: environment steps of each member.
    """

    number: int
    spec: Algorithm
    fixtures: Sequence[Fixture]
    settings: Sequence[int]
    varied: Sequence[dict[str, Any]]
    hyperparameters: Sequence[dict[str, Any]]
    num_seeds: int
    seed: int
    total_timesteps: int

    @property
    def shape(self) -> tuple[int, int, int]:
        """Numbers of settings, fixtures and seeds."""
        return len(self.settings), len(self.fixtures), self.num_seeds

    @property
    def size(self) -> int:
        """Members."""
        return int(np.prod(self.shape))

    @cached_property
    def _systems(self) -> Any:
        return algorithms.strong(stack([fixture.params for fixture in self.fixtures]))

    @cached_property
    def h(self) -> Any:
        """Hyperparameters of all settings, leaves (num_settings, ...)."""
        return algorithms.stack_hyperparameters(self.spec.hyperparameters, self.hyperparameters, {})

    @property
    def horizon(self) -> int:
        """Steps of the longest episode."""
        return max(fixture.horizon for fixture in self.fixtures)

    def labels(self, members: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """(place among the settings, place among the fixtures, seed) of members by number."""
        return np.unravel_index(members, self.shape)  # pyright: ignore[reportReturnType]

    @algorithms.learning()
    def population(self, members: np.ndarray, layout: Layout) -> Population:
        """Some members, placed on their devices; the last one is repeated to fill the blocks."""
        short = -len(members) % layout.block
        members = np.concatenate([members, np.repeat(members[-1:], short)])
        setting, fixture, seed = self.labels(members)

        def take(tree, index):
            return jax.tree.map(lambda x: np.asarray(x)[index], tree)

        key = streams.seed_key(self.seed)
        keys = jax.vmap(jax.random.fold_in, (None, 0))(key, jnp.asarray(seed, jnp.uint32))
        env_params, h = take(self._systems, fixture), take(self.h, setting)
        env_params, h, keys = layout.place((env_params, h, keys))
        return Population.flat(self.spec, ENV, env_params, h, keys, layout)

    def plan(self, points: int) -> Plan:
        """Updates of a member, in ``points`` intervals."""
        every = -(-self.total_timesteps // points)
        one = jax.tree.map(lambda x: x[0], self.h)
        return Plan.of(self.spec.steps_per_update(one), self.total_timesteps, every)


def groups(config: Sweep, fixtures: Sequence[Fixture]) -> list[Group]:
    """The groups of a sweep without a search, in an order that depends on the sweep alone."""
    found: list[Group] = []
    for algorithm in config.algorithms:
        settings = list(enumerate(config.settings(algorithm)))
        found += group(config, algorithm.name, settings, fixtures, len(found))
    return found


def group(
    config: Sweep,
    name: str,
    settings: Sequence[tuple[int, dict[str, Any]]],
    fixtures: Sequence[Fixture],
    first: int = 0,
    *,
    num_seeds: int | None = None,
    seed: int | None = None,
) -> list[Group]:
    """Groups of one algorithm: by the shape of the fixtures, and by what decides shapes in ``h``.

    Raises InputError for a setting that the algorithm refuses, with its number.
    """
    spec = lookup(name)
    algorithm = next(one for one in config.algorithms if one.name == name)
    found: list[Group] = []
    by_shape = group_by_shape([fixture.params for fixture in fixtures])
    for indices in by_shape:
        families = list(dict.fromkeys(fixtures[i].family for i in indices))
        for family in families:
            members = [fixtures[i] for i in indices if fixtures[i].family == family]
            base = config.on(algorithm, family)
            by_static: dict[Any, list[tuple[int, dict[str, Any], dict[str, Any]]]] = {}
            for number, setting in settings:
                setting = current_names(name, setting)  # of results of the last version
                merged = {**base, **setting}
                h = algorithms.host_hyperparameters(spec.hyperparameters, merged, {})
                spec.check(h)
                by_static.setdefault(jax.tree.structure(h), []).append((number, setting, merged))
            for together in by_static.values():
                found.append(
                    Group(
                        number=first + len(found),
                        spec=spec,
                        fixtures=members,
                        settings=[number for number, _, _ in together],
                        varied=[setting for _, setting, _ in together],
                        hyperparameters=[merged for _, _, merged in together],
                        num_seeds=config.num_seeds if num_seeds is None else num_seeds,
                        seed=config.seed if seed is None else seed,
                        total_timesteps=config.total_timesteps,
                    )
                )
    return found


def cut(group: Group, length: int, done: Sequence[Chunk] = ()) -> list[Chunk]:
    """Chunks of at most ``length`` members that cover what is not done."""
    covered = np.zeros(group.size, bool)
    for chunk in done:
        if chunk.group == group.number:
            covered[chunk.start : chunk.stop] = True
    chunks = []
    start = 0
    while start < group.size:
        if covered[start]:
            start += 1
            continue
        stop = start
        while stop < min(start + length, group.size) and not covered[stop]:
            stop += 1
        chunks.append(Chunk(group.number, start, stop))
        start = stop
    return chunks
