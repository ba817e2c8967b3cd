"""Policies and whole runs on disk, with nothing to unpickle.

A policy is one NumPy archive with a JSON header, and with the program of its actor where that is a
network of one's own; the full state of a run is an Orbax checkpoint.
"""

from __future__ import annotations

import dataclasses
import errno
import hashlib
import json
import os
import shutil
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
import numpy as np
from flax.traverse_util import flatten_dict, unflatten_dict

from cojax import __version__, streams
from cojax.agents.curriculum import problem_of
from cojax.agents.own_networks import describe
from cojax.agents.policies import ActorPolicy
from cojax.agents.population import Evaluate, Population
from cojax.agents.programs import (
    OwnPolicy,
    PolicyProgram,
    Program,
    numbered,
    policy_program,
    program,
)
from cojax.agents.run import Best
from cojax.errors import InputError, one_line
from cojax.io import files
from cojax.policy import Policy
from cojax.types import Content, PyTree

if TYPE_CHECKING:
    from cojax.agents.loop import Plan

FORMAT = "cojax.policy/1"
WITH_PROGRAM = "cojax.policy/2"  # the same, and the actor's network as an array of bytes
STATE_FORMAT = "cojax.run/7"
HEADER, PROGRAM = "header", "program"
POLICIES = {cls.__name__: cls for cls in (ActorPolicy, PolicyProgram)}


def save_policy(
    path: str | os.PathLike, policy: Policy, *, observation_length: int | None = None
) -> None:
    """Write a policy, or a whole population of them, to ``path``; whole or not at all.

    An actor that is a network of the user's own, and a policy that no learner of ours gave, is
    written as a program, see :mod:`cojax.agents.programs`: who reads it does not need its code.
    ``observation_length`` is needed for a policy that was not trained here.

    Raises ValueError, one line, for a policy or network that cannot be written.
    """
    apply, params = policy.apply, policy.params

    def one(tree):
        return jax.tree.map(lambda x: x[(0,) * len(policy.axes)], tree)

    if type(apply).__name__ not in (*POLICIES, OwnPolicy.__name__):
        if observation_length is None:
            raise InputError(
                f"{path}: {policy.name}: expected observation_length, of a policy not trained here"
            )
        apply = OwnPolicy(apply, observation_length)
    if isinstance(apply, OwnPolicy):
        apply, params = policy_program(apply, one(params)), numbered(params)
    kind, fields = type(apply).__name__, dict(vars(apply))
    network = fields.pop("network")
    header = {
        "format": FORMAT if network is None else WITH_PROGRAM,
        "name": policy.name,
        "axes": policy.axes,
        "kind": kind,
        "apply": fields,
    }
    arrays = {name: np.asarray(x) for name, x in flatten_dict(params, sep="/").items()}
    if network is not None:
        if isinstance(apply, ActorPolicy):
            network = program(network, one(params["actor"]), arrays["mean"].shape[-1])
        arrays[PROGRAM] = np.frombuffer(network.data, np.uint8)
    with files.whole_file(path) as file:
        np.savez(file, **arrays, **{HEADER: np.array(json.dumps(header))})  # pyright: ignore[reportArgumentType]


def load_policy(path: str | os.PathLike) -> Policy:
    """Read what ``save_policy`` wrote to ``path``; raises ValueError, one line, for all else."""
    try:
        with zipfile.ZipFile(path) as archive:  # checksums first: no damaged byte is interpreted
            if (damaged := archive.testzip()) is not None:
                raise InputError(f"{path}: damaged: {damaged}")
        with np.load(path, allow_pickle=False) as archive:
            arrays = {name: archive[name] for name in archive.files}
        header = dict(json.loads(str(arrays.pop(HEADER))))
        known = header.get("format") == (WITH_PROGRAM if PROGRAM in arrays else FORMAT)
        if not known or header.get("kind") not in POLICIES:
            raise InputError(f"{path}: format: expected {FORMAT}, got {header.get('format')!r}")
        return _policy(header, arrays)
    except InputError:
        raise
    except Exception as error:  # what a damaged archive makes of a reader is not to be foreseen
        raise InputError(f"{path}: expected a policy saved by cojax: {one_line(error)}") from None


def _policy(header: Content, arrays: dict[str, np.ndarray]) -> Policy:
    """The policy of a file's header and arrays; raises whatever where they do not fit."""
    fields: Content = {
        k: tuple(v) if isinstance(v, list) else v for k, v in header["apply"].items()
    }
    if PROGRAM in arrays:
        fields["network"] = Program(arrays.pop(PROGRAM).tobytes())
    apply, axes = POLICIES[header["kind"]](**fields), tuple(header["axes"])
    policy = Policy(
        jax.tree.map(jnp.asarray, unflatten_dict(arrays, sep="/")), apply, header["name"], axes
    )
    function = apply
    for _ in axes:
        function = jax.vmap(function, (0, None, None))
    length = apply.inputs if isinstance(apply, PolicyProgram) else arrays["mean"].shape[-1]
    jax.eval_shape(function, policy.params, jnp.zeros(length), streams.root_key(0))
    return policy


def identify(population: Population, plan: Plan, evaluate: Evaluate | None) -> Content:
    """Return what a run must share with the checkpoint it continues, as JSON values."""
    h = population.h
    fields = [f for f in dataclasses.fields(h) if not f.metadata.get("pytree_node", True)]
    statics = {f.name: getattr(h, f.name) for f in fields}
    for name in ("actor", "critic"):  # without, where they are the default
        if (own := statics.pop(name, None)) is not None:
            statics[name] = describe(own)
    identity = {
        "format": STATE_FORMAT,
        "algorithm": population.spec.name,
        "versions": {"cojax": __version__, "jax": jax.__version__},
        **_programs(population, evaluate),
        "members": population.size,
        "batching": "loop" if population.layout is None else "vmap",
        "shapes": statics,
        "ends": plan.ends,
        "hyperparameters": _digest(h),
        "params": _digest(population.env_params),
        "key": _digest(population.keys),
    }
    return json.loads(json.dumps(identity))


def _programs(population: Population, evaluate: Evaluate | None) -> dict[str, str | None]:
    """The environment, by a reset and a step, and ``evaluate`` as functions of one member: they are
    compared by their programs, what they compute and not what they are called.
    """
    spec, env = population.spec, population.env

    def stepped(env_params, h, key):
        del h
        _, state = env.reset(key, env_params)
        action = jnp.zeros(env.action_space(env_params).shape, jnp.float32)
        return env.step(key, state, action, env_params)

    def first(env_params, h, key):
        return spec.policy_params(env, spec.init(env, key, env_params, h), env_params, h)

    def measured(env_params, h, key):
        shapes = jax.eval_shape(first, env_params, h, key)
        params = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes)
        policy = Policy(params, spec.policy_apply(env, env_params, h), spec.name)
        return evaluate and evaluate(policy, env_params, jax.random.key(0))

    def digits(function):
        env_params, *rest = population.arguments(0)
        traced = jax.jit(function).trace(problem_of(env_params), *rest)
        words = traced.lower(lowering_platforms=("cpu",)).as_text()
        if "callback" in words:  # no part of the program that could be compared
            return "with a callback"
        return hashlib.sha256(words.encode()).hexdigest()[:16]

    return {
        "environment": f"{env.name} {digits(stepped)}",
        "evaluate": evaluate and digits(measured),
    }


def save(
    folder: str | os.PathLike,
    identity: Content,
    states: list[PyTree],
    *,
    history: list[PyTree],
    best: Best | None,
) -> None:
    """Write the full state after interval ``len(history)``; older states are removed then.

    Orbax writes beside the target and renames, so an interruption leaves the last whole state.
    """
    folder = Path(folder).absolute()
    save_tree(folder / str(len(history)), [states, [history, best and best.tree()]])
    files.write_whole(folder / "run.json", json.dumps(identity))
    for old in _intervals(folder):
        if old != len(history):
            remove_tree(folder / str(old))


def verify(folder: str | os.PathLike, identity: Content) -> None:
    """Raise InputError naming the first thing in which a state in ``folder`` is of another run."""
    folder = Path(folder).absolute()
    if not _intervals(folder):
        return
    try:
        saved = dict(json.loads((folder / "run.json").read_text("utf-8")))
    except (OSError, ValueError, TypeError) as error:
        raise InputError(f"{folder}: expected a checkpoint of cojax: {error}") from None
    for name, ours in identity.items():
        if saved.get(name) != ours:
            raise InputError(
                f"{folder}: checkpoint of another run: {name}: expected {ours}, "
                f"got {saved.get(name)}"
            )


def restore(
    folder: str | os.PathLike, states: list[PyTree], interval: PyTree, best: Best | None
) -> tuple[list[PyTree], list[PyTree]]:
    """Return (states, history) of the newest state in ``folder``, or (states, []) if it is empty.

    ``states`` and ``interval`` give the structure of the states and of one interval's record;
    ``best`` is filled in place.
    """
    folder = Path(folder).absolute()
    intervals = _intervals(folder)
    if not intervals:
        return states, []
    record = [[interval] * intervals[-1], best and best.tree()]
    states, found = load_tree(folder / str(intervals[-1]), [states, record])
    history, seen = jax.tree.map(np.asarray, found)
    if best is not None:
        best.value, best.interval, best.params = seen["value"], seen["interval"], seen["params"]
    return states, history


def save_tree(target: Path, tree: PyTree) -> None:
    """Write a pytree of arrays and keys as one Orbax checkpoint, whole or not at all.

    ``target.sha256`` beside it says afterwards what its files hold. Raises OSError where it cannot
    be written; Orbax raises ValueError for a full disk.
    """
    import orbax.checkpoint as ocp  # takes seconds to import

    target = Path(target).absolute()
    _seal(target).unlink(missing_ok=True)
    try:
        with ocp.StandardCheckpointer() as checkpointer:
            checkpointer.save(target, _leaves(tree), force=True)
            checkpointer.wait_until_finished()
    except ValueError as error:
        reason = str(error).partition("\n")[0]
        raise OSError(errno.EIO, f"the state cannot be written: {reason}", str(target)) from error
    _seal(target).write_bytes(files.digest_of_files(target))


def load_tree(target: Path, like: PyTree) -> PyTree:
    """Read what ``save_tree`` wrote of a tree of the structure, shapes and types of ``like``.

    Raises ValueError, one line, where it is damaged or of another structure.
    """
    import orbax.checkpoint as ocp

    target = Path(target).absolute()
    seal = _seal(target)
    # An empty seal, or none: stopped between the state, which is whole, and its seal.
    if (
        seal.is_file()
        and seal.stat().st_size
        and seal.read_bytes() != files.digest_of_files(target)
    ):
        raise InputError(f"{target}: damaged, its files are not as written; remove it to go on")
    try:
        with ocp.StandardCheckpointer() as checkpointer:
            return _rebuild(like, checkpointer.restore(target, _leaves(like)))
    except Exception as error:  # what foreign files make of a reader is not to be foreseen
        raise InputError(f"{target}: expected a whole state: {one_line(error)}") from None


def remove_tree(target: Path) -> None:
    """Remove what ``save_tree`` wrote."""
    _seal(target).unlink(missing_ok=True)
    shutil.rmtree(target)


def _seal(target: Path) -> Path:
    return target.with_name(f"{target.name}.sha256")


def write_chunk(folder: Path, members: int) -> None:
    """Note how many members each chunk of a run has, for those who continue it."""
    folder.mkdir(parents=True, exist_ok=True)
    files.write_whole(folder / "chunk.json", json.dumps(members))


def read_chunk(folder: Path) -> int | None:
    """The number noted by ``write_chunk``; None if there is none.

    Raises InputError, one line, for anything but a whole number, as the last version wrote.
    """
    file = folder / "chunk.json"
    if not file.exists():
        return None
    try:
        members = json.loads(file.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(f"{file}: expected a whole number: {error}") from None
    if type(members) is not int or members < 1:
        raise InputError(
            f"{file}: expected a whole number of members, got {members!r}; a checkpoint of "
            "another version begins anew in another folder"
        )
    return members


def _intervals(folder: Path) -> list[int]:
    """Numbers of the whole states in a folder, ascending."""
    if not folder.is_dir():
        return []
    return sorted(int(p.name) for p in folder.iterdir() if p.name.isdigit())


def _leaves(tree: PyTree) -> dict[str, jax.Array]:
    """Leaves by number, keys as their words: arrays and nothing else."""

    def plain(x):
        x = jnp.asarray(x)
        return jax.random.key_data(x) if jnp.issubdtype(x.dtype, jax.dtypes.prng_key) else x

    return {str(i): plain(x) for i, x in enumerate(jax.tree.leaves(tree))}


def _rebuild(like: PyTree, leaves: dict[str, jax.Array]) -> PyTree:
    """Inverse of ``_leaves`` for a tree of the structure ``like``; ``leaves`` is emptied.

    What is read is bound to its device. Where ``like`` is not, neither are the leaves: a program
    is compiled once more for arguments that are.
    """
    old, structure = jax.tree.flatten(like)

    def typed(x, i):
        leaf = leaves.pop(str(i))
        if not getattr(x, "committed", True):
            leaf = jnp.array(np.asarray(leaf))  # a copy: states are donated
        if isinstance(x, jax.Array) and jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
            return jax.random.wrap_key_data(leaf, impl=jax.random.key_impl(x))
        return leaf

    return structure.unflatten([typed(x, i) for i, x in enumerate(old)])


def _digest(tree: PyTree) -> str:
    """SHA-256 over the bytes of all leaves."""
    digest = hashlib.sha256()
    for x in _leaves(tree).values():
        x = np.asarray(x)
        digest.update(f"{x.dtype}{x.shape}".encode())
        digest.update(np.ascontiguousarray(x).data)
    return digest.hexdigest()
