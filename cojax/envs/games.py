"""Environments of a game: both players at once, or one of them against a given policy.

    r_agent = -c(s, a, d),  r_disturbance = c(s, a, d)
    s' = f(s) + p g(s) a + h(s) d + w

:class:`GameEnv` takes both actions. :class:`AgentEnv` and :class:`AdversaryEnv` are environments of
one player, for any learner, on the params that :func:`opposed` and :func:`adversarial` make of
those of a game. Disturbances are not clipped: V* is that of a game without bounds on d.
"""

from __future__ import annotations

# As in environment.py: gymnax types its fields as int and its methods as jitted.
# pyright: reportIncompatibleVariableOverride=false, reportGeneralTypeIssues=false
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from cojax import inputs, linalg, streams
from cojax.envs.environment import ConverseEnv, EnvState, shown
from cojax.envs.params import BOX, EnvParams, with_observation_limit
from cojax.errors import InputError
from cojax.initial import InitialLaw
from cojax.linalg import quadratic_form
from cojax.players import Adversarial, Opposed, stays_away
from cojax.policy import Policy
from cojax.types import Array, Bool, Float, PRNGKeyArray, PyTree
from cojax.zero_sum import Game

DRAWS, REACHED = 1024, 32  # trials and steps of each, from which the box of disturbances is
POLICY_DRAW = 7  # folded into the key of a step: what a policy that plays along draws from


class Play(NamedTuple):
    """One step of both players, of one state.

    Attributes:
        s: the next state.
        cost: c.
        ended: whether the episode terminates.
        diverged: whether the state left the guard.
        tail: γ V*(s') where it ends, else 0.
        delta: a - a*.
        epsilon: d - d*.
    """

    s: Float[Array, "d"]
    cost: Float[Array, ""]
    ended: Bool[Array, ""]
    diverged: Bool[Array, ""]
    tail: Float[Array, ""]
    delta: Float[Array, "m"]
    epsilon: Float[Array, "k"]


class GameEnv(ConverseEnv):
    """Both players of a game: ``step(key, state, (a, d), params)``, where ``reward`` is a pair.

    What a step returns is as in :class:`cojax.envs.ConverseEnv`, ``params.system`` a
    :class:`cojax.zero_sum.Game`, whose own adversary does not matter here. Where an episode
    terminates -γ V*(s') is added to the agent's reward, and γ V*(s') to the other. ``info`` holds
    the exact ``advantage``, ``agent_excess`` and ``adversary_excess`` of :class:`Play` too.

    Args:
        params: the default of every ``params`` below.

    Methods take ``key``, ``state`` and ``action``, the pair (a, d), of (m,) and (k,), of one
    environment. Raises ValueError for actions of other shapes.
    """

    def game(self, params: EnvParams) -> Game:
        """The game of ``params``; raises InputError where they are of none."""
        system = params.system
        game = system if isinstance(system, Game) else getattr(system, "game", None)
        if not isinstance(game, Game):
            raise InputError(f"params: expected those of a game, got {type(system).__name__}")
        return game

    def disturbance_shape(self, params: EnvParams | None = None) -> tuple[int]:
        """(k,), of ``params``; disturbances have no bound."""
        params = self.default_params if params is None else params
        return (self.game(params).disturbance_dim,)

    def step_env(self, key, state, action, params):
        """One transition without the reset: obs, state, rewards, terminated, info."""
        a, d = action
        game = self.game(params)
        found = self.play(key, state, params, a=params.clip(_checked("a", a, game.action_dim)), d=d)
        rewards = (-found.cost - found.tail, found.cost + found.tail)
        more = {
            "advantage": game.advantage(state.s, found.delta, found.epsilon),
            "agent_excess": game.against("myopic").excess_cost(state.s, found.delta),
            "adversary_excess": game.spent(state.s, found.epsilon),
        }
        return self.told(state, found, rewards, params, more=more)

    def play(
        self,
        key: PRNGKeyArray,
        state: EnvState,
        params: EnvParams,
        *,
        a: Float[Array, "m"] | None = None,
        d: Float[Array, "k"] | None = None,
    ) -> Play:
        """One step of both players; ``params`` say who plays where ``a`` or ``d`` is None."""
        game, s = self.game(params), state.s
        at = game.inner.optimum(s)
        best = game.disturbance(at)
        a = self.opponent(key, s, params, at.action) if a is None else a
        d = self.opponent(key, s, params, best) if d is None else d
        d = _checked("d", jnp.asarray(d, s.dtype), game.disturbance_dim)
        delta, epsilon = a - at.action, d - best
        mean = at.next_mean + game.inner.push(s, delta) + game.disturb(s, epsilon)
        following = mean + game.sample_noise(s, key)
        cost = game.inner.stage_cost(s, a) - quadratic_form(game.Gamma, d)
        value = game.value(following)
        diverged = ~(value - game.offset <= params.divergence_radius**2)
        ended = diverged
        if params.terminal_value == "optimal":
            ended = diverged | (state.time + 1 >= params.max_steps_in_episode)
        return Play(
            s=following,
            cost=cost,
            ended=ended,
            diverged=diverged,
            tail=jnp.where(ended, game.gamma * value, 0.0),
            delta=delta,
            epsilon=epsilon,
        )

    def opponent(
        self, key: PRNGKeyArray, s: Float[Array, "d"], params: EnvParams, best: Float[Array, "n"]
    ) -> Float[Array, "n"]:
        """What the policy of ``params`` does, drawing from ``key``; ``best`` where none is."""
        policy = getattr(params.system, "policy", None)
        if policy is None:
            return best
        return jnp.asarray(policy(s, jax.random.fold_in(key, POLICY_DRAW)), s.dtype)

    def told(
        self, state: EnvState, found: Play, reward: PyTree, params: EnvParams, *, more: PyTree
    ) -> tuple:
        """What ``step_env`` returns, ``more`` in its info."""
        following = EnvState(time=state.time + 1, s=found.s)
        obs, following = self._apply_transition_gradient_policy(shown(found.s, params), following)
        info = {"discount": 1.0 - found.ended.astype(found.cost.dtype), "diverged": found.diverged}
        return obs, following, reward, found.ended, info | more

    def is_terminated(self, state, params):
        """Whether the state is outside the guard of V*, or not finite."""
        game = self.game(params)
        return ~(game.value(state.s) - game.offset <= params.divergence_radius**2)


class AgentEnv(GameEnv):
    """The agent's environment where a policy plays the disturbance, on params of :func:`opposed`.

    The policy draws from the keys of the steps, and may be a random one.

    Args:
        params: the default of every ``params`` below.

    Methods are those of :class:`cojax.envs.ConverseEnv`, of ``action`` (m,).
    """

    def step_env(self, key, state, action, params):
        """One transition without the reset; the reward is -c."""
        a = params.clip(_checked("action", action, params.system.action_dim))
        found = self.play(key, state, params, a=a)
        return self.told(state, found, -found.cost - found.tail, params, more={})


class AdversaryEnv(GameEnv):
    """The disturbance's environment where a policy or a* plays the agent, on params of
    :func:`adversarial`.

    Args:
        params: the default of every ``params`` below.

    Methods are those of :class:`cojax.envs.ConverseEnv`, of ``action`` d (k,).
    """

    def step_env(self, key, state, action, params):
        """One transition without the reset; the reward is c."""
        found = self.play(key, state, params, d=params.clip(jnp.asarray(action)))
        return self.told(state, found, found.cost + found.tail, params, more={})


def _checked(name: str, x: Array, dim: int) -> Array:
    x = jnp.asarray(x)
    if x.shape != (dim,):
        raise ValueError(f"{name}: expected shape ({dim},), got {x.shape}; vmap the step")
    return x


# --- on the host ---------------------------------------------------------------------------------


def opposed(params: EnvParams, policy: Policy) -> EnvParams:
    """``params`` of a game as the agent's own against a ``policy`` of the disturbance, for
    :class:`AgentEnv` or, where the policy draws nothing, :class:`cojax.envs.ConverseEnv`; initial
    law, guard and box are kept. Raises InputError for params of no game and a policy that gives no
    (k,).
    """
    game = GameEnv().game(params)
    _require_length(policy, game, game.disturbance_dim)
    return inputs.swapped(params, system=Opposed(game, policy))


def adversarial(params: EnvParams, policy: Policy | None = None) -> EnvParams:
    """``params`` of a game as the disturbance's own against a ``policy`` of the agent, a* where it
    is None, for :class:`AdversaryEnv`. Its box is four times the largest d* in 32 steps at the
    saddle point from 1,024 draws of the initial law, and not enforced. Raises InputError as
    :func:`opposed` does.
    """
    game = GameEnv().game(params)
    if policy is not None:
        _require_length(policy, game, game.action_dim)
    largest = float(_largest_disturbance(game, params.initial_state))
    box = np.full(game.disturbance_dim, BOX * max(largest, 1e-6))
    system = Adversarial(game, policy)
    limit = linalg.to_device(box, game.gamma.dtype)
    made = inputs.swapped(params, system=system, action_limit=limit, clip_actions=False)
    return with_observation_limit(made)


@jax.jit
@streams.pinned()
def _largest_disturbance(game: Game, law: InitialLaw) -> Float[Array, ""]:
    """The largest |d*_i| in so many fixed trials of the saddle point: starts may be at rest."""
    keys = jax.random.split(streams.root_key(0), DRAWS)

    def step(s: Array, key: PRNGKeyArray) -> tuple[Array, Array]:
        at = game.inner.optimum(s)
        largest = jnp.max(jnp.abs(game.disturbance(at)))
        return at.next_mean + game.sample_noise(s, key), largest

    def one(key: PRNGKeyArray) -> Array:
        first, rest = jax.random.split(key)
        noise_keys = jax.random.split(rest, REACHED)
        return jnp.max(jax.lax.scan(step, law.sample(first), noise_keys)[1])

    return jnp.max(jax.vmap(one)(keys))


def nobody(params: EnvParams) -> Policy:
    """The disturbance of ``params`` of a game that stays away."""
    game = GameEnv().game(params)
    return stays_away(game.disturbance_dim, game.gamma.dtype)


def with_policy(params: EnvParams, policy: Policy) -> EnvParams:
    """``params`` of one side with another ``policy`` of the other side, inside ``jit`` too."""
    return inputs.swapped(params, system=inputs.swapped(params.system, policy=policy))


def _require_length(policy: Policy, game: Game, dim: int) -> None:
    """Raise InputError for a policy that does not give (dim,)."""
    s = jnp.zeros(game.state_dim, game.gamma.dtype)
    found = jax.eval_shape(policy, s, streams.root_key(0)).shape
    if found != (dim,):
        raise InputError(f"policy {policy.name}: expected actions of shape ({dim},), got {found}")
