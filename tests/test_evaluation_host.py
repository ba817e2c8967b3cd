"""Policies on the host: the same streams and the same metrics as in the compiled program."""

import io
import json
import sys
import zipfile
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from click.testing import CliRunner
from helpers import numpy_optimum

import cojax
from cojax import streams
from cojax.cli import main
from cojax.envs import CommonStreams
from cojax.errors import InputError
from cojax.evaluation import evaluate, host_policy
from cojax.evaluation.references import dithered_oracle
from cojax.named_policies import sb3_algorithm
from cojax.policy import Policy
from cojax.report.animation import animate

STEPS = 12


def make(**options):
    return cojax.make("NVDEx-v0", K=1, preset="easy", **options)[1]


def numpy_oracle(params):
    """The optimal action by the paper's formulas in plain NumPy, one observation."""
    return lambda s: numpy_optimum(params.system, np.asarray(s, np.float64))["action"]


class Model:
    """What a Stable-Baselines3 model looks like."""

    def __init__(self, factor):
        self.factor, self.seen = factor, []

    def predict(self, observation, state=None, episode_start=None, deterministic=False):
        self.seen.append((observation.shape, deterministic))
        return self.factor * observation[:, 3:], None


def test_a_numpy_oracle_has_the_gap_of_the_oracle():
    params = make()
    oracle = numpy_oracle(params)
    policies = {"numpy": oracle, "half": lambda s: 0.5 * oracle(s), "oracle": "oracle"}
    result = evaluate({**policies, "detuned": "detuned-oracle:0.5"}, params, 4, num_steps=STEPS)
    assert [m.policy for m in result.members] == ["numpy", "half", "oracle", "detuned"]
    numpy, half, compiled, detuned = np.moveaxis(result.trials["suboptimality"][0], 0, 0)
    value = result.trials["optimal_value"][0, 0]
    assert not compiled.any()
    assert (numpy < 1e-10 * value).all()
    np.testing.assert_allclose(half, detuned, rtol=1e-5)
    for name in result.trials:
        np.testing.assert_allclose(
            result.trials[name][0, 1], result.trials[name][0, 3], rtol=2e-4, atol=1e-6, err_msg=name
        )


def test_members_keep_their_order_and_fixtures_their_horizons():
    params = [make(max_steps_in_episode=T) for T in (STEPS, 5)]
    model, jitted = Model(-0.3), lambda obs, key: -0.3 * obs[3:]
    policies = [model, "zero", jitted, lambda s: -0.3 * s[3:], dithered_oracle(0.01)]
    result = evaluate(policies, params, 6, chunk=4)
    names = ["Model", "zero", "<lambda>", "<lambda>#2", "dithered-oracle:0.01"]
    assert [m.policy for m in result.members] == names
    assert result.trials["steps"][:, 0, 0].tolist() == [STEPS, 5]
    for k in (0, 3):
        for metric in ("suboptimality", "coupled_regret", "discounted_return", "steps"):
            ours, theirs = result.trials[metric][:, k], result.trials[metric][:, 2]
            np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-9, err_msg=metric)
    assert set(model.seen) == {((8, 5), True), ((4, 5), True)}  # two fixtures; 4 and 2 trials
    assert len(model.seen) == 2 * STEPS


def test_batched_functions_and_failures():
    def batched(obs):
        assert obs.shape == (4, 5)
        return np.full((4, 2), np.nan)

    policies = [host_policy(batched, "nan", batched=True), lambda s: np.zeros(2)]
    rows = evaluate([*policies, "oracle"], make(), 4, num_steps=STEPS).rows()
    assert [row["policy"] for row in rows] == ["nan", "<lambda>", "oracle"]
    assert [row["failures"] for row in rows] == [4, 0, 0]
    assert (rows[0]["nonfinite"], rows[0]["suboptimality"]["mean"]) == (4, np.inf)
    assert rows[2]["suboptimality"]["mean"] == 0.0 < rows[1]["suboptimality"]["mean"]


def test_what_is_no_policy_of_the_host_is_one_line():
    with pytest.raises(InputError, match="policy int: expected a function, or an object") as caught:
        host_policy(3)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("policy", "words"),
    [
        (lambda s: s, r"expected actions of shape \(2, 2\), numbers, got \(2, 5\)"),
        (lambda s: ["left", "right"], "numbers"),
        (lambda s: s[7:].reshape(2), "it failed on observations of shape"),
        (lambda obs, key: jnp.asarray(np.asarray(obs)[3:]), "cannot take an observation"),
    ],
)
def test_bad_policies_are_one_line(policy, words):
    with pytest.raises(ValueError, match=words) as caught:
        evaluate(policy, make(), 2, num_steps=2)
    assert "\n" not in str(caught.value)


class Reused:
    """Policies that give one array of their own every time, and write into what they are given."""

    def __init__(self):
        self.one, self.all = np.zeros(2), {}

    def single(self, s):
        s *= -0.3
        self.one[:] = s[3:]
        return self.one

    def batch(self, obs):
        out = self.all.setdefault(len(obs), np.zeros((len(obs), 2)))
        obs *= -0.3
        out[:] = obs[:, 3:]
        return out

    predict = batch


def test_a_policy_may_reuse_its_arrays_and_write_into_its_observations():
    own = Reused()
    policies = {
        "plain": lambda s: -0.3 * s[3:],
        "single": own.single,
        "batch": host_policy(own.batch, batched=True),
        "predict": own,
        "view": host_policy(lambda obs: np.multiply(obs, -0.3, out=obs)[:, 3:], batched=True),
    }
    gaps = evaluate(policies, [make(), make(max_steps_in_episode=5)], 4, num_steps=STEPS).trials
    assert np.ptp(gaps["suboptimality"][:, 0], axis=-1).min() > 0.0
    for k in range(1, len(policies)):
        np.testing.assert_array_equal(gaps["suboptimality"][:, k], gaps["suboptimality"][:, 0])
    policy = policies["batch"]
    first = policy.actions(np.ones((2, 5), np.float32), 2)
    policy.actions(np.zeros((2, 5), np.float32), 2)
    assert first.all()


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_an_action_that_is_not_finite_is_a_failure_wherever_it_comes_from(value):
    params = make(action_limit=2.0)

    def late(s):  # one component, at some states
        return np.array([value if s[0] > 0.0 else 0.0, 0.0])

    policies = {
        "host": lambda s: np.full(2, value),
        "late": late,
        "jax": lambda obs, key: jnp.full(2, value),
        "jax late": lambda obs, key: jnp.array([jnp.where(obs[0] > 0.0, value, 0.0), 0.0]),
        "zero": "zero",
    }
    rows = evaluate(policies, params, 8, num_steps=STEPS).rows()
    failures = [row["failures"] for row in rows]
    assert failures[0] == failures[2] == rows[0]["nonfinite"] == rows[2]["nonfinite"] == 8
    assert 0 < failures[1] == failures[3] == rows[1]["nonfinite"]
    assert failures[4] == 0
    assert rows[0]["suboptimality"]["mean"] == np.inf


def test_a_finite_action_beyond_the_dtype_is_clipped_to_the_box():
    params = make(action_limit=2.0)
    huge = evaluate(
        {"huge": lambda s: np.full(2, 1e300), "two": lambda s: np.full(2, 2)}, params, 4
    )
    assert not huge.trials["failed"].any()
    np.testing.assert_array_equal(*np.moveaxis(huge.trials["suboptimality"][0], 0, 0))


class Leaky:
    """A recurrent policy as sb3-contrib has them: a = -0.3 h, h <- 0.7 h + the speeds."""

    def __init__(self):
        self.begun = []

    def predict(self, observation, state=None, episode_start=None, deterministic=False):
        if state is None:
            self.begun.append((len(observation), bool(episode_start.all())))
            state = (np.full((len(observation), 2), 9.0),)  # not used: every row begins
        else:
            assert not episode_start.any()
        h = np.where(episode_start[:, None], 0.0, state[0])
        h = 0.7 * h + observation[:, 3:]
        return -0.3 * h, (h,)


ENV = CommonStreams(cojax.envs.ConverseEnv())
reset, step, advantage = map(jax.jit, (ENV.reset, ENV.step, cojax.oracle.advantage))


def gap_by_hand(params, trial, T):
    """Σ γᵏ A* of the leaky policy on one trial of root 0, stepped alone."""
    system = params.system
    obs, state = reset(streams.stream_key(streams.root_key(0), trial), params)
    h, gap = np.zeros(2), 0.0
    for k in range(T):
        h = 0.7 * h + np.asarray(obs)[3:]
        gap += float(system.gamma) ** k * float(advantage(system, obs, -0.3 * h))
        obs, state, *_ = step(None, state, jnp.asarray(-0.3 * h), params)
    return gap


def test_a_recurrent_policy_keeps_its_memory_row_by_row():
    params = [make(max_steps_in_episode=STEPS + 1), make(max_steps_in_episode=6)]
    policy = Leaky()
    result = evaluate([policy, "zero"], params, 3, chunk=2)
    expected = [
        [gap_by_hand(p, i, T) for i in range(3)] for p, T in ((params[0], 13), (params[1], 6))
    ]
    np.testing.assert_allclose(result.trials["suboptimality"][:, 0], expected, rtol=2e-4)
    assert policy.begun == [(4, True), (2, True)]  # two fixtures; trials 0, 1 and trial 2
    again = evaluate(policy, params, 3, chunk=2)
    np.testing.assert_array_equal(
        again.trials["suboptimality"][:, 0], result.trials["suboptimality"][:, 0]
    )


class Controller:
    """A controller with a memory that only it can empty."""

    def reset(self):
        self.sum = 0.0

    def __call__(self, s):
        return -0.3 * s[3:]

    act = __call__


class Forgetful:
    """Gives a state, and does not take it back."""

    def predict(self, obs):
        return -0.3 * obs[:, 3:], obs


@pytest.mark.parametrize(
    ("policy", "words"),
    [
        (Controller(), "it has a memory of its own, for it has a method reset"),
        (Controller().act, "it has a method reset"),
        (partial(Controller().act), "it has a method reset"),
        (host_policy(Forgetful()), "predict gives a state and takes none"),
        (lambda s: (-0.3 * s[3:], s), "a tuple of 2 where actions were expected"),
        (host_policy(lambda s: (s[:, 3:], None), batched=True), "a tuple of 2"),
        (Policy(params=(), apply=lambda p, obs, key: (obs[3:], obs)), "got a tuple"),
    ],
)
def test_a_memory_that_cannot_be_carried_is_refused_in_one_line(policy, words):
    with pytest.raises(InputError, match=words) as caught:
        evaluate(policy, make(), 2, num_steps=2)
    assert str(caught.value).startswith("policy ")
    assert "\n" not in str(caught.value)


def test_other_places_refuse_what_they_cannot_run():
    pair = Policy(params=(), apply=lambda p, obs, key: (obs[3:], obs), name="pair")
    for run in (cojax.evaluation.diagnose, animate):
        with pytest.raises(InputError, match="got a tuple"):
            run(make(), pair) if run is animate else run(pair, make())
    with pytest.raises(InputError, match="got Leaky"):
        animate(make(), Leaky())


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of scripting itself
def test_recurrent_modules_of_pytorch_are_refused():
    torch = pytest.importorskip("torch")

    class Memory(torch.nn.Module):
        def __init__(self, kind):
            super().__init__()
            self.core, self.head = getattr(torch.nn, kind)(5, 4), torch.nn.Linear(4, 2)

        def forward(self, x):
            h = self.core(x)
            return self.head(h[0] if isinstance(h, tuple) else h)

    class Pair(torch.nn.Module):
        def forward(self, x):
            return x[:, 3:], x

    for module, words in (
        (torch.nn.LSTM(5, 2), r"a recurrent layer \(LSTM\)"),
        *((Memory(kind), rf"\(core, {kind}\)") for kind in ("GRU", "LSTM", "RNN", "GRUCell")),
        (torch.jit.script(Memory("GRUCell")), r"\(core, GRUCell\)"),
        (Pair(), "a tuple of 2"),
    ):
        with pytest.raises(InputError, match=words) as caught:
            evaluate({"net": module}, make(), 2, num_steps=2)
        assert "\n" not in str(caught.value)


def invoke(*arguments):
    return CliRunner().invoke(main, ["evaluate", "--fixture", "nvdex-k1-easy", *arguments])


def box():
    """An environment of the fixture's shape, for models that are not trained."""
    gymnasium = pytest.importorskip("gymnasium")

    class Box(gymnasium.Env):
        observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (5,), np.float32)
        action_space = gymnasium.spaces.Box(-2.0, 2.0, (2,), np.float32)

    return Box()


@pytest.fixture(scope="module")
def archive(tmp_path_factory):
    """A model of Stable-Baselines3 on a box of the fixture's shape, untrained, and its file."""
    sb3 = pytest.importorskip("stable_baselines3")
    made = {}
    for kind, options in (("PPO", {"n_steps": 8, "batch_size": 8}), ("SAC", {"buffer_size": 8})):
        made[kind] = getattr(sb3, kind)("MlpPolicy", box(), seed=0, device="cpu", **options)
        made[kind].save(tmp_path_factory.getbasetemp() / f"{kind}.zip")
    return made, tmp_path_factory.getbasetemp()


@pytest.mark.parametrize("kind", ["PPO", "SAC"])
def test_models_of_stable_baselines3_by_an_explicit_flag(archive, kind):
    models, folder = archive
    path = str(folder / f"{kind}.zip")
    short = ("--trials", "3", "--steps", "5", "--json")
    done = invoke("--sb3", path, "--policy", "zero", *short)
    assert done.exit_code == 0, done.output
    assert done.stderr.strip().splitlines() == [
        f"{path}: a pickle: loading it runs code that is inside; use --sb3 on files you trust"
    ]
    rows = {row["policy"]: row for row in json.loads(done.stdout)}
    assert set(rows) == {"zero", f"{kind}.zip"}
    fixture = cojax.load_fixture("nvdex-k1-easy")
    direct = evaluate({"model": models[kind]}, fixture, 3, num_steps=5).rows()[0]
    assert rows[f"{kind}.zip"]["suboptimality"]["mean"] == pytest.approx(
        direct["suboptimality"]["mean"], rel=1e-6
    )
    refused = invoke("--policy", path, *short)
    assert refused.exit_code == 2
    assert "--sb3" in refused.stderr


def test_files_that_are_no_model_are_one_line(archive, tmp_path):
    other = tmp_path / "other.zip"
    other.write_bytes(b"nothing")
    for path, words in ((other, "expected a model"), (tmp_path / "no.zip", "no such file")):
        done = invoke("--sb3", str(path), "--trials", "2", "--steps", "2")
        assert done.exit_code == 2
        assert words in done.stderr
        assert len(done.stderr.strip().splitlines()) == 1


@pytest.fixture(scope="module")
def contrib(tmp_path_factory):
    """Models of sb3-contrib on a box of the fixture's shape, untrained, and their folder."""
    library = pytest.importorskip("sb3_contrib")
    folder, made = tmp_path_factory.mktemp("contrib"), {}
    on, off = {"n_steps": 8, "batch_size": 8}, {"buffer_size": 8}
    for kind, options in (("RecurrentPPO", on), ("TRPO", on), ("TQC", off), ("CrossQ", off)):
        policy = "MlpLstmPolicy" if kind == "RecurrentPPO" else "MlpPolicy"
        made[kind] = getattr(library, kind)(policy, box(), seed=0, device="cpu", **options)
        made[kind].save(folder / f"{kind}.zip")
    return made, folder


def lstm_by_hand(model, params, trial, T):
    """Σ γᵏ A* of a RecurrentPPO on one trial of root 0, alone, by its own predict."""
    env, system = CommonStreams(cojax.envs.ConverseEnv()), params.system
    obs, state = env.reset(streams.stream_key(streams.root_key(0), trial), params)
    memory, gap = None, 0.0
    for k in range(T):
        start = np.array([k == 0])
        a, memory = model.predict(np.asarray(obs)[None], memory, start, deterministic=True)
        gap += float(system.gamma) ** k * float(cojax.oracle.advantage(system, obs, a[0]))
        obs, state, *_ = env.step(None, state, jnp.asarray(a[0]), params)
    return gap


def test_recurrent_ppo_is_scored_with_its_memory(contrib):
    model, fixture = contrib[0]["RecurrentPPO"], cojax.load_fixture("nvdex-k1-easy")
    found = evaluate({"model": model, "policy": model.policy}, [fixture, fixture], 3, num_steps=10)
    expected = [lstm_by_hand(model, fixture.params, i, 10) for i in range(3)]
    for gaps in found.trials["suboptimality"].reshape(4, 3):
        np.testing.assert_allclose(gaps, expected, rtol=1e-3)
    fresh = {"fresh": lambda s: model.predict(s, deterministic=True)[0]}
    assert (
        abs(evaluate(fresh, fixture, 3, num_steps=10).trials["suboptimality"] - expected).min() > 0
    )


@pytest.mark.parametrize("kind", ["RecurrentPPO", "TRPO", "TQC", "CrossQ"])
def test_models_of_sb3_contrib_are_loaded_as_what_they_are(contrib, kind):
    models, folder = contrib
    path = folder / f"{kind}.zip"
    assert sb3_algorithm(path) == kind
    done = invoke("--sb3", str(path), "--trials", "3", "--steps", "5", "--json")
    assert done.exit_code == 0, done.output
    direct = evaluate(models[kind], cojax.load_fixture("nvdex-k1-easy"), 3, num_steps=5).rows()[0]
    row = json.loads(done.stdout)[0]
    assert row["suboptimality"]["mean"] == pytest.approx(direct["suboptimality"]["mean"], rel=1e-6)


def test_a_recurrent_model_is_never_loaded_as_another(tmp_path, monkeypatch):
    inner = io.BytesIO()
    with zipfile.ZipFile(inner, "w") as weights:
        weights.writestr("policy/data.pkl", b"..lstm_actor.weight_ih_l0..")
    path = tmp_path / "model.zip"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("data", json.dumps({"clip_range": 0.2, "gae_lambda": 0.95}))
        archive.writestr("_stable_baselines3_version", "2.9.2")
        archive.writestr("policy.pth", inner.getvalue())
    assert sb3_algorithm(path) == "RecurrentPPO"
    monkeypatch.setitem(sys.modules, "sb3_contrib", None)
    done = invoke("--sb3", str(path), "--trials", "2")
    assert done.exit_code == 2
    assert "a model of RecurrentPPO: sb3-contrib is not installed" in done.stderr.splitlines()[-1]
