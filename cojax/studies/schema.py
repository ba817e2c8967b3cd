"""The fields of a study, ``cojax.study/1``: what each means, its range and its default."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from cojax.agents.training import current_names
from cojax.agents.tuned import Profile, hyperparameters, origin
from cojax.io.described import About, described
from cojax.studies.space import Parameter, Setting, draw
from cojax.types import Content, Json

Kind = Literal["run", "train", "sweep"]
Count = Annotated[int, Field(ge=1, strict=True)]
Seed = Annotated[int, Field(ge=0, lt=2**32, strict=True)]  # more would be another seed
Share = Annotated[float, Field(gt=0, lt=1)]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, ser_json_inf_nan="constants")


class Algorithm(_Strict):
    """A learner and what it learns with; in a file, a plain name where nothing else is said.

    Attributes:
        name: in ``cojax.agents.ALGORITHMS``.
        hyperparameters: those that differ from its defaults, on all fixtures.
        families: the same on the fixtures of one family, by its name.
        settings: mappings that take the place of both, one for each setting.
        space: hyperparameters that are varied; settings are drawn from it.
        total_timesteps: a budget of its own, where it is not that of all.
    """

    name: str
    hyperparameters: Content = {}
    families: dict[str, Content] = {}
    settings: list[Content] = []
    space: dict[str, Parameter] = {}
    total_timesteps: Count | None = None

    @model_validator(mode="before")
    @classmethod
    def _plain_name(cls, content: Json) -> Json:
        return {"name": content} if isinstance(content, str) else content

    @model_validator(mode="after")
    def _current_names(self) -> Algorithm:
        def current(given: Content) -> Content:
            return current_names(self.name, given)

        for name, value in {
            "hyperparameters": current(self.hyperparameters),
            "families": {family: current(given) for family, given in self.families.items()},
            "settings": [current(setting) for setting in self.settings],
            "space": {
                name: parameter.model_copy(update={"when": current(parameter.when)})
                for name, parameter in current(self.space).items()
            },
        }.items():
            object.__setattr__(self, name, value)
        return self


class Generated(_Strict):
    """Fixtures made for the study: ``num`` of a family, from ``ranges`` as ``cojax generate``."""

    family: str
    num: Count = 1
    seed: Seed = 0
    ranges: Content = {}


class Homotopy(_Strict):
    """A curriculum: ``knob`` moves from ``start`` to its own value, see ``cojax.curriculum``."""

    knob: str = "p"
    start: float
    until: Annotated[float, Field(gt=0, le=1)] = 0.5
    num_stages: Annotated[Count, Field(ge=2)] = 8


class Curve(_Strict):
    """The gap measured while training, at ``points`` moments, on streams of its own."""

    num_trials: Count = 16
    root: Seed = 1
    points: Count = 10


class Evaluation(_Strict):
    """The paired trials that every learner is judged by, and ``policies`` beside them."""

    policies: list[str] = []
    num_trials: Count = 256
    root: Seed = 0


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
        policies: whether the policies of a sweep are kept.
        learners: whether a run or a training keeps its learners as they ended, with critics and
            buffers, for :func:`cojax.studies.load_agent`.
    """

    chunk_members: Count | None = None
    width: Count | None = None
    devices: Count | None = None
    memory_gb: Annotated[float, Field(gt=0)] | None = None
    policies: bool = True
    learners: bool = False


def _about(study: Study) -> About:
    """What a study shows of itself."""
    systems = list(study.fixtures)
    if study.generate is not None:
        systems.append(f"{study.generate.num} generated {study.generate.family}")
    facts = {
        "algorithms": ", ".join(one.name for one in study.algorithms),
        "systems": ", ".join(systems[:4])
        + (f" and {len(systems) - 4} more" if systems[4:] else ""),
        "seeds": study.num_seeds,
        "steps": f"{study.total_timesteps:,}",
        "profile": study.profile or study.from_profile,
    }
    return f"Study {study.name!r}, a {study.kind}", facts


@described(_about)
class Study(_Strict):
    """Systems × algorithms × settings × seeds: every member trained for a budget, and measured.

    Seed k of every algorithm and setting meets the same random numbers.

    Attributes:
        kind: run, train or sweep.
        name: of the study.
        scale: the part of the file's ``scales`` that was taken.
        profile: tuned or published hyperparameters beneath the algorithms' own; None for neither.
        from_profile: the profile that hyperparameters were written out from, see :meth:`resolved`;
            it decides nothing more.
        fixtures: names of shipped ones, or files.
        generate: fixtures to be made.
        initial_states: whether they follow the fixture's law, a new one every episode
            ("scheduled"), or are one state ("fixed"): the law's draw by the fixture's seed, or by
            each of ``initial_seeds``.
        initial_seeds: of fixed states.
        common_streams: whether environment i of seed k meets the same initial states and noise
            whatever learns.
        curriculum: stages that all systems are learned through; None for none.
        algorithms: the learners.
        sampler: how settings are drawn from the space of an algorithm.
        num_settings: how many of them; None for a grid.
        search: Optuna chooses the settings instead.
        num_seeds: members of each setting on each system.
        seed: root of all random numbers of training.
        total_timesteps: environment steps of each member.
        evaluation: of every member in the end.
        curve: of every member on the way.
        execution: how the work is placed.
    """

    schema_: Literal["cojax.study/1"] = Field(alias="schema")
    kind: Kind
    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")]
    scale: str | None = None
    profile: Profile | None = None
    from_profile: Profile | None = None
    fixtures: list[str] = []
    generate: Generated | None = None
    initial_states: Literal["scheduled", "fixed"] = "scheduled"
    initial_seeds: list[Seed] = []
    common_streams: bool = False
    curriculum: Homotopy | None = None
    algorithms: Annotated[list[Algorithm], Field(min_length=1)]
    sampler: Literal["grid", "random", "sobol"] = "grid"
    num_settings: Count | None = None
    search: Search | None = None
    num_seeds: Count = 4
    seed: Seed = 0
    total_timesteps: Count = 300_000
    evaluation: Evaluation = Evaluation()
    curve: Curve = Curve()
    execution: Execution = Execution()

    def content(self) -> Content:
        """All that decides the results, JSON data: everything but ``execution``."""
        return self.model_dump(mode="json", by_alias=True, exclude={"execution"})

    def base(self, algorithm: Algorithm, family: str) -> Content:
        """The hyperparameters of an algorithm on fixtures of a family, beneath its settings."""
        return {
            **hyperparameters(self.profile, algorithm.name, family),
            **algorithm.hyperparameters,
            **algorithm.families.get(family, {}),
        }

    def origin(self, algorithm: Algorithm, family: str) -> str:
        """Where the hyperparameters of an algorithm on a family come from, in words."""
        profile = self.profile or self.from_profile
        beneath = hyperparameters(profile, algorithm.name, family)
        above = {**algorithm.hyperparameters, **algorithm.families.get(family, {})}
        given = [name for name, value in above.items() if beneath.get(name, beneath) != value]
        return origin(profile, algorithm.name, family, given)

    def settings(self, algorithm: Algorithm) -> list[Setting]:
        """The settings of an algorithm, in order; [{}] where nothing is varied."""
        if algorithm.settings:
            return list(algorithm.settings)
        return draw(algorithm.space, self.sampler, self.num_settings, self.seed)

    def budget(self, algorithm: Algorithm) -> int:
        """Environment steps of each member."""
        return algorithm.total_timesteps or self.total_timesteps

    def resolved(self, families: Iterable[str]) -> Study:
        """The same with everything that a profile decides on these ``families`` written out."""
        algorithms = [
            algorithm.model_copy(
                update={
                    "hyperparameters": {},
                    "families": {f: self.base(algorithm, f) for f in sorted(set(families))},
                }
            )
            for algorithm in self.algorithms
        ]
        return self.model_copy(
            update={"algorithms": algorithms, "profile": None, "from_profile": self.profile}
        )
