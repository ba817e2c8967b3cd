"""A conformance test for environments of known optimum, yours included.

    from cojax.testing import check_env
    check_env(env, params)

It needs gymnax's interface (version 1.0) and an oracle: ``params.system``, or functions of yours.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from gymnax.environments.environment import Environment
from numpy.typing import ArrayLike

from cojax import oracle as oracles
from cojax import streams
from cojax.envs import CommonStreams
from cojax.errors import InputError
from cojax.types import Array, Float, Key, PyTree

STANDARD_ERRORS = 6.0  # of a mean, beyond which it is not what it should be


class ConformanceError(AssertionError):
    """What an environment does not hold to, one line a finding."""


@dataclasses.dataclass(frozen=True)
class Oracle:
    """The known optimum, of one observation; costs are minimised, a reward is -c.

    Attributes:
        action: s (d,) -> a*(s), (m,).
        value: s (d,) -> V*(s), (), a cost to go >= 0.
        advantage: s (d,), a (m,) -> A*(s, a) = Q*(s, a) - V*(s), (); None where it is not known.
        discount: γ.
        certainty: s, draws of V*(s') (N,) -> what they count for, and its standard error; None for
            their mean (:meth:`cojax.system.System.certainty`).
    """

    action: Callable[[Float[Array, "d"]], Float[Array, "m"]]
    value: Callable[[Float[Array, "d"]], Float[Array, ""]]
    advantage: Callable[[Float[Array, "d"], Float[Array, "m"]], Float[Array, ""]] | None
    discount: Float[Array, ""] | float
    certainty: Callable[..., tuple[Float[Array, ""], Float[Array, ""]]] | None = None


@streams.pinned()
def check_env(
    env: Environment,
    params: PyTree,
    oracle: Oracle | None = None,
    *,
    seed: int = 0,
    num_states: int = 8,
    num_draws: int = 4096,
    tolerance: float = 1e-4,
) -> None:
    """Check an environment of known optimum; returns None where everything holds.

    What is checked, at states that the reset and random actions lead to:

    * the interface: shapes, dtypes and spaces of reset and step, six values, under jit and vmap,
      the same for one key; ``info["final_observation"]``;
    * the end of an episode: the time limit sets ``truncated`` alone (unless the params say
      ``terminal_value="optimal"``), and the observation is then that of a fresh episode;
    * the oracle: |-r + γ V*(s') - V*(s)| averages to 0 over the noise at a = a*(s), and to
      A*(s, a) elsewhere, within six standard errors; A*(s, a*) = 0 within ``tolerance`` of V*,
      and A* >= 0 at random actions; V* >= 0 and the optimal action is finite;
    * common random numbers: under :class:`cojax.envs.CommonStreams` an instance meets the same
      noise and the same next initial state whatever acts, and step keys change nothing.

    Args:
        env: a gymnax 1.0 environment with a Box of actions.
        params: its params; ``max_steps_in_episode`` is a field that ``replace`` changes.
        oracle: the known optimum; None takes ``params.system``.
        seed: of states, actions and noise.
        num_states: states that are visited.
        num_draws: draws of the noise at each.
        tolerance: of equalities that should be exact, relative to V*.

    Raises ConformanceError, an AssertionError, with one line for each thing that does not hold;
    InputError where there is no oracle.
    """
    if oracle is None:
        oracle = _oracle_of(params)
    probe = Probe(env, params, oracle, seed, num_states, num_draws, tolerance)
    findings: list[str] = []
    for check in CHECKS:
        try:
            findings += [f"{check.__name__[1:].replace('_', ' ')}: {x}" for x in check(probe)]
        except Exception as error:  # whatever a stranger's environment raises
            first = (str(error).strip() or type(error).__name__).splitlines()[0]
            name = check.__name__[1:].replace("_", " ")
            findings.append(f"{name}: it fails with {type(error).__name__}: {first}")
        if findings and check is _interface:
            break  # the others stand on it
    if findings:
        raise ConformanceError("\n".join(findings))


@dataclasses.dataclass(frozen=True)
class Probe:
    """What every check gets: the arguments of :func:`check_env`."""

    env: Environment
    params: PyTree
    oracle: Oracle
    seed: int
    num_states: int
    num_draws: int
    tolerance: float

    def keys(self, stage: int, num: int) -> Key[Array, "N"]:
        """Keys (num,) of a ``stage`` of the test, a number."""
        return jax.random.split(jax.random.fold_in(streams.seed_key(self.seed), stage), num)

    def actions(self, stage: int, num: int) -> Float[Array, "N m"]:
        """``num`` random actions of the action space, from the keys of a ``stage``."""
        return jax.vmap(self.env.action_space(self.params).sample)(self.keys(stage, num))

    def lasting(self, steps: int) -> PyTree:
        """The params with episodes of that many steps."""
        old = self.params.max_steps_in_episode
        new = steps if isinstance(old, int) else jnp.full_like(old, steps)
        return self.params.replace(max_steps_in_episode=new)

    @functools.cached_property
    def states(self) -> tuple[PyTree, Float[Array, "N d"], Float[Array, "N m"]]:
        """States (N,) after a reset and one random action, their observations, and actions."""
        n = self.num_states
        start = jax.jit(jax.vmap(self.env.reset, (0, None)))(self.keys(0, n), self.params)
        actions = self.actions(1, n)
        step = jax.jit(jax.vmap(self.env.step, (0, 0, 0, None)))
        obs, state, *_ = step(self.keys(2, n), start[1], actions, self.params)
        return state, obs, actions

    @functools.cached_property
    def optimum(self) -> dict[str, np.ndarray]:
        """At the states: V*, a*, and A* at a*, at what the environment takes for it, at random
        actions; A* is 0 where it is not known.
        """
        oracle = self.oracle

        @jax.jit
        @jax.vmap
        def at(s, a):
            best = oracle.action(s)
            advantage = oracle.advantage or (lambda s, a: jnp.zeros(()))
            return {
                "value": oracle.value(s),
                "action": best,
                "at_action": advantage(s, best),
                "at_clipped": advantage(s, self.clipped(best)),
                "at_random": advantage(s, self.clipped(a)),
            }

        return jax.tree.map(np.asarray, at(*self.states[1:]))

    def clipped(self, actions: Float[Array, "*N m"]) -> Float[Array, "*N m"]:
        """The actions that the environment takes for these."""
        clip = getattr(self.params, "clip", None)
        return actions if clip is None else clip(actions)


def _oracle_of(params: PyTree) -> Oracle:
    system = getattr(params, "system", None)
    if system is None:
        raise InputError("oracle: expected params with a system, or a cojax.testing.Oracle")
    if system.observed_dim < system.state_dim:
        raise InputError(
            "oracle: expected a system of which all is observed: an optimum that remembers is none "
            "of the observation; check params of system.known"
        )
    return Oracle(
        functools.partial(oracles.action, system),
        functools.partial(oracles.value, system),
        functools.partial(oracles.advantage, system),
        system.gamma,
        None if system.additive else system.certainty,
    )


def _interface(probe: Probe) -> list[str]:
    """Shapes, dtypes, spaces, six values, jit against plain, one key one result."""
    env, params, n = probe.env, probe.params, probe.num_states
    found = []
    key, action = probe.keys(2, n)[0], probe.actions(1, n)[0]
    obs, state = env.reset(probe.keys(0, n)[0], params)
    space = env.observation_space(params)
    if obs.shape != tuple(space.shape):
        found.append(f"expected an observation of shape {tuple(space.shape)}, got {obs.shape}")
    if not bool(space.contains(obs)):
        found.append("the first observation is outside of the observation space")
    out = env.step(key, state, action, params)
    if len(out) != 6:
        return [*found, f"expected six values from step, got {len(out)}"]
    after, _, reward, terminated, truncated, info = out
    if after.shape != obs.shape or after.dtype != obs.dtype:
        found.append(f"step gives observations {after.shape} of {after.dtype}, reset others")
    if jnp.shape(reward) != () or not jnp.issubdtype(jnp.asarray(reward).dtype, jnp.floating):
        found.append(f"expected a reward of shape (), floating, got {jnp.shape(reward)}")
    for name, flag in (("terminated", terminated), ("truncated", truncated)):
        if jnp.shape(flag) != () or jnp.asarray(flag).dtype != bool:
            found.append(f"expected {name} of shape (), bool, got {jnp.asarray(flag).dtype}")
    if "final_observation" not in info:
        found.append('expected info["final_observation"]')
    again = env.step(jax.random.clone(key), state, action, params)
    if not _same(out, again):
        found.append("the same key gives another step")
    if not _close(probe.states[1][0], after):
        found.append("the step under jit and vmap is another than the plain one")
    return found


def _end_of_an_episode(probe: Probe) -> list[str]:
    """The time limit truncates, and the next episode has begun."""
    env, params = probe.env, probe.lasting(2)
    found = []
    first, state = env.reset(probe.keys(3, 1)[0], params)
    obs, flags, info, action = first, [], {}, None
    for k in range(2):
        action = probe.oracle.action(obs)
        obs, state, _, terminated, truncated, info = env.step(
            probe.keys(4, 2)[k], state, action, params
        )
        flags.append((bool(terminated), bool(truncated)))
    posed = getattr(params, "terminal_value", "none") == "optimal"
    expected = (True, False) if posed else (False, True)
    if flags[0] != (False, False):
        found.append("an episode of two steps ends after one under the optimal action")
    if flags[1] != expected:
        found.append(f"the time limit gives (terminated, truncated) = {flags[1]}, not {expected}")
    if _close(info["final_observation"], obs) and not _close(first, obs):
        found.append("after the last step the observation is not that of a fresh episode")
    _, _, _, terminated, truncated, _ = env.step(probe.keys(4, 2)[0], state, action, params)
    if bool(terminated) or bool(truncated):
        found.append("the episode after the first does not begin at step 0")
    return found


def _oracle_values(probe: Probe) -> list[str]:
    """V* >= 0, a* finite, A* = 0 at a* and >= 0 elsewhere."""
    found, at = [], probe.optimum
    value, shape = at["value"], probe.states[2].shape
    if at["action"].shape != shape:
        return [f"expected optimal actions of shape {shape[1:]}, got {at['action'].shape[1:]}"]
    if not np.isfinite(at["action"]).all():
        found.append("an optimal action is not finite")
    if not (value >= 0.0).all():
        found.append(f"expected V* >= 0, got {value.min():g}")
    if probe.oracle.advantage is not None:
        scale = np.where(value > 0.0, value, 1.0)  # 0 in the origin of a system without noise
        largest = np.abs(at["at_action"] / scale).max()
        smallest = (at["at_random"] / scale).min()
        if not largest <= probe.tolerance:
            found.append(f"expected A*(s, a*) = 0, got {largest:g} of V*")
        if not smallest >= -probe.tolerance:
            found.append(f"expected A* >= 0, got {smallest:g} of V*")
    return found


def _bellman_equation(probe: Probe) -> list[str]:
    """E(-r + γ V*(s')) - V*(s) is A*(s, a), and 0 at a*, within the errors of the means."""
    state, obs, actions = probe.states
    oracle, at = probe.oracle, probe.optimum
    keys = probe.keys(5, probe.num_draws)

    def residual(key, state, s, a):
        out = probe.env.step_env(key, state, a, probe.params)
        after, _, reward, terminated, _ = out
        going_on = jnp.where(terminated, 0.0, oracle.discount * oracle.value(after))
        return -reward + going_on - oracle.value(s)

    @jax.jit
    def moments(a):
        over_keys = jax.vmap(residual, (0, None, None, None))
        again = jax.random.clone(keys)  # for both kinds of actions
        x = jax.vmap(over_keys, (None, 0, 0, 0))(again, state, obs, a)
        if oracle.certainty is None:
            return x.mean(axis=1), x.std(axis=1) / probe.num_draws**0.5
        # all but γ V*(s') is the same in all draws, and goes through the certainty equivalent
        found = jax.vmap(oracle.certainty)(obs, x / oracle.discount)
        return tuple(oracle.discount * part for part in found)

    value = at["value"]
    trials: list[tuple[str, np.ndarray, np.ndarray]] = [("at a*", at["action"], at["at_clipped"])]
    if oracle.advantage is None:
        trials = [("at a*", at["action"], np.zeros_like(value))]
    else:
        trials.append(("at random actions", np.asarray(actions), at["at_random"]))
    found = []
    for where, a, expected in trials:
        mean, error = (np.asarray(x) for x in moments(jnp.asarray(a)))
        allowed = STANDARD_ERRORS * error + probe.tolerance * (value + np.abs(expected))
        excess = np.abs(mean - expected) / np.maximum(allowed, np.finfo(np.float32).tiny)
        if not excess.max() <= 1.0:
            i = int(np.argmax(np.where(np.isnan(excess), np.inf, excess)))
            found.append(
                f"{where} E(-r + γ V*(s')) - V*(s) = {mean[i]:g} ± {error[i]:.1g}, "
                f"not {expected[i]:g} (V* = {value[i]:g})"
            )
    return found


def _common_random_numbers(probe: Probe) -> list[str]:
    """An instance meets one noise and one next start, whatever acts and whatever the keys."""
    wrapped, params = CommonStreams(probe.env), probe.lasting(2)
    stream = streams.stream_key(streams.root_key(probe.seed), 3)
    ends = []
    for trial in range(2):
        obs, state = wrapped.reset(stream, params)
        first = obs
        for k in range(2):
            obs, state, *_ = wrapped.step(
                probe.keys(6 + trial, 2)[k], state, probe.actions(8 + trial, 2)[k], params
            )
        ends.append((first, obs))
    found = []
    if not _close(ends[0][0], ends[1][0]):
        found.append("one instance has two initial states")
    if not _close(ends[0][1], ends[1][1]):
        found.append("the next initial state depends on the actions or on the keys of steps")
    _, state = wrapped.reset(stream, params)
    action = probe.actions(8, 1)[0]
    steps = [wrapped.step(key, state, action, params)[0] for key in probe.keys(10, 2)]
    if not _close(steps[0], steps[1]):
        found.append("the noise depends on the keys of steps")
    return found


CHECKS = (
    _interface,
    _end_of_an_episode,
    _oracle_values,
    _bellman_equation,
    _common_random_numbers,
)


def _same(a: PyTree, b: PyTree) -> bool:
    return all(np.array_equal(x, y) for x, y in zip(*map(jax.tree.leaves, (a, b)), strict=True))


def _close(a: ArrayLike, b: ArrayLike) -> bool:
    return bool(np.allclose(np.asarray(a), np.asarray(b), rtol=1e-4, atol=1e-6))
