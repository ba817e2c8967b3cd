"""The gap of policies where risk is priced, by tilted rollouts, and its bound of the recursion.

    J_θ(π) - J_θ* = (1/θ) log m,   m = E_tilt exp(θ S),   S = Σ_{k<T} γᵏ A*(s_k, a_k)

(:mod:`cojax.risk`). m is estimated without bias by a mean over trials; its logarithm is not, and
the interval is that of the mean, taken through the logarithm. The *plain* estimate is the same of
S = Σ γᵏ c_k + γᵀ V*_T - V*_0 under the system's own kernel: it has the same expectation, a much
larger variance, and often no second moment, so that its interval may be confidently wrong.

A mean of exponentials that a few trials carry says nothing: an estimate is refused where its
effective sample size (Σw)²/Σw², w = exp(θ S), is below ``MIN_SAMPLE``, or one trial has more than
``MAX_SHARE`` of the weight. Where θ > 0 and actions have no limit that V* knows, S can grow with
the square of the state and exp(2θ S) have no mean: the row says ``moments: "unknown"``, and the
interval is then no more than what was seen. With such a limit A* grows linearly, and for θ < 0
weights are at most 1: all moments are finite.

With a law of s_0 the gap is (1/θ) log E exp(θ (J_θ(π; s_0) - V*(s_0))), s_0 from that law.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import numpy.typing as npt

from cojax import inputs
from cojax.coordinates import innermost
from cojax.envs import EnvParams
from cojax.errors import InputError
from cojax.evaluation.evaluator import evaluate
from cojax.evaluation.intervals import interval_of_mean
from cojax.evaluation.members import as_policy
from cojax.evaluation.named_systems import NamedSystem, named_systems, pairs
from cojax.evaluation.references import ReferencePolicy
from cojax.evaluation.result import Evaluation
from cojax.risk import RecursiveRisk, RiskSensitive, Risky
from cojax.risk_kernel import Kernel
from cojax.types import Float, Row

MIN_SAMPLE = 50.0  # effective trials, below which nothing is said
MAX_SHARE = 0.1  # of the weight, that one trial may have


@dataclasses.dataclass(frozen=True)
class Entropic:
    """(1/θ) log mean exp(θ S) over trials.

    Attributes:
        mean, low, high: the estimate with its 95% interval; None where it is refused, inf where a
            trial failed.
        effective: sample size.
        share: of the weight, of the heaviest trial.
        reason: why it is refused; or "".
    """

    mean: float | None
    low: float | None
    high: float | None
    effective: float
    share: float
    reason: str


def entropic(values: Float[np.ndarray, "N"], theta: float, *, lowest: float = -np.inf) -> Entropic:
    """(1/θ) log mean exp(θ values), and the mean of ``values`` at ``theta`` = 0.

    The interval is that of the mean of the exponentials, bootstrapped, taken through the logarithm;
    no end is below ``lowest``. Values that are inf, of trials that failed, make it inf.
    """
    values = np.asarray(values, np.float64)
    if not np.isfinite(values).all():
        failed = int((~np.isfinite(values)).sum())
        reason = f"{failed} of {values.size} trials failed"
        return Entropic(np.inf, np.inf, np.inf, 0.0, 1.0, reason)
    most = float((theta * values).max())
    weights = np.exp(theta * values - most)
    effective = float(weights.sum() ** 2 / (weights**2).sum())
    share = float(weights.max() / weights.sum())
    if theta == 0.0:
        ends = tuple(float(x) for x in interval_of_mean(values))
    else:
        reason = ""
        if effective < min(MIN_SAMPLE, values.size):
            reason = f"effective sample size {effective:.3g} of {values.size} trials"
        elif share > max(MAX_SHARE, 1.0 / values.size):
            reason = f"one of {values.size} trials has {share:.0%} of the weight"
        if reason:
            return Entropic(None, None, None, effective, share, reason)
        found = np.array(interval_of_mean(weights))
        with np.errstate(divide="ignore", invalid="ignore"):
            ends = (np.log(np.maximum(found, 0.0)) + most) / theta + 0.0
        ends = (float(ends[0]), float(ends[1:].min()), float(ends[1:].max()))
    mean, low, high = ends
    return Entropic(mean, max(low, lowest), high, effective, share, "")


def risk_gap(
    policies: object,
    target: object,
    num_trials: int = 1024,
    root: int = 0,
    *,
    initial_states: npt.ArrayLike | None = None,
    num_steps: int | None = None,
) -> list[Row]:
    """J_θ(π) - J_θ* of policies on systems of :func:`cojax.risk.risk_sensitive`.

    Args:
        policies: as for :func:`cojax.evaluate`.
        target: params, fixtures, or lists or dicts of these.
        num_trials: N, on the common streams, the same white noise for every policy and kernel.
        root: seed of the streams.
        initial_states: as for :func:`cojax.evaluate`.
        num_steps: of an episode, by default the T of each system.

    Returns a row for each fixture and member, ``risk_gap`` with its 95% interval ``low`` and
    ``high``, ``relative`` to the mean V*_0, ``effective_sample_size`` and ``largest_share`` of one
    trial, ``refused`` (why there is no figure, or ""), ``moments`` ("finite" or "unknown"), the
    mean advantages ``tilted_advantage`` = E_tilt S, and of the plain estimate ``plain``,
    ``plain_low``, ``plain_high``, ``plain_effective`` and ``plain_refused``.

    Raises InputError, one line, for a system of another class: of the recursion no gap is known.
    """
    rows: list[Row] = []
    for subject in named_systems(target):
        system = _risky(subject.params, RiskSensitive, "risk_gap")
        assert isinstance(system, RiskSensitive)
        steps = system.horizon if num_steps is None else inputs.whole("num_steps", num_steps, 1)
        if steps > system.horizon + 1:
            raise InputError(
                f"num_steps: expected at most T + 1 = {system.horizon + 1}, got {steps}"
            )
        options = (policies, subject, num_trials, root)
        tilted, plain = (
            _measured(*options, tilted=tilted, num_steps=steps, initial_states=initial_states)
            for tilted in (True, False)
        )
        theta = float(system.theta)
        moments = "finite" if theta <= 0.0 or system.constrained else "unknown"
        value = tilted.trials["optimal_value"]
        costs = plain.trials["tail_corrected"]
        for m, member in enumerate(tilted.members):
            own = entropic(tilted.trials["suboptimality"][0, m], theta, lowest=0.0)
            other = entropic(costs[0, m], theta)
            scale = float(value[0, m].mean())
            rows.append({
                "fixture": subject.name,
                "policy": member.policy,
                "setting": member.hyperparameters,
                "seed": member.seed,
                "theta": theta,
                "num_trials": tilted.num_trials,
                "risk_gap": own.mean,
                "low": own.low,
                "high": own.high,
                "relative": None if own.mean is None else own.mean / scale,
                "optimal_value": scale,
                "effective_sample_size": own.effective,
                "largest_share": own.share,
                "refused": own.reason,
                "moments": moments,
                "tilted_advantage": float(tilted.trials["suboptimality"][0, m].mean()),
                "plain": other.mean,
                "plain_low": other.low,
                "plain_high": other.high,
                "plain_effective": other.effective,
                "plain_refused": other.reason,
            })  # fmt: skip
    return rows


def risk_gap_bound(
    policies: object,
    target: object,
    num_trials: int = 1024,
    root: int = 0,
    *,
    initial_states: npt.ArrayLike | None = None,
    num_steps: int | None = None,
) -> list[Row]:
    """E_tilt Σ γᵏ A*, a bound of V^π - V* on systems of both classes of :mod:`cojax.risk`.

    Arguments are those of :func:`risk_gap`, with the horizon of the params for ``num_steps``. A row
    holds ``risk gap bound`` with its 95% interval ``low`` and ``high``, and ``side``:
    "gap >= bound" for θ > 0, "gap <= bound" for θ < 0, "gap = bound" at 0. The gap is that of the
    policy that hands over to π* at the horizon; for θ > 0 it bounds that of the policy itself too.
    It is no estimate of the gap, to which it comes near where that is small.

    Raises InputError, one line, for a system that has no price of risk.
    """
    rows: list[Row] = []
    for subject in named_systems(target):
        theta = float(_risky(subject.params, Risky, "risk_gap_bound").theta)
        found = _measured(
            policies, subject, num_trials, root, tilted=True, num_steps=num_steps,
            initial_states=initial_states,
        )  # fmt: skip
        side = "=" if theta == 0.0 else ">=" if theta > 0.0 else "<="
        for m, member in enumerate(found.members):
            values = found.trials["suboptimality"][0, m]
            mean = low = high = np.inf
            if np.isfinite(values).all():
                mean, low, high = (float(x) for x in interval_of_mean(values))
            rows.append({
                "fixture": subject.name,
                "policy": member.policy,
                "setting": member.hyperparameters,
                "seed": member.seed,
                "theta": theta,
                "num_trials": found.num_trials,
                "risk gap bound": mean,
                "low": max(low, 0.0),
                "high": high,
                "side": f"gap {side} bound",
                "optimal_value": float(found.trials["optimal_value"][0, m].mean()),
            })  # fmt: skip
    return rows


def _risky(params: EnvParams, kind: type[Risky], name: str) -> Risky:
    """The system, of a class that the function called ``name`` takes."""
    system = params.system
    if isinstance(system, kind):
        return system
    if isinstance(system, RecursiveRisk):
        raise InputError(
            f"{name}: expected a system of cojax.risk.risk_sensitive; of the recursion no gap is "
            "known by plain estimates, use risk_gap_bound"
        )
    raise InputError(
        f"{name}: expected a system of cojax.risk, got {type(innermost(system)[0]).__name__}"
    )


def _measured(
    policies: object,
    subject: NamedSystem,
    num_trials: int,
    root: int,
    *,
    tilted: bool,
    num_steps: int | None,
    initial_states: npt.ArrayLike | None,
) -> Evaluation:
    """Policies under one of the two kernels; references are made for the system itself."""
    params = subject.params
    kernel = Kernel(params.system, tilted)  # pyright: ignore[reportArgumentType]
    made = [_fixed(as_policy(name, value), params) for name, value in pairs(policies)]
    return evaluate(
        made,
        inputs.swapped(params, system=kernel),
        num_trials,
        root,
        num_steps=num_steps,
        initial_states=initial_states,
        names=[subject.name],
        progress=None,
    )


def _fixed(policy: object, params: EnvParams) -> object:
    """A reference with the params that it makes for one system."""
    if not isinstance(policy, ReferencePolicy):
        return policy
    own = policy.make_params(params)
    return dataclasses.replace(policy, make_params=lambda kernel: own)
