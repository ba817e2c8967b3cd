"""Environments by name: those of families, and of fixtures."""

from __future__ import annotations

import inspect
from pathlib import Path

from gymnax.environments.environment import Environment

from cojax import errors
from cojax.envs import EnvParams, env_params, environment_of
from cojax.families import DRIFTS, FAMILIES
from cojax.fixtures import load_fixture, shipped
from cojax.free_drift import DriftFamily
from cojax.quadratic import Geometry
from cojax.types import Option, Options

ENV_OPTIONS = {*inspect.signature(env_params).parameters} - {"system"}


def env_ids() -> dict[str, str]:
    """Names of environments, and the family of each; registered families are among them."""
    return {f"{family}-v0": family for family in (*FAMILIES, *DRIFTS)}


def registered() -> list[str]:
    """Every name that :func:`make` knows: environments, then shipped fixtures."""
    return [*env_ids(), *shipped()]


def make(name: str, **options: Option) -> tuple[Environment, EnvParams]:
    """Make an environment: ``env, params = cojax.make("ConverseArm-v0", n=4, p=0.8, seed=7)``; one
    that takes indices, :class:`cojax.envs.Discrete`, where the actions of the system are a list.

    Args:
        name: "ConverseArm-v0", "NVDEx-v0", or the name or path of a fixture.
        options: the arguments of the family's ``build`` (not for a fixture) and those of
            :func:`cojax.envs.env_params`.

    Raises ValueError, one line, for an unknown name or option, suggesting the nearest.
    """
    family = env_ids().get(name)
    if family is None and not Path(name).exists():
        errors.one_of("make", name, registered())
    known = [] if family is None else _kind(family).arguments()
    for option in options:
        errors.one_of(f"make({name!r})", option, {*known, *ENV_OPTIONS})
    if family is None:
        params = load_fixture(name).make_params(**options)
    else:
        params = _of_family(family, options)
    return environment_of(params), params


def _of_family(family: str, options: Options) -> EnvParams:
    kind = _kind(family)
    rest = {k: options.pop(k) for k in ENV_OPTIONS if k in options}
    system = kind.build(**options)
    law = rest.pop("initial_state", None)
    if law is None:
        law = system.geometry.initial_law(system.gamma.dtype)
    usual: Options = {"max_steps_in_episode": kind.horizon}
    if not system.constrained:
        usual["action_limit"] = kind.action_limit
    return env_params(system, law, **usual | rest)


def _kind(family: str) -> type[Geometry] | type[DriftFamily]:
    return FAMILIES[family] if family in FAMILIES else DRIFTS[family]
