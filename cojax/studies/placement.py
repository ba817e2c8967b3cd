"""Where the members of a group run: how many side by side, on which devices, how many to a chunk.

On an accelerator a block of many members is as quick as one; on a CPU products of small matrices
are quicker one after another, and cores are used by several devices. Which holds is measured, with
the group's own program and a few updates of it, where the work is long enough to repay that.
"""

from __future__ import annotations

import dataclasses
import time

import jax
import numpy as np

from cojax.agents import loop, memory_budget
from cojax.agents.algorithm import learning
from cojax.agents.layout import Layout
from cojax.errors import InputError
from cojax.io.progress import Report
from cojax.studies.cores import POOL, cores, pool, usable
from cojax.studies.engine import curve_measure
from cojax.studies.members import Group
from cojax.studies.schema import Study
from cojax.studies.store import Store

WIDTHS = {"cpu": (1, 16), "other": (256, 1024, 4096)}  # that are tried
DEFAULT = {"cpu": 1, "other": 1024}  # where trying does not pay
CHUNK = {"cpu": 128, "other": 4096}  # members of a chunk, a unit of what can be lost, or more:
CHUNK_STEPS = 1_000_000  # environment steps of a chunk where members are short
MOST = 4096  # members of such a chunk
TRIAL_STEPS = 100_000  # environment steps of a trial, over all members
LONG = 50_000_000  # environment steps of a group that repay trying


@dataclasses.dataclass(frozen=True)
class Placement:
    """How the chunks of a group run.

    Attributes:
        layout: of a call.
        length: members of a call.
        memory_bytes: peak of the call, estimated from the compiled program.
        memory_limit: what it was to stay within.
    """

    layout: Layout
    length: int
    memory_bytes: int
    memory_limit: int


def kind() -> str:
    """Of the devices: "cpu" or "other"."""
    return "cpu" if jax.default_backend() == "cpu" else "other"


def devices(config: Study) -> list[object]:
    """The devices to use. Raises InputError where more are asked for than can be used."""
    found = jax.local_devices()
    asked = config.execution.devices
    if asked is not None and asked > len(found):
        raise InputError(f"execution.devices: expected at most {len(found)}, got {asked}")
    found = found[:asked]
    if kind() == "cpu" and usable(len(found)) < len(found):
        if asked is not None:
            raise InputError(
                f"execution.devices: {asked} on a pool of {pool()} threads can lock up; expected "
                f"{POOL[0]}={cores() + asked} in the environment"
            )
        found = found[: usable(len(found))]
    return found


def place(group: Group, config: Study, store: Store, report: Report) -> Placement:
    """Choose for a group, or find what an earlier sitting chose.

    The length of a chunk stays within 80% of the memory there is, or ``execution.memory_gb``, and
    is what an earlier sitting took, so that an interrupted study ends in the same files.
    """
    using = devices(config)
    width = config.execution.width or store.decide(f"width-{group.number:03d}")
    if width is None:
        width = _measured(group, config, using, report)
        store.decide(f"width-{group.number:03d}", width)
    width = min(width, -(-group.size // len(using)))
    layout = Layout.over(using, width)
    length = store.decide(f"length-{group.number:03d}")
    if length is None:
        length = config.execution.chunk_members or chunk_members(group.total_timesteps)
    length = min(length, group.size)
    if config.execution.memory_gb is None:
        limit = memory_budget.default_limit()
    else:
        limit = int(config.execution.memory_gb * 1e9)
    length, needed = fit(group, config, layout, length=length, limit=limit)
    store.decide(f"length-{group.number:03d}", length)
    chunks = -(-group.size // length)
    report(
        0.0,
        f"group {group.number}: {group.spec.name}, {group.size:,} members in {chunks} chunks of "
        f"{length}; {layout.width} side by side on each of {layout.num_devices} devices; "
        f"needs {memory_budget.size_text(needed)} of {memory_budget.size_text(limit)}",
    )
    return Placement(layout, length, needed, limit)


def chunk_members(total_timesteps: int) -> int:
    """Members of a chunk that repay its start and its files, by what each of them trains."""
    return max(CHUNK[kind()], min(MOST, CHUNK_STEPS // total_timesteps))


def fit(group: Group, config: Study, layout: Layout, *, length: int, limit: int) -> tuple[int, int]:
    """The longest chunk up to ``length``, whole blocks, within ``limit``; and its peak, bytes.

    Raises InputError, one line, where not even one block of one member a device fits.
    """
    length = layout.block * -(-length // layout.block)
    while True:
        population = group.population(np.zeros(length, int), layout)
        state = memory_budget.tree_bytes(memory_budget.state_shapes(population))
        if state <= limit:  # else there is no need to ask the compiler
            needed = memory_budget.estimate(population, curve_measure(group, config))
            if needed <= limit:
                return length, needed
            state = needed
        blocks = length // layout.block
        fewer = min(blocks - 1, int(blocks * limit / state))
        if fewer < 1:
            if layout.width == 1:
                raise memory_budget.refusal(population, state, limit)
            layout = dataclasses.replace(layout, width=max(1, layout.width // 2))
            fewer = 1
        length = fewer * layout.block


def _measured(group: Group, config: Study, using: list[object], report: Report) -> int:
    """The width of the highest throughput, or the usual one where the work is short."""
    most = -(-group.size // len(using))
    if group.total_timesteps * group.size < LONG or most == 1:
        return DEFAULT[kind()]
    rates: dict[int, float] = {}
    for width in WIDTHS[kind()]:
        width = min(width, most)
        if width not in rates:
            rates[width] = throughput(group, config, Layout.over(using, width))
            report(0.0, f"group {group.number}: width {width}: {rates[width]:,.0f} steps/s")
    return max(rates, key=lambda width: rates[width])


@learning()
def throughput(group: Group, config: Study, layout: Layout) -> float:
    """Environment steps a second of a few updates, over the members of one block."""
    count = layout.block
    population = group.population(np.arange(count) % group.size, layout)
    plan = group.plan(config.curve.points)
    trained = loop.Members.create(population, plan)
    trained.compile(None)
    updates = max(1, TRIAL_STEPS // (plan.steps * count))
    start = time.perf_counter()
    trained.advance(None, updates)
    return updates * plan.steps * count / (time.perf_counter() - start)
