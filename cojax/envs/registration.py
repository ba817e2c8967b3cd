"""Making environments by name, here and through gymnax."""

from __future__ import annotations

import dataclasses
import inspect
from functools import partial
from pathlib import Path
from typing import Any

import gymnax
import jax
import jax.numpy as jnp
import numpy as np

from cojax import inputs, linalg
from cojax.envs.environment import TERMINAL_VALUES, ConverseEnv, EnvParams
from cojax.families import FAMILIES
from cojax.initial import InitialLaw
from cojax.system import System

MAX_HORIZON = 2**31 - 1
ENV_OPTIONS = (
    "initial_state",
    "max_steps_in_episode",
    "action_limit",
    "terminal_value",
    "divergence_radius",
)


def env_ids() -> dict[str, str]:
    """Names of environments, and the family of each; registered families are among them."""
    return {f"{family}-v0": family for family in FAMILIES}


def env_params(
    system: System,
    initial_state: InitialLaw,
    *,
    max_steps_in_episode: int = 512,
    action_limit: Any = 2.0,
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
            first steps under π* from draws of the initial law, and not enforced).
        terminal_value: "none" (the paper's time limit) or "optimal": see :class:`ConverseEnv`.
        divergence_radius: of the guard, in the norm sqrt(V*(s) - b); by default 10⁴ times the
            root mean square of that norm over the initial law.

    Raises ValueError, one line, for anything unusable.
    """
    dtype = system.gamma.dtype
    horizon = inputs.whole("max_steps_in_episode", max_steps_in_episode, 1)
    if horizon > MAX_HORIZON:
        raise inputs.InputError(
            f"max_steps_in_episode: expected at most {MAX_HORIZON}, what a counter of steps holds, "
            f"got {horizon}"
        )
    inputs.one_of("terminal_value", terminal_value, TERMINAL_VALUES)
    rms = largest = 1.0
    if action_limit is None or divergence_radius is None:
        rms, largest = jax.device_get(scales(_padded(system), initial_state))
    if action_limit is None:
        limit = np.full(system.action_dim, 4.0 * max(float(largest), 1e-6))
    else:
        limit = inputs.vector("action_limit", action_limit, system.action_dim)
        if (limit <= 0.0).any():
            raise inputs.InputError(f"action_limit: expected numbers > 0, got {limit.min():g}")
    if divergence_radius is None:
        divergence_radius = 1e4 * float(rms)
    divergence_radius = inputs.number("divergence_radius", divergence_radius, 0.0, low_open=True)
    return EnvParams(
        max_steps_in_episode=linalg.to_device(horizon, np.int32),
        system=system,
        initial_state=initial_state,
        action_limit=linalg.to_device(limit, dtype),
        divergence_radius=linalg.to_device(divergence_radius, dtype),
        clip_actions=action_limit is not None,
        terminal_value=terminal_value,  # pyright: ignore[reportArgumentType]
    )


def _padded(system: System) -> System:
    """The same system with its Chebyshev series padded, so that few lengths are compiled for."""
    root = getattr(system, "inverse_root", None)
    if not isinstance(root, linalg.ChebyshevRoot):
        return system
    length = root.coefficients.shape[0]
    missing = max(16, 1 << (length - 1).bit_length()) - length
    root = root.replace(  # pyright: ignore
        coefficients=np.pad(np.asarray(root.coefficients), (0, missing))
    )
    return dataclasses.replace(system, inverse_root=root)  # pyright: ignore


@jax.jit
def scales(system: System, law: InitialLaw) -> tuple[jax.Array, jax.Array]:
    """Over 1,024 fixed draws of s_0: rms of sqrt(V* - b), and the largest |a*_i| in them and in 16
    of them over the next 64 steps under π*: where s_0 is fixed, a* can be 0 there.
    """
    keys = jax.random.split(jax.random.key(0, impl="threefry2x32"), 1024)
    s = jax.vmap(law.sample)(keys)
    excess = jax.vmap(system.value)(s) - system.offset
    actions = jax.vmap(lambda x: system.optimum(x).action)(s)

    def follow(x, key):
        optimum = jax.vmap(system.optimum)(x)
        noise = jax.vmap(system.sample_noise)(x, jax.random.split(key, x.shape[0]))
        return optimum.next_mean + noise, jnp.abs(optimum.action).max()

    _, largest = jax.lax.scan(follow, s[:16], keys[:64])
    largest = jnp.maximum(jnp.abs(actions).max(), largest.max())
    floor = jnp.maximum(system.offset, jnp.finfo(excess.dtype).tiny)
    return jnp.sqrt(jnp.maximum(jnp.mean(excess), floor)), largest


def make(name: str, **options: Any) -> tuple[ConverseEnv, EnvParams]:
    """Make an environment: ``env, params = cojax.make("ConverseArm-v0", n=4, p=0.8, seed=7)``.

    Args:
        name: "ConverseArm-v0", "NVDEx-v0", or the name or path of a fixture.
        options: the arguments of the family's ``build`` (not for a fixture) and those of
            :func:`env_params`.

    Raises ValueError, one line, for an unknown name or option, suggesting the nearest.
    """
    if name in env_ids():
        params = _make_family(env_ids()[name], options)
    else:
        from cojax.fixtures import load_fixture  # fixtures import envs: not while loading

        if not Path(name).exists():
            inputs.one_of("make", name, registered())
        for option in options:
            inputs.one_of(f"make({name!r})", option, ENV_OPTIONS)
        params = load_fixture(name).make_params(**options)
    return ConverseEnv(params), params


def _make_family(family: str, options: dict[str, Any]) -> EnvParams:
    geometry_type = FAMILIES[family]
    build_options = set(inspect.signature(geometry_type.build).parameters)
    for option in options:
        inputs.one_of(f"make({family + '-v0'!r})", option, [*build_options, *ENV_OPTIONS])
    system = geometry_type.build(**{k: v for k, v in options.items() if k in build_options})
    rest = {k: v for k, v in options.items() if k in ENV_OPTIONS}
    law = rest.pop("initial_state", None)
    if law is None:
        law = system.geometry.initial_law(system.gamma.dtype)  # pyright: ignore
    rest.setdefault("max_steps_in_episode", geometry_type.horizon)
    rest.setdefault("action_limit", geometry_type.action_limit)
    return env_params(system, law, **rest)


def registered() -> list[str]:
    """Every name that :func:`make` knows: environments, then shipped fixtures."""
    from cojax.fixtures import shipped

    return [*env_ids(), *shipped()]


def register_with_gymnax() -> None:
    """Make ``gymnax.make("ConverseArm-v0", n=4, …)`` work; done when ``cojax.envs`` is imported."""
    for env_id in env_ids():
        if env_id not in gymnax.registered_envs:
            gymnax.register(env_id, partial(_factory, env_id))


def _factory(env_id: str, **options: Any) -> ConverseEnv:
    return make(env_id, **options)[0]
