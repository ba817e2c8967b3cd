from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from cojax import initial
from cojax.families import ConverseArm, NVDEx


def draws(law, num=4000):
    return np.asarray(jax.vmap(law.sample)(jax.random.split(jax.random.key(1), num)))


def test_arm_law():
    s = draws(ConverseArm(n=3).initial_law(jnp.float32))
    assert s.shape == (4000, 6)
    np.testing.assert_allclose(abs(s).max(axis=0), np.tile([2.8, 1.2], 3), rtol=0.01)
    np.testing.assert_allclose(s.std(axis=0), np.tile([2.8, 1.2], 3) / 3**0.5, rtol=0.05)


def test_ring_law():
    s = draws(NVDEx(K=2, r_v=2, r_omega=1).initial_law(jnp.float32)).reshape(4000, 2, 6)
    radius = np.hypot(s[..., 0], s[..., 1])
    assert radius.min() >= 0.12 * 0.6 * (1 - 1e-6)
    assert radius.max() <= 0.12 * (1 + 1e-6)
    np.testing.assert_allclose(s[..., 2].std(), 0.06, rtol=0.05)
    np.testing.assert_allclose(s[..., [3, 5]].std(), 0.05, rtol=0.05)
    assert (s[..., 4] == 0.0).all()
    assert abs(np.corrcoef(s[:, 0, 0], s[:, 1, 0])[0, 1]) < 0.06


def test_fixed_listed_and_normal():
    state = jnp.array([1.0, 2.0])
    assert (draws(initial.Fixed(state), 5) == state).all()
    listed = draws(initial.Listed(jnp.stack([state, -state])), 200)
    assert set(map(tuple, listed)) == {(1.0, 2.0), (-1.0, -2.0)}
    normal = draws(initial.Normal(mean=state, std=jnp.array([0.5, 0.0])))
    np.testing.assert_allclose(normal.mean(axis=0), state, atol=0.03)
    np.testing.assert_allclose(normal.std(axis=0), [0.5, 0.0], atol=0.03)
