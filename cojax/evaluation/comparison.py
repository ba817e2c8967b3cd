"""Two results, or two policies of one, held against each other on the trials they share."""

from __future__ import annotations

import dataclasses
import itertools
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from cojax import errors
from cojax.errors import InputError
from cojax.evaluation.aggregates import compare_pair, in_units_of, judged
from cojax.evaluation.metrics import METRIC, METRICS, flat, metrics_of
from cojax.evaluation.provenance import DECIDING, Results, load, of_evaluation
from cojax.evaluation.result import Evaluation
from cojax.types import Row

if TYPE_CHECKING:
    import pandas as pd

Pairs = list[tuple[str, str]]


@dataclasses.dataclass(frozen=True, repr=False)
class Comparison:
    """Paired differences first - second, a row for each fixture and pair of policies.

    Attributes:
        first, second: what the two sides are called.
        metric: what is compared, in its units.
        lines: the rows, as :meth:`rows` gives them.
    """

    first: str
    second: str
    metric: str
    lines: tuple[Row, ...]

    def rows(self) -> list[Row]:
        """A dict for each fixture and pair.

        ``first`` and ``second`` (policies), ``difference`` (mean, low, high: 95%), ``p``,
        ``p_corrected`` (Holm's, over the table), ``verdict`` ("first better", "second better",
        "no difference" or "≤ floor"), ``failures`` and ``num_seeds`` of the two, the resolution
        ``floor``, and what pairing was worth.
        """
        return [dict(line) for line in self.lines]

    def to_frame(self) -> pd.DataFrame:
        """The rows with a number a column: ``difference``, ``difference_low``, …"""
        import pandas as pd

        return pd.DataFrame([flat(line) for line in self.lines])

    @property
    def title(self) -> str:
        """What is compared, in words."""
        sides = f"{self.first} - {self.second}"
        return f"policies of {self.first}" if self.first == self.second else sides

    def __repr__(self) -> str:
        fixtures = len({line["fixture"] for line in self.lines})
        found = Counter(line["verdict"] for line in self.lines)
        words = {"≤ floor": "within the resolution floor", "no difference": "not told apart"}
        numbers = ", ".join(f"{count} {words.get(v, v)}" for v, count in found.items())
        trials = min(line["num_trials"] for line in self.lines)
        return (
            f"Comparison({self.title}, {self.metric}, {trials} paired trials)\n"
            f"  differences on {fixtures} fixture{'s' * (fixtures > 1)}: {numbers}\n"
            "  .rows(), .to_frame()"
        )


def compare(
    a: Evaluation | str | Path,
    b: Evaluation | str | Path | None = None,
    metric: str = METRIC,
    *,
    policies: str | Sequence[str] = (),
) -> Comparison:
    """Paired differences a - b by fixture and policy, on the trials they share, Holm-corrected.

    Args:
        a, b: what :func:`cojax.evaluate` gave, or results folders; without b, policies of a are
            compared with each other.
        metric: one of ``cojax.evaluation.METRICS``, in its units.
        policies: names to compare, or "ONE=OTHER" for two of different names, ONE of a and OTHER
            of b. By default those of one name; where there are none, every policy of a with
            every one of b. A name that b lacks is compared with those named that a lacks, or
            with all of b's.

    Raises ValueError, one line with all reasons, where streams, fixtures, horizons or precision
    differ, for an unknown metric or policy, and where no pair is left.
    """
    first = _results(a, "the first evaluation")
    errors.one_of("metric", metric, [*METRICS, *metrics_of(first.trials.columns)])
    second = first if b is None else _results(b, "the second evaluation")
    for side in (first, second):
        if metric not in side.trials:
            raise InputError(
                f"{side.folder}: its trials have no {metric}; compare {METRIC}: --metric {METRIC}"
            )
    if reasons := obstacles(first, second):
        raise InputError(f"{first.folder} and {second.folder}: {'; '.join(reasons)}")
    chosen = [policies] if isinstance(policies, str) else list(policies)
    lines = []
    for fixture, about in first.provenance["fixtures"].items():
        if fixture not in second.provenance["fixtures"]:
            continue
        ours, theirs = first.policies(fixture), second.policies(fixture)
        for p, q in _pairs(ours, None if b is None else theirs, chosen):
            x, y = first.scores(fixture, p, metric), second.scores(fixture, q, metric)
            shared = min(x.shape[1], y.shape[1])
            row: Row = {"fixture": fixture, "first": p, "second": q, "metric": metric}
            row["num_trials"] = shared
            row |= compare_pair(x[:, :shared], y[:, :shared])
            values = first.trials.loc[first.trials["fixture"] == fixture].get("optimal_value", 0.0)
            row["floor"] = in_units_of(metric, about.get("resolution_floor"), values)
            lines.append(row)
    if not lines:
        raise InputError("policies: none left to compare")
    return Comparison(str(first.folder), str(second.folder), metric, tuple(judged(lines)))


def _results(value: Evaluation | str | Path, title: str) -> Results:
    found = of_evaluation(value, title) if isinstance(value, Evaluation) else load(value)
    if found.provenance.get("kernel") == "tilted":
        raise InputError(
            f"{found.folder}: its trials are of the tilted system, where means are no gaps; see "
            "risk_gap in its rows.json"
        )
    return found


def _pairs(ours: list[str], theirs: list[str] | None, chosen: list[str]) -> Pairs:
    """Which policies are compared; ``theirs`` is None where both are of one result."""
    pairs: Pairs = []
    names = []
    others = ours if theirs is None else theirs
    for word in chosen:
        one, equals, other = word.partition("=")
        if word in ours or word in others or not equals:
            names.append(errors.one_of("policy", word, {*ours, *others}))
        else:
            pairs.append(
                (errors.one_of("policy", one, ours), errors.one_of("policy", other, others))
            )
    if chosen and not names:
        return pairs
    if theirs is None:
        found = names or ours
        if len(found) == 1 < len(ours):
            return pairs + [(found[0], q) for q in ours if q != found[0]]
        return pairs + list(itertools.combinations(found, 2))
    shared = [(p, p) for p in ours if p in theirs]
    if not names:
        return shared or [(p, q) for p in ours for q in theirs]
    left = [p for p in ours if p in names and p not in theirs]
    right = [q for q in theirs if q in names and q not in ours]
    pairs += [pair for pair in shared if pair[0] in names]
    if left or right:
        pairs += [(p, q) for p in left or ours for q in right or theirs]
    return pairs


def obstacles(a: Results, b: Results) -> list[str]:
    """Why two results cannot be compared, one line each; empty where they can."""
    found = [
        f"{name.replace('_', ' ')}: {a.provenance[name]} and {b.provenance[name]}; "
        "the trials are not the same"
        for name in DECIDING
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
