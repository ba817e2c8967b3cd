"""Policies by their text: the name of a reference, or the path of a checkpoint."""

from __future__ import annotations

import os
from pathlib import Path

from cojax.evaluation.references import Reference, parse_policy
from cojax.policy import Policy


def policy_from_text(text: str) -> Policy | Reference:
    """The reference a text names, or the policy of the checkpoint at that path.

    A text is a path where it exists or has a separator in it. Raises ValueError for an unknown
    name, suggesting the nearest.
    """
    if Path(text).exists() or os.sep in text:
        from cojax import agents

        return agents.load_policy(text)  # pyright: ignore[reportAttributeAccessIssue]
    return parse_policy(text)
