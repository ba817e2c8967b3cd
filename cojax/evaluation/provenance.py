"""Results folders: what was run, on what, and whether two of them can be compared.

A folder holds ``trials.parquet`` (one line a trial), ``rows.json`` and ``provenance.json``.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from cojax import errors, streams
from cojax.errors import InputError
from cojax.evaluation.aggregates import compare_pair, holm, verdict
from cojax.evaluation.result import WORST, Evaluation
from cojax.io import files, json_text, tables
from cojax.io.provenance import machine

if TYPE_CHECKING:
    import pandas as pd

SCHEMA = "cojax.results/1"
_DECIDING = ("stream_fingerprint", "prng", "root", "precision")


def provenance(
    evaluations: Evaluation | Sequence[Evaluation], configuration: Any = None
) -> dict[str, Any]:
    """All that decides, or may explain, the figures of evaluations on one root; JSON data."""
    if isinstance(evaluations, Evaluation):
        evaluations = [evaluations]
    fixtures = {
        name: {
            "sha256": e.hashes[f] if e.hashes else None,
            "horizon": int(e.horizons[f]),
            "resolution_floor": e.floors[f] if e.floors else None,
        }
        for e in evaluations
        for f, name in enumerate(e.fixtures)
    }
    return {
        "schema": SCHEMA,
        "fixtures": fixtures,
        "root": evaluations[0].root,
        "num_trials": evaluations[0].num_trials,
        "precision": evaluations[0].dtype,
        **surroundings(),
        "configuration": configuration,
    }


def surroundings() -> dict[str, Any]:
    """Random streams, machine and versions: what any result may depend on; JSON data."""
    return {
        "stream_fingerprint": streams.fingerprint(),
        "prng": streams.IMPLEMENTATION,
        **machine(),
    }


def write_provenance(folder: Path, evaluations: Any, configuration: Any = None) -> None:
    """Write ``provenance.json`` into a results folder that is being made."""
    content = provenance(evaluations, configuration)
    (folder / "provenance.json").write_text(json_text.configuration_text(content), "utf-8")


def save(evaluation: Evaluation, folder: str | Path, configuration: Any = None) -> None:
    """Write a results folder; it appears whole or not at all.

    Raises ValueError, one line, where the folder exists.
    """
    with files.whole_folder(folder) as temporary:
        tables.write(evaluation.frame(), temporary / "trials.parquet")
        (temporary / "rows.json").write_text(json_text.rows_text(evaluation.rows()) + "\n", "utf-8")
        write_provenance(temporary, evaluation, configuration)


# --- reading and comparing -----------------------------------------------------------------------


class Results(NamedTuple):
    """A results folder."""

    folder: Path
    provenance: dict[str, Any]
    trials: pd.DataFrame

    def scores(self, fixture: str, policy: str, metric: str) -> np.ndarray:
        """Scores of one policy on one fixture, (seeds, trials), less is better."""
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
    content = json_text.load(folder / "provenance.json", dict)
    schema = content.get("schema")
    if schema != SCHEMA:
        raise InputError(
            f"{folder / 'provenance.json'}: schema: expected {SCHEMA}, got {schema}; "
            "it was written by another version"
        )
    missing = [name for name in ("fixtures", "num_trials", *_DECIDING) if name not in content]
    if missing:
        raise InputError(f"{folder / 'provenance.json'}: {missing[0]} is missing")
    about = content["fixtures"]
    if not isinstance(about, dict) or not all(
        isinstance(one, dict) and {"sha256", "horizon"} <= set(one) for one in about.values()
    ):
        raise InputError(
            f"{folder / 'provenance.json'}: fixtures: expected a sha256 and a horizon of each"
        )
    trials = tables.read(folder / "trials.parquet")
    needed = {"fixture", "policy", "trial", "optimal_value", *WORST}
    if not needed <= set(trials.columns):
        raise InputError(
            f"{folder / 'trials.parquet'}: column {min(needed - set(trials.columns))} is missing"
        )
    _check_trials(folder / "trials.parquet", trials, content)
    if "hyperparameters" in trials:
        setting = trials["hyperparameters"]
        named = trials["policy"] + " (" + setting.astype(str) + ")"
        trials["policy"] = trials["policy"].where(setting.isna(), named)
    return Results(folder, content, trials)


def _check_trials(file: Path, trials: pd.DataFrame, content: dict[str, Any]) -> None:
    """Refuse trials that are not numbers, not those of the provenance, or not all there."""
    import pandas as pd

    for name in ("trial", "optimal_value", *WORST):
        if trials[name].dtype.kind not in "iuf":
            raise InputError(f"{file}: column {name}: expected numbers, got {trials[name].dtype}")
    unknown = set(trials["fixture"]) ^ set(content["fixtures"])
    if unknown:
        raise InputError(f"{file}: fixture {min(unknown, key=str)}: not the provenance's fixtures")
    who = [n for n in ("fixture", "policy", "hyperparameters", "seed") if n in trials]
    counts = pd.DataFrame(trials.groupby(who, dropna=False)["trial"].agg(["size", "nunique"]))
    short = counts[(counts != content["num_trials"]).any(axis=1)]
    if len(short):
        raise InputError(
            f"{file}: expected {content['num_trials']} trials of every policy, "
            f"got {int(short.iloc[0]['nunique'])} of {short.index[0]}"
        )


def obstacles(a: Results, b: Results) -> list[str]:
    """Why two folders cannot be compared, one line each; empty where they can."""
    found = []
    for name in _DECIDING:
        if a.provenance[name] != b.provenance[name]:
            found.append(
                f"{name.replace('_', ' ')}: {a.provenance[name]} and {b.provenance[name]}; "
                "the trials are not the same"
            )
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
) -> list[dict[str, Any]]:
    """Paired differences a - b by fixture and policy, on the trials they share, Holm-corrected.

    Policies of one name are compared; where there are none, every policy of ``a`` with every
    one of ``b``. ``policies`` restricts to some names. Raises ValueError where the folders
    cannot be compared, or no policy is left.
    """
    errors.one_of("metric", metric, WORST)
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
            row: dict[str, Any] = {"fixture": fixture, "first": p, "second": q, "metric": metric}
            row["num_trials"] = shared
            row.update(compare_pair(x[:, :shared], y[:, :shared]))
            row["floor"] = _floor(a, fixture, about, metric)
            rows.append(row)
    if not rows:
        raise InputError("policies: none left to compare")
    for row, p in zip(rows, holm([row["p"] for row in rows]), strict=True):
        row["p_corrected"] = p
        row["verdict"] = verdict(row)
    return rows


def _floor(a: Results, fixture: str, about: dict[str, Any], metric: str) -> float:
    """The resolution floor in the units of a metric."""
    floor = about.get("resolution_floor") or 0.0
    if metric.startswith("relative") or metric == "paper_optgap":
        return floor
    values = a.trials.loc[a.trials["fixture"] == fixture, "optimal_value"]
    return floor * float(values.mean())
