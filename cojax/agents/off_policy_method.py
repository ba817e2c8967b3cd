"""What makes an off-policy algorithm, and what it works on.

A method says, in pure functions, what critics should be worth and what the actor loses; gradients
and optimisers are the engine's, ``off_policy``. All of it works on one learner.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import NamedTuple

import jax.numpy as jnp
from flax import linen as nn
from flax import struct

from cojax.agents import batch_norm, own_networks, returns
from cojax.agents.algorithm import Environment, Metrics, Number, Scalar
from cojax.agents.distributions import ActionBox
from cojax.agents.networks import forward
from cojax.agents.normalization import Moments
from cojax.agents.optimization import pack
from cojax.agents.replay import Sample
from cojax.agents.value_output import error_weight, value
from cojax.linalg import lift
from cojax.types import Array, Float, PyTree

NETWORKS = ("actor", "critics")


class Networks(NamedTuple):
    """Actor: (..., d) to (..., outputs). Critic: (..., d + m) to (..., 1). ``box`` of actions.

    ``actions`` are the moments of the actions seen: critics see standardised actions. Where good
    actions fill a hundredth of the box, a critic of the raw ones can hardly tell them apart.
    ``kappa`` is that of the critics' outputs, see ``value_output``.
    ``actor_tree`` and ``critic_trees`` turn parameters, as ``pack`` may have left them, into trees.
    """

    actor: nn.Module
    critic: nn.Module
    box: ActionBox
    actions: Moments | None
    kappa: Number = 0.0
    actor_tree: Callable[[PyTree], PyTree] = lambda params: params
    critic_trees: Callable[[PyTree], tuple[PyTree, ...]] = lambda params: params

    def output(self, actor: PyTree, obs: Float[Array, "*batch o"]) -> Float[Array, "*batch k"]:
        """What the actor's network says of ``obs``, shape (..., outputs)."""
        return forward(self.actor, self.actor_tree(actor), obs)

    def q_values(
        self,
        critics: PyTree,
        obs: Float[Array, "*batch o"],
        u: Float[Array, "*batch m"],
        num: int | None = None,
    ) -> Float[Array, " critics *batch"]:
        """Q_i(s, u) of the first ``num`` critics, or of all."""
        x = self.critic_input(obs, u)
        trees = self.critic_trees(critics)[:num]
        outputs = jnp.stack([forward(self.critic, c, x)[..., 0] for c in trees])
        return value(outputs, self.kappa)

    def critic_input(
        self, obs: Float[Array, "*batch o"], u: Float[Array, "*batch m"]
    ) -> Float[Array, "*batch d"]:
        """What critics see of observations and actions."""
        if self.actions is not None:
            u = (u - lift(self.actions.mean, u)) / lift(self.actions.std(), u)
        return jnp.concatenate([obs, u], axis=-1)

    def training_q_values(
        self, critics: PyTree, obs: Float[Array, "B o"], u: Float[Array, "B m"]
    ) -> tuple[Float[Array, " critics B"], tuple[PyTree, ...]]:
        """Q_i(s, u) of critics with batch statistics, in training, and the running averages of
        each after this batch: see ``batch_norm``.
        """
        x = self.critic_input(obs, u)
        found = [
            batch_norm.forward_training(self.critic, c, x)  # pyright: ignore[reportArgumentType]
            for c in self.critic_trees(critics)
        ]
        outputs = jnp.stack([out[..., 0] for out, _ in found])
        return value(outputs, self.kappa), tuple(statistics for _, statistics in found)

    def refreshed(self, critics: PyTree, statistics: tuple[PyTree, ...]) -> PyTree:
        """The critics, packed or not as they were, with these running averages."""
        trees = zip(self.critic_trees(critics), statistics, strict=True)
        return pack(tuple({**tree, batch_norm.STATISTICS: new} for tree, new in trees))[0]


class Learner(struct.PyTreeNode):
    """What gradient steps change. Critics are in units of the reward scale.

    Attributes:
        params: ``{"actor", "critics", "log_alpha"}``; critics is a tuple, log_alpha has shape ().
        targets: slow copies of those of ``{"actor", "critics"}`` that the method names.
        opt_states: the optimisers', by the same names as ``params``; those of networks are of what
            ``pack`` makes of them.
    """

    params: dict[str, PyTree]
    targets: dict[str, PyTree]
    opt_states: dict[str, PyTree]


class Minibatch(NamedTuple):
    """What a loss sees of B transitions; leaves of several minibatches have one axis more."""

    rows: Sample  # normalised as networks see them
    noise: Float[Array, "*batch m"]  # standard normal
    gamma: Number  # discount
    reward_factor: Scalar  # what the environment's rewards were multiplied by


@dataclasses.dataclass(frozen=True)
class OffPolicyMethod:
    """What makes an off-policy algorithm: pure functions, of which the engine takes gradients.

    Attributes:
        outputs: width of the actor's output per action.
        explore: ``(nets, actor_params, obs, key, *, h) -> u`` in [-1, 1]^m.
        target: ``(learner, minibatch, nets, h) -> y``, shape (B,), that critics learn.
        actor_loss: ``(actor_params, learner, minibatch, nets, *, h) -> (loss, metrics)``.
        metrics: names of the metrics of ``actor_loss``.
        alpha_loss: ``(log_alpha, metrics, nets, h) -> loss`` of the temperature, by the metrics of
            the actor's loss; taken where ``h.learn_temperature``. None without a temperature.
        targets: networks that ``target`` wants slow copies of.
        smallest: whether the smallest of the critics is the learner's Q̂; otherwise the first is.
        critic_loss: ``(critics, learner, minibatch, nets, *, h) -> (loss, (mean Q, statistics))``
            of critics with batch statistics, ``batch_norm.NormalizedMLP``; the statistics are
            their new running averages. None where critics are plain and lose their distance to
            ``target``.
    """

    outputs: int
    explore: Callable[..., Float[Array, "*batch m"]]
    target: Callable[[Learner, Minibatch, Networks, PyTree], Float[Array, " B"]]
    actor_loss: Callable[..., tuple[Scalar, Metrics]]
    metrics: tuple[str, ...] = ()
    alpha_loss: Callable[..., Scalar] | None = None
    targets: tuple[str, ...] = NETWORKS
    smallest: bool = False
    critic_loss: Callable[..., tuple[Scalar, tuple[Scalar, tuple[PyTree, ...]]]] | None = None

    def critic_network(self, h: PyTree, inputs: int) -> nn.Module:
        """The network of one critic, see ``own_networks``."""
        return own_networks.critic_network(h, inputs, normalized=self.critic_loss is not None)


def networks(
    method: OffPolicyMethod,
    env: Environment,
    env_params: PyTree,
    h: PyTree,
    *,
    actions: Moments | None = None,
    unit: Float[Array, ""] | float = 1.0,
) -> Networks:
    """Actor and critic for an environment's shapes; ``actions`` standardise the critic's input."""
    box = ActionBox.of(env.action_space(env_params), unit)
    dim, m = own_networks.dimensions(env, env_params)
    return Networks(
        own_networks.actor_network(h, dim, method.outputs * m),
        method.critic_network(h, dim + m),
        box,
        actions if h.normalize_actions else None,
        h.relative_error,
    )


def one_step_return(
    batch: Minibatch, q: Float[Array, " B"], h: PyTree, *, bonus: Float[Array, " B"] | float = 0.0
) -> Float[Array, " B"]:
    """r + γ (1 - terminated) (bonus + q) of the next states, within what the batch's rewards, with
    the bonus, bound.
    """
    rows = batch.rows
    decay = batch.gamma * (1.0 - rows.terminated)
    reward = rows.reward + decay * bonus
    low, high = returns.bounds(reward, batch.gamma, h.episode_growth > 0)
    return jnp.clip(reward + decay * q, low, high)


def critic_loss(
    critics: PyTree, y: Float[Array, " B"], rows: Sample, nets: Networks
) -> tuple[Scalar, Scalar]:
    """Σ_i E[w (Q_i(s, u) - y)²], w = 1/(1 + (κ Q_i)²) held constant; and the mean of all Q_i."""
    q = nets.q_values(critics, rows.obs, rows.u)
    return weighted_error(q, y, nets.kappa), jnp.mean(q)


def weighted_error(q: Float[Array, " critics B"], y: Float[Array, " B"], kappa: Number) -> Scalar:
    """Σ_i E[w (Q_i - y)²], w = 1/(1 + (κ Q_i)²) held constant."""
    weight = error_weight(q, kappa)
    return jnp.sum(jnp.mean(weight * (q - y[None]) ** 2, axis=-1))
