"""What wrappers of an environment have in common: what they do not change is the environment's."""

from __future__ import annotations

# As in environment.py: gymnax types its fields as int and its methods as jitted.
# pyright: reportIncompatibleVariableOverride=false
from gymnax.environments import environment

from cojax.types import PyTree


class Wrapper(environment.Environment):
    """An environment around another, ``env``. Two are equal, for ``jit``, where :attr:`parts` are.

    Args:
        env: what is wrapped.
    """

    def __init__(self, env: environment.Environment):
        super().__init__()
        self.env = env

    @property
    def parts(self) -> tuple[PyTree, ...]:
        """The arguments that it was made of, the environment first."""
        return (self.env,)

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and self.parts == other.parts  # pyright: ignore

    def __hash__(self) -> int:
        return hash((type(self), *self.parts))

    def __getattr__(self, name: str) -> PyTree:
        if name == "env":  # while unpickling or copying
            raise AttributeError(name)
        return getattr(self.env, name)

    @property
    def supports_transition_gradients(self):
        """Whether the wrapped environment does."""
        return self.env.supports_transition_gradients

    @property
    def transition_gradients_enabled(self):
        """Whether the wrapped environment has them on."""
        return self.env.transition_gradients_enabled

    def with_transition_gradients(self):
        """The same around the wrapped environment with gradients."""
        return type(self)(self.env.with_transition_gradients(), *self.parts[1:])

    @property
    def default_params(self):
        """The params of the wrapped environment."""
        return self.env.default_params
