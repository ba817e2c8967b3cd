"""The space of hyperparameters: what each hyperparameter may be, and settings drawn from it.

A parameter is a list, alone or as ``values``, or a range from ``low`` to ``high``, on a logarithmic
scale or of whole numbers if asked; ``when`` makes it depend on others. A setting is a mapping of
names to values; where a condition does not hold, the parameter is not in it and keeps its default.

Points of the unit cube become settings by the inverse of each distribution function, so uniform
draws, Sobol points (Sobol, 1967, scrambled after Owen, 1998) and a grid share one rule.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Annotated, Literal, TypeAlias

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, model_validator
from scipy.stats import qmc

from cojax.agents.algorithm import Algorithm
from cojax.agents.settings import checked
from cojax.errors import InputError, nearest
from cojax.types import Content, Json

Value: TypeAlias = bool | int | float | str | tuple[int, ...]
Setting: TypeAlias = Content
Sampler: TypeAlias = Literal["grid", "random", "sobol"]


class Parameter(BaseModel):
    """What one hyperparameter may be: ``values``, or all from ``low`` to ``high``.

    Attributes:
        values: a choice, each as likely as the others.
        low: smallest value of a range.
        high: largest value of a range.
        log: whether the logarithm is uniform, not the value.
        int_: whole numbers alone; written ``int``.
        num: points of a range in a grid.
        when: other parameters and the values of theirs with which this one is varied.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    values: Annotated[list[Json], Field(min_length=1)] | None = None
    low: float | None = None
    high: float | None = None
    log: bool = False
    int_: bool = Field(False, alias="int")
    num: Annotated[int, Field(ge=1, strict=True)] | None = None
    when: dict[str, list[Json]] = {}

    @model_validator(mode="before")
    @classmethod
    def _bare_list(cls, content: Json) -> Json:
        return {"values": content} if isinstance(content, list) else content

    @model_validator(mode="after")
    def _one_kind(self) -> Parameter:
        if (self.values is None) == (self.low is None and self.high is None):
            raise ValueError("expected either values, or low and high")
        if self.values is not None:
            if self.log or self.int_ or self.num is not None:
                raise ValueError("values take neither log, int nor num")
            return self
        if self.low is None or self.high is None or not self.low < self.high:
            raise ValueError(f"expected low < high, got {self.low} and {self.high}")
        if not (math.isfinite(self.low) and math.isfinite(self.high)):
            raise ValueError("expected finite low and high")
        if self.log and self.low <= 0:
            raise ValueError(f"log: expected low > 0, got {self.low:g}")
        if self.int_ and not (self.low.is_integer() and self.high.is_integer()):
            raise ValueError("int: expected whole low and high")
        return self

    def at(self, u: float) -> Json:
        """The value at a fraction u in [0, 1) of the distribution."""
        if self.values is not None:
            return _plain(self.values[min(int(u * len(self.values)), len(self.values) - 1)])
        assert self.low is not None
        assert self.high is not None
        low, high = self.low, self.high
        if self.int_:  # every whole number gets the cell around it
            low, high = low - 0.5, high + 0.5
        if self.log:
            value = math.exp(math.log(low) + u * (math.log(high) - math.log(low)))
        else:
            value = low + u * (high - low)
        if self.int_:
            return int(min(max(round(value), self.low), self.high))
        return value

    def levels(self, name: str) -> list[Json]:
        """The values of a grid. Raises ValueError where a range does not say how many."""
        if self.values is not None:
            return [_plain(value) for value in self.values]
        assert self.low is not None
        assert self.high is not None
        if self.num is None:
            if self.int_ and not self.log:
                return list(range(int(self.low), int(self.high) + 1))
            raise InputError(f"space.{name}: a grid expected num, the points of its range")
        spaced = np.geomspace if self.log else np.linspace
        points = [float(x) for x in spaced(self.low, self.high, self.num)]
        return sorted({round(x) for x in points}) if self.int_ else points


def _plain(value: Json) -> Json:
    """Lists as tuples: settings are compared and hashed."""
    return tuple(value) if isinstance(value, list) else value


Space: TypeAlias = dict[str, Parameter]


def check(algorithm: Algorithm, space: Mapping[str, Parameter]) -> None:
    """Raise ValueError, one line, for a parameter that the algorithm lacks or cannot take."""
    fields = algorithm.hyperparameters.__dataclass_fields__
    for name, parameter in space.items():
        where = f"space.{name}"
        if name not in fields:
            raise InputError(
                f"{where}: {algorithm.name} has no such hyperparameter{nearest(name, fields, 0.0)}"
            )
        shaping = not fields[name].metadata["pytree_node"]
        if shaping and parameter.values is None and not parameter.int_:
            raise InputError(
                f"{where} decides shapes and cannot vary within a population: expected values "
                "(or whole numbers, int: true), each of which is trained as a group of its own"
            )
        for value in parameter.values or (parameter.at(0.0), parameter.at(1.0)):
            try:
                checked(algorithm.hyperparameters.__name__, fields[name], _plain(value))
            except InputError as error:
                raise InputError(f"{where}: {error}") from None
        for other in parameter.when:
            if other not in space or other == name:
                raise InputError(
                    f"{where}: when: expected another parameter of the space, "
                    f"got {other!r}{nearest(other, space)}"
                )
    ordered(space)


def ordered(space: Mapping[str, Parameter]) -> list[str]:
    """Names such that a parameter comes after those its ``when`` names; ValueError for a circle."""
    done: list[str] = []
    left = list(space)
    while left:
        ready = [name for name in left if all(o in done for o in space[name].when)]
        if not ready:
            raise InputError(f"space: when of {', '.join(left)} form a circle")
        done += ready
        left = [name for name in left if name not in ready]
    return done


def active(parameter: Parameter, setting: Setting) -> bool:
    """Whether the condition of a parameter holds in a setting."""
    return all(
        name in setting and setting[name] in [_plain(v) for v in values]
        for name, values in parameter.when.items()
    )


def from_unit(space: Mapping[str, Parameter], u: Sequence[float]) -> Setting:
    """The setting at a point of the unit cube; coordinates belong to names as ordered."""
    setting: Setting = {}
    for name, x in zip(ordered(space), u, strict=True):
        if active(space[name], setting):
            setting[name] = space[name].at(float(x))
    return setting


def draw(
    space: Mapping[str, Parameter], sampler: Sampler, num: int | None, seed: int
) -> list[Setting]:
    """Settings of a space, in an order that depends on nothing but the arguments.

    Args:
        space: the parameters; empty for the one setting {}.
        sampler: "grid" (all combinations, ``num`` is None), "random" or "sobol".
        num: how many; setting i is the same whatever ``num`` is.
        seed: of the draws.

    Raises InputError for a count that is missing, or given with a grid.
    """
    if sampler == "grid":
        if num is not None:
            raise InputError("num_settings: a grid has as many as its space; leave it out")
        return _grid(space)
    if num is None:
        raise InputError(f"num_settings: expected a number of settings for sampler {sampler!r}")
    if not space:
        return [{}]
    if sampler == "sobol":
        if len(space) > qmc.Sobol.MAXDIM:
            raise InputError(f"space: sobol takes at most {qmc.Sobol.MAXDIM} parameters")
        points = qmc.Sobol(len(space), scramble=True, rng=np.random.default_rng(seed)).random_base2(
            max(0, math.ceil(math.log2(num)))
        )[:num]
    else:
        points = np.random.default_rng(seed).random((num, len(space)))
    return [from_unit(space, u) for u in points]


def _grid(space: Mapping[str, Parameter]) -> list[Setting]:
    names = ordered(space)
    levels = [space[name].levels(name) for name in names]
    settings: dict[tuple, Setting] = {}  # conditions make some combinations the same
    for values in itertools.product(*levels):
        setting: Setting = {}
        for name, value in zip(names, values, strict=True):
            if active(space[name], setting):
                setting[name] = value
        settings.setdefault(tuple(setting.items()), setting)
    return list(settings.values())
