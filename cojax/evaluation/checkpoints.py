"""Policies by their text: the name of a reference, or the path of a checkpoint or SB3 model."""

from __future__ import annotations

import json
import os
import zipfile
from pathlib import Path

from cojax import inputs
from cojax.evaluation.host import HostPolicy, host_policy
from cojax.evaluation.references import Reference, parse_policy
from cojax.inputs import InputError
from cojax.policy import Policy


def policy_from_text(text: str) -> Policy | Reference:
    """The reference a text names, or the policy of the checkpoint at that path.

    A text is a path where it exists or has a separator in it. Raises ValueError, one line, for an
    unknown name, suggesting the nearest, and for a file that holds no policy.
    """
    if not Path(text).exists() and os.sep not in text:
        return parse_policy(text)
    if not Path(text).exists():
        raise InputError(f"policy {text}: no such file or folder")
    if _is_sb3(text):
        raise InputError(
            f"policy {text}: a model of Stable-Baselines3 is a pickle, which runs code when it is "
            "loaded; give it with --sb3 if you trust it"
        )
    from cojax import agents

    try:
        return agents.load_policy(text)
    except ValueError as error:
        raise InputError(f"policy {' '.join(str(error).split())}") from error


# what only one algorithm of Stable-Baselines3 keeps in its file, in the order they are looked for
_MARKS = {
    "clip_range": "PPO",
    "gae_lambda": "A2C",
    "target_entropy": "SAC",
    "target_policy_noise": "TD3",
}


def load_sb3(path: str | os.PathLike[str]) -> HostPolicy:
    """The policy of a Stable-Baselines3 model (PPO, A2C, SAC, TD3, DDPG) saved as ``model.zip``.

    Loading a model unpickles it, which runs whatever code the file holds: for trusted files only.
    Statistics of a ``VecNormalize`` are not in the file: wrap such a model yourself, in an object
    with ``predict``.

    Raises ValueError, one line, as :func:`sb3_algorithm` does, and where Stable-Baselines3 is not
    installed or cannot load the file.
    """
    path = Path(path)
    kind = sb3_algorithm(path)
    try:
        import stable_baselines3  # pyright: ignore[reportMissingImports]
    except ImportError:
        raise InputError(
            f"{path}: Stable-Baselines3 is not installed: pip install 'cojax[sb3]'"
        ) from None
    try:
        model = getattr(stable_baselines3, kind).load(path, device="cpu")
    except Exception as error:
        reason = inputs.one_line(error)
        raise InputError(f"{path}: Stable-Baselines3 cannot load it: {reason}") from error
    return host_policy(model, path.name)


def sb3_algorithm(path: str | os.PathLike[str]) -> str:
    """Which algorithm's model a file holds, from its JSON part: nothing is unpickled.

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
    except Exception as error:  # what a damaged archive makes of a reader is not to be foreseen
        if isinstance(error, InputError):
            raise
        raise InputError(f"{path}: damaged: {inputs.one_line(error)}") from None
    kind = next((name for mark, name in _MARKS.items() if mark in content), None)
    if kind is None:
        raise InputError(
            f"{path}: expected a model of PPO, A2C, SAC, TD3 or DDPG; load another one in Python "
            "and give the model to cojax.evaluate"
        )
    return kind


def _is_sb3(path: str | os.PathLike[str]) -> bool:
    """Whether a file is an archive as Stable-Baselines3 writes it; nothing is unpickled."""
    try:
        with zipfile.ZipFile(path) as archive:
            return {"data", "_stable_baselines3_version"} <= set(archive.namelist())
    except (OSError, ValueError, NotImplementedError, zipfile.BadZipFile):
        return False
