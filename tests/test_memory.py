"""Memory in the state: action rates, delayed actions, Markov jumps, against independent sums."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import scope
from scipy.optimize import brentq, minimize

import cojax
from cojax import memory, streams, testing
from cojax.action_limits import Box
from cojax.delay import delayed
from cojax.envs import ConverseEnv, env_params
from cojax.errors import InputError
from cojax.families import FAMILIES
from cojax.initial import Uniform
from cojax.markov_jump import chances, markov_jump
from cojax.policy import Policy

D = np.array([30.0, 4.0])
PI = np.array([[12.0, 3.0, 1.0], [4.0, 8.0, 4.0], [0.0, 6.0, 10.0]]) / 16.0
CASES = ("rate", "delay", "jump")


def arm(p=0.8, dtype=None, **options):
    """Two joints, correlated noise on all rows, nothing else of the default."""
    rng = np.random.default_rng(3)
    L = 0.01 * rng.normal(size=(4, 4))
    P = np.diag([4.0, 1.0, 3.0, 2.0]) + 0.3
    given = {"R": [6.0, 16.0], "Sigma": L @ L.T, "P": P, "Q": 0.3 * P, "gamma": 0.9}
    return FAMILIES["ConverseArm"].build(2, p, dtype=dtype, **given | options)


def modes(dtype=None):
    """Three arms of different P, Q, R, p, Σ and knobs."""
    P = np.diag([1.0, 2.0, 2.0, 5.0]) - 0.2
    second = arm(0.5, dtype, P=P, Q=0.4 * P, R=8.0, g0=0.12, alpha0=0.4)
    return [arm(dtype=dtype), second, arm(1.0, dtype, R=[20.0, 5.0], Sigma=np.full((4, 4), 3e-4))]


def make(name, dtype=None):
    """One system of each class."""
    if name == "rate":
        return memory.action_rate(arm(dtype=dtype), D)
    if name == "delay":
        return delayed(arm(dtype=dtype))
    return markov_jump(modes(dtype), PI)


def states(name, num=12):
    """Random s, and a random last action or each of the modes."""
    rng = np.random.default_rng(0)
    s = rng.uniform(-1, 1, (num, 4)) * np.tile([2.8, 1.2], 2)
    last = np.eye(3)[np.arange(num) % 3] if name == "jump" else rng.normal(size=(num, 2))
    return np.concatenate([s, last], axis=1)


def full(x):
    x = np.asarray(x, np.float64)
    return np.diag(x) if x.ndim == 1 else x


def covariance(system):
    return full(system.noise.covariance())


def known_value(name):
    """x -> V*(x), and (x, a) -> c(x, a), by NumPy from what the systems were made of."""
    if name == "jump":
        systems = modes()
        ahead = [np.tensordot(row, np.stack([full(j.P) for j in systems]), 1) for row in PI]
        pairs = zip(ahead, systems, strict=True)
        kappa = np.array([np.trace(P @ covariance(i)) for P, i in pairs])
        b = np.zeros(3)
        for _ in range(2000):
            b = 0.9 * (kappa + PI @ b)

        def value(x):
            i = int(np.argmax(x[4:]))
            return x[:4] @ full(systems[i].P) @ x[:4] + b[i]

        def cost(x, a):
            i = int(np.argmax(x[4:]))
            return x[:4] @ full(systems[i].Q) @ x[:4] + a @ full(systems[i].R) @ a

        return value, cost
    system = arm()
    P, Q, R = full(system.P), full(system.Q), full(system.R)
    b = 9.0 * np.trace(P @ covariance(system))
    if name == "rate":
        price = np.zeros(2)
        for _ in range(2000):
            price = D - D**2 / (np.diag(R) + D + 0.9 * price)

        return (
            lambda x: x[:4] @ P @ x[:4] + price @ x[4:] ** 2 + b,
            lambda x, a: x[:4] @ Q @ x[:4] + a @ R @ a + D @ (a - x[4:]) ** 2,
        )
    g = np.asarray(jax.vmap(lambda a: system.actuate(jnp.zeros(4), a))(jnp.eye(2)))

    def value(x):
        moved = x[:4] + x[4:] @ g
        return x[:4] @ Q @ x[:4] + moved @ (P - Q) @ moved + b

    return value, lambda x, a: x[:4] @ Q @ x[:4] + a @ R @ a


def q_function(name, system, x):
    """Q*(x, ·) from drift and input map, ± pairs of noise that have its covariance, and NumPy."""
    value, cost = known_value(name)
    f = np.asarray(system.optimum(jnp.asarray(x)).drift)
    push = jax.vmap(lambda a: system.actuate(jnp.asarray(x), a))
    G = np.asarray(push(jnp.eye(2)))
    i = int(np.argmax(x[4:])) if name == "jump" else 0
    inner = modes()[i] if name == "jump" else arm()
    w, V = np.linalg.eigh(covariance(inner))
    pairs = np.concatenate(
        [r * np.sqrt(4.0 * np.clip(w, 0.0, None))[:, None] * V.T for r in (1, -1)]
    )

    def ahead(a):
        z = f + a @ G
        if name != "jump":
            return np.mean([value(np.append(z[:4] + pair, z[4:])) for pair in pairs])
        return np.mean([
            sum(PI[i, j] * value(np.append(z[:4] + pair, np.eye(3)[j])) for j in range(3))
            for pair in pairs
        ])  # fmt: skip

    return lambda a: cost(x, a) + 0.9 * ahead(a)


@pytest.mark.parametrize("name", CASES)
def test_numerical_minimisation_gives_value_and_action(name):
    with scope("float64"):
        system = make(name)
        for x in states(name):
            Q = q_function(name, system, x)
            found = minimize(Q, np.zeros(2), method="BFGS", options={"gtol": 1e-9})
            best = np.asarray(system.optimum(jnp.asarray(x)).action)
            value = float(system.value(jnp.asarray(x)))
            assert value == pytest.approx(known_value(name)[0](x), rel=1e-9)
            assert found.fun == pytest.approx(value, rel=1e-9)
            np.testing.assert_allclose(found.x, best, atol=1e-5 * (1.0 + np.abs(best).max()))
            assert np.abs(best).max() > 1e-3


@pytest.mark.parametrize("name", CASES)
def test_advantages_are_differences_of_q(name):
    rng = np.random.default_rng(1)
    with scope("float64"):
        system = make(name)
        for x in states(name, 6):
            Q, at = q_function(name, system, x), system.optimum(jnp.asarray(x))
            for size in (0.1, 1.0):
                a = np.asarray(at.action) + size * rng.normal(size=2)
                found = Q(a) - Q(np.asarray(at.action))
                excess = float(system.excess_cost(jnp.asarray(x), a - at.action, at))
                assert excess == pytest.approx(found, abs=1e-12 * abs(Q(a)))
                assert float(cojax.oracle.advantage(system, x, a)) == pytest.approx(excess)
                known = float(cojax.oracle.q_value(system, x, a))
                assert known == pytest.approx(Q(a), rel=1e-10)
            assert float(system.excess_cost(jnp.asarray(x), jnp.zeros(2))) == 0.0


@pytest.mark.parametrize("name", CASES)
def test_bellmans_equation_holds_to_rounding(name):
    with scope("float64"):
        system, x = make(name), jnp.asarray(states(name, 64))
        best = jax.vmap(lambda x: system.optimum(x).action)(x)
        q = jax.vmap(cojax.oracle.q_value, (None, 0, 0))(system, x, best)
        np.testing.assert_allclose(q, jax.vmap(system.value)(x), rtol=1e-12)


@pytest.mark.parametrize("name", CASES)
def test_a_hundred_thousand_draws_cost_what_is_expected(name):
    system = make(name, np.float32)
    x = jnp.asarray(states(name, 3)[1], jnp.float32)
    a = jnp.asarray([0.4, -0.7], jnp.float32)
    keys = jax.random.split(streams.root_key(5), 100_000)

    @jax.jit
    def after(x, a):
        return jax.vmap(lambda key: cojax.system.step(system, x, a, key))(keys)

    x2 = np.asarray(after(x, a), np.float64)
    value, _ = known_value(name)
    if name == "jump":
        assert set(np.unique(x2[:, 4:])) == {0.0, 1.0}
        assert (x2[:, 4:].sum(axis=1) == 1.0).all()
        met = x2[:, 4:].mean(axis=0)
        assert (np.abs(met - PI[1]) < 4.0 * np.sqrt(PI[1] / 1e5)).all()
    else:
        np.testing.assert_array_equal(x2[:, 4:], np.tile(np.asarray(a), (len(x2), 1)))
    values = np.apply_along_axis(value, 1, x2)
    z = system.next_mean(x, a, system.optimum(x))
    known = float(system.expected_value(x, z, a))
    assert abs(values.mean() - known) < 4.0 * values.std() / np.sqrt(len(values)) + 1e-6 * known
    spread = 4.0 * x2.std(axis=0) / np.sqrt(len(x2)) + 1e-6
    assert (np.abs(x2.mean(axis=0) - np.asarray(z)) < spread).all()


def wrong(params, obs, key):
    """No optimum, but it keeps the state where it is known."""
    return 0.6 * jnp.tanh(obs[:2] - obs[2:4])


def problem(name, dtype=np.float32, horizon=150, **options):
    system = make(name, dtype)
    high = np.tile([2.0, 1.0], 2).astype(dtype)
    law = system.initial_law(Uniform(jnp.asarray(-high), jnp.asarray(high)))
    return env_params(system, law, max_steps_in_episode=horizon, **options)


@pytest.mark.parametrize("name", CASES)
def test_regret_is_the_sum_of_advantages(name):
    params = problem(name)
    policies = [Policy((), wrong, "wrong"), "oracle", "zero", "lqr", "random"]
    found = cojax.evaluate(policies, params, 512, 2)
    gaps, regrets = (found.trials[n][0] for n in ("suboptimality", "coupled_regret"))
    assert not found.trials["failed"].any()
    assert (gaps[1] == 0.0).all()
    for gap, regret in zip(np.delete(gaps, 1, 0), np.delete(regrets, 1, 0), strict=True):
        difference = gap - regret
        error = difference.std() / np.sqrt(difference.size)
        assert gap.mean() > 10.0 * error
        assert abs(difference.mean()) < 4.0 * error


@pytest.mark.parametrize("name", CASES)
def test_the_environment_conforms(name):
    params = problem(name)
    testing.check_env(ConverseEnv(params), params, num_states=4, num_draws=512)


@pytest.mark.parametrize("name", CASES)
def test_stacks_and_traces_once(name):
    one = problem(name)
    if name == "rate":
        other = memory.action_rate(arm(0.6, np.float32), [0.0, 1.0])
    elif name == "delay":
        other = delayed(arm(0.6, np.float32), effect=np.ones((4, 2)))
    else:
        other = markov_jump([arm(p, np.float32) for p in (0.3, 0.4, 0.5)], np.full((3, 3), 1 / 3))
    two = one.replace(system=other)
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


def test_no_price_on_rates_is_the_papers_system_to_the_bit():
    plain = arm(dtype=np.float32)
    system = memory.action_rate(plain, 0.0)
    for x in states("rate").astype(np.float32):
        s, a = x[:4], x[4:]
        ours, theirs = system.optimum(x), plain.optimum(s)
        for one, other in ((ours.drift[:4], theirs.drift), (ours.action, theirs.action)):
            np.testing.assert_array_equal(one, other)
        z, known = system.next_mean(x, a, ours), plain.next_mean(s, a, theirs)
        np.testing.assert_array_equal(z[:4], known)
        assert system.value(x) == plain.value(s)
        assert system.stage_cost(x, a) == plain.stage_cost(s, a)
        assert system.excess_cost(x, a) == plain.excess_cost(s, a)
        key = streams.root_key(3)
        np.testing.assert_array_equal(
            system.sample_noise(x, key)[:4], plain.sample_noise(s, jax.random.clone(key))
        )


def test_actions_without_effect_leave_the_papers_drift_without_control():
    with scope("float64"):
        plain = arm()
        system = delayed(plain, effect=np.zeros((4, 2)))
        P, Q = full(plain.P), full(plain.Q)
        w, V = np.linalg.eigh(P)
        root = np.linalg.eigh(P - Q)
        root = (root[1] * np.sqrt(root[0])) @ root[1].T
        for x in states("delay"):
            s = x[:4]
            turned = plain.geometry.rotate(jnp.asarray(s), jnp.asarray(root @ s), plain.p)
            f = (V / np.sqrt(0.9 * w)) @ V.T @ np.asarray(turned)
            found = system.optimum(jnp.asarray(x))
            np.testing.assert_allclose(found.drift[:4], f, rtol=1e-12)
            np.testing.assert_array_equal(found.action, 0.0)
            assert float(system.value(x)) == pytest.approx(float(plain.value(s)), rel=1e-13)


def test_one_mode_is_the_papers_system():
    with scope("float64"):
        plain = arm()
        for system in (
            markov_jump([plain], [[1.0]]),
            markov_jump([plain] * 2, np.full((2, 2), 0.5)),
        ):
            for s in states("jump")[:, :4]:
                x = np.append(s, np.eye(system.modes)[-1])
                ours, theirs = system.optimum(jnp.asarray(x)), plain.optimum(jnp.asarray(s))
                np.testing.assert_allclose(ours.action, theirs.action, rtol=1e-11)
                np.testing.assert_allclose(ours.drift[:4], theirs.drift, rtol=1e-11)
                assert float(system.value(x)) == pytest.approx(float(plain.value(s)), rel=1e-12)


def test_chances_are_kept_on_a_grid_that_draws_meet():
    given = np.random.default_rng(4).dirichlet(np.ones(5), 5)
    kept = chances(given, 5)
    assert (kept.sum(axis=1) == 1.0).all()
    np.testing.assert_allclose(kept, given, atol=5e-6)
    np.testing.assert_array_equal(kept, kept.astype(np.float32))
    np.testing.assert_array_equal(kept * 2**20, np.round(kept * 2**20))


def test_all_policies_meet_the_same_modes_and_noise():
    system = make("jump", np.float32)
    x = jnp.asarray(states("jump", 3)[0], jnp.float32)
    keys = jax.random.split(streams.root_key(0), 64)
    draw = jax.vmap(system.sample_noise, (None, 0, None))
    one, two = draw(x, keys, jnp.zeros(2)), draw(x, jax.random.clone(keys), jnp.ones(2))
    np.testing.assert_array_equal(one, two)


@pytest.mark.parametrize("name", CASES)
def test_the_guard_is_never_below_the_offset(name):
    system = make(name, np.float32)
    x = jnp.asarray(states(name), jnp.float32).at[:, :4].set(0.0)
    excess = jax.vmap(system.value)(x) - system.offset
    assert (excess >= 0.0).all()
    if name == "jump":
        assert excess.min() == 0.0
        assert len(np.unique(excess)) == 3


@pytest.mark.parametrize("name", CASES)
def test_states_inside_the_guard_step_into_the_observation_space(name):
    params = problem(name, divergence_radius=30.0)
    system = params.system
    value = known_value(name)[0]
    rng, bound = np.random.default_rng(2), np.asarray(system.state_bound(jnp.float32(1.0)))
    step = jax.jit(lambda x, a: cojax.system.mean_next_state(system, x, a))
    closest = 0.0
    for row in states(name, 100):
        direction = row[:4] * (rng.uniform(size=4) < 0.6)
        memory_part = row[4:] if name == "jump" else rng.choice([-2.0, 0.0, 2.0], 2)

        def excess(t, s=direction, e=memory_part):
            return value(np.append(t * s, e)) - float(system.offset)

        if not direction.any():
            continue
        t = brentq(lambda t: excess(t) - 899.9, 0.0, 1e4)
        s = t * direction
        assert (np.abs(s) <= 30.0 * bound[:4]).all()
        a = 2.0 * rng.choice([-1.0, 1.0], 2)
        z = np.asarray(step(*(np.float32(v) for v in (np.append(s, memory_part), a))))
        ratio = np.abs(z) / np.asarray(params.observation_limit)
        closest = max(closest, ratio[:4].max())
        assert (ratio <= 1.0).all()
    assert closest > 0.2


REFUSED = {
    "D: expected numbers >= 0, got -1": lambda: memory.action_rate(arm(), [-1.0, 1.0]),
    "D: expected 2 numbers, got shape (3,)": lambda: memory.action_rate(arm(), [1.0] * 3),
    "action_rate: expected a diagonal R, got 1 beside its diagonal": lambda: memory.action_rate(
        arm(R=[[3.0, 1.0], [1.0, 3.0]]), 1.0
    ),
    "action_rate: expected a system without limit": lambda: memory.action_rate(
        arm(limit=Box(np.ones(2))), 1.0
    ),
    "action_rate: expected a system without action_noise": lambda: memory.action_rate(
        arm(action_noise=0.3), 1.0
    ),
    "steps: expected 1, with which V* is exact under noise and without, got 3": lambda: delayed(
        arm(), 3
    ),
    "steps: expected a whole number >= 1, got 0": lambda: delayed(arm(), 0),
    "got β = 0.05": lambda: delayed(arm(Q=0.05 * full(arm().P))),
    "effect: expected finite numbers of shape (4, 2), got (2, 4)": lambda: delayed(
        arm(), effect=np.ones((2, 4))
    ),
    "delayed: expected parameterization='metric', got 'sqrt'": lambda: delayed(
        arm(parameterization="sqrt")
    ),
    "delayed: expected a drift that is free in every row, got kinematics": lambda: delayed(
        FAMILIES["KinematicArm"].build()
    ),
    "transition: expected rows that sum to 1, got 0.9 in row 1": lambda: markov_jump(
        [arm(), arm()], [[1.0, 0.0], [0.4, 0.5]]
    ),
    "transition: expected numbers >= 0, got -0.5": lambda: markov_jump(
        [arm(), arm()], [[1.5, -0.5], [0.5, 0.5]]
    ),
    "transition: expected finite numbers of shape (2, 2), got (1, 1)": lambda: markov_jump(
        [arm(), arm()], [[1.0]]
    ),
    "systems: expected modes of one family": lambda: markov_jump(
        [arm(), arm(gamma=0.8)], np.full((2, 2), 0.5)
    ),
    "systems: expected at least one, got none": lambda: markov_jump([], [[1.0]]),
    "got kinematics": lambda: markov_jump([FAMILIES["KinematicArm"].build()], [[1.0]]),
    "gamma: leaves of a system depend on each other; use cojax.delay.delayed again": lambda: make(
        "delay"
    ).replace(gamma=jnp.float32(0.5)),
}


@pytest.mark.parametrize("line", REFUSED)
def test_bad_input_is_refused_in_one_line(line):
    with pytest.raises(InputError) as caught:
        REFUSED[line]()
    assert line in str(caught.value)
    assert "\n" not in str(caught.value)


def test_kinematics_stay_as_they_are_under_a_price_on_rates():
    with scope("float64"):
        plain = FAMILIES["KinematicArm"].build(dtype=np.float64)
        n = plain.geometry.n
        system = memory.action_rate(plain, 0.7)
        x = np.random.default_rng(1).normal(size=3 * n)
        drift = system.optimum(jnp.asarray(x)).drift
        tau = float(plain.geometry.tau)
        np.testing.assert_allclose(drift[: 2 * n : 2], x[: 2 * n : 2] + tau * x[1 : 2 * n : 2])

        def Q(a):
            return float(cojax.oracle.q_value(system, jnp.asarray(x), jnp.asarray(a)))

        found = minimize(Q, np.zeros(n), method="BFGS", options={"gtol": 1e-9})
        assert found.fun == pytest.approx(float(system.value(jnp.asarray(x))), rel=1e-9)


def test_names_say_what_is_remembered():
    env = ConverseEnv(problem("rate"))
    states, actions = env.labels()
    assert states[4:] == ["last torque_1 [-]", "last torque_2 [-]"]
    assert actions == ["torque_1 [-]", "torque_2 [-]"]
    assert ConverseEnv(problem("jump")).labels()[0][4:] == [f"mode {i} [-]" for i in (1, 2, 3)]


@pytest.mark.slow
def test_learners_take_a_system_that_remembers():
    run = cojax.train(
        "ppo", problem("jump", horizon=32), jax.random.key(0), num_seeds=1, total_timesteps=512,
        num_envs=8, progress=None,
    )  # fmt: skip
    assert run.policy.apply(run.policy.member(seed=0).params, jnp.ones(7), None).shape == (2,)


def test_states_and_memories_are_drawn_apart():
    """Of a law that splits its key, too: that of the vehicle's draws by both halves."""
    law = FAMILIES["NVDEx"].build(1).geometry.initial_law(np.float32)
    joined = memory.Joined(law, Uniform(jnp.full(2, -1.0), jnp.full(2, 1.0)))
    x = jax.vmap(joined.sample)(jax.random.split(jax.random.key(0), 10_000))
    related = np.corrcoef(np.asarray(x[:, np.asarray(x).std(axis=0) > 0.0]).T)[-2:, :-2]
    assert np.abs(related).max() < 0.05
