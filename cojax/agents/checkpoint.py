"""Policies on disk: one NumPy archive with a JSON header, and nothing to unpickle."""

from __future__ import annotations

import dataclasses
import json
import os
import tempfile
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np

from cojax.agents.policies import ActorPolicy
from cojax.policy import Policy

FORMAT = "cojax.policy/1"
HEADER = "header"
POLICIES = {cls.__name__: cls for cls in (ActorPolicy,)}


def save_policy(path: str | os.PathLike, policy: Policy) -> None:
    """Write a policy, or a whole population of them, to ``path``; whole or not at all."""
    kind = type(policy.apply).__name__
    if kind not in POLICIES:
        raise ValueError(f"{path}: cannot save a policy of kind {kind}; can: {', '.join(POLICIES)}")
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
    """Read what ``save_policy`` wrote; ValueError, in one line, for anything else."""
    try:
        with np.load(path, allow_pickle=False) as archive:
            arrays = {name: archive[name] for name in archive.files}
        header = json.loads(str(arrays.pop(HEADER)))
    except (OSError, ValueError, KeyError) as error:
        raise ValueError(f"{path}: expected a policy saved by cojax: {error}") from None
    if header.get("format") != FORMAT or header.get("kind") not in POLICIES:
        raise ValueError(f"{path}: format: expected {FORMAT}, got {header.get('format')!r}")
    fields = {k: tuple(v) if isinstance(v, list) else v for k, v in header["apply"].items()}
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
