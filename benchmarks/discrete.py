"""Given drifts, lists of actions, ends by chance, average costs: what a step costs, and who is how
far from the optimum.

    python benchmarks/discrete.py [--batch 2048] [--repeats 7] [--steps 400] [--dqn 50000]

The first table has the rate of a step and its time over that of the paper's arm of as many states
in the same run (quartiles of neighbouring turns). The second has relative gaps on one pendulum of
five torques: doing nothing, the nearest torque to the regulator's, any torque, and tabular
Q-learning over Gymnasium's interface; with ``--dqn`` also DQN of Stable-Baselines3, which must be
installed, for so many steps.
"""

from __future__ import annotations

import argparse
import time

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np

import cojax
from cojax import system as systems
from cojax.action_lists import grid
from cojax.average_cost import averaged
from cojax.families import ConverseArm, Pendulums
from cojax.system import System
from cojax.termination import terminating

STEPS = 64
TORQUES = {"n": 1, "actions": [-3.0, -1.0, 0.0, 1.0, 3.0], "R": 0.01}
ANGLES, RATES = np.linspace(-1.2, 1.2, 8), np.linspace(-1.6, 1.6, 8)


@jax.jit
def rollout(system: System, s: jax.Array, key: jax.Array) -> jax.Array:
    """STEPS steps of a batch under a fixed action, the feasible one that is nearest."""
    action = jnp.full((system.action_dim,), 0.1)

    def one(s, key):
        a = system.feasible(action)
        return systems.step(system, s, a, key), system.stage_cost(s, a)

    def body(carry, key):
        s, total = carry
        s, cost = jax.vmap(one)(s, jax.random.split(key, s.shape[0]))
        return (jnp.clip(s, -1.0, 1.0), total + cost), None

    zero = jnp.zeros(s.shape[0])
    return jax.lax.scan(body, (s, zero), jax.random.split(key, STEPS))[0][1]


def cases(n: int = 4) -> dict[str, System]:
    """The systems by name, the paper's arm first; all of 2n states but that which ends."""
    arm = ConverseArm.build(n, 0.8)
    P, Sigma = np.asarray(arm.P, float), np.asarray(arm.noise.covariance(), float)
    kept = {"P": P, "Q": 0.4 * P, "Sigma": Sigma, "gamma": 0.95}
    calm = ConverseArm.build(n, 0.8, **kept)
    few = np.concatenate([np.zeros((1, n)), np.eye(n), -np.eye(n)])
    columns = 0.05 * np.random.default_rng(0).normal(size=(2, 2 * n, 2 * n))
    return {
        "the paper's arm": calm,
        "pendulums": Pendulums.build(n, 0.8, Sigma=Sigma),
        "pendulums, 9 actions": Pendulums.build(n, 0.8, Sigma=Sigma, actions=few),
        "pendulums, 81 actions": Pendulums.build(n, 0.8, Sigma=Sigma, actions=grid(3, 1.0, n)),
        "ends by chance": terminating(calm, 0.7, 0.3),
        "average cost": averaged(calm),
        "columns of noise": ConverseArm.build(n, 0.8, **kept, state_columns=columns),
    }


def costs(batch: int, repeats: int) -> None:
    """The first table."""
    first, *others = cases().items()
    key = jax.random.key(1)
    print("| system | steps/s | time / the arm's |\n| --- | ---: | ---: |")
    for name, system in others:
        seconds = []
        for _ in range(repeats + 1):  # the first compiles
            for one in (system, first[1]):
                s = jax.random.uniform(jax.random.key(0), (batch, one.state_dim), minval=-1.0)
                s = jax.vmap(one.project)(s)
                start = time.perf_counter()
                jax.block_until_ready(rollout(one, s, key))
                seconds.append(time.perf_counter() - start)
        ours, arm = np.reshape(seconds, (-1, 2))[1:].T
        low, middle, high = np.quantile(ours / arm, (0.25, 0.5, 0.75))
        rate = STEPS * batch / float(np.median(ours))
        print(f"| {name} | {rate:.3g} | {middle:.2f} [{low:.2f}, {high:.2f}] |", flush=True)


class Table:
    """Q by cells of one pendulum's state, learned by one-step updates; ``predict`` is greedy."""

    def __init__(self, seed: int = 0):
        shape = ((len(ANGLES) + 1) * (len(RATES) + 1), len(TORQUES["actions"]))
        self.values, self.counts = np.zeros(shape), np.zeros(shape)
        self.rng = np.random.default_rng(seed)

    def cell(self, obs: np.ndarray) -> np.ndarray:
        """The cell of each observation."""
        return (len(RATES) + 1) * np.digitize(obs[:, 0], ANGLES) + np.digitize(obs[:, 1], RATES)

    def predict(self, obs: np.ndarray) -> np.ndarray:
        """The index that is best in the table."""
        return self.values[self.cell(obs)].argmax(axis=1)

    def learn(self, steps: int, num_envs: int = 64, gamma: float = 0.95) -> Table:
        """So many steps of environments side by side, three in ten of the actions random."""
        envs = gymnasium.make_vec("cojax/Pendulums-v0", num_envs=num_envs, **TORQUES)
        obs, _ = envs.reset(seed=0)
        going = np.ones(num_envs, bool)
        for _ in range(steps):
            wild = self.rng.uniform(size=num_envs) < 0.3
            action = np.where(wild, self.rng.integers(5, size=num_envs), self.predict(obs))
            after, reward, terminated, truncated, _ = envs.step(action)
            ahead = self.values[self.cell(after)].max(axis=1)
            target = reward + gamma * np.where(terminated, 0.0, ahead)
            for i in np.flatnonzero(going):
                at = self.cell(obs[i : i + 1])[0], action[i]
                self.counts[at] += 1
                rate = max(0.02, 1.0 / self.counts[at])
                self.values[at] += rate * (target[i] - self.values[at])
            obs, going = after, ~(terminated | truncated)
        return self


def dqn(steps: int) -> object:
    """A model of Stable-Baselines3."""
    from stable_baselines3 import DQN  # pyright: ignore[reportMissingImports]

    from cojax.adapters.stable_baselines3 import VecEnv

    env = VecEnv("Pendulums-v0", 8, **TORQUES)
    return DQN("MlpPolicy", env, gamma=0.95, seed=0, device="cpu").learn(steps)


def main() -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch", type=int, default=2048)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--dqn", type=int, default=0)
    options = parser.parse_args()
    costs(options.batch, options.repeats)
    _, params = cojax.make("Pendulums-v0", **TORQUES)
    policies = {name: name for name in ("zero", "lqr", "random")}
    policies = {**policies, "tabular Q": Table().learn(options.steps)}
    if options.dqn:
        policies |= {"DQN": dqn(options.dqn)}
    print(cojax.evaluate(policies, params, 256).table())


if __name__ == "__main__":
    main()
