"""The reference is the docstrings: every public name has one that says what it takes and raises.

Public is what ``__all__`` of cojax and of its packages names, the functions and classes of the
modules among them, the adapters, and the public methods and properties of those classes.
"""

from __future__ import annotations

import ast
import dataclasses
import importlib
import inspect
import pkgutil
import re
import textwrap
import tomllib
import warnings
from functools import cache, cached_property
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import pytest

import cojax
from cojax.families import BUILT_IN, FAMILIES

ADAPTERS = ("gymnasium", "stable_baselines3", "five_values", "brax", "dm_env")
REFERENCE = re.compile(r":(?:func|class|data|mod|meth):`~?([\w.]+)`")
RAISES = re.compile(r"\b([Rr]aises?|[Ee]rrors?|[Rr]efuses?)\b|Error\b")


class Public(NamedTuple):
    name: str
    object: Any
    owner: type | None


def packages() -> list[ModuleType]:
    """cojax, its packages, and the adapters whose libraries are installed."""
    names = [f"cojax.{m.name}" for m in pkgutil.iter_modules(cojax.__path__) if m.ispkg]
    found = [cojax, *(importlib.import_module(name) for name in names)]
    for adapter in ADAPTERS:
        module = load(f"cojax.adapters.{adapter}")
        if module is not None:
            found.append(module)
    return found


def load(name: str) -> ModuleType | None:
    """A module, or None where it is an adapter whose library is not installed."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # brax imports what is deprecated
        try:
            return importlib.import_module(name)
        except ValueError:
            return None


def is_documentable(value: Any) -> bool:
    return inspect.isclass(value) or inspect.isroutine(value) or hasattr(value, "__wrapped__")


def names_of(module: ModuleType) -> list[str]:
    """``__all__``, or what a module without one defines itself."""
    listed = getattr(module, "__all__", None)
    if listed is not None:
        return [name for name in listed if not name.startswith("_")]
    return [
        name
        for name, value in vars(module).items()
        if not name.startswith("_")
        and is_documentable(value)
        and getattr(value, "__module__", None) == module.__name__
    ]


def function_of(attribute: Any) -> Any:
    """The function behind a method, property or cached property; None for anything else."""
    if isinstance(attribute, classmethod | staticmethod):
        return attribute.__func__
    if isinstance(attribute, property):
        return attribute.fget
    if isinstance(attribute, cached_property):
        return attribute.func
    return attribute if inspect.isfunction(attribute) else None


@cache
def public() -> tuple[Public, ...]:
    """Every public object once, with its public methods after a class."""
    found: dict[int, Public] = {}
    waiting = packages()
    seen = set()
    while waiting:
        module = waiting.pop()
        if module.__name__ in seen:
            continue
        seen.add(module.__name__)
        for name in names_of(module):
            value = getattr(module, name)
            if isinstance(value, ModuleType):
                waiting.append(value)
            elif is_documentable(value):
                found.setdefault(id(value), Public(f"{module.__name__}.{name}", value, None))
    out = []
    for one in sorted(found.values(), key=lambda one: one.name):
        out.append(one)
        if inspect.isclass(one.object):
            for name, attribute in vars(one.object).items():
                function = function_of(attribute)
                ours = getattr(function, "__module__", "").startswith("cojax")
                if not name.startswith("_") and ours:
                    out.append(Public(f"{one.name}.{name}", function, one.object))
    return tuple(out)


def parametrize(check: Any) -> Any:
    return pytest.mark.parametrize("one", public(), ids=lambda one: one.name)(check)


def docstring(value: Any) -> str:
    """The docstring somebody wrote: not the signature that dataclasses make one of."""
    text = vars(value).get("__doc__") if inspect.isclass(value) else value.__doc__
    text = text or ""
    return "" if text.startswith(f"{getattr(value, '__name__', '')}(") else text


def resolve(reference: str, home: str) -> Any:
    """What a reference names, read in a module or one of its classes.

    AttributeError or ImportError where it names nothing.
    """
    first, *rest = reference.split(".")
    if first == "cojax":
        value = cojax
    else:
        module = importlib.import_module(home)
        classes = [kind for kind in vars(module).values() if inspect.isclass(kind)]
        places = [module, *(kind for kind in classes if kind.__module__ == home)]
        value = next((vars(place)[first] for place in places if first in vars(place)), None)
        if value is None:
            raise AttributeError(reference)
    for part in rest:
        try:
            value = getattr(value, part)
        except AttributeError:
            value = importlib.import_module(f"{value.__name__}.{part}")
    return value


def context(one: Public) -> str:
    """The docstring, those of the class and of what it overrides, and those referred to."""
    texts = [(docstring(one.object), one.object.__module__)]
    kinds = inspect.getmro(one.owner or (one.object if inspect.isclass(one.object) else object))
    for kind in kinds:
        if kind.__module__.startswith("cojax"):
            overridden = function_of(vars(kind).get(getattr(one.object, "__name__", "")))
            for value in (kind, overridden):
                texts.append((docstring(value) if value else "", kind.__module__))
    found = [text for text, _ in texts]
    for text, home in texts:
        for reference in REFERENCE.findall(text):
            found.append(getattr(resolve(reference, home), "__doc__", None) or "")
    return "\n".join(found)


def parameters(value: Any) -> list[str]:
    """Names that a caller gives: arguments, or the fields of a dataclass."""
    if isinstance(value, type) and issubclass(value, Exception):
        return []
    if dataclasses.is_dataclass(value) and inspect.isclass(value):
        names = [field.name for field in dataclasses.fields(value) if field.init]
    elif inspect.isclass(value):
        made_by = vars(value).get("__init__")
        names = [*inspect.signature(made_by).parameters] if made_by else []
    else:
        names = [*inspect.signature(value).parameters]
    return [name for name in names if name not in ("self", "cls") and name[0] != "_"]


def raises(value: Any) -> bool:
    """Whether an object's own code has a ``raise`` of a new error, nested functions apart."""
    try:
        source = inspect.getsource(inspect.unwrap(value))
    except (OSError, TypeError):
        return False
    tree = ast.parse(textwrap.dedent(source)).body[0]
    return any(
        isinstance(node, ast.Raise)
        and node.exc is not None
        and "AssertionError" not in ast.dump(node.exc)
        for node in ast.walk(tree)
    )


def test_public_names_are_many_and_everything_is_walked():
    names = {one.name for one in public()}
    assert len(names) > 200
    for name in ("cojax.evaluate", "cojax.envs.ConverseEnv.step", "cojax.oracle.advantage"):
        assert name in names or any(other.endswith(name[5:]) for other in names), name


@parametrize
def test_a_docstring_of_substance(one):
    text = docstring(one.object)
    assert text.strip(), "expected a docstring"
    first = text.strip().splitlines()[0].strip()
    assert first[-1] in ".:;,?!" or "\n" in text.strip(), f"expected a sentence, got {first!r}"


@parametrize
def test_every_argument_is_named(one):
    text = context(one)
    missing = [name for name in parameters(one.object) if not re.search(rf"\b{name}\b", text)]
    assert not missing


@parametrize
def test_errors_are_announced(one):
    if inspect.isclass(one.object) or not raises(one.object):
        return
    own = docstring(one.object) + (docstring(one.owner) if one.owner else "")
    assert RAISES.search(own), "it raises, and its docstring does not say so"


@pytest.mark.parametrize("name", BUILT_IN)
def test_families_state_equation_shapes_units_and_source(name):
    family = FAMILIES[name]
    text = f"{inspect.getmodule(family).__doc__}\n{family.__doc__}"
    assert re.search(r"S\w*\(s\)|s' = ", text), "the equation"
    assert re.search(r"s(_i)? = \[|two states", text), "what the state is"
    assert re.search(r"[Rr]adians|[Mm]etres|[Ss]econds|[Nn]o units", text), "units"
    assert re.search(r"paper|authors", text + family.build.__doc__), "the source"


def test_modules_say_what_they_are_and_refer_to_what_exists():
    broken = []
    for found in pkgutil.walk_packages(cojax.__path__, "cojax."):
        if found.name == "cojax.__main__":
            continue
        module = load(found.name)
        if module is None:
            continue
        assert (module.__doc__ or "").strip(), found.name
        for reference in REFERENCE.findall(inspect.getsource(module)):
            try:
                resolve(reference, found.name)
            except (AttributeError, ImportError):
                broken.append(f"{found.name}: {reference}")
    assert not broken


def test_one_version_everywhere():
    root = Path(__file__).parents[1]
    stated = tomllib.loads((root / "pyproject.toml").read_text())["project"]["version"]
    readme = (root / "README.md").read_text()
    assert stated == cojax.__version__
    assert f"version = {{{stated}}}" in readme
    assert f"**{stated}**" in readme.partition("## Changelog")[2]
