"""What a study is, ``cojax.study/1``: from YAML or from Python.

One configuration for every kind of work. Its ``kind`` says what is made of it, and which defaults
lie beneath:

    run      algorithms beside reference policies, and a report
    train    one algorithm, its curves and its best policies
    sweep    many settings of algorithms, from a space or by a search
"""

from __future__ import annotations

from pathlib import Path

from pydantic import ValidationError

from cojax import errors
from cojax.agents.training import lookup
from cojax.agents.tuned import Profile
from cojax.errors import InputError
from cojax.families import FAMILIES
from cojax.io import yaml
from cojax.studies.branches import branches
from cojax.studies.schema import (
    Algorithm,
    Curve,
    Evaluation,
    Execution,
    Generated,
    Homotopy,
    Kind,
    Search,
    Study,
)
from cojax.studies.space import Parameter, check
from cojax.types import Content

FOLDER = Path(__file__).parent  # of the studies that are shipped
SCHEMA = "cojax.study/1"
BEFORE = {"cojax.experiment/1": "run", "cojax.train/1": "train", "cojax.sweep/1": "sweep"}
BENEATH: dict[str, Content] = {  # what the kinds do not have in common
    "run": {
        "common_streams": True,
        "evaluation": {"policies": ["oracle", "zero", "random"]},
    },
    "train": {"name": "train", "curve": {"points": 20}},
    "sweep": {
        "name": "sweep",
        "curve": {"points": 5},
        "evaluation": {"num_trials": 64, "root": 2},
    },
}


def shipped_studies(kind: Kind | None = None) -> list[str]:
    """Names of the studies in the package, of one kind or all."""
    found = yaml.names(FOLDER)
    return [n for n in found if kind is None or yaml.load(FOLDER / f"{n}.yaml")["kind"] == kind]


def load_study(
    path_or_name: str | Path,
    kind: Kind | None = None,
    *,
    scale: str | None = None,
    profile: Profile | None = None,
) -> Study:
    """Read a study: the path of a YAML file, or the name of a shipped one.

    Args:
        path_or_name: of the study.
        kind: what it must be, and is where the file does not say.
        scale: which of the file's ``scales`` to take: fields that replace those of the file.
            By default "small", where it has scales.
        profile: replaces the file's.

    Raises InputError, one line with file, field and what was expected, for anything unusable.
    """
    path = yaml.find("study", path_or_name, FOLDER)
    content = _scaled(yaml.load(path), scale, path.name)
    if profile is not None:
        content["profile"] = profile
    return study(content, kind, path.name)


def study(content: Content, kind: Kind | None = None, where: str = "study") -> Study:
    """A study of the content of a file, called ``where`` in messages.

    ``kind`` is what it must be, and is where the content does not say; None for any, a run else.
    Raises InputError, one line with the field and what was expected.
    """
    content = _current(content)
    found = content.setdefault("kind", kind or "run")
    if kind is not None and found in BENEATH and found != kind:
        raise InputError(f"{where}: kind: expected {kind}, got {found}: use cojax {found}")
    for name, beneath in BENEATH.get(found, {}).items():
        given = content.get(name, {} if isinstance(beneath, dict) else beneath)
        both = isinstance(beneath, dict) and isinstance(given, dict)
        content[name] = {**beneath, **given} if both else given
    try:
        checked = Study.model_validate(content)
    except ValidationError as error:
        raise InputError(f"{where}: {errors.first_problem(error, _fields())}") from None
    try:
        _check(checked)
    except InputError as error:
        raise InputError(f"{where}: {error}") from None
    return checked


def _current(content: Content) -> Content:
    """The content of a file of a schema before this one as this one writes it."""
    content = dict(content)
    kind = BEFORE.get(str(content.get("schema")))
    if kind is None:
        return content
    content |= {"schema": SCHEMA, "kind": kind}
    if kind != "run":
        content.setdefault("profile", "tuned")
    if kind == "train" and "algorithm" in content:
        algorithm = content.pop("algorithm")
        if isinstance(algorithm, dict) and "settings" in content:
            algorithm = {**algorithm, "settings": content.pop("settings")}
        content["algorithms"] = [algorithm]
    if isinstance(content.get("tuned"), bool):
        content["profile"] = "tuned" if content.pop("tuned") else None
    return content


def _scaled(content: Content, scale: str | None, where: str) -> Content:
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


def _fields() -> list[str]:
    """Every field name of the schema, as written in files."""
    models = (
        Study,
        Algorithm,
        Generated,
        Homotopy,
        Curve,
        Evaluation,
        Search,
        Execution,
        Parameter,
    )
    return [f.alias or name for model in models for name, f in model.model_fields.items()]


def _no_modules(algorithm: Algorithm) -> None:
    """Refuse networks that are no names: they could not be written."""
    for given in (algorithm.hyperparameters, *algorithm.families.values(), *algorithm.settings):
        for name in ("actor", "critic"):
            if not isinstance(value := given.get(name), str | None):
                raise InputError(
                    f"algorithms.{algorithm.name}: {name}: a study is a file; expected a name in "
                    f"cojax.agents.NETWORKS, got a {type(value).__name__}"
                )


def _check(found: Study) -> None:
    """What no field can know alone."""
    if not found.fixtures and found.generate is None:
        raise InputError("fixtures: expected at least one, or generate")
    if found.initial_seeds and found.initial_states == "scheduled":
        raise InputError("initial_seeds: expected none where initial_states is 'scheduled'")
    if found.kind == "train" and len(found.algorithms) > 1:
        raise InputError(f"algorithms: expected one to train, got {len(found.algorithms)}")
    if found.kind == "sweep" and found.execution.learners:
        raise InputError("execution.learners: expected false in a sweep")
    if found.kind == "sweep" and found.evaluation.policies:
        raise InputError("evaluation.policies: expected none in a sweep")
    errors.distinct("algorithms", (algorithm.name for algorithm in found.algorithms))
    for algorithm in found.algorithms:
        for family in algorithm.families:
            errors.one_of("families", family, FAMILIES)
        _no_modules(algorithm)
        check(lookup(algorithm.name), algorithm.space)
        both = sorted(set(algorithm.space) & set(algorithm.hyperparameters))
        if both:
            raise InputError(f"algorithms.{algorithm.name}: {both[0]} is both fixed and varied")
        if algorithm.space and algorithm.settings:
            raise InputError(f"algorithms.{algorithm.name}: expected settings or a space")
    if found.search is None:
        for algorithm in found.algorithms:
            found.settings(algorithm)
        return
    if found.kind != "sweep":
        raise InputError("search: expected in a sweep alone")
    if found.num_settings is not None or found.sampler != "grid":
        raise InputError("search: takes the place of sampler and num_settings; leave them out")
    for algorithm in found.algorithms:
        if not algorithm.space:
            raise InputError(
                f"algorithms.{algorithm.name}: space: empty, there is nothing to search"
            )
    branches(found)
    rungs = found.search.rungs
    if rungs != sorted(set(rungs)):
        raise InputError(f"search.rungs: expected ascending shares, got {rungs}")
