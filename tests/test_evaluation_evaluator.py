"""The evaluator against what is known: exact zeros, exact gaps, and the wrapped environment."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import cojax
from cojax import precision, streams
from cojax.evaluation import evaluate
from cojax.evaluation.evaluator import group_by_shape
from cojax.policy import Policy

SYSTEMS = {
    "arm4": ("ConverseArm-v0", {"n": 4, "p": 0.5, "seed": 7}),
    "nvdex": ("NVDEx-v0", {"K": 1, "preset": "easy"}),
    "nvdex2": ("NVDEx-v0", {"K": 2, "preset": "insane"}),
}


def make(name, **options):
    family, build = SYSTEMS[name]
    return cojax.make(family, **build, **options)[1]


def linear(params, obs, key):
    return params["K"] @ obs


def test_the_oracle_is_exactly_optimal_at_any_batch_size():
    for name in SYSTEMS:
        for num_trials, others in ((1, []), (5, ["zero"]), (64, ["zero", "random"])):
            result = evaluate([*others, "oracle"], make(name), num_trials, num_steps=40)
            for metric in ("suboptimality", "paper_regret", "coupled_regret", "action_distance"):
                assert not result.trials[metric][:, -1].any(), (name, num_trials, metric)
            assert (result.trials["steps"] == 40).all()


def test_canaries_equal_to_the_oracle_have_no_gap():
    result = evaluate(["dithered-oracle:0", "detuned-oracle:1"], make("arm4"), 8, num_steps=40)
    assert not result.trials["suboptimality"].any()


def test_dithered_oracle_has_the_gap_that_theory_gives():
    params = make("nvdex")
    system, std = params.system, 0.05
    T, gamma = 200, float(system.gamma)
    eye = jnp.eye(system.action_dim)
    trace_B = float(jax.vmap(lambda a: system.excess_cost(jnp.zeros(5), a))(eye).sum())
    exact = std**2 * trace_B * (1.0 - gamma**T) / (1.0 - gamma)
    result = evaluate(f"dithered-oracle:{std}", params, 512, 3, num_steps=T)
    row = result.rows()[0]
    for metric in ("suboptimality", "tail_corrected"):
        assert row[metric]["low"] < exact < row[metric]["high"], metric
    width = {m: row[m]["high"] - row[m]["low"] for m in ("suboptimality", "tail_corrected")}
    assert row["suboptimality"]["mean"] == pytest.approx(exact, rel=0.02)
    assert width["suboptimality"] < 0.03 * exact
    assert width["suboptimality"] < width["tail_corrected"]


def test_trials_are_the_instances_of_the_wrapped_environment():
    params = make("nvdex", max_steps_in_episode=30)
    env = cojax.envs.CommonStreams(cojax.envs.ConverseEnv())
    K = -0.3 * jax.random.normal(jax.random.key(1), (2, 5))
    gamma = params.system.gamma

    def rollout(stream):
        obs, state = env.reset(stream, params)

        def step(carry, k):
            obs, state, total = carry
            obs, state, reward, *_ = env.step(stream, state, K @ obs, params)
            return (obs, state, total + gamma**k * reward), None

        (*_, total), _ = jax.lax.scan(step, (obs, state, 0.0), jnp.arange(30))
        return params.system.value(obs), total

    value, returns = jax.vmap(rollout)(streams.stream_keys(5, 16))
    result = evaluate(Policy(params={"K": K}, apply=linear), params, 16, 5, chunk=7)
    np.testing.assert_allclose(result.trials["optimal_value"][0, 0], value, rtol=1e-6)
    np.testing.assert_allclose(result.trials["discounted_return"][0, 0], returns, rtol=2e-5)


def test_every_policy_and_fixture_meets_the_same_streams():
    easy = make("nvdex")
    result = evaluate(["zero", "lqr"], {"a": easy, "b": easy}, 8, num_steps=20)
    assert result.fixtures == ("a", "b")
    for values in result.trials.values():
        np.testing.assert_array_equal(values[0], values[1])
    np.testing.assert_array_equal(
        result.trials["optimal_value"][:, 0], result.trials["optimal_value"][:, 1]
    )
    other = evaluate("zero", easy, 8, root=1, num_steps=20)
    assert not np.any(other.trials["optimal_value"][0, 0] == result.trials["optimal_value"][0, 0])


def test_estimators_agree_on_the_zero_policy_and_with_the_known_size_of_its_gap():
    rows = {}
    for name, (low, high) in {"arm4": (7.0, 9.5), "nvdex": (0.7, 0.95)}.items():
        row = evaluate("zero", make(name), 256).rows()[0]
        rows[name] = row
        assert low < row["relative_suboptimality"]["mean"] < high
        corrected = row["relative_tail_corrected"]
        assert corrected["low"] < row["relative_suboptimality"]["mean"] < corrected["high"]
        assert row["paper_regret"]["mean"] < 0.0 < row["coupled_regret"]["mean"]
        assert row["failures"] == 0
    row = rows["arm4"]
    assert -row["paper_optgap"]["mean"] == pytest.approx(
        row["relative_suboptimality"]["mean"], rel=0.02
    )
    assert row["coupled_regret"]["mean"] == pytest.approx(row["suboptimality"]["mean"], rel=0.02)


def test_float32_sums_agree_with_float64():
    policies = ["zero", "detuned-oracle:0.5", "lqr"]
    single = evaluate(policies, make("arm4"), 16, num_steps=200)
    with precision.x64():
        params = make("arm4")
    double = evaluate(policies, params, 16, num_steps=200)
    assert (single.dtype, double.dtype) == ("float32", "float64")
    value = double.trials["optimal_value"][0, 0]
    for metric in ("suboptimality", "tail_corrected", "paper_regret", "discounted_return"):
        error = np.abs(single.trials[metric] - double.trials[metric]) / value
        assert error.max() < 1e-4, (metric, error.max())


def test_chunks_give_the_same_trials():
    params = make("arm4")
    whole = evaluate(["zero", "random"], params, 20, num_steps=100, chunk=20)
    for chunk in (1, 7):
        parts = evaluate(["zero", "random"], params, 20, num_steps=100, chunk=chunk)
        value = whole.trials["optimal_value"]
        for metric in ("suboptimality", "tail_corrected", "discounted_return"):
            error = np.abs(parts.trials[metric] - whole.trials[metric]) / value
            bound = 1e-5 * (1.0 + np.abs(whole.trials["suboptimality"]) / value)
            assert (error < bound).all(), (chunk, metric, error.max())


def test_horizons_may_differ_between_stacked_systems():
    short, long = (make("nvdex", max_steps_in_episode=T) for T in (10, 25))
    both = evaluate("zero", cojax.stack([short, long]), 4)
    assert both.horizons.tolist() == [10, 25]
    assert both.trials["steps"][:, 0, 0].tolist() == [10.0, 25.0]
    alone = evaluate("zero", short, 4)
    np.testing.assert_allclose(
        both.trials["suboptimality"][0], alone.trials["suboptimality"][0], rtol=1e-6
    )


def test_shapes_are_grouped_and_come_back_in_order():
    systems = [make(name) for name in ("arm4", "nvdex", "arm4", "nvdex2")]
    assert group_by_shape(systems) == [[0, 2], [1], [3]]
    result = evaluate("zero", systems, 3, num_steps=5)
    assert result.trials["failed"].shape == (4, 1, 3)
    np.testing.assert_array_equal(
        result.trials["suboptimality"][0], result.trials["suboptimality"][2]
    )
    assert result.fixtures[0] == "ConverseArm-d8-p0.50#0"


def test_populations_are_expanded_by_their_labels():
    params = cojax.stack([make("nvdex"), make("nvdex")])
    K = 0.1 * jax.random.normal(jax.random.key(0), (3, 2, 4, 2, 5))
    policy = Policy({"K": K}, linear, "trained", ("hyperparameters", "fixture", "seed"))
    result = evaluate([policy, "zero"], params, 6, num_steps=15)
    assert len(result.members) == 13
    assert result.members[5].hyperparameters == 1
    assert result.members[5].seed == 1
    alone = policy.member(hyperparameters=1, fixture=1, seed=1)
    single = evaluate(alone, make("nvdex"), 6, num_steps=15)
    np.testing.assert_allclose(
        result.trials["suboptimality"][1, 5], single.trials["suboptimality"][0, 0], rtol=1e-5
    )
    rows = result.rows(num_resamples=200)
    assert [r["policy"] for r in rows] == ["trained", "trained", "trained", "zero"] * 2
    assert rows[0]["num_seeds"] == 4
    frame = result.frame()
    assert len(frame) == 2 * 13 * 6
    assert set(frame["seed"].dropna()) == {0, 1, 2, 3}


@pytest.mark.parametrize("kind", ["nonfinite", "diverged", "saturated"])
def test_bad_policies_are_reported_as_what_they_are(kind):
    acts = {
        "nonfinite": lambda obs, key: jnp.full(2, jnp.nan),
        "diverged": lambda obs, key: 50.0 * obs[3:],
        "saturated": lambda obs, key: jnp.array([9.0, -9.0]),
    }
    limit = {"action_limit": None} if kind == "diverged" else {}
    result = evaluate({"bad": acts[kind], "zero": "zero"}, make("nvdex", **limit), 8)
    bad, zero = result.rows()
    assert zero["failures"] == 0
    assert np.isfinite(zero["suboptimality"]["mean"])
    if kind == "saturated":
        assert bad["saturated"] == 1.0
        assert bad["failures"] == 0
        return
    assert bad["failures"] == bad[kind] == 8
    assert bad["suboptimality"] == {"mean": np.inf, "low": np.inf, "high": np.inf}
    assert bad["suboptimality_completed"] is None
    assert bad["discounted_return"]["mean"] == -np.inf


def test_one_failed_trial_is_not_averaged_away():
    states = np.zeros((4, 5))
    states[:, 0] = [0.1, 0.1, 0.1, 3.0]

    def act(obs, key):
        return jnp.where(obs[0] > 1.0, jnp.nan, 0.0) * jnp.ones(2)

    result = evaluate(act, make("nvdex"), 8, num_steps=20, initial_states=states)
    row = result.rows()[0]
    assert row["failures"] == 2
    assert row["suboptimality"]["mean"] == np.inf
    completed = np.isfinite(result.trials["suboptimality"][0, 0])
    assert completed.sum() == 6
    assert row["suboptimality_completed"]["mean"] == pytest.approx(
        result.trials["suboptimality"][0, 0][completed].mean()
    )


def test_the_same_root_gives_the_same_rows():
    first, second = (evaluate("random", make("nvdex"), 16, 2, num_steps=10) for _ in range(2))
    assert first.rows() == second.rows()


@pytest.mark.parametrize(
    ("policies", "options", "words"),
    [
        ([], {}, "policies: expected at least one"),
        ("orcle", {}, "did you mean 'oracle'"),
        ("dithered-oracle", {}, "expected dithered-oracle:STD"),
        ("dithered-oracle:-1", {}, "expected dithered-oracle:STD"),
        ("zero:3", {}, "takes no number"),
        (3, {}, "expected a policy"),
        ("zero", {"num_trials": 0}, "num_trials: expected a whole number >= 1"),
        ("zero", {"num_steps": 0}, "num_steps"),
        ("zero", {"chunk": 0}, "chunk"),
        ("zero", {"root": -1}, "root"),
        ("zero", {"initial_states": np.zeros(3)}, r"expected shape \(k, 5\)"),
        (lambda obs, key: obs, {}, r"expected an action of shape \(2,\), got \(5,\)"),
        (lambda obs, key: jnp.zeros((2, 3)) @ obs, {}, "cannot take an observation"),
        (Policy(jnp.zeros((2, 3)), linear, axes=("seeds", "x")), {}, "expected axes out of"),
        (Policy(jnp.zeros((2, 3)), linear, axes=("fixture",)), {}, "trained on 2 fixtures"),
    ],
)
def test_bad_input_is_one_line(policies, options, words):
    with pytest.raises(ValueError, match=words) as caught:
        evaluate(policies, make("nvdex"), **{"num_trials": 2, **options})
    assert "\n" not in str(caught.value)


def test_bad_systems_are_one_line():
    for params, words in (([], "empty list"), ([3], "expected EnvParams or a fixture")):
        with pytest.raises(ValueError, match=words):
            evaluate("zero", params, 2)
    with pytest.raises(ValueError, match="expected 1 names"):
        evaluate("zero", make("nvdex"), 2, names=["a", "b"])
