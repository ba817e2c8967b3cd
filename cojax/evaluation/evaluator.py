"""Paired evaluation: any number of policies on the same streams, with their gap measured exactly.

    suboptimality     Σ_{k<T} γᵏ A*(s_k, a_k)                       >= 0; primary
    tail_corrected    Σ γᵏ c_k + γᵀ V*(s_T) - V*(s_0)               the same mean, noisier
    paper_optgap      (V_r^π - V_r*)/(|V_r*| + ε), rewards, cut at T
    paper_regret      Σ γᵏ (r(s_k, a*_k) - r(s_k, a_k)) at the policy's own states
    coupled_regret    the same with the oracle on its own trajectory under the same noise

The first two are unbiased for the gap of the policy that hands over to π* at the horizon T:

    V^π(s_0) - V*(s_0) = E Σ_{k<T} γᵏ A*(s_k, a_k) + γᵀ E[V^π(s_T) - V*(s_T)]

The last term, >= 0, is cut. It is at most ρ E[γᵀ V*(s_T)] for a policy with V^π <= (1 + ρ) V* from
s_T on; ``tail_value`` is γᵀ V*(s_T), the scale of what is cut. No bound without such a ρ is of use:
on what the divergence guard encloses A* is bounded by the square of its radius alone.

Source: paper, Section VII, and the performance-difference identity (Kakade and Langford 2002).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from functools import partial
from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt

from cojax import inputs, streams
from cojax.envs import EnvParams, stack
from cojax.envs.params import require_sound
from cojax.errors import InputError
from cojax.evaluation.control_variates import control
from cojax.evaluation.members import PolicySet, by_fixture, gather
from cojax.evaluation.metrics import CONTROLLED, TAIL, WORST, worst
from cojax.evaluation.named_systems import group_by_shape, named_systems, scope
from cojax.evaluation.result import Evaluation, beside
from cojax.evaluation.rollout import (
    ALIVE,
    DIVERGED,
    NONFINITE,
    TERMS,
    Keys,
    PolicyGroup,
    Trials,
    measures_of,
    run,
    run_on_host,
    trial_keys,
)
from cojax.io.progress import watched
from cojax.trials import relative
from cojax.types import Array, Float, Options, PRNGKeyArray, PyTree

OPTGAP_EPSILON = 1e-8
CHUNK = 128  # trials side by side, whatever their number: trial i is the same number in all
OF_ALL = ("optimal_value", "final_discount", "initial_state")  # alike for all members
MAX_COMPONENTS = 2**24  # of state in flight; about 1 GB in float32 with what a step needs


@streams.pinned()
def evaluate(
    policies: object,
    params: object,
    num_trials: int = 256,
    root: int = 0,
    *,
    num_steps: int | None = None,
    initial_states: npt.ArrayLike | None = None,
    target: float = 0.1,
    chunk: int | None = None,
    names: Sequence[str] | None = None,
    controls: bool = False,
    progress: Callable[[int, int], None] | Literal["auto"] | None = "auto",
) -> Evaluation:
    """Run policies on the same (fixture, trial) streams in one program.

    Args:
        policies: a :class:`cojax.policy.Policy` (its axes "fixture", "hyperparameters" and
            "seed" are expanded), a :class:`~cojax.evaluation.ReferencePolicy`, the text of one
            ("oracle", "dithered-oracle:0.05"), a JAX function ``(obs, key) -> action``, a
            NumPy function ``(obs) -> action``, a module of PyTorch, an object with ``predict``
            such as a model of Stable-Baselines3, a :class:`~cojax.evaluation.host.HostPolicy`,
            or a list, or a dict by name, of these. In the dict, {fixture: policy} stands for a
            policy of each fixture's own, by the fixtures' names.
        params: one ``EnvParams``, a stacked batch, a fixture, or a list, or a dict by name, of
            these. Systems of different shapes are run group by group.
        num_trials: N. Trial i starts and is disturbed as instance i of the streams, in every
            fixture and for every policy.
        root: seed of the streams.
        num_steps: steps T of every episode; by default each system's own horizon.
        initial_states: (k, d) states that trials start from in turn, (d,) for one, instead of
            draws from the initial law.
        target: the target set is sqrt(V*(s) - b) <= target · sqrt(V*(s_0) - b).
        chunk: trials that run side by side, by default 128, fewer where memory is short. While it
            is not changed, trial i is the same to the bit for every ``num_trials``. Another
            choice may round differently: within 1e-5 of V*(s_0) in float32 where the policy
            contracts; a chaotic closed loop magnifies rounding in single trials.
        names: of the fixtures, where they have none of their own.
        controls: also give ``suboptimality_controlled``, the gap with control variates
            (:mod:`cojax.evaluation.control_variates`): the same mean from fewer trials. Its values
            of single trials mean nothing by themselves, and may be negative.
        progress: "auto" shows a bar on a terminal and in notebooks, and nothing else; None is
            silent; or it is called with the trials done, over all fixtures, and their number.

    Returns:
        An :class:`Evaluation`. Its gaps are those of policies that hand over to π* at the horizon
        T: V^π - V* is larger, by at most ρ ``tail_value`` where V^π <= (1 + ρ) V* from there on.
        Trials that leave the divergence guard, or in which an action, as the policy gives it and
        with a box or without, or a state is not finite, are failures.

    Raises ValueError, one line, for an empty list, an unknown name, fewer than one trial or step,
    or a policy whose action has the wrong shape.
    """
    num_trials = inputs.whole("num_trials", num_trials, 1)
    if num_steps is not None:
        num_steps = inputs.whole("num_steps", num_steps, 1)
    if chunk is not None:
        chunk = inputs.whole("chunk", chunk, 1)
    target = inputs.number("target", target, 0.0)
    subjects = named_systems(params, names)
    systems = [subject.params for subject in subjects]
    separate = by_fixture(policies, [subject.name for subject in subjects])
    if separate is not None:
        options: Options = {"num_steps": num_steps, "initial_states": initial_states}
        options |= {"target": target, "chunk": chunk, "controls": controls, "progress": None}
        alone = [
            evaluate(own, subject.params, num_trials, root, names=[subject.name], **options)
            for own, subject in zip(separate, subjects, strict=True)
        ]
        return dataclasses.replace(
            beside(alone),
            floors=tuple(subject.floor for subject in subjects),
            hashes=tuple(subject.sha256 for subject in subjects),
        )
    players = gather(policies, len(systems))
    words = f"evaluate on {subjects[0].name}" + (
        f" and {len(systems) - 1} more" if systems[1:] else ""
    )
    with watched(progress, words, num_trials * len(systems)) as tell:
        trials, dtypes = _by_shape(
            systems,
            players,
            streams.root_key(root),
            num_trials=num_trials,
            num_steps=num_steps,
            initial_states=initial_states,
            target=target,
            chunk=chunk,
            controls=controls,
            tell=tell,
        )
    return Evaluation(
        fixtures=tuple(subject.name for subject in subjects),
        members=players.members,
        horizons=trials.pop("horizons").astype(int),
        trials=trials,
        root=int(root),
        dtype=", ".join(sorted(dtypes)),
        floors=tuple(subject.floor for subject in subjects),
        hashes=tuple(subject.sha256 for subject in subjects),
    )


def _by_shape(
    systems: Sequence[EnvParams],
    players: PolicySet,
    key: PRNGKeyArray,
    *,
    num_trials: int,
    num_steps: int | None,
    initial_states: npt.ArrayLike | None,
    target: float,
    chunk: int | None,
    controls: bool,
    tell: Callable[[float], object],
) -> tuple[dict[str, np.ndarray], set[str]]:
    """Metrics of all trials, systems of one shape after another, and what they ran in."""
    trials: dict[str, np.ndarray] = {}
    dtypes, done = set(), 0
    for indices in group_by_shape(systems):
        singles = [systems[i] for i in indices]
        with scope(singles[0]):
            batch = stack(singles)
            require_sound(batch.system)
            horizons = batch.max_steps_in_episode
            horizons = horizons if num_steps is None else jnp.full_like(horizons, num_steps)
            starts = _initial_states(initial_states, batch)
            meet = partial(Trials, batch, horizons=horizons, target=jnp.float32(target))
            group = players.program(batch, indices)
            measures = measures_of(batch.system)
            raw = _run_group(
                group,
                players,
                meet,
                key,
                starts=starts,
                num_trials=num_trials,
                chunk=chunk or _chunk(batch, group[0]),
                controls=controls,
                measures=measures,
                tell=partial(_of_some, tell, done, len(indices)),
            )
            done += num_trials * len(indices)
            if controls:
                raw["controlled"] = control(raw, singles, starts, key)
        dtypes.add(str(batch.system.gamma.dtype))
        found = _trials(raw, players.oracle, len(players.members), measures)
        for name, values in {**found, "horizons": np.asarray(horizons)}.items():
            nothing = np.full((len(systems), *values.shape[1:]), np.nan)  # of measures of others
            trials.setdefault(name, nothing)[indices] = values
    return trials, dtypes


def _of_some(tell: Callable[[float], object], done: int, systems: int, trials: float) -> None:
    """Tell how many trials are done, where so many of each of some systems are."""
    tell(done + trials * systems)


def _chunk(batch: EnvParams, groups: tuple[PolicyGroup, ...]) -> int:
    """Trials side by side: fewer where memory is short."""
    num_members = sum(group.num_members for group in groups)
    components = len(batch.max_steps_in_episode) * num_members * batch.system.state_dim
    chunk = CHUNK
    while chunk > 8 and components * chunk > MAX_COMPONENTS:
        chunk //= 2
    return chunk


def _run_group(
    group: tuple[tuple[PolicyGroup, ...], tuple[PyTree, ...]],
    players: PolicySet,
    meet: Callable[[Keys, Float[Array, "N d"] | None], Trials],
    key: PRNGKeyArray,
    *,
    starts: Float[Array, "k d"] | None,
    num_trials: int,
    chunk: int,
    controls: bool,
    measures: tuple[str, ...],
    tell: Callable[[float], object],
) -> dict[str, np.ndarray]:
    """Systems of one shape, chunk by chunk over trials; arrays (F, M, N) in float64."""
    pieces, on_host = [], []
    for first in range(0, num_trials, chunk):
        # the last chunk is filled up and cut, so that it is the same program
        keys = trial_keys(key, jnp.asarray(first), chunk)
        own = jax.tree.map(jax.random.clone, keys)  # both programs draw the same trials
        s0 = None if starts is None else starts[(first + np.arange(chunk)) % len(starts)]
        pieces.append(jax.tree.map(np.asarray, run(*group, meet(keys, s0), controls)))
        if players.hosts:
            few = min(chunk, num_trials - first)  # a call of a host policy may be dear
            own = Keys(own.initial[:few], own.roots[:, :few])
            hosted = run_on_host(players.hosts, meet(own, s0 if s0 is None else s0[:few]), controls)
            on_host.append(jax.tree.map(np.asarray, hosted))
        tell(min(first + chunk, num_trials))
    raw = {name: array[..., :num_trials] for name, array in _joined(pieces, measures).items()}
    if on_host:
        hosted = _joined(on_host, measures)
        for name, array in raw.items():
            if name not in OF_ALL:
                both = np.concatenate([array, hosted[name]], axis=-2)
                raw[name] = both[..., list(players.order), :]
    return raw


def _joined(pieces: list[dict[str, PyTree]], measures: tuple[str, ...]) -> dict[str, np.ndarray]:
    """Chunks side by side along the trials, in float64, each array (F, M or 1, N or 1)."""
    raw = {}
    for name in pieces[0]:
        arrays = [piece[name] for piece in pieces]
        if name == "sums":
            arrays = [np.asarray(x, np.float64) + np.asarray(y, np.float64) for x, y in arrays]
        if name == "final_discount":  # (F,)
            arrays = [arrays[0][:, None]]
        raw[name] = np.concatenate(arrays, axis=-1, dtype=np.float64)
        if raw[name].ndim == 2:
            raw[name] = raw[name][:, None]
    sums = raw.pop("sums")
    terms = (*TERMS, *measures)
    raw |= {term: sums[:, i] for i, term in enumerate(terms)}
    return raw | {"controls": sums[:, len(terms) :]}


def _trials(
    raw: dict[str, np.ndarray], oracle: int, num_members: int, measures: tuple[str, ...]
) -> dict[str, np.ndarray]:
    """Metrics of every trial from the program's sums; the oracle's row serves coupled regret."""
    value, cost = raw["optimal_value"], raw["discounted_cost"]
    gap = raw["advantage"]
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        corrected = cost + raw["final_discount"] * raw["final_value"] - value
        metrics = {
            "suboptimality": gap,
            "relative_suboptimality": relative(gap, value),
            "tail_corrected": corrected,
            "relative_tail_corrected": relative(corrected, value),
            "paper_optgap": (value - cost) / (value + OPTGAP_EPSILON),
            "paper_regret": raw["regret"],
            "coupled_regret": cost - cost[:, oracle : oracle + 1],
            "discounted_return": -cost,
            "undiscounted_return": -raw["cost"],
            "action_distance": np.sqrt(raw["squared_distance"] / np.maximum(raw["steps"], 1.0)),
            "time_to_target": raw["time_to_target"],
        }
    failed = raw["status"] != ALIVE
    trials = {name: np.where(failed, WORST[name], metrics[name]) for name in WORST}
    trials |= {name: np.where(failed, worst(name), raw[name]) for name in measures}
    if "controlled" in raw:
        trials[CONTROLLED] = np.where(failed, np.inf, raw["controlled"])
    tail, steps = raw["final_discount"] * raw["final_value"], np.maximum(raw["steps"], 1.0)
    trials |= {
        "optimal_value": np.broadcast_to(value, cost.shape),
        "steps": raw["steps"],
        "saturated": raw["saturated"] / steps,
        "reached": raw["reached"],
        "failed": failed.astype(np.float64),
        "diverged": (raw["status"] == DIVERGED).astype(np.float64),
        "nonfinite": (raw["status"] == NONFINITE).astype(np.float64),
        TAIL: np.where(failed, np.inf, tail),
    }
    return {name: values[:, :num_members] for name, values in trials.items()}


def _initial_states(states: npt.ArrayLike | None, params: EnvParams) -> Float[Array, "k d"] | None:
    if states is None:
        return None
    array = np.asarray(states)
    dim = params.system.state_dim
    array = array[None] if array.ndim == 1 else array
    if array.ndim != 2 or array.shape[1] != dim or not len(array) or array.dtype.kind not in "iuf":
        raise InputError(f"initial_states: expected shape (k, {dim}), got {np.shape(states)}")
    if not np.isfinite(array).all():
        raise InputError("initial_states: expected finite numbers")
    return jnp.asarray(array, params.system.gamma.dtype)
