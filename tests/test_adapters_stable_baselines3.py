"""Stable-Baselines3: its learners train on the VecEnv, and their models are scored in our units."""

import numpy as np
import pytest

import cojax

sb3 = pytest.importorskip("stable_baselines3")
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")

from stable_baselines3.common.vec_env import VecNormalize  # noqa: E402

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
    env = VecNormalize(envs) if name == "A2C" else envs
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
    for call, words in (
        (lambda: envs.set_attr("gamma", 1.0), "cannot be set"),
        (lambda: envs.env_method("close"), "no single environments"),
        (lambda: envs.step(np.zeros((3, 1))), r"shape \(2, 1\)"),
    ):
        with pytest.raises(ValueError, match=words):
            call()
    envs.close()
    with pytest.raises(ValueError, match="closed"):
        envs.reset()


def test_a_model_of_sbx(envs, params):
    sbx = pytest.importorskip("sbx")
    model = sbx.PPO("MlpPolicy", envs, n_steps=16, batch_size=64, n_epochs=1, seed=0).learn(64)
    rows = cojax.evaluate({"sbx": model}, params, 2, num_steps=6).rows()
    assert rows[0]["suboptimality"]["mean"] > 0.0
