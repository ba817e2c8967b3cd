"""What an experiment is, ``cojax.experiment/1``, and a training, ``cojax.train/1``: from YAML."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from cojax import errors
from cojax.agents.training import current_names
from cojax.agents.tuned import Profile, hyperparameters, tuned
from cojax.errors import InputError
from cojax.io import yaml

FOLDER = Path(__file__).parent  # of the experiments that are shipped
Count = Annotated[int, Field(ge=1, strict=True)]
Seed = Annotated[int, Field(ge=0, lt=2**32, strict=True)]  # more would be another seed
Model = TypeVar("Model", bound=BaseModel)


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, ser_json_inf_nan="constants")


class Algorithm(_Strict):
    """A learner and the hyperparameters that differ from its defaults, on all fixtures or on those
    of one family; and its own budget, where it is not that of all.
    """

    name: str
    hyperparameters: dict[str, Any] = {}
    families: dict[str, dict[str, Any]] = {}
    total_timesteps: Count | None = None

    @model_validator(mode="after")
    def _current_names(self) -> Algorithm:
        families = {k: current_names(self.name, v) for k, v in self.families.items()}
        object.__setattr__(self, "families", families)
        object.__setattr__(self, "hyperparameters", current_names(self.name, self.hyperparameters))
        return self

    def on(self, family: str) -> dict[str, Any]:
        """The hyperparameters on fixtures of a family."""
        return {**self.hyperparameters, **self.families.get(family, {})}


class Trials(_Strict):
    """The paired trials of the final evaluation."""

    num_trials: Count = 256
    root: Seed = 0


class Evaluation(Trials):
    """The final evaluation: reference policies beside the learners, and the paired trials."""

    policies: list[str] = ["oracle", "zero", "random"]


class Curve(_Strict):
    """The gap measured while training, at ``points`` moments, on streams of its own."""

    num_trials: Count = 16
    root: Seed = 1
    points: Count = 10


class Experiment(_Strict):
    """Every algorithm on every fixture, ``num_seeds`` times, and one paired evaluation of all.

    ``profile`` puts tuned or published hyperparameters beneath the algorithms' own. Environment i
    of seed k meets the same initial states and noise whatever learns. ``initial_states`` says
    whether these follow the fixture's law, a new one every episode ("scheduled"), or are one
    state ("fixed"): the law's draw by the fixture's seed, or by each of ``initial_seeds``.
    ``scale`` is the part of the file's ``scales`` that was taken.
    """

    schema_: Literal["cojax.experiment/1"] = Field(alias="schema")
    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")]
    scale: str | None = None
    profile: Profile | None = None
    fixtures: Annotated[list[str], Field(min_length=1)]
    initial_states: Literal["scheduled", "fixed"] = "scheduled"
    initial_seeds: list[Seed] = []
    algorithms: Annotated[list[Algorithm], Field(min_length=1)]
    num_seeds: Count = 4
    seed: Seed = 0
    total_timesteps: Count = 300_000
    evaluation: Evaluation = Evaluation()
    curve: Curve = Curve()

    def on(self, algorithm: Algorithm, family: str) -> dict[str, Any]:
        """The hyperparameters of an algorithm on fixtures of a family."""
        return {
            **hyperparameters(self.profile, algorithm.name, family),
            **algorithm.on(family),
        }

    def budget(self, algorithm: Algorithm) -> int:
        """Environment steps of each member."""
        return algorithm.total_timesteps or self.total_timesteps


class Training(_Strict):
    """One algorithm on every fixture, for every setting and ``num_seeds`` times.

    ``settings`` are hyperparameters that take the place of the algorithm's, one mapping for each
    setting; empty for a single one. ``tuned`` puts the tuned defaults of a fixture's family
    beneath everything.
    """

    schema_: Literal["cojax.train/1"] = Field(alias="schema")
    fixtures: Annotated[list[str], Field(min_length=1)]
    algorithm: Algorithm
    settings: list[dict[str, Any]] = []
    tuned: bool = True
    num_seeds: Count = 4
    seed: Seed = 0
    total_timesteps: Count = 300_000
    evaluation: Trials = Trials()
    curve: Curve = Curve(points=20)

    @model_validator(mode="after")
    def _current_names(self) -> Training:
        settings = [current_names(self.algorithm.name, setting) for setting in self.settings]
        object.__setattr__(self, "settings", settings)
        return self

    def base(self, family: str) -> dict[str, Any]:
        """The hyperparameters on fixtures of a family, beneath the settings."""
        beneath = tuned(self.algorithm.name, family) if self.tuned else {}
        return {**beneath, **self.algorithm.on(family)}

    def on(self, family: str) -> dict[str, Any] | list[dict[str, Any]]:
        """The hyperparameters on fixtures of a family: of one setting, or of each."""
        base = self.base(family)
        return [{**base, **setting} for setting in self.settings] or base

    def resolved(self, families: Iterable[str]) -> Training:
        """The same with everything that tuned defaults decide written out."""
        written = {family: self.base(family) for family in sorted(set(families))}
        algorithm = Algorithm(name=self.algorithm.name, families=written)
        return self.model_copy(update={"algorithm": algorithm, "tuned": False})


def shipped_experiments() -> list[str]:
    """Names of the experiments in the package."""
    return yaml.names(FOLDER)


def load_experiment(
    path_or_name: str, scale: str | None = None, profile: Profile | None = None
) -> Experiment:
    """Read an experiment: the path of a YAML file, or the name of a shipped one.

    Args:
        path_or_name: of the experiment.
        scale: which of the file's ``scales`` to take: fields that replace those of the file.
            By default "small", where it has scales.
        profile: replaces the file's.

    Raises InputError, one line with file, field and what was expected, for anything unusable.
    """
    path = yaml.find("experiment", path_or_name, FOLDER)
    content = yaml.load(path)
    content = _scaled(content, scale, path.name)
    if profile is not None:
        content["profile"] = profile
    return _validate(Experiment, content, path.name)


def _scaled(content: dict[str, Any], scale: str | None, where: str) -> dict[str, Any]:
    """The content with the fields of one of its scales in place of its own."""
    scales = content.pop("scales", None)
    if scales is None:
        if scale is not None:
            raise InputError(f"{where}: scale {scale!r}: expected none, the file has no scales")
        return content
    if not isinstance(scales, dict) or not all(isinstance(v, dict) for v in scales.values()):
        raise InputError(f"{where}: scales: expected a mapping of fields for each name")
    scale = "small" if scale is None else scale
    errors.one_of(f"{where}: scale", scale, scales)
    return {**content, **scales[scale], "scale": scale}


def load_training(path: str | Path) -> Training:
    """Read a training from a YAML file. Raises InputError, one line, for anything unusable."""
    path = Path(path)
    if not path.exists():
        raise InputError(f"{path}: no such file")
    return training(yaml.load(path), path.name)


def training(content: dict[str, Any], where: str) -> Training:
    """A training of the content of a file, called ``where`` in messages.

    Raises InputError, one line with field and what was expected.
    """
    return _validate(Training, content, where)


def _validate(model: type[Model], content: dict[str, Any], where: str) -> Model:
    try:
        return model.model_validate(content)
    except ValidationError as error:
        raise InputError(f"{where}: {errors.first_problem(error, _fields(model))}") from None


def _fields(model: type[BaseModel]) -> list[str]:
    """Every field name of a schema, as written in files."""
    models = (model, Algorithm, Evaluation, Curve)
    return [f.alias or name for model in models for name, f in model.model_fields.items()]
