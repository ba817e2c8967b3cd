"""The policy that training hands out: an actor's mean, with everything it needs inside."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import jax.numpy as jnp
from flax import linen as nn

from cojax.agents.algorithm import Environment
from cojax.agents.distributions import ActionBox
from cojax.agents.networks import MLP, forward
from cojax.agents.own_networks import actor_network, dimensions
from cojax.agents.programs import OwnPolicy, Program
from cojax.policy import Apply
from cojax.types import Array, Float, PRNGKeyArray, PyTree


@dataclasses.dataclass(frozen=True)
class ActorPolicy:
    """Deterministic policy a = clip(centre + half_range · φ(f(z)_{1..m}), low, high).

    f is the actor's network, by default a perceptron; z is the observation, standardised and
    clipped with the statistics of training; φ is tanh where ``squash`` and the identity otherwise.
    Its parameters are nested dicts of arrays, see ``policy_params``.

    Attributes:
        hidden: widths of the actor's hidden layers.
        activation: nonlinearity, a name in ``networks.ACTIVATIONS``.
        num_actions: m.
        num_outputs: width of the actor's output; the first m are the mean.
        squash: whether the mean passes through tanh.
        network: f, where it is one of the user's own; of a policy that was read from a file it is
            the network as a program. None for the perceptron.
    """

    hidden: tuple[int, ...]
    activation: str
    num_actions: int
    num_outputs: int
    squash: bool
    network: nn.Module | Program | None = None

    def __call__(
        self, params: PyTree, obs: Float[Array, " o"], key: PRNGKeyArray
    ) -> Float[Array, " m"]:
        """Map one observation to one action; the key is not used."""
        z = jnp.clip((obs - params["mean"]) / params["std"], -params["clip"], params["clip"])
        actor = self.network
        if actor is None:
            actor = MLP(self.hidden, self.num_outputs, self.activation)
        u = forward(actor, params["actor"], z)[: self.num_actions]
        box = ActionBox(params["low"], params["high"], params.get("unit", 1.0))
        return box.clip(box.to_action(box.squash(u) if self.squash else u))


def actor_policy(
    env: Environment, env_params: PyTree, h: PyTree, *, outputs: int, squash: bool
) -> ActorPolicy:
    """The static half of a learner's policy, whose actor gives ``outputs`` numbers an action."""
    dim, m = dimensions(env, env_params)
    network = None if h.actor is None else actor_network(h, dim, outputs * m)
    return ActorPolicy(h.hidden, h.activation, m, outputs * m, squash, network)


def own_policy(make: Callable, env: Environment, env_params: PyTree, h: PyTree) -> Apply:
    """What an algorithm's ``policy_apply``, here ``make``, gives; where that is none of ours, with
    the length of an observation beside it, by which it can be saved.
    """
    apply = make(env, env_params, h)
    if isinstance(apply, ActorPolicy):
        return apply
    return OwnPolicy(apply, dimensions(env, env_params)[0])


def policy_params(env: Environment, state: PyTree, env_params: PyTree, h: PyTree) -> PyTree:
    """Parameters of the :class:`ActorPolicy` of a learner's state.

    Without ``normalize_observations`` the network sees observations as they are.
    """
    box, dim = ActionBox.of(env.action_space(env_params)), state.obs.shape[-1]
    mean, std = state.observations.mean, state.observations.std()
    clip = jnp.asarray(h.obs_clip, jnp.float32)
    if not h.normalize_observations:
        mean, std, clip = jnp.zeros(dim), jnp.ones(dim), jnp.full_like(clip, jnp.inf)
    params = {"actor": state.average, "mean": mean, "std": std, "clip": clip}
    return params | {"low": box.low, "high": box.high, "unit": state.unit}
