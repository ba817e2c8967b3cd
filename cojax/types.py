"""The words of signatures: arrays with their shapes, pytrees, and data as files hold it.

Shapes are those of one system, learner or member; ``vmap`` and ``stack`` put axes in front. Names
of dimensions: ``n`` states, ``m`` inputs, ``o`` observations, ``d`` noises, ``N`` trials, ``M``
members, ``T`` steps.

Arrays and pytrees are those of jaxtyping, loaded on first use: commands name rows without them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from jaxtyping import Array, Bool, Float, Int, Key, PRNGKeyArray, PyTree, Shaped
else:

    def __getattr__(name: str):
        import jaxtyping

        if name not in ARRAYS:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(jaxtyping, name)


Row: TypeAlias = dict[str, Any]  # a line of a table: JSON data by the name of its column
Content: TypeAlias = dict[str, Any]  # of a YAML or JSON file, by the name of its field
Option: TypeAlias = Any  # an argument by name, checked by what it is passed on to
Options: TypeAlias = dict[str, Any]  # arguments by name
Json: TypeAlias = Any  # what a JSON or YAML file may hold anywhere

ARRAYS = ("Array", "Bool", "Float", "Int", "Key", "PRNGKeyArray", "PyTree", "Shaped")
__all__ = [
    "Array",
    "Bool",
    "Content",
    "Float",
    "Int",
    "Json",
    "Key",
    "Option",
    "Options",
    "PRNGKeyArray",
    "PyTree",
    "Row",
    "Shaped",
]
