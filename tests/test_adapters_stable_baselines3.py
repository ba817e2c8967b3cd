"""Stable-Baselines3: its learners train on the VecEnv, and their models are scored in our units."""

import numpy as np
import pytest

import cojax

sb3 = pytest.importorskip("stable_baselines3")
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")

from stable_baselines3.common import vec_env  # noqa: E402
from stable_baselines3.common.env_util import make_vec_env  # noqa: E402
from stable_baselines3.common.monitor import Monitor  # noqa: E402

from cojax.adapters.gymnasium import Env  # noqa: E402
from cojax.adapters.stable_baselines3 import VecEnv  # noqa: E402

SHORT = 12
OFF_POLICY = {"learning_starts": 24, "buffer_size": 256, "batch_size": 32}
LEARNERS = {
    "PPO": {"n_steps": 16, "batch_size": 64, "n_epochs": 2},
    "A2C": {},
    "SAC": OFF_POLICY,
    "TD3": OFF_POLICY,
    "DDPG": OFF_POLICY,
}


@pytest.fixture(scope="module")
def params():
    return cojax.make("DoubleIntegrator-v0", max_steps_in_episode=SHORT, action_limit=2.0)[1]


@pytest.fixture(scope="module")
def envs(params):
    return VecEnv(params, 4)


@pytest.mark.parametrize("name", LEARNERS)
def test_learners_train_and_are_scored(name, envs, params):
    env = vec_env.VecNormalize(envs) if name == "A2C" else envs
    options = {"policy_kwargs": {"net_arch": [8]}, "seed": 0, "device": "cpu"} | LEARNERS[name]
    model = getattr(sb3, name)("MlpPolicy", env, **options).learn(128)
    assert len(model.ep_info_buffer) >= 8
    assert {info["l"] for info in model.ep_info_buffer} == {SHORT}
    if name == "A2C":  # its observations are normalised: not a policy of ours by itself
        assert env.obs_rms.count > 100
        return
    factor = params.action_limit

    def by_hand(s):
        return factor * model.predict(s, deterministic=True)[0]

    result = cojax.evaluate({"model": model, "hand": by_hand}, params, 2, num_steps=6)
    gaps = result.trials["suboptimality"][0]
    np.testing.assert_allclose(gaps[0], gaps[1], rtol=1e-5)


def test_ends_of_episodes_as_learners_expect(envs, params):
    envs.seed(7)
    first = envs.reset()
    total = np.zeros(4)
    for _ in range(SHORT):
        obs, rewards, dones, infos = envs.step(0.1 * np.ones((4, 1)))
        total += rewards
    assert dones.all()
    for i, info in enumerate(infos):
        assert info["TimeLimit.truncated"] is True
        assert info["episode"]["r"] == pytest.approx(total[i])
        assert info["terminal_observation"].shape == (params.system.state_dim,)
        assert np.abs(info["terminal_observation"] - obs[i]).max() > 0.0
    envs.seed(7)
    np.testing.assert_array_equal(envs.reset(), first)
    *_, infos = envs.step(9.0 * np.ones((4, 1)))
    assert infos == [{}] * 4
    assert envs.num_clipped >= 4


def test_termination_is_no_time_limit(params):
    envs = VecEnv(params.replace(divergence_radius=params.divergence_radius * 0), 2)
    envs.reset()
    _, _, dones, infos = envs.step(np.zeros((2, 1)))
    assert dones.all()
    assert not any(info["TimeLimit.truncated"] for info in infos)


def test_torch_images_attributes_and_errors(params):
    torch = pytest.importorskip("torch")
    envs = VecEnv(params, 2, render_mode="rgb_array")
    with pytest.raises(ValueError, match="reset before it"):
        envs.step(np.zeros((2, 1)))
    envs.reset()
    envs.step(torch.zeros(2, 1, requires_grad=True))
    assert len(envs.get_images()) == 2
    assert envs.get_attr("params", [1])[0].system.state_dim == params.system.state_dim
    assert envs.metadata["render_fps"] == 30
    for call, words in (
        (VecEnv(params, 2, render_mode="rgb_array").render, "render: expected a call of reset"),
        (VecEnv(params, 2, render_mode="rgb_array").get_images, "render: expected a call of"),
        (lambda: VecEnv(params, 2, render_mode="human"), "render_mode: unknown"),
        (lambda: VecEnv(params, 2).seed(-1), "seed: expected a whole number >= 0"),
        (lambda: VecEnv(params, 2).seed(1.5), "seed: expected a whole number >= 0"),
        (lambda: envs.get_attr("params", [2]), "environments below 2"),
        (lambda: envs.env_is_wrapped(Monitor, 7), "environments below 2"),
        (envs.step_wait, "step_wait: expected a call of step_async"),
        (lambda: envs.set_attr("gamma", 1.0), "cannot be set"),
        (lambda: envs.env_method("close"), "no single environments"),
        (lambda: envs.step(np.zeros((3, 1))), r"shape \(2, 1\)"),
    ):
        with pytest.raises(ValueError, match=words):
            call()
    envs.close()
    for call in (envs.reset, envs.render):
        with pytest.raises(ValueError, match="closed"):
            call()


def test_what_is_handed_out_is_the_users_own(params):
    one, twin = (VecEnv(params, 2, render_mode="rgb_array") for _ in range(2))
    for envs in (one, twin):
        envs.seed(0)
    for call in (lambda envs: (envs.reset(),), *[lambda envs: envs.step(np.ones((2, 1)))] * SHORT):
        given, expected = call(one), call(twin)
        np.testing.assert_array_equal(given[0], expected[0])
        for array in given[:3]:
            array[:] = 1
        np.testing.assert_array_equal(one.get_images(), twin.get_images())
    assert given[3][0]["terminal_observation"].base is None  # does not keep the whole step alive


@pytest.mark.filterwarnings("ignore:The environment is already wrapped")  # VecMonitor says so
@pytest.mark.parametrize(
    ("wrapper", "options"),
    [
        (vec_env.VecMonitor, {}),
        (vec_env.VecNormalize, {"norm_reward": False}),
        (vec_env.VecFrameStack, {"n_stack": 3}),
        (vec_env.VecCheckNan, {"raise_exception": True}),
    ],
)
def test_wrappers(wrapper, options, params):
    envs = wrapper(VecEnv(params, 2, render_mode="rgb_array"), **options)
    envs.seed(0)
    bare = VecEnv(params, 2)
    bare.seed(0)
    obs, expected = envs.reset(), bare.reset()
    for _ in range(SHORT + 1):
        if not isinstance(envs, vec_env.VecNormalize):
            np.testing.assert_array_equal(obs[:, -2:], expected)
        assert obs.dtype == np.float32
        actions = np.stack([envs.action_space.sample() for _ in range(2)])
        obs, rewards, dones, infos = envs.step(actions)
        expected, *others, _ = bare.step(actions)
        np.testing.assert_array_equal(rewards, others[0])
        np.testing.assert_array_equal(dones, others[1])
        assert [len(info) > 0 for info in infos] == list(dones)
    assert envs.render().ndim == 3
    envs.close()


@pytest.mark.slow
def test_processes_of_its_own(params):
    made = make_vec_env("cojax:cojax/DoubleIntegrator-v0", 2, vec_env_cls=vec_env.SubprocVecEnv,
                        env_kwargs={"max_episode_steps": SHORT})  # fmt: skip
    made.seed(0)
    np.testing.assert_array_equal(made.reset()[1], Env("DoubleIntegrator-v0").reset(seed=1)[0])
    made.close()


def test_a_model_of_sbx(envs, params):
    sbx = pytest.importorskip("sbx")
    model = sbx.PPO("MlpPolicy", envs, n_steps=16, batch_size=64, n_epochs=1, seed=0).learn(64)
    rows = cojax.evaluate({"sbx": model}, params, 2, num_steps=6).rows()
    assert rows[0]["suboptimality"]["mean"] > 0.0
