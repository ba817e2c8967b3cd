"""The params of an environment: one problem, and what follows from its system and initial law."""

from __future__ import annotations

# gymnax types its fields as int; ours are arrays.
# pyright: reportIncompatibleVariableOverride=false, reportGeneralTypeIssues=false
import contextlib
import dataclasses
from collections.abc import Iterable
from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from gymnax.environments import environment
from jax.core import Tracer
from numpy.typing import ArrayLike, DTypeLike

from cojax import errors, inputs, linalg, precision, streams
from cojax.consistency import contradiction
from cojax.coordinates import innermost, rewrapped
from cojax.errors import InputError
from cojax.initial import InitialLaw
from cojax.io.described import About, described, number
from cojax.quadratic import QuadraticGaussian
from cojax.system import System
from cojax.types import Array, Float, Int, Options

TERMINAL_VALUES = ("none", "optimal")
MAX_HORIZON = 2**31 - 1  # what a counter of steps holds
RADIUS = 1e4  # of the guard, in root mean squares of the initial law
USUAL_LIMIT = 2.0  # the paper's
BOX = 4.0  # of a system without a bound, in largest optimal actions
LIMITING = ("system", "initial_state", "action_limit", "divergence_radius")  # of observations
SAME = 1e-5  # relative: how far two computations of one float32 figure are apart
EXPECTED = {
    "max_steps_in_episode": (
        "iu",
        "whole numbers in [1, 2³¹ - 1]",
        lambda x: (x >= 1) & (x <= MAX_HORIZON),
    ),
    "divergence_radius": ("iuf", "finite numbers >= 0", lambda x: x >= 0),
    "action_limit": ("iuf", "finite numbers > 0", lambda x: x > 0),
}


def _about(params: EnvParams) -> About:
    """What a problem shows of itself."""
    system, lead = params.system, np.shape(params.max_steps_in_episode)
    facts = {
        "states": system.state_dim,
        "actions": system.action_dim,
        "gamma": number(system.gamma),
        "horizon": number(params.max_steps_in_episode),
        "action limit": number(params.action_limit) if params.clip_actions else "none",
        "dtype": getattr(system.gamma, "dtype", ""),
    }
    batch = f", {lead[0]} side by side" if lead else ""
    return f"EnvParams of {_name(system)}{batch}", facts


def _name(system: System) -> str:
    """The family of a system, or its class."""
    geometry = getattr(system, "geometry", None)
    return getattr(geometry, "family", type(system).__name__)


@described(_about)
@inputs.guarded
@struct.dataclass(kw_only=True)
class EnvParams(environment.EnvParams):
    """One problem: a system, where it starts, and how an episode ends. Every field but
    ``clip_actions`` and ``terminal_value`` is a leaf, and may differ between the members of a
    stacked batch.

    ``replace`` (and ``dataclasses.replace``) checks what it is given as :func:`env_params` does,
    and what was left to follow from system and initial law follows the new ones: the guard's
    default radius, and the box of a system without a bound. ``action_limit=None`` takes a bound
    away, any other adds one. Inside ``jit``, but for ``observation_limit``, and by edits of the
    pytree (``jax.tree_util``), fields are taken as they are.

    Attributes:
        max_steps_in_episode: () int32, the horizon T.
        system: f, G, c, the noise and their optimum.
        initial_state: the law of s_0.
        action_limit: (m,), the box [-limit, limit], in the units of the actions.
        divergence_radius: (); sqrt(V*(s) - b) beyond it ends the episode.
        observation_limit: (d,), how far an observation goes; follows from the four above.
        clip_actions: whether actions are clipped to the box; ±inf and NaN are not, and fail.
        terminal_value: "none", or "optimal" for a terminal cost V*: see
            :class:`cojax.envs.ConverseEnv`.
    """

    max_steps_in_episode: Int[Array, "*batch"]
    system: System
    initial_state: InitialLaw
    action_limit: Float[Array, "*batch m"]
    divergence_radius: Float[Array, "*batch"]
    observation_limit: Float[Array, "*batch d"]
    clip_actions: bool = struct.field(pytree_node=False, default=True)
    terminal_value: Literal["none", "optimal"] = struct.field(pytree_node=False, default="none")
    origin: dataclasses.InitVar[object] = dataclasses.field(default=None, kw_only=True)

    def __post_init__(self, origin: object) -> None:
        """Check what is replaced, and derive what follows; raises InputError."""
        if isinstance(origin, EnvParams):
            with _scope(self.system):
                following = _following(self, origin, inputs.replaced(self, origin))
            for name, value in following.items():
                object.__setattr__(self, name, value)

    @property
    def discount(self) -> Float[Array, "*batch"]:
        """The system's γ, which the problem is posed with."""
        return self.system.gamma

    @property
    def budget(self) -> Float[Array, "*batch"]:
        """D = E Σ γᵏ d(s_k, a*_k) of a system with a budget: what ``info["cost"]`` may add up to,
        discounted; estimated where it is not known. Raises InputError for other systems.
        """
        system, law = self.system, self.initial_state
        if "cost" not in system.measures:
            raise InputError("budget: expected a system with a budget (cojax.budgets)")

        def of_one(system, law):
            return system.measured_means(*law.moments())[system.measures.index("cost")]

        for _ in np.shape(system.gamma):
            of_one = jax.vmap(of_one)
        with _scope(system):
            return of_one(system, law)

    def clip(self, action: Float[Array, "*batch m"]) -> Float[Array, "*batch m"]:
        """The action that the system receives, (..., m): the nearest in the box where there is one,
        the nearest feasible one of a system whose own limit V* knows.

        What is not finite stays as it is, so that it ends in a failure with a box and without.
        """
        if not self.clip_actions:
            return action
        if self.system.constrained:
            inside = jnp.vectorize(self.system.feasible, signature="(m)->(m)")(action)
            inside = jnp.where(jnp.isfinite(action).all(axis=-1, keepdims=True), inside, action)
        else:
            limit = jnp.broadcast_to(self.action_limit, action.shape)
            inside = jnp.clip(action, -limit, limit)
        return jnp.where(jnp.isfinite(action), inside, action)


def env_params(
    system: System,
    initial_state: InitialLaw,
    *,
    max_steps_in_episode: int = 512,
    action_limit: ArrayLike | None = USUAL_LIMIT,
    terminal_value: str = "none",
    divergence_radius: float | None = None,
) -> EnvParams:
    """Params of an environment from a system.

    Args:
        system: a certified system.
        initial_state: the law of s_0.
        max_steps_in_episode: the horizon T, in [1, 2³¹ - 1].
        action_limit: the box [-limit, limit], a number or one for each action; None for no bound
            (the action space is then a box of four times the largest optimal action met on the
            first steps under π* from draws of the initial law, and not enforced). A system that
            knows its limit has the box around that, and no other.
        terminal_value: "none" (the paper's time limit) or "optimal": see
            :class:`cojax.envs.ConverseEnv`.
        divergence_radius: of the guard, in the norm sqrt(V*(s) - b); by default 10⁴ times the
            root mean square of that norm over the initial law, but not below sqrt(b), and 1 for 0.

    Raises ValueError, one line, for anything unusable.
    """
    dtype = system.gamma.dtype
    horizon = inputs.whole("max_steps_in_episode", max_steps_in_episode, 1)
    if horizon > MAX_HORIZON:
        raise InputError(
            f"max_steps_in_episode: expected at most {MAX_HORIZON}, what a counter of steps holds, "
            f"got {horizon}"
        )
    errors.one_of("terminal_value", terminal_value, TERMINAL_VALUES)
    require_sound(system)
    if (own := system.feasible_box()) is not None:
        action_limit = _own_limit(own, action_limit)
    radius, limit = divergence_radius, action_limit
    if limit is not None:
        limit = inputs.vector("action_limit", limit, system.action_dim)
        if (limit <= 0.0).any():
            raise InputError(f"action_limit: expected numbers > 0, got {limit.min():g}")
    if radius is not None:
        radius = inputs.number("divergence_radius", radius, 0.0, low_open=True)
    if limit is None or radius is None:
        measured = _measured(system, initial_state)
        radius = measured["divergence_radius"] if radius is None else radius
        limit = measured["action_limit"] if limit is None else limit
    params = EnvParams(
        max_steps_in_episode=linalg.to_device(horizon, np.int32),
        system=system,
        initial_state=initial_state,
        action_limit=linalg.to_device(limit, dtype),
        divergence_radius=linalg.to_device(radius, dtype),
        observation_limit=linalg.to_device(0.0, dtype),
        clip_actions=action_limit is not None,
        terminal_value=terminal_value,  # pyright: ignore[reportArgumentType]
    )
    return with_observation_limit(params)


def _own_limit(own: np.ndarray, given: ArrayLike | None) -> np.ndarray:
    """The box of a system that knows its limit, where nothing else is given."""
    if isinstance(given, float) and given == USUAL_LIMIT:
        return own
    stated = np.full(own.shape, np.nan) if given is None else np.asarray(given, np.float64)
    if stated.shape not in ((), own.shape) or not np.allclose(stated, own, rtol=SAME, atol=0.0):
        raise InputError(
            f"action_limit: expected the {np.round(own, 6).tolist()} that V* of this system knows, "
            f"got {given}; build the system with another limit"
        )
    return own


def require_sound(system: System) -> None:
    """Raise InputError for a system whose leaves contradict each other."""
    system = innermost(system)[0]
    reason = contradiction(system) if isinstance(system, QuadraticGaussian) else None
    if reason is not None:
        raise InputError(reason)


# --- what is replaced -----------------------------------------------------------------------------


def _following(new: EnvParams, old: EnvParams, names: list[str]) -> Options:
    """Fields of ``new`` as they should be, where ``names`` were exchanged in ``old``."""
    errors.one_of("terminal_value", new.terminal_value, TERMINAL_VALUES)
    if not isinstance(new.clip_actions, bool | np.bool_):
        raise InputError(f"clip_actions: expected True or False, got {new.clip_actions!r}")
    out: Options = {}
    unlimited = new.action_limit is None
    if "action_limit" in names and "clip_actions" not in names:
        out["clip_actions"] = not unlimited
    if any(isinstance(leaf, Tracer) for leaf in jax.tree.leaves((new, old))):
        if unlimited:
            raise InputError("action_limit: expected numbers inside jit, got None")
        return out | _limit_following(new, names)
    moved = not {"system", "initial_state"}.isdisjoint(names)
    if moved:
        _require_one_shape(new)
    lead, dtype = np.shape(new.system.gamma), new.system.gamma.dtype
    shapes = {"max_steps_in_episode": lead, "divergence_radius": lead}
    shapes["action_limit"] = (*lead, new.system.action_dim)
    for name in shapes.keys() & names:
        if name != "action_limit" or not unlimited:
            out[name] = _array(name, getattr(new, name), shapes[name], dtype)
    if moved or unlimited:
        before = _measured(old.system, old.initial_state)
        follow = {n for n in before if n not in names and _same(getattr(old, n), before[n])}
        follow -= {"action_limit"} if old.clip_actions else set()
        follow |= {"action_limit"} if unlimited else set()
        after = _measured(new.system, new.initial_state) if follow else {}
        out |= {name: linalg.to_device(after[name], dtype) for name in follow}
    return out | _limit_following(inputs.swapped(new, **out), [*names, *out])


def _limit_following(params: EnvParams, names: Iterable[str]) -> Options:
    """The observation limit of ``params``, where one of the fields ``names`` has a say in it."""
    if {"observation_limit", *LIMITING}.isdisjoint(names):
        return {}
    return {"observation_limit": with_observation_limit(params).observation_limit}


def _array(name: str, value: ArrayLike, shape: tuple[int, ...], dtype: DTypeLike) -> jax.Array:
    """A field of numbers in its shape: a number stands for all. Raises InputError."""
    x = np.asarray(value)
    kinds, expected, low = EXPECTED[name]
    if x.dtype.kind not in kinds or not (np.isfinite(x) & low(x)).all():
        raise InputError(f"{name}: expected {expected}, got {value}")
    if x.ndim and x.shape != shape:
        raise InputError(f"{name}: expected shape {shape}, got {x.shape}")
    if x.shape == shape and isinstance(value, jax.Array):
        return value
    return linalg.to_device(np.broadcast_to(x, shape), dtype if "f" in kinds else np.int32)


def _require_one_shape(params: EnvParams) -> None:
    """Raise InputError where system, law, horizon and limit are not of one problem or batch."""
    system, law = params.system, params.initial_state
    require_sound(system)
    lead = np.shape(system.gamma)
    if np.shape(params.max_steps_in_episode) != lead:
        raise InputError(
            "system: expected one system for one problem, or as many as the batch has; "
            "make the params of each, then cojax.stack"
        )
    sample = type(law).sample
    for _ in lead:
        sample = jax.vmap(sample, (0, None))
    key = jax.eval_shape(lambda: streams.root_key(0))
    found, expected = jax.eval_shape(sample, law, key).shape, (*lead, system.state_dim)
    if found != expected:
        raise InputError(f"initial_state: expected states of shape {expected}, got {found}")
    limit, expected = np.shape(params.action_limit), (*lead, system.action_dim)
    if params.action_limit is not None and limit not in ((), expected):
        raise InputError(f"action_limit: expected shape {expected}, got {limit}")


def _same(given: ArrayLike, measured: np.ndarray) -> bool:
    """Whether a field is what was measured, and so was not given."""
    given = np.asarray(given, np.float64)
    return given.shape == measured.shape and np.allclose(given, measured, rtol=SAME, atol=0.0)


# --- what is derived ---------------------------------------------------------------------------


def with_observation_limit(params: EnvParams) -> EnvParams:
    """``params``, of one system or a stacked batch, with the limit that their fields give."""
    system, function = params.system, farthest
    lead = np.shape(system.gamma)
    for _ in lead:
        function = jax.vmap(function)
    with _scope(system):
        radius = jnp.broadcast_to(params.divergence_radius, lead)
        limit = jnp.broadcast_to(params.action_limit, (*lead, system.action_dim))
        high = function(_padded(system), params.initial_state, radius, limit)
    if not isinstance(high, Tracer):
        high = linalg.to_device(high, high.dtype)
    return inputs.swapped(params, observation_limit=high)


@jax.jit
def farthest(system: System, law: InitialLaw, radius: jax.Array, limit: jax.Array) -> jax.Array:
    """Row by row the largest observation, shape (d,); finite, and with room for rounding."""
    start = jnp.broadcast_to(law.bound(), (system.state_dim,)).astype(system.gamma.dtype)
    high = 1.0001 * system.reach(radius, start, limit)
    return jnp.minimum(high, 0.25 * jnp.finfo(high.dtype).max)


# --- what is measured -----------------------------------------------------------------------------


def _measured(system: System, law: InitialLaw) -> dict[str, np.ndarray]:
    """The guard's radius and the box of actions where none is given, for one or a stacked batch."""
    function = scales
    for _ in np.shape(system.gamma):
        function = jax.vmap(function)
    with _scope(system):
        rms, largest = jax.device_get(function(_padded(system), law))
    box = BOX * np.maximum(np.asarray(largest, np.float64), 1e-6)
    return {
        "divergence_radius": RADIUS * np.asarray(rms, np.float64),
        "action_limit": np.repeat(box[..., None], system.action_dim, axis=-1),
    }


def _scope(system: System) -> contextlib.AbstractContextManager[None]:
    """Double precision where a system is in double precision."""
    double = system.gamma.dtype == np.float64
    return precision.x64() if double else contextlib.nullcontext()


def _padded(system: System) -> System:
    """The same system with its Chebyshev series padded, so that few lengths are compiled for."""
    base, changes = innermost(system)
    if not isinstance(base, QuadraticGaussian):
        return system
    root = base.inverse_sqrt
    root = root.padded_to(max(16, 1 << (root.length - 1).bit_length()))
    return rewrapped(inputs.swapped(base, inverse_sqrt=root), changes)


@jax.jit
@streams.pinned()
def scales(system: System, law: InitialLaw) -> tuple[jax.Array, jax.Array]:
    """Over 1,024 fixed draws of s_0: rms of sqrt(V* - b), sqrt(b) or 1 where that is less or 0, and
    the largest |a*_i| in them and in 16 of them over the next 64 steps under π*: where s_0 is
    fixed, a* can be 0 there.
    """
    keys = jax.random.split(streams.root_key(0), 1024 + 64)
    s = jax.vmap(law.sample)(keys[:1024])
    excess = jax.vmap(system.value)(s) - system.offset
    actions = jax.vmap(lambda x: system.optimum(x).action)(s)

    def follow(x, key):
        optimum = jax.vmap(system.optimum)(x)
        keys = jax.random.split(key, x.shape[0])
        noise = jax.vmap(system.sample_noise)(x, keys, optimum.action)
        return optimum.next_mean + noise, jnp.abs(optimum.action).max()

    _, largest = jax.lax.scan(follow, s[:16], keys[1024:])
    largest = jnp.maximum(jnp.abs(actions).max(), largest.max())
    square = jnp.maximum(jnp.mean(excess), system.offset)
    return jnp.sqrt(jnp.where(square == 0.0, 1.0, square)), largest
