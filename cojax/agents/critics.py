"""What a learner believes and where it heads: its critic in raw reward, its actor's gradient.

Nothing here trains; :mod:`cojax.evaluation.diagnose` holds both against what is exact.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import Any, Literal

import jax
import jax.numpy as jnp
from flax import struct

from cojax.agents import a2c, algorithm, ddpg, off_policy, on_policy, ppo, sac, td3
from cojax.agents.networks import MLP, forward
from cojax.agents.optimization import optimizer
from cojax.errors import InputError
from cojax.policy import Policy

LOSSES = {"ppo": ppo.loss, "a2c": a2c.loss}  # on-policy
RULES = {"sac": sac.RULE, "td3": td3.RULE, "ddpg": ddpg.RULE}  # off-policy
PESSIMISTIC = {"sac"}  # its actor climbs the smallest of the critics, the others' the first


@dataclasses.dataclass(frozen=True)
class CriticFunction:
    """The static half of a :class:`Critic`: networks of one shape and how they are combined.

    Attributes:
        hidden: widths of the hidden layers.
        activation: nonlinearity, a name in ``networks.ACTIVATIONS``.
        smallest: whether the smallest of several critics counts; otherwise the first.
    """

    hidden: tuple[int, ...]
    activation: str
    smallest: bool = False

    def __call__(self, params: Any, obs: jax.Array, action: jax.Array | None = None) -> jax.Array:
        """The value of one observation (d,), or with one action (m,), in raw reward; a scalar."""
        x = jnp.clip((obs - params["mean"]) / params["std"], -params["clip"], params["clip"])
        if action is not None:
            x = jnp.concatenate([x, (action - params["centre"]) / params["scale"]])
        net = MLP(self.hidden, 1, self.activation)
        values = jnp.stack([forward(net, critic, x)[0] for critic in params["critics"]])
        value = jnp.min(values) if self.smallest else values[0]
        return params["unit"] * value + params["shift"]


@struct.dataclass
class Critic:
    """A learner's value function, in units of the environment's own reward.

        V̂(s) = (m + σ MLP(z))/c            PPO, A2C: (m, σ) mean and std of the targets
        Q̂(s, a) = Q(z, ũ)/c                SAC: the smallest of its critics, TD3 and DDPG: the first

    z is the observation as the learner standardises it, ũ its action, and c what rewards were
    multiplied by. They are rewards to go: compare -V̂ with V*. SAC's holds its entropy bonus.

    Attributes:
        params: the pytree that ``apply`` receives.
        apply: ``(params, obs[, action]) -> value``; static.
        kind: "V" or "Q".
    """

    params: Any
    apply: CriticFunction = struct.field(pytree_node=False)
    kind: Literal["V", "Q"] = struct.field(pytree_node=False)

    def __call__(self, obs: jax.Array, action: jax.Array | None = None) -> jax.Array:
        """V̂(s) of one observation (d,), or Q̂(s, a) with one action (m,); a scalar.

        Raises ValueError where a Q̂ is not given an action, or a V̂ is.
        """
        if (action is None) == (self.kind == "Q"):
            raise InputError(
                f"action: expected {'an action' if self.kind == 'Q' else 'none'}, "
                f"this critic is a {self.kind} function"
            )
        return self.apply(self.params, obs, action)


@dataclasses.dataclass(frozen=True)
class Agent:
    """One learner as training left it.

    Attributes:
        policy: the deterministic policy it hands out.
        critic: its value function.
        actor: parameters of the actor that its next update would change; where the policy is a
            running average of actors they differ from the policy's.
        gradients: ``(env, env_params, key, num) -> tree`` like ``actor``, with a leading axis of
            ``num``: the gradients that descend the learner's loss, each from a batch of the size
            and kind its algorithm takes, before the optimiser. On-policy learners collect ``num``
            fresh rollouts, one after another, and take a minibatch of each.
    """

    policy: Policy
    critic: Critic
    actor: Any
    gradients: Callable[[Any, Any, jax.Array, int], Any] = dataclasses.field(repr=False)


@algorithm.learning()
def agent(run: Any, **index: int) -> Agent:
    """One member of a run, e.g. ``agent(run, fixture=0, seed=3)``; an axis of length 1 may be left
    out.

    Raises ValueError, one line, for an unknown axis, an index out of range or missing, and for a
    run trained in several chunks, which keeps no states.
    """
    at = _position(run, index)
    state, h = _state(run, at), _settings(run, at)
    policy = run.policy.member(**dict(zip(run.axes, at, strict=True)))
    if run.algorithm in LOSSES:
        actor, critic = state.params["actor"], _value_function(state, policy, h)
        gradients = partial(_on_policy_gradients, LOSSES[run.algorithm], state, h)
    else:
        rule, smallest = RULES[run.algorithm], run.algorithm in PESSIMISTIC
        actor, critic = state.learner.params["actor"], _q_function(state, policy, h, smallest)
        gradients = partial(_off_policy_gradients, rule, state, h)
    return Agent(policy, critic, actor, gradients)


# --- one member of a run -------------------------------------------------------------------------


def _position(run: Any, index: dict[str, int]) -> tuple[int, ...]:
    """An index for every axis of a run."""
    if run.algorithm not in LOSSES and run.algorithm not in RULES:
        raise InputError(f"run: no critic is known for {run.algorithm!r}")
    if not run.states:
        raise InputError(
            f"run: it was trained in {run.chunks} chunks and kept no states; critics are lost"
        )
    unknown = sorted(set(index) - set(run.axes))
    if unknown:
        raise InputError(f"run: unknown axis {unknown[0]!r}; it has {list(run.axes)}")
    at = []
    for axis, length in zip(run.axes, run.failed.shape, strict=True):
        i = index.get(axis, 0 if length == 1 else None)
        if i is None or isinstance(i, bool) or not 0 <= i < length:
            raise InputError(f"run: expected {axis}=0 … {length - 1}, got {i}")
        at.append(int(i))
    return tuple(at)


def _state(run: Any, at: tuple[int, ...]) -> Any:
    """The state of one member, whether members ran side by side or one after another."""
    first = run.states[0]
    if first.failed.ndim:  # side by side: all but the clock carries the axes
        return jax.tree.map(lambda x: x[at], first.replace(clock=None)).replace(clock=first.clock)
    flat = 0
    for i, length in zip(at, run.failed.shape, strict=True):
        flat = flat * length + i
    return run.states[flat]


def _settings(run: Any, at: tuple[int, ...]) -> Any:
    if "hyperparameters" not in run.axes:
        return run.hyperparameters
    i = at[run.axes.index("hyperparameters")]
    return jax.tree.map(lambda x: x[i], run.hyperparameters)


# --- critics -------------------------------------------------------------------------------------


def _value_function(state: Any, policy: Policy, h: Any) -> Critic:
    """V̂ of an on-policy learner: out of its targets' scale and of its rewards'."""
    factor = algorithm.reward_factor(state, h)
    params = {name: policy.params[name] for name in ("mean", "std", "clip")} | {
        "critics": (state.params["critic"],),
        "unit": state.targets.std() / factor,
        "shift": state.targets.mean() / factor,
    }
    return Critic(params, CriticFunction(h.hidden, h.activation), "V")


def _q_function(state: Any, policy: Policy, h: Any, smallest: bool) -> Critic:
    """Q̂ of an off-policy learner; u = (a - c)/r in units of the box, then standardised."""
    factor = algorithm.reward_factor(state, h)
    low, high = policy.params["low"], policy.params["high"]
    centre, scale = 0.5 * (low + high), 0.5 * (high - low)
    if h.normalize_actions:
        centre = centre + scale * state.actions.mean
        scale = scale * state.actions.std()
    params = {name: policy.params[name] for name in ("mean", "std", "clip")} | {
        "critics": tuple(state.learner.params["critics"]),
        "centre": centre,
        "scale": scale,
        "unit": 1.0 / factor,
        "shift": jnp.zeros(()),
    }
    return Critic(params, CriticFunction(h.hidden, h.activation, smallest), "Q")


# --- gradients -----------------------------------------------------------------------------------


@algorithm.learning()
def _on_policy_gradients(
    loss: Callable[..., Any], state: Any, h: Any, env: Any, env_params: Any, key: Any, num: int
) -> Any:
    return _on_policy_program(loss, env, num, state, algorithm.strong(env_params), h, key)


@partial(jax.jit, static_argnums=(0, 1, 2))
def _on_policy_program(loss, env, num, state, env_params, h, key):
    """Gradients of the loss at the first minibatch of an update, of ``num`` rollouts in turn."""
    nets = on_policy.networks(env, env_params, h)
    size = h.num_envs * h.num_steps

    def one(moved, key):
        rollout_key, order_key = jax.random.split(key)
        moved, rollout, _ = on_policy.collect(env, moved, rollout_key, env_params, h)
        ready, batch = on_policy.prepare(env, moved, rollout, env_params, h)
        chosen = on_policy.permutation(order_key, size)[: size // h.num_minibatches]
        minibatch = jax.tree.map(lambda x: x[chosen], batch)
        grads, _ = jax.grad(loss, has_aux=True)(ready.params, minibatch, nets, h)
        return moved, grads["actor"]

    return jax.lax.scan(one, state, jax.random.split(key, num))[1]


@algorithm.learning()
def _off_policy_gradients(
    rule: Any, state: Any, h: Any, env: Any, env_params: Any, key: Any, num: int
) -> Any:
    return _off_policy_program(rule, env, num, state, algorithm.strong(env_params), h, key)


@partial(jax.jit, static_argnums=(0, 1, 2))
def _off_policy_program(rule, env, num, state, env_params, h, key):
    """Gradients of the actor's loss at ``num`` batches from the replay.

    A rule makes a step and keeps its gradient to itself. From a fresh optimiser the first moment
    that the step leaves is (1 - β₁) times the gradient, clipped by its norm: the same direction.
    """
    nets = off_policy.networks(rule, env, env_params, h, state.actions)
    fresh = optimizer(h.max_grad_norm, h.adam_eps).init(state.learner.params["actor"])
    learner = state.learner.replace(opt_states={**state.learner.opt_states, "actor": fresh})
    blocks = jnp.maximum(state.clock.update, 1)
    factor = algorithm.reward_factor(state, h)

    def one(_, key):
        sample_key, noise_key = jax.random.split(key)
        batch = off_policy.draw(state, sample_key, blocks, (h.batch_size,), h)
        noise = jax.random.normal(noise_key, batch.u.shape)
        moved, _ = rule.improve(nets, learner, batch, noise, jnp.zeros(()), factor, h)
        return None, moved.opt_states["actor"][1].mu

    return jax.lax.scan(one, None, jax.random.split(key, num))[1]
