"""Evaluation: exact gaps on paired streams, with honest intervals."""

from cojax.evaluation.aggregates import (
    aggregate,
    compare_pair,
    floors,
    pairwise,
    performance_profile,
    probability_of_improvement,
    scores,
)
from cojax.evaluation.control_variates import estimator_efficiency
from cojax.evaluation.diagnosis import Diagnosis, diagnose
from cojax.evaluation.evaluator import evaluate
from cojax.evaluation.host import HostPolicy, host_policy
from cojax.evaluation.intervals import tolerance_interval
from cojax.evaluation.linearised import lqr_gain
from cojax.evaluation.references import (
    ReferencePolicy,
    detuned_oracle,
    dithered_oracle,
    parse_policy,
    receding_horizon,
)
from cojax.evaluation.result import METRICS, Evaluation, Member
from cojax.evaluation.targets import average_runtime, ecdf, steps_to_targets

__all__ = [
    "METRICS",
    "Diagnosis",
    "Evaluation",
    "HostPolicy",
    "Member",
    "ReferencePolicy",
    "aggregate",
    "average_runtime",
    "compare_pair",
    "detuned_oracle",
    "diagnose",
    "dithered_oracle",
    "ecdf",
    "estimator_efficiency",
    "evaluate",
    "floors",
    "host_policy",
    "lqr_gain",
    "pairwise",
    "parse_policy",
    "performance_profile",
    "probability_of_improvement",
    "receding_horizon",
    "scores",
    "steps_to_targets",
    "tolerance_interval",
]
