from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from cojax import streams
from cojax.errors import InputError

GOLDEN_FINGERPRINT = "28183afd132689dc"


def test_golden_fingerprint():
    assert streams.fingerprint() == GOLDEN_FINGERPRINT


def test_keys_depend_on_all_four_coordinates():
    seen = set()
    for root in (0, 1):
        for instance in (0, 1):
            for episode in (0, 1):
                key = streams.episode_key(streams.stream_key(root, instance), episode)
                drawn = [streams.initial_key(key), *(streams.noise_key(key, t) for t in (0, 1))]
                seen |= {tuple(np.asarray(jax.random.key_data(k))) for k in drawn}
    assert len(seen) == 2 * 2 * 2 * 3


def test_prefix_of_instances():
    many, few = streams.stream_keys(5, 8), streams.stream_keys(5, 3)
    assert (jax.random.key_data(many)[:3] == jax.random.key_data(few)).all()
    tail = streams.stream_keys(5, 3, first=5)
    assert (jax.random.key_data(many)[5:] == jax.random.key_data(tail)).all()


def test_draws_of_fewer_rows_are_a_prefix():
    key = streams.stream_key(0, 0)
    long, short = jax.random.normal(key, (9,)), jax.random.normal(key, (4,))
    assert (long[:4] == short).all()


def test_initial_state_and_first_noise_are_uncorrelated():
    keys = jax.vmap(lambda k: streams.episode_key(k, 0))(streams.stream_keys(3, 4000))
    s0 = jax.vmap(lambda k: jax.random.normal(streams.initial_key(k)))(keys)
    w0 = jax.vmap(lambda k: jax.random.normal(streams.noise_key(k, 0)))(keys)
    assert abs(float(jnp.corrcoef(s0, w0)[0, 1])) < 4.0 / 4000**0.5


def test_other_generators_are_refused():
    with pytest.raises(ValueError, match="threefry2x32"):
        streams.stream_key(jax.random.key(0, impl="rbg"), 0)


@pytest.mark.parametrize("root", [-1, 1.5, True, "7"])
def test_unusable_roots(root):
    with pytest.raises(ValueError, match="root: expected a whole number"):
        streams.root_key(root)


def test_a_root_beyond_32_bits_is_refused_and_no_other_root():
    with pytest.raises(InputError, match=r"number < 2\*\*32, got 4294967297"):
        streams.root_key(2**32 + 1)
