"""How the members of one compiled call run: side by side, one after another, over devices.

    M members = D devices × L a device;  each device runs its L in blocks of ``width``

A block is a ``vmap``, the blocks of a device follow one another in a ``lax.map``, and devices share
nothing: the ``shard_map`` around them has no communication in it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import TypeAlias

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from cojax.types import PyTree

AXIS = "member"
Axes: TypeAlias = PyTree  # 0 for leaves with a leading axis "member", None for those without


@dataclasses.dataclass(frozen=True)
class Layout:
    """Static description of a call over the axis "member".

    Attributes:
        width: members of a device that run side by side; it divides those of a device.
        mesh: devices along the one axis "member"; None for the default device.
        own_clocks: whether every member counts its own updates. Then what depends on the count
            is a choice inside a block, not a branch; leave it unless members begin at different
            moments.
    """

    width: int = 1
    mesh: Mesh | None = None
    own_clocks: bool = False

    @classmethod
    def over(cls, devices: Sequence[object], width: int, own_clocks: bool = False) -> Layout:
        """A layout over some devices; over one alone it needs no mesh if that is the default."""
        if len(devices) == 1 and devices[0] == jax.local_devices()[0]:
            return cls(width, None, own_clocks)
        return cls(width, Mesh(np.asarray(devices), (AXIS,)), own_clocks)

    def narrowed(self, members: int) -> Layout:
        """The same, for a call of fewer members than a block has."""
        return dataclasses.replace(self, width=min(self.width, members))

    @property
    def num_devices(self) -> int:
        """Devices that share the members."""
        return 1 if self.mesh is None else self.mesh.size

    @property
    def block(self) -> int:
        """Members that run at the same time; the members of a call are a multiple of it."""
        return self.width * self.num_devices

    def place(self, tree: PyTree) -> PyTree:
        """Put leaves (M, ...) where the call wants them."""
        if self.mesh is None:
            return jax.device_put(tree)
        return jax.device_put(tree, NamedSharding(self.mesh, PartitionSpec(AXIS)))

    def placed(self, shapes: PyTree, axes: Axes) -> PyTree:
        """Shapes and types of arrays that a call has put in their place, by a prefix of axes."""
        if self.mesh is None:
            return shapes
        leaves, tree = jax.tree.flatten(shapes)
        return tree.unflatten(
            jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=NamedSharding(self.mesh, _spec(axis)))
            for x, axis in zip(leaves, _broadcast(axes, shapes), strict=True)
        )

    def spread(self, function: Callable, in_axes: Axes, out_axes: Axes) -> Callable:
        """``vmap`` over the axis "member", with the same meaning of ``in_axes`` and ``out_axes``.

        An output whose axis is None must not depend on the member.
        """

        def local(*args):
            leaves, tree = jax.tree.flatten(args)
            axes = _broadcast(in_axes, args)

            def one(batched):
                mine = iter(batched)
                mixed = [x if a is None else next(mine) for x, a in zip(leaves, axes, strict=True)]
                return function(*tree.unflatten(mixed))

            out = self._blocks(one, [x for x, a in zip(leaves, axes, strict=True) if a is not None])
            found, structure = jax.tree.flatten(out)
            kept = zip(found, _broadcast(out_axes, out), strict=True)
            return structure.unflatten([x[0] if a is None else x for x, a in kept])

        if self.mesh is None:
            return local
        return jax.shard_map(
            local,
            mesh=self.mesh,
            in_specs=_specs(in_axes),
            out_specs=_specs(out_axes),
            check_vma=False,
        )

    def _blocks(self, one: Callable, batched: list[jax.Array]) -> PyTree:
        """``one`` for the members of a device; a single block needs no loop around it."""
        if self.width > 1 and batched[0].shape[0] == self.width:
            return jax.vmap(one)(batched)
        return jax.lax.map(one, batched, batch_size=None if self.width == 1 else self.width)


def _broadcast(axes: Axes, tree: PyTree) -> list[int | None]:
    """The axis of every leaf of ``tree``, of a prefix of it."""
    found: list[int | None] = []

    def extend(axis, part):
        found.extend([axis] * len(jax.tree.leaves(part)))

    jax.tree.map(extend, axes, tree, is_leaf=lambda x: x is None)
    return found


def _specs(axes: Axes) -> PyTree:
    """Partition specs of a prefix of axes."""
    return jax.tree.map(_spec, axes, is_leaf=lambda x: x is None)


def _spec(axis: int | None) -> PartitionSpec:
    return PartitionSpec() if axis is None else PartitionSpec(AXIS)
