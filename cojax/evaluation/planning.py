"""The receding-horizon controller: at every state an optimal plan of H steps, and its first action.

    min over a_0 … a_{H-1} of Σ_{k<H} γᵏ c(z_k, a_k) + γᴴ z_Hᵀ X z_H,  z_{k+1} = f(z_k) + G(z_k) a_k

along the mean dynamics, solved by the iterative LQR (Li and Todorov 2004; Tassa et al. 2012):
linearise along the plan, solve the regulator of the linearisation backward, roll out with a line
search. It knows drift, input map and stage cost, as a model-based controller does, and nothing of
the optimum: X is the value of the linear-quadratic regulator at the origin, and the first plan is
what that regulator does.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from flax import struct

from cojax import linalg
from cojax.envs import EnvParams
from cojax.errors import InputError
from cojax.evaluation.linearised import regulator
from cojax.system import Optimum, System
from cojax.types import Array, Float, PRNGKeyArray

HORIZON = 8
ITERATIONS = 3
STEPS = (1.0, 0.5, 0.25, 0.1)  # of the line search


@struct.dataclass
class Planner:
    """What a plan needs."""

    system: System
    X: Float[Array, "*F n n"]  # the terminal value zᵀX z
    K: Float[Array, "*F m n"]  # the first plan is a = -K z
    horizon: int = struct.field(pytree_node=False)


def make_planner(horizon: int, env_params: EnvParams) -> Planner:
    """The planner of one system; raises ValueError where its regulator does not exist, and for a
    system with hidden parts, along which nobody who observes can plan.
    """
    system = env_params.system
    if system.observed_dim < system.state_dim:
        raise InputError("receding-horizon: expected a system of which all is observed")
    X, K = (linalg.to_device(x, system.gamma.dtype) for x in regulator(system))
    return Planner(system, X, K, horizon)


def act(planner: Planner, optimum: Optimum, obs: Array, key: PRNGKeyArray) -> Array:
    """The first action of the plan from a state; the optimum is not looked at."""
    return plan(planner, obs)[0]


def plan(planner: Planner, s: Float[Array, " n"]) -> Float[Array, "H m"]:
    """Actions of H steps from a state s."""
    matmul = linalg.HIGHEST

    def first(z, _):
        a = -jnp.matmul(planner.K, z, precision=matmul)
        return _next(planner.system, z, a), (z, a)

    end, (states, actions) = jax.lax.scan(first, s, None, planner.horizon)
    states = jnp.concatenate([states, end[None]])

    def improve(_, carry):
        states, actions, cost = carry
        corrections = _backward(planner, states, actions)
        rollout = jax.vmap(lambda size: _rollout(planner, states, actions, corrections, size=size))
        tried = rollout(jnp.asarray(STEPS, s.dtype))
        best = jnp.argmin(jnp.where(jnp.isnan(tried[2]), jnp.inf, tried[2]))
        better = tried[2][best] < cost
        chosen = jax.tree.map(lambda new: new[best], tried)
        return jax.tree.map(lambda new, old: jnp.where(better, new, old), chosen, carry)

    start = (states, actions, _cost(planner, states, actions))
    return jax.lax.fori_loop(0, ITERATIONS, improve, start)[1]


def _next(system: System, z: Array, a: Array) -> Array:
    return system.optimum(z).drift + system.actuate(z, a)


def _cost(planner: Planner, states: Array, actions: Array) -> Array:
    """Discounted cost of a plan; states (H + 1, d)."""
    system = planner.system
    weights = system.gamma ** jnp.arange(planner.horizon + 1, dtype=states.dtype)
    stages = jax.vmap(system.stage_cost)(states[:-1], actions)
    end = linalg.quadratic_form(planner.X, states[-1])
    return jnp.sum(weights[:-1] * stages) + weights[-1] * end


def _backward(planner: Planner, states: Array, actions: Array) -> tuple[Array, Array]:
    """Corrections k, (H, m), and feedback L, (H, m, d), of the regulator along the plan.

    With the value's derivatives v, W at the next state: b = c_a + γGᵀv, E = c_aa + γGᵀWG,
    k = -E⁻¹b, L = -γE⁻¹GᵀWA; then v ← c_z + γAᵀ(v + WGk), W ← c_zz + γAᵀW(A + GL). Where E is not
    positive definite they may be anything: a plan is only replaced by one of lower cost.
    """
    system, gamma = planner.system, planner.system.gamma

    def local(z, a):
        A, G = jax.jacfwd(lambda z, a: _next(system, z, a), (0, 1))(z, a)
        slopes = jax.grad(system.stage_cost, (0, 1))(z, a)
        curvatures = [
            jax.hessian(lambda z: system.stage_cost(z, a))(z),
            jax.hessian(lambda a: system.stage_cost(z, a))(a),
        ]
        return A, G, *slopes, *curvatures

    def step(value, at):
        v, W = value
        A, G, c_z, c_a, c_zz, c_aa = at
        E = c_aa + gamma * G.T @ W @ G
        both = jnp.concatenate([(c_a + gamma * G.T @ v)[:, None], gamma * G.T @ W @ A], axis=1)
        solved = -linalg.solve_spd(E, both)
        k, L = solved[:, 0], solved[:, 1:]
        v = c_z + gamma * A.T @ (v + W @ (G @ k))
        W = c_zz + gamma * A.T @ W @ (A + G @ L)
        return (v, 0.5 * (W + W.T)), (k, L)

    with jax.default_matmul_precision("highest"):
        pieces = jax.vmap(local)(states[:-1], actions)
        end = (2.0 * planner.X @ states[-1], 2.0 * planner.X)
        return jax.lax.scan(step, end, pieces, reverse=True)[1]


def _rollout(planner, states, actions, corrections, *, size):
    """The plan after a step of a size, with its states and cost."""

    def step(z, at):
        old, a, k, L = at
        a = a + size * k + jnp.matmul(L, z - old, precision=linalg.HIGHEST)
        return _next(planner.system, z, a), (z, a)

    end, (new, planned) = jax.lax.scan(step, states[0], (states[:-1], actions, *corrections))
    new = jnp.concatenate([new, end[None]])
    return new, planned, _cost(planner, new, planned)
