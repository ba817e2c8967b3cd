"""The program that runs every policy on the same streams and reduces as it goes.

Trial i of every fixture and every policy meets the initial state and the noise of episode 0 of
instance i under :mod:`cojax.streams`, which is what :class:`cojax.envs.CommonStreams` gives. The
optimum is computed once a step for all policies together; nothing is stacked over time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from cojax import streams
from cojax.envs import EnvParams
from cojax.evaluation.host import HostPolicy
from cojax.system import Optimum, next_mean

SATURATED = 0.999  # of the action limit: a squashed policy comes close without meeting it
ALIVE, DIVERGED, NONFINITE = range(3)
TERMS = ("discounted_cost", "cost", "advantage", "regret", "squared_distance", "saturated", "steps")


class PolicyGroup(NamedTuple):
    """Policies that share one function, hashable: what a compilation depends on."""

    act: Callable[..., jax.Array]
    sees_optimum: bool  # act(params, optimum, obs, key), else act(params, obs, key)
    num_members: int
    per_fixture: bool  # params carry a leading fixture axis, before the members'


class Sum(NamedTuple):
    """A compensated sum: the total is high + low, to about twice the precision of the terms."""

    high: jax.Array
    low: jax.Array

    def add(self, term: jax.Array) -> Sum:
        """Add by two-sum (Knuth, TAOCP vol. 2, 4.2.2): ``low`` is the rounding error of ``high``,
        and joins the next term.
        """
        term = term + self.low
        high = self.high + term
        back = high - self.high
        return Sum(high, (self.high - (high - back)) + (term - back))


class State(NamedTuple):
    """What the loop carries, for one fixture; M members, N trials."""

    s: jax.Array  # (M, N, d)
    optimum: Optimum  # at s, (M, N, ·)
    status: jax.Array  # (M, N) int32: ALIVE, or why the trial stopped
    sums: Sum  # (len(TERMS), M, N)
    entered: jax.Array  # (M, N) int32: first k with s_k in the target set; horizon + 1 before


class Keys(NamedTuple):
    """What trials draw from: N keys each."""

    initial: jax.Array  # draws s_0
    roots: jax.Array  # (2, N): fold in the step for the noise, and for what a policy draws


@partial(jax.jit, static_argnames=("num",))
def trial_keys(key: jax.Array, first: jax.Array, num: int) -> Keys:
    """Keys of trials first … first + num - 1: episode 0 of those instances of the streams."""
    instances = first.astype(jnp.uint32) + jnp.arange(num, dtype=jnp.uint32)
    episodes = jax.vmap(lambda i: streams.episode_key(streams.stream_key(key, i), 0))(instances)
    roots = [jax.vmap(root)(episodes) for root in (streams.noise_root, streams.policy_root)]
    return Keys(jax.vmap(streams.initial_key)(episodes), jnp.stack(roots))


@partial(jax.jit, static_argnames=("groups", "controls"))
def run(
    groups: tuple[PolicyGroup, ...],
    params: EnvParams,
    group_params: tuple[Any, ...],
    keys: Keys,
    initial_states: jax.Array | None,
    horizons: jax.Array,
    target: jax.Array,
    controls: bool = False,
) -> dict[str, Any]:
    """Sums of every metric's terms, ``sums`` of shape (F, len(TERMS), M, N), and how trials ended.

    Args:
        groups: what acts; their members in order make the M axis.
        params: F systems, stacked.
        group_params: one pytree a group, leading axes ([F,] members).
        keys: of N trials.
        initial_states: (N, d) to start from, or None to draw from each system's law.
        horizons: (F,) steps of an episode.
        target: the target set is sqrt(V*(s) - b) <= target · sqrt(V*(s_0) - b).
        controls: whether the sums of :mod:`cojax.evaluation.control_variates` follow, 2d terms
            more.
    """
    per_fixture = tuple(0 if group.per_fixture else None for group in groups)
    one = partial(_run_fixture, groups, controls)
    return jax.vmap(one, in_axes=(0, per_fixture, None, None, 0, None, None))(
        params, group_params, keys, initial_states, horizons, target, jnp.max(horizons)
    )


def _run_fixture(
    groups, controls, params, group_params, keys, initial_states, horizon, target, longest
):
    """One fixture: M members, N trials."""
    num_members = sum(group.num_members for group in groups)
    state, reach, value0 = _start(
        num_members, controls, params, keys, initial_states, horizon, target
    )
    body = partial(_step, groups, params, group_params, keys.roots, horizon, reach)
    state = lax.fori_loop(-1, longest, body, state)
    return _finish(params, horizon, state, value0)


def _start(
    num_members: int,
    controls: bool,
    params: EnvParams,
    keys: Keys,
    initial_states: Any,
    horizon: Any,
    target: Any,
) -> tuple[State, jax.Array, jax.Array]:
    """Before the round that makes the optimum at s_0; the target set's level, and V*(s_0), (N,)."""
    system = params.system
    if initial_states is None:
        s0 = jax.vmap(params.initial_state.sample)(keys.initial)
    else:
        s0 = initial_states.astype(system.gamma.dtype)
    value0 = jax.vmap(system.value)(s0)
    reach = target**2 * (value0 - system.offset)
    shape = (num_members, s0.shape[0])
    terms = len(TERMS) + 2 * system.state_dim * controls
    zero = jnp.zeros((terms, *shape), value0.dtype)
    actions = jnp.zeros((*shape, system.action_dim), value0.dtype)
    start = jnp.broadcast_to(s0, (num_members, *s0.shape))
    state = State(
        s=start,
        optimum=Optimum(start, actions, start),  # made in the round before the first step
        status=jnp.full(shape, ALIVE, jnp.int32),
        sums=Sum(zero, zero),
        entered=jnp.full(shape, horizon + 1, jnp.int32),
    )
    return state, reach, value0


def _finish(
    params: EnvParams, horizon: jax.Array, state: State, value0: jax.Array
) -> dict[str, Any]:
    """What a fixture's last state says."""
    return {
        "sums": state.sums,
        "optimal_value": value0,
        "final_value": _lanes(params.system.value)(state.s),
        "final_discount": discount(params.system.gamma, horizon),
        "status": state.status,
        "time_to_target": jnp.minimum(state.entered, horizon),
        "reached": state.entered <= horizon,
    }


def _step(groups, params, group_params, roots, horizon, reach, k, state: State) -> State:
    """Step k of all members and trials of one fixture; k = -1 only fills in the optimum at s_0.

    The optimum at s is carried from the round before. So it is a number in memory and not an
    expression that the compiler may evaluate twice with different roundings, and an action that
    is a* differs from a* by exactly 0.
    """
    noise_keys, policy_keys = _lanes(partial(_fold_in, k))(roots)
    a = _act(groups, group_params, state.optimum, state.s, policy_keys)
    return _advance(params, noise_keys, horizon, reach, k, state, a)


def _advance(params, noise_keys, horizon, reach, k, state: State, a: jax.Array) -> State:
    """Step k under actions a, (M, N, m)."""
    system, s, optimum = params.system, state.s, state.optimum
    limit = params.action_limit[None, None]
    saturated = jnp.mean((jnp.abs(a) >= SATURATED * limit).astype(s.dtype), axis=-1)
    a = params.clip(a)

    advantage = _lanes(system.excess_cost)(s, a - optimum.action)
    cost = _lanes(system.stage_cost)(s, a)
    cost_of_optimum = _lanes(system.stage_cost)(s, optimum.action)

    noise = jax.vmap(jax.vmap(system.sample_noise), in_axes=(0, None))(s, noise_keys)
    mean = _lanes(partial(next_mean, system))(s, a, optimum)
    following = mean + noise
    excess = _lanes(system.value)(following) - system.offset

    running = (state.status == ALIVE) & (k >= 0) & (k < horizon)
    finite = jnp.isfinite(a).all(axis=-1) & jnp.isfinite(excess)
    inside = finite & (excess <= params.divergence_radius**2)
    stopped = jnp.where(inside, ALIVE, jnp.where(finite, DIVERGED, NONFINITE))
    weight = discount(system.gamma, k)
    regret = cost - cost_of_optimum
    one = jnp.ones_like(cost)
    discounted = weight * jnp.stack([cost, advantage, regret])
    terms = jnp.concatenate(
        [discounted[:1], cost[None], discounted[1:], jnp.stack([advantage, saturated, one])]
    )
    if len(state.sums.high) > len(TERMS):
        variates = jnp.concatenate([noise, mean * noise], axis=-1)
        variates = weight * system.gamma * jnp.moveaxis(variates, -1, 0)
        terms = jnp.concatenate([terms, variates])
    s = jnp.where((running & inside)[..., None], following, s)
    entered = running & inside & (excess <= reach[None]) & (state.entered > horizon)
    return State(
        s=s,
        optimum=_lanes(system.optimum)(s),
        status=jnp.where(running, stopped, state.status),
        sums=state.sums.add(jnp.where(running & finite, terms, 0.0)),
        entered=jnp.where(entered, k + 1, state.entered),
    )


# --- policies on the host ------------------------------------------------------------------------


def run_on_host(
    policies: Sequence[HostPolicy],
    params: EnvParams,
    keys: Keys,
    initial_states: jax.Array | None,
    horizons: jax.Array,
    target: jax.Array,
    controls: bool = False,
) -> dict[str, Any]:
    """What :func:`run` gives, of policies that act between compiled steps; M of them.

    One step of all fixtures, policies and trials is one call; every policy is asked for its
    actions at the observations (F N, d) of all.
    """
    m = params.system.action_dim
    state, reach, value0 = _host_start(
        len(policies), controls, params, keys, initial_states, horizons, target
    )
    F, M, N, d = state.s.shape
    policies = [policy.begun() for policy in policies]
    noise_roots = keys.roots[0]
    a = np.zeros((F, M, N, m), state.s.dtype)
    for k in range(-1, int(np.max(np.asarray(horizons)))):
        if k >= 0:
            obs = np.asarray(state.s)
            for j, policy in enumerate(policies):
                a[:, j] = policy.actions(obs[:, j].reshape(F * N, d), m).reshape(F, N, m)
        state = _host_step(params, noise_roots, horizons, reach, np.int32(k), state, a)
    return _host_finish(params, horizons, state, value0)


@partial(jax.jit, static_argnums=(0, 1))
def _host_start(num_members, controls, params, keys, initial_states, horizons, target):
    one = partial(_start, num_members, controls)
    axes = (0, None, None, 0, None)
    return jax.vmap(one, in_axes=axes)(params, keys, initial_states, horizons, target)


@partial(jax.jit, donate_argnames=("state",))
def _host_step(params, noise_roots, horizons, reach, k, state, a):
    noise_keys = jax.vmap(partial(_fold_in, k))(noise_roots)
    axes = (0, None, 0, 0, None, 0, 0)
    return jax.vmap(_advance, in_axes=axes)(params, noise_keys, horizons, reach, k, state, a)


@jax.jit
def _host_finish(params, horizons, state, value0):
    return jax.vmap(_finish)(params, horizons, state, value0)


# --- parts ---------------------------------------------------------------------------------------


def _act(groups, group_params, optimum: Optimum, s: jax.Array, keys: jax.Array) -> jax.Array:
    """Actions of all members, (M, N, m), each group by its own function."""
    actions, first = [], 0
    for group, params in zip(groups, group_params, strict=True):
        lanes = slice(first, first + group.num_members)
        first += group.num_members
        if group.sees_optimum:
            seen = (jax.tree.map(lambda x, lanes=lanes: x[lanes], optimum), s[lanes])
        else:
            seen = (s[lanes],)
        over_trials = jax.vmap(group.act, in_axes=(None, *(0 for _ in seen), 0))
        over_members = jax.vmap(over_trials, in_axes=(0, *(0 for _ in seen), None))
        shared = jax.random.clone(keys)  # the same for every group, and meant to be
        actions.append(over_members(params, *seen, shared).astype(s.dtype))
    return jnp.concatenate(actions)


def _lanes(function: Callable[..., Any]) -> Callable[..., Any]:
    """Batch a function of one state over members and trials."""
    return jax.vmap(jax.vmap(function))


def _fold_in(step: jax.Array, root: jax.Array) -> jax.Array:
    return jax.random.fold_in(root, jnp.asarray(step, jnp.int32))  # -1 too, and without jit


def discount(gamma: jax.Array, k: jax.Array) -> jax.Array:
    """γᵏ by exp(k log γ): its relative error stays at k |log γ| roundings, where a running
    product would gather k.
    """
    return jnp.exp(jnp.asarray(k, gamma.dtype) * jnp.log(gamma))
