"""The conformance test: every family passes, and what is wrong is found."""

import jax
import jax.numpy as jnp
import pytest
from helpers import some_slow

import cojax
from cojax.envs import ConverseEnv
from cojax.evaluation import doctor
from cojax.families import FAMILIES
from cojax.initial import Fixed
from cojax.testing import ConformanceError, Oracle, check_env

SMALL = {"ConverseArm": {"n": 1, "p": 0.8}}


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_conforms(family):
    check_env(*cojax.make(f"{family}-v0", **SMALL.get(family, {})), num_draws=512)


OFTEN = (  # the rest are slow: nearly another of these, or a family of its own above
    "arm-n4-box", "arm-n2-columns", "quartic-arm-n2", "nvdex-k1-delay", "nvdex-k1-jump",
    "point-mass-wind", "arm-n2-average", "arm-n2-ending", "pendulums-n1-list", "arm-n2-game",
    "arm-n2-risk-averse",
)  # fmt: skip


@pytest.mark.parametrize(
    "name", some_slow(doctor.CLASSES.values(), set(doctor.CLASSES.values()) - set(OFTEN))
)
def test_every_class_beyond_the_papers_conforms(name):
    check_env(ConverseEnv(), cojax.load_fixture(name).params, num_draws=512)


class Wrong(ConverseEnv):
    """The time limit ends the world, and the reward is off by a hundredth."""

    def is_terminated(self, state, params):
        return state.time >= params.max_steps_in_episode

    def is_truncated(self, state, params):
        return jnp.zeros((), bool)

    def step_env(self, key, state, action, params):
        obs, state, reward, terminated, info = super().step_env(key, state, action, params)
        return obs, state, 1.01 * reward, terminated, info


@pytest.fixture(scope="module")
def made():
    return cojax.make("DoubleIntegrator-v0")


def test_a_wrong_environment_is_found(made):
    with pytest.raises(ConformanceError) as caught:
        check_env(Wrong(made[1]), made[1], num_draws=512)
    lines = str(caught.value).splitlines()
    assert any("(terminated, truncated) = (True, False)" in line for line in lines)
    assert any(line.startswith("bellman equation: at a* E(-r") for line in lines)
    assert len(lines) <= 4


def test_a_wrong_oracle_is_found(made):
    env, params = made
    system = params.system
    wrong = Oracle(
        action=lambda s: 0.5 * cojax.oracle.action(system, s),
        value=lambda s: cojax.oracle.value(system, s),
        advantage=lambda s, a: cojax.oracle.advantage(system, s, a) - 1e-2,
        discount=system.gamma,
    )
    with pytest.raises(ConformanceError, match=r"A\*"):
        check_env(env, params, wrong, num_draws=512)


def test_what_is_no_environment_is_one_line_each(made):
    class Broken:
        def __getattr__(self, name):
            raise RuntimeError(f"no {name}\nand a traceback")

    with pytest.raises(ConformanceError) as caught:
        check_env(Broken(), made[1])
    assert len(str(caught.value).splitlines()) == 1
    with pytest.raises(ValueError, match="expected params with a system"):
        check_env(made[0], jax.tree.map(jnp.zeros_like, {}))


def test_a_start_in_the_origin_without_noise_conforms():
    system = cojax.families.ConverseArm.build(n=2, p=0.6, Sigma=0.0)
    params = cojax.envs.env_params(system, Fixed(jnp.zeros(4)))
    check_env(ConverseEnv(params), params, num_draws=64)
