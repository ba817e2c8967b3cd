"""Problems with a budget: what the exact front says of policies, learned ones among them.

    python benchmarks/constrained.py [--budgets D ...] [--n 2] [--steps 600000] [--trials 512]
        [--seeds 1] [--key 0] [--figure front.png]

PPO with a multiplier learns on the isotropic system at each budget, and each seed is measured on
streams of root 7 beside π*, two of its gains that are not optimal there, and the LQR of the
linearisation. One row a policy: what it spends, its violation, its gap to J_c*(D), its distance to
the supporting line, and its gap to the front at the budget that it spends, as a share of J_c*
there; of the learner also its multiplier beside the exact one. Before that, the time of a step over
that of the arm of as many states, and of the same arm with its cost split (median and quartiles of
neighbouring turns).
"""

from __future__ import annotations

import argparse
import time

import jax
import jax.numpy as jnp
import numpy as np

import cojax
from cojax import system as systems
from cojax.budgets import budget
from cojax.evaluation import on_budget
from cojax.families import ConverseArm, Isotropic

STEPS = 64
REFERENCES = ["oracle", "detuned-oracle:0.7", "detuned-oracle:1.3", "lqr"]
SETTINGS = {"obs_clip": 50.0, "activation": "relu"}


@jax.jit
def rollout(system: systems.System, s: jax.Array, key: jax.Array) -> jax.Array:
    """STEPS steps of a batch under a fixed action, with cost and measures."""
    action = jnp.full((system.action_dim,), 0.1)

    def one(s, key):
        at = system.optimum(s)
        total = system.stage_cost(s, action) + jnp.sum(system.measured(s, action, at))
        w = system.sample_noise(s, key, action)
        return systems.next_mean(system, s, action, at) + w, total

    def body(carry, key):
        s, total = carry
        s, cost = jax.vmap(one)(s, jax.random.split(key, s.shape[0]))
        return (jnp.clip(s, -1.0, 1.0), total + cost), None

    zero = jnp.zeros(s.shape[0])
    return jax.lax.scan(body, (s, zero), jax.random.split(key, STEPS))[0][1]


def ratios(batch: int, repeats: int, d: int = 8) -> dict[str, np.ndarray]:
    """Quartiles of the time of a step over that of the arm of d states."""
    arm = ConverseArm.build(d // 2, 0.8)
    P = np.asarray(arm.P, np.float64)
    split = budget(ConverseArm.build(d // 2, 0.8, P=P, Q=0.3 * P), 0.7)
    kinds = {"arm": arm, "arm, split": split, "isotropic": Isotropic.build(d)}
    s, key = jax.random.uniform(jax.random.key(0), (batch, d), minval=-1.0), jax.random.key(1)
    seconds = []
    for _ in range(repeats + 1):  # the first compiles
        for system in kinds.values():
            start = time.perf_counter()
            jax.block_until_ready(rollout(system, s, key))
            seconds.append(time.perf_counter() - start)
    turns = np.reshape(seconds, (-1, len(kinds)))[1:].T
    return {
        name: np.quantile(own / turns[0], (0.25, 0.5, 0.75))
        for name, own in zip(kinds, turns, strict=True)
    }


def main() -> None:
    """Print the tables, and draw the front."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--budgets", nargs="+", type=float, default=[0.15, 0.35, 0.7])
    parser.add_argument("--n", type=int, default=2)
    parser.add_argument("--steps", type=int, default=600_000)
    parser.add_argument("--trials", type=int, default=512)
    parser.add_argument("--batch", type=int, default=2048)
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--key", type=int, default=0)
    parser.add_argument("--figure")
    options = parser.parse_args()
    print("| step of | time / arm's |\n| --- | ---: |")
    for name, (low, median, high) in ratios(options.batch, options.repeats).items():
        print(f"| {name} | {median:.2f} [{low:.2f}, {high:.2f}] |")
    problems, policies, learned = {}, {name: name for name in REFERENCES}, {}
    for D in options.budgets:
        name = f"D = {D:g}"
        problems[name] = cojax.make("Isotropic-v0", n=options.n, budget=D)[1]
        steps = round(1.0 / (1.0 - float(problems[name].system.gamma)))
        told = {}
        run = cojax.train(
            "ppo_lagrangian", problems[name], jax.random.key(options.key), num_seeds=options.seeds,
            total_timesteps=options.steps, hyperparameters=SETTINGS | {"max_episode_steps": steps},
            progress=lambda done, total, metrics, told=told: told.update(metrics),
        )  # fmt: skip
        for k, multiplier in enumerate(np.ravel(told["multiplier"])):
            own = policies.setdefault(f"seed {k}", {})
            own[name] = run.member("last", seed=k)  # pyright: ignore
            learned[f"seed {k}", name] = float(multiplier)
    found = on_budget(policies, problems, options.trials, 7)
    columns = ["policy", "J_d", "J_d - D", "(J_c - J_c*)/J_c*", "to the line", "own gap/J_c*", "λ"]
    print(f"\n| problem | {' | '.join(columns)} |\n| --- | --- |{' ---: |' * (len(columns) - 1)}")
    for row in found.rows():
        own = row["own_gap"]["mean"] / row["own_objective"] if row["own_gap"] else np.nan
        cells = ["{mean:.4g} [{low:.4g}, {high:.4g}]".format(**row["cost"])]
        cells += [f"{row['violation']['mean']:.3g}"]
        cells += [f"{row['gap']['mean'] / row['optimal_objective']:.3g}"]
        cells += [f"{row['distance']['mean']:.3g}", f"{own:.3g}"]
        mine = learned.get((row["policy"], row["fixture"]), row["multiplier"])
        cells += [f"{mine:.3g}"]
        print(f"| {row['fixture']} | {row['policy']} | {' | '.join(cells)} |")
    if options.figure:
        found.plot(options.figure)


if __name__ == "__main__":
    main()
