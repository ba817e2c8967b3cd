"""Control variates: the same mean, less variance, and no bias."""

import numpy as np
import pytest

import cojax
from cojax.evaluation import estimator_efficiency, evaluate
from cojax.evaluation.control_variates import choose, controlled
from cojax.evaluation.doctor import dithered_gap
from cojax.evaluation.intervals import interval_of_mean

POLICIES = ["detuned-oracle:0.5", "dithered-oracle:0.05", "zero", "oracle"]
STEPS = 60


def params():
    return cojax.make("NVDEx-v0", K=1, preset="easy")[1]


def test_the_same_mean_from_fewer_trials():
    result = evaluate(POLICIES, params(), 512, 3, num_steps=STEPS, controls=True)
    plain, ours = (result.trials[name][0] for name in ("suboptimality", "suboptimality_controlled"))
    for k, least in ((0, 5.0), (1, 0.85), (2, 5.0)):
        assert plain[k].var() > least * ours[k].var(), POLICIES[k]
        _, low, high = interval_of_mean(plain[k] - ours[k])
        assert low <= 0.0 <= high, POLICIES[k]
    assert not ours[3].any()
    exact = dithered_gap(params(), 0.05, STEPS)
    row = result.rows()[1]["suboptimality_controlled"]
    assert row["low"] < exact < row["high"]
    rows = {row["policy"]: row for row in estimator_efficiency(result)}
    assert rows["zero"]["controlled_ratio"] > 5.0 * rows["zero"]["ratio"]
    assert {row["controlled_agree"] for row in rows.values()} == {True}


def test_there_is_no_bias_where_few_trials_meet_many_variates():
    """The gap is quadratic in variates, so that fitted to all trials the mean would be biased."""
    rng = np.random.default_rng(0)
    c = rng.normal(size=(4000, 40, 5))
    gaps = np.sum(c**2, axis=-1) + 4.0 * c[..., 0] + 0.1 * rng.normal(size=(4000, 40)) ** 2
    means = [
        controlled(x, z[:, :3], z[:, 3], z[:, 4:]).mean() for x, z in zip(gaps, c, strict=True)
    ]
    assert abs(np.mean(means) - 5.1) < 4.0 * np.std(means) / np.sqrt(4000)
    assert np.var(means) < 0.7 * np.var(gaps.mean(axis=1))


def test_starts_that_are_listed_and_few_trials():
    states = np.array([[0.1, 0.0, 0.0, 0.1, 0.0], [0.0, 0.2, 0.1, 0.0, 0.0]])
    result = evaluate(
        POLICIES, params(), 512, num_steps=STEPS, initial_states=states, controls=True
    )
    plain, ours = (
        result.trials[name][0, 2] for name in ("suboptimality", "suboptimality_controlled")
    )
    low, high = interval_of_mean(plain - ours)[1:]
    assert low <= 0.0 <= high
    assert plain.var() > 3.0 * ours.var()
    assert [choose(n, 5) for n in (15, 16, 168, 248)] == [None, "value", "squares", "all"]
    few = evaluate(POLICIES, params(), 8, num_steps=STEPS, controls=True).trials
    np.testing.assert_array_equal(few["suboptimality"], few["suboptimality_controlled"])


def test_a_failure_stays_one():
    gap = np.r_[np.ones(9), np.inf]
    np.testing.assert_array_equal(controlled(gap, np.eye(10), gap, np.eye(10)), gap)
    assert "suboptimality_controlled" not in evaluate("zero", params(), 2, num_steps=2).trials


@pytest.mark.parametrize("num_members", [1, 3])
def test_policies_on_the_host_have_variates_too(num_members):
    policies = {"jax": lambda obs, key: -0.3 * obs[3:], "numpy": lambda obs: -0.3 * obs[3:]}
    policies |= {str(k): "zero" for k in range(num_members - 1)}
    result = evaluate(policies, params(), 32, num_steps=8, controls=True)
    ours = result.trials["suboptimality_controlled"][0]
    np.testing.assert_allclose(ours[0], ours[1], rtol=1e-3, atol=1e-7)
    assert (ours[0] != result.trials["suboptimality"][0, 0]).all()
