"""Networks and policies as programs: what computes them, in a file, without the code they had.

A program is StableHLO as ``jax.export`` serialises it, for CPU, CUDA and TPU: operations on arrays,
and nothing that is unpickled. JAX has no rule for a batch of calls of an exported program, so both
axes are in the program itself, of any length: p sets of parameters and n inputs of each,

    (p, ...), (p, n, d) -> (p, n, k)

and a batch of calls is one with a larger p or n.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Hashable
from functools import lru_cache

import jax
import jax.numpy as jnp
from flax import linen as nn
from jax import export

from cojax import precision, streams
from cojax.errors import InputError, one_line
from cojax.policy import Apply
from cojax.types import Array, Float, PRNGKeyArray, PyTree

PLATFORMS = ("cpu", "cuda", "tpu")
KEY = jax.ShapeDtypeStruct((2,), jnp.uint32)  # of threefry, as words


@dataclasses.dataclass(frozen=True)
class Program:
    """A network f that was exported. It may be compiled and batched over anything, as a module
    may, but not differentiated, and computes in float32 whatever the precision of its input.

    Attributes:
        data: as ``jax.export`` serialises it.
    """

    data: bytes = dataclasses.field(repr=False)

    def apply(self, params: PyTree, x: Float[Array, "*batch d"]) -> Float[Array, "*batch k"]:
        """f(x), as ``flax.linen.Module.apply`` gives it.

        Raises ValueError for parameters of another structure or other shapes.
        """
        one = jax.tree.map(lambda leaf: leaf[None].astype(jnp.float32), params)
        rows = x.astype(jnp.float32).reshape(1, -1, x.shape[-1])
        out = _function(self.data)(one, rows)
        return out.reshape(*x.shape[:-1], out.shape[-1]).astype(x.dtype)


def program(network: nn.Module | Program, params: PyTree, inputs: int) -> Program:
    """A network as a program; ``params`` give the shapes of one set, and ``inputs`` is d.

    Raises InputError, one line, for a network that cannot be exported, and where the package
    flatbuffers is missing.
    """
    if isinstance(network, Program):
        return network
    leaves, tree = jax.tree.flatten(params)
    return _exported(network, tuple(leaf.shape for leaf in leaves), tree, inputs)


@dataclasses.dataclass(frozen=True)
class OwnPolicy:
    """The policy of a learner that is not ours: ``apply``, and how long an observation is."""

    apply: Apply
    inputs: int

    def __call__(
        self, params: PyTree, obs: Float[Array, " o"], key: PRNGKeyArray
    ) -> Float[Array, " m"]:
        """Map one observation and a key to one action."""
        return self.apply(params, obs, key)


@dataclasses.dataclass(frozen=True)
class PolicyProgram:
    """A policy that was exported, :class:`OwnPolicy` as it is read from a file.

    Attributes:
        inputs: length of an observation.
        network: of parameters, observations and words of keys.
    """

    inputs: int
    network: Program

    def __call__(
        self, params: PyTree, obs: Float[Array, " o"], key: PRNGKeyArray
    ) -> Float[Array, " m"]:
        """Map one observation and a key to one action; computed in float32."""
        one = jax.tree.map(lambda leaf: leaf[None], params)
        rows = obs.astype(jnp.float32)[None, None], streams.to_words(key)[None, None]
        return _function(self.network.data)(one, rows)[0, 0].astype(obs.dtype)


def numbered(params: PyTree) -> dict[str, PyTree]:
    """Leaves by their number: a tree of any kind as what a file can hold."""
    return {f"{i:04d}": leaf for i, leaf in enumerate(jax.tree.leaves(params))}


def policy_program(policy: OwnPolicy, params: PyTree) -> PolicyProgram:
    """A policy as a program of its parameters :func:`numbered`; ``params`` are one set of them.

    Raises InputError as :func:`program` does.
    """
    name = getattr(policy.apply, "__qualname__", type(policy.apply).__name__)
    structure = jax.tree.structure(params)

    def of_one(leaves, row):
        obs, words = row
        tree = jax.tree.unflatten(structure, [leaves[name] for name in sorted(leaves)])
        return policy.apply(tree, obs, streams.of_words(words))

    row = (jax.ShapeDtypeStruct((policy.inputs,), jnp.float32), KEY)
    return PolicyProgram(policy.inputs, _export(name, of_one, numbered(params), row))


@lru_cache(maxsize=32)
def _exported(
    network: nn.Module, shapes: tuple[tuple[int, ...], ...], tree: Hashable, d: int
) -> Program:
    leaves = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes]
    params = jax.tree.unflatten(tree, leaves)
    x = jax.ShapeDtypeStruct((d,), jnp.float32)
    return _export(type(network).__name__, network.apply, params, x)


def _export(name: str, of_one: Callable, params: PyTree, row: PyTree) -> Program:
    """A function of parameters and a row of inputs as a program of p × n of them."""
    sizes = export.symbolic_shape("p, n")

    def led(tree, axes):
        return jax.tree.map(lambda x: jax.ShapeDtypeStruct((*axes, *x.shape), x.dtype), tree)

    def of_many(params, rows):
        return jax.vmap(jax.vmap(of_one, (None, 0)))(params, rows)

    try:
        with precision.x32():
            made = export.export(jax.jit(of_many), platforms=PLATFORMS)(
                led(params, sizes[:1]), led(row, sizes)
            )
        return Program(bytes(made.serialize()))
    except Exception as error:  # whatever a stranger's module, or the exporter, raises
        raise InputError(f"{name} cannot be saved as a program: {one_line(error)}") from error


@lru_cache(maxsize=32)
def _function(data: bytes) -> Callable[[PyTree, PyTree], Array]:
    """The program of p sets of parameters and n rows of each, with a rule for batches."""
    exported = export.deserialize(bytearray(data))

    @jax.custom_batching.custom_vmap
    def of_many(params, rows):
        return exported.call(params, rows)

    @of_many.def_vmap
    def batched(size, in_batched, params, rows):
        def whole(leaf, is_batched):
            return leaf if is_batched else jnp.broadcast_to(leaf, (size, *leaf.shape))

        several, inputs = in_batched
        rows = jax.tree.map(whole, rows, inputs)
        if not any(jax.tree.leaves(several)):  # more rows: (b, p, n, ...) -> (p, b n, ...)
            _, p, n = jax.tree.leaves(rows)[0].shape[:3]
            out = of_many(
                params,
                jax.tree.map(
                    lambda x: jnp.swapaxes(x, 0, 1).reshape(p, size * n, *x.shape[3:]), rows
                ),
            )
            return jnp.swapaxes(out.reshape(p, size, n, out.shape[-1]), 0, 1), True

        def joined(leaf):  # more sets of parameters: (b, p, ...) -> (b p, ...)
            return leaf.reshape(-1, *leaf.shape[2:])

        params = jax.tree.map(whole, params, several)
        out = of_many(jax.tree.map(joined, params), jax.tree.map(joined, rows))
        return out.reshape(size, -1, *out.shape[1:]), True

    return of_many
