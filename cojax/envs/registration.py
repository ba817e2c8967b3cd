"""Making environments by name, here and through gymnax."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import gymnax

from cojax import errors
from cojax.envs.environment import ConverseEnv
from cojax.envs.params import EnvParams, env_params
from cojax.families import FAMILIES

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
            errors.one_of("make", name, registered())
        for option in options:
            errors.one_of(f"make({name!r})", option, ENV_OPTIONS)
        params = load_fixture(name).make_params(**options)
    return ConverseEnv(params), params


def _make_family(family: str, options: dict[str, Any]) -> EnvParams:
    geometry_type = FAMILIES[family]
    build_options = set(geometry_type.arguments())
    for option in options:
        errors.one_of(f"make({family + '-v0'!r})", option, [*build_options, *ENV_OPTIONS])
    system = geometry_type.build(**{k: v for k, v in options.items() if k in build_options})
    rest = {k: v for k, v in options.items() if k in ENV_OPTIONS}
    law = rest.pop("initial_state", None)
    if law is None:
        law = system.geometry.initial_law(system.gamma.dtype)
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
