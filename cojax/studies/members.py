"""A study as flat members in groups, whose programs differ in data alone: each compiles once."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from functools import cached_property

import jax
import jax.numpy as jnp
import numpy as np

from cojax import streams
from cojax.agents import algorithm as algorithms
from cojax.agents.algorithm import Algorithm
from cojax.agents.curriculum import curriculum
from cojax.agents.layout import Layout
from cojax.agents.loop import Plan
from cojax.agents.population import Population
from cojax.agents.settings import host_hyperparameters, stack_hyperparameters
from cojax.agents.training import current_names, discounts, lookup
from cojax.envs import CommonStreams, ConverseEnv, stack
from cojax.evaluation.evaluator import group_by_shape
from cojax.studies.schema import Homotopy, Study
from cojax.studies.space import Setting
from cojax.studies.systems import StartedFixture
from cojax.types import Content, PyTree

ENV = ConverseEnv()


@dataclasses.dataclass(frozen=True, order=True)
class Chunk:
    """Members ``start`` to ``stop`` of a group: trained together, kept whole or not at all."""

    group: int
    start: int
    stop: int

    @property
    def size(self) -> int:
        """Members."""
        return self.stop - self.start

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
    """Settings × systems × seeds of one algorithm, of one shape; the settings outermost.

    Attributes:
        number: its place in the study.
        block: number of its systems: groups of one block have the same.
        spec: the algorithm.
        systems: of one family and shape.
        settings: numbers of the settings, as the algorithm has them.
        varied: what they vary, one mapping for each setting.
        hyperparameters: complete, one mapping for each setting.
        num_seeds: members of each setting on each system.
        seed: of the keys; member k of a setting has ``fold_in(key(seed), k)``.
        total_timesteps: environment steps of each member.
        common_streams: whether environments meet the same streams whatever learns.
        homotopy: stages that its systems are learned through.
    """

    number: int
    block: int
    spec: Algorithm
    systems: Sequence[StartedFixture]
    settings: Sequence[int]
    varied: Sequence[Setting]
    hyperparameters: Sequence[Content]
    num_seeds: int
    seed: int
    total_timesteps: int
    common_streams: bool = False
    homotopy: Homotopy | None = None

    @property
    def shape(self) -> tuple[int, int, int]:
        """Numbers of settings, systems and seeds."""
        return len(self.settings), len(self.systems), self.num_seeds

    @property
    def size(self) -> int:
        """Members."""
        return int(np.prod(self.shape))

    @property
    def env(self) -> ConverseEnv | CommonStreams:
        """What its members learn in."""
        return CommonStreams(ENV) if self.common_streams else ENV

    @cached_property
    def _params(self) -> PyTree:
        params, way = stack([system.params for system in self.systems]), self.homotopy
        if way is not None:
            options = {"until": way.until, "num_stages": way.num_stages, way.knob: way.start}
            params = curriculum(params, **options)
        return algorithms.strong(params)

    @cached_property
    def h(self) -> PyTree:
        """Hyperparameters of all settings, leaves (num_settings, ...)."""
        return stack_hyperparameters(self.spec.hyperparameters, self.hyperparameters, {})

    @property
    def horizon(self) -> int:
        """Steps of the longest episode."""
        return max(int(system.params.max_steps_in_episode) for system in self.systems)

    def labels(self, members: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """(place among the settings, place among the systems, seed) of members by number."""
        return np.unravel_index(members, self.shape)  # pyright: ignore[reportReturnType]

    @algorithms.learning()
    def population(self, members: np.ndarray, layout: Layout) -> Population:
        """Some members, placed on their devices; the last one is repeated to fill the blocks."""
        short = -len(members) % layout.block
        members = np.concatenate([members, np.repeat(members[-1:], short)])
        setting, system, seed = self.labels(members)

        def take(tree, index):
            return jax.tree.map(lambda x: np.asarray(x)[index], tree)

        key = streams.seed_key(self.seed)
        keys = jax.vmap(jax.random.fold_in, (None, 0))(key, jnp.asarray(seed, jnp.uint32))
        env_params, h = take(self._params, system), take(self.h, setting)
        env_params, h, keys = layout.place((env_params, h, keys))
        return Population.flat(self.spec, self.env, env_params, h, keys, layout)

    def origin(self, config: Study) -> str:
        """Where the hyperparameters beneath its settings come from, in words."""
        algorithm = next(one for one in config.algorithms if one.name == self.spec.name)
        return config.origin(algorithm, self.systems[0].fixture.family)

    def warning(self) -> str | None:
        """A line, where some member learns with another discount than its system's own."""
        _, systems, seeds = self.shape
        each = (*range(0, self.size, systems * seeds), *range(0, systems * seeds, seeds))
        return discounts(self.population(np.array(each), Layout()))[1]

    def plan(self, points: int) -> Plan:
        """Updates of a member, in ``points`` intervals."""
        every = -(-self.total_timesteps // points)
        one = jax.tree.map(lambda x: x[0], self.h)
        return Plan.of(self.spec.steps_per_update(one), self.total_timesteps, every)


def check(config: Study, systems: Sequence[StartedFixture]) -> None:
    """Raise InputError for what a learner refuses of its hyperparameters on the families of a
    study, named in it or met.
    """
    met = {system.fixture.family for system in systems}
    for algorithm in config.algorithms:
        spec = lookup(algorithm.name)
        for family in sorted(met | set(algorithm.families)):
            base = config.base(algorithm, family)
            spec.check(host_hyperparameters(spec.hyperparameters, base, {}))


def blocks(systems: Sequence[StartedFixture]) -> list[list[StartedFixture]]:
    """Systems of one shape and family, whose members one program trains; in order."""
    found: dict[tuple[int, str], list[StartedFixture]] = {}
    for shape, indices in enumerate(group_by_shape([system.params for system in systems])):
        for index in indices:
            family = systems[index].fixture.family
            found.setdefault((shape, family), []).append(systems[index])
    return list(found.values())


def groups(config: Study, systems: Sequence[StartedFixture]) -> list[Group]:
    """The groups of a study without a search, in an order that depends on the study alone."""
    found: list[Group] = []
    for algorithm in config.algorithms:
        settings = list(enumerate(config.settings(algorithm)))
        found += group(config, algorithm.name, settings, systems, first=len(found))
    return found


def group(
    config: Study,
    name: str,
    settings: Sequence[tuple[int, Setting]],
    systems: Sequence[StartedFixture],
    *,
    first: int = 0,
) -> list[Group]:
    """Groups of one algorithm: by block, and by what decides shapes in its hyperparameters.

    Raises InputError for a setting that the algorithm refuses.
    """
    spec = lookup(name)
    algorithm = next(one for one in config.algorithms if one.name == name)
    found: list[Group] = []
    for block, members in enumerate(blocks(systems)):
        base = config.base(algorithm, members[0].fixture.family)
        by_static: dict[object, list[tuple[int, Setting, Content]]] = {}
        for number, setting in settings:
            setting = current_names(name, setting)  # of results of the last version
            merged = {**base, **setting}
            h = host_hyperparameters(spec.hyperparameters, merged, {})
            spec.check(h)
            by_static.setdefault(jax.tree.structure(h), []).append((number, setting, merged))
        for together in by_static.values():
            found.append(
                Group(
                    number=first + len(found),
                    block=block,
                    spec=spec,
                    systems=members,
                    settings=[number for number, _, _ in together],
                    varied=[setting for _, setting, _ in together],
                    hyperparameters=[merged for _, _, merged in together],
                    num_seeds=config.num_seeds,
                    seed=config.seed,
                    total_timesteps=config.budget(algorithm),
                    common_streams=config.common_streams,
                    homotopy=config.curriculum,
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
