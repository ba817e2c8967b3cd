"""The receding-horizon controller: between the linear regulator and the optimum."""

from __future__ import annotations

import json

import jax
import numpy as np
import pytest
from click.testing import CliRunner

import cojax
from cojax import cli
from cojax.errors import InputError
from cojax.evaluation import lqr_gain, parse_policy, planning, receding_horizon


def planner(name: str, horizon: int) -> planning.Planner:
    return planning.make_planner(horizon, cojax.load_fixture(name).params)


@pytest.mark.parametrize(
    ("fixture", "steps", "share"), [("arm-n4-p0.50-s7", 64, 0.01), ("nvdex-k1-easy", 64, 1.0)]
)
def test_its_gap_is_between_those_of_the_regulator_and_the_oracle(fixture, steps, share):
    arguments = ["--fixture", fixture, "--trials", "16", "--steps", str(steps), "--json"]
    for name in ("oracle", "lqr", "receding-horizon"):
        arguments += ["--policy", name]
    result = CliRunner().invoke(cli.main, ["evaluate", *arguments])
    assert result.exit_code == 0, result.output
    gaps = {row["policy"]: row["suboptimality"]["mean"] for row in json.loads(result.stdout)}
    assert gaps["oracle"] == 0.0
    assert 0.0 < gaps["receding-horizon:8"] < share * gaps["lqr"]


def test_on_a_linear_system_it_is_the_regulator():
    made = planner("double-integrator", 5)
    K = lqr_gain(made.system)
    s = np.random.default_rng(0).normal(size=(8, 2)).astype(np.float32)
    plans = jax.jit(jax.vmap(lambda x: planning.plan(made, x)))(s)
    np.testing.assert_allclose(plans[:, 0], -s @ K.T, rtol=2e-5, atol=2e-6)


def test_a_plan_is_a_minimum_of_its_cost():
    """No direction of actions lowers the cost, and longer search finds no lower one."""
    made = planner("arm-n2-p0.80-s7", 4)
    s = np.array([1.0, -0.5, -1.5, 0.8], np.float32)

    def cost(actions):
        z, total, weight = s, 0.0, 1.0
        for a in actions:
            total = total + weight * made.system.stage_cost(z, a)
            z = made.system.optimum(z).drift + made.system.actuate(z, a)
            weight = weight * made.system.gamma
        return total + weight * z @ made.X @ z

    plan = jax.jit(lambda: planning.plan(made, s))()
    regulated = -made.K @ s
    value, slope = jax.jit(jax.value_and_grad(cost))(plan)
    first = jax.jit(jax.grad(cost))(plan.at[0].set(regulated))
    assert np.linalg.norm(slope) < 1e-3 * np.linalg.norm(first)
    for seed in range(4):
        other = plan + 0.05 * np.random.default_rng(seed).normal(size=plan.shape)
        assert cost(other) > value


def test_plans_call_no_factorisation():
    """Two batches of LAPACK calls in one program can wait for each other for ever on CPU."""
    made = planner("arm-n2-p0.80-s7", 2)
    program = jax.jit(jax.vmap(lambda x: planning.plan(made, x))).lower(np.ones((8, 4), "float32"))
    assert "custom_call" not in program.as_text()


def test_it_does_not_look_at_the_optimum():
    made = planner("arm-n2-p0.80-s7", 3)
    s = np.array([0.5, -0.5, 1.0, 0.3], np.float32)
    nothing = cojax.system.Optimum(np.nan * s, np.full(2, np.nan, np.float32), np.nan * s)
    action = jax.jit(planning.act)(made, nothing, s, jax.random.key(0))
    assert np.isfinite(action).all()


def test_names_of_horizons():
    assert parse_policy("receding-horizon").name == "receding-horizon:8"
    assert parse_policy("receding-horizon:3").name == "receding-horizon:3"
    for text in ("receding-horizon:0", "receding-horizon:2.5", "receding-horizon:", "receding-x:1"):
        with pytest.raises(InputError, match="receding-horizon") as error:
            parse_policy(text)
        assert "\n" not in str(error.value)
    with pytest.raises(InputError, match="receding-horizon: expected a whole number >= 1, got 0"):
        receding_horizon(0)
