"""Zero-sum games: saddle points, both adversaries and players, against independent sums."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from game_cases import CASES, GAMMA, Grid, H, Pair, arm, batched, full, line, lowest, make, states
from helpers import relative, scope

import cojax
from cojax import streams, testing
from cojax.action_limits import Box
from cojax.envs import ConverseEnv, env_params
from cojax.errors import InputError
from cojax.families import FAMILIES
from cojax.fixtures import descent
from cojax.fixtures.pointwise import at_states
from cojax.games import game
from cojax.initial import Uniform
from cojax.zero_sum import ADVERSARIES, Answer, Split

BOTH = [(name, adversary) for name in CASES for adversary in ADVERSARIES]
OTHERS = {"PlanarAerial", "Aerial", "Isotropic"}  # of classes of their own
SOME = [("states", "optimal"), ("actuators", "myopic")]
LIGHT = [("mass", "myopic"), *(pytest.param(*x, marks=pytest.mark.slow) for x in SOME)]
FIRST = [x if x in SOME else pytest.param(*x, marks=pytest.mark.slow) for x in BOTH]


def problem(played, horizon=120, **options):
    high = jnp.asarray(np.tile([2.0, 1.0], 2), played.gamma.dtype)
    given = {"max_steps_in_episode": horizon, "action_limit": None} | options
    return env_params(played, Uniform(-high, high), **given)


# --- the saddle point ----------------------------------------------------------------------------


@pytest.mark.parametrize("name", CASES)
def test_min_max_and_max_min_by_scipy_are_the_value(name):
    with scope("float64"):
        played = make(name)
        for s in states(2):
            pair, at = Pair(name, played, s), played.saddle(jnp.asarray(s))
            a, d = np.asarray(at.action), np.asarray(at.disturbance)
            assert np.abs(a).max() > 1e-2 < np.abs(d).max()
            upper = pair.best(lambda a, d=d, q=pair: q.worst_reply(a, d + 0.3)[0], a + 0.3, 1e-7)
            lower = pair.best(
                lambda d, a=a, q=pair: -q.best(lambda x: q.q(x, d), a - 0.3).fun, d - 0.3, 1e-7
            )
            value = float(played.value(jnp.asarray(s)))
            assert value == pytest.approx(pair.value(s), rel=1e-12)
            assert upper.fun == pytest.approx(value, rel=1e-9)
            assert -lower.fun == pytest.approx(value, rel=1e-9)
            np.testing.assert_allclose(upper.x, a, atol=1e-4)
            np.testing.assert_allclose(lower.x, d, atol=1e-4)
            z = pair.f + pair.G @ a + pair.h @ d
            np.testing.assert_allclose(at.next_mean, z, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("name", CASES)
def test_advantages_are_differences_of_q(name):
    """Of any pair, and of the agent against d* and against the reply that SciPy finds."""
    rng = np.random.default_rng(1)
    with scope("float64"):
        known, seeing = make(name), make(name, "myopic")
        for s in states(2):
            x, pair = jnp.asarray(s), Pair(name, known, s)
            at = known.saddle(x)
            a, d = (np.asarray(y) + rng.normal(size=2) for y in (at.action, at.disturbance))
            best_d, value = np.asarray(at.disturbance), pair.value(s)
            delta, epsilon = a - np.asarray(at.action), d - best_d
            size = 1e-11 * abs(value)
            assert float(known.advantage(x, delta, epsilon)) == pytest.approx(
                pair.q(a, d) - value, abs=size
            )
            assert float(known.spent(x, epsilon)) == pytest.approx(
                value - pair.q(np.asarray(at.action), d), abs=size
            )
            against = {"optimal": pair.q(a, best_d), "myopic": pair.worst_reply(a, d)[0]}
            for played in (known, seeing):
                q, optimum = against[played.adversary], played.optimum(x)
                assert float(cojax.oracle.advantage(played, x, a)) == pytest.approx(
                    q - value, rel=1e-8
                )
                assert float(cojax.oracle.q_value(played, x, a)) == pytest.approx(q, rel=1e-9)
                assert float(played.excess_cost(x, jnp.zeros(2))) == 0.0
                np.testing.assert_allclose(optimum.action, at.action, rtol=1e-12)
            reply = best_d + np.asarray(seeing.reply(x, jnp.asarray(delta)))
            np.testing.assert_allclose(reply, pair.worst_reply(a, d)[1], atol=1e-6)
            B, B_hat, B_d = (np.asarray(y) for y in known.curvature(x))
            assert delta @ B @ delta == pytest.approx(against["optimal"] - value, abs=size)
            assert delta @ B_hat @ delta == pytest.approx(against["myopic"] - value, rel=1e-8)
            assert epsilon @ B_d @ epsilon == pytest.approx(float(known.spent(x, epsilon)))


def test_minimax_value_iteration_from_zero_finds_the_value():
    with scope("float64"):
        played, grid = line(), Grid(81)
        x = grid.x
        f = batched(lambda s: played.saddle(s).drift, x)[:, 0]
        shares = np.linspace(-1.0, 1.0, 25)
        a = ((2.5 * np.abs(x) + 1.0)[:, None] * shares)[:, :, None]
        d = ((1.2 * np.abs(x) + 0.5)[:, None] * shares)[:, None, :]
        Gamma = 0.9 * 0.49 * 2.0 / 0.21
        cost = 0.6 * x[:, None, None] ** 2 + 0.5 * a**2 - Gamma * d**2
        ahead = grid.expectation(f[:, None, None] + 0.72 * a + 0.7 * d)
        V = np.zeros(len(x))
        ahead = ahead.reshape(-1, len(x))
        for _ in range(130):
            V = lowest(-lowest(-(cost + 0.9 * (ahead @ V).reshape(cost.shape))))
        known = 2.0 * x**2 + 9.0 * 2.0 * 0.15
        np.testing.assert_allclose(V[grid.inner], known[grid.inner], rtol=3e-4)
        np.testing.assert_allclose(batched(played.value, x), known, rtol=1e-12)


@pytest.mark.parametrize("h", ["g", "rows"])
@pytest.mark.parametrize("family", sorted(set(FAMILIES) - OTHERS))
def test_every_family_has_games(family, h):
    """Bellman's equation, λ over the states, and the spectrum of M, which nothing falls below."""
    rng = np.random.default_rng(0)
    with scope("float64"):
        base = FAMILIES[family].build(dtype=np.float64)
        d, m, gamma = base.state_dim, base.action_dim, float(base.gamma)
        P, Q = full(base.P), full(base.Q)
        beta = np.linalg.eigvals(np.linalg.solve(P, Q)).real.min()
        matrix = 0.1 * rng.normal(size=(d, 2)) * (np.arange(d) % 2)[:, None]
        push = jax.vmap(jax.vmap(base.push, (None, 0)), (0, None))
        s = jnp.asarray(np.concatenate([np.zeros((1, d)), rng.normal(size=(40, d))]))
        g = np.swapaxes(np.asarray(push(s, jnp.eye(m))), 1, 2)
        everywhere = g if h == "g" else np.broadcast_to(matrix, (41, d, 2))
        largest = max(np.linalg.norm(x.T @ P @ x, 2) for x in everywhere)
        price = gamma * largest / (0.5 * (beta - (1.0 - gamma) * (1.0 - beta))) * 1.3
        played = game(base, h="g" if h == "g" else matrix, Gamma=price, adversary="myopic")
        found = gamma * largest / price
        assert found <= float(played.margin) * (1.0 + 1e-12)
        assert float(played.margin) < 1.01 * found  # the origin is among the states
        inverse = np.linalg.inv(P) / gamma
        least = (1.0 - float(played.margin)) * np.linalg.eigvalsh(inverse)[0]
        for x, y in zip(g, everywhere, strict=True):
            M = inverse + x @ np.linalg.inv(full(base.R)) @ x.T - y @ y.T / price
            assert np.linalg.eigvalsh(M)[0] >= least * (1.0 - 1e-12)

        def both(x, a):
            at = played.optimum(x)
            q = cojax.oracle.q_value(played, x, at.action)
            other = cojax.oracle.q_value(played, x, a)
            return q, other - q, played.excess_cost(x, a - at.action)

        actions = jnp.asarray(rng.normal(size=(41, m)))
        q, difference, excess = jax.jit(jax.vmap(both))(s, actions)
        value = np.asarray(jax.vmap(played.value)(s))
        some = value > 0.0
        np.testing.assert_allclose(np.asarray(q)[some], value[some], rtol=1e-11)
        np.testing.assert_allclose(difference, excess, rtol=1e-7, atol=1e-10 * value.max())


def test_kinematics_stay_as_they_are():
    with scope("float64"):
        base = FAMILIES["KinematicArm"].build(dtype=np.float64)
        played, tau = game(base, h="g", Gamma=2.0), float(base.geometry.tau)
        x = np.random.default_rng(1).normal(size=6)
        drift = played.saddle(jnp.asarray(x)).drift
        np.testing.assert_allclose(drift[0::2], x[0::2] + tau * x[1::2], rtol=1e-12)


# --- the paper's system, where there is no disturbance -------------------------------------------


@pytest.mark.parametrize("adversary", ADVERSARIES)
def test_no_effect_is_the_papers_system_to_the_bit(adversary):
    plain = arm(dtype=np.float32)
    played = game(plain, h=np.zeros((4, 3)), Gamma=2.0, adversary=adversary)
    rng = np.random.default_rng(0)
    for s in states(3).astype(np.float32):
        a = rng.normal(size=2).astype(np.float32)
        ours, theirs = played.optimum(s), plain.optimum(s)
        for one, other in zip(ours, theirs, strict=True):
            np.testing.assert_array_equal(one, other)
        np.testing.assert_array_equal(played.next_mean(s, a, ours), plain.next_mean(s, a, theirs))
        assert played.stage_cost(s, a) == plain.stage_cost(s, a)
        assert played.excess_cost(s, a) == plain.excess_cost(s, a)
        assert played.value(s) == plain.value(s)
        key = streams.root_key(3)
        np.testing.assert_array_equal(
            played.sample_noise(s, key), plain.sample_noise(s, jax.random.clone(key))
        )
    found = [cojax.evaluate(["zero"], problem(one, 8), 16, chunk=16) for one in (plain, played)]
    trials = [one.trials for one in found]
    for metric in ("discounted_return", "suboptimality", "coupled_regret"):
        np.testing.assert_array_equal(trials[0][metric], trials[1][metric])


# --- an ordinary certified system ----------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "adversary"),
    [x if x in SOME else pytest.param(*x, marks=pytest.mark.slow) for x in BOTH],
)
def test_the_validators_figures_hold(name, adversary):
    with scope("float64"):
        params = problem(make(name, adversary))
        s, rng = jnp.asarray(states(64)), np.random.default_rng(2)
        found = jax.jit(at_states)(params, s, s[:2], jnp.asarray(rng.normal(size=(64, 2))))
        assert found.residual < 1e-12
        assert found.stationarity < 1e-9
        assert found.advantage < 1e-9
        assert found.lowest_B > 0.0
        assert found.noise < 5.0


@pytest.mark.parametrize(("name", "adversary"), LIGHT)
def test_descent_on_actions_never_beats_the_value(name, adversary):
    with scope("float64"):
        params = problem(make(name, adversary, np.float64))
        s = jnp.asarray(states(3))
        noise = jnp.asarray(np.random.default_rng(0).normal(size=(2, 3, 6, 2)))
        first, best = jax.jit(descent.search)(params, s, noise)
        found = descent.weigh(params, s, first, best)
        assert found.lowest > -1e-9
        assert found.reached < 1e-3 < found.start


@pytest.mark.parametrize(("name", "adversary"), LIGHT)
def test_the_environment_conforms(name, adversary):
    params = problem(make(name, adversary, np.float32))
    testing.check_env(ConverseEnv(params), params, num_states=4, num_draws=512)


@pytest.mark.parametrize(("name", "adversary"), LIGHT)
def test_regret_is_the_sum_of_advantages(name, adversary):
    params = problem(make(name, adversary, np.float32))
    found = cojax.evaluate(["zero", "lqr"], params, 512, 2)
    gaps, regrets = (found.trials[n][0] for n in ("suboptimality", "coupled_regret"))
    assert not found.trials["failed"].any()
    for gap, regret in zip(gaps, regrets, strict=True):
        difference = gap - regret
        error = difference.std() / np.sqrt(difference.size)
        assert gap.mean() > 5.0 * error
        assert abs(difference.mean()) < 4.0 * error


def test_costs_against_the_optimal_disturbance_stay_above_what_bounds_them():
    """c >= (β - λ)/(1 - λ) sᵀP s, and the state contracts at the saddle point."""
    with scope("float64"):
        for name in CASES:
            played = make(name)
            s = jnp.asarray(states(400))
            cost = jax.vmap(played.stage_cost, (0, None))(s, jnp.zeros(2))
            size = jax.vmap(played.value)(s) - played.offset
            lam = float(played.margin)
            assert 0.1 < lam < 0.45
            assert (cost >= (0.5 - lam) / (1.0 - lam) * size).all()
            following = jax.vmap(played.value)(jax.vmap(played.optimum)(s).next_mean)
            contracted = (following - played.offset) / size
            assert contracted.max() <= 0.5 / (0.9 * (1.0 - lam))
            assert contracted.max() > 0.3


@pytest.mark.parametrize(("name", "adversary"), BOTH)
def test_states_inside_the_guard_step_into_the_observation_space(name, adversary):
    params = problem(make(name, adversary, np.float32), divergence_radius=30.0)
    P, rng = full(arm().P), np.random.default_rng(2)
    step = jax.jit(lambda x, a: cojax.system.mean_next_state(params.system, x, a))
    closest = 0.0
    for row in states(100):
        s = 29.99 * row / np.sqrt(row @ P @ row)
        a = np.asarray(params.action_limit) * rng.choice([-1.0, 1.0], 2)
        ratio = np.abs(step(s.astype(np.float32), a)) / np.asarray(params.observation_limit)
        closest = max(closest, ratio.max())
        assert (ratio <= 1.0).all()
    assert closest > 0.1


# --- compilation and precision -------------------------------------------------------------------


@pytest.mark.parametrize(("name", "adversary"), BOTH)
def test_both_precisions_agree(name, adversary):
    s, a = states(16), np.random.default_rng(4).normal(size=(16, 2))

    def all_of(played, x, a):
        at = played.optimum(x)
        z = cojax.system.next_mean(played, x, a, at)
        return at.drift, at.action, z, played.cost_at(x, a, at), played.excess_cost(x, a)

    found = {}
    for dtype in ("float32", "float64"):
        with scope(dtype):
            played = make(name, adversary, np.dtype(dtype))
            x, u = (jnp.asarray(y, dtype) for y in (s, a))
            found[dtype] = jax.jit(jax.vmap(all_of, (None, 0, 0)))(played, x, u)
            assert all(y.dtype == dtype for y in found[dtype])
    for single, double in zip(*found.values(), strict=True):
        assert relative(single, double) < 3e-6


@pytest.mark.parametrize(("name", "adversary"), SOME)
def test_stacks_and_traces_once(name, adversary):
    one = problem(make(name, adversary, np.float32))
    two = one.replace(system=make(name, adversary, np.float32, p=0.75, g0=0.4))
    both, traces = cojax.stack([one, two]), []
    env = ConverseEnv()

    @jax.jit
    def step(params, key, action):
        traces.append(1)
        _, state = env.reset(key, params)
        return env.step(jax.random.fold_in(key, 1), state, action, params)

    key, action = streams.root_key(1), jnp.full(2, 0.3)
    out = jax.vmap(step, (0, None, None))(both, key, action)
    again = jax.vmap(step, (0, None, None))(cojax.stack([two, one]), key, action)
    assert len(traces) == 1
    for i, params in enumerate((one, two)):
        obs, _, reward, *_ = step(params, key, action)
        np.testing.assert_allclose(out[0][i], obs, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(out[2][i], reward, rtol=1e-5)
        np.testing.assert_allclose(again[2][1 - i], reward, rtol=1e-5)
    assert len(traces) == 1


def test_games_against_other_adversaries_do_not_stack():
    one, other = (problem(make("states", adversary, np.float32)) for adversary in ADVERSARIES)
    with pytest.raises(InputError, match="built of other parts"):
        cojax.stack([one, other])


def test_the_reply_to_the_actuators_factors_nothing():
    """Nor does any step: products alone."""
    for name in CASES:
        played = make(name, "myopic", np.float32)

        def step(played, s, a):
            at = played.optimum(s)
            return played.next_mean(s, a, at), played.cost_at(s, a, at), played.excess_cost(s, a)

        text = str(jax.make_jaxpr(step)(played, jnp.ones(4), jnp.ones(2)))
        for word in ("cholesky", "eigh", "triangular_solve", "lu", "custom_linear_solve"):
            assert f" {word}[" not in text
        assert "dot_general" in text


@pytest.mark.parametrize(("coupling", "kind"), [(0.3, Split), (1.4, Answer)])
def test_both_series_of_the_reply_solve_its_equations(coupling, kind):
    """Γ - γ p² gᵀP g by NumPy, of actuators whose rows P couples little and much."""
    P = np.diag([4.0, 1.3, 3.0, 2.3])
    P[1, 3] = P[3, 1] = coupling
    with scope("float64"):
        played = game(arm(P=P, Q=0.5 * P), h="g", Gamma=[9.0, 6.0], adversary="myopic")
        assert type(played.answer) is kind
        for s in states(4):
            delta = np.array([0.7, -0.4])
            g = 0.8 * np.cos(s[0::2])
            ahead = 0.9 * g[:, None] * P[1::2, 1::2] * g
            solved = np.linalg.solve(np.diag([9.0, 6.0]) - ahead, ahead @ delta)
            found = played.reply(jnp.asarray(s), jnp.asarray(delta))
            np.testing.assert_allclose(found, solved, rtol=1e-12)


# --- bad input -----------------------------------------------------------------------------------

REFUSED = {
    "Gamma: expected Γ ≻ γ hᵀP h at every state, without which the disturbance gains without end, "
    "got λ = γ sup λmax(Γ⁻¹hᵀP h) = 1.37": lambda: game(arm(), h="g", Gamma=1.0),
    "Gamma: expected λ = γ sup λmax(Γ⁻¹hᵀP h) < β, where Q ⪰ βP, got λ = 0.68": lambda: game(
        arm(), h="g", Gamma=2.0
    ),
    "Q: expected (1 - β)/(1 - λ) < γ = 0.9, which bounds the state at the saddle point, got 0.932"
    "": lambda: game(arm(), h="g", Gamma=2.96),
    "Gamma: expected a positive definite matrix, got smallest eigenvalue -1": lambda: game(
        arm(), h="g", Gamma=-1.0
    ),
    "Gamma: expected a square matrix, got shape (3,)": lambda: game(arm(), h="g", Gamma=[9.0] * 3),
    "h: unknown 'f'": lambda: game(arm(), h="f", Gamma=9.0),
    "h: expected finite numbers of shape (4, k), got (2, 4)": lambda: game(arm(), h=H.T, Gamma=9.0),
    "h: expected finite numbers of shape (4, k), got (4, 0)": lambda: game(
        arm(), h=np.zeros((4, 0)), Gamma=9.0
    ),
    "h: expected zeros in the rows of angles": lambda: game(
        FAMILIES["KinematicArm"].build(), h=np.ones((6, 1)), Gamma=1e6
    ),
    "adversary: unknown 'worst'": lambda: game(arm(), h="g", Gamma=9.0, adversary="worst"),
    "adversary: expected optimal or myopic, got none": lambda: make("states").against("none"),
    "game: expected a quadratic system, got Game": lambda: game(make("states"), h="g", Gamma=9.0),
    "game: expected a system without limit": lambda: game(
        arm(limit=Box(np.ones(2))), h="g", Gamma=9.0
    ),
    "game: expected a system without action_noise": lambda: game(
        arm(action_noise=0.3), h="g", Gamma=9.0
    ),
    "game: expected a system of the paper's class": lambda: game(
        FAMILIES["PlanarAerial"].build(), h="g", Gamma=9.0
    ),
    "rebuild: expected a quadratic system, got Game": lambda: cojax.rebuild(make("states"), p=0.5),
    "gamma: leaves of a system depend on each other; use cojax.games.game again": lambda: make(
        "states"
    ).replace(gamma=jnp.float32(0.5)),
}  # fmt: skip


@pytest.mark.parametrize("line", REFUSED)
def test_bad_input_is_refused_in_one_line(line):
    with pytest.raises(InputError) as caught:
        REFUSED[line]()
    assert line in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_full_price_of_disturbed_actuators_is_bounded_by_norms():
    """With a full Γ signs do not commute with it, and the bound by norms is taken."""
    with scope("float64"):
        Gamma = np.diag(GAMMA["actuators"]) + 2.0
        played = game(arm(), h="g", Gamma=4.0 * Gamma, adversary="myopic")
        P, s = full(arm().P), states(50)
        g = np.zeros((50, 4, 2))
        g[:, [1, 3], [0, 1]] = 0.8 * np.cos(s[:, 0::2])
        inside = np.linalg.solve(4.0 * Gamma, np.swapaxes(g, 1, 2) @ P @ g)
        largest = 0.9 * np.linalg.eigvals(inside).real.max()
        assert largest < float(played.margin) < 3.0 * largest
        x, a = jnp.asarray(s[0]), jnp.ones(2)
        q = cojax.oracle.q_value(played, x, a)
        known = played.value(x) + cojax.oracle.advantage(played, x, a)
        assert float(q) == pytest.approx(float(known), rel=1e-12)
