"""An observed, correlated disturbance: V* and π* against minimisation, draws and returns."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import scope
from scipy.optimize import minimize

import cojax
from cojax.disturbance import disturbed
from cojax.envs import ConverseEnv, env_params
from cojax.errors import InputError
from cojax.families import FAMILIES

RHO, VARIANCES = np.array([0.5, -0.3]), np.array([0.04, 0.01])
EFFECT = 0.3 * np.random.default_rng(1).normal(size=(4, 2))


def arm(dtype=None, **options):
    given = {"R": 8.0, "gamma": 0.9, "Sigma": 1e-3}
    P = np.diag([4.0, 1.0, 3.0, 2.0]) + 0.3
    given = given | {"P": P, "Q": 0.4 * P} | options
    return FAMILIES["ConverseArm"].build(2, 0.8, dtype=dtype, **given)


def make(dtype=None, effect=EFFECT, **options):
    return disturbed(arm(dtype, **options), RHO, VARIANCES, effect)


def states(num=16):
    rng = np.random.default_rng(0)
    s = rng.uniform(-1, 1, (num, 4)) * np.tile([2.8, 1.2], 2)
    return np.concatenate([s, rng.normal(size=(num, 2))], axis=1)


def test_numerical_minimisation_gives_value_and_action():
    """With moments written out anew: E V*(z + w) = mean, and traces of what is known of w."""
    with scope("float64"):
        system = make(np.float64)
        P, R, gamma = (np.asarray(x) for x in (system.inner.P, system.inner.R, system.gamma))
        P_z = np.asarray(system.P_z)
        power = 1e-3 * np.trace(P) + P_z @ VARIANCES
        b = gamma / (1.0 - gamma) * power
        optimum = jax.jit(system.optimum)
        for x in states():
            s, z = x[:4], x[4:]
            at = optimum(x)
            f = np.asarray(at.drift)[:4]
            G = np.asarray(jax.vmap(lambda a, x=x: system.actuate(x, a))(jnp.eye(2)))[:, :4].T
            following = (RHO * z) ** 2 @ P_z
            q = float(system.stage_cost(x, jnp.zeros(2)))

            def cost(a, f=f, G=G, following=following, q=q):
                mean = f + G @ a
                ahead = mean @ P @ mean + following + power + b
                return q + a @ (R * a) + gamma * ahead, 2 * R * a + 2 * gamma * G.T @ P @ mean

            found = minimize(cost, np.zeros(2), jac=True, method="BFGS", options={"gtol": 1e-12})
            value = s @ P @ s + z**2 @ P_z + b
            assert found.fun == pytest.approx(value, rel=1e-9)
            assert float(system.value(x)) == pytest.approx(value, rel=1e-12)
            np.testing.assert_allclose(found.x, at.action, atol=1e-6)
            a = np.asarray([0.3, -0.2])
            excess = float(system.excess_cost(x, a - at.action, at))
            assert excess == pytest.approx(cost(a)[0] - value, abs=1e-11 * value)


def test_the_cost_of_states_outweighs_half_of_what_q_is_worth():
    """Also at the worst of states: those that gradient descent on q/v finds."""
    with scope("float64"):
        system = make(np.float64)

        def share(x):
            return system.stage_cost(x, jnp.zeros(2)) / (system.value(x) - system.offset)

        @jax.jit
        def worst(x):
            def step(_, x):
                return x - 0.3 * jax.grad(share)(x) * jnp.linalg.norm(x)

            return share(jax.lax.fori_loop(0, 300, step, x))

        found = np.asarray(jax.vmap(worst)(jnp.asarray(states(32))))
        assert found.min() >= 0.2  # β/2
        assert found.min() < 0.35


def test_regret_is_the_sum_of_advantages():
    system = make()
    params = env_params(system, system.initial_law(), action_limit=None)
    found = cojax.evaluate(["lqr", "zero"], params, 512, num_steps=150)
    gaps, regrets = (found.trials[name][0] for name in ("suboptimality", "coupled_regret"))
    for gap, regret in zip(gaps, regrets, strict=True):
        difference = gap - regret
        error = difference.std() / np.sqrt(difference.size)
        assert gap.mean() > 5.0 * error
        assert abs(difference.mean()) < 4.0 * error


def test_the_disturbance_is_coloured_and_met_by_all():
    """z of two policies is the same, with the autocorrelation that is stated."""
    system = make()
    law, keys = system.initial_law(), jax.random.split(jax.random.key(0), 4000)
    x = jax.vmap(law.sample)(keys)
    a = jnp.zeros((4000, 2))

    def step(x, k, a):
        key = jax.vmap(lambda key: jax.random.fold_in(key, k))(keys)
        return jax.vmap(lambda x, a, key: cojax.system.step(system, x, a, key))(x, a, key)

    one = step(x, 1, a)
    np.testing.assert_array_equal(one[:, 4:], step(x, 1, a + 1.0)[:, 4:])
    z, following = np.asarray(x[:, 4:]), np.asarray(one[:, 4:])
    stationary = VARIANCES / (1.0 - RHO**2)
    np.testing.assert_allclose(z.var(axis=0), stationary, rtol=0.1)
    np.testing.assert_allclose(following.var(axis=0), stationary, rtol=0.1)
    slope = (z * following).mean(axis=0) / z.var(axis=0)
    np.testing.assert_allclose(slope, RHO, atol=0.06)


def test_without_effect_it_is_the_papers_system_to_the_bit():
    system, plain = make(effect=np.zeros((4, 2))), arm()
    assert float(system.offset) == float(plain.offset)
    for x in jnp.asarray(states(4), jnp.float32):
        known, found = plain.optimum(x[:4]), system.optimum(x)
        np.testing.assert_array_equal(found.action, known.action)
        np.testing.assert_array_equal(found.drift[:4], known.drift)
        assert float(system.value(x)) == float(plain.value(x[:4]))


def test_it_stacks_and_conforms():
    systems = [make(), make(Q=0.6 * np.diag([4.0, 1.0, 3.0, 2.0]))]
    params = [env_params(s, s.initial_law(), max_steps_in_episode=20) for s in systems]
    traces = []

    @jax.jit
    def act(system, x):
        traces.append(None)
        return jax.vmap(lambda s: s.optimum(x).action)(system)

    batch, x = cojax.stack(params), jnp.ones(6)
    both = act(batch.system, x)
    act(cojax.stack(params[::-1]).system, x)
    assert len(traces) == 1
    np.testing.assert_allclose(both[1], systems[1].optimum(x).action, rtol=2e-5, atol=1e-6)
    cojax.testing.check_env(ConverseEnv(), params[0], num_draws=512)
    assert ConverseEnv(params[0]).labels()[0][-1] == "disturbance 2"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((1.0, 0.1, EFFECT), r"rho\[0\]: expected a number in \(-1, 1\), got 1"),
        ((0.5, -0.1, EFFECT), r"Sigma_z\[0\]: .*got -0.1"),
        (
            (0.5, 0.1, EFFECT[:3]),
            r"effect: expected finite numbers of shape \(4, k\), got \(3, 2\)",
        ),
        ((0.999, 0.1, EFFECT), r"rho: expected 1 - γ ρ² - β/2 > 0, got -0.0982"),
    ],
)
def test_bad_input_is_refused_in_one_line(arguments, said):
    with pytest.raises(InputError, match=said):
        disturbed(arm(), *arguments)


def test_a_cost_that_does_not_see_all_states_is_refused():
    with pytest.raises(InputError, match="Q: expected βP ⪯ Q ≺ P with β > 0, got β = "):
        disturbed(arm(Q=0.0), 0.5, 0.1, EFFECT)
    kinematic = FAMILIES["KinematicArm"].build(2)
    with pytest.raises(InputError, match="class of its own"):
        disturbed(kinematic, 0.5, 0.1, EFFECT)
