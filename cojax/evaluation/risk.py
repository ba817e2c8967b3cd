"""The gap of policies where risk is priced, by tilted rollouts, and its bound of the recursion.

    J_θ(π) - J_θ* = (1/θ) log m,   m = E_tilt exp(θ S),   S = Σ_{k<T} γᵏ A*(s_k, a_k)

(:mod:`cojax.risk`). m is estimated without bias by a mean over trials; its logarithm is not, and
the interval is that of the mean, taken through the logarithm. The *plain* estimate is the same of
S = Σ γᵏ c_k + γᵀ V*_T - V*_0 under the system's own kernel: it has the same expectation, a much
larger variance, and often no second moment, so that its interval may be confidently wrong.

Estimates that a few trials carry are refused (:mod:`cojax.evaluation.entropic`). Where θ > 0 and
actions have no limit that V* knows, S can grow with the square of the state and exp(2θ S) have no
mean: the row says ``moments: "unknown"``, and the interval is then no more than what was seen. With
such a limit A* grows linearly, and for θ < 0 weights are at most 1: all moments are finite.

With a law of s_0 the gap is (1/θ) log E exp(θ (J_θ(π; s_0) - V*(s_0))), s_0 from that law.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from cojax import inputs
from cojax.coordinates import innermost
from cojax.envs import EnvParams
from cojax.errors import InputError
from cojax.evaluation.entropic import Entropic, entropic
from cojax.evaluation.evaluator import evaluate
from cojax.evaluation.members import as_policy
from cojax.evaluation.metrics import cell_of, summarize
from cojax.evaluation.named_systems import NamedSystem, named_systems, pairs
from cojax.evaluation.references import ReferencePolicy
from cojax.evaluation.result import Evaluation, beside
from cojax.fixtures import Fixture
from cojax.fixtures.extensions import Risk
from cojax.fixtures.schema import HardLimit
from cojax.risk import RecursiveRisk, RiskSensitive, Risky
from cojax.risk_kernel import Kernel
from cojax.types import Float, Row


class Case(NamedTuple):
    """One member on one system: what a row says of both, and its trials, (N,)."""

    head: Row
    theta: float
    value: float  # the mean of V*_0
    tilted: Float[np.ndarray, " N"]  # Σ γᵏ A*
    plain: Float[np.ndarray, " N"] | None  # Σ γᵏ c_k + γᵀ V*_T - V*_0


@dataclasses.dataclass(frozen=True, repr=False)
class RiskEvaluation:
    """Policies where risk has a price, on the same white noise by the tilted kernel and their own.

    Attributes:
        evaluation: trials of the tilted kernel. Means of its gaps are E_tilt S, which is no gap:
            below it for θ > 0 and above it for θ < 0.
        plain: those of the system's own; None where nobody asked.
        thetas: θ of each system.
        limited: whether each has a limit of actions that V* knows.
    """

    evaluation: Evaluation
    plain: Evaluation | None
    thetas: tuple[float, ...]
    limited: tuple[bool, ...]

    def cases(self) -> Iterator[Case]:
        """Every member on every system, in the order of rows."""
        e = self.evaluation
        for f, (name, theta) in enumerate(zip(e.fixtures, self.thetas, strict=True)):
            for m, member in enumerate(e.members):
                head: Row = {"fixture": name, "policy": member.policy}
                head |= {"setting": member.hyperparameters, "seed": member.seed}
                head |= {"theta": theta, "num_trials": e.num_trials}
                yield Case(
                    head,
                    theta,
                    float(e.trials["optimal_value"][f, m].mean()),
                    e.trials["suboptimality"][f, m],
                    None if self.plain is None else self.plain.trials["tail_corrected"][f, m],
                )

    def rows(self) -> list[Row]:
        """A row for each system and member, with cells as those of :meth:`Evaluation.rows`.

        ``risk_gap``, ``relative_risk_gap`` (over the mean V*_0) and ``plain_gap`` are None where
        they are refused; else as :func:`risk_gap` says. ``suboptimality`` and
        ``relative_suboptimality`` are means over trials of the tilted kernel, and no gaps.
        """
        e, num = self.evaluation, len(self.evaluation.members)
        out = []
        for k, case in enumerate(self.cases()):
            at, member = divmod(k, num)
            row = {name: x for name, x in case.head.items() if x is not None}
            names = ("suboptimality", "relative_suboptimality", "failed", "optimal_value")
            trials = {name: e.trials[name][at, [member]] for name in names}
            gap, plain = _estimates(case)
            row |= summarize(trials, {}) | {
                "risk_gap": _cell(gap),
                "relative_risk_gap": _cell(gap, case.value),
                **_support(gap),
                "moments": _moments(case.theta, limited=self.limited[at]),
                "plain_gap": _cell(plain),
                **{f"plain_{name}": x for name, x in _support(plain).items()},
                "resolution_floor": e.floors[at] if e.floors else None,
            }
            out.append(row)
        return out

    def __repr__(self) -> str:
        e = self.evaluation
        return (
            f"RiskEvaluation({len(e.fixtures)} systems, {len(e.members)} policies, "
            f"{e.num_trials} paired trials)\n  .rows()"
        )


def at_risk(
    policies: object,
    target: object,
    num_trials: int = 1024,
    root: int = 0,
    *,
    initial_states: npt.ArrayLike | None = None,
    num_steps: int | None = None,
) -> RiskEvaluation:
    """What :func:`risk_gap` is made of, with every trial; arguments and errors are the same.

    Args:
        policies: as for :func:`cojax.evaluate`.
        target: params, fixtures, or lists or dicts of these.
        num_trials: N.
        root: seed of the streams.
        initial_states: as for :func:`cojax.evaluate`.
        num_steps: of an episode, by default the T of each system.
    """
    subjects = named_systems(target)
    for subject in subjects:
        system = _risky(subject.params, RiskSensitive, "risk_gap")
        assert isinstance(system, RiskSensitive)
        steps = system.horizon if num_steps is None else inputs.whole("num_steps", num_steps, 1)
        if steps > system.horizon + 1:
            raise InputError(
                f"num_steps: expected at most T + 1 = {system.horizon + 1}, got {steps}"
            )
    return _run(
        policies, subjects, num_trials, root,
        plain=True, initial_states=initial_states, num_steps=num_steps,
    )  # fmt: skip


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
    found = at_risk(
        policies, target, num_trials, root, initial_states=initial_states, num_steps=num_steps
    )
    rows = []
    for k, case in enumerate(found.cases()):
        own, other = _estimates(case)
        limited = found.limited[k // len(found.evaluation.members)]
        rows.append(case.head | {
            "risk_gap": own.mean,
            "low": own.low,
            "high": own.high,
            "relative": None if own.mean is None else own.mean / case.value,
            "optimal_value": case.value,
            **_support(own),
            "moments": _moments(case.theta, limited=limited),
            "tilted_advantage": float(case.tilted.mean()),
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
    subjects = named_systems(target)
    for subject in subjects:
        _risky(subject.params, Risky, "risk_gap_bound")
    found = _run(
        policies, subjects, num_trials, root,
        plain=False, initial_states=initial_states, num_steps=num_steps,
    )  # fmt: skip
    rows = []
    for case in found.cases():
        bound = entropic(case.tilted, 0.0, lowest=0.0)
        side = "=" if case.theta == 0.0 else ">=" if case.theta > 0.0 else "<="
        rows.append(case.head | {
            "risk gap bound": bound.mean,
            "low": bound.low,
            "high": bound.high,
            "side": f"gap {side} bound",
            "optimal_value": case.value,
        })  # fmt: skip
    return rows


def repriced(fixture: Fixture, theta: float | None = None, T: int | None = None) -> Fixture:
    """A fixture of a base, or of the exponential of the cost of an episode, at another ``theta`` or
    of ``T`` steps: by default its own, and for a base its horizon. Not certified anew.

    Raises InputError, one line with the number, where θ has no finite cost or V* no limit of the
    actions, without which an estimate may have no second moment.
    """
    of, limit = fixture.extension, fixture.action_limit
    if not (of is None or isinstance(of, Risk)):
        raise InputError(
            f"{fixture.id}: expected a fixture of a base or with a price of risk on the cost of an "
            f"episode, got kind {of.kind!r}"
        )
    if not isinstance(limit, HardLimit):
        raise InputError(
            f"{fixture.id}: action_limit: expected one that V* knows, {{kind: box or ball, "
            f"bound: …}}, without which weights may have no second moment, got {limit}"
        )
    if of is None and theta is None:
        raise InputError(f"{fixture.id}: expected a price of risk, got none")
    own: Row = {"kind": Risk.kind, "T": fixture.horizon} if of is None else of.stated()
    changed = dict(own)
    changed |= {} if theta is None else {"theta": theta}
    changed |= {} if T is None else {"T": T}
    if changed == own:
        return fixture
    name = f"{fixture.id[:70]}-theta{changed['theta']:g}-T{changed['T']}".replace("+", "")
    try:
        return fixture.with_changes(extension=changed, horizon=changed["T"], id=name)
    except InputError as error:
        raise InputError(f"{fixture.id}: {error}") from None


def _estimates(case: Case) -> tuple[Entropic, Entropic]:
    """By the tilted trials, and the plain ones."""
    assert case.plain is not None
    return entropic(case.tilted, case.theta, lowest=0.0), entropic(case.plain, case.theta)


def _support(found: Entropic) -> Row:
    """What an estimate rests on."""
    return {
        "effective_sample_size": found.effective,
        "largest_share": found.share,
        "refused": found.reason,
    }


def _cell(found: Entropic, scale: float = 1.0) -> Row | None:
    """An estimate over a ``scale``, as tables hold it; None where it is refused."""
    if found.mean is None or found.low is None or found.high is None:
        return None
    return cell_of(found.mean / scale, found.low / scale, found.high / scale)


def _moments(theta: float, *, limited: bool) -> str:
    """Whether all moments of exp(θ S) are finite."""
    return "finite" if theta <= 0.0 or limited else "unknown"


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


def _run(
    policies: object,
    subjects: Sequence[NamedSystem],
    num_trials: int,
    root: int,
    *,
    plain: bool,
    initial_states: npt.ArrayLike | None,
    num_steps: int | None,
) -> RiskEvaluation:
    """Policies by the tilted kernel of each system, and by its own where ``plain``; references are
    made for the system itself.
    """
    kernels = []
    for tilted in (True, False)[: 1 + plain]:
        alone = []
        for one in subjects:
            params, kernel = one.params, Kernel(one.params.system, tilted)  # pyright: ignore[reportArgumentType]
            made = [_fixed(as_policy(name, value), params) for name, value in pairs(policies)]
            steps = num_steps
            if steps is None and isinstance(params.system, RiskSensitive):
                steps = params.system.horizon
            found = evaluate(
                made, inputs.swapped(params, system=kernel), num_trials, root,
                num_steps=steps, initial_states=initial_states, names=[one.name], progress=None,
            )  # fmt: skip
            alone.append(dataclasses.replace(found, floors=(one.floor,), hashes=(one.sha256,)))
        kernels.append(beside(alone))
    systems = [one.params.system for one in subjects]
    return RiskEvaluation(
        kernels[0],
        kernels[1] if plain else None,
        tuple(float(system.theta) for system in systems),  # pyright: ignore
        tuple(bool(system.constrained) for system in systems),
    )


def _fixed(policy: object, params: EnvParams) -> object:
    """A reference with the params that it makes for one system."""
    if not isinstance(policy, ReferencePolicy):
        return policy
    own = policy.make_params(params)
    return dataclasses.replace(policy, make_params=lambda kernel: own)
