"""Evaluation: exact gaps on paired streams, with honest intervals."""

from cojax.evaluation.aggregates import aggregate as aggregate
from cojax.evaluation.aggregates import compare_pair as compare_pair
from cojax.evaluation.aggregates import floors as floors
from cojax.evaluation.aggregates import pairwise as pairwise
from cojax.evaluation.aggregates import performance_profile as performance_profile
from cojax.evaluation.aggregates import probability_of_improvement as probability_of_improvement
from cojax.evaluation.aggregates import scores as scores
from cojax.evaluation.control_variates import estimator_efficiency as estimator_efficiency
from cojax.evaluation.diagnosis import Diagnosis as Diagnosis
from cojax.evaluation.diagnosis import diagnose as diagnose
from cojax.evaluation.evaluator import evaluate as evaluate
from cojax.evaluation.host import HostPolicy as HostPolicy
from cojax.evaluation.host import host_policy as host_policy
from cojax.evaluation.intervals import tolerance_interval as tolerance_interval
from cojax.evaluation.linearised import lqr_gain as lqr_gain
from cojax.evaluation.references import ReferencePolicy as ReferencePolicy
from cojax.evaluation.references import detuned_oracle as detuned_oracle
from cojax.evaluation.references import dithered_oracle as dithered_oracle
from cojax.evaluation.references import parse_policy as parse_policy
from cojax.evaluation.references import receding_horizon as receding_horizon
from cojax.evaluation.result import METRICS as METRICS
from cojax.evaluation.result import Evaluation as Evaluation
from cojax.evaluation.result import Member as Member
from cojax.evaluation.targets import average_runtime as average_runtime
from cojax.evaluation.targets import ecdf as ecdf
from cojax.evaluation.targets import steps_to_targets as steps_to_targets
