"""Games: what a step costs, and how exploitable what learners make of them is.

    python benchmarks/games.py [--steps 400000] [--trials 128]

First the time of a step (drift, noise, cost) over that of the system without a disturbance, in
turns, medians with quartiles. Then, on a game of an arm of two joints with γ = 0.9 and λ = 0.35,
one seed of PPO from its defaults, trained three ways: against the known d* (``cojax.train``),
against random disturbances of the size of d* (domain randomisation), and in self-play; and, without
training, π*, the LQR and nothing. Gaps over the mean of V*: against d*, against the myopic reply,
the larger of the two with an interval that holds for both; and for the disturbance of self-play,
and for none, its own regret.
"""

from __future__ import annotations

import argparse
import time

import jax
import jax.numpy as jnp
import numpy as np

import cojax
from cojax import system as systems
from cojax.agents.self_play import self_play
from cojax.envs import EnvParams, env_params
from cojax.envs.games import AgentEnv, adversarial, opposed
from cojax.evaluation.games import against, exploitability, regret
from cojax.families import ConverseArm
from cojax.families.arm import authors_P
from cojax.games import game
from cojax.policy import Policy

STEPS = 64


@jax.jit
def rollout(system: systems.System, s: jax.Array, key: jax.Array) -> jax.Array:
    """STEPS steps of a batch under a fixed action."""
    a = jnp.full((system.action_dim,), 0.1)

    def one(s, key):
        at = system.optimum(s)
        following = systems.next_mean(system, s, a, at) + system.sample_noise(s, key, a)
        return following, system.cost_at(s, a, at)

    def body(carry, key):
        s, total = carry
        s, cost = jax.vmap(one)(s, jax.random.split(key, s.shape[0]))
        return (jnp.clip(s, -1.0, 1.0), total + cost), None

    zero = jnp.zeros(s.shape[0])
    return jax.lax.scan(body, (s, zero), jax.random.split(key, STEPS))[0][1]


def ratios(name: str, batch: int = 2048, repeats: int = 9) -> dict[str, np.ndarray]:
    """Quartiles of the time of a step against each adversary over that without one."""
    fixture = cojax.load_fixture(name)
    known = against(fixture, "optimal").system
    variants = {"none": fixture.base(np.float32), "optimal": known}
    variants["myopic"] = against(fixture, "myopic").system
    s = jax.random.uniform(jax.random.key(0), (batch, fixture.state_dim), minval=-1.0)
    seconds = {word: [] for word in variants}
    for _ in range(repeats + 1):  # the first compiles
        for word, system in variants.items():
            start = time.perf_counter()
            jax.block_until_ready(rollout(system, s, jax.random.key(1)))
            seconds[word].append(time.perf_counter() - start)
    plain = np.array(seconds.pop("none")[1:])
    return {w: np.quantile(np.array(x[1:]) / plain, (0.25, 0.5, 0.75)) for w, x in seconds.items()}


def random_push(limit: jax.Array, obs: jax.Array, key: jax.Array) -> jax.Array:
    """d ~ U(-limit, limit)."""
    return limit * jax.random.uniform(key, limit.shape, minval=-1.0, maxval=1.0)


def learned(params: EnvParams, steps: int) -> tuple[dict[str, object], Policy]:
    """Policies by how they were made, and the disturbance of self-play."""
    key = jax.random.key(100)
    size = adversarial(params).action_limit / 4.0  # of the largest d* of the initial law
    randomised = opposed(params, Policy(size, random_push, "random"))
    given = {"num_seeds": None, "total_timesteps": steps, "progress": None}
    known = cojax.train("ppo", params, key, **given).policy
    jostled = cojax.train("ppo", randomised, key, env=AgentEnv(), **given).policy
    run = self_play("ppo", params, key, total_timesteps=steps)
    policies: dict[str, object] = {"π*": "oracle", "LQR": "lqr", "nothing": "zero"}
    policies |= {"PPO against d*": known, "PPO, random d": jostled}
    return policies | {"PPO, self-play": run.agent.member(seed=0)}, run.adversary.member(seed=0)


def main() -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser(description="Games: cost of a step, exploitability")
    parser.add_argument("--steps", type=int, default=400_000)
    parser.add_argument("--trials", type=int, default=128)
    given = parser.parse_args()
    for name in ("arm-n2-game", "arm-n4-game", "point-mass-game"):
        for word, (low, middle, high) in ratios(name).items():
            print(f"step  {name:18s} {word:8s} {middle:5.2f}  [{low:.2f}, {high:.2f}]", flush=True)
    params = small()
    policies, disturbance = learned(params, given.steps)
    for row in exploitability(policies, params, given.trials, 7).rows:
        V, most = row["optimal_value"], row["at_least"]
        known, myopic = (row[word]["mean"] / V for word in ("optimal", "myopic"))
        interval = f"[{most['low'] / V:.4f}, {most['high'] / V:.4f}]" if most["low"] else ""
        print(f"{row['policy']:16s} d* {known:.4f}  myopic {myopic:.4f}  at least {interval}")
    others = {"self-play": disturbance, "none": lambda obs, key: jnp.zeros(4)}
    for row in regret(others, params, given.trials, 7):
        print(f"disturbance {row['adversary']:10s} regret/V* {row['relative']:.4f}")


def small() -> EnvParams:
    """A game of two joints, a disturbance in every state, that learners master in minutes."""
    P = authors_P(2, 7)
    options = {"P": P, "Q": 0.6 * P, "R": 2.0, "gamma": 0.9, "Sigma": 1e-3}
    base = ConverseArm.build(2, 0.8, dtype=np.float32, **options)
    played = game(base, h=np.eye(4), Gamma=0.9 * P / 0.35)
    law = base.geometry.initial_law(np.float32)
    return env_params(played, law, max_steps_in_episode=100, action_limit=None)


if __name__ == "__main__":
    main()
