"""Many systems of one shape as one pytree, so that they cost one compilation."""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from cojax import inputs, linalg, precision
from cojax.coordinates import innermost, rewrapped
from cojax.envs.params import EnvParams
from cojax.errors import InputError
from cojax.quadratic import HATS, QuadraticGaussian
from cojax.system import System
from cojax.types import PyTree

MATRICES = ("P", "Q", "R", "P_minus_Q", "sqrt_P_minus_Q", "M0", "R_inverse", *HATS)


def stack(params: Sequence[EnvParams]) -> EnvParams:
    """Stack params of one shape along a new leading axis of every leaf.

    Differences of shape that carry no meaning are aligned first: Chebyshev series are padded
    with zeros (the result is the same to the bit), noise with rows of zero deviation, and
    diagonal matrices are written out where others are full.

    Raises ValueError for an empty list, and where shapes differ, naming the first that does.
    """
    params = list(params)
    if not params:
        raise InputError("stack: expected at least one params, got an empty list")
    first = shape(params[0])
    for index, other in enumerate(params[1:], start=1):
        _require_equal(first, shape(other), index)
    bases, changes = zip(*(innermost(p.system) for p in params), strict=True)
    if quadratics(bases[0]):
        columns = zip(*map(quadratics, bases), strict=True)
        rows = zip(*map(align_shapes, columns), strict=True)
        aligned = map(rewrapped, map(made_of, bases, rows), changes)
        params = [inputs.swapped(p, system=s) for p, s in zip(params, aligned, strict=True)]
    return jax.tree.map(_stack, *params)


def quadratics(system: System) -> tuple[QuadraticGaussian, ...]:
    """The quadratic systems that a ``system`` is made of: itself, or its ``parts``."""
    if isinstance(system, QuadraticGaussian):
        return (system,)
    return getattr(system, "parts", ())


def made_of(system: System, parts: Sequence[QuadraticGaussian]) -> System:
    """``system`` with ``parts`` for the quadratic systems of its own."""
    if isinstance(system, QuadraticGaussian):
        return parts[0]
    return inputs.swapped(system, parts=tuple(parts)) if parts else system


def shape(params: EnvParams) -> tuple[PyTree, ...]:
    """Params stack where it is equal: all that tells them apart and cannot be aligned."""
    fields, (system, changes) = vars(params), innermost(params.system)
    kinds: tuple[PyTree, ...] = (type(system),)
    found = []
    for part in quadratics(system):
        leaves = vars(part)
        noise = part.noise.kind(part.geometry.noise_order())
        given = tuple(leaves[name] is not None for name in MATRICES)
        kinds += (type(part), part.parameterization, part.inverse_sqrt.kind, noise, given)
        apart = (*MATRICES, "parameterization", "inverse_sqrt", "noise")
        found.append({k: v for k, v in leaves.items() if k not in apart})
    if found:
        plain = isinstance(system, QuadraticGaussian)
        own = found[0] if plain else vars(system) | {"parts": found}
        fields = fields | {"system": (changes, own) if changes else own}
    rest = {k: v for k, v in fields.items() if k not in ("clip_actions", "terminal_value")}
    words = (params.clip_actions, params.terminal_value, str(system.gamma.dtype))
    return (*kinds, *words, *linalg.shape_of(rest))


def _require_equal(first: tuple[PyTree, ...], other: tuple[PyTree, ...], index: int) -> None:
    """Raise InputError, one line, with what tells params ``index`` from the first."""
    if first[:-1] != other[:-1]:
        raise InputError(
            f"stack: number {index} is built of other parts than number 0 "
            "(family, dimensions, precision, noise or initial law); stack those of one shape"
        )
    for (path, a), (_, b) in zip(first[-1], other[-1], strict=True):
        if a != b:
            name = jax.tree_util.keystr(path, simple=True, separator=".")
            raise InputError(
                f"stack: {name} has shape {b} in number {index} and {a} in number 0; "
                "stack those of one shape"
            )


def _stack(*leaves: jax.Array) -> jax.Array:
    """Stack on the host, which for a thousand small arrays is many times faster."""
    if any(isinstance(leaf, Tracer) for leaf in leaves):
        return jnp.stack(leaves)
    with precision.x64():  # where a float64 leaf stays one
        return jnp.asarray(np.stack([np.asarray(leaf) for leaf in leaves]))


def unstack(batch: EnvParams) -> list[EnvParams]:
    """The params of a stacked batch, one by one."""
    num = num_instances(batch)
    if num is None:
        return [batch]
    return [jax.tree.map(lambda leaf, i=i: leaf[i], batch) for i in range(num)]


def num_instances(params: PyTree) -> int | None:
    """How many systems a batch holds; None for params that are not stacked."""
    shape = jnp.shape(params.max_steps_in_episode)
    return shape[0] if shape else None


def align_shapes(systems: Sequence[QuadraticGaussian]) -> list[QuadraticGaussian]:
    """Bring systems of one :func:`shape` to one shape of all leaves, by what carries no meaning."""
    out = [dict(vars(s)) for s in systems]
    for name in MATRICES:
        matrices = [s[name] for s in out if s[name] is not None]
        for s in out if matrices else []:
            s[name] = linalg.written_out(s[name], matrices)
    for name in ("inverse_sqrt", "noise"):
        members = [s[name] for s in out]
        for s in out:
            s[name] = s[name].aligned(members)
    return [type(system)(**s) for system, s in zip(systems, out, strict=True)]
