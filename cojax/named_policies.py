"""Policies by their text: a reference, a file that holds one, or a function in a Python file."""

from __future__ import annotations

import dataclasses
import importlib
import importlib.util
import io
import json
import os
import re
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import jax
import jax.numpy as jnp

from cojax import errors
from cojax.agents import load_policy
from cojax.errors import InputError
from cojax.evaluation.host import HostPolicy, host_policy
from cojax.evaluation.members import AnyPolicy, as_policy
from cojax.evaluation.references import ReferencePolicy, parse_policy
from cojax.io import tables
from cojax.policy import Policy

MEMBERS = "members.parquet"  # of a results folder: who is where


_NAMED = re.compile(r"([\w .+-]+)=(.+)")
_FUNCTION = re.compile(r"(.+\.py)(?::(.*))?")


def any_policy_from_text(text: str) -> AnyPolicy:
    """What :func:`policy_from_text` gives, and FILE.py:FUNCTION, a function in a Python file.

    The file is run. Its function is one that :func:`cojax.evaluate` takes: of the observation, in
    NumPy or JAX, or, in JAX, of (observation, key). NAME=… calls any of these NAME. Raises
    InputError, one line, also for a file that cannot be run or has no such function.
    """
    name, rest = _name(text)
    found = _FUNCTION.fullmatch(rest)
    if found is None:
        return policy_from_text(text)
    return as_policy(name, _function(Path(found[1]), found[2]))


def _name(text: str) -> tuple[str | None, str]:
    """The name that a text gives to the policy after it, and the policy."""
    found = None if Path(text).exists() else _NAMED.fullmatch(text)
    return (None, text) if found is None else (found[1].strip(), found[2])


def _function(file: Path, name: str | None) -> Callable[..., object]:
    """A function of a Python file, which is run."""
    if not file.is_file():
        raise InputError(f"policy {file}: no such file")
    if not name:
        raise InputError(f"policy {file}: expected a function of it, {file}:FUNCTION")
    spec = importlib.util.spec_from_file_location(file.stem, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.path.insert(0, str(file.parent.absolute()))  # as python FILE.py has it
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        reason = f"{type(error).__name__}: {errors.one_line(error)}"
        raise InputError(f"policy {file}: it cannot be run: {reason}") from error
    finally:
        sys.path.pop(0)
    known = [n for n, value in vars(module).items() if callable(value) and n[0] != "_"]
    errors.one_of(f"policy {file}: function", name, known)
    return getattr(module, name)


def policy_from_text(text: str) -> Policy | ReferencePolicy:
    """The reference a text names, the policy of the checkpoint at that path, or FOLDER@ALGORITHM
    or FOLDER@ALGORITHM:SETTING, see :func:`policy_of_folder`; NAME=… calls any of these NAME.

    A text is a path where it exists or has a separator in it. Raises ValueError, one line, for an
    unknown name, suggesting the nearest, and for a file that holds no policy.
    """
    name, text = _name(text)
    if name is not None:
        return dataclasses.replace(policy_from_text(text), name=name)
    if _FUNCTION.fullmatch(text):
        raise InputError(
            f"policy {text}: code is run by cojax evaluate --policy alone; elsewhere name a "
            "reference or a saved policy"
        )
    folder, at, which = text.rpartition("@")
    if at and (Path(folder) / MEMBERS).is_file():
        return policy_of_folder(folder, which)
    if not Path(text).exists() and os.sep not in text:
        return parse_policy(text)
    if not Path(text).exists():
        raise InputError(f"policy {text}: no such file or folder")
    if _is_sb3(text):
        raise InputError(
            f"policy {text}: a model of Stable-Baselines3 is a pickle, which runs code when it is "
            "loaded; give it with --sb3 if you trust it"
        )
    try:
        policy = load_policy(text)
    except ValueError as error:
        raise InputError(f"policy {' '.join(str(error).split())}") from error
    if policy.axes == ("member",):
        raise InputError(
            f"policy {text}: members of a sweep; name a setting of its results: FOLDER@ALGORITHM:3"
        )
    return policy


def policy_of_folder(folder: str | os.PathLike[str], which: str) -> Policy:
    """The last policies of an algorithm in the results folder of a study, all seeds.

    ``which`` is the algorithm, with ``:SETTING`` where it has several. Axes are "fixture", where
    there are several, and "seed". Raises InputError, one line, for an algorithm or a setting that
    is not there, policies that were not kept, and systems of several shapes.
    """
    folder = Path(folder)
    members = tables.read(folder / MEMBERS)
    name, _, number = which.partition(":")
    errors.one_of(f"policy {folder}@{which}: algorithm", name, set(members["algorithm"]))
    mine = members[members["algorithm"] == name]
    settings = sorted(set(mine["setting"]))
    if not number and len(settings) > 1:
        raise InputError(f"policy {folder}@{which}: expected a setting, {name}:{settings[0]}")
    setting = number or str(settings[0])
    errors.one_of(f"policy {folder}@{which}: setting", setting, [str(n) for n in settings])
    mine = mine[mine["setting"] == int(setting)]
    one_by_one = []
    loaded: dict[str, Policy] = {}
    for file, index in zip(mine["policy_file"], mine["policy_index"], strict=True):
        path = folder / "policies" / str(file)
        if not path.is_file():
            raise InputError(f"policy {folder}@{which}: {path} is missing")
        if file not in loaded:
            loaded[file] = load_policy(path)
        axes = len(loaded[file].axes)
        one_by_one.append(
            jax.tree.map(
                lambda x, n=axes, i=index: x.reshape(-1, *x.shape[n:])[i], loaded[file].params
            )
        )
    shapes = {str(jax.tree.map(jnp.shape, params)) for params in one_by_one}
    if len(shapes) > 1:
        raise InputError(
            f"policy {folder}@{which}: expected systems of one shape, got {len(shapes)}; name a "
            f"file of {folder / 'policies'}"
        )
    fixtures = len(set(mine["fixture"]))
    axes = ("fixture", "seed") if fixtures > 1 else ("seed",)
    lead = (fixtures, -1) if fixtures > 1 else (-1,)
    params = jax.tree.map(lambda *x: jnp.stack(x).reshape(*lead, *jnp.shape(x[0])), *one_by_one)
    policy = next(iter(loaded.values()))
    title = f"{name} ({setting})" if len(settings) > 1 else name
    return dataclasses.replace(policy, params=params, name=title, axes=axes)


# what only one algorithm of Stable-Baselines3, or of sb3-contrib, keeps in its file, in the order
# they are looked for
_MARKS = {
    "clip_range": "PPO",
    "cg_max_steps": "TRPO",
    "gae_lambda": "A2C",
    "top_quantiles_to_drop_per_net": "TQC",
    "target_policy_noise": "TD3",
    "n_delta": "ARS",
}
_CONTRIB = ("RecurrentPPO", "TRPO", "TQC", "CrossQ", "ARS")


def load_sb3(path: str | os.PathLike[str]) -> HostPolicy:
    """The policy of a model saved as ``model.zip`` by Stable-Baselines3 (PPO, A2C, SAC, TD3, DDPG)
    or sb3-contrib (RecurrentPPO, whose memory is carried; TRPO, TQC, CrossQ, ARS).

    Loading a model unpickles it, which runs whatever code the file holds: for trusted files only.
    Statistics of a ``VecNormalize`` are not in the file: wrap such a model yourself, in an object
    with ``predict``.

    Raises ValueError, one line, as :func:`sb3_algorithm` does, and where the library is not
    installed or cannot load the file.
    """
    path = Path(path)
    kind = sb3_algorithm(path)
    package, title = "stable_baselines3", "Stable-Baselines3"
    advice = "pip install 'cojax[sb3]'"
    if kind in _CONTRIB:
        package, title, advice = "sb3_contrib", "sb3-contrib", "pip install sb3-contrib"
    try:
        library = importlib.import_module(package)
    except ImportError:
        raise InputError(f"{path}: a model of {kind}: {title} is not installed: {advice}") from None
    try:
        model = getattr(library, kind).load(path, device="cpu")
    except Exception as error:
        reason = errors.one_line(error)
        raise InputError(f"{path}: {title} cannot load it: {reason}") from error
    return host_policy(model, path.name)


def sb3_algorithm(path: str | os.PathLike[str]) -> str:
    """Which algorithm's model a file holds, from its JSON part and the names of its weights:
    nothing is unpickled.

    Raises ValueError, one line, for a file that is no model, or of an algorithm not known here.
    """
    path = Path(path)
    if not path.is_file():
        raise InputError(f"{path}: no such file")
    if not _is_sb3(path):
        raise InputError(f"{path}: expected a model saved by Stable-Baselines3")
    try:
        with zipfile.ZipFile(path) as archive:
            if (damaged := archive.testzip()) is not None:
                raise InputError(f"{path}: damaged: {damaged}")
            content = dict(json.loads(archive.read("data")))
            recurrent = "policy.pth" in archive.namelist() and b"lstm" in _names_of_weights(archive)
    except Exception as error:  # what a damaged archive makes of a reader is not to be foreseen
        if isinstance(error, InputError):
            raise
        raise InputError(f"{path}: damaged: {errors.one_line(error)}") from None
    kind = next((name for mark, name in _MARKS.items() if mark in content), None)
    if kind == "PPO" and recurrent:
        return "RecurrentPPO"
    if kind is None and "target_entropy" in content:
        return "CrossQ" if "policy_delay" in content else "SAC"
    if kind is None:
        raise InputError(
            f"{path}: expected a model of PPO, A2C, SAC, TD3 or DDPG, or of RecurrentPPO, TRPO, "
            "TQC, CrossQ or ARS; load another one in Python and give the model to cojax.evaluate"
        )
    return kind


def _names_of_weights(archive: zipfile.ZipFile) -> bytes:
    """The part of PyTorch's archive in the archive that holds the names, as it is."""
    content = archive.read("policy.pth")
    if not zipfile.is_zipfile(io.BytesIO(content)):  # as old versions of PyTorch wrote it
        return content
    with zipfile.ZipFile(io.BytesIO(content)) as weights:
        return b"".join(weights.read(n) for n in weights.namelist() if n.endswith("data.pkl"))


def _is_sb3(path: str | os.PathLike[str]) -> bool:
    """Whether a file is an archive as Stable-Baselines3 writes it; nothing is unpickled."""
    try:
        with zipfile.ZipFile(path) as archive:
            return {"data", "_stable_baselines3_version"} <= set(archive.namelist())
    except (OSError, ValueError, NotImplementedError, zipfile.BadZipFile):
        return False
