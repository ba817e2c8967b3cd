"""Gymnasium: check_env without a warning, seeds, spaces, autoreset, errors, rendering."""

import contextlib
import multiprocessing
import os
import pickle
import subprocess
import sys

import gymnasium
import jax
import numpy as np
import pytest
from gymnasium.envs.registration import EnvSpec
from gymnasium.error import ClosedEnvironmentError, ResetNeeded
from gymnasium.utils.env_checker import check_env, data_equivalence
from gymnasium.wrappers import TimeAwareObservation

import cojax
from cojax.adapters import registration
from cojax.adapters.gymnasium import Env, VectorEnv
from cojax.families import BUILT_IN

SHORT = 4
ARM, FIXTURE = "cojax/ConverseArm-v0", "cojax/Fixture-v0"


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
    limit = env.step(np.ones(1))[:4]
    for action in (np.full(1, 1e300), np.full(1, np.finfo(np.float32).max)):
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


def test_seeds_of_a_vector(params):
    envs, again = VectorEnv(params, 3), VectorEnv(params, 3)
    first = envs.reset(seed=[5, None, 7])[0]  # the first time None is chance
    assert np.abs(first - again.reset(seed=[5, None, 7])[0]).max(axis=1)[1] > 0.0
    for one, seed in ((0, 5), (2, 7)):
        np.testing.assert_array_equal(first[one], Env(params).reset(seed=seed)[0])
    single = Env(params)
    envs.reset(seed=11)
    single.reset(seed=12)
    mixed = envs.reset(seed=[np.int64(5), None, 7])[0]  # and later it goes on drawing
    np.testing.assert_array_equal(mixed[[0, 2]], first[[0, 2]])
    np.testing.assert_array_equal(mixed[1], single.reset()[0])
    np.testing.assert_array_equal(envs.reset(seed=np.arange(3))[0], again.reset(seed=0)[0])
    large = [2**32, 2**40, 2**64 - 1]  # the words of JAX's own 64-bit seeds
    starts = [*envs.reset(seed=large)[0], *envs.reset(seed=[0, 2**32 - 1, 1])[0]]
    assert len({start.tobytes() for start in starts}) == 6
    for seed in ([-1, 0, 1], [0, 1.5, 1], [0, "1", 2], [0, 1, 2**64], 1.5, [1, 2], {}):
        with pytest.raises(ValueError, match=r"^seed: expected .*") as caught:
            envs.reset(seed=seed)
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize("mode", ["NextStep", "SameStep", "Disabled"])
def test_vectors_are_those_of_gymnasium_masks_and_infos_included(mode, params):
    ours = VectorEnv(params, 3, autoreset_mode=mode)
    theirs = gymnasium.vector.SyncVectorEnv([lambda: Env(params)] * 3, autoreset_mode=mode)
    rng = np.random.default_rng(0)

    def same(one, other):
        np.testing.assert_allclose(one[0], other[0], rtol=1e-5, atol=1e-6)
        assert data_equivalence(one[-1], other[-1]), (one[-1], other[-1])
        for x, y in zip(one[1:-1], other[1:-1], strict=True):
            assert x.dtype == y.dtype
            np.testing.assert_allclose(x, y, rtol=1e-5)

    with pytest.raises(ResetNeeded, match="without it before"):
        ours.reset(options={"reset_mask": np.array([True, False, True])})
    same(ours.reset(seed=3), theirs.reset(seed=3))
    ends = np.zeros(3, int)
    for k in range(6 * SHORT):
        actions = rng.uniform(-1.5, 1.5, (3, 1)).astype(np.float32)
        one, other = ours.step(actions), theirs.step(actions)
        same(one, other)
        over = one[2] | one[3]
        ends += over
        mask = over if mode == "Disabled" else rng.random(3) < 0.2
        if mask.any():
            seed = [None, 100 + k, None] if k % 2 else None
            options = {"reset_mask": mask}
            same(ours.reset(seed=seed, options=options),
                 theirs.reset(seed=seed, options={"reset_mask": mask.copy()}))  # fmt: skip
            assert options["reset_mask"] is mask
        if k == 3 * SHORT:
            same(ours.reset(), theirs.reset())
    assert (ends > 2).all()


def test_disabled_resets_are_demanded_and_masks_checked(params):
    envs = VectorEnv(params, 2, autoreset_mode="Disabled")
    envs.reset(seed=0)
    for _ in range(SHORT):
        envs.step(np.zeros((2, 1)))
    envs.reset(options={"reset_mask": np.array([True, False])})
    with pytest.raises(ResetNeeded, match="an episode is over"):
        envs.step(np.zeros((2, 1)))
    for mask in ([True], [1, 0], [False, False], np.ones((2, 1), bool), None, "all"):
        with pytest.raises(ValueError, match="reset_mask: expected an array of 2 bools"):
            envs.reset(options={"reset_mask": mask})


def test_what_is_handed_out_is_the_users_own(params):
    one, twin = (Env(params, render_mode="rgb_array") for _ in range(2))
    many, twins = (VectorEnv(params, 2, render_mode="rgb_array") for _ in range(2))
    for spoiled, kept, action in ((one, twin, np.ones(1)), (many, twins, np.ones((2, 1)))):
        spoiled.action_space.low[:] = spoiled.observation_space.high[:] = 0.0
        if spoiled is one:
            spoiled.action_space.scale[:] = 0.0
        for call in (lambda env: env.reset(seed=0), *[lambda env, a=action: env.step(a)] * SHORT):
            given, expected = call(spoiled), call(kept)
            np.testing.assert_array_equal(given[0], expected[0])
            for array in given:
                if isinstance(array, np.ndarray):
                    array[:] = 1
            np.testing.assert_array_equal(spoiled.render(), kept.render())


def test_the_time_limit_is_gymnasiums_word_and_stated():
    def length(env):
        env.reset(seed=0)
        for k in range(1, 9999):
            if env.step(np.zeros(env.action_space.shape, np.float32))[3]:
                return k
        raise AssertionError

    still = {"n": 1, "divergence_radius": 1e30}
    for made, expected in (
        ({}, 512),
        ({"max_episode_steps": 3}, 3),
        ({"max_episode_steps": 600}, 600),
        ({"max_steps_in_episode": 7}, 7),
        ({"max_steps_in_episode": 7, "max_episode_steps": 5}, 5),
        ({"max_steps_in_episode": 7, "max_episode_steps": -1}, 7),
    ):
        env = gymnasium.make(ARM, **still, **made)
        assert env.spec.max_episode_steps == expected
        assert env.unwrapped.params.max_steps_in_episode == expected
        TimeAwareObservation(env)
        again = gymnasium.make(EnvSpec.from_json(env.spec.to_json()))
        assert pickle.loads(pickle.dumps(again.spec)) == env.spec
        assert {length(env), length(again)} == {expected}
        many = gymnasium.make_vec(ARM, 2, **still, **made)
        assert many.spec.max_episode_steps == expected
        assert gymnasium.make_vec(many.spec).spec.max_episode_steps == expected
        many.reset(seed=0)
        ends = [many.step(np.zeros((2, 1)))[3].all() for _ in range(expected)]
        assert ends == [False] * (expected - 1) + [True]
    assert gymnasium.make(ARM, n=1, max_episode_steps=-1).spec.max_episode_steps is None
    sync = gymnasium.make_vec(ARM, 2, "sync", n=1, max_episode_steps=600)
    assert sync.envs[0].unwrapped.params.max_steps_in_episode == 600
    fixture = {"name": "arm-n2-p0.80-s7", "max_episode_steps": 700}
    assert gymnasium.make(FIXTURE, **fixture).unwrapped.params.max_steps_in_episode == 700
    assert gymnasium.make_vec(FIXTURE, 2, **fixture).spec.max_episode_steps == 700


def test_pictures_of_every_kind(params):
    env = gymnasium.make(ARM, n=1, render_mode="rgb_array_list")
    env.reset(seed=0)
    env.step(env.action_space.sample())
    assert [frame.ndim for frame in env.render()] == [3, 3]
    envs = VectorEnv(params, 2)
    assert envs.metadata["render_fps"] == Env.metadata["render_fps"] == 30
    modes = [gymnasium.vector.AutoresetMode.SAME_STEP, gymnasium.vector.AutoresetMode.NEXT_STEP]
    syncs = [
        gymnasium.vector.SyncVectorEnv([lambda: Env(params)], autoreset_mode=mode) for mode in modes
    ]
    assert [sync.metadata["autoreset_mode"] for sync in syncs] == modes  # each has its own


def test_whoever_walks_the_registry_is_told_what_is_missing():
    made = set()
    for name, spec in gymnasium.registry.items():
        if spec.namespace == "cojax":
            with contextlib.suppress(gymnasium.error.MissingArgument):
                made.add(gymnasium.make(name).spec.id)
    assert made >= {f"cojax/{family}-v0" for family in BUILT_IN}
    for make in (gymnasium.make, gymnasium.make_vec):
        with pytest.raises(gymnasium.error.MissingArgument, match=r"^name: expected that"):
            make(FIXTURE)


FORKED = """
import multiprocessing, warnings
import jax.numpy as jnp
from cojax.adapters import five_values, gymnasium
jnp.zeros(1)
env = gymnasium.Env("DoubleIntegrator-v0")
env.reset(seed=0)
for made in (lambda: gymnasium.Env("DoubleIntegrator-v0"), env.reset, lambda: env.step([0.0]),
             lambda: five_values.five_values("DoubleIntegrator-v0")):
    def child():
        try:
            made()
        except ValueError as error:
            print(error, flush=True)
    warnings.simplefilter("ignore")
    process = multiprocessing.get_context("fork").Process(target=child)
    process.start()
    process.join(20)
    process.kill()
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_forks_are_refused_in_one_line():
    context = {"context": "fork"}
    kinds = [{}, context] if multiprocessing.get_start_method() == "fork" else [context]
    for kind in kinds:
        with pytest.raises(ValueError, match="'context': 'spawn'"):
            gymnasium.make_vec(ARM, 2, vectorization_mode="async", vector_kwargs=kind, n=1)
        with pytest.raises(ValueError, match="'context': 'spawn'"):
            gymnasium.vector.AsyncVectorEnv([lambda: Env(ARM)], **kind)
    out = subprocess.run([sys.executable, "-c", FORKED], capture_output=True, text=True)
    lines = out.stdout.splitlines()
    assert len(lines) == 4, out.stderr
    assert {line.split(":")[0] for line in lines} == {"fork"}


SPAWNED = """
import gymnasium, numpy
import cojax
if __name__ == "__main__":
    options = {"vectorization_mode": "async", "vector_kwargs": {"context": "spawn"}, "n": 1}
    envs = gymnasium.make_vec("cojax:cojax/ConverseArm-v0", 2, **options)
    obs, _ = envs.reset(seed=0)
    print(obs.shape, envs.step(numpy.zeros((2, 1), numpy.float32))[1].shape)
    envs.close()
"""


@pytest.mark.slow
def test_spawned_processes_step(tmp_path):
    program = tmp_path / "spawned.py"
    program.write_text(SPAWNED)
    out = subprocess.run([sys.executable, program], capture_output=True, text=True)
    assert out.stdout.strip() == "(2, 2) (2,)", out.stderr


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
        (lambda: VectorEnv(params, 2, autoreset_mode="Enabled"), "autoreset_mode"),
        (lambda: VectorEnv(params, 2, render_mode="human"), "render_mode"),
        (lambda: gymnasium.make(ARM, max_episode_steps=0), "max_steps_in_episode|max_episode"),
        (lambda: gymnasium.make(ARM, max_episode_steps=2**31), "max_steps_in_episode: expected"),
        (
            lambda: gymnasium.make(ARM, max_episode_steps=9, max_steps_in_episode=5),
            "at most max_steps_in_episode",
        ),
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


def test_entries_of_the_spaces_have_names_and_units():
    one = gymnasium.make("cojax/Fixture-v0", name="arm-n2-p0.80-s7")
    many = gymnasium.make_vec("cojax/Fixture-v0", num_envs=2, name="arm-n2-p0.80-s7")
    for env in (one.unwrapped, many.unwrapped):
        observation, action = env.labels
        assert observation[0] == "θ_1 [rad]"
        assert (len(observation), len(action)) == (4, 2)
