"""Differences of two policies by sums of advantages, and by their costs: the same number twice.

    J(π) - J(π') = E Σ γᵏ (A*_π - A*_π') = E Σ γᵏ (c_π - c_π') + γᵀ (V*_T,π - V*_T,π')

on the same starts and noise. Of costs with a budget c is c + λ d, and the difference that of the
Lagrangian. Where risk has a price both sides are differences of (1/θ) log mean exp(θ S), of trials
of the tilted system and of its own; with weights w of one and v of the other policy, the trial i
moves such a difference by

    ψ_i = (w_i/mean w - v_i/mean v)/θ

of which the standard deviation is taken (the delta method).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from cojax import errors
from cojax.evaluation.entropic import entropic
from cojax.evaluation.result import Evaluation
from cojax.evaluation.risk import RiskEvaluation
from cojax.types import Float, Row

Trials = Float[np.ndarray, " N"]


def policy_pairs(
    evaluation: Evaluation | RiskEvaluation, pairs: Sequence[tuple[str, str]]
) -> list[Row]:
    """Both estimates of J(first) - J(second), a row for each system and pair.

    ``advantages`` and ``costs`` are the two, with their standard errors ``advantages_error`` and
    ``costs_error``, ``variance_ratio`` the square of the first error over that of the second,
    ``difference`` what they differ by and ``difference_error`` its standard error, paired;
    ``agree``: it is within 1.96 of those. None where an estimate is refused, or a trial failed.

    Args:
        evaluation: of policies with one seed and setting each.
        pairs: names of two policies each.

    Raises InputError for an unknown name.
    """
    if isinstance(evaluation, RiskEvaluation):
        e, others, thetas = evaluation.evaluation, evaluation.plain, evaluation.thetas
        others = e if others is None else others
    else:
        e, others, thetas = evaluation, evaluation, (0.0,) * len(evaluation.fixtures)
    names = [member.policy for member in e.members]
    rows = []
    for f, fixture in enumerate(e.fixtures):
        for pair in pairs:
            at = [names.index(errors.one_of("policy", name, names)) for name in pair]
            found = [
                _side(trials[metric][f, at], thetas[f])
                for trials, metric in (
                    (e.trials, "suboptimality"),
                    (others.trials, "tail_corrected"),
                )
            ]
            row: Row = {"fixture": fixture, "first": pair[0], "second": pair[1]}
            rows.append(row | _held(*found))
    return rows


def _side(values: Float[np.ndarray, "2 N"], theta: float) -> tuple[float, Trials] | None:
    """A difference of two policies, and how each trial moves it; None where one is refused."""
    found = [entropic(own, theta) for own in values]
    if any(one.reason for one in found):
        return None
    mean = [one.mean for one in found]
    moves = values
    if theta != 0.0:
        weights = np.exp(theta * (values - values.max(axis=1, keepdims=True)))
        moves = weights / (theta * weights.mean(axis=1, keepdims=True))
    return float(mean[0] - mean[1]), moves[0] - moves[1]  # pyright: ignore


def _held(first: tuple[float, Trials] | None, second: tuple[float, Trials] | None) -> Row:
    """Cells of a row."""
    row: Row = {}
    for name, side in (("advantages", first), ("costs", second)):
        row[name] = None if side is None else side[0]
        row[f"{name}_error"] = None if side is None else _error(side[1])
    if first is None or second is None:
        return row | dict.fromkeys(("variance_ratio", "difference", "difference_error", "agree"))
    difference, error = first[0] - second[0], _error(first[1] - second[1])
    ratio = (row["advantages_error"] / max(row["costs_error"], 1e-300)) ** 2
    row |= {"variance_ratio": ratio, "difference": difference, "difference_error": error}
    return row | {"agree": bool(abs(difference) <= 1.96 * error)}


def _error(values: Trials) -> float:
    """Standard error of a mean."""
    return float(values.std(ddof=1) / np.sqrt(values.size))
