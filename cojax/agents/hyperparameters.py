"""The hyperparameters that learners share: what each means, its range and its default."""

from __future__ import annotations

from inspect import cleandoc
from typing import TypeAlias

from flax import linen as nn
from flax import struct

from cojax.agents.own_networks import network
from cojax.agents.settings import INF, static, traced
from cojax.types import Array, Float

Number: TypeAlias = float | Float[Array, "*H"]  # or one with a leading axis, for several settings
ATTRIBUTES = "Attributes:\n"


class Hyperparameters(struct.PyTreeNode, kw_only=True):
    """What learners of every kind take; those made by ``traced`` can differ between the members of
    a population, the others decide shapes.

    A learner inherits, and lists what is its own or has another default. Its docstring then holds
    the meaning of all.

    Attributes:
        gamma: discount; None takes the system's own.
        max_episode_steps: steps after which an episode is cut short while learning; None for the
            environment's own limit. Values stay those of the whole problem.
        action_unit: fraction of the action box that actions are measured in; None finds it out
            before learning begins, see ``self_tuning.action_unit``.
        episode_growth: steps that the learner's own time limit grows by in each step of an
            environment, while its policy holds the state; 0 for none of its own.
        final_lr_fraction: last learning rate (of actor and critics) as a fraction of the first;
            linear in updates.
        max_grad_norm: global norm that gradients are clipped to.
        adam_eps: Adam's ε.
        reward_scale: constant factor on rewards, for the learner only.
        obs_clip: normalised observations are clipped to ± this.
        actor_ema_rate: weight of the newest actor in the average that is the policy; 1 for the
            newest alone.
        num_envs: environments stepped together.
        num_steps: steps of each between updates.
        hidden: widths of hidden layers, of actor and critics alike.
        activation: nonlinearity, a name in ``networks.ACTIVATIONS``.
        actor: network of the actor, a flax.linen module or a name in ``own_networks.NETWORKS``;
            None for a perceptron of ``hidden`` layers.
        critic: network of the critics, in the same ways.
        stagger_episodes: whether the first episodes begin at random steps.
        normalize_observations: whether networks see standardised observations.
        normalize_rewards: whether rewards are divided by the std of discounted returns.
    """

    gamma: Number | None = traced(None, 0.0, 1.0)
    max_episode_steps: Number | None = traced(None, 1.0, INF)
    action_unit: Number | None = traced(None, 1e-6, 1.0)
    episode_growth: Number = traced(0.1, 0.0)
    final_lr_fraction: Number = traced(1.0, 0.0)
    max_grad_norm: Number = traced(100.0, 0.0, INF)
    adam_eps: Number = traced(1e-8, 0.0)
    reward_scale: Number = traced(1.0, 0.0)
    obs_clip: Number = traced(10.0, 0.0, INF)
    actor_ema_rate: Number = traced(1.0, 0.0, 1.0)

    num_envs: int = static(8, 1)
    num_steps: int = static(8, 1)
    hidden: tuple[int, ...] = static((64, 64))
    activation: str = static("relu")
    actor: nn.Module | str | None = network()
    critic: nn.Module | str | None = network()
    stagger_episodes: bool = static(False)
    normalize_observations: bool = static(True)
    normalize_rewards: bool = static(True)

    def __init_subclass__(cls, **kwargs: object) -> None:
        super().__init_subclass__(**{"kw_only": True, **kwargs})
        head, _, own = cleandoc(cls.__doc__ or "").partition(ATTRIBUTES)
        inherited = [cleandoc(b.__doc__ or "").partition(ATTRIBUTES)[2] for b in cls.__bases__]
        lines = "\n".join(part.rstrip() for part in (own, *inherited) if part)
        cls.__doc__ = f"{head.rstrip()}\n\n{ATTRIBUTES}{lines}\n"


class OnPolicyHyperparameters(Hyperparameters):
    """What on-policy learners share.

    Attributes:
        learning_rate: Adam's step, at the start.
        critic_learning_rate: the critic's own, which no divergence target moves; None for the same.
        gae_lambda: trace decay of the advantages.
        ent_coef: weight of the entropy bonus.
        vf_coef: weight of the value loss.
        log_std_init: first log standard deviation, in the unit of actions.
        advantage_clip: normalised advantages are clipped to ± this.
        popart_rate: weight of the newest targets in the running mean and std of targets.
        normalize_values: whether the critic's targets are standardised (PopArt).
    """

    learning_rate: Number = traced(3e-4, 0.0)
    critic_learning_rate: Number | None = traced(None, 0.0)
    gae_lambda: Number = traced(0.95, 0.0, 1.0)
    ent_coef: Number = traced(0.0)
    vf_coef: Number = traced(0.5, 0.0)
    log_std_init: Number = traced(-0.5, -20.0, 5.0)
    advantage_clip: Number = traced(10.0, 0.0, INF)
    popart_rate: Number = traced(0.1, 0.0, 1.0)
    final_lr_fraction: Number = traced(0.0, 0.0)
    max_grad_norm: Number = traced(0.5, 0.0, INF)
    adam_eps: Number = traced(1e-5, 0.0)

    normalize_values: bool = static(True)
    num_envs: int = static(32, 1)
    num_steps: int = static(64, 1)
    activation: str = static("tanh")
    normalize_rewards: bool = static(False)


class OffPolicyHyperparameters(Hyperparameters):
    """What off-policy learners share.

    Attributes:
        actor_learning_rate: Adam's step for the actor.
        critic_learning_rate: Adam's step for the critics.
        polyak: step of the target networks, whenever the actor moves.
        warmup_scale: first actions are uniform over this fraction of their unit.
        relative_error: κ, in units of the reward scale. Above 0 large values count by their
            relative error, see ``value_output``; at 0 a critic's output is Q and all errors count
            alike.
        gradient_steps: gradient steps per update, i.e. per num_envs × num_steps.
        batch_size: transitions of a gradient step.
        buffer_size: transitions kept.
        learning_starts: environment steps before the first gradient step.
        normalize_actions: whether critics see standardised actions.
    """

    actor_learning_rate: Number = traced(3e-4, 0.0)
    critic_learning_rate: Number = traced(3e-3, 0.0)
    polyak: Number = traced(0.01, 0.0, 1.0)
    warmup_scale: Number = traced(1.0, 0.0, 1.0)
    relative_error: Number = traced(10.0, 0.0)
    final_lr_fraction: Number = traced(0.02, 0.0)
    actor_ema_rate: Number = traced(0.01, 0.0, 1.0)

    num_envs: int = static(16, 1)
    activation: str = static("silu")
    normalize_observations: bool = static(False)
    gradient_steps: int = static(16, 1)
    batch_size: int = static(256, 1)
    buffer_size: int = static(300_000, 1)
    learning_starts: int = static(4_000, 0, INF)
    normalize_actions: bool = static(True)
    stagger_episodes: bool = static(True)
