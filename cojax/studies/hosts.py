"""One study over several hosts, for chunks too large for one: ``jax.distributed``.

Every process runs the same loop over chunks and trains its own part of each on its own devices;
parts meet in one all-gather a chunk. The first process alone reads and writes the results folder,
and tells the others what is to be done: they need no files but the study's.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import jax
import numpy as np

from cojax.errors import InputError
from cojax.types import Content, Json

if TYPE_CHECKING:
    from cojax.agents.loop import Progress
    from cojax.studies.engine import Result
    from cojax.studies.members import Chunk, Group
    from cojax.studies.runner import Work
    from cojax.studies.schema import Study

CONNECT_SECONDS = 60
SEARCH = "search: runs on one host; leave --hosts out"


def join(text: str) -> None:
    """Join the processes of a study: ``ADDRESS,N,I``, this being the I-th of N, counted from 0.

    ``auto`` takes all three from what started the processes, as ``jax.distributed.initialize``
    does: Slurm's srun, Open MPI's mpirun, a TPU pod, Kubernetes.

    Call it before JAX has looked at its devices, which importing gymnax makes it do. Raises
    InputError, one line, for another form, and where the others do not come within a minute.
    """
    where: Content = {}
    if text != "auto":
        parts = text.split(",")
        if len(parts) != 3 or not (parts[1].isdigit() and parts[2].isdigit()):
            raise InputError(f"--hosts: expected ADDRESS,N,I or auto, got {text!r}")
        address, num, index = parts[0], int(parts[1]), int(parts[2])
        if num < 2 or index >= num:
            raise InputError(f"--hosts: expected N >= 2 and I from 0 to N - 1, got {text!r}")
        where = {"coordinator_address": address, "num_processes": num, "process_id": index}
    from jax.experimental import multihost_utils

    try:
        jax.config.update("jax_cpu_collectives_implementation", "gloo")
        jax.distributed.initialize(**where, initialization_timeout=CONNECT_SECONDS)
        multihost_utils.sync_global_devices("cojax sweep")  # once begun, collectives are patient
    except (RuntimeError, ValueError) as error:
        line = str(error).strip().partition("\n")[0]
        if not where and "should be defined" in line:
            line = "expected processes started by srun or mpirun, found none"
        raise InputError(f"--hosts: {text.partition(',')[0]}: {line}") from None


def agree(config: Study, finished: bool) -> bool:
    """Whether the first process found the sweep ``finished``; then there is nothing to do.

    Raises InputError, one line, in every process, for a study with a search, and unless all were
    given one sweep: each would train its part of another.
    """
    from jax.experimental import multihost_utils

    if config.search is not None:
        raise InputError(SEARCH)
    digest = hashlib.sha256(json.dumps(config.content()).encode()).digest()
    mine = np.frombuffer(digest + bytes([finished]), np.uint8)
    found = np.asarray(multihost_utils.process_allgather(mine))
    if (found[:, :-1] != mine[:-1]).any():
        raise InputError("--hosts: expected one sweep, the processes were given different ones")
    return bool(found[0, -1])


def leads() -> bool:
    """Whether this process reads and writes the results folder."""
    return jax.process_index() == 0


def across_hosts(work: Work, on_progress: Callable[[Chunk], Progress]) -> Iterator[Result]:
    """The engine of the first process; the others are in :func:`follow`.

    Raises InputError for a study with a search.
    """
    if work.config.search is not None:
        raise InputError(SEARCH)
    from cojax.fixtures.store import to_text

    sources = {system.source.id: system.source for system in work.systems}
    _say(
        {
            "fixtures": [to_text(source) for source in sources.values()],
            "tasks": [
                [dataclasses.astuple(chunk), placed.layout.width, placed.length]
                for _, chunk, placed in work.tasks
            ],
        }
    )
    for group, chunk, placed in work.tasks:
        shape = {"width": placed.layout.width, "length": placed.length}
        yield _together(work.config, group, chunk, **shape, on_progress=on_progress(chunk))


def follow(config: Study) -> None:
    """Train this process's part of every chunk that the first process names.

    Raises InputError for a study with a search.
    """
    from cojax.fixtures import load_fixture
    from cojax.studies.members import Chunk, groups
    from cojax.studies.systems import systems

    if config.search is not None:
        raise InputError(SEARCH)
    said = _say(None)
    with tempfile.TemporaryDirectory() as folder:
        fixtures = []
        for number, words in enumerate(said["fixtures"]):
            file = Path(folder) / f"{number:06d}.yaml"
            file.write_text(words, "utf-8")
            fixtures.append(load_fixture(file))
    everything = groups(config, systems(config, fixtures))
    for numbers, width, length in said["tasks"]:
        chunk = Chunk(*numbers)
        _together(config, everything[chunk.group], chunk, width=width, length=length)


def _together(
    config: Study,
    group: Group,
    chunk: Chunk,
    *,
    width: int,
    length: int,
    on_progress: Progress | None = None,
) -> Result:
    """A chunk, each process a part of it; the whole result in every process."""
    from jax.experimental import multihost_utils

    from cojax.agents.layout import Layout
    from cojax.studies import engine
    from cojax.studies.members import Chunk

    num = jax.process_count()
    share = -(-length // num)
    layout = Layout.over(jax.local_devices(), min(width, share))
    share = layout.block * -(-share // layout.block)
    start = min(chunk.start + jax.process_index() * share, chunk.stop - 1)
    part = Chunk(chunk.group, start, min(start + share, chunk.stop))
    mine = engine.run(
        group, part, config, engine.prepare(group, part, layout, share), on_progress=on_progress
    )
    names = ("gaps", "curve", "metrics", "failed", "gamma")
    tree = {name: x for name in names if (x := getattr(mine, name)) is not None}
    tree["params"] = mine.policy.params

    def padded(x):
        x = np.asarray(x)
        return np.concatenate([x, np.repeat(x[-1:], share - len(x), axis=0)])

    whole = multihost_utils.process_allgather(jax.tree.map(padded, tree), tiled=True)
    M = chunk.stop - chunk.start
    whole = jax.tree.map(lambda x: np.asarray(x)[:M], whole)
    policy = dataclasses.replace(mine.policy, params=whole.pop("params"))
    return dataclasses.replace(mine, chunk=chunk, policy=policy, **whole)


def _say(content: Json) -> Json:
    """JSON data of the first process, in all."""
    from jax.experimental import multihost_utils

    words = np.frombuffer(json.dumps(content).encode(), np.uint8)
    length = multihost_utils.broadcast_one_to_all(np.int32(len(words)))
    room = np.zeros(int(length), np.uint8)
    room[: len(words) if leads() else 0] = words if leads() else words[:0]
    return json.loads(np.asarray(multihost_utils.broadcast_one_to_all(room)).tobytes())
