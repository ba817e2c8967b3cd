"""Value iteration from zero on a grid comes to V* of systems whose state remembers something."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.sparse
from flax import struct

from cojax import delay, disturbance, markov_jump, memory, precision
from cojax.initial import Uniform
from cojax.quadratic import Geometry
from cojax.system import next_mean

STD = 0.1  # of the noise on s
NODES, WEIGHTS = np.polynomial.hermite_e.hermegauss(3)
WEIGHTS = WEIGHTS / WEIGHTS.sum()
PI = np.array([[0.875, 0.125], [0.25, 0.75]])
TIMES = 60  # 0.8^60 = 1.5e-6


@struct.dataclass
class Line(Geometry):
    """One state, whose actuator is the stronger the larger it is: the drift is not linear."""

    family = "Line"
    dimensions = ()
    constant_input = False
    one_row_each = True
    state_dim = 1
    action_dim = 1

    def actuate(self, s, a):
        """g(s) a."""
        return (1.0 + 0.4 * jnp.tanh(s)) * a

    def actuate_transpose(self, s, v):
        """g(s) v."""
        return (1.0 + 0.4 * jnp.tanh(s)) * v

    def rotate(self, s, x, p):
        """x."""
        return x

    def noise_order(self):
        """The one row."""
        return (0,)

    def input_norm(self):
        """At most 1.4."""
        return 1.4

    def largest_input(self, dtype):
        """1.4."""
        return jnp.full((1, 1), 1.4, dtype)

    def initial_law(self, dtype=None):
        """U(-1, 1)."""
        return Uniform(low=-jnp.ones(1, dtype), high=jnp.ones(1, dtype))


def base(**changes):
    given = {"P": 1.0, "Q": 0.4, "R": 0.5, "gamma": 0.8, "p": 0.9, "Sigma": STD**2}
    return Line().assemble(**given | {"dtype": np.float64} | changes)


SECOND = np.linspace(-1.2, 1.2, 33)
MODES = np.arange(2.0)
EPS = 0.1  # deviation of what is new in the disturbance
CASES = {  # the system, and values of what it remembers
    "rate": (lambda: memory.action_rate(base(), 0.7), SECOND),
    "delay": (lambda: delay.delayed(base()), SECOND),
    "wind": (lambda: disturbance.disturbed(base(), 0.6, EPS**2, [[0.3]]), SECOND),
    "jump": (
        lambda: markov_jump.markov_jump([base(), base(P=2.0, Q=0.5, p=0.4, R=0.8)], PI),
        MODES,
    ),
}


def interpolation(points: np.ndarray, grid: np.ndarray) -> scipy.sparse.csr_matrix:
    """W with (W v)_i the linear interpolation of v at a point; the ends hold outside."""
    at = np.clip((points - grid[0]) / (grid[1] - grid[0]), 0.0, len(grid) - 1.0)
    low = np.minimum(at.astype(int), len(grid) - 2)
    rows, share = np.arange(len(points)), at - low
    data = np.concatenate([1.0 - share, share])
    columns = np.concatenate([low, low + 1])
    return scipy.sparse.csr_matrix((data, (np.tile(rows, 2), columns)), (len(points), len(grid)))


def both(first: scipy.sparse.csr_matrix, second: scipy.sparse.csr_matrix):
    """Rows that are Kronecker products of rows: interpolation in two directions."""
    n, k = first.shape[0], second.shape[1]
    parts = []
    for offset in range(2):  # two entries a row in each factor
        index = first.indptr[:-1] + offset
        scaled = scipy.sparse.diags_array(first.data[index]) @ second
        scaled = scipy.sparse.csr_matrix(scaled)
        columns = scaled.indices + k * np.repeat(first.indices[index], np.diff(scaled.indptr))
        shape = (n, first.shape[1] * k)
        parts.append(scipy.sparse.csr_matrix((scaled.data, columns, scaled.indptr), shape))
    return parts[0] + parts[1]


def outcomes(name: str, now: np.ndarray, mean: np.ndarray, second: np.ndarray):
    """Chances and interpolations of what is remembered after a step."""
    if name == "jump":
        return [
            (PI[now.astype(int), j], interpolation(np.full(len(now), j), second)) for j in (0, 1)
        ]
    if name == "wind":
        return [(c, interpolation(mean + EPS * e, second)) for e, c in zip(NODES, WEIGHTS)]  # noqa: B905
    return [(1.0, interpolation(mean, second))]


@pytest.mark.parametrize("name", CASES)
def test_it_comes_to_the_value(name):
    make, second = CASES[name]
    jumps = second is MODES
    grid, actions = np.linspace(-2.2, 2.2, 67), np.linspace(-1.2, 1.2, 49)
    with precision.x64():
        system = make()
        pairs = np.stack([x.ravel() for x in np.meshgrid(grid, second, indexing="ij")], 1)
        states = np.concatenate([pairs[:, :1], np.eye(2)[pairs[:, 1].astype(int)]], 1)
        states = states if jumps else pairs

        def step(x, a):
            return next_mean(system, x, a, system.optimum(x)), system.stage_cost(x, a)

        every = jax.vmap(jax.vmap(step, (None, 0)), (0, None))
        mean, cost = map(np.asarray, every(jnp.asarray(states), jnp.asarray(actions[:, None])))
        value = np.asarray(jax.vmap(system.value)(jnp.asarray(states)))
    mean = mean.reshape(-1, mean.shape[-1])
    whole = 0.0
    for chance, rest in outcomes(name, np.repeat(pairs[:, 1], len(actions)), mean[:, 1], second):
        for w, weight in zip(STD * NODES, WEIGHTS, strict=True):
            scale = np.broadcast_to(weight * chance, len(mean))
            ahead = both(interpolation(mean[:, 0] + w, grid), rest)
            whole = whole + scipy.sparse.diags_array(scale) @ ahead
    found = np.zeros(len(states))
    for _ in range(TIMES):
        found = (cost + 0.8 * (whole @ found).reshape(cost.shape)).min(axis=1)
    inner = np.abs(pairs[:, 0]) <= 1.0
    inner &= jumps | (np.abs(pairs[:, 1]) <= 0.6)
    error = np.abs(found - value)[inner] / value[inner].max()
    assert error.max() < 0.009  # of which the grid, coarser than V* is flat, makes 0.007
