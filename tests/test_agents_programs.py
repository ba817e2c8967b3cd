"""Networks as programs: policies in files that need no code of whoever trained them."""

from __future__ import annotations

import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn

import cojax
from cojax.agents import load_policy, programs, save_policy
from cojax.errors import InputError

MODULE = """
from flax import linen as nn

class Gated(nn.Module):
    out: int

    @nn.compact
    def __call__(self, x):
        y = nn.LayerNorm()(nn.silu(nn.Dense(8)(x)))
        return nn.Dense(self.out)(y * nn.sigmoid(nn.Dense(8)(x)))
"""
READ = """
import sys
import jax, numpy as np, cojax
from cojax.agents import load_policy
policy = load_policy(sys.argv[1])
one = policy.member(fixture=1, seed=0)
obs = np.load(sys.argv[2])
actions = jax.jit(jax.vmap(one, (0, None)))(obs, jax.random.key(0))
names = ["arm-n4-p0.80-s7", "arm-n4-p0.60-s7"]
result = cojax.evaluate([policy], names, num_trials=3, num_steps=20)
np.savez(sys.argv[3], actions=actions, gaps=result.trials["suboptimality"])
assert "strangers" not in sys.modules
"""


@pytest.fixture(scope="module")
def strangers(tmp_path_factory):
    """A module of a user, that other processes do not have."""
    folder = tmp_path_factory.mktemp("code")
    (folder / "strangers.py").write_text(MODULE, "utf-8")
    sys.path.insert(0, str(folder))
    import strangers

    yield strangers
    sys.path.remove(str(folder))
    del sys.modules["strangers"]


@pytest.fixture(scope="module")
def trained(strangers):
    """Policies over two systems and two seeds."""
    names = ["arm-n4-p0.80-s7", "arm-n4-p0.60-s7"]
    batch = cojax.stack([cojax.load_fixture(name).params for name in names])
    h = {"num_envs": 4, "num_steps": 8, "num_minibatches": 2, "update_epochs": 1}
    h |= {"actor": strangers.Gated(4), "critic": strangers.Gated(1)}
    key = jax.random.key(0, impl="threefry2x32")
    run = cojax.train("ppo", batch, key, hyperparameters=h, num_seeds=2, total_timesteps=64)
    return run.policy


def test_a_policy_is_read_without_the_code_of_its_network(trained, tmp_path):
    """In another process: alone, jitted, batched and evaluated, the same up to rounding."""
    file, states, out = (tmp_path / name for name in ("policy.npz", "obs.npy", "out.npz"))
    save_policy(file, trained)
    obs = np.random.default_rng(0).normal(size=(5, 8)).astype(np.float32)
    np.save(states, obs)
    command = [sys.executable, "-c", READ, str(file), str(states), str(out)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    with np.load(out) as archive:
        found = dict(archive)
    one = trained.member(fixture=1, seed=0)
    actions = jax.jit(jax.vmap(one, (0, None)))(obs, jax.random.key(0))
    np.testing.assert_allclose(found["actions"], actions, rtol=1e-6, atol=1e-6)
    names = ["arm-n4-p0.80-s7", "arm-n4-p0.60-s7"]
    gaps = cojax.evaluate([trained], names, num_trials=3, num_steps=20).trials["suboptimality"]
    np.testing.assert_allclose(found["gaps"], gaps, rtol=1e-4)
    again = tmp_path / "again.npz"
    save_policy(again, load_policy(file))
    assert again.read_bytes() == file.read_bytes()


def test_a_damaged_program_is_one_line(trained, tmp_path):
    file = tmp_path / "policy.npz"
    save_policy(file, trained)
    with np.load(file) as archive:
        arrays = dict(archive)
    for damage in (lambda x: x[: len(x) // 2], lambda x: np.zeros(9, np.uint8)):
        np.savez(file, **(arrays | {"program": damage(arrays["program"])}))
        with pytest.raises(InputError, match="expected a policy saved by cojax") as error:
            load_policy(file)
        assert "\n" not in str(error.value)
    del arrays["program"]
    np.savez(file, **arrays)
    with pytest.raises(InputError, match=r"format: expected cojax.policy/1, got 'cojax.policy/2'"):
        load_policy(file)


class Small(nn.Module):
    @nn.compact
    def __call__(self, x):
        return nn.Dense(2)(nn.tanh(nn.Dense(4)(x)))


def test_a_program_is_its_network_however_it_is_batched():
    """Over inputs, parameters, both, twice, on any axis, jitted; and input of double precision."""
    keys = jax.random.split(jax.random.key(0, impl="threefry2x32"), (4, 2))
    net, x = Small(), jax.random.normal(keys[0, 0], (4, 2, 7, 3))
    params = jax.vmap(jax.vmap(net.init, (0, None)), (0, None))(keys, x[0, 0, 0])
    one = jax.tree.map(lambda w: w[0, 0], params)
    made = programs.program(net, one, 3)
    assert made == programs.program(net, one, 3) == programs.program(made, one, 3)

    def same(along, *arguments):
        ours, known = (jax.jit(along(f.apply))(*arguments) for f in (made, net))
        assert ours.shape == known.shape
        np.testing.assert_allclose(ours, known, rtol=1e-5, atol=1e-6)

    vmap = jax.vmap
    same(lambda f: f, one, x[0, 0, 0])
    same(lambda f: f, one, x)
    same(lambda f: vmap(f, (None, 0)), one, x[0, 0])
    same(lambda f: vmap(f, (None, 1), 1), one, x[0])
    same(lambda f: vmap(vmap(f, (0, 0)), (0, 0)), params, x[:, :, 0])
    same(lambda f: vmap(vmap(f, (0, None)), (0, None)), params, x[0, 0, 0])
    same(lambda f: vmap(vmap(f, (0, None)), (None, 0)), jax.tree.map(lambda w: w[0], params), x[0])
    same(lambda f: vmap(vmap(f, (None, 0)), (0, 0)), jax.tree.map(lambda w: w[:, 0], params),
         x[:, 0])  # fmt: skip
    same(lambda f: vmap(vmap(vmap(f, (None, 0)), (0, 0)), (0, 0)), params, x)
    with jax.enable_x64(True):
        out = made.apply(one, x[0, 0, 0].astype(jnp.float64))
        assert out.dtype == jnp.float64
        np.testing.assert_allclose(out, net.apply(one, x[0, 0, 0]), rtol=1e-6)
    assert len(repr(made)) < 50


def test_what_cannot_be_exported_is_one_line():
    class Random(nn.Module):
        @nn.compact
        def __call__(self, x):
            return jax.pure_callback(np.sin, x, nn.Dense(2)(x))

    with pytest.raises(InputError, match=r"^Random cannot be saved as a program: ") as error:
        programs.program(Random(), {"params": {}}, 3)
    assert "\n" not in str(error.value)
