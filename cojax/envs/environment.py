"""The environment: one stateless gymnax class for every system.

    reward = -c(s, a),  s' = f(s) + G(s) a + w,  observation = state

The system, the initial law, the action bound and the horizon are leaves of the params
(:mod:`cojax.envs.params`), so one compilation serves every system of one shape.
"""

from __future__ import annotations

# gymnax types its fields as int and its methods as jitted; ours are arrays, and plain methods
# that find the params first.
# pyright: reportIncompatibleVariableOverride=false, reportGeneralTypeIssues=false
from functools import partial

import jax
import jax.numpy as jnp
from flax import struct
from gymnax.environments import environment, spaces

from cojax import labels, streams
from cojax import system as systems
from cojax.envs.params import EnvParams
from cojax.io.described import described
from cojax.types import Array, Float, Int, PRNGKeyArray, PyTree


@struct.dataclass
class EnvState(environment.EnvState):
    """The state of an episode.

    Attributes:
        time: () int32, steps taken.
        s: (d,), the state of the system.
    """

    time: Int[Array, "*batch"]
    s: Float[Array, "*batch d"]


@described(lambda env: (f"{env.name}: the dynamics of every system; a problem is its params", {}))
class ConverseEnv(environment.Environment[EnvState, EnvParams]):
    """A system on the gymnax 1.0 contract.

    ``step`` returns obs, state, reward, terminated, truncated, info, and resets by itself;
    ``info["final_observation"]`` holds the observation before the reset.

    The divergence guard ends an episode whose state leaves sqrt(V*(s') - b) <= divergence_radius
    or is not finite, as after an action that is not: ``terminated`` and ``info["diverged"]`` are
    set and -γ V*(s') is added to the reward, as if the oracle took over, so that V* stays the
    optimal value.

    Where a system knows an end of its own (:mod:`cojax.termination`) it sets ``terminated`` too:
    V* is 0 there.

    With ``terminal_value="none"`` (the paper) the time limit sets ``truncated`` alone. With
    ``"optimal"`` it is the end of a finite-horizon problem with terminal cost V*: it sets
    ``terminated`` and -γ V*(s_T) is added to the reward; the optimal value is V* at every T.

    Observations are the state, and in the finite ``observation_space``, which holds what one step
    adds to a state inside the guard. A state that is further out (actions beyond a box that is
    not enforced, noise without a bound) or not finite is shown clipped to it, a NaN at its edge;
    reward, ``info`` and what follows are those of the true state.

    A step of a system with a budget (:mod:`cojax.budgets`) also tells its measures: ``cost``, d,
    for which the budget is :attr:`EnvParams.budget`, and ``objective``, c. The reward is
    -(c + λ d), and both hold a share of V* where it does; :func:`cojax.envs.constrained` makes it
    -c.

    Of a system with hidden parts (:mod:`cojax.hidden`) observations are what is seen of the state,
    and nothing else tells of the rest; with ``privileged`` ``info["hidden"]`` is all of the rest
    after the step, for critics that may know more than the policy.

    Args:
        params: the default of every ``params`` below: a problem, :class:`EnvParams`.
        privileged: whether ``info`` tells what is hidden.

    Methods take ``key``, a key of JAX; ``state``, an :class:`EnvState`; and ``action``, (m,) in
    the units of the system. They are of one environment: ``jax.vmap`` makes them of many.
    """

    _supports_transition_gradients = True

    def __init__(self, params: EnvParams | None = None, *, privileged: bool = False):
        super().__init__()
        self._params = params
        self.privileged = privileged

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and self._options == other._options  # pyright: ignore

    def __hash__(self) -> int:
        return hash((type(self), *self._options))

    @property
    def _options(self) -> tuple[bool, bool]:
        return self.transition_gradients_enabled, self.privileged

    @property
    def default_params(self) -> EnvParams:
        """The params the environment was made with; raises ValueError where there were none."""
        if self._params is None:
            raise ValueError("params: expected EnvParams; this environment was made without any")
        return self._params

    def step(self, key, state, action, params=None):
        """One transition, with a fresh initial state where the episode ends."""
        params = self.default_params if params is None else params
        return _step(self, key, state, action, params=params)

    def reset(self, key, params=None):
        """Draw s_0: observation (d,) and state."""
        return _reset(self, key, self.default_params if params is None else params)

    def step_env(self, key, state, action, params):
        """One transition without the reset: obs, state, reward, terminated, info.

        Raises ValueError for an action of another shape than (m,).
        """
        system = params.system
        action = jnp.asarray(action, system.gamma.dtype)
        if action.shape != (system.action_dim,):
            raise ValueError(
                f"action: expected shape ({system.action_dim},), got {action.shape}; "
                "vmap the step for a batch"
            )
        action = params.clip(action)
        optimum = system.optimum(state.s)
        noise = system.sample_noise(state.s, key, action)
        s = systems.next_mean(system, state.s, action, optimum) + noise
        next_state = EnvState(time=state.time + 1, s=s)
        value = system.value(s)
        diverged = _diverged(s, params)
        terminated = self.is_terminated(next_state, params)
        if params.terminal_value == "optimal":
            terminated = terminated | (next_state.time >= params.max_steps_in_episode)
        reward = -system.cost_at(state.s, action, optimum)
        reward = reward - jnp.where(terminated, system.gamma * value, 0.0)
        obs, next_state = self._apply_transition_gradient_policy(shown(s, params), next_state)
        info = {"discount": 1.0 - terminated.astype(reward.dtype), "diverged": diverged}
        if system.measures:
            told = system.measured(state.s, action, optimum)
            left = jnp.where(terminated, system.gamma * system.measured_values(s), 0.0)
            info |= dict(zip(system.measures, told + left, strict=True))
        if self.privileged:
            info["hidden"] = s[system.observed_dim :]
        return obs, next_state, reward, terminated, info

    def reset_env(self, key, params):
        """Draw s_0 from the initial law."""
        s = params.initial_state.sample(key)
        return shown(s, params), EnvState(time=jnp.zeros((), jnp.int32), s=s)

    def observe(self, key, state, action, params):
        """The state, clipped to the observation space."""
        return shown(state.s, params)

    def get_obs(self, state, params=None, key=None):
        """The state, clipped to the observation space."""
        return shown(state.s, self.default_params if params is None else params)

    def is_terminated(self, state, params):
        """Whether the state is outside the divergence guard or not finite, or, in systems that
        know an end of their own, at it.
        """
        return _diverged(state.s, params) | params.system.ended(state.s)

    def is_truncated(self, state, params):
        """Whether the time limit is reached, where it is a limit and not part of the problem."""
        if params.terminal_value == "optimal":
            return jnp.zeros((), bool)
        return state.time >= params.max_steps_in_episode

    def action_space(self, params: EnvParams | None = None) -> spaces.Box:
        """Box [-limit, limit]^m; a system without a bound has a finite box that is not enforced.
        ``labels`` names its entries, with their units.
        """
        params = self.default_params if params is None else params
        return _box(params.action_limit)

    def observation_space(self, params: EnvParams | None = None) -> spaces.Box:
        """Finite box, shape (d,), that holds every observation: states inside the divergence
        guard, initial ones, and what one step adds to them. ``labels`` names its entries.
        """
        params = self.default_params if params is None else params
        return _box(params.observation_limit[..., : params.system.observed_dim])

    def state_space(self, params: EnvParams | None = None) -> spaces.Dict:
        """Time, and s of a state that ``step`` and ``reset`` return."""
        params = self.default_params if params is None else params
        last = jnp.asarray(params.max_steps_in_episode, jnp.int32)
        time = spaces.Box(jnp.zeros_like(last), last, (), jnp.int32)
        return spaces.Dict({"time": time, "s": _box(params.observation_limit)})

    def labels(self, params: EnvParams | None = None) -> labels.Labels:
        """Names and units of the entries of an observation and of an action, in their order."""
        params = self.default_params if params is None else params
        states, actions = params.system.labels()
        return states[: params.system.observed_dim], actions

    @property
    def num_actions(self) -> int:
        """m, the dimension of the action."""
        return self.default_params.system.action_dim


def shown(s: jax.Array, params: EnvParams) -> jax.Array:
    """s as an observation: what of it is seen, clipped to its space, a NaN at the edge, where the
    guard is left too.
    """
    seen = params.system.observed_dim
    s, high = s[:seen], params.observation_limit[:seen].astype(s.dtype)
    return jnp.clip(jnp.where(jnp.isnan(s), high, s), -high, high)


def _diverged(s: jax.Array, params: EnvParams) -> jax.Array:
    """Whether s is outside the divergence guard, or not finite."""
    excess = params.system.value(s) - params.system.offset
    return ~(excess <= params.divergence_radius**2)


def _box(high: jax.Array) -> spaces.Box:
    """Box [-high, high]; of one dimension with numbers as bounds, which gymnax's wrappers need."""
    bound = high[0] if high.shape == (1,) else high
    return spaces.Box(-bound, bound, high.shape, high.dtype)


@jax.tree_util.register_pytree_with_keys_class
class Info(dict[str, PyTree]):
    """What a step tells, a dict of gymnax's four entries. ``info["diverged"]`` answers too, and a
    measure such as ``info["cost"]``; they are no entries: wrappers (gymnax's for brax) carry a dict
    of those four through ``lax.scan``.
    """

    def __init__(self, entries: dict[str, PyTree], aside: dict[str, PyTree]):
        super().__init__(entries)
        self.aside = aside

    def __missing__(self, name: str) -> PyTree:
        return self.aside[name]

    def get(self, name: str, default: PyTree = None) -> PyTree:
        """An entry, or what is told aside, or ``default``."""
        return super().get(name, self.aside.get(name, default))

    def tree_flatten_with_keys(self) -> tuple[PyTree, PyTree]:
        """Entries and what is aside, by name."""
        parts = [dict(sorted(part.items())) for part in (self, self.aside)]
        leaves = [(jax.tree_util.DictKey(n), x) for part in parts for n, x in part.items()]
        return leaves, tuple(map(tuple, parts))

    @classmethod
    def tree_unflatten(cls, names: PyTree, leaves: PyTree) -> Info:
        """The reverse."""
        parts, leaves = names, iter(leaves)
        return cls(*({name: next(leaves) for name in part} for part in parts))


@partial(jax.jit, static_argnames=("env",))
@streams.pinned()
def _reset(env: ConverseEnv, key: PRNGKeyArray, params: EnvParams) -> tuple[jax.Array, EnvState]:
    return env.reset_env(key, params)


@partial(jax.jit, static_argnames=("env",))
@streams.pinned()
def _step(
    env: ConverseEnv, key: PRNGKeyArray, state: EnvState, action: jax.Array, *, params: EnvParams
) -> tuple:
    key_step, key_reset = jax.random.split(key)
    return autoreset(env, (key_step, key_reset), state, action, params=params)


def autoreset(env: environment.Environment, keys, state, action, *, params) -> tuple:
    """One ``step_env`` and, where the episode ended, a fresh ``reset_env``, as gymnax does it, by
    a key each.

    Returns obs, state, reward, terminated, truncated, :class:`Info` with ``final_observation``.
    """
    obs_step, state_step, reward, terminated, info = env.step_env(keys[0], state, action, params)
    info = dict(info)
    truncated = env.is_truncated(state_step, params)
    done = terminated | truncated
    obs_reset, state_reset = env.reset_env(keys[1], params)
    obs, state = jax.tree.map(
        lambda fresh, old: jnp.where(done, fresh, old),
        (obs_reset, state_reset),
        (obs_step, state_step),
    )
    measures = getattr(getattr(params, "system", None), "measures", ())
    aside = {name: info.pop(name) for name in ("diverged", "hidden", *measures) if name in info}
    info |= {"terminated": terminated, "truncated": truncated, "final_observation": obs_step}
    return obs, state, reward, terminated, truncated, Info(info, aside)
