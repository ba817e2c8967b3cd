"""What a sweep is, ``cojax.sweep/1``: from YAML or from Python."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from cojax import errors
from cojax.agents.training import current_names, lookup
from cojax.agents.tuned import tuned
from cojax.errors import InputError
from cojax.io import yaml
from cojax.sweeps.space import Parameter, check, draw
from cojax.sweeps.studies import studies

FOLDER = Path(__file__).parent  # of the sweeps that are shipped
Count = Annotated[int, Field(ge=1, strict=True)]
Seed = Annotated[int, Field(ge=0, lt=2**32, strict=True)]  # more would be another seed
Share = Annotated[float, Field(gt=0, lt=1)]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, ser_json_inf_nan="constants")


class Algorithm(_Strict):
    """A learner, hyperparameters that differ from its defaults, and those that are varied."""

    name: str
    hyperparameters: dict[str, Any] = {}
    space: dict[str, Parameter] = {}

    @model_validator(mode="after")
    def _current_names(self) -> Algorithm:
        space = {
            name: parameter.model_copy(update={"when": current_names(self.name, parameter.when)})
            for name, parameter in current_names(self.name, self.space).items()
        }
        object.__setattr__(self, "space", space)
        object.__setattr__(self, "hyperparameters", current_names(self.name, self.hyperparameters))
        return self


class Generated(_Strict):
    """Fixtures made for the sweep: ``num`` of a family, from ``ranges`` as ``cojax generate``."""

    family: str
    num: Count = 1
    seed: Seed = 0
    ranges: dict[str, Any] = {}


class Curve(_Strict):
    """The gap measured while training, at ``points`` moments, on streams of its own."""

    points: Count = 5
    num_trials: Count = 16
    root: Seed = 1


class Evaluation(_Strict):
    """The gap of every trained member on held-out streams."""

    num_trials: Count = 64
    root: Seed = 2


class Search(_Strict):
    """Optuna proposes settings, a whole population at a time.

    Attributes:
        sampler: Optuna's that proposes; "cmaes" needs the package cmaes, "gp" PyTorch.
        population: settings that train side by side.
        budget: environment steps of all members together, in units of one full training of one
            setting; the search ends where it is spent.
        rungs: shares of the training after which a setting must be among the ``keep`` best of
            all that got there, or is frozen and its place taken by a new one; none for no pruning.
        keep: share of settings that pass a rung.
        confidence: of the upper bound that is minimised.
        winners: settings that are trained again, on fresh seeds.
        winner_seeds: fresh seeds of each winner, and of the default settings.
        startup: settings drawn at random before the sampler learns from results.
        storage: an Optuna storage URL that gets every trial; None for a SQLite file in the
            results folder.
    """

    sampler: Literal["tpe", "cmaes", "gp", "random"] = "tpe"
    population: Count = 16
    budget: Annotated[float, Field(gt=0)] = 64
    rungs: list[Share] = [0.25, 0.5]
    keep: Share = 0.5
    confidence: Share = 0.9
    winners: Count = 3
    winner_seeds: Count = 10
    startup: Count = 16
    storage: str | None = None


class Execution(_Strict):
    """How the work is cut and placed: of no influence on what comes out, up to rounding.

    Attributes:
        chunk_members: members of a chunk, which is kept whole or not at all; None to choose.
        width: members side by side on a device; None to measure.
        devices: how many local devices to use; None for all.
        memory_gb: what a chunk may take; None for 80% of what there is.
        policies: whether trained policies are kept.
    """

    chunk_members: Count | None = None
    width: Count | None = None
    devices: Count | None = None
    memory_gb: Annotated[float, Field(gt=0)] | None = None
    policies: bool = True


class Sweep(_Strict):
    """Algorithms × hyperparameters × fixtures × seeds, each trained for a budget.

    Seed k of every setting meets the same random numbers. ``tuned`` puts the tuned defaults of a
    fixture's family beneath everything. ``num_settings`` settings of each algorithm are drawn by
    ``sampler``; with ``search`` Optuna chooses them instead.
    """

    schema_: Literal["cojax.sweep/1"] = Field(alias="schema")
    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")] = "sweep"
    fixtures: list[str] = []
    generate: Generated | None = None
    algorithms: Annotated[list[Algorithm], Field(min_length=1)]
    sampler: Literal["grid", "random", "sobol"] = "grid"
    num_settings: Count | None = None
    search: Search | None = None
    num_seeds: Count = 4
    seed: Seed = 0
    tuned: bool = True
    total_timesteps: Count = 300_000
    curve: Curve = Curve()
    evaluation: Evaluation = Evaluation()
    execution: Execution = Execution()

    def content(self) -> dict[str, Any]:
        """All that decides the results, JSON data: everything but ``execution``."""
        return self.model_dump(mode="json", by_alias=True, exclude={"execution"})

    def on(self, algorithm: Algorithm, family: str) -> dict[str, Any]:
        """The hyperparameters of an algorithm on fixtures of a family, beneath its settings."""
        return {
            **(tuned(algorithm.name, family) if self.tuned else {}),
            **algorithm.hyperparameters,
        }

    def settings(self, algorithm: Algorithm) -> list[dict[str, Any]]:
        """The settings of an algorithm, in order."""
        return draw(algorithm.space, self.sampler, self.num_settings, self.seed)


def shipped_sweeps() -> list[str]:
    """Names of the sweeps in the package."""
    return yaml.names(FOLDER)


def load_sweep(path_or_name: str | Path) -> Sweep:
    """Read a sweep: the ``path_or_name`` of a YAML file, or of a shipped one.

    Raises InputError, one line with file, field and what was expected, for anything unusable.
    """
    path = yaml.find("sweep", path_or_name, FOLDER)
    return sweep(yaml.load(path), path.name)


def sweep(content: dict[str, Any], where: str = "sweep") -> Sweep:
    """A sweep of the content of a file, called ``where`` in messages.

    Raises InputError, one line with the field and what was expected.
    """
    try:
        found = Sweep.model_validate(content)
    except ValidationError as error:
        raise InputError(f"{where}: {errors.first_problem(error, _fields())}") from None
    try:
        _check(found)
    except InputError as error:
        raise InputError(f"{where}: {error}") from None
    return found


def _fields() -> list[str]:
    """Every field name of the schema, as written in files."""
    models = (Sweep, Algorithm, Generated, Curve, Evaluation, Search, Execution, Parameter)
    return [f.alias or name for model in models for name, f in model.model_fields.items()]


def _check(config: Sweep) -> None:
    """What no field can know alone."""
    if not config.fixtures and config.generate is None:
        raise InputError("fixtures: expected at least one, or generate")
    names = [algorithm.name for algorithm in config.algorithms]
    if len(set(names)) < len(names):
        raise InputError(f"algorithms: expected different ones, got {', '.join(names)}")
    for algorithm in config.algorithms:
        check(lookup(algorithm.name), algorithm.space)
        both = sorted(set(algorithm.space) & set(algorithm.hyperparameters))
        if both:
            raise InputError(f"algorithms.{algorithm.name}: {both[0]} is both fixed and varied")
    if config.search is None:
        for algorithm in config.algorithms:
            config.settings(algorithm)
        return
    if config.num_settings is not None or config.sampler != "grid":
        raise InputError("search: takes the place of sampler and num_settings; leave them out")
    for algorithm in config.algorithms:
        if not algorithm.space:
            raise InputError(
                f"algorithms.{algorithm.name}: space: empty, there is nothing to search"
            )
    studies(config)
    rungs = config.search.rungs
    if rungs != sorted(set(rungs)):
        raise InputError(f"search.rungs: expected ascending shares, got {rungs}")
