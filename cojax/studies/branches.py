"""A search in branches: what decides shapes, or whether there is a number, is chosen once."""

from __future__ import annotations

import dataclasses
import itertools
from typing import TYPE_CHECKING

from cojax.agents.training import lookup
from cojax.errors import InputError
from cojax.studies.space import Setting, Space

if TYPE_CHECKING:
    from cojax.studies.schema import Algorithm, Study


@dataclasses.dataclass(frozen=True)
class Branch:
    """One population: an algorithm and one choice of what its members must have in common.

    Attributes:
        name: of its folder.
        algorithm: the learner.
        fixed: hyperparameters of the space that decide shapes, and those that are null.
        space: the others.
        budget: full trainings of one setting.
        seed: of the proposals.
    """

    name: str
    algorithm: Algorithm
    fixed: Setting
    space: Space
    budget: float
    seed: int


def branches(config: Study) -> list[Branch]:
    """The branches of a search; they share the budget equally.

    Settings of a population are stacked: null beside numbers makes two branches, one without.
    Raises InputError, one line, for a space that cannot be divided so.
    """
    assert config.search is not None
    found = []
    for algorithm in config.algorithms:
        _check(algorithm)
        choices = [_choices(algorithm, name) for name in algorithm.space]
        for chosen in itertools.product(*choices):
            fixed: Setting = {}
            space: Space = {}
            for setting, parameter in chosen:
                fixed |= setting
                space |= parameter
            if not space:
                raise InputError(
                    f"algorithms.{algorithm.name}: space: only hyperparameters that decide shapes, "
                    "or are null; use a grid, without search"
                )
            found.append((algorithm, fixed, space))
    return [
        Branch(
            name=f"{number:03d}-{algorithm.name}",
            algorithm=algorithm,
            fixed=fixed,
            space=space,
            budget=config.search.budget / len(found),
            seed=config.seed + number,
        )
        for number, (algorithm, fixed, space) in enumerate(found)
    ]


def _choices(algorithm: Algorithm, name: str) -> list[tuple[Setting, Space]]:
    """What a parameter may be in a branch: fixed, or varied in its space."""
    parameter = algorithm.space[name]
    if _shapes(algorithm, name):
        return [({name: value}, {}) for value in parameter.levels(name)]
    if parameter.values is None or None not in parameter.values:
        return [({}, {name: parameter})]
    numbers = [value for value in parameter.values if value is not None]
    varied = {name: parameter.model_copy(update={"values": numbers})}
    return [({name: None}, {}), *([({}, varied)] if numbers else [])]


def _shapes(algorithm: Algorithm, name: str) -> bool:
    """Whether a hyperparameter decides shapes."""
    fields = lookup(algorithm.name).hyperparameters.__dataclass_fields__
    return not fields[name].metadata["pytree_node"]


def _check(algorithm: Algorithm) -> None:
    """Refuse conditions that the members of a population cannot differ in."""
    fields = lookup(algorithm.name).hyperparameters.__dataclass_fields__
    for name, parameter in algorithm.space.items():
        if parameter.when and _shapes(algorithm, name):
            raise InputError(f"space.{name}: when: decides shapes; a search varies it alone")
        if parameter.when and fields[name].default is None:
            raise InputError(
                f"space.{name}: when: it has no default to fall back on in a population"
            )
        for other in parameter.when:
            if _shapes(algorithm, other):
                raise InputError(f"space.{name}: when: {other!r} decides shapes")
            if None in (algorithm.space[other].values or ()):
                raise InputError(f"space.{name}: when: {other!r} is null in some populations")
