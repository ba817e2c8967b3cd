"""What is said of unusable input: one line with what, where, and what was expected.

Nothing here imports JAX, so that help and refusals do not wait for it.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pydantic import ValidationError


class InputError(ValueError):
    """Something given from outside cannot be used; the message is one line for people."""


class CertificateError(InputError):
    """A system that the validator refuses; the message is the check that fails, with its number."""


class UncertifiedWarning(UserWarning):
    """A fixture that no validator has passed is about to be learned on."""


def one_of(name: str, value: Any, known: Iterable[str]) -> str:
    """One of a set of names; the error suggests the nearest."""
    known = sorted(known)
    if value in known:
        return value
    hint = nearest(value, known)
    listed = ", ".join(known[:12]) + (", …" if len(known) > 12 else "")
    raise InputError(f"{name}: unknown {value!r}{hint} (known: {listed})")


def nearest(value: Any, known: Iterable[str], cutoff: float = 0.4) -> str:
    """A hint to append to a message: ``; did you mean 'x'?``, or nothing if none is near.

    With cutoff 0 there is always one that is nearest.
    """
    near = difflib.get_close_matches(str(value), list(known), n=1, cutoff=cutoff)
    return f"; did you mean {near[0]!r}?" if near else ""


def distinct(name: str, words: Iterable[str]) -> None:
    """Raise InputError for the first word that is there twice."""
    seen = set()
    for word in words:
        if word in seen:
            raise InputError(f"{name}: {word} is named more than once")
        seen.add(word)


def first_problem(error: ValidationError, known: Iterable[str]) -> str:
    """The most telling problem of a file's content, as ``field: expected ..., got ...``.

    ``known`` are the names of fields, to suggest from.
    """
    problem = min(error.errors(), key=lambda e: e["type"] == "missing")
    branch = ("bool", "int", "float", "str")  # of a union, which no field is
    parts = [str(part) for part in problem["loc"]]
    field = ".".join(part for part in parts if part not in branch and "[" not in part)
    prefix = f"{field}: " if field else ""
    if problem["type"] == "extra_forbidden":
        return f"{prefix}unknown field{nearest(problem['loc'][-1], known)}"
    if problem["type"] == "missing":
        return f"{prefix}expected this field, got nothing"
    if problem["type"] == "value_error":  # a check of ours, complete as it is
        return f"{prefix}{problem.get('ctx', {}).get('error')}"
    return f"{prefix}{problem['msg'][0].lower()}{problem['msg'][1:]}, got {problem['input']!r}"


def one_line(error: BaseException) -> str:
    """What an error says, in one line: its first, or its kind where it says nothing."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]
