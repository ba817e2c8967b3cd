"""How much memory a population takes, before it is trained, and the chunks in which it fits.

The compiler says what one call of a program takes at its peak:

    bytes = arguments + temporaries + outputs - outputs that overwrite arguments

A vmapped population is one call. Members that run one after another share the call, and the
states of the others wait beside it.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from cojax.agents.algorithm import learning
from cojax.agents.population import Population, advance, initialize, state_axes
from cojax.errors import InputError

SHARE = 0.8  # of what is there, used unless told otherwise
UNITS = ("B", "kB", "MB", "GB", "TB")

Box = tuple[slice, ...]


def size_text(num_bytes: float) -> str:
    """Bytes for people: ``1.3 GB``, powers of 1000."""
    power = min(int(np.log10(max(num_bytes, 1)) // 3), len(UNITS) - 1)
    return f"{num_bytes / 1000**power:.3g} {UNITS[power]}"


def default_limit() -> int:
    """80% of the device's memory, or of what the host has available."""
    statistics = jax.devices()[0].memory_stats() or {}
    return int(SHARE * statistics.get("bytes_limit", available()))


def available() -> int:
    """Bytes the host has available, within the limit of its control group if there is one."""
    try:
        lines = dict(
            line.split(":") for line in Path("/proc/meminfo").read_text("utf-8").splitlines()
        )
        free = int(lines["MemAvailable"].split()[0]) * 1024
    except (OSError, KeyError, ValueError):
        free = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    group = Path("/sys/fs/cgroup")
    try:
        limit, used = (int((group / f"memory.{x}").read_text("utf-8")) for x in ("max", "current"))
        return min(free, limit - used)
    except (OSError, ValueError):  # no such group, or no limit: "max"
        return free


def tree_bytes(tree: Any) -> int:
    """Bytes of all leaves of a pytree of arrays, or of their shapes and types."""
    return sum(int(np.prod(x.shape)) * x.dtype.itemsize for x in jax.tree.leaves(tree))


@learning()
def state_shapes(population: Population) -> Any:
    """Shapes and types of what one call of the program carries along."""
    p = population
    index = None if p.vmapped else (0,) * len(p.shape)
    return jax.eval_shape(partial(initialize, p.spec, p.env, p.axes), *p.arguments(index))


@learning()
def estimate(population: Population, evaluate: Callable | None) -> int:
    """Peak bytes of training a population, from the compiled program, which training reuses."""
    p = population
    env_params, h, _ = p.arguments(None if p.vmapped else (0,) * len(p.shape))
    state = state_shapes(p)
    if p.layout is not None:
        state = p.layout.placed(state, state_axes(state, p.layout))
    num_updates = jax.ShapeDtypeStruct((), jnp.int32)
    program = advance.lower(p.spec, p.env, evaluate, p.axes, state, num_updates, env_params, h)
    waiting = 0 if p.vmapped else (int(np.prod(p.shape)) - 1) * tree_bytes(state)
    use = program.compile().memory_analysis()
    if use is None:  # the backend does not say
        return waiting + 2 * tree_bytes(state)
    needed = waiting + (
        use.argument_size_in_bytes
        + use.temp_size_in_bytes
        + use.output_size_in_bytes
        - use.alias_size_in_bytes
    )
    shared = p.layout.num_devices if p.layout and jax.default_backend() == "cpu" else 1
    return needed * shared  # the compiler counts one device; those of a CPU share its memory


def fit(
    population: Population,
    evaluate: Callable | None,
    limit: int,
    chunk: tuple[int, ...] | None = None,
) -> tuple[list[Box], int]:
    """Chunks of a population, each within ``limit`` bytes, and the peak of the largest.

    ``chunk`` is the shape that an interrupted run was cut into, which it keeps. Raises ValueError,
    one line, where not even one member fits.
    """
    p = population
    if chunk is not None and len(chunk) == len(p.shape):
        if not all(1 <= n <= size for n, size in zip(chunk, p.shape, strict=True)):
            raise InputError(f"chunk.json: expected lengths within {p.shape}, got {chunk}")
        first = tuple(slice(0, n) for n in chunk)
        return boxes(p, chunk), estimate(p.part(first), evaluate)
    members = int(np.prod(p.shape))
    state = tree_bytes(state_shapes(p)) // (members if p.vmapped else 1)
    if state > limit:
        raise refusal(p, state, limit)
    capacity = min(members, limit // max(state, 1))
    while True:
        chunk = chunk_shape(p.shape, capacity)
        needed = estimate(p.part(tuple(slice(0, n) for n in chunk)), evaluate)
        if needed <= limit:
            return boxes(p, chunk), needed
        taken = int(np.prod(chunk))
        if taken == 1:
            raise refusal(p, needed, limit)
        capacity = min(taken - 1, max(1, int(taken * limit / needed)))


def refusal(p: Population, needed: int, limit: int) -> InputError:
    """The line about one member that is too large."""
    h = p.h
    sizes = [
        f"{name} {getattr(h, name):,}" for name in ("buffer_size", "num_envs") if hasattr(h, name)
    ]
    return InputError(
        f"memory_limit: one member of {p.spec.name} needs {size_text(needed)}, expected at most "
        f"{size_text(limit)} ({', '.join(sizes)})"
    )


def chunk_shape(shape: tuple[int, ...], capacity: int) -> tuple[int, ...]:
    """Lengths of a box of at most ``capacity`` members, inner axes first, in balanced cuts."""
    lengths = []
    for size in reversed(shape):
        most = max(1, min(size, capacity))
        lengths.append(-(-size // -(-size // most)))
        capacity //= size  # 0 once an axis is cut: one at a time outside it
    return tuple(reversed(lengths))


def boxes(population: Population, chunk: tuple[int, ...]) -> list[Box]:
    """Boxes that cover the axes, in order.

    Where members run side by side all have one shape, so that one program serves: the last of an
    axis overlaps the one before, and trains a few members again, to the same result.
    """

    def cuts(size, length):
        starts = range(0, size, length)
        if population.vmapped:
            return [slice(s, s + length) for s in (min(x, size - length) for x in starts)]
        return [slice(s, min(s + length, size)) for s in starts]

    shape = population.shape
    return list(product(*[cuts(n, c) for n, c in zip(shape, chunk, strict=True)]))
