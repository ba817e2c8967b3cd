"""Policies by their text: the name of a reference, or the path of a checkpoint."""

from __future__ import annotations

import os
from pathlib import Path

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
    from cojax import agents

    try:
        return agents.load_policy(text)
    except ValueError as error:
        raise InputError(f"policy {' '.join(str(error).split())}") from error
