"""Twins: the optimum in other coordinates, by NumPy, by minimisation, and trial by trial."""

from __future__ import annotations

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.optimize import minimize

import cojax
from cojax import inputs, linalg, oracle, orbits, precision, streams
from cojax.action_limits import Ball, Box
from cojax.coordinates import Linear, SignedPermutation, Transformed, signed_permutation
from cojax.envs import ConverseEnv, env_params, num_instances, unstack
from cojax.errors import InputError
from cojax.evaluation import rollout
from cojax.families import FAMILIES
from cojax.policy import Policy
from cojax.testing import check_env

ENV = ConverseEnv()
FULL_R = np.array([[10.0, 4.0], [4.0, 6.0]])
SIGMA = np.array([1e-4, 4e-4, 2e-4, 3e-4])
SIGNED = (np.eye(4)[[2, 0, 3, 1]] * np.array([1, -1, -1, 1])[:, None], np.array([[0, -1], [1, 0]]))
MIXED = (
    np.eye(4) + 0.3 * np.random.default_rng(0).normal(size=(4, 4)),
    np.array([[0.9, 0.5], [-0.4, 1.3]]),
)
LIMITS = {
    "free": {"R": FULL_R},
    "box": {"R": np.array([10.0, 3.0]), "limit": Box(np.array([0.05, 0.2]))},
    "ball": {"R": FULL_R, "limit": Ball(np.array(0.3))},
}


def arm(**options):
    """Two joints in float64."""
    build = FAMILIES["ConverseArm"].build
    return build(2, 0.8, Sigma=SIGMA, dtype=np.float64, **{"R": FULL_R} | options)


def arm_params(**options):
    system = arm(**options)
    law = system.geometry.initial_law(np.float64)
    limit = {} if system.constrained else {"action_limit": None}
    return env_params(system, law, max_steps_in_episode=40, **limit)


def states(num=6):
    return np.random.default_rng(1).uniform(-1, 1, (num, 4)) * np.tile([2.5, 1.0], 2)


def full(system, name):
    return linalg.to_full(np.asarray(getattr(system, name)))


@pytest.mark.parametrize(("T", "U"), [SIGNED, MIXED], ids=["signed", "mixed"])
@pytest.mark.parametrize("case", LIMITS)
def test_the_optimum_of_a_twin_is_found_by_minimisation(case, T, U):
    """Bellman's equation, from the stated matrices in other coordinates and a minimiser; the drift
    and the input map alone are the twin's.
    """
    with precision.x64():
        params = arm_params(**LIMITS[case])
        system, base = orbits.carried(params, state=T, action=U).system, params.system
        Ti, Ui = np.linalg.inv(T), np.linalg.inv(U)
        P, Q = (Ti.T @ full(base, name) @ Ti for name in "PQ")
        R, Sigma = Ui.T @ full(base, "R") @ Ui, T @ np.diag(SIGMA) @ T.T
        gamma, rows = float(base.gamma), np.concatenate([Ui, -Ui])
        b = gamma / (1.0 - gamma) * np.trace(P @ Sigma)
        for s in states() @ T.T:
            f = np.asarray(oracle.drift(system, s))
            G = np.asarray(jax.jacobian(lambda a, s=s: system.actuate(s, a))(jnp.zeros(2)))

            def cost(a, s=s, f=f, G=G):
                z = f + G @ a
                return s @ Q @ s + a @ R @ a + gamma * (z @ P @ z + np.trace(P @ Sigma) + b)

            held = []
            if case == "box":
                held = [{"type": "ineq", "fun": lambda a: np.tile([0.05, 0.2], 2) - rows @ a}]
            if case == "ball":
                held = [{"type": "ineq", "fun": lambda a: 0.3**2 - a @ R @ a}]
            found = minimize(cost, np.zeros(2), constraints=held, method="SLSQP", tol=1e-14)
            value = float(oracle.value(system, s))
            assert value == pytest.approx(s @ P @ s + b, rel=1e-10)
            assert found.fun == pytest.approx(value, rel=1e-8)
            np.testing.assert_allclose(found.x, oracle.action(system, s), rtol=2e-4, atol=2e-5)
            a = np.asarray(system.feasible(found.x + np.array([0.03, -0.05])))
            excess = float(oracle.advantage(system, s, a))
            assert excess == pytest.approx(cost(a) - value, rel=1e-6, abs=1e-8 * value)
            assert float(oracle.q_value(system, s, a)) == pytest.approx(cost(a), rel=1e-8)


@pytest.mark.parametrize(("T", "U"), [SIGNED, MIXED], ids=["signed", "mixed"])
def test_every_method_is_that_of_numpy(T, U):
    """Noise of states and actions included; T w has the key of w."""
    with precision.x64():
        base = arm(state_noise=200.0, action_noise=[0.5, 1.5])
        law = base.geometry.initial_law(np.float64)
        params = orbits.carried(env_params(base, law, action_limit=None), state=T, action=U)
        system, key = params.system, streams.seed_key(3)
        for s, a in zip(states(), np.random.default_rng(2).normal(size=(6, 2)), strict=True):
            x, b, at = T @ s, U @ a, base.optimum(s)
            moved = system.optimum(x)
            pairs = [
                (moved.drift, T @ at.drift),
                (moved.action, U @ at.action),
                (moved.next_mean, T @ at.next_mean),
                (system.actuate(x, b), T @ base.actuate(s, a)),
                (system.next_mean(x, b, moved), T @ base.next_mean(s, a, at)),
                (system.sample_noise(x, key, b), T @ base.sample_noise(s, key, a)),
                (system.stage_cost(x, b), base.stage_cost(s, a)),
                (system.expected_value(x, x, b), base.expected_value(s, s, a)),
                (system.noise_price(x, b), base.noise_price(s, a)),
                (system.excess_cost(x, b), base.excess_cost(s, a)),
                (system.excess_cost(x, b, moved), base.excess_cost(s, a)),
                (params.initial_state.sample(key), T @ law.sample(key)),
            ]
            for found, expected in pairs:
                np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(("T", "U"), [SIGNED, MIXED], ids=["signed", "mixed"])
def test_bounds_hold_what_they_should(T, U):
    with precision.x64():
        params = arm_params(**LIMITS["box"])
        moved = orbits.carried(params, state=T, action=U)
        system, base = moved.system, params.system
        # the farthest point of an ellipsoid, row by row, is on it and at the bound
        P = np.linalg.inv(T).T @ full(base, "P") @ np.linalg.inv(T)
        for i, most in enumerate(np.asarray(system.state_bound(jnp.float64(2.0)))):
            far = np.linalg.inv(P)[i] * 2.0 / np.sqrt(np.linalg.inv(P)[i, i])
            assert far @ P @ far == pytest.approx(4.0)
            assert far[i] == pytest.approx(most)
        # the box of a box: corners
        corners = np.array([[1, 1], [1, -1]]) * np.asarray(base.limit.bound) @ U.T
        np.testing.assert_allclose(system.feasible_box(), np.abs(corners).max(0), rtol=1e-12)
        np.testing.assert_allclose(moved.action_limit, np.abs(corners).max(0), rtol=1e-12)
        b = np.array([0.4, -0.7])
        expected = U @ np.clip(np.linalg.inv(U) @ b, -base.limit.bound, base.limit.bound)
        np.testing.assert_allclose(moved.clip(jnp.asarray(b)), expected, rtol=1e-12)
        # gradients of one function in both coordinates go downhill together
        if T is SIGNED[0]:
            g, size, ball = np.array([0.3, -0.2]), np.array([0.5, 0.4]), arm(**LIMITS["ball"])
            turned = Transformed(ball, system.state, system.action)  # pyright: ignore
            found = turned.downhill(np.linalg.inv(U).T @ g, np.abs(U) @ size)
            np.testing.assert_allclose(found, U @ ball.downhill(g, size), rtol=1e-12)
        # one step from the guard stays in the space
        s = states(64) * 3.0
        step = jax.vmap(system.next_mean)
        at = jax.vmap(system.optimum)(s @ T.T)
        reached = np.abs(step(s @ T.T, at.action, at))
        radius = np.sqrt(np.max(np.einsum("ni,ij,nj->n", s, full(base, "P"), s)))
        assert (reached <= system.reach(radius, jnp.zeros(4), moved.action_limit)).all()


def test_signed_permutations_are_exact_to_the_bit():
    x = np.random.default_rng(0).normal(size=7).astype(np.float32)
    order, sign = [3, 0, 6, 1, 2, 5, 4], [1, -1, -1, 1, 1, -1, 1]
    T = signed_permutation(order, sign)
    np.testing.assert_array_equal(T.to(x), sign * x[order])
    np.testing.assert_array_equal(T.back(T.to(x)), x)
    M = np.eye(7)[order] * np.array(sign)[:, None]
    np.testing.assert_array_equal(T.transposed(x), M.T.astype(np.float32) @ x)
    np.testing.assert_array_equal(T.widened(x), np.abs(M).astype(np.float32) @ x)
    np.testing.assert_array_equal(T.widened_back(x), np.abs(M.T).astype(np.float32) @ x)
    params = cojax.make("ConverseArm-v0", n=3)[1]
    system = orbits.twin(params, 5).system
    at = jax.vmap(lambda s: (params.system.value(s), params.system.optimum(s)))
    there = jax.vmap(lambda s: (system.value(s), system.optimum(s)))
    s = np.random.default_rng(1).normal(size=(8, 6)).astype(np.float32)
    value, optimum = at(s)
    found, moved = there(jax.vmap(system.state.to)(s))
    np.testing.assert_array_equal(found, value)
    np.testing.assert_array_equal(moved.action, jax.vmap(system.action.to)(optimum.action))
    np.testing.assert_array_equal(moved.drift, jax.vmap(system.state.to)(optimum.drift))


def mlp(params, obs, key):
    hidden = jnp.tanh(jnp.matmul(params["in"], obs, precision="highest"))
    return jnp.matmul(params["out"], hidden, precision="highest")


def random_policy(d, m, *lead, seed=0):
    rng = np.random.default_rng(seed)
    params = {"in": rng.normal(size=(*lead, 8, d)), "out": 0.1 * rng.normal(size=(*lead, m, 8))}
    params = jax.tree.map(lambda x: jnp.asarray(x, jnp.float32), params)
    return Policy(params, mlp, name="mlp", axes=("seed",) if lead else ())


KINEMATIC = {"n": 2, "gravity": 0.5, "coriolis": 0.4}
REFERENCES = ["oracle", "zero", "lqr", "detuned-oracle:0.8"]


@pytest.mark.parametrize("kind", orbits.KINDS)
def test_gaps_are_those_of_the_original_trial_by_trial(kind):
    """Of references, and of networks that are carried along; one trace serves all orbits."""
    params = cojax.make("KinematicArm-v0", **KINEMATIC)[1]
    network = random_policy(4, 2, 3)
    options = {"num_trials": 16, "num_steps": 25, "progress": None}
    first = cojax.evaluate([*REFERENCES, network], params, **options).trials
    expected = first["suboptimality"]
    assert (expected[0, 1:] > 0.0).all()
    traces = None
    for seed in range(2):
        twins = orbits.orbit(params, 3, seed, kind=kind)
        assert num_instances(twins) == 3
        copy = orbits.carried_policy(network, twins)
        assert copy.axes == ("fixture", "seed")
        trials = cojax.evaluate([*REFERENCES, copy], twins, **options).trials
        gaps = trials["suboptimality"]
        tolerance = 2e-4 if kind == "rotation" else 2e-5
        np.testing.assert_allclose(gaps, np.broadcast_to(expected, gaps.shape), rtol=tolerance)
        assert (gaps[:, 0] == 0.0).all()
        np.testing.assert_allclose(
            trials["optimal_value"], np.broadcast_to(first["optimal_value"], gaps.shape), rtol=1e-5
        )
        # on other axes the network is another policy
        moved = cojax.evaluate([network], twins, **options).trials["suboptimality"]
        assert not np.allclose(moved, gaps[:, 4:], rtol=0.05)
        if traces is not None:
            assert rollout.run._cache_size() == traces
        traces = rollout.run._cache_size()


def test_one_twin_carries_one_policy():
    params = cojax.make("KinematicArm-v0", **KINEMATIC)[1]
    policy, options = random_policy(4, 2), {"num_trials": 8, "num_steps": 10, "progress": None}
    twin = orbits.twin(orbits.twin(params, 0), streams.seed_key(9), kind="rotation")  # of a twin
    copy = orbits.carried_policy(policy, twin)
    gaps = [cojax.evaluate(p, q, **options).trials["suboptimality"]
            for p, q in ((policy, params), (copy, twin))]  # fmt: skip
    np.testing.assert_allclose(gaps[1], gaps[0], rtol=2e-4)


def test_box_of_actions_goes_along():
    """An enforced box with a limit for each action; a rotation turns the states alone."""
    params = cojax.make("ConverseArm-v0", n=3, action_limit=[0.5, 1.0, 2.0])[1]
    for kind in orbits.KINDS:
        twin = orbits.twin(params, 1, kind=kind)
        U = twin.system.action
        assert isinstance(U, SignedPermutation)
        assert not np.array_equal(U.source, [0, 1, 2])
        assert isinstance(twin.system.state, Linear if kind == "rotation" else SignedPermutation)
        np.testing.assert_array_equal(twin.action_limit, params.action_limit[U.source])
        a = jnp.array([9.0, -0.7, 1.4])
        np.testing.assert_array_equal(twin.clip(U.to(a)), U.to(params.clip(a)))
        assert float(twin.divergence_radius) == float(params.divergence_radius)


def test_twins_conform():
    params = cojax.make("KinematicArm-v0", **KINEMATIC)[1]
    check_env(ENV, orbits.twin(params, 7, kind="rotation"), num_states=4, num_draws=1024)


def test_twins_of_several_systems_stack():
    """Of one shape but for their Chebyshev series; members are what they are alone."""
    arms = [cojax.make("ConverseArm-v0", n=3, R=R)[1] for R in (10.0, 0.1)]
    lengths = {p.system.inverse_sqrt.length for p in arms}
    twins = [orbits.twin(p, i) for i, p in enumerate(arms)]
    batch = cojax.stack(twins)
    assert len(lengths) == 2
    s = np.random.default_rng(0).normal(size=6).astype(np.float32)
    together = jax.vmap(lambda p: oracle.action(p.system, s))(batch)
    alone = [oracle.action(p.system, s) for p in twins]
    np.testing.assert_allclose(together, alone, rtol=1e-5, atol=1e-7)
    assert isinstance(unstack(batch)[1].system, Transformed)
    with pytest.raises(InputError, match="number 1 is built of other parts"):
        cojax.stack([arms[0], twins[1]])
    broken = inputs.swapped(
        twins[0],
        system=inputs.swapped(
            twins[0].system, base=inputs.swapped(arms[0].system, P=2 * arms[0].system.P)
        ),
    )
    with pytest.raises(InputError, match="P"):
        cojax.evaluate("oracle", broken, 2, progress=None)


def test_params_are_replaced_as_others_are():
    params = cojax.make("KinematicArm-v0", **KINEMATIC)[1]
    twin = orbits.twin(params, 3)
    assert int(twin.replace(max_steps_in_episode=7).max_steps_in_episode) == 7
    tighter = twin.replace(action_limit=0.5)
    assert tighter.clip_actions
    np.testing.assert_array_equal(tighter.action_limit, [0.5, 0.5])
    assert "Transformed" in repr(twin)
    assert "SignedPermutation" in repr(twin.system)
    names, actions = ENV.labels(twin)
    assert (len(names), len(actions)) == (4, 2)


def test_gradients_of_returns_are_carried():
    """∂/∂b of a sum of rewards is U⁻ᵀ ∂/∂a, through three transitions."""
    params = cojax.make("KinematicArm-v0", **KINEMATIC)[1]
    env = ENV.with_transition_gradients()
    key = streams.seed_key(0)

    @jax.jit
    def slopes(actions, params):
        def total(actions):
            _, state = env.reset_env(key, params)
            rewards = 0.0
            for a in actions:
                _, state, reward, *_ = env.step_env(key, state, a, params)
                rewards += reward
            return rewards

        return jax.grad(total)(actions)

    a = jnp.array([[0.3, -0.2], [0.1, 0.5], [-0.4, 0.2]])
    expected = slopes(a, params)
    for kind in orbits.KINDS:
        twin = orbits.twin(params, 2, kind=kind)
        found = slopes(jax.vmap(twin.system.action.to)(a), twin)
        back = jax.vmap(twin.system.action.back)(found)  # orthogonal: U⁻¹ = Uᵀ
        np.testing.assert_allclose(back, expected, rtol=2e-4, atol=1e-5)


def test_spread_is_that_of_learners_on_the_twins():
    params = cojax.make("KinematicArm-v0", n=1, max_steps_in_episode=20)[1]
    small = {"num_envs": 2, "num_steps": 4, "hidden": (4,), "num_minibatches": 1}
    options = {"hyperparameters": small, "total_timesteps": 16, "num_seeds": 2, "progress": None}
    found = orbits.spread("ppo", params, 3, 1, num_trials=8, **options)
    assert found.gaps.shape == (3, 2)
    assert found.lowest <= found.median <= found.highest
    assert found.lowest < found.highest
    assert found.evaluation.fixtures == ("twin 0", "twin 1", "twin 2")
    alone = orbits.twin(params, jax.random.fold_in(streams.root_key(1), 2))
    again = cojax.evaluate(found.run.member(fixture=2), alone, 8, progress=None)
    gap = again.trials["relative_suboptimality"][0].mean(-1)
    np.testing.assert_allclose(found.gaps[2], gap, rtol=1e-4)
    assert found.by_twin[2] == pytest.approx(np.median(gap), rel=1e-4)
    assert not found.run.failed.any()


def test_orbits_are_reproducible_and_differ():
    params = cojax.make("ConverseArm-v0", n=3)[1]
    one, other = orbits.twin(params, 0).system, orbits.twin(params, 1).system
    same = orbits.twin(params, streams.root_key(0)).system
    np.testing.assert_array_equal(one.state.source, same.state.source)
    np.testing.assert_array_equal(one.state.sign, same.state.sign)
    assert not np.array_equal(one.state.sign * (1 + one.state.source),
                              other.state.sign * (1 + other.state.source))  # fmt: skip
    T = np.asarray(orbits.twin(params, 0, kind="rotation").system.state.matrix)
    np.testing.assert_allclose(T @ T.T, np.eye(6), atol=1e-6)


def test_bad_input_is_refused_in_one_line():
    params = cojax.make("ConverseArm-v0", n=2)[1]
    law = cojax.make("KinematicArm-v0", **KINEMATIC)[1]
    batch = orbits.orbit(law, 2)
    policy = random_policy(4, 2, 2)
    refused = [
        (lambda: orbits.twin(params, 0, kind="mirror"), "kind: unknown 'mirror'"),
        (lambda: orbits.twin(params, -1), "root: expected a whole number >= 0"),
        (lambda: orbits.twin(params.system, 0), "params: expected EnvParams"),
        (lambda: orbits.orbit(params, 0), "num: expected a whole number >= 1"),
        (lambda: orbits.twin(batch, 0), "expected those of one system, got a stacked batch"),
        (lambda: orbits.carried(params, state=np.eye(3)), "state: expected a change of 4"),
        (lambda: orbits.carried(params, state=np.ones((4, 3))), "state: expected an (n, n) matrix"),
        (lambda: orbits.carried(params, state=np.ones((4, 4))), "state: expected an invertible"),
        (lambda: orbits.carried(params, state=np.full((4, 4), np.nan)), "finite numbers, got nan"),
        (lambda: orbits.carried(params, action=MIXED[1]), "expected a signed permutation, since"),
        (lambda: signed_permutation([0, 0], [1, 1]), "T: expected a permutation of 0 … 1"),
        (lambda: signed_permutation([1, 0], [1, 2]), "T: expected 2 signs"),
        (lambda: orbits.carried_policy(policy, params), "params: expected those of a twin"),
        (
            lambda: orbits.carried_policy(inputs.swapped(policy, axes=("fixture",)), batch),
            "expected no axis 'fixture' for 2 stacked twins",
        ),
    ]
    for call, message in refused:
        with pytest.raises(InputError, match=re.escape(message)) as error:
            call()
        assert "\n" not in str(error.value)
    assert isinstance(orbits.carried(law, action=MIXED[1]).system.action, Linear)
