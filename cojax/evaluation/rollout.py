"""The program that runs every policy on the same streams and reduces as it goes.

Trial i of every fixture and every policy meets the initial state and the noise of episode 0 of
instance i under :mod:`cojax.streams`, which is what :class:`cojax.envs.CommonStreams` gives. The
optimum is computed once a step for all policies together; nothing is stacked over time.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from cojax import streams
from cojax.envs import EnvParams
from cojax.system import Optimum, next_mean

SATURATED = 0.999  # of the action limit: a squashed policy comes close without meeting it
ALIVE, DIVERGED, NONFINITE = range(3)
TERMS = ("discounted_cost", "cost", "advantage", "regret", "squared_distance", "saturated", "steps")


class Group(NamedTuple):
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


@partial(jax.jit, static_argnames=("groups",))
def run(
    groups: tuple[Group, ...],
    params: EnvParams,
    group_params: tuple[Any, ...],
    keys: Keys,
    initial_states: jax.Array | None,
    horizons: jax.Array,
    target: jax.Array,
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
    """
    per_fixture = tuple(0 if group.per_fixture else None for group in groups)
    one = partial(_run_fixture, groups)
    return jax.vmap(one, in_axes=(0, per_fixture, None, None, 0, None, None))(
        params, group_params, keys, initial_states, horizons, target, jnp.max(horizons)
    )


def _run_fixture(groups, params, group_params, keys, initial_states, horizon, target, longest):
    """One fixture: M members, N trials."""
    system = params.system
    num_members = sum(group.num_members for group in groups)
    if initial_states is None:
        s0 = jax.vmap(params.initial_state.sample)(keys.initial)
    else:
        s0 = initial_states.astype(system.gamma.dtype)
    value0 = jax.vmap(system.value)(s0)
    reach = target**2 * (value0 - system.offset)
    shape = (num_members, s0.shape[0])
    zero = jnp.zeros((len(TERMS), *shape), value0.dtype)
    actions = jnp.zeros((*shape, system.action_dim), value0.dtype)
    start = jnp.broadcast_to(s0, (num_members, *s0.shape))
    state = State(
        s=start,
        optimum=Optimum(start, actions, start),  # made in the round before the first step
        status=jnp.full(shape, ALIVE, jnp.int32),
        sums=Sum(zero, zero),
        entered=jnp.full(shape, horizon + 1, jnp.int32),
    )
    body = partial(_step, groups, params, group_params, keys.roots, horizon, reach)
    state = lax.fori_loop(-1, longest, body, state)
    final = _lanes(system.value)(state.s)
    return {
        "sums": state.sums,
        "optimal_value": value0,
        "final_value": final,
        "final_discount": _discount(system.gamma, horizon),
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
    system, s, optimum = params.system, state.s, state.optimum
    noise_keys, policy_keys = _lanes(partial(_fold_in, k))(roots)
    a = _act(groups, group_params, optimum, s, policy_keys)
    limit = params.action_limit
    saturated = jnp.mean((jnp.abs(a) >= SATURATED * limit).astype(s.dtype), axis=-1)
    if params.clip_actions:
        a = jnp.clip(a, -limit, limit)

    advantage = _lanes(system.excess_cost)(s, a - optimum.action)
    cost = _lanes(system.stage_cost)(s, a)
    cost_of_optimum = _lanes(system.stage_cost)(s, optimum.action)

    noise = jax.vmap(jax.vmap(system.sample_noise), in_axes=(0, None))(s, noise_keys)
    following = _lanes(partial(next_mean, system))(s, a, optimum) + noise
    excess = _lanes(system.value)(following) - system.offset

    running = (state.status == ALIVE) & (k >= 0) & (k < horizon)
    finite = jnp.isfinite(a).all(axis=-1) & jnp.isfinite(excess)
    inside = finite & (excess <= params.divergence_radius**2)
    stopped = jnp.where(inside, ALIVE, jnp.where(finite, DIVERGED, NONFINITE))
    weight = _discount(system.gamma, k)
    regret = cost - cost_of_optimum
    one = jnp.ones_like(cost)
    discounted = weight * jnp.stack([cost, advantage, regret])
    terms = jnp.concatenate(
        [discounted[:1], cost[None], discounted[1:], jnp.stack([advantage, saturated, one])]
    )
    s = jnp.where((running & inside)[..., None], following, s)
    entered = running & inside & (excess <= reach) & (state.entered > horizon)
    return State(
        s=s,
        optimum=_lanes(system.optimum)(s),
        status=jnp.where(running, stopped, state.status),
        sums=state.sums.add(jnp.where(running & finite, terms, 0.0)),
        entered=jnp.where(entered, k + 1, state.entered),
    )


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
        actions.append(over_members(params, *seen, keys).astype(s.dtype))
    return jnp.concatenate(actions)


def _lanes(function: Callable[..., Any]) -> Callable[..., Any]:
    """Batch a function of one state over members and trials."""
    return jax.vmap(jax.vmap(function))


def _fold_in(step: jax.Array, root: jax.Array) -> jax.Array:
    return jax.random.fold_in(root, step)


def _discount(gamma: jax.Array, k: jax.Array) -> jax.Array:
    """γᵏ by exp(k log γ): its relative error stays at k |log γ| roundings, where a running
    product would gather k.
    """
    return jnp.exp(k * jnp.log(gamma))
