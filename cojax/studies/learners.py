"""Learners that a study kept, as they ended."""

from __future__ import annotations

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from cojax import errors
from cojax.agents import inspect
from cojax.agents.checkpoint import load_tree
from cojax.agents.curriculum import problem_of
from cojax.agents.inspect import Agent
from cojax.agents.layout import Layout
from cojax.agents.population import initialize
from cojax.errors import InputError
from cojax.fixtures import load_fixture
from cojax.io import tables
from cojax.named_policies import MEMBERS
from cojax.policy import Policy
from cojax.studies.config import load_study
from cojax.studies.members import Chunk, Group, groups
from cojax.studies.store import LEARNERS
from cojax.studies.systems import StartedFixture


def load_agent(
    folder: str | Path,
    algorithm: str | None = None,
    fixture: str | None = None,
    *,
    setting: int = 0,
    seed: int = 0,
) -> Agent:
    """One learner of a run or a training that kept them (``cojax train --keep-learners``, or
    ``execution: {learners: true}``), with critic and gradient: what ``run.agent()`` is in Python.

    Args:
        folder: results.
        algorithm: its name; None where there is one alone.
        fixture: the system it learned on; None where there is one alone.
        setting: number of its setting.
        seed: number of its seed.

    Raises InputError, one line, for a folder without learners, or one that has no such member.
    """
    folder = Path(folder)
    if not (folder / LEARNERS).is_dir():
        raise InputError(f"{folder}: it kept no learners; train with --keep-learners")
    table = tables.read(folder / MEMBERS)
    fixture = only(folder, "fixture", fixture)
    wanted = {"algorithm": only(folder, "algorithm", algorithm), "fixture": fixture}
    for name, value in (wanted | {"setting": setting, "seed": seed}).items():
        errors.one_of(name, str(value), map(str, table[name].unique()))
        table = table.loc[table[name] == value]
    config = load_study(folder / "config.yaml")
    files = [folder / "fixtures" / f"{name}.yaml" for name in _names(folder, "fixture")]
    everything = groups(config, [StartedFixture.of(load_fixture(file)) for file in files])
    group = next(one for one in everything if one.number == int(table["group"].iloc[0]))
    places = (
        list(group.settings).index(setting),
        [one.id for one in group.systems].index(fixture),
        seed,
    )
    return _read(folder / LEARNERS, group, int(np.ravel_multi_index(places, group.shape)))


def only(folder: str | Path, column: str, value: str | None = None) -> str:
    """What was asked for of a column of the members of a study, or the only one there is; raises
    InputError where there are several.
    """
    if value is not None:
        return value
    found = _names(Path(folder), column)
    if len(found) > 1:
        raise InputError(f"{column}: expected one of {', '.join(found)}")
    return found[0]


def _names(folder: Path, column: str) -> list[str]:
    """What a column of the members holds, in order."""
    return list(dict.fromkeys(tables.read(folder / MEMBERS, [column])[column]))


def _read(folder: Path, group: Group, member: int) -> Agent:
    """One member of a group, out of its chunk."""
    chunks = [Chunk.named(entry.name) for entry in folder.iterdir() if entry.is_dir()]
    found = [c for c in chunks if c.group == group.number and c.start <= member < c.stop]
    if not found:
        raise InputError(f"{folder}: the learner of member {member} is missing")
    population = group.population(np.array([member]), Layout())
    env_params, h, keys = population.arguments(0)
    like = initialize(group.spec, group.env, None, env_params, h, keys)
    like = jax.tree.map(lambda x: jnp.broadcast_to(x, (found[0].size, *x.shape)), like)
    state = load_tree(folder / found[0].name, like)
    state = jax.tree.map(lambda x: x[member - found[0].start], state)
    problem = problem_of(env_params)
    params = group.spec.policy_params(group.env, state, problem, h)
    apply = group.spec.policy_apply(group.env, problem, h)
    return inspect.of_state(group.spec, state, h, Policy(params, apply, group.spec.name))
