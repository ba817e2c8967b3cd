"""Disturbances that are trained against one policy, and the numbers they must reproduce."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from game_cases import Grid, exploited, line, make
from helpers import scope

import cojax
from cojax import streams
from cojax.envs import env_params
from cojax.errors import InputError
from cojax.evaluation import HostPolicy
from cojax.evaluation.best_response import best_response
from cojax.evaluation.games import exploitability
from cojax.initial import Uniform
from cojax.policy import Policy


def leaning(params, obs, key):
    """a* of a game, a constant and a wave more."""
    played, constant, wave = params
    return played.saddle(obs).action + constant + wave * jnp.sin(2.0 * obs[:1])


def problem(played, **options):
    high = jnp.asarray(np.tile([2.0, 1.0], 2), played.gamma.dtype)
    return env_params(played, Uniform(-high, high), max_steps_in_episode=60, **options)


def known(g, *, P, R, gamma, h, price, shift):
    """āᵀB̂ā/(1 - γ) of a constant p g, in float64."""
    P_hat = np.linalg.inv(np.linalg.inv(P) - gamma * h @ np.linalg.inv(price) @ h.T)
    return shift @ (R + gamma * g.T @ P_hat @ g) @ shift / (1.0 - gamma)


def shares(constant, wave):
    """What three disturbances find of the exploitability from s = 1, which value iteration says."""
    played = line(np.float32)
    with scope("float64"):
        grid = Grid(121)
        excess = exploited(line(), lambda x: constant + wave * np.sin(2.0 * x), grid, 100)
        answer = np.interp(1.0, grid.x, excess)
    params = env_params(played, played.inner.geometry.initial_law(np.float32), action_limit=None)
    given = (played, jnp.float32(constant), jnp.float32(wave))
    player = Policy(given, leaning, "leaning")
    options = {"num_steps": 60, "num_updates": 50, "num_trials": 32}
    found = best_response(player, params, streams.root_key(0), **options)
    assert found.name == "reply to leaning"
    given = {"num_steps": 60, "adversaries": {"own": found}}
    row = exploitability(player, params, 1024, 5, **given).rows[0]
    return answer, {name: row[name]["mean"] / answer for name in ("optimal", "myopic", "own")}


def test_a_constant_deviation_is_exploited_by_what_is_trained():
    """From d*, which finds 85%; āᵀB̂ā/(1 - γ) is what value iteration finds."""
    answer, share = shares(0.4, 0.0)
    numbers = {"P": 2.0, "R": 0.5, "h": 0.7, "price": 0.9 * 0.49 * 2.0 / 0.21}
    numbers = {name: np.array([[x]]) for name, x in numbers.items()}
    stated = known(np.array([[0.72]]), gamma=0.9, shift=np.array([0.4]), **numbers)
    assert answer == pytest.approx(stated * (1.0 - 0.9**100), rel=1e-3)
    assert share["optimal"] < 0.9
    assert share["own"] == pytest.approx(1.0 - 0.9**60, abs=0.01)


def test_what_is_trained_beats_what_is_known():
    """Where the reply of one step is not the best one."""
    share = shares(0.1, 0.5)[1]
    assert share["own"] > 1.01 * max(share["optimal"], share["myopic"])
    assert share["own"] == pytest.approx(1.0, abs=0.02)


@pytest.mark.slow
@pytest.mark.parametrize("start", ["optimal", "none"])
def test_the_known_answer_is_reproduced_on_a_shipped_game(start):
    """Within 2%, also where nothing of d* is told."""
    fixture = cojax.load_fixture("point-mass-game")
    played, steps = fixture.params.system, 150
    shift = np.array([0.1, -0.05])
    h, price = (np.asarray(x, np.float64) for x in (played.h, np.diag(played.Gamma)))
    eye = jnp.eye(2, dtype=jnp.float32)
    g = np.asarray(jax.vmap(played.inner.push, (None, 0))(jnp.zeros(4), eye), np.float64).T
    P, R = (np.asarray(x, np.float64) for x in (played.inner.P, played.inner.R))
    P, R = (x if x.ndim > 1 else np.diag(x) for x in (P, R))
    answer = known(g, P=P, R=R, gamma=0.985, h=h, price=price, shift=shift)
    player = Policy((played, jnp.asarray(shift, jnp.float32), jnp.float32(0.0)), leaning)
    found = best_response(
        player, fixture, streams.root_key(0), start=start, num_updates=200, num_steps=steps
    )
    given = {"num_steps": steps, "adversaries": {"own": found}}
    row = exploitability(player, fixture, 64, 5, **given).rows[0]
    answer *= 1.0 - 0.985**steps
    assert row["optimal"]["mean"] < 0.9 * answer
    assert row["own"]["mean"] == pytest.approx(answer, rel=0.02)


REFUSED = {
    "start: unknown 'random'": {"start": "random"},
    "num_updates: expected a whole number >= 1, got 0": {"num_updates": 0},
    "learning_rate: expected a number in (0, inf], got 0": {"learning_rate": 0.0},
    "expected one policy, got 2 members; take one with policy.member(...)": {
        "policy": Policy(jnp.ones((2, 2)), lambda gain, obs, key: gain * obs[:2], "two", ("seed",))
    },
    "policy: expected one of JAX, got host": {"policy": HostPolicy(lambda obs: obs[:, :2], "host")},
}


@pytest.mark.parametrize("line", REFUSED)
def test_bad_input_is_refused_in_one_line(line):
    params = problem(make("states", dtype=np.float32))
    given = {"policy": "lqr"} | REFUSED[line]
    with pytest.raises(InputError) as caught:
        best_response(given.pop("policy"), params, streams.root_key(0), **given)
    assert line in str(caught.value)
    assert "\n" not in str(caught.value)
