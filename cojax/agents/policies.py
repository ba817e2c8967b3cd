"""The policy that training hands out: an actor's mean, with everything it needs inside."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from cojax.agents.distributions import ActionBox
from cojax.agents.networks import MLP, forward
from cojax.agents.normalization import Moments


@dataclasses.dataclass(frozen=True)
class ActorPolicy:
    """Deterministic policy a = clip(centre + half_range · φ(MLP(z)_{1..m}), low, high).

    z is the observation, standardised and clipped with the statistics of training; φ is tanh
    where ``squash`` and the identity otherwise. Its parameters are nested dicts of arrays, see
    ``actor_params``.

    Attributes:
        hidden: widths of the actor's hidden layers.
        activation: nonlinearity, a name in ``networks.ACTIVATIONS``.
        num_actions: m.
        num_outputs: width of the actor's output; the first m are the mean.
        squash: whether the mean passes through tanh.
    """

    hidden: tuple[int, ...]
    activation: str
    num_actions: int
    num_outputs: int
    squash: bool

    def __call__(self, params: Any, obs: jax.Array, key: jax.Array) -> jax.Array:
        """Map one observation (d,) to one action (m,); the key is not used."""
        z = jnp.clip((obs - params["mean"]) / params["std"], -params["clip"], params["clip"])
        actor = MLP(self.hidden, self.num_outputs, self.activation)
        u = forward(actor, params["actor"], z)[: self.num_actions]
        box = ActionBox(params["low"], params["high"])
        return box.clip(box.to_action(jnp.tanh(u) if self.squash else u))


def actor_params(
    actor: Any, observations: Moments | None, obs_clip: Any, box: ActionBox, dim: int
) -> dict[str, Any]:
    """Parameters of ``ActorPolicy``; without ``observations`` the network sees them as they are."""
    clip = jnp.asarray(obs_clip, jnp.float32)
    if observations is None:
        mean, std, clip = jnp.zeros(dim), jnp.ones(dim), jnp.full_like(clip, jnp.inf)
    else:
        mean, std = observations.mean, observations.std()
    return {
        "actor": actor,
        "mean": mean,
        "std": std,
        "clip": clip,
        "low": box.low,
        "high": box.high,
    }
