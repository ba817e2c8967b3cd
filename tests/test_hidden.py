"""Hidden pushes: filters, V*, π* and A* against NumPy, grids, enumeration, draws and returns."""

from __future__ import annotations

import itertools
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import struct
from helpers import scope
from scipy.linalg import solve_discrete_are
from scipy.ndimage import map_coordinates, spline_filter
from scipy.optimize import minimize
from scipy.special import hyp2f1

import cojax
from cojax import orbits
from cojax.belief import COUNT
from cojax.envs import CommonStreams, ConverseEnv, env_params
from cojax.errors import InputError
from cojax.evaluation import hidden as splits
from cojax.families import FAMILIES
from cojax.hidden import hidden_constant, hidden_disturbance, hidden_hypotheses
from cojax.initial import Fixed, Uniform
from cojax.quadratic import Geometry
from cojax.system import next_mean

P4 = np.diag([4.0, 1.0, 3.0, 2.0]) + 0.3
E = np.array([[0.5, 0.1], [-0.2, 0.4]])
PHI = np.array([[0.9, 0.1], [-0.1, 0.8]])
SIGMA_Z, SIGMA_A = np.array([0.1, 0.05]), np.array([0.1, 0.15])
CHAIN = [[0.9375, 0.0625], [0.125, 0.875]]


def arm(dtype=None, **options):
    given = {"P": P4, "Q": 0.4 * P4, "R": 2.0, "gamma": 0.9, "Sigma": np.tile([0.01, 0.0], 2)}
    return FAMILIES["ConverseArm"].build(2, 0.8, dtype=dtype, **(given | options))


def mass(dtype=None, **options):
    given = {"R": 0.3, "gamma": 0.9, "Sigma": np.array([0.01, 0.01, 0.0, 0.0])}
    return FAMILIES["PointMass"].build(dtype=dtype, **(given | options))


def drifting(base=arm, dtype=None, **options):
    given = {"transition": PHI, "Sigma_z": SIGMA_Z, "Sigma_a": SIGMA_A} | options
    return hidden_disturbance(base(dtype), given.pop("effect", E), **given)


def constant(dtype=None, **options):
    given = {"Pi_0": [1.0, 0.6], "Sigma_a": SIGMA_A} | options
    return hidden_constant(mass(dtype), E, **given)


def hypotheses(dtype=None, **options):
    given = {"Sigma_a": SIGMA_A, "transition": CHAIN} | options
    return hidden_hypotheses(mass(dtype), E, **given)


MADE = {"arm": drifting, "mass": partial(drifting, mass), "constant": constant,
        "hypotheses": hypotheses}  # fmt: skip


def host(x):
    return np.asarray(x, np.float64)


# --- the filters --------------------------------------------------------------------------------


def pushes(num, seed=0):
    return np.random.default_rng(seed).normal(size=(num, 2))


def run_filter(filter, n):
    b, out = filter.initial(), []
    update = jax.jit(filter.update)
    for one in n:
        out.append(host(b))
        b = update(b, jnp.asarray(one))
    return np.array([*out, host(b)])


def test_kalmans_is_the_conditional_mean_of_joint_gaussians():
    """Of (z_k, n_0 … n_{k-1}) with their covariance written out, z_0 ~ N(ẑ_0, Π)."""
    with scope("float64"):
        filter = drifting(dtype=np.float64, start=[0.3, -0.2]).filter
        found = run_filter(filter, n := pushes(5))
    Pi = solve_discrete_are(PHI.T, E.T, np.diag(SIGMA_Z), np.diag(SIGMA_A))
    np.testing.assert_allclose(host(filter.root_Pi) @ host(filter.root_Pi), Pi, rtol=1e-10)
    size = [2] + [2] * 5 + [2] * 5  # z_0, ε, w_a
    cov = np.zeros((22, 22))
    for block, C in enumerate([Pi, *[np.diag(SIGMA_Z)] * 5, *[np.diag(SIGMA_A)] * 5]):
        cov[2 * block : 2 * block + 2, 2 * block : 2 * block + 2] = C
    assert sum(size) == 22
    z, seen = np.eye(22)[:2], []
    for k in range(5):
        seen.append(E @ z + np.eye(22)[12 + 2 * k : 14 + 2 * k])
        z = PHI @ z + np.eye(22)[2 + 2 * k : 4 + 2 * k]
    H, mean = np.concatenate(seen), np.array([0.3, -0.2])
    expected = [E @ np.linalg.matrix_power(PHI, k) @ mean for k in range(5)]
    gain = z @ cov @ H.T @ np.linalg.inv(H @ cov @ H.T)
    posterior = np.linalg.matrix_power(PHI, 5) @ mean + gain @ (n.ravel() - np.ravel(expected))
    np.testing.assert_allclose(found[-1], posterior, rtol=1e-10)


def test_that_of_a_constant_is_bayesian_regression():
    with scope("float64"):
        filter = constant(np.float64, start=[0.5, 0.2]).filter
        found = run_filter(filter, n := pushes(9))
        spread = host(filter.spread(jnp.asarray(found[-1])))
    prior, noise = np.diag([1.0, 1.0 / 0.6]), np.diag(1.0 / SIGMA_A)
    left = np.linalg.inv(prior + 9 * E.T @ noise @ E)
    mean = left @ (prior @ [0.5, 0.2] + E.T @ noise @ n.sum(axis=0))
    np.testing.assert_allclose(found[-1, :2], mean, rtol=1e-10)
    np.testing.assert_allclose(spread, E @ left @ E.T + np.diag(SIGMA_A), rtol=1e-10)
    assert found[-1, 2] * COUNT == 9


def test_that_of_hypotheses_is_the_sum_over_all_paths():
    with scope("float64"):
        filter = hypotheses(np.float64, start=0.25).filter
        found = run_filter(filter, n := pushes(6))
    weights, T = np.zeros(2), np.array(CHAIN)
    for path in itertools.product((0, 1), repeat=7):
        chance = [0.25, 0.75][path[0]] * np.prod([T[i, j] for i, j in itertools.pairwise(path)])
        apart = n - E[:, list(path[:6])].T
        weights[path[-1]] += chance * np.exp(-0.5 * np.sum(apart**2 / SIGMA_A))
    np.testing.assert_allclose(found[-1], weights / weights.sum(), rtol=1e-10)


# --- Bellman's equation ---------------------------------------------------------------------------


def moments(kind, system, b):
    """E n, Cov n given the belief, and Cov z of it, in NumPy."""
    if kind in ("arm", "mass"):
        Pi = solve_discrete_are(PHI.T, E.T, np.diag(SIGMA_Z), np.diag(SIGMA_A))
        return E @ b, E @ Pi @ E.T + np.diag(SIGMA_A)
    if kind == "constant":
        left = np.diag([1.0, 1.0 / 0.6]) + round(b[2] * COUNT) * E.T @ np.diag(1 / SIGMA_A) @ E
        return E @ b[:2], E @ np.linalg.inv(left) @ E.T + np.diag(SIGMA_A)
    apart = E[:, 0] - E[:, 1]
    return E @ b, b[0] * b[1] * np.outer(apart, apart) + np.diag(SIGMA_A)


def beliefs(kind, num):
    rng = np.random.default_rng(3)
    if kind == "hypotheses":
        x = rng.uniform(size=num)
        return np.stack([x, 1 - x], axis=1)
    z = rng.normal(size=(num, 2))
    if kind == "constant":
        return np.concatenate([z, np.arange(num)[:, None] / COUNT], axis=1)
    return z


@pytest.mark.parametrize("kind", MADE)
def test_numerical_minimisation_gives_value_and_action(kind):
    """E over n by points that are exact for quadratics; q, b and the price of what comes after
    written out anew; the belief's next price from the package, tested by other means below.
    """
    with scope("float64"):
        system = MADE[kind](dtype=np.float64)
        inner, gamma = system.inner, float(system.gamma)
        P, Q = host(inner.P), host(inner.Q)
        P, Q = (np.diag(x) if x.ndim == 1 else x for x in (P, Q))
        R, p = np.broadcast_to(host(inner.R), 2), float(inner.p)
        know = system.known
        optimum, alone = jax.jit(know.optimum), jax.jit(inner.optimum)
        stage, realised = jax.jit(know.stage_cost), jax.jit(system.stage_cost)
        value, excess, ahead = map(
            jax.jit, (know.value, know.excess_cost, system.filter.price_ahead)
        )
        states = np.random.default_rng(0).uniform(-1, 1, (8, 4)) * np.tile([2.8, 1.2], 2)
        noise = gamma * np.sum(np.diag(P) * 0.01 * np.isin(np.arange(4), noisy(kind)))
        for s, b in zip(states, beliefs(kind, 8), strict=True):
            x = jnp.asarray(np.concatenate([s, b]))
            f = host(alone(jnp.asarray(s)).drift)
            g = np.zeros((4, 2))
            rows, gains = ([1, 3], np.cos(s[[0, 2]])) if kind == "arm" else ([2, 3], input_gain())
            g[rows, [0, 1]] = gains
            mean, S = moments(kind, system, b)
            W = p**2 * g.T @ P @ g
            c0 = 0.0
            if kind == "arm":
                both = [p**2 * np.outer(c, c) * P[np.ix_([1, 3], [1, 3])] * S
                        for c in itertools.product((-1, 1), repeat=2)]  # fmt: skip
                c0 = gamma * max(np.sum(x) for x in both)
                q = s @ Q @ s + c0 - gamma * np.sum(W * S)
                offset = (c0 + np.sum(R * np.diag(S)) + noise) / (1 - gamma)
            else:
                q = s @ Q @ s
                once = S if kind == "mass" else np.diag(SIGMA_A)
                offset = (np.sum((np.diag(R) + gamma * W) * once) + noise) / (1 - gamma)
            root = np.linalg.cholesky(S)
            points = 2**0.5 * np.concatenate([root.T, -root.T])

            def cost(a, f=f, g=g, q=q, offset=offset, n=mean + points, b=b):
                v = a + n
                z = f + p * v @ g.T
                now = q + np.mean(np.sum(R * v**2, axis=1))
                later = np.mean(np.einsum("ni,ij,nj->n", z, P, z)) + noise / gamma + offset
                return now + gamma * (later + float(ahead(jnp.asarray(b))))

            found = minimize(cost, np.zeros(2), method="BFGS", options={"gtol": 1e-9})
            known = float(value(x))
            assert found.fun == pytest.approx(known, rel=1e-9)
            np.testing.assert_allclose(found.x, optimum(x).action, atol=1e-5)
            a = np.array([0.3, -0.2])
            paid = q + np.mean(np.sum(R * (a + mean + points) ** 2, axis=1))
            assert float(stage(x, a)) == pytest.approx(paid, rel=1e-10)
            n = np.array([0.7, -0.4])
            whole = np.concatenate([s, b, [0.1, 0.9], n])
            paid = q + (a + n) @ (R * (a + n))
            assert float(realised(jnp.asarray(whole), a)) == pytest.approx(paid, rel=1e-10)
            told = float(excess(x, a - optimum(x).action))
            assert told == pytest.approx(cost(a) - known, abs=1e-9 * known)


def noisy(kind):
    return [0, 2] if kind == "arm" else [0, 1]


def input_gain():
    with scope("float64"):
        system = mass(np.float64)
        push = jax.vmap(lambda a: system.geometry.actuate(jnp.zeros(4), a))(jnp.eye(2))
        return host(push)[[0, 1], [2, 3]]


@struct.dataclass
class Line(Geometry):
    """One state, one action: s' = f s + p a."""

    family = "Line"
    dimensions = ()
    constant_input = True
    one_row_each = True
    state_dim = property(lambda self: 1)  # pyright: ignore
    action_dim = property(lambda self: 1)  # pyright: ignore

    def actuate(self, s, a):
        return a

    def actuate_transpose(self, s, v):
        return v

    def rotate(self, s, x, p):
        return x

    def input_norm(self):
        return 1.0

    def noise_order(self):
        return (0,)

    def initial_law(self, dtype=None):
        return Uniform(low=-jnp.ones(1, dtype), high=jnp.ones(1, dtype))


@struct.dataclass
class Twisted(Line):
    """Its g is not known to be constant."""

    constant_input = False
    one_row_each = False


def twisted(dtype=None):
    return Twisted().assemble(P=1.0, Q=0.45, R=0.4, gamma=0.9, p=0.8, Sigma=0.0, dtype=dtype)


@pytest.mark.parametrize("chain", [[[0.90625, 0.09375], [0.1875, 0.8125]], None])
def test_value_iteration_on_a_grid_from_zero_comes_to_it(chain):
    """Over s and the chance of the first of two hypotheses: V*, r included, and a*."""
    gamma, p, sigma, push = 0.85, 0.8, 0.6, np.array([0.9, -0.9])
    with scope("float64"):
        line = Line().assemble(P=1.0, Q=0.45, R=0.4, gamma=gamma, p=p, Sigma=0.0, dtype=np.float64)
        system = hidden_hypotheses(line, push[None], Sigma_a=sigma**2, transition=chain)
        drift = float(jax.jit(line.optimum)(jnp.ones(1)).drift[0])
    T = np.eye(2) if chain is None else np.array(chain)
    s, x = np.linspace(-6, 6, 31), np.linspace(0, 1, 25)
    chance = np.sin(0.5 * np.pi * x) ** 2
    nodes, weights = np.polynomial.hermite_e.hermegauss(11)
    actions = np.linspace(-5, 5, 11)
    S, Pi, A = np.meshgrid(s, chance, actions, indexing="ij")
    cost, branches = 0.0, []
    for i in (0, 1):
        for node, weight in zip(nodes, weights / weights.sum(), strict=True):
            n = push[i] + sigma * node
            like = np.exp(-0.5 * ((n - push) / sigma) ** 2)
            after = Pi * like[0] / (Pi * like[0] + (1 - Pi) * like[1])
            after = after * T[0, 0] + (1 - after) * T[1, 0]
            w = weight * (Pi if i == 0 else 1 - Pi)
            cost = cost + w * 0.4 * (A + n) ** 2
            at = 2 / np.pi * np.arcsin(np.sqrt(np.clip(after, 0, 1))) * (len(x) - 1)
            place = (drift * S + p * (A + n) - s[0]) / (s[1] - s[0])
            branches.append((w, np.stack([place, at])))
    cost, V = cost + 0.45 * S**2, np.zeros((len(s), len(x)))
    for _ in range(60):
        C = spline_filter(V, order=3, mode="nearest")
        q = cost + gamma * sum(
            w * map_coordinates(C, at, order=3, mode="nearest", prefilter=False)
            for w, at in branches
        )
        k = np.clip(q.argmin(-1), 1, len(actions) - 2)
        low, mid, high = (np.take_along_axis(q, (k + j)[..., None], -1)[..., 0] for j in (-1, 0, 1))
        move = np.clip(0.5 * (low - high) / np.maximum(low - 2 * mid + high, 1e-9), -1, 1)
        V, best = mid - 0.25 * (low - high) * move, actions[k] + move * (actions[1] - actions[0])
    inside = np.abs(s) <= 2.0
    states = np.stack([*np.meshgrid(s[inside], chance, indexing="ij")], -1).reshape(-1, 2)
    states = np.concatenate([states, 1 - states[:, 1:]], axis=1)
    with scope("float64"):
        known = jax.vmap(system.known.value)(jnp.asarray(states))
        action = jax.vmap(lambda x: system.known.optimum(x).action)(jnp.asarray(states))
    shape = (inside.sum(), len(x))
    np.testing.assert_allclose(V[inside], host(known).reshape(shape), rtol=2e-3)
    np.testing.assert_allclose(best[inside], host(action)[:, 0].reshape(shape), atol=0.02)


def test_a_constants_price_is_a_hypergeometric_sum():
    with scope("float64"):
        system = constant(np.float64)
        x = jnp.concatenate([jnp.zeros(4), system.filter.initial()])
        price = float(system.price_of_not_knowing(x))
    half, gamma = np.diag(np.sqrt([1.0, 0.6])), 0.9
    kappa, U = np.linalg.eigh(half @ E.T @ np.diag(1 / SIGMA_A) @ E @ half)
    g = np.zeros((4, 2))
    g[[2, 3], [0, 1]] = input_gain()
    P = host(system.inner.P)
    P = np.diag(P) if P.ndim == 1 else P
    B = 0.3 * np.eye(2) + gamma * float(system.inner.p) ** 2 * g.T @ P @ g
    omega = np.diagonal(U.T @ half @ E.T @ B @ E @ half @ U)
    assert price == pytest.approx(
        float(np.sum(omega * hyp2f1(1, 1 / kappa, 1 + 1 / kappa, gamma))), rel=1e-12
    )


# --- the true system ------------------------------------------------------------------------------


def simulate(system, act, law, *, num=4000, steps=60, seed=0):
    """Discounted cost and last state of a policy of the whole state, on the package's own step."""

    def step(carry, key):
        x, cost, weight = carry
        at = jax.vmap(system.optimum)(x)
        a = jax.vmap(act)(x, at)
        cost = cost + weight * jax.vmap(system.cost_at)(x, a, at)
        keys = jax.random.split(key, num)
        z = jax.vmap(partial(next_mean, system))(x, a, at)
        x = z + jax.vmap(system.sample_noise)(x, keys, a)
        return (x, cost, weight * system.gamma), None

    @jax.jit
    def run(key):
        x = jax.vmap(law.sample)(jax.random.split(jax.random.fold_in(key, 1), num))
        start = (x, jnp.zeros(num, x.dtype), jnp.ones((), x.dtype))
        return (x, *jax.lax.scan(step, start, jax.random.split(key, steps))[0])

    x0, x, cost, weight = run(jax.random.key(seed))
    return x0, x, host(cost), host(weight)


def start(system, dtype=None):
    return system.initial_law(Fixed(jnp.asarray([0.8, -0.5, 0.3, 0.6], dtype)))


def test_where_it_begins_tells_nothing_of_z():
    """Also for laws of s_0 that split their key."""
    vessel = FAMILIES["NVDEx"].build(1, preset="hard", Sigma=0.0)
    system = hidden_constant(vessel, np.eye(2), Pi_0=1.0, Sigma_a=0.1)
    law, keys = system.initial_law(), jax.random.split(jax.random.key(0), 4000)
    x = host(jax.jit(jax.vmap(law.sample))(keys))
    moving = x[:, : vessel.state_dim]
    moving = moving[:, moving.std(axis=0) > 0.0]
    together = np.corrcoef(np.concatenate([moving, x[:, -4:-2]], axis=1).T)[-2:, :-2]
    assert np.abs(together).max() < 4.0 / np.sqrt(4000)


def z_score(x):
    return abs(x.mean()) / (x.std() / np.sqrt(x.size))


@pytest.mark.parametrize("kind", MADE)
def test_the_bayes_policy_costs_its_value_and_the_informed_one_less(kind):
    system = MADE[kind]()
    law = start(system)
    x0, x, cost, weight = simulate(system, lambda x, at: at.action, law)
    value = jax.vmap(system.value)
    left = cost + weight * host(value(x)) - host(value(x0))
    assert z_score(left) < 4.0
    assert left.std() / np.sqrt(left.size) < 0.02 * float(value(x0)[0])
    if kind == "arm":
        with pytest.raises(InputError, match="price_of_not_knowing: expected a g that does not"):
            system.price_of_not_knowing(x0[0])
        return

    def informed(x, at):
        _, b, z, _ = system.split(x)
        return at.action + system.filter.predicted(b) - system.filter.pushed(z)

    _, y, less, _ = simulate(system, informed, law)
    s, at_end = (host(jax.vmap(lambda x: x[:4])(v)) for v in (x, y))
    P = host(system.inner.P)
    P = np.diag(P) if P.ndim == 1 else P
    forms = [np.einsum("ni,ij,nj->n", v, P, v) for v in (s, at_end)]
    price = host(jax.vmap(system.price_of_not_knowing)(x0))[0]
    later = host(jax.vmap(system.price_of_not_knowing)(x))
    apart = cost - less + weight * (forms[0] - forms[1]) - (price - weight * later)
    assert z_score(apart) < 4.0
    assert price > 10.0 * apart.std() / np.sqrt(apart.size)


def test_gap_by_return_is_that_by_advantages_at_a_quarter_of_the_variance():
    system = drifting(effect=0.6 * E)
    params = env_params(system, start(system), action_limit=None)
    policies = [splits.memoryless(params), splits.trusting(0.5), "dithered-oracle:0.3"]
    found = cojax.evaluate(policies, params, 2048, num_steps=80)
    for gap, regret in zip(
        found.trials["suboptimality"][0], found.trials["coupled_regret"][0], strict=True
    ):
        assert z_score(gap - regret) < 4.0
        assert gap.mean() > 20.0 * gap.std() / np.sqrt(gap.size)
        assert regret.var() > 4.0 * gap.var()


def test_no_policy_of_the_history_is_better_than_the_bayes_optimum():
    """Adam over a_s + linear functions of s and of the last pushes, on the simulated system."""
    system = drifting(mass)
    law, steps, num = start(system), 25, 256

    def returns(theta, key):
        def step(carry, key):
            x, past, cost, weight = carry
            at = jax.vmap(system.optimum)(x)
            s, b, _, n = jax.vmap(system.split)(x)
            alone = at.action + b @ system.filter.effect
            a = (1.0 + theta["a"])[None] * alone + s @ theta["s"]
            a = a + jnp.einsum("njm,jmk->nk", past, theta["n"])
            a = jnp.where(theta["bayes"] > 0.0, at.action, a)
            cost = cost + weight * jax.vmap(system.cost_at)(x, a, at)
            z = jax.vmap(partial(next_mean, system))(x, a, at)
            x = z + jax.vmap(system.sample_noise)(x, jax.random.split(key, num), a)
            past = jnp.concatenate([n[:, None], past[:, :-1]], axis=1)
            return (x, past, cost, weight * system.gamma), None

        x = jax.vmap(law.sample)(jax.random.split(jax.random.fold_in(key, 1), num))
        first = (x, jnp.zeros((num, 6, 2)), jnp.zeros(num), jnp.ones(()))
        x, _, cost, weight = jax.lax.scan(step, first, jax.random.split(key, steps))[0]
        return cost + weight * jax.vmap(system.value)(x)

    zero = {"a": jnp.zeros(2), "s": jnp.zeros((4, 2)), "n": jnp.zeros((6, 2, 2)),
            "bayes": jnp.zeros(())}  # fmt: skip
    slope = jax.jit(jax.grad(lambda theta, key: jnp.mean(returns(theta, key))))
    theta, m, v = zero, zero, zero
    for k in range(120):
        g = slope(theta, jax.random.key(k))
        m = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, m, g)
        v = jax.tree.map(lambda v, g: 0.99 * v + 0.01 * g * g, v, g)
        step = jax.tree.map(lambda m, v: m / (jnp.sqrt(v) + 1e-6), m, v)
        theta = jax.tree.map(lambda t, d, k=k: t - 0.05 * (1.0 - k / 120) * d, theta, step)
    theta["bayes"] = jnp.zeros(())
    run = jax.jit(returns)
    keys = [jax.random.key(1000 + i) for i in range(16)]
    costs = [np.concatenate([host(run(t, key)) for key in keys])
             for t in (theta, zero, zero | {"bayes": jnp.ones(())})]  # fmt: skip
    apart, before = costs[0] - costs[2], (costs[1] - costs[2]).mean()
    error = apart.std() / np.sqrt(apart.size)
    assert apart.mean() > -3.0 * error
    assert apart.mean() < 0.1 * before
    assert before > 10.0 * error


# --- what is seen ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "terminal"),
    [("arm", "none"), ("mass", "none"), ("hypotheses", "optimal")],
)
def test_nothing_that_a_step_tells_depends_on_what_is_hidden(kind, terminal):
    """z changed, the push and all noise as before, and so all that was seen: every output but the
    state itself is the same to the bit. And the reward says what (s, a, s') say.
    """
    system = MADE[kind]()
    limited = {"max_steps_in_episode": 3, "terminal_value": terminal}
    params = env_params(system, system.initial_law(), **limited)
    plain = ConverseEnv(params)
    for env in (plain,) if kind == "arm" else (plain, CommonStreams(plain)):
        obs, state = env.reset(jax.random.key(0))
        assert obs.shape == (4,)
        inside = state if env is plain else state.env
        for k in range(3):
            other = system.project(2.0 - 3.0 * inside.s)
            moved = inside.s.at[-4:-2].set(other[-4:-2])
            assert (moved[-4:-2] != inside.s[-4:-2]).any()
            changed = inside.replace(s=moved)
            changed = changed if env is plain else state.replace(env=changed)
            action, key = jnp.asarray([0.2, -0.1]), jax.random.key(k)
            told = [env.step(key, x, action) for x in (state, changed)]
            ours, theirs = (jax.tree.leaves((t[0], *t[2:])) for t in told)
            for x, y in zip(ours, theirs, strict=True):
                np.testing.assert_array_equal(x, y)
            if terminal == "none" and kind != "arm" and env is plain:
                s, s_next = host(inside.s[:4]), host(told[0][-1]["final_observation"])
                f, p = host(system.inner.optimum(inside.s[:4]).drift), float(system.inner.p)
                v = (s_next - f)[[2, 3]] / (p * input_gain())
                cost = s @ np.diag(host(system.inner.Q)) @ s + 0.3 * v @ v
                assert float(-told[0][2]) == pytest.approx(cost, rel=1e-4)
            state = told[0][1]
            inside = state if env is plain else state.env


def test_only_the_privileged_are_told_what_is_hidden():
    system = drifting()
    params = env_params(system, system.initial_law())
    told = []
    for privileged in (False, True):
        env = ConverseEnv(params, privileged=privileged)
        _, state = env.reset(jax.random.key(0))
        _, state, *_, info = env.step(jax.random.key(1), state, jnp.zeros(2))
        sizes = {np.shape(x) for x in jax.tree.leaves(info)}
        told.append((info.get("hidden"), sizes))
    assert told[0] == (None, {(), (4,)})
    np.testing.assert_array_equal(told[1][0], state.s[4:])
    assert ConverseEnv(params) != ConverseEnv(params, privileged=True)
    assert hash(ConverseEnv(params)) != hash(ConverseEnv(params, privileged=True))


@pytest.mark.parametrize("observe", ["state", "belief"])
def test_policies_see_what_is_observed(observe):
    system = drifting(observe=observe)
    width = {"state": 4, "belief": 6}[observe]
    params = env_params(system, system.initial_law(), max_steps_in_episode=20)
    env, shapes = ConverseEnv(params), []

    def act(obs):
        shapes.append(obs.shape)
        return np.zeros(2)

    found = cojax.evaluate([act, "oracle", "lqr"], params, 4, num_steps=3)
    assert set(shapes) == {(width,)}
    assert (found.trials["suboptimality"][0, 1] == 0.0).all()
    assert env.observation_space().shape == (width,)
    assert env.state_space().spaces["s"].shape == (10,)
    assert len(env.labels()[0]) == width
    assert cojax.evaluation.lqr_gain(system).shape == (2, width)
    with pytest.raises(InputError, match="oracle: expected a system of which all is observed"):
        cojax.testing.check_env(ConverseEnv(), params)


def test_without_effect_it_is_the_papers_system_to_the_bit():
    """Also with noise on the rows that actions push, which then tells nothing of z."""
    base = arm(Sigma=0.01)
    system = hidden_disturbance(
        base, np.zeros((2, 2)), transition=PHI, Sigma_z=SIGMA_Z, Sigma_a=0.0
    )
    assert float(system.offset) == float(base.offset)
    law = base.geometry.initial_law(np.float32)
    params = [env_params(x, y, max_steps_in_episode=20, divergence_radius=1e4)
              for x, y in ((system, system.initial_law()), (base, law))]  # fmt: skip
    envs = [ConverseEnv(p) for p in params]
    (obs, state), (plain_obs, plain_state) = (env.reset(jax.random.key(0)) for env in envs)
    for k in range(20):
        np.testing.assert_array_equal(obs, plain_obs)
        known, found = base.optimum(plain_state.s), system.optimum(state.s)
        np.testing.assert_array_equal(found.action, known.action)
        assert float(system.value(state.s)) == float(base.value(plain_state.s))
        action, key = jnp.asarray([0.3, -0.4]), jax.random.key(k)
        obs, state, reward, *_ = envs[0].step(key, state, action)
        plain_obs, plain_state, plain_reward, *_ = envs[1].step(key, plain_state, action)
        assert float(reward) == float(plain_reward)


@pytest.mark.parametrize("kind", ["arm", "hypotheses"])
def test_both_precisions_agree_and_systems_stack(kind):
    single = MADE[kind]()
    with scope("float64"):
        double = MADE[kind](dtype=np.float64)
        law = double.initial_law()
        x = jax.vmap(law.sample)(jax.random.split(jax.random.key(0), 32))
        exact = jax.vmap(double.optimum)(x), jax.vmap(double.value)(x)
    assert {leaf.dtype.name for leaf in jax.tree.leaves(single)} == {"float32"}
    near = jnp.asarray(host(x), jnp.float32)
    found = jax.vmap(single.optimum)(near), jax.vmap(single.value)(near)
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(exact), strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-4, atol=2e-4)
    params = [env_params(s, s.initial_law()) for s in (single, MADE[kind](start=0.4))]
    both = cojax.stack(params)
    actions = jax.vmap(lambda system, x: system.optimum(x).action)(both.system, near[:2])
    np.testing.assert_allclose(actions[0], found[0].action[0], rtol=2e-5, atol=1e-6)


# --- evaluation -----------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["mass", "constant"])
def test_gaps_split_and_canaries_have_the_gap_that_is_known(kind):
    system = MADE[kind](start=[0.4, -0.3])
    params = env_params(system, start(system), action_limit=None)
    found = cojax.evaluate(
        ["oracle", splits.memoryless(params), splits.trusting(0.5)], params, 2048, num_steps=60,
        names=["x"],
    )  # fmt: skip
    rows = {row["policy"]: row for row in splits.split(found, {"x": params})}
    price = splits.price_of_not_knowing(params)
    for share, name in ((0.0, "memoryless"), (0.5, "trusting:0.5")):
        known, cell = splits.known_gap(params, 60, share), rows[name]["suboptimality"]
        error = (cell["high"] - cell["low"]) / 3.92
        assert abs(cell["mean"] - known) < 4.0 * error < 0.2 * known
        assert rows[name]["price_of_not_knowing"] == price
        assert rows[name]["regret"]["mean"] == pytest.approx(cell["mean"] + price)
        assert rows[name]["informed_value"] == pytest.approx(
            rows["oracle"]["optimal_value"] - price
        )
    assert rows["oracle"]["suboptimality"]["mean"] == 0.0
    curve = splits.unavoidable(params, 400)
    assert curve[0] == 0.0
    assert curve[-1] == pytest.approx(price, rel=1e-5)


def test_what_is_not_known_is_not_split():
    system = drifting()
    params = env_params(system, system.initial_law())
    found = cojax.evaluate(["zero"], params, 2, num_steps=2, names=["x"])
    with pytest.raises(InputError, match="expected a g that does not depend on the state"):
        splits.split(found, {"x": params})
    with pytest.raises(InputError, match="expected those of the evaluation, got none for x"):
        splits.split(found, {"y": params})
    with pytest.raises(InputError, match="receding-horizon: expected a system of which all is"):
        cojax.evaluate(["receding-horizon"], params, 2, num_steps=2)
    with pytest.raises(InputError, match="params: expected a system of which all is observed"):
        orbits.carried(params, action=np.eye(2))
    plain = env_params(mass(), mass().geometry.initial_law(np.float32))
    with pytest.raises(InputError, match="expected a system with a hidden part"):
        splits.memoryless(plain)
    two = hypotheses()
    with pytest.raises(InputError, match="expected a belief with a covariance"):
        splits.unavoidable(env_params(two, two.initial_law()), 3)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: drifting(effect=E[:1]), r"effect: expected finite numbers of shape \(2, h\)"),
        (lambda: drifting(transition=1.0), "transition: expected a spectral radius below 1, got 1"),
        (lambda: drifting(transition=np.eye(3)), r"transition: .* shape \(2, 2\), got \(3, 3\)"),
        (lambda: drifting(Sigma_z=-1.0), "Sigma_z: "),
        (lambda: drifting(observe="all"), "observe: unknown 'all'"),
        (
            lambda: drifting(lambda dtype: arm(Sigma=0.01)),
            "expected no noise on row 1, which actions push: .* depend on the path",
        ),
        (
            lambda: hidden_constant(arm(), E, Pi_0=1.0, Sigma_a=0.1),
            "hidden_constant: expected a family whose g does not depend on the state",
        ),
        (
            lambda: hidden_hypotheses(arm(), E, Sigma_a=0.1),
            "hidden_hypotheses: expected a family whose g does not depend on the state",
        ),
        (lambda: hidden_hypotheses(mass(), np.ones((2, 3)), Sigma_a=0.1), "expected two columns"),
        (lambda: constant(Sigma_a=0.0), "Sigma_a: "),
        (lambda: drifting(twisted, effect=[[1.0]]), "or drives one row an action, got Line, for"),
    ],
)
def test_bad_input_is_refused_in_one_line(make, said):
    with pytest.raises(InputError, match=said) as error:
        make()
    assert "\n" not in str(error.value)


def test_leaves_are_not_replaced():
    with pytest.raises(InputError, match=r"use cojax\.hidden again"):
        drifting().replace(floor=jnp.zeros(()))
