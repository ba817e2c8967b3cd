"""Networks as programs: what computes them, in a file, without the code that it was made of.

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

from cojax import precision
from cojax.errors import InputError, one_line
from cojax.types import Array, Float, PyTree

PLATFORMS = ("cpu", "cuda", "tpu")


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


@lru_cache(maxsize=32)
def _exported(
    network: nn.Module, shapes: tuple[tuple[int, ...], ...], tree: Hashable, d: int
) -> Program:
    p, n = export.symbolic_shape("p, n")
    specs = [jax.ShapeDtypeStruct((p, *shape), jnp.float32) for shape in shapes]

    def network_of_many(params: PyTree, x: Array) -> Array:
        return jax.vmap(jax.vmap(network.apply, (None, 0)))(params, x)  # pyright: ignore

    try:
        with precision.x32():
            made = export.export(jax.jit(network_of_many), platforms=PLATFORMS)(
                jax.tree.unflatten(tree, specs), jax.ShapeDtypeStruct((p, n, d), jnp.float32)
            )
        return Program(bytes(made.serialize()))
    except Exception as error:  # whatever a stranger's module, or the exporter, raises
        raise InputError(
            f"{type(network).__name__} cannot be saved as a program: {one_line(error)}"
        ) from error


@lru_cache(maxsize=32)
def _function(data: bytes) -> Callable[[PyTree, Array], Array]:
    """The program of p sets of parameters and n inputs of each, with a rule for batches."""
    exported = export.deserialize(bytearray(data))

    @jax.custom_batching.custom_vmap
    def of_many(params, x):
        return exported.call(params, x)

    @of_many.def_vmap
    def batched(size, in_batched, params, x):
        several, inputs = in_batched
        if not any(jax.tree.leaves(several)):  # more inputs: (b, p, n, d) -> (p, b n, d)
            _, p, n, d = x.shape
            out = of_many(params, jnp.swapaxes(x, 0, 1).reshape(p, size * n, d))
            return jnp.swapaxes(out.reshape(p, size, n, out.shape[-1]), 0, 1), True

        def joined(leaf, is_batched):  # more sets of parameters: (b, p, ...) -> (b p, ...)
            whole = leaf if is_batched else jnp.broadcast_to(leaf, (size, *leaf.shape))
            return whole.reshape(-1, *whole.shape[2:])

        out = of_many(jax.tree.map(joined, params, several), joined(x, inputs))
        return out.reshape(size, -1, *out.shape[1:]), True

    return of_many
