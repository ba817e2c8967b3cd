"""Every wrapper of Gymnasium runs on our environments, single and vector, over ends of episodes."""

import gymnasium
import numpy as np
import pytest
from gymnasium import wrappers
from gymnasium.error import DependencyNotInstalled
from gymnasium.utils.env_checker import check_env
from gymnasium.utils.env_match import check_environments_match

import cojax
from cojax.adapters.gymnasium import Env, VectorEnv

SHORT = 4
PICTURES = {"AddWhiteNoise", "ObstructView", "RenderCollection", "HumanRendering", "RecordVideo"}


def space(shift=0.0):
    return gymnasium.spaces.Box(-1.0 + shift, 1.0 + shift, (1,), np.float32)


def half(x):
    return 0.5 * x


SINGLE = {  # wrappers, and what they are made with
    "AddRenderObservation": {},
    "AddWhiteNoise": {"probability_of_noise_per_pixel": 0.5},
    "ArrayConversion": {"env_xp": np, "target_xp": np},
    "Autoreset": {},
    "ClipAction": {},
    "ClipReward": {"min_reward": -1.0, "max_reward": 0.0},
    "DelayObservation": {"delay": 1},
    "DiscretizeAction": {"bins": 3},
    "DiscretizeObservation": {"bins": 3},
    "DtypeObservation": {"dtype": np.float64},
    "FlattenObservation": {},
    "FrameStackObservation": {"stack_size": 2},
    "HumanRendering": {},
    "JaxToNumpy": {},
    "JaxToTorch": {},
    "MaxAndSkipObservation": {"skip": 2},
    "NormalizeObservation": {},
    "NormalizeReward": {},
    "NumpyToTorch": {},
    "ObstructView": {"obstructed_pixels_ratio": 0.5, "obstruction_width": 9},
    "OrderEnforcing": {},
    "PassiveEnvChecker": {},
    "RecordEpisodeStatistics": {},
    "RecordVideo": {"video_length": 2},
    "RenderCollection": {},
    "RepeatAction": {"num_repeats": 2},
    "RescaleAction": {"min_action": np.float32(0.0), "max_action": np.float32(1.0)},
    "RescaleObservation": {"min_obs": np.float32(-1.0), "max_obs": np.float32(1.0)},
    "ReshapeObservation": {"shape": (1, 2)},
    "StickyAction": {"repeat_action_probability": 0.5},
    "TimeAwareObservation": {"flatten": False},
    "TimeLimit": {"max_episode_steps": 3},
    "TransformAction": {"func": half, "action_space": space()},
    "TransformObservation": {"func": half, "observation_space": None},
    "TransformReward": {"func": half},
}
VECTOR = {
    "ArrayConversion": {"env_xp": np, "target_xp": np},
    "ClipAction": {},
    "ClipReward": {"min_reward": -1.0, "max_reward": 0.0},
    "DictInfoToList": {},
    "DtypeObservation": {"dtype": np.float64},
    "FlattenObservation": {},
    "HumanRendering": {},
    "JaxToNumpy": {},
    "JaxToTorch": {},
    "NormalizeObservation": {},
    "NormalizeReward": {},
    "NumpyToTorch": {},
    "RecordEpisodeStatistics": {},
    "RecordVideo": {"video_length": 2},
    "RescaleAction": {"min_action": np.float32(0.0), "max_action": np.float32(1.0)},
    "RescaleObservation": {"min_obs": np.float32(-1.0), "max_obs": np.float32(1.0)},
    "ReshapeObservation": {"shape": (1, 2)},
    "TransformAction": {"func": half},
    "TransformObservation": {"func": half},
    "TransformReward": {"func": half},
    "VectorizeTransformAction": {"wrapper": wrappers.TransformAction, "func": half,
                                 "action_space": space()},
    "VectorizeTransformObservation": {"wrapper": wrappers.TransformObservation, "func": half,
                                      "observation_space": None},
    "VectorizeTransformReward": {"wrapper": wrappers.TransformReward, "func": half},
}  # fmt: skip


@pytest.fixture(scope="module")
def params():
    return cojax.make("DoubleIntegrator-v0", max_steps_in_episode=SHORT, action_limit=2.0)[1]


def wrapped(module, name, options, env, folder):
    """The wrapper, or a skip where Gymnasium lacks it, or what it stands on is not installed."""
    options = dict(options)
    if name == "RecordVideo":
        pytest.importorskip("moviepy")
        options["video_folder"] = str(folder)
    if name == "HumanRendering":
        pytest.importorskip("pygame")
        pytest.importorskip("cv2")
    try:
        return getattr(module, name)(env, **options)
    except (AttributeError, DependencyNotInstalled, ModuleNotFoundError) as error:
        return pytest.skip(str(error))


# Gymnasium compares its spaces with the range of another dtype.
@pytest.mark.filterwarnings("ignore:overflow encountered in cast")
@pytest.mark.parametrize("name", SINGLE)
def test_single(name, params, tmp_path, monkeypatch):
    monkeypatch.setenv("SDL_VIDEODRIVER", "dummy")
    pictures = name in PICTURES | {"AddRenderObservation"}
    inner = Env(params, render_mode="rgb_array" if pictures else None)
    if name == "TimeAwareObservation":
        inner = wrappers.TimeLimit(inner, SHORT)
    env = wrapped(wrappers, name, SINGLE[name], inner, tmp_path / "videos")
    env.action_space.seed(0)
    for seed in (0, None):
        obs, info = env.reset(seed=seed)
        assert isinstance(info, dict)
        for _ in range(SHORT):
            if "Torch" not in name and "Jax" not in name:
                assert env.observation_space.contains(obs), (obs, env.observation_space)
            action = env.action_space.sample()
            if name == "NumpyToTorch" or name == "JaxToTorch":
                action = pytest.importorskip("torch").as_tensor(action)
            obs, reward, terminated, truncated, info = env.step(action)
            assert np.isfinite(float(reward))
            assert not terminated
            if truncated:
                break
        assert truncated
    env.close()
    assert inner.unwrapped.num_clipped == 0


# Gymnasium's own refuse SAME_STEP where they change observations, and arrays of objects elsewhere.
NEXT_STEP_ALONE = {name for name in VECTOR if "Observation" in name or "To" in name} | {
    "ArrayConversion",
    "RecordVideo",
}


@pytest.mark.filterwarnings("ignore:overflow encountered in cast")
@pytest.mark.parametrize(
    ("name", "mode"),
    [(name, "NextStep") for name in VECTOR]
    + [(name, "SameStep") for name in VECTOR if name not in NEXT_STEP_ALONE],
)
def test_vector(name, mode, params, tmp_path, monkeypatch):
    monkeypatch.setenv("SDL_VIDEODRIVER", "dummy")
    render = "rgb_array" if name in PICTURES else None
    inner = VectorEnv(params, 2, autoreset_mode=mode, render_mode=render)
    options = dict(VECTOR[name])
    env = wrapped(wrappers.vector, name, options, inner, tmp_path / "videos")
    env.action_space.seed(0)
    obs, _ = env.reset(seed=0)
    ends = 0
    for _ in range(2 * SHORT + 3):
        action = env.action_space.sample()
        if name in ("NumpyToTorch", "JaxToTorch"):
            action = pytest.importorskip("torch").as_tensor(action)
        obs, rewards, terminated, truncated, infos = env.step(action)
        assert np.shape(obs)[0] == np.shape(rewards)[0] == 2
        assert not np.asarray(terminated).any()
        ends += int(np.asarray(truncated).sum())
        if name == "RecordEpisodeStatistics" and mode == "NextStep" and np.any(truncated):
            assert list(infos["episode"]["l"]) == [SHORT, SHORT]
    assert ends == 4
    if name != "NormalizeObservation":  # it takes masks of all alone
        env.reset(seed=[5, None], options={"reset_mask": np.array([True, False])})
    if name == "RecordEpisodeStatistics" and mode == "NextStep":  # the other's episode goes on
        assert list(env.episode_lengths) == [0, 1]
    env.close()
    assert inner.num_clipped == 0


@pytest.mark.parametrize("end", [{}, {"terminal_value": "optimal"}, {"divergence_radius": 10.0}])
def test_checkers(end):
    options = {"max_steps_in_episode": SHORT, "action_limit": 2.0} | end
    env = gymnasium.make("cojax/DoubleIntegrator-v0", render_mode="rgb_array", **options)
    check_env(env.unwrapped)
    made = cojax.make("DoubleIntegrator-v0", **options)
    check_environments_match(env, Env(made, render_mode="rgb_array"), 3 * SHORT)
    for one in (env.unwrapped, VectorEnv(made, 2)):
        one.reset(seed=0)
        assert one.np_random_seed == 0
