"""JSON read with one line for what is wrong, and written strictly."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Sequence
from typing import Any

from cojax.errors import InputError
from cojax.io import files, yaml


def load(path: str | os.PathLike[str], kind: type | None = None) -> Any:
    """What a JSON file holds, of a kind: dict or list.

    Raises ValueError, one line, for anything else.
    """
    try:
        content = json.loads(files.read(path))
    except json.JSONDecodeError as error:
        short = "" if error.pos < len(error.doc.rstrip()) else "; is the file cut short?"
        raise InputError(
            f"{path}: expected JSON, got: {error.msg} in line {error.lineno}{short}"
        ) from None
    except (RecursionError, ValueError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"{path}: expected JSON, got: {type(error).__name__}") from None
    if kind is not None and not isinstance(content, kind):
        expected = {dict: "a mapping", list: "a list"}[kind]
        raise InputError(f"{path}: expected {expected}, got a {type(content).__name__}")
    return content


def rows_text(rows: Sequence[dict[str, Any]]) -> str:
    """Rows as strict JSON: numbers that are not finite become null, and among hyperparameters the
    words of YAML, ".inf".
    """
    return json.dumps([_finite(row) for row in rows], indent=2, allow_nan=False)


def configuration_text(content: dict[str, Any]) -> str:
    """What was configured as strict JSON: numbers that are not finite become words of YAML."""
    return json.dumps(_finite(content, words=True), indent=2, allow_nan=False) + "\n"


def _finite(value: Any, words: bool = False) -> Any:
    if isinstance(value, dict):
        return {n: _finite(entry, words or n == "hyperparameters") for n, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(entry, words) for entry in value]
    if isinstance(value, float) and not math.isfinite(value):
        return yaml.number(value) if words else None
    return value
