"""Self-play: an agent and a disturbance that learn against each other, by one algorithm.

In each round the agent makes one update in an environment in which the disturbance plays its
policy, and then the disturbance one in which the agent plays its new one. Neither sees the oracle;
both policies are the deterministic ones that training hands out. Where the saddle point of every
step is one of a convex and a concave function, as in :mod:`cojax.zero_sum`, small steps of both
lead towards it, where the disturbance takes smaller ones than the agent, which follows it (two time
scales).

What decides is how far the disturbance explores. Against an agent that is still poor it gains
without end, so that draws as wide as an agent's (a std of 0.6 units of its actions) made both
circle at gaps of 2 to 10 V*, whatever the steps; at an eighth of that they do not. Episodes are
short while learning: the gap arises at states far from the origin.

An agent alone is trained by :func:`cojax.train`: against d*, or its myopic reply, on the game's own
params, against any other disturbance on those of :func:`cojax.envs.games.opposed` in ``AgentEnv``,
and a disturbance against any policy on those of ``adversarial`` in ``AdversaryEnv``.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from cojax import inputs
from cojax.agents import algorithm as algorithms
from cojax.agents.algorithm import Algorithm, learning
from cojax.agents.settings import hyperparameters
from cojax.agents.training import lookup
from cojax.envs.games import AdversaryEnv, AgentEnv, adversarial, nobody, opposed, with_policy
from cojax.envs.params import EnvParams
from cojax.errors import InputError
from cojax.policy import Policy
from cojax.types import Array, PRNGKeyArray, PyTree

AGENT, ADVERSARY = AgentEnv(), AdversaryEnv()
# beneath what is given: batches are larger, and steps smaller, than of an agent alone
BOTH = {"num_envs": 128, "num_minibatches": 16, "max_episode_steps": 32.0}
USUAL = {
    "ppo": (BOTH | {"target_kl": 0.005}, BOTH | {"target_kl": 0.003, "log_std_init": -2.5}),
}


@dataclasses.dataclass(frozen=True)
class SelfPlay:
    """What :func:`self_play` gives.

    Attributes:
        agent: the agent's policies, with an axis "seed".
        adversary: the disturbance's, likewise.
        timesteps: environment steps of each of the two.
        metrics: ``agent_reward`` and ``adversary_reward``, means of the steps of a round, and
            ``agent_failed`` and ``adversary_failed``; (seeds, rounds).
    """

    agent: Policy
    adversary: Policy
    timesteps: int
    metrics: dict[str, np.ndarray]


@learning()
def self_play(
    algorithm: str,
    params: EnvParams,
    key: PRNGKeyArray,
    *,
    agent: Mapping[str, Any] | None = None,
    adversary: Mapping[str, Any] | None = None,
    num_seeds: int = 1,
    total_timesteps: int = 800_000,
) -> SelfPlay:
    """Train both players of a game against each other.

    Args:
        algorithm: one of :data:`cojax.agents.ALGORITHMS`.
        params: of a game.
        key: typed key; seed i uses ``jax.random.fold_in(key, i)``.
        agent: hyperparameters of the agent, a mapping; where it is silent those of ``USUAL``, and
            the algorithm's defaults.
        adversary: those of the disturbance.
        num_seeds: pairs that are trained.
        total_timesteps: environment steps of each player, rounded up to whole updates.

    Raises InputError, one line, for params of no game or of several, hyperparameters that the
    algorithm refuses or with which an update of one is longer than of the other, and an algorithm
    that needs gradients of the environment.
    """
    spec = lookup(algorithm)
    if spec.differentiable:
        raise InputError(f"{algorithm}: expected an algorithm without gradients of the environment")
    num_seeds = inputs.whole("num_seeds", num_seeds, 1)
    pairs = zip(USUAL.get(algorithm, ({}, {})), (agent, adversary), strict=True)
    settings = [
        hyperparameters(spec.hyperparameters, usual | dict(given or {})) for usual, given in pairs
    ]
    steps = [spec.steps_per_update(h) for h in settings]
    for h in settings:
        spec.check(h)
    if steps[0] != steps[1]:
        raise InputError(f"adversary: expected updates of {steps[0]} steps, got {steps[1]}")
    if jnp.ndim(params.max_steps_in_episode):
        raise InputError("params: expected one game, got a stacked batch")
    sides = algorithms.strong((opposed(params, nobody(params)), adversarial(params)))
    rounds = -(-inputs.whole("total_timesteps", total_timesteps, 1) // steps[0])
    keys = jax.vmap(jax.random.fold_in, (None, 0))(key, jnp.arange(num_seeds, dtype=jnp.uint32))
    learned, metrics = _train(spec, rounds, sides, tuple(settings), keys)
    both = []
    for env, side, h, values in zip((AGENT, ADVERSARY), sides, settings, learned, strict=True):
        apply = spec.policy_apply(env, side, h)
        name = "agent" if env is AGENT else "adversary"
        both.append(Policy(values, apply, f"{algorithm} {name}", ("seed",)))
    found = {name: np.asarray(x) for name, x in metrics.items()}
    return SelfPlay(both[0], both[1], rounds * steps[0], found)


@partial(jax.jit, static_argnums=(0, 1))
def _train(  # noqa: PLR0917, arguments of programs are static by position
    spec: Algorithm,
    rounds: int,
    sides: tuple[EnvParams, EnvParams],
    settings: tuple[PyTree, PyTree],
    keys: Array,
) -> tuple[tuple[PyTree, PyTree], dict[str, Array]]:
    """Parameters of both policies, and metrics; leading axis of the seeds."""
    (mine, other), (h, h_other) = sides, settings

    def one(key: Array) -> tuple[tuple[PyTree, PyTree], dict[str, Array]]:
        first, second = jax.random.split(key)
        agent = spec.init(AGENT, first, mine, h)
        adversary = spec.init(ADVERSARY, second, facing(other, AGENT, agent, mine, h), h_other)
        planned = [x.replace(clock=x.clock.planned(rounds)) for x in (agent, adversary)]

        def play(both, _):
            agent, adversary = both
            problem = facing(mine, ADVERSARY, adversary, other, h_other)
            agent, told = spec.update(AGENT, agent, problem, h)
            problem = facing(other, AGENT, agent, mine, h)
            adversary, answer = spec.update(ADVERSARY, adversary, problem, h_other)
            row = {"agent_reward": told["reward"], "adversary_reward": answer["reward"]}
            row |= {"agent_failed": agent.failed, "adversary_failed": adversary.failed}
            return (agent, adversary), row

        (agent, adversary), metrics = jax.lax.scan(play, tuple(planned), None, length=rounds)
        learned = (
            spec.policy_params(AGENT, agent, mine, h),
            spec.policy_params(ADVERSARY, adversary, other, h_other),
        )
        return learned, metrics

    def facing(problem, env, state, own, h):  # noqa: PLR0917
        """``problem`` where the policy of a learner's ``state`` in ``env`` plays along."""
        policy = Policy(spec.policy_params(env, state, own, h), spec.policy_apply(env, own, h))
        return with_policy(problem, policy)

    if jax.default_backend() == "cpu":  # where small batched products are slower
        return jax.lax.map(one, keys)
    return jax.vmap(one)(keys)
