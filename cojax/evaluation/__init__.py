"""Evaluation: exact gaps on paired streams, with honest intervals."""

from cojax.evaluation.evaluator import evaluate
from cojax.evaluation.references import (
    Reference,
    detuned_oracle,
    dithered_oracle,
    lqr_gain,
    parse_policy,
)
from cojax.evaluation.result import METRICS, Evaluation, Member

__all__ = [
    "METRICS",
    "Evaluation",
    "Member",
    "Reference",
    "detuned_oracle",
    "dithered_oracle",
    "evaluate",
    "lqr_gain",
    "parse_policy",
]
