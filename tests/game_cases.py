"""Games that several tests play, and what NumPy and SciPy say of them without their formulas."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from scipy.optimize import minimize

from cojax.families import FAMILIES
from cojax.games import game
from cojax.initial import Fixed
from cojax.quadratic import Geometry

GAMMA = {"states": np.array([[3.0, 0.4], [0.4, 2.0]]), "actuators": np.array([9.0, 6.0])}
GAMMA["mass"] = np.array([3.0, 2.0])
H = 0.3 * np.random.default_rng(5).normal(size=(4, 2))
CASES = ("states", "actuators")


def arm(p=0.8, dtype=None, **options):
    """Two joints, correlated noise on all rows, nothing else of the default."""
    L = 0.01 * np.random.default_rng(3).normal(size=(4, 4))
    P = np.diag([4.0, 1.0, 3.0, 2.0]) + 0.3
    given = {"R": [6.0, 16.0], "Sigma": L @ L.T, "P": P, "Q": 0.5 * P, "gamma": 0.9}
    return FAMILIES["ConverseArm"].build(2, p, dtype=dtype, **given | options)


def mass(dtype=None):
    """A point of mass in the plane, with a dense P and noise on all rows."""
    P = np.diag([2.0, 3.0, 1.0, 1.5]) + 0.2
    given = {"P": P, "Q": 0.6 * P, "R": 1.0, "gamma": 0.9, "Sigma": 1e-3}
    return FAMILIES["PointMass"].build(p=0.8, dtype=dtype, **given)


MADE = {}


def make(name, adversary="optimal", dtype=None, **options):
    """One game of each kind: of a full Γ on all states, of a disturbance of the actuators, and of a
    mass, which is quick to compile since M is constant.
    """
    key = (name, adversary, dtype, jax.config.jax_enable_x64, *options.items())  # pyright: ignore
    if key not in MADE:
        h = H if name == "states" else "g"
        base = arm(dtype=dtype, **options) if name != "mass" else mass(dtype)
        MADE[key] = game(base, h=h, Gamma=GAMMA[name], adversary=adversary)
    return MADE[key]


def states(num=8, seed=0):
    return np.random.default_rng(seed).uniform(-1, 1, (num, 4)) * np.tile([2.8, 1.2], 2)


def full(x):
    x = np.asarray(x, np.float64)
    return np.diag(x) if x.ndim == 1 else x


class Pair:
    """Q*(s, ·, ·) of one state from the drift and NumPy, and its optima by SciPy.

    Noise enters by ± pairs that have its covariance; P, Q, R, Γ, h and g are those of the makers.
    """

    def __init__(self, name, played, s):
        base = arm()
        self.s, self.P, self.Q = s, full(base.P), full(base.Q)
        self.R, self.Gamma = full(base.R), full(GAMMA[name])
        g = np.zeros((4, 2))
        g[[1, 3], [0, 1]] = 0.8 * np.cos(s[0::2])
        self.G, self.h = g, H if name == "states" else g
        self.f = np.asarray(played.saddle(jnp.asarray(s)).drift)
        w, V = np.linalg.eigh(full(base.noise.covariance()))
        root = np.sqrt(4.0 * np.clip(w, 0.0, None))[:, None] * V.T
        self.pairs = np.concatenate([root, -root])
        self.b = 9.0 * np.trace(self.P @ full(base.noise.covariance()))

    def value(self, s):
        return s @ self.P @ s + self.b

    def q(self, a, d):
        z = self.f + self.G @ a + self.h @ d
        ahead = np.mean([self.value(z + pair) for pair in self.pairs])
        cost = self.s @ self.Q @ self.s + a @ self.R @ a - d @ self.Gamma @ d
        return cost + 0.9 * ahead

    def best(self, function, start, tolerance=1e-10):
        return minimize(function, start, method="BFGS", options={"gtol": tolerance})

    def worst_reply(self, a, start):
        """max over d of Q*(s, a, d), and where."""
        found = self.best(lambda d: -self.q(a, d), start)
        return -found.fun, found.x


@struct.dataclass
class Line(Geometry):
    """One state, one action: the sign of the drift turns with sin 2s."""

    size: int = struct.field(pytree_node=False, default=1)

    family = "Line"
    dimensions = ("size",)
    constant_input = True
    one_row_each = True

    @property
    def state_dim(self):
        return 1

    @property
    def action_dim(self):
        return 1

    def actuate(self, s, a):
        return 0.9 * a

    def actuate_transpose(self, s, v):
        return 0.9 * v

    def rotate(self, s, x, p):
        return x * jnp.where(jnp.sin(2.0 * s) > 0.0, 1.0, -1.0)

    def input_norm(self):
        return 0.9

    def noise_order(self):
        return (0,)

    def initial_law(self, dtype=None):
        return Fixed(jnp.ones(1, dtype))


def line(dtype=None, adversary="optimal"):
    """The game of one dimension: P = 2, Q = 0.3 P, R = 0.5, γ = 0.9, h = 0.7, λ = 0.7 · 0.3."""
    base = Line.build(p=0.8, P=2.0, Q=0.6, R=0.5, gamma=0.9, Sigma=0.15, dtype=dtype)
    return game(base, h=[[0.7]], Gamma=0.9 * 0.49 * 2.0 / 0.21, adversary=adversary)


class Grid:
    """Values on a grid of [-5, 5] by cubic interpolation, E by 11 Gauss-Hermite nodes."""

    def __init__(self, num=101):
        self.x = np.linspace(-5.0, 5.0, num)
        nodes, weights = np.polynomial.hermite_e.hermegauss(11)
        self.nodes, self.weights = np.sqrt(0.15) * nodes, weights / weights.sum()
        self.inner = np.abs(self.x) < 2.5

    def expectation(self, z):
        """The matrix of V ↦ E V(z + w), for z of any shape."""
        at = np.asarray(z)[..., None] + self.nodes
        num, step = len(self.x), self.x[1] - self.x[0]
        t = np.clip((at - self.x[0]) / step, 0, num - 1)
        i = np.clip(np.floor(t).astype(int) - 1, 0, num - 4)
        u = t - i
        cubic = [
            -(u - 1) * (u - 2) * (u - 3) / 6, u * (u - 2) * (u - 3) / 2,
            -u * (u - 1) * (u - 3) / 2, u * (u - 1) * (u - 2) / 6,
        ]  # fmt: skip
        rows = int(np.prod(np.shape(z)))
        A = np.zeros((rows, num))
        row = np.repeat(np.arange(rows), len(self.nodes))
        for k, weight in enumerate(cubic):
            np.add.at(A, (row, (i + k).ravel()), (weight * self.weights).ravel())
        return A.reshape(*np.shape(z), num)


def lowest(F):
    """min over the last axis, by the parabola through the three lowest nodes."""
    i = np.clip(F.argmin(-1), 1, F.shape[-1] - 2)
    a, b, c = (np.take_along_axis(F, (i + k)[..., None], -1)[..., 0] for k in (-1, 0, 1))
    bend = a - 2 * b + c
    return b - (a - c) ** 2 / (8 * np.where(bend > 0, bend, 1))


def exploited(played, deviation, grid, num=170):
    """max over all disturbances of J - V* at the grid's states, where the agent plays
    a* + ``deviation``(x): value iteration over 61 replies.
    """
    x = grid.x
    at = batched(played.saddle, x)
    a, best = at.action[:, 0] + deviation(x), at.disturbance[:, 0]
    d = best[:, None] + np.linspace(-2.0, 2.0, 61)
    Gamma = 0.9 * 0.49 * 2.0 / 0.21
    cost = (0.6 * x**2 + 0.5 * a**2)[:, None] - Gamma * d**2
    z = (at.drift[:, 0] + 0.72 * a)[:, None] + 0.7 * d
    V = 2.0 * x**2 + 2.7
    step = cost + 0.9 * (2.0 * (z**2 + 0.15) + 2.7) - V[:, None]
    ahead, excess = grid.expectation(z).reshape(-1, len(x)), np.zeros(len(x))
    for _ in range(num):
        excess = -lowest(-(step + 0.9 * (ahead @ excess).reshape(step.shape)))
    return excess


def batched(function, x):
    """A function of one state at states (n,) of the line, as NumPy."""
    return jax.tree.map(np.asarray, jax.vmap(function)(jnp.asarray(x)[:, None]))
