"""How much memory a population takes, before it is trained, and the chunks in which it fits.

The compiler says what one call of a program takes at its peak:

    bytes = arguments + temporaries + outputs - outputs that overwrite arguments

Members that a layout runs are one call. Members that are a call each share the program, and the
states of the others wait beside it.
"""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from cojax.agents.algorithm import learning
from cojax.agents.population import Evaluate, Population, advance, initialize, state_axes
from cojax.errors import InputError
from cojax.types import PyTree

SHARE = 0.8  # of what is there, used unless told otherwise
UNITS = ("B", "kB", "MB", "GB", "TB")


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


def tree_bytes(tree: PyTree) -> int:
    """Bytes of all leaves of a pytree of arrays, or of their shapes and types."""
    return sum(int(np.prod(x.shape)) * x.dtype.itemsize for x in jax.tree.leaves(tree))


@learning()
def state_shapes(population: Population) -> PyTree:
    """Shapes and types of what one call of the program carries along."""
    p = population
    one = p.arguments(None if p.layout else 0)
    return jax.eval_shape(partial(initialize, p.spec, p.env, p.layout), *one)


@learning()
def estimate(population: Population, evaluate: Evaluate | None) -> int:
    """Peak bytes of training a population, from the compiled program, which training reuses."""
    p = population
    env_params, h, _ = jax.device_put(p.arguments(None if p.layout else 0))
    state = state_shapes(p)
    if p.layout is not None:
        state = p.layout.placed(state, state_axes(state, p.layout))
    updates = jax.ShapeDtypeStruct((), jnp.int32)
    program = advance.lower(
        p.spec, p.env, evaluate, p.layout,
        state=state, num_updates=updates, env_params=env_params, h=h,
    )  # fmt: skip
    waiting = 0 if p.layout else (p.size - 1) * tree_bytes(state)
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
    population: Population, evaluate: Evaluate | None, limit: int, members: int | None = None
) -> tuple[list[slice], int]:
    """Chunks of a population, each within ``limit`` bytes, and the peak of the largest.

    ``members`` are those of a chunk of an interrupted run, which keeps it. Raises InputError, one
    line, where not even one member fits.
    """
    p = population

    def needs(length):
        return estimate(p.part(slice(0, length)), evaluate)

    if members is not None:
        if not 1 <= members <= p.size:
            raise InputError(f"chunk.json: expected 1 … {p.size} members, got {members}")
        return slices(p, members), needs(members)
    state = tree_bytes(state_shapes(p)) // (p.size if p.layout else 1)
    if state > limit:
        raise refusal(p, state, limit)
    most = limit // max(state, 1)
    while True:
        length = chunk_length(p.size, most)
        needed = needs(length)
        if needed <= limit:
            return slices(p, length), needed
        if length == 1:
            raise refusal(p, needed, limit)
        most = min(length - 1, max(1, int(length * limit / needed)))


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


def chunk_length(size: int, most: int) -> int:
    """Members of a chunk: at most ``most``, where as few chunks as can be share them evenly."""
    return -(-size // -(-size // min(size, most)))


def slices(population: Population, length: int) -> list[slice]:
    """Chunks that cover a population, in order.

    Where members run side by side all have one length, so that one program serves: the last
    overlaps the one before, and trains a few members again, to the same result.
    """
    size, starts = population.size, range(0, population.size, length)
    if population.layout is not None:
        return [slice(s, s + length) for s in (min(x, size - length) for x in starts)]
    return [slice(s, min(s + length, size)) for s in starts]
