"""Results folders, ``cojax.results/2``: what was run, on what, and whether two can be compared.

Whatever wrote a folder (``kind``: run, train, sweep or evaluate), it holds

    provenance.json    what decides the figures, and may explain them
    rows.json          a row for each fixture, policy and setting
    trials.parquet     a line for each fixture, policy, setting, seed and trial
    curves.parquet     a line for each moment of each learner's training, where something learned

and a column of one name means one thing: ``fixture``, ``policy`` or ``algorithm``, ``setting``,
``seed``, ``timesteps``, ``relative_suboptimality`` and the other metrics.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from cojax import streams
from cojax.errors import InputError
from cojax.evaluation.metrics import METRIC, WORST, worst
from cojax.io import files, json_text, tables
from cojax.io.provenance import machine
from cojax.types import Content, Float, Json, Row

if TYPE_CHECKING:
    import pandas as pd

    from cojax.evaluation.result import Evaluation

SCHEMA = "cojax.results/2"
BEFORE = "cojax.results/1"  # read too: it calls a setting hyperparameters
LABELS = ("fixture", "policy", "setting", "seed", "trial")
DECIDING = ("stream_fingerprint", "prng", "root", "precision")


def provenance(kind: str, evaluations: Sequence[Evaluation], configuration: Json = None) -> Content:
    """All that decides, or may explain, the figures of evaluations on one root; JSON data."""
    fixtures = {}
    for e in evaluations:
        fixtures |= about_fixtures(e)
    first = evaluations[0]
    trials = {"root": first.root, "num_trials": first.num_trials, "precision": first.dtype}
    return described(kind, fixtures, trials, configuration)


def about_fixtures(evaluation: Evaluation) -> Content:
    """What provenance says of the fixtures of an evaluation, by name; JSON data."""
    e, none = evaluation, [None] * len(evaluation.fixtures)
    each = zip(e.hashes or none, map(int, e.horizons), e.floors or none, strict=True)
    return dict(zip(e.fixtures, itertools.starmap(about_fixture, each), strict=True))


def about_fixture(sha256: str | None, horizon: int, floor: float | None) -> Content:
    """What provenance says of one fixture; JSON data."""
    return {"sha256": sha256, "horizon": horizon, "resolution_floor": floor}


def described(kind: str, fixtures: Content, trials: Content, configuration: Json) -> Content:
    """Provenance: a ``kind``, about each of its ``fixtures``, the root, number and precision of
    its ``trials``, what was configured, random streams, machine and versions; JSON data.
    """
    return {
        "schema": SCHEMA,
        "kind": kind,
        "fixtures": fixtures,
        **trials,
        **streams_now(),
        **machine(),
        "configuration": configuration,
    }


def write(folder: Path, about: Content, rows: list[Row], trials: pd.DataFrame) -> None:
    """Write what every results folder has into one that is being made."""
    tables.write(trials, folder / "trials.parquet")
    files.write_whole(folder / "rows.json", json_text.rows_text(rows) + "\n")
    files.write_whole(folder / "provenance.json", json_text.configuration_text(about))


def save(
    evaluation: Evaluation,
    folder: str | Path,
    configuration: Json = None,
    *,
    rows: list[Row] | None = None,
    **more: Json,
) -> None:
    """What :meth:`cojax.evaluation.Evaluation.save` does; raises as it does. ``rows`` in the place
    of its own, where more is known of them, and ``more`` words of provenance.
    """
    about = provenance("evaluate", [evaluation], configuration) | more
    with files.whole_folder(folder) as new:
        write(new, about, evaluation.rows() if rows is None else rows, evaluation.frame())


# --- reading -------------------------------------------------------------------------------------


class Results(NamedTuple):
    """A results folder, or an evaluation as one would hold it."""

    folder: Path  # or what it is called instead
    provenance: Content
    trials: pd.DataFrame

    def scores(self, fixture: str, policy: str, metric: str) -> Float[np.ndarray, "S N"]:
        """Scores of one policy on one fixture, less is better."""
        frame = self.trials
        chosen = (frame["fixture"] == fixture) & (frame["policy"] == policy)
        num_trials = len(np.unique(np.asarray(frame.loc[chosen, "trial"])))
        sign = 1.0 if worst(metric) > 0 else -1.0
        return sign * np.asarray(frame.loc[chosen, metric], np.float64).reshape(-1, num_trials)

    def policies(self, fixture: str) -> list[str]:
        """Policies evaluated on a fixture, in order."""
        return list(dict.fromkeys(self.trials.loc[self.trials["fixture"] == fixture, "policy"]))


def of_evaluation(evaluation: Evaluation, title: str) -> Results:
    """An evaluation that is in memory, called by a ``title``: what a comparison needs of it."""
    e = evaluation
    about = {"root": e.root, "precision": e.dtype, "num_trials": e.num_trials}
    about |= {"fixtures": about_fixtures(e), **streams_now()}
    return Results(Path(title), about, _full_names(e.frame()))


def streams_now() -> Content:
    """What says which streams this version of cojax draws; JSON data."""
    return {"stream_fingerprint": streams.fingerprint(), "prng": streams.IMPLEMENTATION}


def load(folder: str | Path, *, full_names: bool = True) -> Results:
    """Read a results folder; with ``full_names`` a policy's name states its setting.

    Raises ValueError, one line, for a folder that is not one, of another version, or damaged.
    """
    folder = Path(folder)
    str(folder).encode()  # else Parquet takes the file for a damaged one
    if not folder.is_dir():
        raise InputError(f"{folder}: no such results folder")
    for name in ("provenance.json", "trials.parquet"):
        if not (folder / name).is_file():
            raise InputError(f"{folder}: expected a results folder, {name} is missing")
    file = folder / "provenance.json"
    content = json_text.load(file, dict)
    _check_schema(file, content)
    for name in ("fixtures", "num_trials", *DECIDING):
        if name not in content:
            raise InputError(f"{file}: {name} is missing")
    about = content["fixtures"]
    if not isinstance(about, dict) or not all(
        isinstance(one, dict) and {"sha256", "horizon"} <= set(one) for one in about.values()
    ):
        raise InputError(f"{file}: fixtures: expected a sha256 and a horizon of each")
    trials = tables.read(folder / "trials.parquet").rename(columns={"hyperparameters": "setting"})
    _check_trials(folder / "trials.parquet", trials, content)
    return Results(folder, content, _full_names(trials) if full_names else trials)


def _full_names(trials: pd.DataFrame) -> pd.DataFrame:
    """Trials whose policies are called as :func:`named` calls them."""
    if "setting" in trials:
        full = [named(*pair) for pair in zip(trials["policy"], trials["setting"], strict=True)]
        trials["policy"] = trials["policy"].where(trials["setting"].isna(), full)
    return trials


def named(policy: str, setting: object) -> str:
    """How tables call a policy of one setting; the default of a search has -1."""
    return f"{policy} ({'defaults' if setting == -1 else setting})"


def _check_schema(file: Path, content: Content) -> None:
    """Refuse a folder of another schema, in one line that says what to do."""
    schema = str(content.get("schema"))
    if schema in (SCHEMA, BEFORE):
        return
    if schema in ("cojax.training/1", "cojax.sweep-results/1"):
        raise InputError(
            f"{file}: schema: expected {SCHEMA}, got {schema}, which has no trials; measure its "
            "policies: cojax evaluate --policy POLICIES.npz --out NEW"
        )
    name, _, number = schema.partition("/")
    newer = name == SCHEMA.partition("/")[0] and number.isdigit() and int(number) > 2
    raise InputError(
        f"{file}: schema: expected {SCHEMA}, got {schema}; it was written by "
        + ("a newer version: update cojax" if newer else "another version")
    )


def _check_trials(file: Path, trials: pd.DataFrame, content: Content) -> None:
    """Refuse trials that are not numbers, not those of the provenance, or not all there."""
    import pandas as pd

    needed = {"fixture", "policy", "trial", METRIC}
    if content.get("kind") != "sweep":  # which measures the gap alone
        needed |= {"optimal_value", *WORST}
    if missing := needed - set(trials.columns):
        raise InputError(f"{file}: column {min(missing)} is missing")
    for name in ("trial", "optimal_value", *WORST):
        if name in trials and trials[name].dtype.kind not in "iuf":
            raise InputError(f"{file}: column {name}: expected numbers, got {trials[name].dtype}")
    unknown = set(trials["fixture"]) ^ set(content["fixtures"])
    if unknown:
        raise InputError(f"{file}: fixture {min(unknown, key=str)}: not the provenance's fixtures")
    who = [n for n in LABELS[:-1] if n in trials]
    counts = pd.DataFrame(trials.groupby(who, dropna=False)["trial"].agg(["size", "nunique"]))
    short = counts[(counts != content["num_trials"]).any(axis=1)]
    if len(short):
        raise InputError(
            f"{file}: expected {content['num_trials']} trials of every policy, "
            f"got {int(short.iloc[0]['nunique'])} of {short.index[0]}"
        )
