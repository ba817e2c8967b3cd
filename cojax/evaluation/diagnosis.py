"""Diagnosis meters: a trained agent's beliefs and its gradient against what is exact.

On the states that an agent visits itself:

    value error     |V̂(s) - V*(s)|/V*(s), |Q̂(s, a) - Q*(s, a)|/Q*(s, a) at a = π(s)
    action error    sqrt(Σ |a - a*|²_B / Σ |a*|²_B), |δ|²_B = δᵀB(s)δ, the metric of the advantage
    gap, split      Σ γᵏ A*(s_k, a_k) by the value of the state and by time
    gradient        cosine of the learner's ∇θ with the exact ∇θ E Σ_{k<T} γᵏ A*(s_k, π_θ(s_k))

By the performance-difference identity the last expression is, but for a constant, the discounted
cost of π_θ over T steps and of the oracle after them; its gradient is taken along the
differentiable dynamics, trial by trial, under the same noise.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol, runtime_checkable

import chex
import jax
import jax.numpy as jnp
import numpy as np

from cojax import inputs, streams
from cojax.envs import ConverseEnv, EnvParams
from cojax.errors import InputError
from cojax.evaluation.host import HostPolicy
from cojax.evaluation.members import as_policy, player
from cojax.evaluation.named_systems import named_systems, scope
from cojax.evaluation.rollout import discount
from cojax.io.described import About, described
from cojax.policy import Policy
from cojax.trials import Step, initial_state, relative, scan_trial, trial_step
from cojax.types import Array, Float, PRNGKeyArray, PyTree, Row

GRADIENT_TRIALS = 64


class Critic(Protocol):
    """What a learner believes: ``apply(params, obs[, action])``, V̂ or Q̂ in units of reward."""

    kind: str  # "V" or "Q"
    params: PyTree
    apply: Callable[..., Array]


@runtime_checkable
class Agent(Protocol):
    """What a diagnosis needs of a learner, which ``run.agent(...)`` is."""

    policy: Policy
    critic: Critic | None
    actor: PyTree
    gradients: Callable[[ConverseEnv, EnvParams, PRNGKeyArray, int], PyTree]


def _about(reading: Diagnosis) -> About:
    """What a diagnosis shows of itself."""
    medians = [
        error and f"{error['median']:.3g}" for error in (reading.value_error, reading.q_error)
    ]
    facts = {
        "gap": f"{reading.relative_gap:.3g} V*",
        "action error": f"{reading.action_error:.3g}",
        "value error": medians[0],
        "Q error": medians[1],
        "cosine of the gradient": reading.gradient and f"{reading.gradient['of_mean']:.3g}",
        "failed": f"{reading.failures} of {len(reading.visits['value'])} trials",
    }
    return f"Diagnosis of {reading.policy} on {reading.fixture}", facts


@described(_about)
@dataclasses.dataclass(frozen=True)
class Diagnosis:
    """What the meters read, on N trials of T steps.

    Attributes:
        fixture: name of the system.
        policy: name of the policy.
        critic: "V", "Q", or None where there is none.
        failures: trials that left the divergence guard or were not finite; they count until then.
        relative_gap: mean over trials of Σ γᵏ A*(s_k, a_k)/V*(s_0): where none failed, what
            ``relative_suboptimality`` is in :func:`cojax.evaluate`, which calls failures infinite.
        action_error: of all visited states.
        value_error: {"low", "median", "high"}: 10, 50 and 90% quantiles over visited states; None
            without a critic. Where the critic is a Q̂, V̂(s) is Q̂(s, π(s)).
        q_error: alike; None unless the critic is a Q̂.
        gradient: {"cosine", "sd", "of_mean", "reference", "batches"}: mean and standard deviation
            over batches of the learner's cosine with the exact gradient, the cosine of its mean
            gradient over the batches, and, for the resolution of all these, the cosine between
            exact gradients of two halves of the trials. None without a learner.
        by_region: one dict a bin of states of equal number, from low to high V*: ``low`` and
            ``high`` V*, ``visits``, ``gap`` (the bins' sum is ``relative_gap``), and the errors.
        by_time: the same by blocks of steps, ``low`` to ``high`` inclusive.
        visits: (N, T) arrays ``value`` V*, ``advantage``, ``weight`` γᵏ (0 after a failure),
            ``needed`` A*(s, 0), and, of a critic in units of cost, ``v_hat`` and ``q_hat``.
    """

    fixture: str
    policy: str
    critic: str | None
    failures: int
    relative_gap: float
    action_error: float
    value_error: dict[str, float] | None
    q_error: dict[str, float] | None
    gradient: dict[str, float] | None
    by_region: list[Row]
    by_time: list[Row]
    visits: dict[str, Float[np.ndarray, "N T"]] = dataclasses.field(repr=False)


@streams.pinned()
def diagnose(
    subject: object,
    params: object,
    *,
    num_trials: int = 64,
    num_steps: int | None = None,
    root: int = 2,
    bins: int = 10,
    batches: int = 16,
) -> Diagnosis:
    """Hold an agent against the optimum, on the states that it visits.

    Args:
        subject: an agent, ``run.agent(fixture=0, seed=1)``; or one policy in any form that
            :func:`~cojax.evaluate` takes, which has neither critic nor gradient.
        params: one ``EnvParams``, or a fixture.
        num_trials: N, on the instances of ``root``'s streams that :func:`~cojax.evaluate` uses.
        num_steps: T; by default the system's horizon.
        root: seed of the streams, and of the batches.
        bins: of regions and of times.
        batches: of the learner's gradient; 0 leaves gradients out.

    Gradients are of the actor that the learner would improve next, with the deterministic policy
    it would hand out; the exact one averages the first 64 trials at most. Learners that weight the
    states of late steps as much as those of early ones, or explore, head elsewhere: the cosine
    says how far.

    Raises ValueError, one line, for several systems, a population, or numbers out of range.
    """
    num_trials = inputs.whole("num_trials", num_trials, 1)
    bins = inputs.whole("bins", bins, 1)
    batches = inputs.whole("batches", batches, 0)
    if num_steps is not None:
        num_steps = inputs.whole("num_steps", num_steps, 1)
    found = named_systems(params)
    if len(found) != 1:
        raise InputError(f"params: expected one system, got {len(found)}")
    name, env_params = found[0].name, found[0].params
    agent = subject if isinstance(subject, Agent) else None
    policy = as_policy(None, subject if agent is None else agent.policy)
    if isinstance(policy, Policy) and policy.axes:
        raise InputError(
            f"subject: expected one policy, got a population over {list(policy.axes)}; "
            "take policy.member(...)"
        )
    horizon = int(env_params.max_steps_in_episode) if num_steps is None else num_steps
    critic = None if agent is None else agent.critic
    kind, belief = (None, None) if critic is None else (critic.kind, critic.apply)
    with scope(env_params):
        keys = streams.stream_keys(root, num_trials)
        if isinstance(policy, HostPolicy):
            raw = _on_host(policy.begun(), env_params, keys, horizon)
        else:
            act, own = player(policy, env_params)
            beliefs = None if critic is None else critic.params
            raw = _program((act, belief, kind, horizon), own, beliefs, env_params, keys=keys)
        visits = {label: np.asarray(x, np.float64) for label, x in raw.items()}
        gradient = None
        if agent is not None and batches:
            exact = exact_gradients(agent, env_params, horizon, keys[:GRADIENT_TRIALS])
            learned = agent.gradients(ConverseEnv(), env_params, streams.root_key(root), batches)
            gradient = _cosines(exact, _flat(learned))
    failures = int(visits.pop("failed").sum())
    tables = _tables(visits, bins)
    return Diagnosis(name, policy.name, kind, failures, gradient=gradient, visits=visits, **tables)


@partial(jax.jit, static_argnums=(0,))
def _program(static, policy_params, critic_params, params, *, keys):
    """Trajectories of all trials, arrays (N, T)."""
    act, critic, kind, horizon = static
    observe = _observer(params, kind, critic, critic_params)

    def trial(stream):
        alive, rows = scan_trial(
            partial(act, policy_params),
            params,
            stream,
            horizon,
            observe=observe,
            total=jnp.array(True),
        )
        return rows | {"failed": ~alive}

    return jax.vmap(trial)(keys)


def _on_host(
    policy: HostPolicy, params: EnvParams, keys: Array, horizon: int
) -> dict[str, np.ndarray]:
    """The same of a policy outside of JAX, without a critic: it is asked for a step of all trials
    at a time.
    """
    alive = jnp.ones(len(keys), bool)
    carry = jax.vmap(initial_state, (None, 0))(params, keys), alive, alive
    rows = []
    actions = getattr(params.system, "actions", None)
    lists = None if actions is None else np.asarray(actions)
    for k in range(horizon):
        a = policy.actions(np.asarray(carry[0]), params.system.action_dim, lists)
        carry, row = _host_step(params, keys, carry, np.int32(k), a=a)
        rows.append(jax.device_get(row))
    found = jax.tree.map(lambda *x: np.stack(x, axis=1), *rows)
    return found | {"failed": ~np.asarray(carry[2])}


@jax.jit
def _host_step(params, keys, carry, k, *, a):
    observe = _observer(params)

    def one(stream, carry, a):
        return trial_step(lambda *_: a, params, stream, observe=observe)(carry, k)

    return jax.vmap(one)(keys, carry, a)


def _observer(
    params: EnvParams,
    kind: str | None = None,
    critic: Callable[..., Array] | None = None,
    critic_params: PyTree = None,
) -> Callable[[Array, Step], tuple[Array, dict[str, Array]]]:
    """What is kept of a step, and whether the trial goes on."""
    system = params.system

    def observe(alive, step):
        del alive
        row = {
            "value": system.value(step.s),
            "advantage": step.advantage(system),
            "needed": system.excess_cost(step.s, -step.optimum.action, step.optimum),
            "weight": jnp.where(step.acts, discount(system.gamma, step.k), 0.0),
        }
        if critic is not None and kind == "V":
            row["v_hat"] = -critic(critic_params, step.s)
        elif critic is not None:
            row["v_hat"] = row["q_hat"] = -critic(critic_params, step.s, step.action)
        chex.assert_shape(list(row.values()), ())
        return step.alive, row

    return observe


# --- gradients -----------------------------------------------------------------------------------


def _cosines(exact: np.ndarray, learned: np.ndarray) -> dict[str, float]:
    """Of gradients by trial, and by batch, (·, parameters) each."""
    mean = exact.mean(axis=0)
    cosines = np.array([_cosine(g, mean) for g in learned])
    halves = [exact[k::2].mean(axis=0) for k in (0, 1)] if len(exact) > 1 else None
    return {
        "cosine": float(cosines.mean()),
        "sd": float(cosines.std()),
        "of_mean": _cosine(learned.mean(axis=0), mean),
        "reference": float("nan") if halves is None else _cosine(*halves),
        "batches": len(learned),
    }


@streams.pinned()
def exact_gradients(
    agent: Agent, params: EnvParams, num_steps: int, keys: Array
) -> Float[np.ndarray, "N p"]:
    """∇θ Σ_{k<T} γᵏ A*(s_k, π_θ(s_k)) of each trial at the agent's actor, (N, parameters).

    Along the trajectory: s_{k+1} depends on θ through every action before. ``keys`` (N,) are
    stream keys; parameters are in the order of ``jax.tree.leaves``.
    """
    static = agent.policy.apply, num_steps
    return _flat(_trial_gradients(static, agent.policy.params, agent.actor, params, keys=keys))


@partial(jax.jit, static_argnums=(0,))
def _trial_gradients(static, policy_params, actor, params, *, keys):
    apply, num_steps = static
    system = params.system

    def gap(actor, stream):
        theta = {**policy_params, "actor": actor}

        def observe(total, step):
            return total, discount(system.gamma, step.k) * step.advantage(system)

        def act(optimum, s, key):
            return apply(theta, s, key)

        scan = partial(scan_trial, observe=observe, total=None, remat=True)
        return jnp.sum(scan(act, params, stream, num_steps)[1])

    return jax.vmap(jax.grad(gap), in_axes=(None, 0))(actor, keys)


def _flat(tree: PyTree) -> np.ndarray:
    """Leaves (N, …) side by side, (N, parameters), float64."""
    leaves = [np.asarray(leaf, np.float64) for leaf in jax.tree.leaves(tree)]
    return np.concatenate([leaf.reshape(len(leaf), -1) for leaf in leaves], axis=1)


def _cosine(x: np.ndarray, y: np.ndarray) -> float:
    """xᵀy/(|x| |y|); NaN where one is zero or not finite."""
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        return float(x @ y / np.sqrt((x @ x) * (y @ y)))


# --- tables --------------------------------------------------------------------------------------


def _tables(visits: dict[str, np.ndarray], bins: int) -> Row:
    """What is measured on all visited states, by region and by time."""
    steps = np.arange(visits["value"].shape[1])
    alive = visits["weight"] > 0.0
    of_start = relative(visits["weight"] * visits["advantage"], visits["value"][:, :1])
    share = of_start / len(of_start)
    value = visits["value"][alive]
    ends = np.quantile(value, np.linspace(0.0, 1.0, bins + 1)) if value.size else np.zeros(2)
    region = np.clip(np.searchsorted(ends, visits["value"], "right") - 1, 0, len(ends) - 2)
    regions = [
        (float(ends[i]), float(ends[i + 1]), alive & (region == i)) for i in range(len(ends) - 1)
    ]
    times = [
        (int(block[0]), int(block[-1]), alive & np.isin(steps, block))
        for block in np.array_split(steps, min(bins, len(steps)))
    ]
    by_region, by_time = (
        [
            {"low": low, "high": high, **cell}
            for low, high, chosen in split
            if (cell := _cell(visits, chosen, share))
        ]
        for split in (regions, times)
    )
    whole = _cell(visits, alive, share)
    return {
        "relative_gap": whole.get("gap", float("nan")),
        "action_error": whole.get("action_error", float("nan")),
        "value_error": whole.get("value_error"),
        "q_error": whole.get("q_error"),
        "by_region": by_region,
        "by_time": by_time,
    }


def _cell(visits: dict[str, np.ndarray], chosen: np.ndarray, share: np.ndarray) -> Row:
    """The meters on some of the visited states, ``share`` (N, T) being what each adds to the gap;
    empty where there are none.
    """
    if not chosen.any():
        return {}
    advantage, value = visits["advantage"][chosen], visits["value"][chosen]
    needed = visits["needed"][chosen].sum()
    cell: Row = {
        "visits": int(chosen.sum()),
        "gap": float(share[chosen].sum()),
        "action_error": float(np.sqrt(relative(advantage.sum(), needed))),
    }
    meters = ("v_hat", "value_error", value), ("q_hat", "q_error", value + advantage)
    for name, label, exact in meters:
        if name in visits:
            error = relative(np.abs(visits[name][chosen] - exact), exact)
            with np.errstate(invalid="ignore"):
                ends = np.quantile(error, [0.1, 0.5, 0.9])
            if not np.isnan(error).any():  # between infinite errors none can be interpolated
                ends = np.where(np.isnan(ends), np.inf, ends)
            cell[label] = dict(zip(("low", "median", "high"), map(float, ends), strict=True))
    return cell


def summary(readings: Sequence[Diagnosis]) -> list[Row]:
    """One flat row a reading, for a table: names, gap, errors (medians) and cosines."""
    rows = []
    for reading in readings:
        names = ("fixture", "policy", "failures", "relative_gap", "action_error")
        row: Row = {name: getattr(reading, name) for name in names}
        for name in ("value_error", "q_error"):
            row[name] = (getattr(reading, name) or {}).get("median")
        for name in ("cosine", "of_mean", "reference"):
            row[f"gradient_{name}"] = (reading.gradient or {}).get(name)
        rows.append(row)
    return rows
