"""An environment of a finite set of actions, which are given by their numbers."""

from __future__ import annotations

# As in environment.py: gymnax types its fields as int and its methods as jitted.
# pyright: reportIncompatibleVariableOverride=false
import jax.numpy as jnp
from gymnax.environments import environment, spaces

from cojax.action_lists import chosen
from cojax.envs.environment import ConverseEnv
from cojax.envs.params import EnvParams
from cojax.envs.wrapper import Wrapper
from cojax.errors import InputError
from cojax.types import Array, Float, PyTree


class Discrete(Wrapper):
    """A wrapper whose action is an index into ``params.system.actions``, the list (k, m) of a
    system whose actions are a list (:mod:`cojax.free_drift`): its action space is Discrete(k).

    All else is that of the environment. An index that is too large or too small is the nearest.

    Args:
        env: what is wrapped, with actions (m,).

    Methods take ``key``, a key of JAX; ``state`` of the wrapped environment; ``action``, ()
    integer; and its ``params``, by default its own. They raise InputError, one line, for an action
    that is no () integer, and for a system whose actions are no list.
    """

    def reset(self, key, params=None):
        """A fresh episode: observation and state."""
        return self.env.reset(key, self._params(params))

    def step(self, key, state, action, params=None):
        """One transition under the action of that index, with a reset where the episode ends."""
        params = self._params(params)
        return self.env.step(key, state, action_of(params, action), params)

    def step_env(self, key, state, action, params):
        """One transition without the reset."""
        return self.env.step_env(key, state, action_of(params, action), params)

    def reset_env(self, key, params):
        """Draw a first state."""
        return self.env.reset_env(key, params)

    def observe(self, key, state, action, params):
        """What the environment shows."""
        return self.env.observe(key, state, action_of(params, action), params)

    def get_obs(self, state, params=None, key=None):
        """What the environment shows."""
        return self.env.get_obs(state, self._params(params), key)

    def is_terminated(self, state, params):
        """That of the wrapped environment."""
        return self.env.is_terminated(state, params)

    def is_truncated(self, state, params):
        """That of the wrapped environment."""
        return self.env.is_truncated(state, params)

    def action_space(self, params=None):
        """Discrete(k)."""
        return spaces.Discrete(listed(self._params(params)).shape[-2])

    def observation_space(self, params=None):
        """That of the wrapped environment."""
        return self.env.observation_space(self._params(params))

    def state_space(self, params=None):
        """That of the wrapped environment."""
        return self.env.state_space(self._params(params))

    @property
    def num_actions(self):
        """k."""
        return listed(self.default_params).shape[-2]

    def _params(self, params: PyTree) -> PyTree:
        return self.env.default_params if params is None else params


def listed(params: PyTree) -> Float[Array, "*batch k m"]:
    """The actions of the system of ``params``; raises InputError where they are no list."""
    actions = getattr(params.system, "actions", None)
    if actions is None:
        kind = type(params.system).__name__
        raise InputError(f"system: expected one whose actions are a list, got {kind} without one")
    return actions


def action_of(params: PyTree, index: PyTree) -> Float[Array, "m"]:
    """The action of an ``index`` () into the list of the system of ``params``.

    Raises InputError for what is no () integer.
    """
    index = jnp.asarray(index)
    if index.shape != () or not jnp.issubdtype(index.dtype, jnp.integer):
        raise InputError(
            f"action: expected an index of shape (), an integer, got {index.dtype} of shape "
            f"{index.shape}; vmap the step for a batch"
        )
    return chosen(listed(params), index)


def environment_of(params: EnvParams) -> environment.Environment:
    """The environment of ``params``: one of indices where the actions of its system are a list."""
    env = ConverseEnv(params)
    return env if getattr(params.system, "actions", None) is None else Discrete(env)
