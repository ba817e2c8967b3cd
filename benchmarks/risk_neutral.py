"""The policy of least expected cost where risk is priced, by value iteration on a grid.

The dynamics are those of θ, whose drift has no closed-form optimum at θ = 0; of two states and one
action within a limit, T steps. Values less sᵀPs are interpolated bilinearly, E by Gauss-Hermite
quadrature of Gaussian noise, and actions searched among 81 with a parabola between them.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.ndimage import map_coordinates

from cojax.envs import EnvParams
from cojax.linalg import to_full
from cojax.policy import Policy

REACH, GRID, ACTIONS, NODES = 4.0, 151, 81, 7


def at(table: jax.Array, s: jax.Array) -> jax.Array:
    """A (GRID, GRID) table at a state."""
    place = [(x + REACH) * (0.5 * (GRID - 1) / REACH) for x in s]
    return map_coordinates(table, place, order=1, mode="nearest")


def neutral(params: EnvParams) -> Policy:
    """The policy, for params of :func:`cojax.risk.risk_sensitive`."""
    system = params.system
    P = jnp.asarray(to_full(np.asarray(system.inner.P)))
    line = jnp.linspace(-REACH, REACH, GRID)
    states = jnp.stack(jnp.meshgrid(line, line, indexing="ij"), axis=-1).reshape(-1, 2)
    known = jnp.einsum("ni,ij,nj->n", states, P, states)
    nodes, weights = np.polynomial.hermite_e.hermegauss(NODES)
    L = np.linalg.cholesky(to_full(np.asarray(system.inner.noise.covariance(), np.float64)))
    grid = np.stack(np.meshgrid(nodes, nodes), axis=-1).reshape(-1, 2)
    points = jnp.asarray(grid @ L.T, jnp.float32)
    mass = jnp.asarray(np.outer(weights, weights).ravel() / weights.sum() ** 2, jnp.float32)
    limit = float(system.feasible_box()[0])
    actions = jnp.linspace(-limit, limit, ACTIONS)

    @jax.jit
    def backward(V):
        def mean(z):
            return mass @ jax.vmap(lambda w: at(V, z + w) + (z + w) @ P @ (z + w))(points)

        ahead = (jax.lax.map(mean, states, batch_size=2048) - known).reshape(GRID, GRID)

        def best(s):
            x = jnp.append(s, 0.0)
            optimum = system.optimum(x)

            def cost(a):
                z = system.next_mean(x, a[None], optimum)[:2]
                return system.stage_cost(x, a[None]) + at(ahead, z) + z @ P @ z

            costs = jax.vmap(cost)(actions)
            least = jnp.argmin(costs)
            i = jnp.clip(least, 1, ACTIONS - 2)
            low, middle, high = costs[i - 1], costs[i], costs[i + 1]
            bend = jnp.maximum(low - 2.0 * middle + high, 1e-9)
            inner = actions[i] + jnp.clip(0.5 * (low - high) / bend, -1.0, 1.0) * (
                actions[1] - actions[0]
            )
            a = jnp.where(least == i, inner, actions[least])
            return cost(a) - s @ P @ s, a

        V, a = jax.lax.map(best, states, batch_size=1024)
        return V.reshape(GRID, GRID), a.reshape(GRID, GRID)

    V, table = jnp.zeros((GRID, GRID)), []
    for _ in range(system.horizon):
        V, own = backward(V)
        table.append(own)

    def act(own, obs, key):
        tables, system = own
        s, k = system.split(obs)
        return at(tables[jnp.minimum(k, system.horizon - 1)], s)[None]

    return Policy((jnp.stack(table[::-1]), system), act, "neutral")
