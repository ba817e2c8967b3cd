"""Both players of a game in environments, and what policies of either side are worth."""

from __future__ import annotations

import importlib.util
import json
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from game_cases import Pair, arm, full, line, make, states
from helpers import run, scope

import cojax
from cojax import streams
from cojax.envs import ConverseEnv, EnvState, env_params
from cojax.envs.games import AdversaryEnv, AgentEnv, GameEnv, adversarial, nobody, opposed
from cojax.errors import InputError
from cojax.evaluation.games import exploitability, nominal, regret, with_bounds
from cojax.initial import Fixed, Uniform
from cojax.players import Adversarial, Opposed
from cojax.policy import Policy
from cojax.report.page import write_report

SHIFT = jnp.asarray([0.3, -0.2], jnp.float32)


def problem(played, horizon=60, **options):
    high = jnp.asarray(np.tile([2.0, 1.0], 2), played.gamma.dtype)[: played.state_dim]
    given = {"max_steps_in_episode": horizon, "action_limit": None} | options
    return env_params(played, Uniform(-high, high), **given)


def leaning(params, obs, key):
    """A policy of either side, of no optimality."""
    return params * jnp.cos(obs[:2]) + 0.2 * jnp.tanh(obs[1::2])


def drawing(params, obs, key):
    """Another, that draws."""
    return params * jax.random.normal(key, (2,))


AGENT, ADVERSARY = (Policy(x, leaning, n) for x, n in ((0.4 * SHIFT, "me"), (SHIFT, "leaning")))


# --- environments --------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["states", "actuators"])
def test_both_players_step_by_the_equations(name):
    """Against NumPy: state, rewards, and advantages as differences of Q*."""
    with scope("float64"):
        played = make(name)
        params, env = problem(played), GameEnv()
        s, rng = states(2)[1], np.random.default_rng(0)
        a, d = rng.normal(size=(2, 2))
        pair, key = Pair(name, played, s), streams.root_key(4)
        state = EnvState(time=jnp.int32(0), s=jnp.asarray(s))
        obs, after, rewards, terminated, info = env.step_env(key, state, (a, d), params)
        w = np.asarray(played.sample_noise(s, jax.random.clone(key)))
        z = pair.f + pair.G @ a + pair.h @ d
        np.testing.assert_allclose(after.s, z + w, rtol=1e-11)
        np.testing.assert_array_equal(obs, after.s)
        cost = s @ pair.Q @ s + a @ pair.R @ a - d @ pair.Gamma @ d
        np.testing.assert_allclose(rewards, (-cost, cost), rtol=1e-12)
        assert not terminated
        assert not info["diverged"]
        at, value = played.saddle(jnp.asarray(s)), pair.value(s)
        assert float(info["advantage"]) == pytest.approx(pair.q(a, d) - value, rel=1e-9)
        lost = pair.worst_reply(a, np.asarray(at.disturbance))[0] - value
        assert float(info["agent_excess"]) == pytest.approx(lost, rel=1e-8)
        given = value - pair.q(np.asarray(at.action), d)
        assert float(info["adversary_excess"]) == pytest.approx(given, rel=1e-9)


def test_a_game_ends_for_both():
    params, env = problem(make("states", dtype=np.float32), divergence_radius=3.0), GameEnv()
    state = EnvState(time=jnp.int32(0), s=jnp.full(4, 1.5))
    pair = (jnp.full(2, 30.0), jnp.zeros(2))
    out = env.step(streams.root_key(0), state, pair, params)
    _, _, (mine, other), terminated, truncated, info = out
    assert terminated
    assert not truncated
    assert info["diverged"]
    s = info["final_observation"]
    assert mine == -other
    a, system = pair[0], params.system
    cost = system.inner.stage_cost(state.s, a)
    excess = float(system.value(s)) * float(system.gamma)
    assert float(other) == pytest.approx(float(cost) + excess, rel=1e-2)
    last = EnvState(time=jnp.int32(59), s=jnp.full(4, 0.1))
    calm = jnp.zeros(2), jnp.zeros(2)
    _, fresh, _, terminated, truncated, _ = env.step(streams.root_key(1), last, calm, params)
    assert truncated
    assert not terminated
    assert fresh.time == 0
    optimal = params.replace(terminal_value="optimal")
    _, _, (mine, other), terminated, _, info = env.step(streams.root_key(1), last, calm, optimal)
    assert terminated
    tail = system.gamma * system.value(info["final_observation"])
    cost = system.inner.stage_cost(last.s, calm[0])
    np.testing.assert_allclose([mine, other], [-cost - tail, cost + tail], rtol=1e-6)


def test_many_games_step_under_one_trace():
    params = problem(make("actuators", dtype=np.float32))
    env, traces = GameEnv(params), []

    @jax.jit
    @partial(jax.vmap, in_axes=(0, 0, 0, None))
    def step(key, state, actions, params):
        traces.append(1)
        return env.step(key, state, actions, params)

    keys = jax.random.split(streams.root_key(0), 32)
    _, state = jax.vmap(env.reset, (0, None))(keys, params)
    actions = (jnp.full((32, 2), 0.1), jnp.zeros((32, 2)))
    for other in (params, problem(make("actuators", dtype=np.float32, g0=0.3))):
        _, state, rewards, *_ = step(jax.random.clone(keys), state, actions, other)
    assert len(traces) == 1
    assert rewards[0].shape == (32,)
    assert env.disturbance_shape() == (2,)


def test_one_side_meets_what_both_would_play():
    """And AgentEnv is the environment of Opposed, where the policy draws nothing."""
    params = problem(make("actuators", dtype=np.float32))
    mine, other = opposed(params, ADVERSARY), adversarial(params, AGENT)
    s, key = jnp.asarray(states(1)[0], jnp.float32), streams.root_key(3)
    state, a, d = EnvState(time=jnp.int32(2), s=s), jnp.asarray([0.2, 0.5]), jnp.asarray([1.0, 0.0])
    told, moved = leaning(SHIFT, s, key), leaning(0.4 * SHIFT, s, key)
    cases = [
        (AgentEnv(), a, mine, (a, told), 0),
        (ConverseEnv(), a, mine, (a, told), 0),
        (AdversaryEnv(), d, other, (moved, d), 1),
        (AdversaryEnv(), d, adversarial(params), (params.system.optimum(s).action, d), 1),
    ]
    for env, own, problem_of, both, side in cases:
        step = (jax.random.clone(key), state)
        found = env.step_env(*step, own, problem_of)
        known = GameEnv().step_env(jax.random.clone(key), state, both, params)
        np.testing.assert_allclose(found[0], known[0], rtol=1e-5, atol=1e-6)
        assert float(found[2]) == pytest.approx(float(known[2][side]), rel=1e-5)
        assert found[3] == known[3]
    assert AdversaryEnv().action_space(other).shape == (2,)
    assert AdversaryEnv(other).labels()[1] == ["disturbance 1", "disturbance 2"]


def test_a_policy_that_draws_meets_fresh_keys():
    params = opposed(problem(make("states", dtype=np.float32)), Policy(SHIFT, drawing))
    state = EnvState(time=jnp.int32(0), s=jnp.ones(4))
    keys = jax.random.split(streams.root_key(0), 4000)
    step = jax.vmap(AgentEnv().step_env, (0, None, None, None))
    after = step(keys, state, jnp.zeros(2), params)[1].s
    system = params.system.game
    W = np.asarray(system.h) * np.asarray(SHIFT)
    Sigma = W @ W.T + full(system.inner.noise.covariance())
    found = np.cov(np.asarray(after).T)
    np.testing.assert_allclose(np.diag(found), np.diag(Sigma), rtol=0.1)


def test_the_box_of_disturbances_is_that_of_states_that_are_reached():
    """Also where all trials start at rest, in the origin."""
    params = env_params(make("states", dtype=np.float32), Fixed(jnp.zeros(4)), action_limit=None)
    found = np.asarray(adversarial(params).action_limit)
    away = 0.03 * np.random.default_rng(0).normal(size=(100, 4)).astype(np.float32)
    largest = np.abs(jax.vmap(lambda s: params.system.saddle(s).disturbance)(away)).max()
    assert 0.2 * largest < found.max() / 4.0 < 5.0 * largest


# --- the disturbance's own problem ---------------------------------------------------------------


def test_the_disturbances_problem_is_one_with_a_known_optimum():
    """max over d of Q*(s, a*, d) by SciPy, and the identity of its gap."""
    with scope("float64"):
        played = make("states")
        system = Adversarial(played)
        for s in states(3):
            x, pair = jnp.asarray(s), Pair("states", played, s)
            at = system.optimum(x)
            a = np.asarray(played.saddle(x).action)
            value, d = pair.worst_reply(a, np.zeros(2))
            np.testing.assert_allclose(at.action, d, atol=1e-6)
            assert float(system.value(x)) == pytest.approx(-value, rel=1e-9)
            other = d + np.array([0.4, -0.3])
            q = cojax.oracle.q_value(system, x, other)
            assert float(q) == pytest.approx(-pair.q(a, other), rel=1e-10)
            excess = cojax.oracle.advantage(system, x, other)
            assert float(excess) == pytest.approx(value - pair.q(a, other), rel=1e-5)


def test_against_a_policy_differences_are_of_either_sign():
    with scope("float64"):
        played = make("states")
        agent = Policy(0.4 * np.asarray(SHIFT, np.float64), leaning)
        own, mine = Adversarial(played, agent), Opposed(played, agent)
        for s in states(3):
            x, pair = jnp.asarray(s), Pair("states", played, s)
            told = np.asarray(leaning(agent.params, x, None))
            d = np.array([0.4, -0.3])
            excess = cojax.oracle.advantage(own, x, d)
            assert float(excess) == pytest.approx(pair.value(s) - pair.q(told, d), abs=1e-9)
            excess = cojax.oracle.advantage(mine, x, d)
            assert float(excess) == pytest.approx(pair.q(d, told) - pair.value(s), abs=1e-9)
            for system, actions in ((own, (told, d)), (mine, (d, told))):
                sign = -1.0 if system is own else 1.0
                q = cojax.oracle.q_value(system, x, d)
                assert float(q) == pytest.approx(sign * pair.q(*actions), rel=1e-10)


# --- exploitability ------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["mass", pytest.param("actuators", marks=pytest.mark.slow)])
def test_costs_of_any_pair_are_v_star_and_the_sum_of_differences(name):
    """Tail-corrected costs against sums of Q* - V*, of either sign; the nominal number is that of
    an adversary that stays away, below V* for the oracle, and so no gap.
    """
    params = problem(make(name, dtype=np.float32))
    others = {"leaning": ADVERSARY, "away": lambda obs, key: jnp.zeros(2)}
    found = exploitability([AGENT, "oracle"], params, 256, 3, adversaries=others, num_steps=40)
    trials = found.evaluation.trials
    gap, cost = trials["suboptimality"], trials["tail_corrected"]
    difference = cost - gap
    error = difference.std(axis=-1) / 16.0
    assert (np.abs(difference.mean(axis=-1)) < 4.0 * error).all()
    assert (gap[:2].min(axis=-1) >= 0.0).all()
    assert gap[2, 1].max() < 0.0
    assert (np.abs(gap.mean(axis=-1)[:, 0]) > 10.0 * error[:, 0]).all()
    row = found.rows[0]
    assert found.evaluation.fixtures == ("optimal", "myopic", "leaning", "away")
    best = max(row[name]["mean"] for name in found.evaluation.fixtures)
    assert row["at_least"]["mean"] == best == row[row["by"]]["mean"]
    assert row["at_least"]["low"] < row[row["by"]]["low"] < best < row["at_least"]["high"]
    assert row["failed"] == 0.0
    assert row["sampled_bound"] > best
    assert row["at_most"] is None
    assert found.rows[1]["at_least"] == {"mean": 0.0, "low": 0.0, "high": 0.0}
    rows = nominal([AGENT, "oracle"], params, 256, 3, num_steps=40)
    for row, signed in zip(rows, gap[3], strict=True):
        assert row["signed"]["mean"] == pytest.approx(signed.mean(), rel=1e-5)
    assert rows[1]["signed"]["high"] < 0.0
    missed = regret([ADVERSARY], params, 256, 3, num_steps=40)[0]
    assert missed["regret"]["mean"] == pytest.approx(-gap[2, 1].mean(), rel=1e-12)
    assert missed["relative"] == missed["regret"]["mean"] / trials["optimal_value"][0, 0].mean()


def test_a_constant_deviation_is_exploited_by_what_is_known():
    """B̂ ā²/(1-γ), which value iteration and what is trained find too: test_best_response."""
    played, shift = line(np.float32), 0.4
    curvature = float(played.curvature(jnp.zeros(1)).B_hat[0, 0])
    known = curvature * shift**2 / 0.1
    params = env_params(played, played.inner.geometry.initial_law(np.float32), action_limit=None)
    players = Policy((played, jnp.float32(shift)), shifted, "shifted")
    found = exploitability(
        players, params, 64, num_steps=80, suprema={"shifted": curvature * shift**2}
    )
    (row,) = found.rows
    cut = 1.0 - 0.9**80
    assert row["myopic"]["mean"] == pytest.approx(known * cut, rel=1e-4)
    assert row["by"] == "myopic"
    assert row["sampled_bound"] == pytest.approx(known, rel=1e-3)
    assert row["at_most"] == pytest.approx(known, rel=1e-6)


def shifted(params, obs, key):
    """a* of a game, and a constant more."""
    return params[0].saddle(obs).action + params[1]


def test_references_are_the_same_against_all_and_failures_leave_no_interval():
    """The regulator is that of the problem against d*, also where the adversary is not smooth."""
    params = problem(make("mass", dtype=np.float32), 10)

    def rough(obs, key):
        return 0.1 * jnp.sign(obs[:2])

    def broken(obs, key):
        return jnp.full(2, jnp.nan)

    players = ["lqr", Policy((), lambda params, obs, key: broken(obs, key), "broken")]
    one, other = exploitability(players, params, 8, adversaries={"rough": rough}).rows
    assert one["failed"] == 0.0
    assert np.isfinite(one["rough"]["mean"])
    assert other["failed"] == 1.0
    assert other["at_least"] == {"mean": np.inf, "low": None, "high": None}
    fine, missed = regret({"rough": rough, "broken": broken}, params, 8)
    assert fine["failed"] == 0.0 < fine["regret"]["low"]
    assert missed["failed"] == 1.0
    assert missed["regret"] == {"mean": np.inf, "low": None, "high": None}


def three(obs, key):
    return jnp.zeros(3)


REFUSED = {
    "params: expected those of a game (cojax.games.game), got QuadraticGaussian": lambda params: (
        exploitability("oracle", problem(arm(dtype=np.float32)))
    ),
    "params: expected one game, got 2 systems": lambda params: exploitability(
        "oracle", [params, params]
    ),
    "policy three: expected actions of shape (2,), got (3,)": lambda params: exploitability(
        "oracle", params, adversaries=three
    ),
    "adversaries: expected other names than ['myopic']": lambda params: exploitability(
        "oracle", params, adversaries={"myopic": ADVERSARY}
    ),
    "adversaries: expected names that differ, got leaning twice": lambda params: regret(
        [ADVERSARY, ADVERSARY], params
    ),
    "adversaries: expected at least one policy, got an empty list": lambda params: regret(
        [], params
    ),
    "adversaries: expected policies of JAX, got zero": lambda params: regret("zero", params),
    "params: expected those of a game, got QuadraticGaussian": lambda params: opposed(
        problem(arm(dtype=np.float32)), ADVERSARY
    ),
    "policy policy: expected actions of shape (2,), got (3,)": lambda params: adversarial(
        params, Policy((), lambda params, obs, key: jnp.zeros(3))
    ),
}


@pytest.mark.parametrize("line", REFUSED)
def test_bad_input_is_refused_in_one_line(line):
    params = problem(make("states", dtype=np.float32))
    with pytest.raises(InputError) as caught:
        REFUSED[line](params)
    assert line in str(caught.value)
    assert "\n" not in str(caught.value)


def test_rows_of_games_have_bounds_of_exploitability():
    """Of policies of one fixture each too; other systems have none."""
    games = {"a": problem(make("states", dtype=np.float32))}
    systems = games | {"plain": problem(arm(dtype=np.float32))}
    each = Policy(jnp.stack([0.4 * SHIFT, SHIFT]), leaning, "each", ("fixture",))
    found = cojax.evaluate(["oracle", each], systems, 8, 3, num_steps=6)
    rows = with_bounds(found, ["oracle", each], systems)
    trials = exploitability(AGENT, games, 8, 3, num_steps=6).evaluation.trials
    optimal, myopic = trials["relative_suboptimality"][:, 0].mean(axis=-1)
    bound = rows[1]["exploitability_at_least"]
    assert rows[1]["relative_suboptimality"]["mean"] == pytest.approx(optimal, rel=1e-5)
    assert bound["mean"] == pytest.approx(myopic, rel=1e-5)
    assert myopic > 1.01 * optimal
    assert bound["low"] < bound["mean"] < bound["high"]
    zero = {"mean": 0.0, "low": 0.0, "high": 0.0}
    assert rows[0]["exploitability_at_least"] == rows[0]["exploitability_at_most"] == zero
    assert "exploitability_at_most" not in rows[1]
    assert not any("exploitability_at_least" in row for row in rows[2:])


def test_the_command_line_asks_who_plays(tmp_path):
    """Of a shipped game; and refuses a system that is none."""

    def ask(fixture, *words):
        given = ["evaluate", "--fixture", fixture, "--policy", "oracle", "--trials", "4"]
        return run(*given, "--steps", "3", "--json", *words)

    gap = {}
    for adversary in ("optimal", "myopic", "none"):
        status, out, _ = ask("arm-n2-game", "--adversary", adversary)
        assert status == 0
        (row,) = json.loads(out)
        gap[adversary] = row["signed" if adversary == "none" else "suboptimality"]["mean"]
    assert gap["optimal"] == gap["myopic"] == 0.0 > gap["none"]
    for words in (("--adversary", "none", "--out", "folder"), ("--adversary", "fair")):
        assert ask("arm-n2-game", *words)[0] == 2
    assert ask("arm-n2-p0.80-s7", "--adversary", "optimal")[0] == 2
    folder = tmp_path / "results"
    given = ["--fixture", "arm-n2-game", "--policy", "zero", "--trials", "4", "--steps", "3"]
    status, out, _ = run("evaluate", *given, "--out", str(folder))
    assert status == 0
    assert "exploitable ≥" in out
    (row,) = json.loads((folder / "rows.json").read_text("utf-8"))
    assert row["exploitability_at_least"]["mean"] > row["relative_suboptimality"]["mean"] > 0.0
    page = write_report(folder).read_text("utf-8")
    assert "Exploitable ≥" in page
    assert "Exploitable ≤" not in page


def test_sums_of_five_pairs_agree_with_costs_and_need_no_more_trials():
    """The table of the benchmark, on a small game."""
    path = Path(__file__).parents[1] / "benchmarks" / "games.py"
    spec = importlib.util.spec_from_file_location("games_benchmark", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    rows = module.pairs(problem(make("mass", dtype=np.float32), 40), 256)
    assert len(rows) == 5
    assert min(row["sums"] for row in rows) < 0.0 < max(row["sums"] for row in rows)
    for row in rows:
        assert abs(row["apart"]) < 4.0
        assert 0.0 < row["ratio"] <= 1.0


# --- self-play -----------------------------------------------------------------------------------


def test_self_play_trains_both_sides():
    from cojax.agents.self_play import self_play

    params = problem(line(np.float32))
    tiny = {"num_envs": 2, "num_steps": 4, "hidden": (8,)}
    given = {"agent": tiny, "adversary": tiny, "num_seeds": 2, "total_timesteps": 20}
    found = self_play("a2c", params, jax.random.key(0), **given)
    assert found.timesteps == 24
    assert found.metrics["agent_reward"].shape == (2, 3)
    assert (found.metrics["agent_reward"] < 0.0).all()
    obs = jnp.ones(1)
    for policy in (found.agent, found.adversary):
        a, b = (policy.member(seed=i)(obs, streams.root_key(0)) for i in (0, 1))
        assert a.shape == (1,)
        assert (a != b).all()
    with pytest.raises(InputError, match="adversary: expected updates of 8 steps, got 2048"):
        self_play("ppo", params, jax.random.key(0), agent=tiny | {"num_minibatches": 2})
    with pytest.raises(InputError, match="shac: expected an algorithm without gradients"):
        self_play("shac", params, jax.random.key(0))


@pytest.mark.slow
def test_self_play_comes_near_the_saddle_point():
    """On a shipped game, from its defaults, on seeds on which nothing was chosen."""
    from cojax.agents.self_play import self_play

    params = cojax.load_fixture("arm-n2-game").params
    found = self_play("ppo", params, jax.random.key(7), num_seeds=2)
    rows = exploitability(found.agent, params, 64, 7).rows
    away = nobody(params)
    missed = regret({"own": found.adversary, "away": away}, params, 64, 7)
    assert len(rows) == len(missed) - 1 == 2
    for row, other in zip(rows, missed[:-1], strict=True):
        assert row["optimal"]["mean"] < 0.1 * row["optimal_value"]
        assert other["relative"] < missed[-1]["relative"] < 0.1
