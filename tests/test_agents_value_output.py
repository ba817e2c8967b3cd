"""What a critic's output says of a value, and what errors of it count."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cojax.agents import value_output
from cojax.agents.hyperparameters import OffPolicyHyperparameters
from cojax.agents.off_policy_method import Networks, critic_loss
from cojax.agents.replay import Sample


@given(st.floats(-1e6, 1e6), st.floats(0.01, 100.0))
def test_an_output_gives_the_value_and_its_error_is_even(q, kappa):
    """The root of the weighted error has the slope 1/κ in the output, wherever Q is."""
    out = np.arcsinh(kappa * q)
    found = float(value_output.value(jnp.float32(out), jnp.float32(kappa)))
    assert found == pytest.approx(q, rel=1e-4, abs=1e-4 / kappa)

    def root(o, y):
        x = value_output.value(o, kappa)
        return jnp.sqrt(value_output.error_weight(x, kappa)) * (x - y)

    slope = jax.grad(root)(jnp.float32(out), jnp.float32(found))
    assert float(slope) == pytest.approx(1.0 / kappa, rel=1e-4)


def test_at_zero_an_output_is_the_value_and_all_errors_count_alike():
    out = jnp.array([-1e5, 0.0, 3.0])
    np.testing.assert_array_equal(value_output.value(out, 0.0), out)
    np.testing.assert_array_equal(value_output.error_weight(out, 0.0), 1.0)
    slopes = jax.vmap(jax.grad(lambda o: value_output.value(o, jnp.float32(0.0))))(out)
    np.testing.assert_array_equal(slopes, 1.0)
    big = value_output.value(jnp.array([1e9, -1e9]), 1.0)
    assert np.isfinite(big).all()


def test_the_best_constant_for_noisy_targets_is_their_mean():
    """Not their median, nor the mean of transformed targets: the weight does not see them."""
    y = jnp.array([-1.0, -1.0, -1.0, -97.0])
    rows = Sample(jnp.zeros((4, 1)), jnp.zeros((4, 1)), y, y, jnp.zeros((4, 1)))

    class Constant(Networks):
        def q_values(self, critics, obs, u, num=None):
            return value_output.value(critics * jnp.ones((1, 4)), self.kappa)

    nets = Constant(None, None, None, None, 10.0)
    out = jnp.float32(-4.0)
    step = jax.jit(lambda o: o - 2.0 * jax.grad(lambda o: critic_loss(o, y, rows, nets)[0])(o))
    for _ in range(3000):
        out = step(out)
    assert float(value_output.value(out, 10.0)) == pytest.approx(-25.0, rel=1e-3)


def test_learners_think_in_relative_errors():
    assert float(OffPolicyHyperparameters().relative_error) > 0.0
