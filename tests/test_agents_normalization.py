"""Running statistics: beside the whole, and where float32 stops counting."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from cojax.agents.normalization import Moments, PopArt, RewardScale


def test_moments_merge_like_the_whole():
    rng = np.random.default_rng(1)
    x = rng.normal(3.0, 2.0, size=(500, 4)).astype(np.float32)
    moments = Moments(jnp.zeros(4), jnp.zeros(4), jnp.zeros(()))
    for part in np.split(x, [10, 200, 201]):
        moments = moments.merge(jnp.asarray(part))
    np.testing.assert_allclose(moments.mean, x.mean(0), rtol=1e-5)
    np.testing.assert_allclose(moments.var, x.var(0), rtol=1e-4)


def test_winsorised_merge_is_bounded_and_survives_nan():
    moments = Moments.create((1,)).merge(jnp.linspace(-1.0, 1.0, 100)[:, None])
    wild = jnp.array([[1e6], [jnp.inf], [jnp.nan], [0.0]])
    merged = moments.merge(moments.winsorize(wild, 10.0))
    assert float(merged.std()[0]) < 3.0 * float(moments.std()[0])


def test_reward_accumulator_is_zeroed_after_the_terminal_reward():
    reward = jnp.array([[1.0], [1.0], [10.0], [1.0]])
    done = jnp.array([[False], [False], [True], [False]])
    scale = RewardScale.create(1).merge(reward, done, 0.5)
    seen = np.array([1.0, 1.5, 10.75, 1.0])  # the terminal 10 counts, then nothing leaks
    np.testing.assert_allclose(scale.moments.mean, np.append(seen, 0.0).mean(), rtol=1e-6)
    np.testing.assert_allclose(scale.accumulator, [1.0])


def test_target_scale_forgets_and_is_unbiased_at_the_start():
    scale = PopArt.create().merge(jnp.array([1e6, 3e6]), 0.1)
    np.testing.assert_allclose([scale.mean(), scale.std()], [2e6, 1e6], rtol=1e-5)
    for _ in range(400):
        scale = scale.merge(jnp.array([1.0, 3.0]), 0.1)
    np.testing.assert_allclose([scale.mean(), scale.std()], [2.0, 1.0], rtol=1e-3)


@pytest.mark.parametrize(("count", "n"), [(2**24 - 100, 1), (2**31, 64), (2**33, 2048)])
def test_moments_go_on_where_float32_stops_counting(count, n):
    """Against the exact sums: batches that alternate between two values, mean 5, std 2."""
    batches = count // n // 64
    values = jnp.array([3.0, 7.0])

    def merge(i, moments):
        one = values[i % 2] if n == 1 else jnp.tile(values, n // 2)
        return moments.merge(jnp.broadcast_to(one, (n,))[:, None])

    moments = Moments(jnp.full(1, 3.0), jnp.ones(1), jnp.float32(count))
    moments = jax.jit(lambda x: jax.lax.fori_loop(0, batches, merge, x))(moments)
    share = batches * n / (count + batches * n)
    np.testing.assert_allclose(moments.count, count + batches * n, rtol=1e-7)
    np.testing.assert_allclose(moments.mean, 3.0 + 2.0 * share, rtol=1e-5)
    var = (1 - share) + share * 4.0 + share * (1 - share) * 4.0
    np.testing.assert_allclose(moments.var, var, rtol=1e-3)
