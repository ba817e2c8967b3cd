"""dm_env: the library's own tests of environments, on ours; seeds, episodes and errors."""

import numpy as np
import pytest

import cojax

dm_env = pytest.importorskip("dm_env")

from absl.testing import absltest  # noqa: E402
from dm_env import test_utils  # noqa: E402

from cojax.adapters.dm_env import Environment  # noqa: E402

SHORT = 8
OPTIONS = {"max_steps_in_episode": SHORT, "action_limit": 2.0}


class Conformance(test_utils.EnvironmentTestMixin):
    """Full actions to one side and the other, over the ends of three episodes."""

    name, options = "DoubleIntegrator-v0", OPTIONS

    def make_object_under_test(self):
        return Environment(self.name, random_state=0, **self.options)

    def make_action_sequence(self):
        spec = self.environment.action_spec()
        for k in range(3 * SHORT):
            yield np.array((spec.minimum, spec.maximum)[k % 2])


class TestTimeLimit(Conformance, absltest.TestCase):
    pass


class TestTerminalValue(Conformance, absltest.TestCase):
    options = OPTIONS | {"terminal_value": "optimal"}


class TestGuard(Conformance, absltest.TestCase):
    options = OPTIONS | {"divergence_radius": 10.0}


class TestArm(Conformance, absltest.TestCase):
    name, options = "ConverseArm-v0", {"n": 1, "max_steps_in_episode": SHORT}


def test_episodes_seeds_and_errors():
    made = cojax.make("DoubleIntegrator-v0", **OPTIONS)
    env = Environment(made, random_state=3)
    env.reset()
    with pytest.raises(ValueError, match="numbers"):
        env.step(np.array(["x"]))
    first = Environment(made, random_state=3).step(np.zeros(1))  # a step begins an episode
    assert first.first()
    assert first.reward is None
    again = Environment(made, random_state=3).reset()
    np.testing.assert_array_equal(first.observation, again.observation)
    env.reset()
    action = env.action_spec().generate_value()
    steps = [env.step(action) for _ in range(SHORT)]
    assert [step.step_type for step in steps] == [dm_env.StepType.MID] * (SHORT - 1) + [
        dm_env.StepType.LAST
    ]
    assert steps[-1].discount == 1.0  # the time limit
    for step in steps:
        env.observation_spec().validate(step.observation)
    assert env.step(action).first()
    for seed in (-1, 1.5, "0", True):
        with pytest.raises(ValueError, match=r"^random_state: expected a whole number >= 0"):
            Environment(made, random_state=seed)


def test_what_is_handed_out_is_the_users_own():
    one, twin = (Environment("DoubleIntegrator-v0", random_state=0, **OPTIONS) for _ in range(2))
    for _ in range(SHORT + 2):
        given, expected = one.step(np.ones(1)), twin.step(np.ones(1))
        np.testing.assert_array_equal(given.observation, expected.observation)
        assert given.reward == expected.reward
        given.observation[:] = 9.0
