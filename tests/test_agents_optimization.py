"""Packed parameters and permutations."""

from __future__ import annotations

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from cojax.agents import optimization


@pytest.mark.parametrize("width", [4, optimization.PACKED])
def test_parameters_are_packed_where_they_are_few(width):
    """A step is the same either way."""
    params = {"a": jnp.linspace(0.0, 1.0, width), "b": jnp.float32(2.0)}
    packed, unpack = optimization.pack(params)
    assert isinstance(packed, dict) == (width == optimization.PACKED)
    opt, grads = optimization.optimizer(0.5, 1e-5), jax.tree.map(jnp.cos, params)
    ours = opt, packed, optimization.pack(grads)[0], opt.init(packed)
    step = optimization.descend(*ours, rate=0.1)
    known = optimization.descend(opt, params, grads, opt.init(params), rate=0.1)
    chex.assert_trees_all_close(unpack(step[0]), known[0], rtol=1e-6)


@pytest.mark.parametrize("n", [1, 2, 7, 1000, 4096])
def test_permutation_is_one(n):
    order = optimization.permutation(jax.random.key(n), n)
    assert sorted(np.asarray(order).tolist()) == list(range(n))


def test_permutation_is_uniform():
    keys = jax.random.split(jax.random.key(0), 20_000)
    orders = jax.vmap(lambda k: optimization.permutation(k, 6))(keys)
    counts = np.stack([np.bincount(orders[:, i], minlength=6) for i in range(6)])
    assert np.all(np.abs(counts - 20_000 / 6) < 5 * np.sqrt(20_000 / 6))


def test_parts_may_have_rates_of_their_own():
    params = {
        "actor": {"w": jnp.ones((2, 3))},
        "critic": {"w": jnp.ones(4)},
        "log_std": jnp.ones(2),
    }
    packed, unpack = optimization.pack(params)
    rate = optimization.of_each(params, {"critic": jnp.float32(0.5)}, jnp.float32(0.1))
    opt = optimization.optimizer(1e9, 1e-8)
    moved, _ = optimization.descend(
        opt, packed, packed, opt.init(packed), rate=rate
    )  # Adam's first step: 1
    moved = unpack(moved)
    np.testing.assert_allclose(moved["critic"]["w"], 0.5, rtol=1e-5)
    np.testing.assert_allclose(moved["actor"]["w"], 0.9, rtol=1e-5)
    np.testing.assert_allclose(moved["log_std"], 0.9, rtol=1e-5)
