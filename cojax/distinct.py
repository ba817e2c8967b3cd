"""Classes of pytrees that compilations tell apart."""

from __future__ import annotations

import dataclasses
import inspect

from cojax.types import Options


class Distinct:
    """Base of classes that ``flax.struct.dataclass`` makes pytrees of: each has its own name in its
    structure, as a static field ``type_name``.

    Structures of two classes with as many leaves and equal static fields compare as equal (JAX
    0.10), although their hashes differ. A compiled function keeps its programs in a table that
    compares where seven bits of two hashes agree: of such pairs, about one in 128 would run the
    other's program, without a word.
    """

    def __init_subclass__(cls, **kwargs: object) -> None:
        super().__init_subclass__(**kwargs)
        name = f"{cls.__module__}.{cls.__qualname__}"
        cls.__annotations__ = inspect.get_annotations(cls) | {"type_name": "str"}
        field = dataclasses.field(
            default=name, kw_only=True, repr=False, metadata={"pytree_node": False}
        )
        cls.type_name = field  # pyright: ignore[reportAttributeAccessIssue]


def of_another(value: object) -> Options:
    """The fields of a dataclass by name, for the constructor of another class that has them too."""
    return {name: x for name, x in vars(value).items() if name != "type_name"}
