"""The loop of one trial: the evaluator's streams, what stays after a failure, gradients."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import cojax
from cojax import streams
from cojax.evaluation import evaluate
from cojax.trials import initial_state, relative, scan_trial

T = 12


def arm():
    return cojax.load_fixture("arm-n2-p0.80-s7").make_params()


def gap_of(params, act, num_steps=T, **options):
    """Σ γᵏ A*(s_k, a_k) of the trials of root 3, and the rows (s, acts, alive)."""
    system = params.system

    def observe(total, step):
        weight, gap = total
        gap = gap + weight * system.excess_cost(step.s, step.action - step.optimum.action)
        return (weight * system.gamma, gap), (step.s, step.acts, step.alive)

    def one(stream):
        start = (jnp.ones_like(system.gamma), jnp.zeros_like(system.gamma))
        options.update(observe=observe, total=start)
        (_, gap), rows = scan_trial(act, params, stream, num_steps, **options)
        return gap, rows

    return jax.jit(jax.vmap(one))(streams.stream_keys(3, 4))


def test_a_trial_is_the_evaluators():
    params = arm()
    gap, (s, acts, alive) = gap_of(params, lambda optimum, s, key: 0.0 * optimum.action)
    found = evaluate("zero", params, num_trials=4, root=3, num_steps=T)
    np.testing.assert_allclose(gap, found.trials["suboptimality"][0, 0], rtol=2e-5)
    assert acts.all()
    assert alive.all()
    starts = jax.vmap(lambda k: initial_state(params, k))(streams.stream_keys(3, 4))
    np.testing.assert_array_equal(s[:, 0], starts)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_trial_that_failed_stays_where_it_was(bad):
    params = arm()

    def act(optimum, s, key):
        return jnp.where(jax.random.uniform(key) < 0.3, bad, optimum.action)

    _, (s, acts, alive) = gap_of(params, act)
    assert not alive.all()
    for path, before, after in zip(*map(np.asarray, (s, acts, alive)), strict=True):
        assert (after[1:] <= after[:-1]).all()  # none comes back
        np.testing.assert_array_equal(before, after)  # inside the guard: only actions fail here
        if not after.all():
            last = int(np.argmin(after))
            assert np.isfinite(path).all()
            np.testing.assert_array_equal(
                path[last:], np.broadcast_to(path[last], path[last:].shape)
            )


def test_leaving_the_guard_is_a_failure_after_the_action():
    params = arm()
    near = params.replace(divergence_radius=0.0 * params.divergence_radius + 1e-3)
    _, (_, acts, alive) = gap_of(near, lambda optimum, s, key: optimum.action)
    assert acts[:, 0].all()
    assert not alive.any()
    assert not acts[:, 1:].any()


def test_a_gradient_is_the_same_with_steps_made_again():
    params = arm()

    def loss(scale, remat):
        def act(optimum, s, key):
            return scale * optimum.action

        return jnp.sum(gap_of(params, act, remat=remat)[0])

    kept, again = (jax.grad(loss)(0.5, remat) for remat in (False, True))
    np.testing.assert_allclose(kept, again, rtol=1e-6)
    slope = (loss(0.51, False) - loss(0.49, False)) / 0.02
    np.testing.assert_allclose(kept, slope, rtol=1e-2)


def test_relative_of_nothing():
    with np.errstate(all="raise"):
        found = relative(np.array([0.0, 1.0, 2.0]), np.array([0.0, 0.0, 4.0]))
    np.testing.assert_array_equal(found, [0.0, np.inf, 0.5])
    np.testing.assert_array_equal(relative(jnp.array([0.0, 1.0]), jnp.zeros(2)), [0.0, np.inf])


def test_an_action_of_another_shape_is_not_broadcast():
    params = arm()
    with pytest.raises(AssertionError, match="shape"):
        gap_of(params, lambda optimum, s, key: optimum.action[:1])
