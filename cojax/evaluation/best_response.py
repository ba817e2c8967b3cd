"""The disturbance that hurts one policy of a game most, found by descent through the simulator.

    σ(s) = d°(s) + u ε_θ(s/x)      θ maximises J(π, σ) - V* = E Σ_{k<T} γᵏ (Q* - V*)(s_k, a_k, d_k)

d° is d* or 0, ε_θ affine and a perceptron on top, which begins at 0; u and x are root mean squares
of what the best reply of one step does, and of states, under d*. Every update meets fresh starts
and noise; its gradient is cut to norm 1 and followed by Adam (Kingma and Ba 2015,
arXiv:1412.6980) at a rate that falls to 0 as a cosine.

What is found need not be the best. On streams it was not trained on it is one more bound from below
(:func:`cojax.evaluation.games.exploitability`, ``adversaries``).
"""

from __future__ import annotations

import dataclasses
import math
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree

from cojax import errors, inputs, streams
from cojax.envs import EnvParams
from cojax.envs.games import nobody, opposed, with_policy
from cojax.errors import InputError
from cojax.evaluation.games import against, one_game
from cojax.evaluation.members import as_policy, player, singles
from cojax.evaluation.named_systems import scope
from cojax.evaluation.references import Act, ReferencePolicy
from cojax.evaluation.rollout import discount
from cojax.policy import Policy
from cojax.trials import Step, scan_trial
from cojax.types import Array, Float, PRNGKeyArray, PyTree
from cojax.zero_sum import Game

STARTS = ("optimal", "none")
SCALED = 64  # trials that scales are measured on
DECAY = (0.9, 0.99)  # of Adam's means


class Reply(NamedTuple):
    """Parameters of σ: the game where d° is d*, else None; u, x and θ."""

    game: Game | None
    unit: Float[Array, "k"]
    scale: Float[Array, "d"]
    theta: PyTree


def reply(params: Reply, obs: Float[Array, "d"], key: PRNGKeyArray) -> Float[Array, "k"]:
    """σ(s) of ``params`` at ``obs``; draws nothing from ``key``."""
    z = obs / params.scale
    theta = params.theta
    hidden = jnp.tanh(z @ theta["in"] + theta["bias"])
    out = params.unit * (theta["constant"] + z @ theta["linear"] + hidden @ theta["out"])
    return out if params.game is None else params.game.saddle(obs).disturbance + out


def best_response(
    policy: object,
    params: object,
    key: PRNGKeyArray,
    *,
    start: str = "optimal",
    num_updates: int = 300,
    num_trials: int = 32,
    num_steps: int | None = None,
    learning_rate: float = 0.03,
    hidden: int = 32,
) -> Policy:
    """A policy of the disturbance, trained against one ``policy`` of the agent.

    Args:
        policy: a policy of JAX or the name of a reference, in the forms that
            :func:`cojax.evaluate` takes; "lqr" is that of the problem against d*.
        params: of a game, or a fixture of one.
        key: typed key.
        start: d°: "optimal" for d*, "none" for 0.
        num_updates: gradient steps.
        num_trials: trials of each.
        num_steps: T; by default the horizon.
        learning_rate: of Adam, at the start.
        hidden: width of the perceptron.

    Raises InputError, one line, for params of no game or of several, a policy on the host, several
    policies, and numbers out of range.
    """
    one = one_game(params)
    errors.one_of("start", start, STARTS)
    sizes = {"num_updates": num_updates, "num_trials": num_trials, "hidden": hidden}
    sizes = {name: inputs.whole(name, value, 1) for name, value in sizes.items()}
    steps = int(one.max_steps_in_episode) if num_steps is None else num_steps
    steps = inputs.whole("num_steps", steps, 1)
    rate = inputs.number("learning_rate", learning_rate, 0.0, low_open=True)
    chosen = as_policy(None, policy)
    if not isinstance(chosen, Policy | ReferencePolicy):
        raise InputError(f"policy: expected one of JAX, got {chosen.name}")
    if len(singles(chosen)) > 1:
        raise InputError(
            f"policy {chosen.name}: expected one policy, got {len(singles(chosen))} members; take "
            "one with policy.member(...)"
        )
    if isinstance(chosen, Policy) and chosen.axes:
        chosen = chosen.member(**dict.fromkeys(chosen.axes, 0))
    with scope(one):
        act, own = player(chosen, against(one, "optimal"))
        game: Game = one.system  # pyright: ignore[reportAssignmentType]
        first, rest = jax.random.split(key)
        begun = _begun(act, own, against(one, "myopic"), first, steps=steps, hidden=sizes["hidden"])
        begun = begun._replace(game=game if start == "optimal" else None)
        plan = Plan(sizes["num_updates"], sizes["num_trials"], steps)
        found = _descended(act, plan, own, opposed(one, nobody(one)), begun, rest, rate)
    return Policy(found, reply, f"reply to {chosen.name}")


@dataclasses.dataclass(frozen=True)
class Plan:
    """Sizes of a descent; static."""

    updates: int
    trials: int
    steps: int


@partial(jax.jit, static_argnames=("act", "steps", "hidden"))
def _begun(
    act: Act, own: PyTree, params: EnvParams, key: PRNGKeyArray, *, steps: int, hidden: int
) -> Reply:
    """σ before the first update; ``params`` are those against the myopic reply."""
    game: Game = params.system  # pyright: ignore[reportAssignmentType]
    known = inputs.swapped(params, system=game.against("optimal"))

    def observe(total: tuple, step: Step) -> tuple[tuple, tuple[()]]:
        d = game.played(step.s, step.action, step.optimum)
        weight = jnp.where(step.acts, discount(game.gamma, step.k), 0.0)
        sums = (weight, weight * step.s**2, weight * d**2)
        return tuple(x + y for x, y in zip(total, sums, strict=True)), ()

    d, k, dtype = game.state_dim, game.disturbance_dim, game.gamma.dtype
    zero = (jnp.zeros((), dtype), jnp.zeros(d, dtype), jnp.zeros(k, dtype))

    def one(stream: PRNGKeyArray) -> tuple:
        return scan_trial(partial(act, own), known, stream, steps, observe=observe, total=zero)[0]

    trial_key, weight_key = jax.random.split(key)
    sums = jax.vmap(one)(jax.random.split(trial_key, SCALED))
    count, squares, played = (jnp.sum(x, axis=0) for x in sums)
    tiny = jnp.asarray(jnp.finfo(dtype).tiny, dtype) ** 0.5
    scale, unit = (jnp.maximum(jnp.sqrt(x / count), tiny) for x in (squares, played))
    weights = jax.random.normal(weight_key, (d, hidden), jnp.float32).astype(dtype)
    shapes = {"bias": (hidden,), "constant": (k,), "linear": (d, k), "out": (hidden, k)}
    theta = {name: jnp.zeros(shape, dtype) for name, shape in shapes.items()}
    return Reply(None, unit, scale, theta | {"in": weights / math.sqrt(d)})


@partial(jax.jit, static_argnames=("act", "plan"))
def _descended(  # noqa: PLR0917, arguments of programs are static by position
    act: Act,
    plan: Plan,
    own: PyTree,
    params: EnvParams,
    begun: Reply,
    key: PRNGKeyArray,
    rate: float,
) -> Reply:
    """σ after all updates."""
    flat, unpacked = ravel_pytree(begun.theta)

    def gained(flat: Array, key: PRNGKeyArray) -> Array:
        problem = with_policy(params, Policy(begun._replace(theta=unpacked(flat)), reply))

        def observe(total: Array, step: Step) -> tuple[Array, tuple[()]]:
            gain = discount(problem.system.gamma, step.k) * step.advantage(problem.system)
            return total + jnp.where(step.acts, gain, 0.0), ()

        def one(stream: PRNGKeyArray) -> Array:
            zero, player = jnp.zeros((), flat.dtype), partial(act, own)
            found = scan_trial(player, problem, stream, plan.steps, observe=observe, total=zero)
            return found[0]

        return jnp.mean(jax.vmap(one)(jax.random.split(key, plan.trials)))

    def update(carry: tuple, inputs: tuple) -> tuple[tuple, None]:
        flat, mean, square = carry
        k, words = inputs
        slope = jax.grad(gained)(flat, streams.of_words(words))
        slope = jnp.where(jnp.isfinite(slope).all(), slope, 0.0)
        slope = slope / jnp.maximum(jnp.linalg.norm(slope), jnp.finfo(flat.dtype).tiny)
        mean = DECAY[0] * mean + (1.0 - DECAY[0]) * slope
        square = DECAY[1] * square + (1.0 - DECAY[1]) * slope**2
        count = (k + 1).astype(flat.dtype)
        direction = mean / (1.0 - DECAY[0] ** count)
        direction = direction / (jnp.sqrt(square / (1.0 - DECAY[1] ** count)) + 1e-8)
        share = 0.5 + 0.5 * jnp.cos(jnp.pi * k.astype(flat.dtype) / plan.updates)
        return (flat + share * jnp.asarray(rate, flat.dtype) * direction, mean, square), None

    words = streams.to_words(jax.random.split(key, plan.updates))
    zeros = jnp.zeros_like(flat)
    steps = (jnp.arange(plan.updates), words)
    (flat, _, _), _ = jax.lax.scan(update, (flat, zeros, zeros), steps)
    return begun._replace(theta=unpacked(flat))
