"""The chunks of a study on a Ray cluster: one task an accelerator, tried again where a node is
lost, results written by the process that asked as they come.
"""

from __future__ import annotations

import socket
import warnings
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import TYPE_CHECKING

from cojax import plugins
from cojax.errors import InputError

if TYPE_CHECKING:
    from cojax.agents.loop import Progress
    from cojax.studies.engine import Result
    from cojax.studies.members import Chunk, Group
    from cojax.studies.runner import Engine, Work
    from cojax.studies.schema import Study

RETRIES = 4  # of a chunk whose node was lost
CONNECT_SECONDS = 10.0
AHEAD = 2  # chunks in the queue of each accelerator


def on_ray(address: str | None = None, *, retries: int = RETRIES) -> Engine:
    """An engine for :func:`cojax.studies.run_study` that runs chunks on a Ray cluster.

    Where the cluster has GPUs, a chunk takes one; otherwise it takes one core. Inside a Slurm
    allocation start Ray on its nodes (``ray symmetric-run`` does) and give ``"auto"``.

    Args:
        address: of a cluster's head, ``host:port`` or ``ray://host:port``; "auto" for the one this
            machine belongs to; None to start one on this machine and stop it at the end.
        retries: how often a chunk is run again when its node was lost.

    Raises InputError, one line, where Ray is not installed, or the address does not answer within
    seconds; in use, where a chunk was lost more often than ``retries``.
    """
    ray = _require()
    mine = not ray.is_initialized()
    if mine:
        _connect(ray, address)

    def engine(work: Work, on_progress: Callable[[Chunk], Progress]) -> Iterator[Result]:
        del on_progress  # chunks are told of as they end
        try:
            yield from _run(ray, work, retries)
        finally:
            if mine:
                ray.shutdown()

    return engine


def _require() -> ModuleType:
    try:
        import ray  # pyright: ignore[reportMissingImports]
    except ImportError:
        raise InputError("ray: expected the extra, pip install 'cojax[ray]'") from None
    return ray


def _connect(ray: ModuleType, address: str | None) -> None:
    """Join or start a cluster; InputError, one line, where there is none."""
    import logging

    options = {"logging_level": logging.ERROR, "log_to_driver": False}
    if address is None:
        with warnings.catch_warnings():  # Ray forks to start its own programs, which JAX warns of
            warnings.simplefilter("ignore", RuntimeWarning)
            ray.init(include_dashboard=False, _node_ip_address="127.0.0.1", **options)
        return
    if address != "auto":
        _probe(address)
    try:
        ray.init(address=address, **options)
    except (ConnectionError, RuntimeError, ValueError) as error:
        line = str(error).strip().partition("\n")[0]
        raise InputError(f"ray: no cluster at {address!r}: {line}") from None


def _probe(address: str) -> None:
    """Raise InputError unless something listens at ``host:port``."""
    host, colon, port = address.removeprefix("ray://").rpartition(":")
    if not colon or not port.isdigit() or not 0 < int(port) < 65536:
        raise InputError(f"ray: expected auto, local or host:port, got {address!r}")
    try:
        socket.create_connection((host, int(port)), CONNECT_SECONDS).close()
    except OSError as error:
        raise InputError(f"ray: nothing answers at {address}: {error}") from None


def _run(ray: ModuleType, work: Work, retries: int) -> Iterator[Result]:
    """Keep every accelerator's queue filled; yield results as they end."""
    total = ray.cluster_resources()
    gpus = int(total.get("GPU", 0))
    needs = {"num_gpus": 1} if gpus else {"num_cpus": 1}
    slots = max(1, gpus or int(total.get("CPU", 1)))
    train = ray.remote(max_retries=retries, **needs)(_chunk)
    # As bytes: a worker imports what the command was told to before it looks at a learner of it.
    groups = {id(group): ray.put(ray.cloudpickle.dumps(group)) for group, _, _ in work.tasks}
    left = list(reversed(work.tasks))
    running: dict[object, Chunk] = {}
    while left or running:
        while left and len(running) < AHEAD * slots:
            group, chunk, placed = left.pop()
            shape = {"width": placed.layout.width, "length": placed.length}
            asked = list(plugins.asked)
            running[train.remote(work.config, groups[id(group)], chunk, asked, **shape)] = chunk
        (done, *_), _ = ray.wait(list(running), num_returns=1)
        chunk = running.pop(done)
        try:
            yield ray.get(done)
        except ray.exceptions.RayTaskError as error:
            if isinstance(error.cause, InputError):
                raise InputError(str(error.cause)) from None
            raise
        except ray.exceptions.RayError as error:
            line = str(error).strip().partition("\n")[0]
            raise InputError(
                f"ray: chunk {chunk.name} was lost {retries + 1} times: {line}"
            ) from None


def _chunk(
    config: Study, packed: bytes, chunk: Chunk, modules: list[str], *, width: int, length: int
) -> Result:
    """Run a chunk where Ray put it, on the first device there, of a group that is ``packed``."""
    import jax

    plugins.import_modules(modules)
    group: Group = _require().cloudpickle.loads(packed)
    from cojax.agents.layout import Layout
    from cojax.studies import engine

    layout = Layout.over(jax.local_devices()[:1], width)
    length = layout.block * -(-length // layout.block)
    return engine.run(group, chunk, config, engine.prepare(group, chunk, layout, length))
