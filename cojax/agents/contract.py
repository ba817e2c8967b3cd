"""What an algorithm must be, checked before anybody trains with it: one line for what is not.

What can be read off an object is read when it is registered. What its functions give is traced, not
computed, on gymnax's pendulum with the defaults of its hyperparameters.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable

import jax
import jax.numpy as jnp
from gymnax.environments.classic_control.pendulum import Pendulum

from cojax.agents.algorithm import Algorithm, Clock, learning
from cojax.agents.settings import hyperparameters
from cojax.errors import one_line
from cojax.types import PyTree

SIGNATURES = {  # of the functions that an algorithm must have
    "init": ("env", "key", "env_params", "h"),
    "update": ("env", "state", "env_params", "h"),
    "policy_params": ("env", "state", "env_params", "h"),
    "policy_apply": ("env", "env_params", "h"),
    "steps_per_update": ("h",),
    "check": ("h",),
}
SUMS = ("episode_return", "episode_length", "episodes")  # over the episodes that ended


class _Broken(Exception):
    """What the contract asks for and does not get."""


def problem(name: str, spec: object) -> str | None:
    """Why an object cannot be an algorithm under a name, or None where it can, as far as that can
    be read off.
    """
    try:
        _read(name, spec)
    except _Broken as broken:
        return str(broken)
    return None


def _read(name: str, spec: object) -> None:
    if not isinstance(getattr(spec, "hyperparameters", None), type):
        raise _Broken(
            f"expected a cojax.agents.algorithm.Algorithm, got {spec!r} without hyperparameters"
        )
    for part, arguments in SIGNATURES.items():
        function = getattr(spec, part, None)
        if not callable(function):
            raise _Broken(
                f"expected a cojax.agents.algorithm.Algorithm, got {spec!r} without {part}"
            )
        try:
            inspect.signature(function).bind(*arguments)
        except TypeError:
            raise _Broken(f"{part}: expected {part}({', '.join(arguments)})") from None
        except ValueError:  # a built-in, that does not say what it takes
            continue
    if getattr(spec, "name", None) != name:
        raise _Broken(f"expected name = {name!r}, got {getattr(spec, 'name', None)!r}")
    _fields(spec.hyperparameters)  # pyright: ignore[reportAttributeAccessIssue]


def _fields(cls: type) -> None:
    """Hyperparameters are a frozen dataclass, each with a default and its bounds."""
    if not dataclasses.is_dataclass(cls) or not cls.__dataclass_params__.frozen:  # pyright: ignore
        raise _Broken("hyperparameters: expected a flax.struct.PyTreeNode, or another frozen one")
    fields = dataclasses.fields(cls)
    for field in fields:
        if field.default is dataclasses.MISSING or not {"range", "pytree_node"} <= {
            *field.metadata
        }:
            raise _Broken(
                f"hyperparameters: {field.name}: expected a default and bounds, as "
                f"{field.name} = traced(0.1, 0.0, 1.0), or static(8, 1) where it decides shapes"
            )
    if "gamma" not in {field.name for field in fields}:
        raise _Broken(
            "hyperparameters: expected gamma = traced(None, 0.0, 1.0), None for the system's own"
        )
    if all(f.default is None for f in fields if f.metadata["pytree_node"]):
        raise _Broken("hyperparameters: expected one at least that is traced and a number")


@learning()
def traced_problem(spec: Algorithm) -> str | None:
    """Why what its functions give does not make a learner, or None where it does or where that
    cannot be told on the pendulum, whose transition has no gradient.
    """
    if spec.differentiable:
        return None
    try:
        _trace(spec)
    except _Broken as broken:
        return str(broken)
    return None


def _trace(spec: Algorithm) -> None:
    env, h = Pendulum(), hyperparameters(spec.hyperparameters, None)
    params, key = env.default_params, jax.random.key(0, impl="threefry2x32")
    steps = _tried("steps_per_update", lambda: spec.steps_per_update(h))
    if type(steps) is not int or steps < 1:
        raise _Broken(f"steps_per_update: expected a whole number of at least 1, got {steps!r}")
    _tried("check", lambda: spec.check(h))
    state = _shapes("init", lambda key: spec.init(env, key, params, h), key)
    if not dataclasses.is_dataclass(state) or not hasattr(state, "replace"):
        raise _Broken(f"init: expected a flax.struct.PyTreeNode, got a {type(state).__name__}")
    if not isinstance(getattr(state, "clock", None), Clock):
        raise _Broken("init: expected a state with clock = cojax.agents.algorithm.Clock.create()")
    failed = getattr(state, "failed", None)
    if getattr(failed, "shape", None) != () or str(getattr(failed, "dtype", "")) != "bool":
        raise _Broken(
            "init: expected a state with failed = jnp.zeros((), bool), whether a parameter has "
            "ever been non-finite"
        )

    program = jax.make_jaxpr(lambda s: spec.update(env, s, params, h), return_shape=True)
    made, out = _tried("update", lambda: program(state))
    if not isinstance(out, tuple) or len(out) != 2 or not isinstance(out[1], dict):
        raise _Broken("update: expected (state, metrics), metrics a dict of numbers by name")
    after, metrics = out
    _same(state, after)
    for name in SUMS:
        if name not in metrics:
            raise _Broken(
                f"update: expected a metric {name!r}, a sum over the episodes that ended, see "
                "cojax.agents.algorithm.Episodes"
            )
    for name, x in metrics.items():
        if getattr(x, "shape", None) != () or x.dtype != jnp.float32:
            raise _Broken(f"update: metric {name}: expected one float32 number, got {_kind(x)}")
    leaves = [jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_leaves_with_path(out)]
    if made.jaxpr.outvars[leaves.index("[0].clock.update")] in made.jaxpr.invars:
        raise _Broken(
            "update: expected clock.update to grow by 1: "
            "state.clock.replace(update=state.clock.update + 1)"
        )
    _policy(spec, env, params, h, state=state)


def _same(before: PyTree, after: PyTree) -> None:
    """The state of an update is one that the next can take."""
    old, structure = jax.tree_util.tree_flatten_with_path(before)
    new, now = jax.tree_util.tree_flatten_with_path(after)
    if structure != now:
        raise _Broken("update: expected a state of the same structure as that of init")
    for (path, x), (_, y) in zip(old, new, strict=True):
        if _kind(x) != _kind(y):
            where = jax.tree_util.keystr(path)
            raise _Broken(f"update: state{where}: expected {_kind(x)} as in init, got {_kind(y)}")


def _policy(spec: Algorithm, env: Pendulum, params: PyTree, h: PyTree, *, state: PyTree) -> None:
    """A policy maps an observation to an action; what a diagnosis asks for fits it."""
    learned = _shapes("policy_params", lambda s: spec.policy_params(env, s, params, h), state)
    apply = _tried("policy_apply", lambda: spec.policy_apply(env, params, h))
    try:
        hash(apply)
    except TypeError:
        raise _Broken(
            "policy_apply: expected a function of the module or a frozen dataclass, which can be "
            f"hashed, got {type(apply).__name__}"
        ) from None
    obs = jax.ShapeDtypeStruct(env.observation_space(params).shape, jnp.float32)
    key = jax.random.key(0, impl="threefry2x32")
    action = _shapes("the policy", lambda p, o: apply(p, o, key), learned, obs)
    wanted = jax.ShapeDtypeStruct(env.action_space(params).shape, jnp.float32)
    if _kind(action) != _kind(wanted):
        raise _Broken(f"the policy: expected an action {_kind(wanted)}, got {_kind(action)}")
    if spec.actor is not None:
        actor = _shapes("actor", spec.actor, state)
        own = learned.get("actor") if isinstance(learned, dict) else None
        if jax.tree.map(_kind, own) != jax.tree.map(_kind, actor):
            raise _Broken("policy_params: expected a dict whose 'actor' is a tree as actor(state)")


def _tried(what: str, function: Callable) -> PyTree:
    """What a stranger's function gives."""
    try:
        return function()
    except Exception as error:
        raise _Broken(
            f"{what} fails on gymnax's pendulum with {type(error).__name__}: {one_line(error)}"
        ) from error


def _shapes(what: str, function: Callable, *arguments: PyTree) -> PyTree:
    return _tried(what, lambda: jax.eval_shape(function, *arguments))


def _kind(x: PyTree) -> str:
    """Type and shape of a leaf."""
    if hasattr(x, "shape") and hasattr(x, "dtype"):
        return f"{x.dtype}{list(x.shape)}"
    return f"a {type(x).__name__}"
