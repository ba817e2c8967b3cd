"""Gymnasium: check_env without a warning, seeds, spaces, autoreset, errors, rendering."""

import subprocess
import sys

import gymnasium
import jax
import numpy as np
import pytest
from gymnasium.error import ClosedEnvironmentError, ResetNeeded
from gymnasium.utils.env_checker import check_env

import cojax
from cojax.adapters import registration
from cojax.adapters.gymnasium import Env, VectorEnv
from cojax.families import BUILT_IN

SHORT = 4


@pytest.fixture(scope="module")
def params():
    return cojax.make("DoubleIntegrator-v0", max_steps_in_episode=SHORT, action_limit=2.0)[1]


@pytest.fixture
def env(params):
    return Env(params, render_mode="rgb_array")


@pytest.fixture(scope="module")
def vector(params):
    return VectorEnv(params, 3, autoreset_mode="SameStep")


def test_made_by_name_and_checked_without_a_warning(monkeypatch):
    monkeypatch.setenv("MPLBACKEND", "agg")
    env = gymnasium.make("cojax/ConverseArm-v0", n=1, p=0.8)  # warnings are errors here
    check_env(env.unwrapped)
    fixture = gymnasium.make("cojax/Fixture-v0", name="arm-n4-p0.80-s7")
    assert fixture.observation_space.shape == (8,)


def test_names_are_registered_whichever_is_imported_first_and_without_jax():
    assert set(registration.BUILT_IN) == set(BUILT_IN)
    for first in ("gymnasium, cojax", "cojax, gymnasium"):
        code = (
            f"import sys, {first}; "
            "print('cojax/NVDEx-v0' in gymnasium.registry, 'jax' in sys.modules)"
        )
        out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
        assert out.stdout.strip() == "True False", out.stderr


def test_rewards_are_those_of_the_system_and_actions_are_scaled(env, params):
    obs, _ = env.reset(seed=3)
    action = np.full(env.action_space.shape, 0.25, np.float32)
    assert env.action_space.high.max() == 1.0
    after, reward, terminated, truncated, info = env.step(action)
    cost = cojax.oracle.stage_cost(params.system, obs, 2.0 * action)
    assert isinstance(reward, float)
    assert reward == pytest.approx(-float(cost), rel=1e-5)
    assert (after.dtype, after.shape) == (np.float32, (params.system.state_dim,))
    assert (terminated, truncated, info) == (False, False, {"clipped": False})


def test_actions_outside_are_clipped_and_counted(env):
    env.reset(seed=0)
    inside = env.step(np.ones(env.action_space.shape))[1]
    env.reset(seed=0)
    _, outside, *_, info = env.step(7.0 * np.ones(env.action_space.shape))
    assert (outside, info["clipped"], env.num_clipped) == (inside, True, 1)


def test_finite_actions_beyond_float32_are_those_of_the_limit(env):
    env.reset(seed=1)
    limit = env.step(np.ones(2))[:4]
    for action in (np.full(2, 1e300), np.full(2, np.finfo(np.float32).max)):
        env.reset(seed=1)
        assert all(np.array_equal(x, y) for x, y in zip(env.step(action)[:4], limit, strict=True))


def test_life_of_an_environment(env):
    action = np.zeros(env.action_space.shape)
    with pytest.raises(ResetNeeded):
        env.step(action)
    first = env.reset(seed=5)[0]
    flags = [env.step(action)[2:4] for _ in range(SHORT)]
    assert flags[-1] == (False, True)
    assert set(flags[:-1]) == {(False, False)}
    with pytest.raises(ResetNeeded):
        env.step(action)
    env.reset()
    assert not env.step(action)[3]
    np.testing.assert_array_equal(env.reset(seed=5)[0], first)
    image = env.render()
    assert (image.dtype, image.ndim, image.shape[2]) == (np.uint8, 3, 3)
    assert image.std() > 5.0
    env.close()
    env.close()
    for call in (env.reset, env.render, lambda: env.step(action)):
        with pytest.raises(ClosedEnvironmentError):
            call()


@pytest.mark.parametrize(
    ("action", "words"),
    [
        (np.zeros(9), r"shape \(1, 1\), got \(1, 9\)"),
        (np.zeros((1, 1)), r"shape \(1, 1\), got \(1, 1, 1\)"),
        (0.0, r"shape \(1, 1\), got \(1,\)"),
        (np.array([np.nan]), "finite"),
        (np.array([np.inf]), "finite"),
        (np.array(["left"]), "numbers"),
        (np.array([True]), "of bool"),
        (np.array([1j]), "of complex128"),
        (None, "of object"),
        ([[0.0], [0.0, 1.0]], "as many in every row"),
    ],
)
def test_bad_actions_are_one_line(env, action, words):
    env.reset(seed=0)
    with pytest.raises(ValueError, match=words) as caught:
        env.step(action)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "int8", "int64", "uint8"])
def test_numbers_of_every_dtype_are_one_action(env, dtype):
    env.reset(seed=0)
    expected = env.step(np.ones(1, np.float32))
    env.reset(seed=0)
    after, reward, _, _, info = env.step(np.ones(1, dtype))
    np.testing.assert_array_equal(after, expected[0])
    assert (after.dtype, reward, info["clipped"]) == (np.float32, expected[1], False)
    env.reset(seed=0)
    assert env.step([1])[1] == expected[1]


def test_tensors_of_torch_are_actions(env, vector):
    torch = pytest.importorskip("torch")
    env.reset(seed=0)
    expected = env.step(np.full(1, 0.5, np.float32))[0]
    tensor = torch.full((1,), 0.5, requires_grad=True)
    devices = ["cpu", "cuda"] if torch.cuda.is_available() else ["cpu"]
    for device in devices:
        for dtype in (torch.float32, torch.float64, torch.float16, torch.bfloat16):
            env.reset(seed=0)
            np.testing.assert_array_equal(env.step(tensor.to(device, dtype))[0], expected)
    vector.reset(seed=0)
    assert vector.step(0.5 * torch.ones(3, 1))[0].dtype == np.float32
    with pytest.raises(ValueError, match="finite"):
        env.step(torch.full((1,), torch.nan))
    with pytest.raises(ValueError, match=r"shape \(1, 1\), got \(1, 2\)"):
        env.step(torch.zeros(2))


def test_without_a_seed_draws_differ_and_with_one_they_repeat(params):
    first, second = Env(params), Env(params)
    assert np.abs(first.reset()[0] - second.reset()[0]).max() > 0.0  # by chance, as Gymnasium does
    follow = [(env.reset(seed=4)[0], env.reset()[0]) for env in (first, second)]
    np.testing.assert_array_equal(follow[0], follow[1])
    assert np.abs(follow[0][0] - follow[0][1]).max() > 0.0
    with pytest.raises(gymnasium.error.Error, match="greater or equal to zero"):
        first.reset(seed=-1)
    vectors = VectorEnv(params, 2), VectorEnv(params, 2)
    assert np.abs(vectors[0].reset()[0] - vectors[1].reset()[0]).max() > 0.0
    follow = [(envs.reset(seed=4)[0], envs.reset()[0]) for envs in vectors]
    np.testing.assert_array_equal(follow[0], follow[1])
    with pytest.raises(ValueError, match="expected 2 seeds, got 3"):
        vectors[0].reset(seed=[1, 2, 3])


def test_life_of_a_vector(params):
    envs = VectorEnv(params, 2, render_mode="rgb_array")
    for call in (envs.render, lambda: envs.step(np.zeros((2, 1)))):
        with pytest.raises(ResetNeeded):
            call()
    obs = envs.reset(seed=0)[0]
    given = obs.copy()
    for actions, words in (
        (np.zeros((3, 1)), r"shape \(2, 1\), got \(3, 1\)"),
        (np.zeros(2), r"shape \(2, 1\), got \(2,\)"),
        (np.full((2, 1), np.nan), "finite"),
    ):
        with pytest.raises(ValueError, match=words):
            envs.step(actions)
    before = envs.num_clipped
    after, _, _, _, infos = envs.step(np.array([[1.0], [-7.0]]))
    assert list(infos["clipped"]) == [False, True]
    assert envs.num_clipped == before + 1
    np.testing.assert_array_equal(obs, given)  # what was given out is not written to
    assert np.abs(after - obs).max() > 0.0
    envs.close()
    envs.close()
    for call in (envs.reset, envs.render, lambda: envs.step(np.zeros((2, 1)))):
        with pytest.raises(ClosedEnvironmentError):
            call()


def test_bad_options_are_one_line(params):
    for make, words in (
        (lambda: Env("ConverseArm-v0", nn=3), "did you mean 'n'"),
        (lambda: Env(params, n=3), "an option needs a name"),
        (lambda: Env(7), "expected a name, EnvParams"),
        (lambda: Env(params, render_mode="ansi"), "render_mode"),
        (lambda: VectorEnv(params, 0), "num_envs"),
        (lambda: VectorEnv(params, 2, autoreset_mode="Disabled"), "autoreset_mode"),
    ):
        with pytest.raises(ValueError, match=words):
            make()


def test_environments_of_a_vector_are_single_ones(vector, params):
    obs, _ = vector.reset(seed=11)
    action = 0.1 * np.ones((3, 1), np.float32)
    stepped = [vector.step(action) for _ in range(SHORT + 1)]
    single = Env(params)
    np.testing.assert_array_equal(single.reset(seed=12)[0], obs[1])
    for k, (after, rewards, terminated, truncated, infos) in enumerate(stepped):
        s, reward, _, _, _ = single.step(action[1])
        assert reward == pytest.approx(rewards[1], rel=1e-5)
        if k == SHORT - 1:
            assert truncated.all()
            assert not terminated.any()
            assert infos["_final_obs"].all()
            np.testing.assert_allclose(infos["final_obs"][1], s, rtol=1e-5)
            np.testing.assert_array_equal(single.reset()[0], after[1])
        else:
            assert "final_obs" not in infos
            np.testing.assert_allclose(after[1], s, rtol=1e-5)


def test_next_step_mode_gives_the_last_observation_then_the_first(params, vector):
    envs = gymnasium.make_vec(
        "cojax/DoubleIntegrator-v0", num_envs=3, max_steps_in_episode=SHORT, action_limit=2.0
    )
    assert envs.metadata["autoreset_mode"] is gymnasium.vector.AutoresetMode.NEXT_STEP
    envs.reset(seed=11)
    vector.reset(seed=11)
    action = 0.1 * np.ones((3, 1), np.float32)
    for _ in range(SHORT):
        ours, theirs = envs.step(action), vector.step(action)
    assert ours[3].all()
    np.testing.assert_array_equal(ours[0][2], theirs[4]["final_obs"][2])
    begun = envs.step(5.0 * action)
    np.testing.assert_array_equal(begun[0], theirs[0])
    assert not begun[1].any()
    assert not begun[3].any()
    after, theirs = envs.step(action)[0], vector.step(action)[0]
    np.testing.assert_array_equal(after, theirs)


def test_a_batch_of_systems(params):
    other = cojax.envs.EnvParams(**{**vars(params), "system": cojax.rebuild(params.system, p=0.5)})
    envs = VectorEnv(cojax.stack([params, other]), 4)
    obs, _ = envs.reset(seed=0)
    action = 0.5 * np.ones((4, 1), np.float32)
    rewards = envs.step(action)[1]
    for i, one in enumerate((params, other, params, other)):
        cost = cojax.oracle.stage_cost(one.system, obs[i], 2.0 * action[i])
        assert rewards[i] == pytest.approx(-float(cost), rel=1e-5)
    assert len({id(x) for x in jax.tree.leaves(envs._batch.member(1)[0])}) > 3
    with pytest.raises(ValueError, match="action_limit: expected the same"):
        VectorEnv(cojax.stack([params, other.replace(action_limit=other.action_limit / 2)]))
