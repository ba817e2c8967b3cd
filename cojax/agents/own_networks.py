"""Networks of one's own: any flax.linen module as an actor or a critic.

A module maps observations (..., d), or what critics of off-policy learners see, observation and
action, to outputs (..., k), whatever the leading axes. It is given as it is, or by a name in
``NETWORKS``, to which installed packages add by the entry point ``cojax.networks``
(:mod:`cojax.plugins`): a function of the number of outputs that makes a module.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn
from flax.errors import InvalidRngError
from flax.traverse_util import flatten_dict
from jax.flatten_util import ravel_pytree

from cojax import precision
from cojax.agents.algorithm import Environment
from cojax.agents.batch_norm import NormalizedMLP
from cojax.agents.networks import MLP, forward, scale_head
from cojax.errors import InputError, one_line, one_of
from cojax.types import Array, Float, PyTree

NETWORKS: dict[str, Callable[[int], nn.Module]] = {}
LEADING = ((), (2,), (3, 2))  # axes before an observation, that a network is tried with
MOVES = ((0.5, -2.0), (3.0, 50.0))  # scales and shifts that a head is tried with


def network() -> Any:
    """Return a field for a hyperparameter that is a network: None, a module or a name."""
    metadata = {"pytree_node": False, "range": (0.0, 0.0), "check": given}
    return dataclasses.field(default=None, metadata=metadata)


def given(where: str, value: object) -> object:
    """Return a network as hyperparameters keep it; ``where`` names it in messages.

    Raises InputError for an unknown name, suggesting the nearest, and for what is no module.
    """
    if value is None:
        return None
    if isinstance(value, str):
        if not NETWORKS:
            raise InputError(f"{where}: unknown {value!r}; no package has a cojax.networks")
        return one_of(where, value, NETWORKS)
    if isinstance(value, type) and issubclass(value, nn.Module):
        raise InputError(f"{where}: expected a module, got its class; write {value.__name__}(...)")
    if not isinstance(value, nn.Module):
        raise InputError(
            f"{where}: expected a module of flax.linen or the name of one, "
            f"got {type(value).__name__}"
        )
    for field in dataclasses.fields(value):  # pyright: ignore[reportArgumentType]
        part = getattr(value, field.name)
        try:
            hash(part)
        except TypeError:
            raise InputError(
                f"{where}: expected fields that can be hashed, tuples and no lists or arrays, "
                f"got {type(value).__name__} with {field.name} = {describe(part)}"
            ) from None
    return value


def problem(name: str, make: object) -> str | None:
    """Why an object cannot be a network under a name, or None where it can."""
    if not callable(make):
        return f"expected a function of the number of outputs, got {make!r}"
    made = make(1)
    if not isinstance(made, nn.Module):
        return f"expected a module of flax.linen, got {made!r}"
    try:
        given(name, made)
    except InputError as error:
        return str(error).removeprefix(f"{name}: ")
    return None


def describe(value: object) -> str:
    """A network, or what one holds, in one line that is the same in every process."""
    if isinstance(value, nn.Module):
        shown = {f.name: getattr(value, f.name) for f in dataclasses.fields(value)}  # pyright: ignore
        told = (f"{k}={describe(v)}" for k, v in shown.items() if k not in ("parent", "name"))
        return f"{type(value).__module__}:{type(value).__qualname__}({', '.join(told)})"
    if isinstance(value, str) and value in NETWORKS:
        return f"{value} = {describe(NETWORKS[value](1))}"
    if isinstance(value, tuple):
        return f"({', '.join(map(describe, value))})"
    if callable(value) and hasattr(value, "__qualname__"):
        return f"{value.__module__}:{value.__qualname__}"
    return " ".join(re.sub(r" at 0x[0-9a-f]+", "", repr(value)).split())


def dimensions(env: Environment, env_params: PyTree) -> tuple[int, int]:
    """Lengths of an observation and of an action."""
    return env.observation_space(env_params).shape[0], env.action_space(env_params).shape[0]


def actor_network(h: PyTree, inputs: int, outputs: int) -> nn.Module:
    """The actor's network of hyperparameters; its first output is almost 0 if it is ours.

    Raises InputError as :func:`check` does.
    """
    if h.actor is None:
        return MLP(h.hidden, outputs, h.activation, 0.01)
    return _own("actor", h.actor, inputs, outputs)


def critic_network(h: PyTree, inputs: int, normalized: bool = False) -> nn.Module:
    """The network of one critic; raises InputError as :func:`check` does, and for one of one's own
    where the learner needs its batches ``normalized`` inside.
    """
    if h.critic is None:
        return (NormalizedMLP if normalized else MLP)(h.hidden, 1, h.activation, 1.0)
    if normalized:
        raise InputError("critic: this learner normalises its critics inside; expected none given")
    return _own("critic", h.critic, inputs, 1)


def _own(role: str, value: nn.Module | str, inputs: int, outputs: int) -> nn.Module:
    module = NETWORKS[value](outputs) if isinstance(value, str) else value
    check(role, module, inputs, outputs)
    return module


@lru_cache(maxsize=256)
def check(role: str, module: nn.Module, inputs: int, outputs: int) -> None:
    """Raise InputError, one line, unless a module maps (..., inputs) to (..., outputs) in float32,
    has parameters, keeps no state beside them and draws no random numbers. Nothing is computed.
    """
    name = type(module).__name__

    def shaped(function, *arguments, x):
        try:
            with precision.x32():
                return jax.eval_shape(function, *arguments, x)
        except InvalidRngError:
            raise InputError(
                f"{role}: expected a network that draws no random numbers, as {name} does"
            ) from None
        except Exception as error:  # whatever a stranger's module raises
            raise InputError(
                f"{role}: {name} fails on an input of shape {x.shape}: {one_line(error)}"
            ) from error

    first = jax.ShapeDtypeStruct((inputs,), jnp.float32)
    variables = shaped(module.init, jax.random.key(0), x=first)
    if state := sorted(set(variables) - {"params"}):
        raise InputError(f"{role}: expected a network without state, {name} has {state[0]}")
    leaves = flatten_dict(variables).values()
    if not leaves:
        raise InputError(f"{role}: {name} has no parameters, there is nothing to learn")
    for leaf in leaves:
        if getattr(leaf, "dtype", None) != jnp.float32:
            told = getattr(leaf, "dtype", type(leaf).__name__)
            raise InputError(f"{role}: expected parameters in float32, {name} has {told}")
    for lead in LEADING:
        x = jax.ShapeDtypeStruct((*lead, inputs), jnp.float32)
        out = shaped(module.apply, variables, x=x)
        if not isinstance(out, jax.ShapeDtypeStruct):
            raise InputError(f"{role}: expected one array, {name} gives a {type(out).__name__}")
        if out.shape != (*lead, outputs):
            wanted, found = f"(..., {outputs})", str(out.shape)
            if out.shape[:-1] == lead and out.shape:
                found = f"(..., {out.shape[-1]})"
            elif lead:
                wanted = f"{(*lead, outputs)} for an input of shape {x.shape}"
            raise InputError(f"{role}: expected an output of shape {wanted}, {name} gives {found}")
        if out.dtype != jnp.float32:
            raise InputError(f"{role}: expected an output in float32, {name} gives {out.dtype}")


class Rescalable(nn.Module):
    """x -> w f(x) + b, with w = 1 and b = 0 at the start and learned like all else.

    What makes a value function of another scale out of any network, see ``networks.scale_head``.

    Attributes:
        network: f, with one output.
    """

    network: nn.Module

    @nn.compact
    def __call__(self, x: Float[Array, "*batch d"]) -> Float[Array, "*batch 1"]:
        """Map inputs to outputs."""
        layer = nn.Dense(1, kernel_init=nn.initializers.ones, name="head")
        return layer(self.network(x))


def rescalable(critic: nn.Module, inputs: int) -> nn.Module:
    """A critic whose output ``networks.scale_head`` can scale and shift: itself, where its last
    layer is a dense one called "head", and else with one more layer, :class:`Rescalable`.
    """
    if type(critic) is MLP or ends_in_head(critic, inputs):
        return critic
    return Rescalable(critic)


@lru_cache(maxsize=256)
def ends_in_head(critic: nn.Module, inputs: int) -> bool:
    """Whether scale and shift of a layer called "head" are those of the output.

    Found out on a few random inputs: a layer of that name may well be followed by others.
    """
    with precision.x32(), jax.ensure_compile_time_eval():
        keys = jax.random.split(jax.random.key(0), 3)
        x = jax.random.normal(keys[0], (8, inputs))
        params: PyTree = critic.init(keys[1], x)
        head = params["params"].get("head")
        if not hasattr(head, "keys") or {*head} != {"kernel", "bias"} or head["bias"].ndim != 1:
            return False
        noise, unravel = ravel_pytree(params)  # some begin at 0, where much is the same
        noise = 0.1 * jax.random.normal(keys[2], noise.shape)
        params = jax.tree.map(jnp.add, params, unravel(noise))
        out = forward(critic, params, x)
        for scale, shift in MOVES:
            moved = scale_head(params, jnp.float32(scale), jnp.float32(shift))
            same = jnp.allclose(forward(critic, moved, x), scale * out + shift, 1e-4, 1e-4)
            if not same:
                return False
    return True
