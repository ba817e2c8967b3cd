"""What a learner believes and where it heads: its critic in raw reward, its actor's gradient.

Nothing here trains; :mod:`cojax.evaluation.diagnosis` holds both against what is exact. How either
comes out of a learner's state is the algorithm's to say, see ``algorithm.Algorithm``.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Literal

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn
from flax import struct

from cojax.agents import algorithm, value_output
from cojax.agents.algorithm import Algorithm, Environment
from cojax.agents.networks import forward
from cojax.agents.own_networks import critic_network, rescalable
from cojax.errors import InputError
from cojax.io.described import described
from cojax.policy import Policy
from cojax.types import Array, Float, PRNGKeyArray, PyTree

if TYPE_CHECKING:
    from cojax.agents.off_policy_method import OffPolicyMethod
    from cojax.agents.run import Run


@dataclasses.dataclass(frozen=True)
class CriticFunction:
    """The static half of a :class:`Critic`: the network of each and how they are combined.

    Attributes:
        network: of every critic.
        smallest: whether the smallest of several critics counts; otherwise the first.
    """

    network: nn.Module
    smallest: bool = False

    def __call__(
        self, params: PyTree, obs: Float[Array, " o"], action: Float[Array, " m"] | None = None
    ) -> Float[Array, ""]:
        """The value of one observation, or with one action, in raw reward."""
        x = jnp.clip((obs - params["mean"]) / params["std"], -params["clip"], params["clip"])
        if action is not None:
            x = jnp.concatenate([x, (action - params["centre"]) / params["scale"]])
        outputs = jnp.stack([forward(self.network, critic, x)[0] for critic in params["critics"]])
        out = jnp.min(outputs) if self.smallest else outputs[0]
        return params["unit"] * value_output.value(out, params["kappa"]) + params["shift"]


@described(lambda critic: (f"Critic {critic.kind}, in raw reward: compare -{critic.kind} with "
    f"{critic.kind}*", {"network": type(critic.apply.network).__name__}))  # fmt: skip
@struct.dataclass
class Critic:
    """A learner's value function, in units of the environment's own reward.

        V̂(s) = (m + σ f(z))/c              PPO, A2C, SHAC: (m, σ) mean and std of the targets
        Q̂(s, a) = sinh(f(z, ũ))/(κ c)      SAC: the smallest of its critics, others: the first

    f is the critic's network, z the observation as the learner standardises it, ũ its action, and
    c what rewards were multiplied by; with κ = 0 Q̂ is f(z, ũ)/c. They are rewards to go: compare
    -V̂ with V*. SAC's holds its entropy bonus.

    Attributes:
        params: the pytree that ``apply`` receives.
        apply: ``(params, obs[, action]) -> value``; static.
        kind: "V" or "Q".
    """

    params: PyTree
    apply: CriticFunction = struct.field(pytree_node=False)
    kind: Literal["V", "Q"] = struct.field(pytree_node=False)

    def __call__(
        self, obs: Float[Array, " o"], action: Float[Array, " m"] | None = None
    ) -> Float[Array, ""]:
        """V̂(s) of one observation, or Q̂(s, a) with one action.

        Raises ValueError where a Q̂ is not given an action, or a V̂ is.
        """
        if (action is None) == (self.kind == "Q"):
            raise InputError(
                f"action: expected {'an action' if self.kind == 'Q' else 'none'}, "
                f"this critic is a {self.kind} function"
            )
        return self.apply(self.params, obs, action)


@described(lambda agent: ("Agent: one learner, for diagnosis", {
    "policy": agent.policy.name, "critic": agent.critic.kind}))  # fmt: skip
@dataclasses.dataclass(frozen=True)
class Agent:
    """One learner as training left it.

    Attributes:
        policy: the deterministic policy it hands out.
        critic: its value function; None of an algorithm without one.
        actor: parameters of the actor that its next update would change; where the policy is a
            running average of actors they differ from the policy's.
        gradients: ``(env, env_params, key, num) -> tree`` like ``actor``, with a leading axis of
            ``num``: the gradients that descend the learner's loss, each from a batch of the size
            and kind its algorithm takes, not clipped. On-policy learners collect ``num`` fresh
            rollouts, one after another, and take a minibatch of each.
    """

    policy: Policy
    critic: Critic | None
    actor: PyTree
    gradients: Callable[[Environment, PyTree, PRNGKeyArray, int], PyTree] = dataclasses.field(
        repr=False
    )


@algorithm.learning()
def agent(spec: Algorithm, run: Run, index: dict[str, int]) -> Agent:
    """One member of a run of an algorithm; an axis of length 1 may be left out of the index.

    Raises InputError, one line, for an unknown axis, an index out of range or missing, for a run
    trained in several chunks, which keeps no states, and for an algorithm that does not say what
    its actor or its gradients are.
    """
    return of_state(spec, *_member(run, index))


@algorithm.learning()
def of_state(spec: Algorithm, state: PyTree, h: PyTree, policy: Policy) -> Agent:
    """The agent of one learner's state, its hyperparameters and its policy; raises InputError for
    an algorithm that does not say what its actor or its gradients are.
    """
    actor, of = _part(spec, "actor"), _part(spec, "actor_gradients")
    own = getattr(spec, "critic", None)
    found = None if own is None else own(state, h, policy)

    @algorithm.learning()
    def gradients(env, env_params, key, num):
        return _gradients((of, env, num), state, algorithm.strong(env_params), h, key=key)

    return Agent(policy, found, actor(state), gradients)


@algorithm.learning()
def critic(spec: Algorithm, run: Run, index: dict[str, int]) -> Critic:
    """The critic of one member; raises InputError as :func:`agent` does."""
    return _part(spec, "critic")(*_member(run, index))


@partial(jax.jit, static_argnums=0)
def _gradients(static, state, env_params, h, *, key):
    of, env, num = static
    return of(env, state, env_params, h, key=key, num=num)


def _part(spec: Algorithm, name: str) -> Callable:
    """What an algorithm, of a plug-in perhaps, gives for diagnosis."""
    part = getattr(spec, name, None)
    if part is None:
        raise InputError(f"run: the algorithm {spec.name!r} gives no {name}")
    return part


def value_function(state: PyTree, h: PyTree, policy: Policy) -> Critic:
    """V̂ of an on-policy learner: out of the scale of the targets and of that of the rewards."""
    factor = algorithm.reward_factor(state, h)
    params = {name: policy.params[name] for name in ("mean", "std", "clip")} | {
        "critics": (state.params["critic"],),
        "unit": state.targets.std() / factor,
        "shift": state.targets.mean() / factor,
        "kappa": jnp.zeros(()),
    }
    dim = state.obs.shape[-1]
    return Critic(params, CriticFunction(rescalable(critic_network(h, dim), dim)), "V")


def q_function(method: OffPolicyMethod, state: PyTree, h: PyTree, policy: Policy) -> Critic:
    """Q̂ of an off-policy learner; u = (a - c)/r in their unit, then standardised."""
    low, high = policy.params["low"], policy.params["high"]
    centre, scale = 0.5 * (low + high), 0.5 * (high - low) * state.unit
    if h.normalize_actions:
        centre = centre + scale * state.actions.mean
        scale = scale * state.actions.std()
    params = {name: policy.params[name] for name in ("mean", "std", "clip")} | {
        "critics": tuple(state.learner.params["critics"]),
        "centre": centre,
        "scale": scale,
        "unit": 1.0 / algorithm.reward_factor(state, h),
        "shift": jnp.zeros(()),
        "kappa": h.relative_error,
    }
    network = method.critic_network(h, state.obs.shape[-1] + low.shape[-1])
    return Critic(params, CriticFunction(network, method.smallest), "Q")


def _member(run: Run, index: dict[str, int]) -> tuple[PyTree, PyTree, Policy]:
    """State, hyperparameters and policy of one member."""
    at = _position(run, index)
    h, policy = run.hyperparameters, run.policy.member(**at)
    if "hyperparameters" in at:
        h = jax.tree.map(lambda x: x[at["hyperparameters"]], h)
    row = int(np.ravel_multi_index(tuple(at.values()), run.failed.shape)) if at else 0
    return _state(run.states, row), h, policy


def _state(states: list[PyTree], row: int) -> PyTree:
    """The state of one member, of those that calls of a program left."""
    first = states[0]
    if not first.failed.ndim:
        return states[row]
    members = jax.tree.map(lambda x: x[row], first.replace(clock=None))  # it may be of all
    return members.replace(clock=first.clock)


def row_of_states(run: Run) -> PyTree:
    """States of all members in a row, leaves (M, ...)."""
    states = [_state(run.states, row) for row in range(run.failed.size)]
    return jax.tree.map(lambda *x: jnp.stack(x), *states)


def _position(run: Run, index: dict[str, int]) -> dict[str, int]:
    """An index for every axis of a run."""
    if not run.states:
        raise InputError(
            f"run: it was trained in {run.chunks} chunks and kept no states; critics are lost"
        )
    unknown = sorted(set(index) - set(run.axes))
    if unknown:
        raise InputError(f"run: unknown axis {unknown[0]!r}; it has {list(run.axes)}")
    at = {}
    for axis, length in zip(run.axes, run.failed.shape, strict=True):
        i = index.get(axis, 0 if length == 1 else None)
        if i is None or isinstance(i, bool) or not 0 <= i < length:
            raise InputError(f"run: expected {axis}=0 … {length - 1}, got {i}")
        at[axis] = int(i)
    return at
