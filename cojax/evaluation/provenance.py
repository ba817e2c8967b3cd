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

from cojax import errors, streams
from cojax.errors import InputError
from cojax.evaluation.aggregates import compare_pair, in_units_of, judged
from cojax.evaluation.result import WORST, Evaluation
from cojax.io import files, json_text, tables
from cojax.io.provenance import machine
from cojax.types import Content, Float, Json, Row

if TYPE_CHECKING:
    import pandas as pd

SCHEMA = "cojax.results/2"
BEFORE = "cojax.results/1"  # read too: it calls a setting hyperparameters
LABELS = ("fixture", "policy", "setting", "seed", "trial")
METRIC = "relative_suboptimality"
_DECIDING = ("stream_fingerprint", "prng", "root", "precision")


def provenance(kind: str, evaluations: Sequence[Evaluation], configuration: Json = None) -> Content:
    """All that decides, or may explain, the figures of evaluations on one root; JSON data."""
    fixtures = {}
    for e in evaluations:
        none = [None] * len(e.fixtures)
        each = zip(e.hashes or none, map(int, e.horizons), e.floors or none, strict=True)
        fixtures |= dict(zip(e.fixtures, itertools.starmap(about_fixture, each), strict=True))
    first = evaluations[0]
    trials = {"root": first.root, "num_trials": first.num_trials, "precision": first.dtype}
    return described(kind, fixtures, trials, configuration)


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
        "stream_fingerprint": streams.fingerprint(),
        "prng": streams.IMPLEMENTATION,
        **machine(),
        "configuration": configuration,
    }


def write(folder: Path, about: Content, rows: list[Row], trials: pd.DataFrame) -> None:
    """Write what every results folder has into one that is being made."""
    tables.write(trials, folder / "trials.parquet")
    files.write_whole(folder / "rows.json", json_text.rows_text(rows) + "\n")
    files.write_whole(folder / "provenance.json", json_text.configuration_text(about))


def save(evaluation: Evaluation, folder: str | Path, configuration: Json = None) -> None:
    """Write the results folder of an evaluation; it appears whole or not at all.

    Raises ValueError, one line, where the folder exists.
    """
    about = provenance("evaluate", [evaluation], configuration)
    with files.whole_folder(folder) as new:
        write(new, about, evaluation.rows(), evaluation.frame())


# --- reading and comparing -----------------------------------------------------------------------


class Results(NamedTuple):
    """A results folder."""

    folder: Path
    provenance: Content
    trials: pd.DataFrame

    def scores(self, fixture: str, policy: str, metric: str) -> Float[np.ndarray, "S N"]:
        """Scores of one policy on one fixture, less is better."""
        frame = self.trials
        chosen = (frame["fixture"] == fixture) & (frame["policy"] == policy)
        num_trials = len(np.unique(np.asarray(frame.loc[chosen, "trial"])))
        sign = 1.0 if WORST[metric] > 0 else -1.0
        return sign * np.asarray(frame.loc[chosen, metric], np.float64).reshape(-1, num_trials)

    def policies(self, fixture: str) -> list[str]:
        """Policies evaluated on a fixture, in order."""
        return list(dict.fromkeys(self.trials.loc[self.trials["fixture"] == fixture, "policy"]))


def load(folder: str | Path) -> Results:
    """Read a results folder.

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
    for name in ("fixtures", "num_trials", *_DECIDING):
        if name not in content:
            raise InputError(f"{file}: {name} is missing")
    about = content["fixtures"]
    if not isinstance(about, dict) or not all(
        isinstance(one, dict) and {"sha256", "horizon"} <= set(one) for one in about.values()
    ):
        raise InputError(f"{file}: fixtures: expected a sha256 and a horizon of each")
    trials = tables.read(folder / "trials.parquet").rename(columns={"hyperparameters": "setting"})
    _check_trials(folder / "trials.parquet", trials, content)
    if "setting" in trials:
        full = [named(*pair) for pair in zip(trials["policy"], trials["setting"], strict=True)]
        trials["policy"] = trials["policy"].where(trials["setting"].isna(), full)
    return Results(folder, content, trials)


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


def obstacles(a: Results, b: Results) -> list[str]:
    """Why two folders cannot be compared, one line each; empty where they can."""
    found = [
        f"{name.replace('_', ' ')}: {a.provenance[name]} and {b.provenance[name]}; "
        "the trials are not the same"
        for name in _DECIDING
        if a.provenance[name] != b.provenance[name]
    ]
    common = [f for f in a.provenance["fixtures"] if f in b.provenance["fixtures"]]
    if not common:
        found.append("fixtures: none in common")
    for fixture in common:
        ours, theirs = (r.provenance["fixtures"][fixture] for r in (a, b))
        if ours["sha256"] != theirs["sha256"]:
            found.append(f"fixture {fixture}: its content differs (sha256)")
        if ours["horizon"] != theirs["horizon"]:
            found.append(f"fixture {fixture}: {ours['horizon']} and {theirs['horizon']} steps")
    return found


def compare(
    a: Results, b: Results, metric: str = "suboptimality", policies: Sequence[str] = ()
) -> list[Row]:
    """Paired differences a - b by fixture and policy, on the trials they share, Holm-corrected.

    Policies of one name are compared; where there are none, every policy of ``a`` with every
    one of ``b``. ``policies`` restricts to some names. Raises ValueError where the folders
    cannot be compared, or no policy is left.
    """
    errors.one_of("metric", metric, WORST)
    for side in (a, b):
        if metric not in side.trials:
            raise InputError(
                f"{side.folder}: its trials have no {metric}; compare {METRIC}: --metric {METRIC}"
            )
    reasons = obstacles(a, b)
    if reasons:
        raise InputError(f"{a.folder} and {b.folder}: {'; '.join(reasons)}")
    rows = []
    for fixture, about in a.provenance["fixtures"].items():
        if fixture not in b.provenance["fixtures"]:
            continue
        ours, theirs = a.policies(fixture), b.policies(fixture)
        pairs = [(p, p) for p in ours if p in theirs] or [(p, q) for p in ours for q in theirs]
        for p, q in pairs:
            if policies and p not in policies and q not in policies:
                continue
            x, y = a.scores(fixture, p, metric), b.scores(fixture, q, metric)
            shared = min(x.shape[1], y.shape[1])
            row: Row = {"fixture": fixture, "first": p, "second": q, "metric": metric}
            row["num_trials"] = shared
            row |= compare_pair(x[:, :shared], y[:, :shared])
            values = a.trials.loc[a.trials["fixture"] == fixture].get("optimal_value", 0.0)
            row["floor"] = in_units_of(metric, about.get("resolution_floor"), values)
            rows.append(row)
    if not rows:
        raise InputError("policies: none left to compare")
    return judged(rows)
