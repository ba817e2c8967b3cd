"""An environment with a budget, as a constrained problem: the objective is the reward."""

from __future__ import annotations

# As in environment.py: gymnax types its fields as int and its methods as jitted.
# pyright: reportIncompatibleVariableOverride=false
from gymnax.environments import environment

from cojax.envs.wrapper import Wrapper
from cojax.errors import InputError


class Constrained(Wrapper):
    """A wrapper whose reward is -c, ``-info["objective"]``, where that of the environment is
    -(c + λ d): what learners are given that keep Σ γᵏ d, ``info["cost"]``, within
    :attr:`cojax.envs.EnvParams.budget` by themselves. Made by :func:`cojax.envs.constrained`.

    Methods take ``key``, a key of JAX; ``state`` and ``action`` of the wrapped environment; and its
    ``params``, by default its own.
    """

    def reset(self, key, params=None):
        """A fresh episode."""
        return self.env.reset(key, params)

    def step(self, key, state, action, params=None):
        """One transition under ``action`` (m,), with a reset where the episode ends."""
        obs, state, _, terminated, truncated, info = self.env.step(key, state, action, params)
        return obs, state, -info["objective"], terminated, truncated, info

    def step_env(self, key, state, action, params):
        """One transition without the reset."""
        obs, state, _, terminated, info = self.env.step_env(key, state, action, params)
        return obs, state, -info["objective"], terminated, info

    def reset_env(self, key, params):
        """Draw a first state."""
        return self.env.reset_env(key, params)

    def observe(self, key, state, action, params):
        """What the environment shows."""
        return self.env.observe(key, state, action, params)

    def get_obs(self, state, params=None, key=None):
        """What the environment shows."""
        return self.env.get_obs(state, params, key)

    def is_terminated(self, state, params):
        """That of the wrapped environment."""
        return self.env.is_terminated(state, params)

    def is_truncated(self, state, params):
        """That of the wrapped environment."""
        return self.env.is_truncated(state, params)

    def action_space(self, params=None):
        """That of the wrapped environment."""
        return self.env.action_space(params)

    def observation_space(self, params=None):
        """That of the wrapped environment."""
        return self.env.observation_space(params)

    def state_space(self, params=None):
        """That of the wrapped environment."""
        return self.env.state_space(params)

    @property
    def num_actions(self):
        """That of the wrapped environment."""
        return self.env.num_actions


def constrained(env: environment.Environment) -> Constrained:
    """The environment ``env`` of systems with a budget with -c as its reward: see
    :class:`Constrained`. Raises InputError for what is no environment, and for params of its own
    without a budget.
    """
    if not isinstance(env, environment.Environment):
        raise InputError(f"env: expected a gymnax environment, got {type(env).__name__}")
    try:
        params = env.default_params
    except ValueError:  # it was made without any
        return Constrained(env)
    if "objective" not in getattr(getattr(params, "system", None), "measures", ()):
        raise InputError("constrained: expected a system with a budget (cojax.budgets)")
    return Constrained(env)
