"""How public objects show themselves: three lines of text, and a small table in notebooks."""

from __future__ import annotations

import html
from collections.abc import Callable, Mapping
from typing import TypeVar

import numpy as np

Class = TypeVar("Class", bound=type)
About = tuple[str, Mapping[str, object]]  # a title, and labels with what they stand for


def described(about: Callable[..., About]) -> Callable[[Class], Class]:
    """Class decorator: ``repr`` and ``_repr_html_`` are made of ``about(instance)``.

    A title, and below it at most two lines of facts; empty facts are left out.
    """

    def decorate(cls: Class) -> Class:
        words = {
            "__repr__": lambda self: text(*about(self)),
            "__str__": lambda self: text(*about(self)),
            "_repr_html_": lambda self: table(*about(self)),
        }
        for name, method in words.items():
            setattr(cls, name, method)
        return cls

    return decorate


def text(title: str, facts: Mapping[str, object]) -> str:
    """The title, and the facts in one or two lines: half of them in each."""
    found = [f"{label} {word}" for label, word in _words(facts).items()]
    half = -(-len(found) // 2) if sum(map(len, found)) > 90 else len(found)
    lines = [", ".join(part) for part in (found[:half], found[half:]) if part]
    return "\n  ".join([title, *lines])


def table(title: str, facts: Mapping[str, object]) -> str:
    """The same as a table of HTML."""
    rows = "".join(
        f"<tr><th style='text-align:left'>{html.escape(label)}</th>"
        f"<td style='text-align:left'>{html.escape(word)}</td></tr>"
        for label, word in _words(facts).items()
    )
    return f"<table><caption>{html.escape(title)}</caption>{rows}</table>"


def number(x: object) -> str:
    """Three digits of a number, the range of several, what is known of a traced one."""
    try:
        values = np.unique(np.asarray(x, np.float64))
    except Exception:  # a tracer, or what a transformation put in its place
        return "traced"
    if not values.size:
        return ""
    ends = [f"{value:.3g}" for value in (values[0], values[-1])]
    return ends[0] if len(values) == 1 else " to ".join(ends)


def _words(facts: Mapping[str, object]) -> dict[str, str]:
    return {label: str(fact) for label, fact in facts.items() if fact not in (None, "", ())}
