"""The general converse against minimisation over actions, quadrature, Monte Carlo, value iteration.

Every expectation here is by quadrature of the definition in NumPy, and every optimum by search:
of the system under test come the drift, the input map, and what is to be checked.
"""

from __future__ import annotations

import dataclasses
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.integrate
import scipy.optimize
from flax import struct
from helpers import relative, scope

import cojax
from cojax import control_costs, initial, inputs, linalg, oracle, precision, value_terms
from cojax.converse import Converse, extend
from cojax.errors import InputError
from cojax.families import ConverseArm
from cojax.quadratic import Geometry, QuadraticGaussian


@struct.dataclass
class Plane(Geometry):
    """d states, as many actions, g(s) and S(s) rotations by the state (d = 1: 1)."""

    dim: int = struct.field(pytree_node=False, default=2)
    turn: float = 0.6

    family = "Plane"
    dimensions = ("dim",)
    constant_input = False
    one_row_each = False
    state_dim = property(lambda self: self.dim)
    action_dim = property(lambda self: self.dim)

    def actuate(self, s, a):
        return self._turned(a, s[0]) if self.dim > 1 else a

    def actuate_transpose(self, s, v):
        return self._turned(v, -s[0]) if self.dim > 1 else v

    def rotate(self, s, x, p):
        return self._turned(x, self.turn * jnp.tanh(s[0] * s[1])) if self.dim > 1 else x

    def _turned(self, x, angle):
        return jnp.stack(linalg.rotate(x[0], x[1], angle))

    def input_norm(self):
        return 1.0

    def noise_order(self):
        return tuple(range(self.dim))

    def initial_law(self, dtype=None):
        return initial.Uniform(*(x * jnp.ones(self.dim, dtype) for x in (-1.5, 1.5)))


P = np.array([[1.2, 0.3], [0.3, 1.6]])
SIGMA = np.array([[0.10, 0.03], [0.03, 0.08]])
VALUES = {
    "none": None,
    "quartic": [{"kind": "quartic", "weight": 0.03}],
    "absolute": [
        {"kind": "absolute", "weight": 0.4, "along": 0},
        {"kind": "absolute", "weight": 0.3, "along": [0.5, -1.0]},
    ],
    "wells": [{"kind": "cosine", "weight": 0.9, "along": [1.0, 0.5], "frequency": 3.0}],
    "glued": [
        {"kind": "signed-square", "weight": -0.4, "along": 0},
        {"kind": "kinked", "weight": 0.5, "along": 0, "times": 1},
    ],
    "sum": [
        {"kind": "cosine", "weight": 0.3, "along": 1, "frequency": 2.0},
        {"kind": "quartic", "weight": 0.02},
        {"kind": "absolute", "weight": 0.2, "along": 1},
    ],
}
COSTS = {
    "quadratic": None,
    "soft-threshold": {"kind": "soft-threshold", "mu": [0.5, 0.3]},
    "box": {"kind": "box"},
    "saturating": {"kind": "saturating"},
}
LIMIT = np.array([0.35, 0.5])


def plane(value: str = "none", cost: str = "quadratic", **options) -> Converse:
    settings = {"P": P, "Q": 0.5 * P, "R": [0.9, 1.3], "Sigma": SIGMA, "gamma": 0.95, "p": 0.7}
    system = Plane.build(dim=2, **{**settings, "dtype": np.float64, **options})
    return extended(system, value, cost)


def extended(system, value, cost, limit=LIMIT):
    terms = None if VALUES[value] is None else {"terms": VALUES[value]}
    return extend(system, value=terms, control_cost=COSTS[cost], limit=limit)


class Facts(NamedTuple):
    drift: Any
    action: Any
    next_mean: Any
    value: Any
    state_cost: Any
    G: Any
    q_value: Any
    advantage: Any
    at_optimum: Any


def facts(system, s, a):
    """All that a system says at states and actions, (n, 2)."""
    return jax.tree.map(np.asarray, _facts(system, s, a))


@jax.jit
def _facts(system, s, a):

    def one(s, a):
        columns = jax.vmap(lambda x: system.actuate(s, x), out_axes=1)(
            jnp.eye(len(a), dtype=a.dtype)
        )
        best = system.excess_cost(s, jnp.zeros_like(a))
        q_value, advantage = oracle.q_value(system, s, a), oracle.advantage(system, s, a)
        rest = system.state_cost(s), columns, q_value, advantage, best
        return Facts(*system.optimum(s), system.value(s), *rest)

    return jax.vmap(one)(s, a)


# --- the definition, in NumPy ---------------------------------------------------------------------


def direction(stated, d=2):
    return np.eye(d)[stated] if isinstance(stated, int) else np.asarray(stated)


def tau(term, s):
    """A term of the value at states (..., d)."""
    k, kind = term["weight"], term["kind"]
    if kind == "quartic":
        return k * np.einsum("...i,ij,...j", s, P, s) ** 2
    x = s @ direction(term["along"])
    if kind == "kinked":
        return k * np.abs(x) * (s @ direction(term["times"]))
    return {
        "absolute": lambda: k * np.abs(x),
        "signed-square": lambda: k * x * np.abs(x),
        "cosine": lambda: k * (1.0 - np.cos(term["frequency"] * x)),
    }[kind]()


def value_of(terms, s):
    return np.einsum("...i,ij,...j", s, P, s) + sum((tau(t, s) for t in terms), 0.0)


GAUSS = np.polynomial.legendre.leggauss(60)
HERMITE = np.polynomial.hermite_e.hermegauss(6)


def mean_of(term, y):
    """E τ(y + w) at states (n, d): Gauss-Hermite for the polynomial, and for functions of one
    projection Gauss-Legendre on both sides of the kink.
    """
    if term["kind"] == "quartic":
        nodes, weights = HERMITE[0], HERMITE[1] / np.sqrt(2.0 * np.pi)
        root, out = np.linalg.cholesky(SIGMA), 0.0
        for u, wu in zip(nodes, weights, strict=True):
            for v, wv in zip(nodes, weights, strict=True):
                out = out + wu * wv * tau(term, y + root @ np.array([u, v]))
        return out
    along = direction(term["along"])
    sigma = np.sqrt(along @ SIGMA @ along)
    # w = κ u + rest, κ = Σℓ/σ², u = ℓᵀw: what is odd in the rest averages to 0
    lead = SIGMA @ along / sigma**2
    kink = np.clip(-(y @ along), -9.0 * sigma, 9.0 * sigma)
    out = 0.0
    for low, high in ((-9.0 * sigma * np.ones_like(kink), kink), (kink, 9.0 * sigma + 0.0 * kink)):
        u = 0.5 * ((high - low)[:, None] * GAUSS[0] + (high + low)[:, None])
        density = np.exp(-0.5 * (u / sigma) ** 2) / (np.sqrt(2.0 * np.pi) * sigma)
        values = tau(term, y[:, None] + u[..., None] * lead)
        out = out + np.sum(0.5 * (high - low)[:, None] * GAUSS[1] * density * values, axis=1)
    return out


def expected(terms, y):
    """E v(y + w) at states (n, d)."""
    plain = np.einsum("...i,ij,...j", y, P, y) + np.sum(P * SIGMA)
    return plain + sum((mean_of(t, y) for t in terms), 0.0)


def rho(cost, a):
    r = np.array([0.9, 1.3])
    quadratic = np.sum(r * a**2, axis=-1)
    if cost == "soft-threshold":
        return quadratic + np.abs(a) @ np.array(COSTS[cost]["mu"])
    if cost == "saturating":  # as Lyshevski writes it
        x = a / LIMIT
        return np.sum(2.0 * r * LIMIT**2 * (x * np.arctanh(x) + 0.5 * np.log1p(-(x**2))), axis=-1)
    return quadratic


def search(drift, G, terms, cost):
    """min_a ρ(a) + γ E v(f + p g a + w) by a grid over all actions and a polish; and its argmin."""

    def objective(a):
        a = np.atleast_2d(a)
        return rho(cost, a) + 0.95 * expected(terms, drift + a @ G.T)

    bounded = cost in ("box", "saturating")
    width = LIMIT if bounded else 5.0 * np.ones(2)
    shrink = 1.0 - 1e-12 if cost == "saturating" else 1.0
    axis = np.linspace(-shrink, shrink, 31)
    grid = np.stack(np.meshgrid(axis, axis), -1).reshape(-1, 2) * width
    start = grid[np.argmin(objective(grid))]
    if cost == "soft-threshold":  # a = a⁺ - a⁻
        split = np.concatenate([np.maximum(start, 0.0), np.maximum(-start, 0.0)])
        mu = np.array(COSTS[cost]["mu"])

        def smooth(c):
            a = np.atleast_2d(c[:2] - c[2:])
            paid = rho("quadratic", a) + mu @ (c[:2] + c[2:])
            return (paid + 0.95 * expected(terms, drift + a @ G.T))[0]

        bounds = [(0.0, None)] * 4
        found = polish(smooth, split, bounds)
        return found.fun, found.x[:2] - found.x[2:]
    bounds = [(-x * shrink, x * shrink) for x in width] if bounded else None
    found = polish(lambda a: objective(a)[0], start, bounds)
    return found.fun, found.x


def polish(function, start, bounds):
    found = scipy.optimize.minimize(
        function, start, jac="3-point", method="L-BFGS-B", bounds=bounds,
        options={"ftol": 1e-16, "gtol": 1e-11},
    )  # fmt: skip
    other = scipy.optimize.minimize(
        function, found.x, jac="3-point", method="L-BFGS-B", bounds=bounds,
        options={"ftol": 1e-16, "gtol": 1e-11},
    )  # fmt: skip
    return min(found, other, key=lambda f: f.fun)


STATES = np.concatenate(
    [[[0.9, -0.7], [-1.4, 0.8], [0.15, 0.1]], np.random.default_rng(1).normal(size=(21, 2))]
)
SOME = [
    ("none", "saturating"), ("quartic", "saturating"), ("absolute", "soft-threshold"),
    ("wells", "box"), ("glued", "quadratic"), ("sum", "quadratic"), ("sum", "soft-threshold"),
    ("glued", "saturating"), ("wells", "soft-threshold"), ("absolute", "box"),
    ("none", "soft-threshold"),
]  # fmt: skip


@pytest.mark.parametrize(("value", "cost"), SOME)
def test_the_value_is_the_minimum_over_actions_and_the_action_attains_it(value, cost):
    terms = VALUES[value] or []
    with precision.x64():
        system = plane(value, cost)
        b, said = float(system.offset), facts(system, STATES, 0.0 * STATES)
    for i, s in enumerate(STATES[:3]):
        least, best = search(said.drift[i], said.G[i], terms, cost)
        bellman = said.state_cost[i] + least + 0.95 * b
        V = value_of(terms, s) + b
        assert said.value[i] == pytest.approx(V, rel=1e-12)
        assert bellman == pytest.approx(V, rel=1e-9)
        np.testing.assert_allclose(said.action[i], best, atol=2e-5)


def test_no_two_kinds_are_one_to_jax():
    """It looks compiled programs up by the structure of their arguments, in which dataclasses of as
    many fields were found equal.
    """
    x = jnp.ones(2)
    made: list = [cost(x) for name, cost in control_costs.KINDS.items() if name != "quadratic"]  # pyright: ignore
    made += [term(x, x, x) for term in (value_terms.Absolute, value_terms.SignedSquare)]
    made += [value_terms.Quartic(*5 * [x]), value_terms.Kinked(*5 * [x])]
    structures = [jax.tree.structure(one) for one in made]
    for i, one in enumerate(structures):
        assert structures.index(one) == i


@pytest.mark.parametrize("value", VALUES)
def test_the_offset_is_that_of_the_best_rest(value):
    """b (1-γ) = γ min_y E v(y + w), the minimum by search."""
    terms = VALUES[value] or []
    with precision.x64():
        b = float(plane(value).offset)
    axis = np.linspace(-2.0, 2.0, 41)
    grid = np.stack(np.meshgrid(axis, axis), -1).reshape(-1, 2)
    start = grid[np.argmin(expected(terms, grid))]
    found = polish(lambda y: expected(terms, y[None])[0], start, None)
    assert b * (1.0 - 0.95) == pytest.approx(0.95 * found.fun, rel=1e-9)


def test_without_terms_it_is_the_papers_system():
    with precision.x64():
        plain = ConverseArm.build(3, 0.8, Sigma=0.01, dtype=np.float64)
        rng = np.random.default_rng(0)
        s, a = rng.normal(size=(6, 6)), rng.normal(size=(6, 3))

        def all_of(system, s, a):
            rest = system.stage_cost(s, a), system.value(s), system.excess_cost(s, a)
            return (*system.optimum(s), *rest, system.expected_value(s, s))

        ours, theirs = (jax.vmap(partial(all_of, x))(s, a) for x in (extend(plain), plain))
        for x, y in zip(ours, theirs, strict=True):
            np.testing.assert_allclose(x, y, rtol=1e-10, atol=1e-12)
        q = jax.vmap(extend(plain).state_cost)(s)
        np.testing.assert_allclose(
            q, jax.vmap(partial(linalg.quadratic_form, plain.Q))(s), rtol=1e-11
        )


WAYS = [(*pair, "metric") for pair in SOME] + [("sum", "soft-threshold", "sqrt")]


@pytest.mark.parametrize(("value", "cost", "parameterization"), WAYS)
def test_advantages_are_differences_of_q_values(value, cost, parameterization):
    a = np.random.default_rng(2).normal(size=STATES.shape)
    with precision.x64():
        system = plane(value, cost, parameterization=parameterization)
        said = facts(system, STATES, np.asarray(system.feasible(a)))
    assert (np.abs(said.q_value - said.value - said.advantage) < 1e-13 * said.q_value).all()
    assert (said.at_optimum == 0.0).all()
    assert (said.state_cost >= 0.0).all()


@pytest.mark.parametrize(("value", "cost"), SOME[:7])
def test_advantages_of_small_deviations_keep_their_digits_in_float32(value, cost):
    """Differences of Q* in float32 would have none left."""
    with precision.x64():
        double = plane(value, cost)
    single = plane(value, cost, dtype=np.float32)
    for scale in (1e-5, 1e-3, 0.1):
        with precision.x64():
            best = facts(double, STATES, 0.0 * STATES).action
            target = double.feasible(jnp.asarray(best + scale * np.array([-0.8, 0.6])))
            delta = 0.99 * (np.asarray(target) - best)
            delta = delta.astype(np.float32).astype(np.float64)
            exact = excesses(double, STATES, delta)
        found = excesses(single, STATES.astype(np.float32), delta.astype(np.float32))
        np.testing.assert_allclose(found, exact, rtol=2e-3 if cost == "quadratic" else 2e-2)


@jax.jit
def excesses(system, s, delta):
    return jax.vmap(system.excess_cost)(s, delta)


# --- terms ----------------------------------------------------------------------------------------

TERMS = {term["kind"]: term for terms in VALUES.values() for term in terms or []}


@pytest.mark.parametrize("kind", TERMS)
def test_expectations_of_terms_by_quadrature_and_by_draws(kind):
    term = TERMS[kind]
    rng = np.random.default_rng(2)
    z = np.concatenate([rng.normal(size=(6, 2)), [[0.0, 0.0], [4.0, -3.0]]])
    draws = rng.multivariate_normal(np.zeros(2), SIGMA, 1_000_000)
    with precision.x64():
        made = one_term(term)
        means = np.asarray(jax.vmap(made.mean)(z))
        np.testing.assert_allclose(jax.vmap(made.at)(z), tau(term, z), rtol=1e-13, atol=1e-15)
        np.testing.assert_allclose(means, mean_of(term, z), rtol=1e-10, atol=1e-12)
        slopes = np.asarray(jax.vmap(made.slope)(z))
        step = 1e-5 * np.eye(2)
        differences = [(mean_of(term, z + h) - mean_of(term, z - h)) / 2e-5 for h in step]
        np.testing.assert_allclose(slopes, np.stack(differences, -1), rtol=1e-6, atol=1e-8)
        for x, mean in zip(z, means, strict=True):
            sample = tau(term, x + draws)
            assert abs(sample.mean() - mean) < 4.0 * sample.std() / 1e3


def one_term(term):
    system = plane()
    return extend(system_of(system), value={"terms": [term]}).terms[0]


def system_of(converse):
    """The QG system that one without terms stands on."""
    names = {field.name for field in dataclasses.fields(QuadraticGaussian)}
    return QuadraticGaussian(**{k: v for k, v in vars(converse).items() if k in names})


@pytest.mark.parametrize("size", [1e-6, 1e-3, 0.03, 0.4, 3.0])
@pytest.mark.parametrize("kind", TERMS)
def test_divergences_of_terms(kind, size):
    """Against E τ(z + d + w) - E τ(z + w) - dᵀ∇ where that has digits, and dᵀ∇²d/2 where not."""
    rng = np.random.default_rng(3)
    with precision.x64():
        made = one_term(TERMS[kind])
        z, d = rng.normal(size=(12, 2)), size * rng.normal(size=(12, 2))
        found, far, H = jax.jit(jax.vmap(partial(_ways, made)))(z, d)
        if size < 1e-4:
            curved = 0.5 * np.einsum("ni,nij,nj->n", d, H, d)
            np.testing.assert_allclose(found, curved, rtol=1e-4, atol=1e-20)
        else:
            np.testing.assert_allclose(found, far, rtol=1e-9, atol=1e-13)
        floor = made.floor()
        if floor is not None:
            least = 0.5 * np.einsum("ni,ij,nj->n", d, floor, d)
            assert (found >= least - 1e-13 * np.maximum(1.0, np.abs(found))).all()


def _ways(made, z, d):
    far = made.mean(z + d) - made.mean(z) - linalg.dot(d, made.slope(z))
    return made.divergence(z, d), far, jax.hessian(made.mean)(z)


@pytest.mark.parametrize(
    ("name", "density", "reach"),
    [
        ("logistic", lambda w, s: 1.0 / (4.0 * s * np.cosh(w / 2.0 / s) ** 2), 30.0),
        ("laplace", lambda w, s: np.exp(-abs(w) / s) / (2.0 * s), 30.0),
        ("uniform", lambda w, s: 1.0 / (2.0 * s), 1.0),
    ],
)
def test_the_mean_of_a_modulus_under_other_laws(name, density, reach):
    scale = 0.6
    with precision.x64():
        mean = getattr(value_terms, f"absolute_mean_{name}")
        for mu in (-1.3, -0.2, 0.0, 0.4, 2.0):
            integrand = lambda w: abs(mu + w) * density(w, scale)  # noqa: E731, B023
            ends, inside = reach * scale, [x for x in (-mu, 0.0) if abs(x) < reach * scale]
            truth = scipy.integrate.quad(integrand, -ends, ends, points=inside, limit=400)[0]
            assert float(mean(jnp.asarray(mu), jnp.asarray(scale))) == pytest.approx(
                truth, rel=1e-8
            )


# --- the whole problem ----------------------------------------------------------------------------


@pytest.mark.parametrize("cost", ["soft-threshold", "box", "saturating"])
def test_value_iteration_from_zero_comes_to_the_value(cost):
    """One state, one action: kinks, wells and a cost of control at once."""
    gamma, p, sigma, r, limit, n = 0.9, 0.8, 0.25, 0.6, 0.4, 301
    terms = [
        {"kind": "absolute", "weight": 0.5, "along": 0},
        {"kind": "cosine", "weight": 0.6, "along": 0, "frequency": 2.0},
    ]
    stated = {"kind": cost, "mu": 0.4} if cost == "soft-threshold" else {"kind": cost}
    with precision.x64():
        settings = {"P": 1.5, "Q": 0.9, "R": r, "Sigma": sigma**2, "gamma": gamma, "p": p}
        plain = Plane.build(dim=1, **settings, dtype=np.float64)
        system = extend(plain, value={"terms": terms}, control_cost=stated, limit=limit)
        x = np.linspace(-4.5, 4.5, n)
        optima = jax.vmap(system.optimum)(x[:, None])
        q = np.asarray(jax.vmap(system.state_cost)(x[:, None]))
        V = np.asarray(jax.vmap(system.value)(x[:, None]))
    v = 1.5 * x**2 + 0.5 * np.abs(x) + 0.6 * (1.0 - np.cos(2.0 * x))
    assert (q >= 0.05 * v - 1e-12).all()
    np.testing.assert_allclose(V - V[n // 2], v, rtol=1e-12, atol=1e-13)
    width = limit if cost != "soft-threshold" else 3.0
    a = np.linspace(-width, width, 241)
    with np.errstate(divide="ignore", invalid="ignore"):
        u = a / limit
        saturated = np.nan_to_num(u * np.arctanh(u) + 0.5 * np.log1p(-(u**2)), nan=0.0)
        saturated = np.where(np.abs(u) >= 1.0, np.log(2.0), saturated)
    paid = {
        "soft-threshold": r * a**2 + 0.4 * np.abs(a),
        "box": r * a**2,
        "saturating": 2.0 * r * limit**2 * saturated,
    }[cost]
    z = np.asarray(optima.drift) + p * a[None]
    nodes, weights = np.polynomial.hermite_e.hermegauss(40)
    weights = weights / weights.sum()
    T = sum(w * _hat(x, x + sigma * u) for u, w in zip(nodes, weights, strict=True))
    at, share = _nearest(x, z)
    found = np.zeros(n)
    for _ in range(140):
        ahead = T @ found
        Q = q[:, None] + paid[None] + gamma * (ahead[at] * (1.0 - share) + ahead[at + 1] * share)
        found = Q.min(axis=1)
    inner = np.abs(x) < 1.8
    np.testing.assert_allclose(found[inner], V[inner], rtol=5e-3)
    near = np.abs(a[Q.argmin(axis=1)] - np.asarray(optima.action)[:, 0])[inner]
    assert np.median(near) < 0.02


def _nearest(x, z):
    place = np.clip((z - x[0]) / (x[1] - x[0]), 0.0, len(x) - 1.000001)
    at = place.astype(int)
    return at, place - at


def _hat(x, z):
    """Rows of linear interpolation on x at z."""
    at, share = _nearest(x, z)
    out = np.zeros((len(z), len(x)))
    out[np.arange(len(z)), at], out[np.arange(len(z)), at + 1] = 1.0 - share, share
    return out


def test_a_soft_threshold_makes_exact_zeros():
    """As many as the QG action under the threshold says, and more with a larger one."""
    rng = np.random.default_rng(4)
    s = 1.5 * rng.normal(size=(4000, 2))
    shares = []
    with precision.x64():
        plain = system_of(plane())
        free = np.asarray(jax.vmap(lambda x: plain.optimum(x).action)(s))
        for mu in (0.1, 0.5):
            system = extend(plain, control_cost={"kind": "soft-threshold", "mu": mu})
            action = np.asarray(jax.vmap(lambda x: system.optimum(x).action)(s))  # noqa: B023
            np.testing.assert_array_equal(action == 0.0, np.abs(2.0 * plain.R * free) <= mu)
            shares.append((action == 0.0).mean())
    assert 0.02 < shares[0] < shares[1] < 0.98


def test_a_stochastic_nsco_in_discrete_time():
    """The authors' non-smooth system: two quadratics glued along x = 0, here with noise, which
    makes the one with a kink that is convex for y > 0 and concave for y < 0 an exact optimum.
    """
    glued = [
        {"kind": "signed-square", "weight": -0.5, "along": 0},
        {"kind": "kinked", "weight": 1.2, "along": 0, "times": 1},
    ]
    with precision.x64():
        settings = {"P": [1.5, 2.0], "Q": [1.05, 1.4], "R": 1.5, "Sigma": 0.09, "p": 0.6}
        plain = Plane.build(dim=2, gamma=0.95, **settings, dtype=np.float64)
        system = extend(plain, value={"terms": glued})
        s = np.random.default_rng(5).uniform(-1.5, 1.5, (4000, 2))
        x, y = s.T
        pieces = np.where(x >= 0.0, x**2 + 1.2 * x * y, 2.0 * x**2 - 1.2 * x * y) + 2.0 * y**2
        np.testing.assert_allclose(jax.vmap(system.size)(s), pieces, rtol=1e-12)
        share = np.asarray(jax.vmap(system.state_cost)(s)) / pieces
        assert share.min() > 0.05
        low = jnp.array([0.0, -1.4])  # on the concave side of the kink
        assert np.linalg.eigvalsh(jax.hessian(system.rise)(low))[0] < -0.5
        assert np.linalg.eigvalsh(system.curvature(low, low))[0] > 0.1
        rest = np.asarray(system.shift)
        assert np.abs(rest).max() > 0.01
        np.testing.assert_allclose(jax.grad(system.rise)(jnp.asarray(rest)), 0.0, atol=1e-13)
        np.testing.assert_allclose(system.optimum(np.zeros(2)).action, 0.0, atol=1e-13)


# --- as any other system --------------------------------------------------------------------------


def test_one_trace_serves_two_systems_and_batches():
    count = 0

    @jax.jit
    def run(system, s):
        nonlocal count
        count += 1
        return jax.vmap(lambda x: oracle.advantage(system, x, jnp.ones(2)))(s)

    s = STATES.astype(np.float32)
    systems = [plane("sum", "soft-threshold", Q=x * P, dtype=np.float32) for x in (0.5, 0.7)]
    found = [np.asarray(run(system, s)) for system in systems]
    assert count == 1
    assert not np.allclose(*found)
    together = jax.tree.map(lambda *x: jnp.stack(x), *systems)
    np.testing.assert_allclose(jax.vmap(run, (0, None))(together, s), np.stack(found), rtol=1e-5)


@pytest.mark.parametrize(("value", "cost"), SOME[:7])
def test_float32_is_float64_to_its_digits(value, cost):
    with precision.x64():
        double = plane(value, cost)
        a = 0.9 * np.asarray(double.feasible(STATES[::-1]))
        exact = facts(double, STATES, a)
    single, s = plane(value, cost, dtype=np.float32), STATES.astype(np.float32)
    found = facts(single, s, a.astype(np.float32))
    for name, x, y in zip(Facts._fields, found, exact, strict=True):
        assert x.dtype == np.float32
        assert name == "at_optimum" or relative(x, y) < 3e-6, name


@pytest.mark.parametrize("cost", ["box", "saturating"])
def test_infeasible_actions_cost_infinitely_and_rounding_does_not_make_them(cost):
    system, s = plane("wells", cost, dtype=np.float32), STATES.astype(np.float32)
    limit = np.broadcast_to(LIMIT.astype(np.float32), s.shape)
    for edge in (limit, -limit):
        said = facts(system, s, edge)
        assert (np.abs(said.action) <= limit).all()
        assert np.isfinite(said.advantage).all()
        assert np.isfinite(said.q_value).all()
    said = facts(system, s, np.float32(1.01) * limit)
    assert np.isinf(said.advantage).all()
    assert np.isinf(said.q_value).all()
    slopes = jax.vmap(jax.grad(system.stage_cost, argnums=1))(s, limit)
    assert np.isfinite(np.asarray(slopes)).all()
    assert system.constrained
    np.testing.assert_array_equal(system.feasible(3.0 * limit[0]), limit[0])
    assert not plane("wells", dtype=np.float32).constrained


def test_guard_and_observations_follow_the_value():
    """No state of v <= r² is beyond the bound, also where v is below sᵀP s."""
    with precision.x64():
        system = plane("glued")
        s = np.random.default_rng(6).normal(size=(20_000, 2))
        s = s / np.sqrt(np.asarray(jax.vmap(system.size)(s)))[:, None]  # v is of degree 2
        bound = np.asarray(system.state_bound(jnp.asarray(1.0)))
        assert (np.abs(s) <= bound).all()
        ratio = value_of(VALUES["glued"], s) / np.einsum("ni,ij,nj->n", s, P, s)
        assert ratio.min() == pytest.approx(float(system.least), rel=1e-3)
        assert float(system.least) < 1.0


def test_leaves_that_contradict_each_other_are_refused():
    system = plane("wells", dtype=np.float32)
    with pytest.raises(InputError, match=r"rebuild: expected a quadratic system, got Converse"):
        cojax.rebuild(system, p=0.5)
    with pytest.raises(InputError, match="leaves of a system depend on each other"):
        system.replace(gamma=jnp.float32(0.9))
    wrong = inputs.swapped(system, offset=2.0 * system.offset)
    with pytest.raises(InputError, match="offset"):
        cojax.envs.env_params(wrong, Plane().initial_law(np.float32))
    cojax.envs.env_params(system, Plane().initial_law(np.float32))
    with pytest.raises(InputError, match="expected one quadratic-Gaussian system"):
        extend(system)
    assert "Converse system: Plane" in repr(system)
    assert "sᵀPs + cosine" in repr(system)


def raising(part):
    return pytest.raises(InputError, match=part)


BAD = [
    ([{"kind": "quartc", "weight": 1.0}], "value.terms[0].kind: unknown 'quartc'; did you mean"),
    ([{"kind": "quartic"}], "value.terms[0].weight: expected this field"),
    ([{"kind": "quartic", "weight": -1.0}], "value.terms[0].weight: expected a number in (0"),
    ([{"kind": "quartic", "weight": 1.0, "along": 0}], "value.terms[0]: unknown 'along'"),
    ([{"kind": "absolute", "weight": 1.0, "along": 2}], "value.terms[0].along: expected a whole n"),
    ([{"kind": "absolute", "weight": 1.0, "along": [1.0]}], "value.terms[0].along: expected 2 num"),
    ([{"kind": "absolute", "weight": 1.0, "along": [0.0, 0.0]}], "expected a direction, got zeros"),
    (
        [{"kind": "cosine", "weight": 1.0, "along": 0, "frequency": 0.0}],
        ".frequency: expected a nu",
    ),
    ([{"kind": "signed-square", "weight": -3.0, "along": 0}], "expected v > 0 but at 0, got least"),
    ([3], "value.terms[0]: expected {kind: …, weight: …}, got 3"),
    ([], "value.terms: expected a list of terms"),
]


@pytest.mark.parametrize(("terms", "message"), BAD)
def test_bad_terms_are_refused_in_one_line(terms, message):
    with pytest.raises(InputError) as caught:
        extend(system_of(plane(dtype=np.float32)), value={"terms": terms})
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


BAD_COSTS = [
    ({"kind": "boxes"}, {}, "control_cost.kind: unknown 'boxes'; did you mean 'box'"),
    ({"kind": "box", "mu": 1.0}, {}, "control_cost: unknown 'mu'"),
    ({"kind": "box"}, {}, "action_limit: expected the bound of control_cost box, got none"),
    ({"kind": "soft-threshold"}, {}, "control_cost.mu: expected a number > 0, got nothing"),
    ({"kind": "soft-threshold", "mu": [1.0, 0.0]}, {}, "control_cost.mu: expected numbers > 0"),
    ("box", {}, "control_cost: expected {kind: …}, got 'box'"),
    ({"kind": "box"}, {"R": P}, "expected a diagonal R"),
]


@pytest.mark.parametrize(("cost", "options", "message"), BAD_COSTS)
def test_bad_costs_are_refused_in_one_line(cost, options, message):
    with pytest.raises(InputError) as caught:
        extend(system_of(plane(dtype=np.float32, **options)), control_cost=cost)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_kinks_need_noise_along_them():
    plain = system_of(plane(Sigma=[0.0, 0.1], dtype=np.float32))
    term = {"kind": "absolute", "weight": 1.0, "along": 0}
    with raising(r"value.terms\[0\].along: expected a direction with noise"):
        extend(plain, value={"terms": [term]})
    extend(plain, value={"terms": [{**term, "along": 1}]})


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_saturating_cost_keeps_its_digits_far_out(dtype):
    """Pulls hundreds of times what saturates: finite, >= 0, and as the integral of ρ' - ξ says."""
    with scope(dtype):
        cost = control_costs.Saturating(limit=jnp.asarray([0.5], dtype))
        R = jnp.asarray([0.7], dtype)
        for pull in (0.0, 0.3, -2.0, 9.0, 300.0):
            xi = jnp.asarray([pull], dtype)
            a = cost.respond(1.0 / R, xi)
            for target in (-0.5, -0.2, 0.0, 0.3, 0.5):
                delta = jnp.asarray([target], dtype) - a
                found = float(cost.divergence(R, a, xi, delta=delta))
                slope = lambda x: 2.0 * 0.7 * 0.5 * np.arctanh(x / 0.5) - pull  # noqa: E731, B023
                start = 0.5 * np.tanh(pull / (2.0 * 0.7 * 0.5))
                truth = scipy.integrate.quad(slope, start, target, limit=400)[0]
                assert found >= 0.0
                assert found == pytest.approx(
                    truth, rel=1e-4 if dtype == "float32" else 1e-7, abs=1e-6
                )
