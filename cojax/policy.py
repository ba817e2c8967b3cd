"""What agents and evaluation share: a policy is a function and its parameters."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import TypeAlias

import jax
import numpy as np
from flax import struct

from cojax.errors import InputError
from cojax.io.described import About, described
from cojax.types import Array, Float, PRNGKeyArray, PyTree

Setting: TypeAlias = tuple[tuple[str, float], ...]
Apply: TypeAlias = Callable[[PyTree, Float[Array, " d"], PRNGKeyArray], Float[Array, " m"]]


def _about(policy: Policy) -> About:
    """What a policy shows of itself."""
    leaves = jax.tree.leaves(policy.params)
    count = sum(np.size(x) for x in leaves)
    lead = np.shape(leaves[0])[: len(policy.axes)] if leaves else ()
    members = ", ".join(f"{axis} {n}" for axis, n in zip(policy.axes, lead, strict=False))
    facts = {"of": type(policy.apply).__name__, "parameters": f"{count:,}", "axes": members}
    return f"Policy {policy.name!r}: a = apply(params, obs, key)", facts


@described(_about)
@struct.dataclass
class Policy:
    """A policy a = apply(params, obs, key), with its parameters beside it.

    ``apply`` takes one observation, shape (d,), and returns one action, shape (m,), in the units
    of the environment. It is static: give a function of the module or a frozen dataclass with
    ``__call__``, so that equal policies share one compilation.

    Attributes:
        params: the pytree that ``apply`` receives. Its leaves may carry leading axes, one for
            each label in ``axes``.
        apply: ``(params, obs, key) -> action``.
        name: how tables call it.
        axes: labels of the leading axes of ``params``, outermost first, e.g.
            ``("fixture", "hyperparameters", "seed")``; empty for one policy.
        settings: pairs (name, value) of the hyperparameters that were varied, for each place on
            the axis "hyperparameters", so that tables can say them; empty where nobody said.
    """

    params: PyTree
    apply: Apply = struct.field(pytree_node=False)
    name: str = struct.field(pytree_node=False, default="policy")
    axes: tuple[str, ...] = struct.field(pytree_node=False, default=())
    settings: tuple[Setting, ...] = struct.field(pytree_node=False, default=())

    def __call__(self, obs: Float[Array, "d"], key: PRNGKeyArray) -> Float[Array, "m"]:
        """Action for one observation: a = apply(params, obs, key)."""
        return self.apply(self.params, obs, key)

    def member(self, **index: int) -> Policy:
        """Take one policy out of a population, e.g. ``policy.member(fixture=0, seed=3)``.

        Axes that are not named stay. Raises ValueError for an unknown axis.
        """
        unknown = set(index) - set(self.axes)
        if unknown:
            raise InputError(
                f"policy {self.name}: unknown axis {sorted(unknown)}; it has {list(self.axes)}"
            )
        at = tuple(index.get(axis, slice(None)) for axis in self.axes)
        return dataclasses.replace(
            self,
            params=jax.tree.map(lambda leaf: leaf[at], self.params),
            axes=tuple(axis for axis in self.axes if axis not in index),
            settings=() if "hyperparameters" in index else self.settings,
        )
