"""Policies and whole runs on disk, with nothing to unpickle.

A policy is one NumPy archive with a JSON header; the full state of a run is an Orbax checkpoint.
"""

from __future__ import annotations

import dataclasses
import errno
import hashlib
import json
import operator
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from cojax.agents.policies import ActorPolicy
from cojax.agents.run import Best
from cojax.inputs import InputError
from cojax.policy import Policy

FORMAT = "cojax.policy/1"
STATE_FORMAT = "cojax.run/3"
HEADER = "header"
POLICIES = {cls.__name__: cls for cls in (ActorPolicy,)}


def save_policy(path: str | os.PathLike, policy: Policy) -> None:
    """Write a policy, or a whole population of them, to ``path``; whole or not at all.

    Raises ValueError, one line, for a policy that no learner of cojax gave.
    """
    kind = type(policy.apply).__name__
    if kind not in POLICIES:
        raise InputError(f"{path}: cannot save a policy of kind {kind}; can: {', '.join(POLICIES)}")
    header = {
        "format": FORMAT,
        "name": policy.name,
        "axes": policy.axes,
        "kind": kind,
        "apply": dataclasses.asdict(policy.apply),  # pyright: ignore[reportArgumentType]
    }
    arrays = {name: np.asarray(x) for name, x in _flatten(policy.params).items()}
    path = Path(path)
    with tempfile.NamedTemporaryFile(dir=path.parent, prefix=path.name, delete=False) as file:
        try:
            np.savez(file, **arrays, **{HEADER: np.array(json.dumps(header))})  # pyright: ignore[reportArgumentType]
            file.close()
            os.replace(file.name, path)
        except BaseException:
            os.unlink(file.name)
            raise


def load_policy(path: str | os.PathLike) -> Policy:
    """Read what ``save_policy`` wrote to ``path``; raises ValueError, one line, for all else."""
    try:
        with np.load(path, allow_pickle=False) as archive:
            arrays = {name: archive[name] for name in archive.files}
        header = json.loads(str(arrays.pop(HEADER)))
    except (OSError, ValueError, KeyError) as error:
        raise InputError(f"{path}: expected a policy saved by cojax: {error}") from None
    if header.get("format") != FORMAT or header.get("kind") not in POLICIES:
        raise InputError(f"{path}: format: expected {FORMAT}, got {header.get('format')!r}")
    fields: dict[str, Any] = {
        k: tuple(v) if isinstance(v, list) else v for k, v in header["apply"].items()
    }
    return Policy(
        _unflatten(arrays),
        POLICIES[header["kind"]](**fields),
        header["name"],
        tuple(header["axes"]),
    )


def _flatten(tree: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested dicts to one dict whose keys are paths, ``a/b/c``."""
    flat = {}
    for name, value in tree.items():
        path = f"{prefix}{name}"
        flat |= _flatten(value, path + "/") if isinstance(value, dict) else {path: value}
    return flat


def _unflatten(flat: dict[str, Any]) -> dict[str, Any]:
    """Inverse of ``_flatten``, leaves as JAX arrays."""
    tree: dict[str, Any] = {}
    for path, value in flat.items():
        *parents, name = path.split("/")
        node = tree
        for parent in parents:
            node = node.setdefault(parent, {})
        node[name] = jnp.asarray(value)
    return tree


def identify(population: Any, plan: Any) -> dict[str, Any]:
    """Return what a run must share with the checkpoint it continues, as JSON values."""
    h = population.h
    statics = {
        f.name: getattr(h, f.name)
        for f in dataclasses.fields(h)
        if not f.metadata.get("pytree_node", True)
    }
    identity = {
        "format": STATE_FORMAT,
        "algorithm": population.spec.name,
        "environment": population.env.name,
        "axes": population.sizes,
        "batching": "vmap" if population.vmapped else "loop",
        "shapes": statics,
        "ends": plan.ends,
        "hyperparameters": _digest(h),
        "params": _digest(population.env_params),
        "key": _digest(population.keys),
    }
    return json.loads(json.dumps(identity))


def save(
    folder: Any, identity: dict[str, Any], states: list[Any], history: list[Any], best: Best | None
) -> None:
    """Write the full state after interval ``len(history)``; older states are removed then.

    Orbax writes beside the target and renames, so an interruption leaves the last whole state.
    """
    folder = Path(folder).absolute()
    save_tree(folder / str(len(history)), [states, [history, best and best.tree()]])
    header = folder / "run.json"
    temporary = folder / "run.json.new"
    temporary.write_text(json.dumps(identity), "utf-8")
    os.replace(temporary, header)
    for old in _intervals(folder):
        if old != len(history):
            shutil.rmtree(folder / str(old))


def restore(
    folder: Any, identity: dict[str, Any], states: list[Any], interval: Any, best: Best | None
) -> tuple[list[Any], list[Any]]:
    """Return (states, history) of the newest state in ``folder``, or (states, []) if it is empty.

    ``states`` and ``interval`` give the structure of the states and of one interval's record;
    ``best`` is filled in place.
    Raises ValueError naming the first thing in which the checkpoint is of another run.
    """
    folder = Path(folder).absolute()
    intervals = _intervals(folder)
    if not intervals:
        return states, []
    try:
        saved = json.loads((folder / "run.json").read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(f"{folder}: expected a checkpoint of cojax: {error}") from None
    for name, ours in identity.items():
        if saved.get(name) != ours:
            raise InputError(
                f"{folder}: checkpoint of another run: {name}: expected {ours}, "
                f"got {saved.get(name)}"
            )
    record = [[interval] * intervals[-1], best and best.tree()]
    states, found = load_tree(folder / str(intervals[-1]), [states, record])
    history, seen = jax.tree.map(np.asarray, found)
    if best is not None:
        best.value, best.interval, best.params = seen["value"], seen["interval"], seen["params"]
    return states, history


def save_tree(target: Path, tree: Any) -> None:
    """Write a pytree of arrays and keys as one Orbax checkpoint, whole or not at all.

    Raises OSError where it cannot be written; Orbax raises ValueError for a full disk.
    """
    import orbax.checkpoint as ocp  # takes seconds to import

    try:
        with ocp.StandardCheckpointer() as checkpointer:
            checkpointer.save(Path(target).absolute(), _leaves(tree), force=True)
            checkpointer.wait_until_finished()
    except ValueError as error:
        reason = str(error).partition("\n")[0]
        raise OSError(errno.EIO, f"the state cannot be written: {reason}", str(target)) from error


def load_tree(target: Path, like: Any) -> Any:
    """Read what ``save_tree`` wrote of a tree of the structure, shapes and types of ``like``."""
    import orbax.checkpoint as ocp

    with ocp.StandardCheckpointer() as checkpointer:
        return _rebuild(like, checkpointer.restore(Path(target).absolute(), _leaves(like)))


def write_chunk(folder: Path, shape: tuple[int, ...]) -> None:
    """Note the shape of the chunks that a run is cut into, for those who continue it."""
    folder.mkdir(parents=True, exist_ok=True)
    temporary = folder / "chunk.json.new"
    temporary.write_text(json.dumps(shape), "utf-8")
    os.replace(temporary, folder / "chunk.json")


def read_chunk(folder: Path) -> tuple[int, ...] | None:
    """The shape noted by ``write_chunk``; None if there is none.

    Raises ValueError, one line, for anything but a list of whole numbers.
    """
    file = folder / "chunk.json"
    if not file.exists():
        return None
    try:
        shape = json.loads(file.read_text("utf-8"))
        return tuple(operator.index(n) for n in shape)
    except (OSError, ValueError, TypeError) as error:
        raise InputError(f"{file}: expected a list of whole numbers: {error}") from None


def _intervals(folder: Path) -> list[int]:
    """Numbers of the whole states in a folder, ascending."""
    if not folder.is_dir():
        return []
    return sorted(int(p.name) for p in folder.iterdir() if p.name.isdigit())


def _leaves(tree: Any) -> dict[str, Any]:
    """Leaves by number, keys as their words: arrays and nothing else."""

    def plain(x):
        x = jnp.asarray(x)
        return jax.random.key_data(x) if jnp.issubdtype(x.dtype, jax.dtypes.prng_key) else x

    return {str(i): plain(x) for i, x in enumerate(jax.tree.leaves(tree))}


def _rebuild(like: Any, leaves: dict[str, Any]) -> Any:
    """Inverse of ``_leaves`` for a tree of the structure ``like``."""
    old, structure = jax.tree.flatten(like)

    def typed(x, i):
        if isinstance(x, jax.Array) and jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
            return jax.random.wrap_key_data(leaves[str(i)], impl=jax.random.key_impl(x))
        return leaves[str(i)]

    return structure.unflatten([typed(x, i) for i, x in enumerate(old)])


def _digest(tree: Any) -> str:
    """SHA-256 over the bytes of all leaves."""
    digest = hashlib.sha256()
    for x in _leaves(tree).values():
        x = np.asarray(x)
        digest.update(f"{x.dtype}{x.shape}".encode() + x.tobytes())
    return digest.hexdigest()
