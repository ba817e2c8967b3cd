"""Policies on the host: the same streams and the same metrics as in the compiled program."""

import jax.numpy as jnp
import numpy as np
import pytest
from click.testing import CliRunner
from helpers import numpy_optimum

import cojax
from cojax.cli import main
from cojax.evaluation import evaluate, host_policy
from cojax.evaluation.references import dithered_oracle

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


def invoke(*arguments):
    return CliRunner().invoke(main, ["evaluate", "--fixture", "nvdex-k1-easy", *arguments])


@pytest.fixture(scope="module")
def archive(tmp_path_factory):
    """A model of Stable-Baselines3 on a box of the fixture's shape, untrained, and its file."""
    sb3 = pytest.importorskip("stable_baselines3")
    gymnasium = pytest.importorskip("gymnasium")

    class Box(gymnasium.Env):
        observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (5,), np.float32)
        action_space = gymnasium.spaces.Box(-2.0, 2.0, (2,), np.float32)

    made = {}
    for kind, options in (("PPO", {"n_steps": 8, "batch_size": 8}), ("SAC", {"buffer_size": 8})):
        made[kind] = getattr(sb3, kind)("MlpPolicy", Box(), seed=0, device="cpu", **options)
        made[kind].save(tmp_path_factory.getbasetemp() / f"{kind}.zip")
    return made, tmp_path_factory.getbasetemp()


@pytest.mark.parametrize("kind", ["PPO", "SAC"])
def test_models_of_stable_baselines3_by_an_explicit_flag(archive, kind):
    import json

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
