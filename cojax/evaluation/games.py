"""How exploitable policies of a game are, in bounds that are exact, and what adversaries miss.

For a policy π of the agent and any σ of the disturbance, over T steps and then π* against d*,

    J(π, σ) - V* = E Σ_{k<T} γᵏ (Q* - V*)(s_k, a_k, d_k) <= max_σ J(π, σ) - V*     (exploitability)

The maximum is another problem of optimisation, without a closed form. Known are, for every policy:

    optimal    σ = d*: the gap of an ordinary problem, E Σ γᵏ |δ|²_B >= 0
    myopic     σ = d* + ε₁(δ), the best reply of one step: E Σ γᵏ |δ|²_B̂ >= 0
    any other σ that is given; that of d = 0 is exact too, but of either sign, and no gap
    above      sup_s |δ|²_B̂/(1 - γ), where somebody knows the supremum

either of the first two may be the larger. An adversary against π* misses E Σ γᵏ |d - d*|²_B_d >= 0,
its regret. All meet the same starts and noise; see :mod:`cojax.zero_sum`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from cojax import inputs, streams
from cojax.envs import EnvParams, stack
from cojax.envs.games import nobody, opposed
from cojax.errors import InputError
from cojax.evaluation.evaluator import evaluate
from cojax.evaluation.intervals import CONFIDENCE, interval_of_mean
from cojax.evaluation.members import AnyPolicy, PolicySet, as_policy, gather, singles
from cojax.evaluation.metrics import AT_LEAST, AT_MOST, METRIC, cell_of
from cojax.evaluation.named_systems import named_systems, pairs, scope
from cojax.evaluation.references import ORACLE, ReferencePolicy
from cojax.evaluation.result import Evaluation
from cojax.evaluation.rollout import PolicyGroup
from cojax.policy import Policy
from cojax.trials import scan_trial
from cojax.types import Array, Float, Option, PyTree, Row
from cojax.zero_sum import ADVERSARIES, Adversary, Game

MEASURED = 64  # trials on which the largest |δ|²_B̂ is looked for


@dataclasses.dataclass(frozen=True)
class Exploitability:
    """What :func:`exploitability` gives.

    Attributes:
        rows: one a policy, seeds and settings apiece, JSON data. ``policy``, ``hyperparameters``
            and ``seed``; under the name of each adversary ``mean``, ``low`` and ``high`` of
            J - V*; ``at_least``, the largest of those means, below the exploitability, with an
            interval that holds for all adversaries together, and ``by``, whose it is;
            ``sampled_bound``, the largest |δ|²_B̂ met over 1 - γ: an estimate of the bound above
            from below, and no bound; ``at_most``, the bound, where its supremum was given;
            ``optimal_value``, the mean of V*(s_0); ``failed``, the share of trials that failed
            against some adversary: means are then infinite, and intervals None.
        evaluation: every trial, the adversaries as its fixtures; of these only the gaps against
            "optimal" and "myopic" are gaps, and the others of either sign.
    """

    rows: list[Row]
    evaluation: Evaluation


def exploitability(
    policies: object,
    params: object,
    num_trials: int = 256,
    root: int = 0,
    *,
    adversaries: object = (),
    suprema: Mapping[str, float] | None = None,
    num_steps: int | None = None,
    confidence: float = CONFIDENCE,
    **options: Option,
) -> Exploitability:
    """Bounds of the exploitability of ``policies`` in one game.

    Args:
        policies: of the agent, in the forms that :func:`cojax.evaluate` takes; "lqr" and plans are
            those of the problem against d*, whoever plays.
        params: of a game, or a fixture of one.
        num_trials: trials, each met by every policy against every adversary.
        root: seed of the streams.
        adversaries: others than the two that are known: policies of the disturbance, JAX
            functions ``(obs, key) -> d`` of draws or none (each draws the same at all steps), a
            list or a dict by name of these.
        suprema: sup_s |δ|²_B̂ of policies, by name, where it is known.
        num_steps: T; by default the horizon.
        confidence: of the intervals.
        options: others of :func:`cojax.evaluate`, but ``names`` and ``controls``.

    Raises InputError, one line, for params of no game or of several, an adversary that gives no
    (k,) or is called as another is, and as ``evaluate`` does.
    """
    one, given = one_game(params), _policies(adversaries)
    taken = {"optimal", "myopic"} & set(given)
    if taken:
        raise InputError(f"adversaries: expected other names than {sorted(taken)}")
    suprema = {} if suprema is None else suprema
    subjects = {name: against(one, name) for name in ADVERSARIES}
    subjects |= {name: opposed(one, policy) for name, policy in given.items()}
    options |= {"num_steps": num_steps}
    policies = _frozen(policies, subjects["optimal"])
    found = evaluate(policies, subjects, num_trials, root, **options)
    players = gather(policies, 1)
    steps = int(found.horizons[0])
    largest = _largest(players, subjects["myopic"], min(num_trials, MEASURED), root, steps=steps)
    gap, gamma = found.trials["suboptimality"], float(np.asarray(one.system.gamma))
    together = 1.0 - (1.0 - confidence) / len(subjects)
    rows = []
    for j, member in enumerate(found.members):
        each = {n: _interval(gap[i, j], confidence) for i, n in enumerate(subjects)}
        wide = [_interval(x, together) for x in gap[:, j]]
        by = max(each, key=lambda n: each[n]["mean"])  # the first where several failed
        row: Row = {"policy": member.policy, "hyperparameters": member.hyperparameters}
        row |= {"seed": member.seed, **each, "by": by}
        row["at_least"] = {"mean": each[by]["mean"]} | {
            end: max((x[end] for x in wide if x[end] is not None), default=None)
            for end in ("low", "high")
        }
        met, known = largest[j], suprema.get(member.policy)
        row["sampled_bound"] = None if met is None else met / (1.0 - gamma)
        row["at_most"] = None if known is None else known / (1.0 - gamma)
        row["optimal_value"] = float(found.trials["optimal_value"][0, j].mean())
        row["failed"] = float(found.trials["failed"][:, j].max(axis=0).mean())
        rows.append(row)
    return Exploitability(rows, found)


def nominal(
    policies: object,
    params: object,
    num_trials: int = 256,
    root: int = 0,
    *,
    confidence: float = CONFIDENCE,
    **options: Option,
) -> list[Row]:
    """J(π, 0) - V* where the disturbance stays away, one row a policy, under ``signed``.

        E Σ γᵏ (|δ|²_R - |d*|²_Γ + γ |p g δ - h d*|²_P)

    Exact, of either sign, and no gap: the optimum of that problem is not known, nor whether a
    policy is near it. Args are those of :func:`exploitability`; raises as that does.

    Args:
        policies: of the agent.
        params: of a game, or a fixture of one.
        num_trials: trials.
        root: seed of the streams.
        confidence: of the intervals.
        options: others of :func:`cojax.evaluate`.
    """
    one = one_game(params)
    found = evaluate(
        _frozen(policies, one), {"none": opposed(one, nobody(one))}, num_trials, root, **options
    )
    return [
        {"policy": member.policy, "hyperparameters": member.hyperparameters, "seed": member.seed}
        | {"signed": _interval(x, confidence)}
        for member, x in zip(found.members, found.trials["suboptimality"][0], strict=True)
    ]


def regret(
    adversaries: object,
    params: object,
    num_trials: int = 256,
    root: int = 0,
    *,
    confidence: float = CONFIDENCE,
    **options: Option,
) -> list[Row]:
    """V* - J(π*, σ) = E Σ γᵏ |d - d*|²_B_d >= 0 of policies of the disturbance, one row each: under
    ``regret`` its ``mean``, ``low`` and ``high``, ``relative``, its mean over that of V*, and
    ``failed``, the share of trials that failed.

    Args:
        adversaries: as :func:`exploitability` takes them.
        params: of a game, or a fixture of one.
        num_trials: trials.
        root: seed of the streams.
        confidence: of the intervals.
        options: others of :func:`cojax.evaluate`.

    Raises InputError as :func:`exploitability` does.
    """
    one, given = one_game(params), _policies(adversaries)
    if not given:
        raise InputError("adversaries: expected at least one policy, got an empty list")
    subjects = {name: opposed(one, policy) for name, policy in given.items()}
    found = evaluate([ORACLE], subjects, num_trials, root, **options)
    rows = []
    for i, name in enumerate(given):
        failed = found.trials["failed"][i, 0]
        signed = found.trials["suboptimality"][i, 0]
        measured = _interval(np.where(failed > 0.0, np.inf, -signed), confidence)
        value = float(found.trials["optimal_value"][i, 0].mean())
        row: Row = {"adversary": name, "regret": measured, "relative": measured["mean"] / value}
        rows.append(row | {"failed": float(failed.mean())})
    return rows


def with_bounds(evaluation: Evaluation, policies: object, params: object) -> list[Row]:
    """The rows of an ``evaluation``; where the system is a game against d*, with bounds of the
    exploitability over V*: ``exploitability_at_least``, the larger of the gaps against d* and
    against the reply of one step, its interval for both, and ``exploitability_at_most`` where it is
    proven: of the oracle, 0.

    Args:
        evaluation: of these policies on these systems.
        policies: in the forms that :func:`cojax.evaluate` takes.
        params: the systems, games or not.
    """
    rows, wide = evaluation.rows(), 1.0 - 0.5 * (1.0 - CONFIDENCE)
    subjects = named_systems(params)
    known = [isinstance(x.params.system, Game) and not x.params.system.seen for x in subjects]
    if not any(known):
        return rows
    every = [*evaluation.rows(confidence=wide)]
    for f, subject in enumerate(subjects):
        if not known[f]:
            continue
        own = _frozen(policies, subject.params, f if len(subjects) > 1 else None)
        seen = {evaluation.fixtures[f]: against(subject.params, "myopic")}
        steps = int(evaluation.horizons[f])
        found = evaluate(own, seen, evaluation.num_trials, evaluation.root, num_steps=steps)
        every += found.rows(confidence=wide)
    cells: dict[tuple, list[Row]] = {}
    for row in every:
        cells.setdefault(_place(row), []).append(row[METRIC])
    for row in rows:
        if len(both := cells[_place(row)]) > 1:
            row[AT_LEAST] = {end: max(x[end] for x in both) for end in ("mean", "low", "high")}
            if row["policy"] == ORACLE.name:
                row[AT_MOST] = cell_of(0.0, 0.0, 0.0)
    return rows


def _place(row: Row) -> tuple:
    """Which row it is."""
    return tuple(row.get(name) for name in ("fixture", "policy", "setting"))


def against(params: object, adversary: Adversary) -> EnvParams:
    """``params`` of a game, or those of a fixture of one, where another ``adversary`` plays; box
    and guard are kept. Raises InputError for an unknown one, and for params of no game.
    """
    one = one_game(params)
    return inputs.swapped(one, system=_game(one).against(adversary))


def one_game(params: object) -> EnvParams:
    """The params of one game; raises InputError for another thing."""
    found = named_systems(params)
    if len(found) != 1:
        raise InputError(f"params: expected one game, got {len(found)} systems")
    _game(found[0].params)
    return found[0].params


def _game(params: EnvParams) -> Game:
    """The game of params; raises InputError where they are of none."""
    if not isinstance(params.system, Game):
        kind = type(params.system).__name__
        raise InputError(f"params: expected those of a game (cojax.games.game), got {kind}")
    return params.system


def _policies(adversaries: object) -> dict[str, Policy]:
    """Policies of JAX by name, every member of a population for itself; raises InputError."""
    out: dict[str, Policy] = {}
    for name, value in pairs(adversaries):
        policy = as_policy(name, value)
        for one in singles(policy) if isinstance(policy, Policy) else [policy]:
            if not isinstance(one, Policy):
                raise InputError(f"adversaries: expected policies of JAX, got {one.name}")
            if one.name in out:
                raise InputError(f"adversaries: expected names that differ, got {one.name} twice")
            out[one.name] = one
    return out


def _frozen(policies: object, params: EnvParams, fixture: int | None = None) -> list[AnyPolicy]:
    """Policies with what references take from a system taken from ``params``, once for all; those
    of several fixtures are that of one ``fixture``.
    """
    out = []
    for name, value in pairs(policies):
        policy = as_policy(name, value)
        if isinstance(policy, ReferencePolicy):
            with scope(params):
                made = policy.make_params(params)
            policy = dataclasses.replace(policy, make_params=lambda _, made=made: made)
        elif isinstance(policy, Policy) and "fixture" in policy.axes and fixture is not None:
            policy = policy.member(fixture=fixture)
        out.append(policy)
    return out


def _interval(values: np.ndarray, confidence: float) -> Row:
    """Mean and interval; without an interval where some trial failed."""
    if not np.isfinite(values).all():
        return {"mean": float("inf"), "low": None, "high": None}
    found = interval_of_mean(values, confidence=confidence)
    return {name: float(x) for name, x in found._asdict().items()}


def _largest(
    players: PolicySet, params: EnvParams, num: int, root: int, *, steps: int
) -> list[float | None]:
    """The largest |δ|²_B̂ that each member meets in ``num`` trials against the myopic reply; None of
    policies on the host.
    """
    with scope(params):
        groups, group_params = players.program(stack([params]), [0])
        keys = streams.stream_keys(root, num)
        made = iter(zip(groups, group_params, strict=True))
        on_host = len(players.policies) - len(groups)
        found = [
            np.asarray(_excess_met(group, _own(group, own), params, keys, steps=steps))
            for group, own in made
        ]
    in_turn = np.concatenate(found).astype(np.float64)
    every = [*map(float, in_turn), *([None] * on_host)]
    return [every[i] for i in players.order]


def _own(group: PolicyGroup, params: PyTree) -> PyTree:
    """Params with the members' axis alone."""
    return jax.tree.map(lambda x: x[0], params) if group.per_fixture else params


@partial(jax.jit, static_argnames=("group", "steps"))
def _excess_met(
    group: PolicyGroup, own: PyTree, params: EnvParams, keys: Array, *, steps: int
) -> Float[Array, "M"]:
    """Of every member, the largest A* of its trials."""

    def one(own: PyTree, key: Array) -> Array:
        def observe(total: Array, step) -> tuple[Array, tuple[()]]:
            excess = step.advantage(params.system)
            return jnp.maximum(total, jnp.where(step.acts, excess, 0.0)), ()

        player: Callable[..., Array] = partial(group.act, own)
        zero = jnp.zeros((), params.system.gamma.dtype)
        return scan_trial(player, params, key, steps, observe=observe, total=zero)[0]

    trials = jax.vmap(one, (None, 0))
    return jnp.max(jax.vmap(trials, (0, None), axis_size=group.num_members)(own, keys), axis=-1)
