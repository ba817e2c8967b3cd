"""Pytrees of two classes never share a program."""

from __future__ import annotations

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import struct

import cojax
from cojax import action_limits, initial, noise_laws
from cojax.distinct import Distinct, of_another
from cojax.families import FAMILIES


def classes(num, base):
    """As many dataclasses of one leaf, each with its number as its answer."""

    def made(i):
        body = {"__annotations__": {"x": "jax.Array"}, "answer": lambda self: 0.0 * self.x + i}
        return struct.dataclass(type(f"Class{i}", base, body))

    return [made(i) for i in range(num)]


def wrong_answers(kinds):
    """How many classes get the answer of another."""

    @jax.jit
    def answer(value):
        return value.answer()

    found = [float(answer(kind(x=jnp.ones(())))) for kind in kinds]
    return sum(x != i for i, x in enumerate(found))


def test_compiled_functions_answer_for_the_class_they_are_given():
    """Without the base some of 300 do not: the fault that it is there for."""
    assert wrong_answers(classes(300, (Distinct,))) == 0
    assert wrong_answers(classes(300, ())) > 0


def test_structures_of_like_classes_differ():
    z = jnp.zeros(2)
    alike = [
        [initial.Uniform(low=z, high=z), initial.Normal(mean=z, std=z)],
        [noise_laws.law(word) for word in noise_laws.LAWS],
        [action_limits.Box(bound=z), action_limits.Ball(bound=z)],
        [kind() for kind in FAMILIES.values()],
    ]
    for values in alike:
        for one, other in itertools.combinations(values, 2):
            assert jax.tree.structure(one) != jax.tree.structure(other)


def test_the_name_is_no_knob_and_no_leaf():
    arm = cojax.families.ConverseArm()
    assert "type_name" not in arm.fields()
    assert "type_name" not in repr(arm)
    assert arm.type_name == "cojax.families.arm.ConverseArm"
    assert "type_name" not in of_another(arm)
    stated = cojax.load_fixture("arm-n2-p0.80-s7").content()
    assert set(stated["initial_state"]) == {"law", "low", "high"}


def test_it_lives_through_jit_and_stacking():
    params = cojax.load_fixture("arm-n2-p0.80-s7").make_params()
    back = jax.jit(lambda tree: tree)(params)
    assert back.system.geometry.type_name == params.system.geometry.type_name
    batch = cojax.stack([params, params])
    assert np.shape(batch.system.gamma) == (2,)
    assert type(batch.system.geometry) is type(params.system.geometry)


@pytest.mark.parametrize("name", ["planar-aerial", "kinematic-arm-n2", "quartic-arm-n2"])
def test_systems_of_their_own_class_say_so(name):
    system = cojax.load_fixture(name).system()
    assert system.type_name == f"{type(system).__module__}.{type(system).__qualname__}"
