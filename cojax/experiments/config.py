"""What an experiment is: schema ``cojax.experiment/1``, read from YAML."""

from __future__ import annotations

import difflib
from importlib import resources
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from cojax import inputs
from cojax.fixtures import text
from cojax.inputs import InputError

Count = Annotated[int, Field(ge=1, strict=True)]
Seed = Annotated[int, Field(ge=0, strict=True)]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Algorithm(_Strict):
    """A learner and the hyperparameters that differ from its defaults, on all fixtures or on those
    of one family.
    """

    name: str
    hyperparameters: dict[str, Any] = {}
    families: dict[str, dict[str, Any]] = {}

    def on(self, family: str) -> dict[str, Any]:
        """The hyperparameters on fixtures of a family."""
        return {**self.hyperparameters, **self.families.get(family, {})}


class Evaluation(_Strict):
    """The final evaluation: reference policies beside the learners, and the paired trials."""

    policies: list[str] = ["oracle", "zero", "random"]
    num_trials: Count = 256
    root: Seed = 0


class Curve(_Strict):
    """The gap measured while training, at ``points`` moments, on streams of its own."""

    num_trials: Count = 16
    root: Seed = 1
    points: Count = 10


class Experiment(_Strict):
    """Every algorithm on every fixture, ``num_seeds`` times, and one paired evaluation of all."""

    schema_: Literal["cojax.experiment/1"] = Field(alias="schema")
    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")]
    fixtures: Annotated[list[str], Field(min_length=1)]
    algorithms: Annotated[list[Algorithm], Field(min_length=1)]
    num_seeds: Count = 4
    seed: Seed = 0
    total_timesteps: Count = 300_000
    evaluation: Evaluation = Evaluation()
    curve: Curve = Curve()


def shipped_experiments() -> list[str]:
    """Names of the experiments in the package."""
    folder = resources.files("cojax.experiments")
    return sorted(
        entry.name.removesuffix(".yaml")
        for entry in folder.iterdir()
        if entry.name.endswith(".yaml")
    )


def load_experiment(path_or_name: str) -> Experiment:
    """Read an experiment: the path of a YAML file, or the name of a shipped one.

    Raises InputError, one line with file, field and what was expected, for anything unusable.
    """
    path = Path(path_or_name)
    if not path.exists():
        if path.suffix in (".yaml", ".yml"):
            raise InputError(f"{path}: no such file")
        inputs.one_of("experiment", path_or_name, shipped_experiments())
        path = Path(str(resources.files("cojax.experiments") / f"{path_or_name}.yaml"))
    content = text.parse(text.read(path), path.name)
    try:
        return Experiment.model_validate(content)
    except ValidationError as error:
        raise InputError(f"{path.name}: {_first(error)}") from None


def _first(error: ValidationError) -> str:
    """The most telling problem, as ``field: expected ..., got ...``."""
    problem = min(error.errors(), key=lambda e: e["type"] == "missing")
    field = ".".join(str(part) for part in problem["loc"])
    if problem["type"] == "extra_forbidden":
        near = difflib.get_close_matches(str(problem["loc"][-1]), _fields(), n=1, cutoff=0.4)
        return f"{field}: unknown field" + (f"; did you mean {near[0]!r}?" if near else "")
    if problem["type"] == "missing":
        return f"{field}: expected this field, got nothing"
    return f"{field}: {problem['msg'][0].lower()}{problem['msg'][1:]}, got {problem['input']!r}"


def _fields() -> list[str]:
    """Every field name of the schema, as written in files."""
    models = (Experiment, Algorithm, Evaluation, Curve)
    return [f.alias or name for model in models for name, f in model.model_fields.items()]
