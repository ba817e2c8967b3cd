"""Names and units of states and actions: one for each entry, of every family and size."""

from __future__ import annotations

import pytest

import cojax
from cojax import families, labels

SIZES = {
    "ConverseArm": {"n": 3}, "Manipulator": {"n": 3}, "NVDEx": {"K": 2, "r_v": 2, "r_omega": 3},
    "KinematicArm": {"n": 4},
}  # fmt: skip


@pytest.mark.parametrize("name", families.BUILT_IN)
def test_one_for_each_entry(name):
    geometry = families.FAMILIES[name](**SIZES.get(name, {}))
    states, actions = geometry.labels()
    assert (len(states), len(actions)) == (geometry.state_dim, geometry.action_dim)
    assert len({*states, *actions}) == len(states) + len(actions)
    assert all(word.endswith("]") for word in (*states, *actions))
    assert name in labels.KNOWN


def test_derivatives_of_a_chain():
    _, actions = families.NVDEx(r_v=1, r_omega=3).labels()
    assert actions == ["d/dt v [m/s²]", "d^3/dt^3 ω [rad/s^4]"]


def test_an_environment_tells_them():
    env, params = cojax.make("arm-n2-p0.80-s7")
    assert env.labels(params)[0] == ["θ_1 [rad]", "ω_1 [rad/step]", "θ_2 [rad]", "ω_2 [rad/step]"]
    assert labels.of("Another", {}, 2, 1) == (["s_1", "s_2"], ["a_1"])
