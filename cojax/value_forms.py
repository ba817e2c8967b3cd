"""Terms of a value as files state them (:mod:`cojax.value_terms`), checked field by field."""

from __future__ import annotations

import numpy as np

from cojax import errors, inputs
from cojax.errors import InputError
from cojax.types import Content, Json

TERMS = {
    "quartic": (),
    "absolute": ("along",),
    "signed-square": ("along",),
    "cosine": ("along", "frequency"),
    "kinked": ("along", "times"),
}
SIGNED = ("signed-square", "kinked")  # those of which v >= 0 must be checked


def checked_value(stated: Content | None, d: int) -> list[Content]:
    """The terms of a value as it is ``stated`` in a file, in full, for ``d`` states; none for None.

    Raises ValueError, one line: field, what was expected, what was found.
    """
    if stated is None:
        return []
    if not isinstance(stated, dict) or list(stated) != ["terms"]:
        raise InputError(f"value: expected {{terms: [...]}}, got {stated!r}")
    if not isinstance(stated["terms"], list) or not stated["terms"]:
        raise InputError(f"value.terms: expected a list of terms, got {stated['terms']!r}")
    return [_checked(f"value.terms[{i}]", term, d) for i, term in enumerate(stated["terms"])]


def _checked(name: str, term: Json, d: int) -> Content:
    if not isinstance(term, dict) or "kind" not in term:
        raise InputError(f"{name}: expected {{kind: …, weight: …}}, got {term!r}")
    kind = errors.one_of(f"{name}.kind", term["kind"], TERMS)
    fields = ("weight", *TERMS[kind])
    for field in term:
        errors.one_of(name, field, ("kind", *fields))
    for field in fields:
        if field not in term:
            raise InputError(f"{name}.{field}: expected this field, got nothing")
    out: Content = {"kind": kind}
    low = -np.inf if kind in SIGNED else 0.0
    out["weight"] = inputs.number(f"{name}.weight", term["weight"], low, low_open=low == 0.0)
    if "frequency" in fields:
        out["frequency"] = inputs.number(f"{name}.frequency", term["frequency"], 0.0, low_open=True)
    for field in ("along", "times"):
        if field in fields:
            out[field] = _direction(f"{name}.{field}", term[field], d)
    return out


def _direction(name: str, stated: Json, d: int) -> int | list[float]:
    """A coordinate by its number, or d numbers that are not all 0."""
    if not isinstance(stated, list):
        index = inputs.whole(name, stated, 0)
        if index >= d:
            raise InputError(f"{name}: expected a whole number in [0, {d - 1}], got {index}")
        return index
    vector = inputs.vector(name, stated, d)
    if not vector.any():
        raise InputError(f"{name}: expected a direction, got zeros")
    return vector.tolist()


def projection(stated: Json, d: int) -> np.ndarray:
    """ℓ of ``d`` entries, as it is ``stated``: a coordinate by its number, or all of it."""
    return np.eye(d)[stated] if isinstance(stated, int) else np.asarray(stated, np.float64)
