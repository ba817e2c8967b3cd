"""How the members of one compiled call run: side by side, one after another, over devices.

    M members = D devices × L a device;  each device runs its L in blocks of ``width``

A block is a ``vmap``, the blocks of a device follow one another in a ``lax.map``, and devices share
nothing: the ``shard_map`` around them has no communication in it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

AXIS = "member"


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
    def over(cls, devices: Sequence[Any], width: int, own_clocks: bool = False) -> Layout:
        """A layout over some devices; over one alone it needs no mesh if that is the default."""
        if len(devices) == 1 and devices[0] == jax.local_devices()[0]:
            return cls(width, None, own_clocks)
        return cls(width, Mesh(np.asarray(devices), (AXIS,)), own_clocks)

    @property
    def num_devices(self) -> int:
        """Devices that share the members."""
        return 1 if self.mesh is None else self.mesh.size

    @property
    def block(self) -> int:
        """Members that run at the same time; the members of a call are a multiple of it."""
        return self.width * self.num_devices

    def place(self, tree: Any) -> Any:
        """Put leaves (M, ...) where the call wants them."""
        if self.mesh is None:
            return jax.device_put(tree)
        return jax.device_put(tree, NamedSharding(self.mesh, PartitionSpec(AXIS)))

    def placed(self, shapes: Any, axes: Any) -> Any:
        """Shapes and types of arrays that a call has put in their place, by a prefix of axes."""
        if self.mesh is None:
            return shapes
        leaves, tree = jax.tree.flatten(shapes)
        return tree.unflatten(
            jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=NamedSharding(self.mesh, _spec(axis)))
            for x, axis in zip(leaves, _broadcast(axes, shapes), strict=True)
        )

    def spread(self, function: Callable[..., Any], in_axes: Any, out_axes: Any) -> Callable:
        """``vmap`` over the axis "member", with the same meaning of ``in_axes`` and ``out_axes``.

        An output whose axis is None must not depend on the member.
        """

        def local(*args: Any) -> Any:
            leaves, tree = jax.tree.flatten(args)
            axes = _broadcast(in_axes, args)

            def one(batched: list[Any]) -> Any:
                mine = iter(batched)
                mixed = [x if a is None else next(mine) for x, a in zip(leaves, axes, strict=True)]
                return function(*tree.unflatten(mixed))

            batched = [x for x, a in zip(leaves, axes, strict=True) if a is not None]
            size = None if self.width == 1 else self.width
            out = jax.lax.map(one, batched, batch_size=size)
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


def _is_none(x: Any) -> bool:
    return x is None


def _broadcast(axes: Any, tree: Any) -> list[int | None]:
    """The axis of every leaf of ``tree``, of a prefix of it."""
    found: list[int | None] = []
    jax.tree.map(
        lambda axis, part: found.extend([axis] * len(jax.tree.leaves(part))),
        axes,
        tree,
        is_leaf=_is_none,
    )
    return found


def _specs(axes: Any) -> Any:
    """Partition specs of a prefix of axes."""
    return jax.tree.map(_spec, axes, is_leaf=_is_none)


def _spec(axis: int | None) -> PartitionSpec:
    return PartitionSpec() if axis is None else PartitionSpec(AXIS)
