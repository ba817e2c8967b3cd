"""The program that runs every policy on the same streams and reduces as it goes.

Trial i of every fixture and every policy meets the initial state and the noise of episode 0 of
instance i under :mod:`cojax.streams`, which is what :class:`cojax.envs.CommonStreams` gives. The
optimum is computed once a step for all policies together; nothing is stacked over time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from cojax import streams
from cojax.action_lists import chosen
from cojax.envs import EnvParams
from cojax.evaluation.host import HostPolicy
from cojax.system import Optimum, System, next_mean
from cojax.types import Array, Float, Int, PRNGKeyArray, PyTree

SATURATED = 0.999  # of the action limit: a squashed policy comes close without meeting it
ALIVE, DIVERGED, NONFINITE = range(3)
TERMS = ("discounted_cost", "cost", "advantage", "regret", "squared_distance", "saturated", "steps")


class PolicyGroup(NamedTuple):
    """Policies that share one function, hashable: what a compilation depends on."""

    act: Callable[[PyTree, Optimum, Array, PRNGKeyArray], Array]  # of one state
    num_members: int
    per_fixture: bool  # params carry a leading fixture axis, before the members'


class Sum(NamedTuple):
    """A compensated sum: the total is high + low, to about twice the precision of the terms."""

    high: Float[Array, "*shape"]
    low: Float[Array, "*shape"]

    def add(self, term: Float[Array, "*shape"]) -> Sum:
        """Add by two-sum (Knuth, TAOCP vol. 2, 4.2.2): ``low`` is the rounding error of ``high``,
        and joins the next term.
        """
        term = term + self.low
        high = self.high + term
        back = high - self.high
        return Sum(high, (self.high - (high - back)) + (term - back))


class State(NamedTuple):
    """What the loop carries, for one fixture; M members, N trials."""

    s: Float[Array, "*F M N d"]
    optimum: Optimum  # at s
    status: Int[Array, "*F M N"]  # ALIVE, or why the trial stopped
    sums: Sum  # (terms, M, N)
    entered: Int[Array, "*F M N"]  # first k with s_k in the target set; horizon + 1 before


class Keys(NamedTuple):
    """What trials draw from: N keys each."""

    initial: Array  # (N,): draws s_0
    roots: Array  # (2, N): fold in the step for the noise, and for what a policy draws


class Trials(NamedTuple):
    """What trials of F fixtures start from and are held against.

    Attributes:
        params: systems, stacked.
        keys: of N trials.
        starts: to start from, or None to draw from each system's law.
        horizons: steps of an episode.
        target: the target set is sqrt(V*(s) - b) <= target · sqrt(V*(s_0) - b).
    """

    params: EnvParams
    keys: Keys
    starts: Float[Array, "N d"] | None
    horizons: Int[Array, "*F"]
    target: Float[Array, ""]


def measures_of(system: System) -> tuple[str, ...]:
    """Names of the sums of a system's measures: Σ γᵏ m, and where they are known Σ γᵏ A_m."""
    kinds = ("measured", "excess") if system.measures_known else ("measured",)
    return tuple(f"{kind}_{name}" for kind in kinds for name in system.measures)


OVER_FIXTURES = Trials(0, None, None, 0, None)  # pyright: ignore[reportArgumentType]


class Bounds(NamedTuple):
    """Of one fixture: steps of an episode, and V* - b at which the target set begins, by trial."""

    horizon: Int[Array, "*F"]
    reach: Float[Array, "*F N"]


@partial(jax.jit, static_argnames=("num",))
def trial_keys(key: PRNGKeyArray, first: Array, num: int) -> Keys:
    """Keys of trials first … first + num - 1: episode 0 of those instances of the streams."""
    instances = first.astype(jnp.uint32) + jnp.arange(num, dtype=jnp.uint32)
    episodes = jax.vmap(lambda i: streams.episode_key(streams.stream_key(key, i), 0))(instances)
    roots = [jax.vmap(root)(episodes) for root in (streams.noise_root, streams.policy_root)]
    return Keys(jax.vmap(streams.initial_key)(episodes), jnp.stack(roots))


@partial(jax.jit, static_argnames=("groups", "controls"))
def run(
    groups: tuple[PolicyGroup, ...],
    group_params: tuple[PyTree, ...],
    trials: Trials,
    controls: bool = False,
) -> dict[str, PyTree]:
    """Sums of every metric's terms, ``sums`` of shape (F, len(TERMS), M, N), and how trials ended.
    Those of :func:`measures_of` the systems follow, where they have any.

    Args:
        groups: what acts; their members in order make the M axis.
        group_params: one pytree a group, leading axes ([F,] members).
        trials: what they meet.
        controls: whether the sums of :mod:`cojax.evaluation.control_variates` follow, 2d terms
            more.
    """
    chex.assert_rank(trials.horizons, 1)
    longest = jnp.max(trials.horizons)

    def of_fixture(group_params, trials):
        num_members = sum(group.num_members for group in groups)
        actions = getattr(trials.params.system, "actions", None)
        state, bounds, begun = _start(num_members, controls, trials)

        def body(k, state):
            # The optimum at s is carried from the round before: a number in memory and no
            # expression that the compiler may evaluate twice with different roundings. So an
            # action that is a* differs from a* by exactly 0. Round -1 fills it in at s_0.
            noise_keys, policy_keys = _lanes(partial(_fold_in, k))(trials.keys.roots)
            seen = state._replace(s=state.s[..., : trials.params.system.observed_dim])
            a = _act(groups, group_params, seen, policy_keys, actions=actions)
            return _advance(trials.params, noise_keys, bounds, k, state=state, a=a)

        state = lax.fori_loop(-1, longest, body, state)
        return _finish(trials.params, bounds, state) | begun

    per_fixture = tuple(0 if group.per_fixture else None for group in groups)
    return jax.vmap(of_fixture, in_axes=(per_fixture, OVER_FIXTURES))(group_params, trials)


def _start(
    num_members: int, controls: bool, trials: Trials
) -> tuple[State, Bounds, dict[str, Array]]:
    """Before the round that makes the optimum at s_0; and what is known then."""
    params, system = trials.params, trials.params.system
    if trials.starts is None:
        s0 = jax.vmap(params.initial_state.sample)(trials.keys.initial)
    else:
        s0 = trials.starts.astype(system.gamma.dtype)
    N, d, m = len(trials.keys.initial), system.state_dim, system.action_dim
    chex.assert_shape(s0, (N, d))
    value0 = jax.vmap(system.value)(s0)
    bounds = Bounds(trials.horizons, trials.target**2 * (value0 - system.offset))
    shape = (num_members, N)
    num_terms = len(TERMS) + len(measures_of(system)) + 2 * d * controls
    zero = jnp.zeros((num_terms, *shape), value0.dtype)
    start = jnp.broadcast_to(s0, (*shape, d))
    state = State(
        s=start,
        optimum=Optimum(start, jnp.zeros((*shape, m), value0.dtype), start),
        status=jnp.full(shape, ALIVE, jnp.int32),
        sums=Sum(zero, zero),
        entered=jnp.full(shape, bounds.horizon + 1, jnp.int32),
    )
    return state, bounds, {"optimal_value": value0, "initial_state": s0.T}


def _finish(params: EnvParams, bounds: Bounds, state: State) -> dict[str, PyTree]:
    """What a fixture's last state says."""
    return {
        "sums": state.sums,
        "final_value": _lanes(params.system.value)(state.s),
        "final_discount": discount(params.system.gamma, bounds.horizon),
        "status": state.status,
        "time_to_target": jnp.minimum(state.entered, bounds.horizon),
        "reached": state.entered <= bounds.horizon,
    }


def _advance(
    params: EnvParams,
    noise_keys: Array,
    bounds: Bounds,
    k: Int[Array, ""],
    *,
    state: State,
    a: Float[Array, "M N m"],
) -> State:
    """Step k of all members and trials of one fixture; k = -1 fills in the optimum at s_0."""
    system, s, optimum, horizon = params.system, state.s, state.optimum, bounds.horizon
    chex.assert_equal_shape([a, optimum.action])
    limit = params.action_limit[None, None]
    saturated = jnp.mean((jnp.abs(a) >= SATURATED * limit).astype(s.dtype), axis=-1)
    a = params.clip(a)

    advantage = _lanes(system.excess_cost)(s, a - optimum.action, optimum)
    cost = _lanes(system.cost_at)(s, a, optimum)
    cost_of_optimum = _lanes(system.cost_at)(s, optimum.action, optimum)

    noise = jax.vmap(jax.vmap(system.sample_noise), in_axes=(0, None, 0))(s, noise_keys, a)
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
    if system.measures:
        terms = jnp.concatenate([terms, weight * _measured(system, s, a, optimum=optimum)])
    if len(state.sums.high) > len(terms):
        variates = jnp.concatenate([noise, mean * noise], axis=-1)
        variates = weight * system.gamma * jnp.moveaxis(variates, -1, 0)
        terms = jnp.concatenate([terms, variates])
    s = jnp.where((running & inside)[..., None], following, s)
    entered = running & inside & (excess <= bounds.reach[None]) & (state.entered > horizon)
    return State(
        s=s,
        optimum=_lanes(system.optimum)(s),
        status=jnp.where(running, stopped, state.status),
        sums=state.sums.add(jnp.where(running & finite, terms, 0.0)),
        entered=jnp.where(entered, k + 1, state.entered),
    )


def _measured(
    system: System, s: Float[Array, "M N d"], a: Float[Array, "M N m"], *, optimum: Optimum
) -> Float[Array, "k M N"]:
    """What the sums of :func:`measures_of` are made of."""
    found = _lanes(system.measured)(s, a, optimum)
    if system.measures_known:
        excess = _lanes(system.measured_excess)(s, a - optimum.action, optimum)
        found = jnp.concatenate([found, excess], axis=-1)
    return jnp.moveaxis(found, -1, 0)


# --- policies on the host ------------------------------------------------------------------------


def run_on_host(
    policies: Sequence[HostPolicy], trials: Trials, controls: bool = False
) -> dict[str, PyTree]:
    """What :func:`run` gives, of policies that act between compiled steps; M of them.

    One step of all fixtures, policies and trials is one call; every policy is asked for its
    actions at the observations (F N, d) of all.
    """
    params, m = trials.params, trials.params.system.action_dim
    noise_roots = trials.keys.roots[0]
    state, bounds, begun = _host_start(len(policies), controls, trials)
    F, M, N = state.s.shape[:3]
    d = params.system.observed_dim
    policies = [policy.begun() for policy in policies]
    a, actions = np.zeros((F, M, N, m), state.s.dtype), getattr(params.system, "actions", None)
    lists = None if actions is None else np.repeat(np.asarray(actions), N, axis=0)  # (F N, k, m)
    for k in range(-1, int(np.max(np.asarray(trials.horizons)))):
        if k >= 0:
            obs = np.asarray(state.s)[..., :d]
            for j, policy in enumerate(policies):
                a[:, j] = policy.actions(obs[:, j].reshape(F * N, d), m, lists).reshape(F, N, m)
        state = _host_step(params, noise_roots, bounds, np.int32(k), state=state, a=a)
    return _host_finish(params, bounds, state) | begun


@partial(jax.jit, static_argnums=(0, 1))
def _host_start(num_members, controls, trials):
    return jax.vmap(partial(_start, num_members, controls), in_axes=(OVER_FIXTURES,))(trials)


@partial(jax.jit, donate_argnames=("state",))
def _host_step(params, noise_roots, bounds, k, *, state, a):
    noise_keys = jax.vmap(partial(_fold_in, k))(noise_roots)

    def one(params, bounds, state, a):
        return _advance(params, noise_keys, bounds, k, state=state, a=a)

    return jax.vmap(one)(params, bounds, state, a)


_host_finish = jax.jit(jax.vmap(_finish))


# --- parts ---------------------------------------------------------------------------------------


def _act(groups, group_params, state: State, keys: Array, *, actions) -> Float[Array, "M N m"]:
    """Actions of all members, each group by its own function."""
    made, first = [], 0
    for group, params in zip(groups, group_params, strict=True):
        lanes = slice(first, first + group.num_members)
        first += group.num_members
        seen = jax.tree.map(lambda x, lanes=lanes: x[lanes], (state.optimum, state.s))
        over_trials = jax.vmap(group.act, in_axes=(None, 0, 0, 0))
        over_members = jax.vmap(over_trials, in_axes=(0, 0, 0, None))
        shared = jax.random.clone(keys)  # the same for every group, and meant to be
        given = over_members(params, *seen, shared)
        if given.ndim == 2:  # indices
            given = chosen(actions, given)
        made.append(given.astype(state.s.dtype))
    return jnp.concatenate(made)


def _lanes(function: Callable[..., PyTree]) -> Callable[..., PyTree]:
    """Batch a function of one state over members and trials."""
    return jax.vmap(jax.vmap(function))


def _fold_in(step: Int[Array, ""], root: PRNGKeyArray) -> PRNGKeyArray:
    return jax.random.fold_in(root, jnp.asarray(step, jnp.int32))  # -1 too, and without jit


def discount(gamma: Float[Array, ""], k: Int[Array, "*shape"]) -> Float[Array, "*shape"]:
    """γᵏ by exp(k log γ): its relative error stays at k |log γ| roundings, where a running
    product would gather k.
    """
    return jnp.exp(jnp.asarray(k, gamma.dtype) * jnp.log(gamma))
