"""The evaluator against what is known: exact zeros, exact gaps, and the wrapped environment."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import scope
from scipy.linalg import solve_discrete_lyapunov

import cojax
from cojax import precision, streams
from cojax.evaluation import evaluate
from cojax.evaluation.linearised import linearisation
from cojax.evaluation.named_systems import group_by_shape
from cojax.evaluation.rollout import Sum
from cojax.initial import Fixed
from cojax.policy import Policy

SYSTEMS = {
    "arm4": ("ConverseArm-v0", {"n": 4, "p": 0.5, "seed": 7}),
    "nvdex": ("NVDEx-v0", {"K": 1, "preset": "easy"}),
}
# one list in all tests, so that a system costs one compilation
POLICIES = ["oracle", "zero", "lqr", "random", "dithered-oracle:0.05", "detuned-oracle:0.8"]


def make(name, **options):
    family, build = SYSTEMS[name]
    return cojax.make(family, **build, **options)[1]


def linear(params, obs, key):
    return params["K"] @ obs


def test_the_oracle_is_exactly_optimal_on_every_trial():
    for name in SYSTEMS:
        result = evaluate(POLICIES, make(name), 64, num_steps=40)
        for metric in ("suboptimality", "paper_regret", "coupled_regret", "action_distance"):
            assert not result.trials[metric][:, 0].any(), (name, metric)
            assert result.trials[metric][:, 1].any(), (name, metric)
        assert (result.trials["steps"] == 40).all()


@pytest.mark.slow
def test_the_oracle_is_exactly_optimal_on_every_shipped_fixture():
    fixtures = [cojax.load_fixture(name) for name in cojax.fixtures.shipped()]
    result = evaluate(["zero", "oracle"], fixtures, 8, num_steps=64)
    assert not result.trials["suboptimality"][:, 1].any()
    assert result.trials["suboptimality"][:, 0].all()


def test_canaries_equal_to_the_oracle_have_no_gap():
    policies = ["oracle", "zero", "lqr", "random", "dithered-oracle:0", "detuned-oracle:1"]
    result = evaluate(policies, make("arm4"), 8, num_steps=40)
    assert not result.trials["suboptimality"][:, [0, 4, 5]].any()


def test_dithered_oracle_has_the_gap_that_theory_gives():
    params = make("nvdex")
    system, std = params.system, 0.05
    T, gamma = 200, float(system.gamma)
    eye = jnp.eye(system.action_dim)
    trace_B = float(jax.vmap(lambda a: system.excess_cost(jnp.zeros(5), a))(eye).sum())
    exact = std**2 * trace_B * (1.0 - gamma**T) / (1.0 - gamma)
    row = evaluate(POLICIES, params, 512, 3, num_steps=T).rows()[4]
    assert row["policy"] == "dithered-oracle:0.05"
    for metric in ("suboptimality", "tail_corrected"):
        assert row[metric]["low"] < exact < row[metric]["high"], metric
    width = {m: row[m]["high"] - row[m]["low"] for m in ("suboptimality", "tail_corrected")}
    assert row["suboptimality"]["mean"] == pytest.approx(exact, rel=0.02)
    assert width["suboptimality"] < 0.03 * exact
    assert width["suboptimality"] < width["tail_corrected"]


def test_the_tail_that_the_horizon_cuts_is_scaled_by_the_tail_value():
    """The dithered oracle's own gap is tr(BC)/(1-γ) from every state: γᵀ of it is cut at T."""
    params, std, T = make("nvdex"), 0.05, 60
    system, gamma = params.system, float(params.system.gamma)
    trace_B = jax.vmap(lambda a: system.excess_cost(jnp.zeros(5), a))(jnp.eye(2)).sum()
    whole = std**2 * float(trace_B) / (1.0 - gamma)
    result = evaluate(f"dithered-oracle:{std}", params, 256, 3, num_steps=T)
    row = result.rows()[0]
    gap, tail = row["suboptimality"], row["tail_value"]
    assert gap["high"] < 0.6 * whole  # not the gap of the policy itself
    cut = gamma**T * whole
    assert gap["low"] + cut < whole < gap["high"] + cut
    rho = whole / float(system.offset)  # V^π = V* + whole, and V* >= b
    assert cut < rho * tail < 4.0 * cut
    assert (result.frame()["tail_value"] == result.trials["tail_value"].ravel()).all()
    failing = evaluate({"nan": lambda obs, key: jnp.nan * obs[:2]}, params, 4, num_steps=5)
    assert np.isinf(failing.rows()[0]["tail_value"])


def test_the_gap_of_a_linear_policy_is_that_of_lyapunov_less_its_tail():
    """V^π = sᵀX s + b_π, X = Q + KᵀRK + γ FᵀX F, F = A - BK, and moments of s_T in closed form."""
    with scope("float64"):
        s0, T = np.array([1.0, -0.5]), 30
        params = cojax.make("DoubleIntegrator-v0", initial_state=Fixed(jnp.asarray(s0)))[1]
        system = params.system
        A, B, Q, R = linearisation(system)
        K, gamma = np.array([[6.0, 9.0]]), float(system.gamma)
        F, P = A - B @ K, np.asarray(system.P)
        Sigma = np.diag(np.asarray(system.noise.covariance()))
        X = solve_discrete_lyapunov(np.sqrt(gamma) * F.T, Q + K.T @ R @ K)
        offsets = [gamma / (1.0 - gamma) * np.trace(M @ Sigma) for M in (X, P)]
        moment = np.outer(s0, s0)
        whole = s0 @ (X - P) @ s0 + offsets[0] - offsets[1]
        for _ in range(T):
            moment = F @ moment @ F.T + Sigma
        cut = gamma**T * (np.sum((X - P) * moment) + offsets[0] - offsets[1])
        tail = gamma**T * (np.sum(P * moment) + offsets[1])
        linear = {"linear": lambda obs, key: -jnp.asarray(K) @ obs}
        row = evaluate(linear, params, 1024, num_steps=T).rows()[0]
    assert 0.05 * whole < cut  # otherwise there is nothing to see
    assert row["suboptimality"]["low"] < whole - cut < row["suboptimality"]["high"]
    assert row["tail_value"] == pytest.approx(tail, rel=0.02)
    larger = max(np.linalg.eigvals(np.linalg.solve(P, X)).real.max(), offsets[0] / offsets[1])
    assert cut <= (larger - 1.0) * tail


def test_an_evaluation_is_of_one_piece():
    result = evaluate(["zero", "oracle"], make("nvdex"), 4, num_steps=4)
    for change, message in (
        ({"members": result.members[:1]}, "trials: expected 1 fixtures and 1 members"),
        ({"fixtures": ("a", "b")}, "trials: expected 2 fixtures and 2 members"),
        ({"hashes": (None, None)}, "hashes: expected one for each of 1 fixtures, got 2"),
        ({"horizons": np.zeros(3)}, "horizons: expected one for each of 1 fixtures, got 3"),
    ):
        with pytest.raises(ValueError, match=message):
            dataclasses.replace(result, **change)


def test_members_of_a_population_meet_the_instances_of_the_wrapped_environment():
    params = cojax.stack([make("nvdex", max_steps_in_episode=T) for T in (30, 20)])
    env = cojax.envs.CommonStreams(cojax.envs.ConverseEnv())
    K = -0.3 * jax.random.normal(jax.random.key(1), (3, 2, 2, 2, 5))
    trained = Policy({"K": K}, linear, "trained", ("hyperparameters", "fixture", "seed"))

    def rollout(stream, env_params, K):
        obs, state = env.reset(stream, env_params)

        def step(carry, k):
            obs, state, total, running = carry
            obs, state, reward, _, truncated, _ = env.step(stream, state, K @ obs, env_params)
            total = total + jnp.where(running, 0.99**k * reward, 0.0)
            return (obs, state, total, running & ~truncated), obs

        start = (obs, state, 0.0, jnp.array(True))
        (*_, total, _), _ = jax.lax.scan(step, start, jnp.arange(30))
        return env_params.system.value(obs), total

    over_trials = jax.vmap(rollout, (0, None, None))
    over_fixtures = jax.vmap(over_trials, (None, 0, 0))
    over_settings = jax.vmap(over_fixtures, (None, None, 0))
    over_seeds = jax.jit(jax.vmap(over_settings, (None, None, 2)))
    value, returns = over_seeds(streams.stream_keys(5, 8), params, K)
    result = evaluate([trained, "zero"], params, 8, 5)
    assert [(m.hyperparameters, m.seed) for m in result.members[:3]] == [(0, 0), (0, 1), (1, 0)]
    returns = jnp.transpose(returns, (2, 1, 0, 3)).reshape(2, 6, 8)
    np.testing.assert_allclose(result.trials["discounted_return"][:, :6], returns, rtol=2e-5)
    np.testing.assert_allclose(result.trials["optimal_value"][0, 0], value[0, 0, 0], rtol=1e-6)

    rows = result.rows(num_resamples=200)
    assert [r["policy"] for r in rows] == ["trained", "trained", "trained", "zero"] * 2
    assert rows[1]["setting"] == 1
    assert rows[0]["num_seeds"] == 2
    frame = result.frame()
    assert len(frame) == 2 * 7 * 8
    assert set(frame["seed"].dropna()) == {0, 1}


def test_every_policy_and_fixture_meets_the_same_streams():
    short, long = (make("nvdex", max_steps_in_episode=T) for T in (10, 25))
    result = evaluate(POLICIES, {"a": long, "b": short, "c": long}, 8)
    assert result.fixtures == ("a", "b", "c")
    assert result.horizons.tolist() == [25, 10, 25]
    assert result.trials["steps"][:, 1, 0].tolist() == [25.0, 10.0, 25.0]
    for values in result.trials.values():
        np.testing.assert_array_equal(values[0], values[2])
    value = result.trials["optimal_value"]
    np.testing.assert_array_equal(value, np.broadcast_to(value[:1, :1], value.shape))
    alone = evaluate(POLICIES, short, 8)
    np.testing.assert_allclose(
        result.trials["suboptimality"][1], alone.trials["suboptimality"][0], rtol=1e-5, atol=1e-9
    )
    other = evaluate(POLICIES, short, 8, root=1)
    assert not np.any(other.trials["optimal_value"] == alone.trials["optimal_value"])


def test_estimators_agree_on_the_zero_policy_and_with_the_known_size_of_its_gap():
    rows = {}
    for name, (low, high) in {"arm4": (7.0, 9.5), "nvdex": (0.7, 0.95)}.items():
        row = evaluate(POLICIES, make(name), 256).rows()[1]
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
    single = evaluate(POLICIES, make("arm4"), 16, num_steps=200)
    with precision.x64():
        params = make("arm4")
    double = evaluate(POLICIES, params, 16, num_steps=200)
    assert (single.dtype, double.dtype) == ("float32", "float64")
    contracting = [POLICIES.index(name) for name in POLICIES if "oracle" in name]
    for metric in ("suboptimality", "tail_corrected", "paper_regret", "discounted_return"):
        error = np.abs(single.trials[metric] - double.trials[metric])[0, contracting]
        relative = error / double.trials["optimal_value"][0, 0]
        assert 0.0 < relative.max() < 5e-6, (metric, relative.max())
    gap = double.trials["suboptimality"][0, POLICIES.index("dithered-oracle:0.05")]
    error = single.trials["suboptimality"][0, POLICIES.index("dithered-oracle:0.05")] - gap
    assert np.abs(error / gap).max() < 5e-6


def test_compensated_sums_keep_what_float32_loses():
    terms = np.float32(0.1) * np.ones(10_000, np.float32)
    total = Sum(jnp.float32(1e4), jnp.float32(0.0))
    total = jax.lax.fori_loop(0, len(terms), lambda i, t: t.add(jnp.float32(0.1)), total)
    exact = 1e4 + np.float64(terms).sum()
    assert abs(np.float64(total.high) + np.float64(total.low) - exact) < 1e-9 * exact


def test_trials_do_not_depend_on_their_number_nor_on_chunks():
    params = make("nvdex")
    many = evaluate(POLICIES, params, 140, num_steps=50)
    few = evaluate(POLICIES, params, 3, num_steps=50)
    for name, values in few.trials.items():
        np.testing.assert_array_equal(values, many.trials[name][..., :3])
    for chunk in (1, 7):
        other = evaluate(POLICIES, params, 9, num_steps=50, chunk=chunk)
        assert not other.trials["suboptimality"][:, 0].any(), chunk
        value = other.trials["optimal_value"]
        for metric in ("suboptimality", "tail_corrected", "discounted_return"):
            error = np.abs(other.trials[metric] - many.trials[metric][..., :9])
            bound = 1e-5 * (value + np.abs(other.trials[metric]))
            assert (error < bound).all(), (chunk, metric)


def test_shapes_are_grouped_and_come_back_in_order():
    medium = cojax.make("NVDEx-v0", K=1, preset="medium")[1]
    systems = [make("nvdex"), make("arm4"), make("nvdex"), medium]
    assert group_by_shape(systems) == [[0, 2, 3], [1]]
    result = evaluate(POLICIES, systems, 3, num_steps=5)
    assert result.trials["failed"].shape == (4, len(POLICIES), 3)
    gap = result.trials["suboptimality"]
    np.testing.assert_array_equal(gap[0], gap[2])
    for index in (1, 3):
        alone = evaluate(POLICIES, systems[index], 3, num_steps=5).trials["suboptimality"][0]
        np.testing.assert_allclose(gap[index], alone, rtol=1e-5, atol=1e-9)
    assert result.fixtures[:2] == ("NVDEx-d5-p0.50#0", "ConverseArm-d8-p0.50")


def misbehave(params, obs, key):
    """NaN; away from the origin; to one side; NaN from far starts alone."""
    far = jnp.where(obs[0] > 1.0, jnp.nan, 0.0) * jnp.ones(2)
    kinds = [jnp.full(2, jnp.nan), 50.0 * obs[3:], jnp.array([9.0, -9.0]), far]
    return jnp.stack(kinds)[params]


def test_bad_policies_are_reported_as_what_they_are():
    policies = {
        kind: Policy(params=jnp.asarray(i), apply=misbehave)
        for i, kind in enumerate(("nonfinite", "diverged", "saturated", "partly"))
    }
    states = np.zeros((4, 5))
    states[:, 0] = [0.1, 0.1, 0.1, 3.0]
    result = evaluate(
        {**policies, "zero": "zero"}, make("nvdex", action_limit=None), 8, initial_states=states
    )
    rows = {row["policy"]: row for row in result.rows()}
    assert rows["zero"]["failures"] == 0
    assert np.isfinite(rows["zero"]["suboptimality"]["mean"])
    assert (rows["saturated"]["saturated"], rows["saturated"]["failures"]) == (1.0, 0)
    for kind in ("nonfinite", "diverged"):
        row = rows[kind]
        assert row["failures"] == row[kind] == 8
        assert row["suboptimality"] == {"mean": np.inf, "low": np.inf, "high": np.inf}
        assert row["suboptimality_completed"] is None
        assert row["discounted_return"]["mean"] == -np.inf
    partly, gap = rows["partly"], result.trials["suboptimality"][0, 3]
    assert partly["failures"] == 2
    assert partly["suboptimality"]["mean"] == np.inf
    completed = gap[np.isfinite(gap)]
    assert len(completed) == 6
    assert partly["suboptimality_completed"]["mean"] == pytest.approx(completed.mean())


def test_the_same_root_gives_the_same_rows():
    first, second = (evaluate(POLICIES, make("nvdex"), 16, 2, num_steps=10) for _ in range(2))
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


def test_starts_that_fit_one_shape_of_several_are_one_line():
    with pytest.raises(ValueError, match=r"expected shape \(k, 8\), got \(1, 5\)") as caught:
        evaluate("zero", [make("nvdex"), make("arm4")], 2, num_steps=2, initial_states=[[0.1] * 5])
    assert "\n" not in str(caught.value)


def test_bad_systems_are_one_line():
    for params, words in (([], "empty list"), ([3], "expected EnvParams or a fixture")):
        with pytest.raises(ValueError, match=words):
            evaluate("zero", params, 2)
    with pytest.raises(ValueError, match="expected 1 names"):
        evaluate("zero", make("nvdex"), 2, names=["a", "b"])


def test_shares_of_an_optimal_value_of_0_are_0_or_infinite():
    system = cojax.families.ConverseArm.build(n=2, p=0.6, Sigma=0.0)
    params = cojax.envs.env_params(system, cojax.initial.Uniform(-jnp.ones(4), jnp.ones(4)))

    def push(obs, key):
        return jnp.full(2, 0.1)

    policies, starts = ["oracle", "zero", push], [[0.0] * 4, [1.0, 0.0, 0.0, 0.0]]
    for count, options in ((4, {}), (4, {"controls": True})):
        found = evaluate(policies, params, count, num_steps=8, initial_states=starts, **options)
        at_rest = found.trials["relative_suboptimality"][0, :, ::2]
        assert at_rest.tolist() == [[0.0, 0.0], [0.0, 0.0], [np.inf, np.inf]]
        assert (found.trials["relative_tail_corrected"][0, :2, ::2] == 0.0).all()
        assert not any(np.isnan(values).any() for values in found.trials.values())
        oracle, zero, pushed = found.rows()
        assert oracle["relative_suboptimality"] == {"mean": 0.0, "low": 0.0, "high": 0.0}
        assert 0.0 < zero["relative_suboptimality"]["mean"] < np.inf
        assert set(pushed["relative_suboptimality"].values()) == {np.inf}
        assert 0.0 < pushed["suboptimality"]["mean"] < np.inf
        assert pushed["failures"] == 0
    seeds = Policy(params={"a": jnp.array([0.1, 0.0])}, apply=constant, axes=("seed",))
    row = evaluate(seeds, params, 4, num_steps=8, initial_states=starts).rows()[0]
    assert row["relative_suboptimality"]["mean"] == np.inf
    assert np.isfinite(list(row["suboptimality"].values())).all()


def constant(params, obs, key):
    return jnp.broadcast_to(params["a"], 2)


def test_progress_is_told_of_all_trials_in_the_end(capsys):
    systems = [cojax.load_fixture(name) for name in ("arm-n2-p0.80-s7", "point-mass")]
    told = []
    result = cojax.evaluate(
        "zero", systems, 6, num_steps=4, chunk=4, progress=lambda *done: told.append(done)
    )
    assert result.num_trials == 6
    assert told == [(4, 12), (6, 12), (10, 12), (12, 12)]
    assert capsys.readouterr().err == ""
    with pytest.raises(ValueError, match="progress: expected auto, None or a function, got 3"):
        cojax.evaluate("zero", systems, 2, num_steps=2, progress=3)
