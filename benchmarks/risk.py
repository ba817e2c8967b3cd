"""The price of ignoring risk: a learner of expected costs where the exponential of the cost counts.

    python benchmarks/risk.py [--steps 500000] [--seeds 3] [--key 0] [--share 0.1 0.2 ...]
        [--out risk.png]

One joint with noise on both rows, actions within a limit that V* knows, T = 10 steps, γ = 1. For
each λ = 2θ λ_max(ΣP), 1 being where no cost is finite, the drift is another, with the same sᵀP s.
Both learners are ``risk_ppo`` with the same settings on the same system: one is told θ, the other
θ = 0. The policy of least expected cost of these dynamics is beside them, by value iteration on a
grid (``neutral``), and ``other``: what is optimal at θ = 0, where the drift is another. Gaps are
J_θ(π) - J_θ* by tilted rollouts, relative to V*, the mean over seeds; ``zero`` and the LQR of the
linearisation, too. The first line is what a step costs, as a multiple of the arm's.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from risk_neutral import neutral

import cojax
from cojax import system as systems
from cojax.action_limits import Box
from cojax.envs import EnvParams, env_params
from cojax.evaluation import risk_gap
from cojax.families import ConverseArm
from cojax.finite_horizon import finite_horizon
from cojax.initial import Uniform
from cojax.policy import Policy
from cojax.report import style
from cojax.risk import risk_sensitive, spectrum
from cojax.risk_kernel import Kernel

P = np.diag([2.3, 1.3])
SIGMA = 0.05 * np.eye(2)
T = 10
LEARNERS = {"expected cost": {"theta": 0.0}, "risk": {}}


def problem(share: float) -> EnvParams:
    """The system at λ = ``share``."""
    limit = Box(np.array([0.6]))
    base = ConverseArm.build(1, 1.0, P=P, Q=0.5 * P, R=4.0, Sigma=SIGMA, limit=limit)
    theta = 0.5 * share / spectrum(SIGMA, P)[-1]
    system = risk_sensitive(base, theta, T)
    law = system.initial_law(Uniform(jnp.full(2, -1.0), jnp.full(2, 1.0)))
    return env_params(system, law, max_steps_in_episode=T, terminal_value="optimal")


def optimal_in(system: systems.System, obs: jax.Array, key: jax.Array) -> jax.Array:
    """a* of a system at a state, wherever it is played."""
    return system.optimum(obs).action


@jax.jit
def steps(system: systems.System, x: jax.Array, key: jax.Array) -> jax.Array:
    """Sixty-four steps of a batch under a fixed action."""
    action = jnp.full((system.action_dim,), 0.1)

    def body(carry, key):
        x, total = carry
        keys = jax.random.split(key, x.shape[0])
        after = jax.vmap(lambda x, key: systems.step(system, x, action, key))(x, keys)
        cost = jax.vmap(lambda x: system.stage_cost(x, action))(x)
        return (jnp.clip(after, -1.0, 1.0), total + cost), None

    start = (x, jnp.zeros(x.shape[0]))
    return jax.lax.scan(body, start, jax.random.split(key, 64))[0][1]


def step_costs(n: int = 4, batch: int = 2048, repeats: int = 7) -> dict[str, float]:
    """Time of a step over that of the arm, medians of turns next to each other."""
    arm = ConverseArm.build(n, 0.8, Q=None, Sigma=1e-3)
    arm = cojax.rebuild(arm, Q=0.3 * np.asarray(arm.P, np.float64))
    matrices = [(1.0 + 0.01 * k) * np.asarray(arm.P, np.float64) for k in range(51)]
    theta = 0.2 / spectrum(1e-3 * np.eye(2 * n), np.asarray(arm.P, np.float64))[-1]
    averse = risk_sensitive(arm, theta, 50)
    subjects = {
        "arm": arm,
        "finite horizon, one P": finite_horizon(arm, T=50),
        "finite horizon, P_k": finite_horizon(arm, matrices),
        "risk": averse,
        "risk, tilted": Kernel(averse),
        "risk, discounted": risk_sensitive(arm, theta, 50, gamma=0.99),
    }
    seconds: dict[str, list[float]] = {name: [] for name in subjects}
    for _ in range(repeats + 1):  # the first compiles
        for name, system in subjects.items():
            x = jax.random.uniform(jax.random.key(0), (batch, system.state_dim), minval=0.0)
            start = time.perf_counter()
            jax.block_until_ready(steps(system, x, jax.random.key(1)))
            seconds[name].append(time.perf_counter() - start)
    arms = np.array(seconds.pop("arm")[1:])
    return {name: float(np.median(np.array(x[1:]) / arms)) for name, x in seconds.items()}


def figure(shares: list[float], curves: dict[str, list[list[float]]], out: Path) -> None:
    """Mean relative gaps over λ, with the range of seeds; what was refused is left out."""
    with style.style():
        drawing = style.figure(style.PAGE, 3.4)
        axis = drawing.subplots()
        style.grid(axis)
        for i, (name, seeds) in enumerate(curves.items()):
            kept = [k for k, own in enumerate(seeds) if np.isfinite(own).all()]
            x = np.array(shares)[kept]
            own = [np.array(seeds[k]) for k in kept]
            mean, low, high = (np.array([f(a) for a in own]) for f in (np.mean, np.min, np.max))
            axis.fill_between(x, low, high, color=style.colour(i), alpha=0.2, linewidth=0.0)
            axis.plot(x, mean, color=style.colour(i), marker="o", markersize=4, label=name)
        if any(np.isfinite(own).all() for seeds in curves.values() for own in seeds):
            axis.set_yscale("log")
        axis.set_xlabel("2θ λ_max(ΣP)")
        axis.set_ylabel("(J_θ(π) - J_θ*) / V*")
        axis.legend(title="trained for")
        style.save_as(drawing, out)


def main() -> None:
    """Print the table, a row as it is done."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=500_000)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--key", type=int, default=0)
    parser.add_argument("--share", type=float, nargs="+", default=[0.1, 0.2, 0.3, 0.35])
    parser.add_argument("--trials", type=int, default=8192)
    parser.add_argument("--out", type=Path, default=Path("risk.png"))
    options = parser.parse_args()
    print("; ".join(f"{name} {x:.2f}" for name, x in step_costs().items()), flush=True)
    columns = ["θ", "V*", "zero", "lqr", "neutral", "other", *LEARNERS, "ratio", "effective trials"]
    print(f"| λ | {' | '.join(columns)} |\n| ---: |{' ---: |' * len(columns)}", flush=True)
    curves: dict[str, list[list[float]]] = {name: [] for name in LEARNERS}
    for share in options.share:
        params, policies = problem(share), {"zero": "zero", "lqr": "lqr"}
        policies["neutral"] = neutral(params)  # pyright: ignore[reportArgumentType]
        policies["other"] = Policy(problem(0.0).system, optimal_in)  # pyright: ignore
        for name, own in LEARNERS.items():
            run = cojax.train(
                "risk_ppo", params, jax.random.key(options.key), num_seeds=options.seeds,
                total_timesteps=options.steps, hyperparameters=own, progress=None,
            )  # fmt: skip
            policies[name] = run.policy
        rows = risk_gap(policies, params, options.trials, 7)
        gaps: dict[str, list[float]] = {}
        for row in rows:
            known = row["relative"] is not None
            gaps.setdefault(row["policy"], []).append(row["relative"] if known else np.inf)
        for name, found in curves.items():
            found.append(gaps[name])
        cells = [f"{rows[0]['theta']:.2f}", f"{rows[0]['optimal_value']:.2f}"]
        for own in gaps.values():
            refused = sum(not np.isfinite(x) for x in own)
            cells.append(f"{np.mean(own):.1%}" if not refused else f"refused {refused}/{len(own)}")
        means = [np.mean(gaps[name]) for name in LEARNERS]
        cells.append(f"{means[1] / means[0]:.2f}" if np.isfinite(means[1]) else "-")
        learned = [row["effective_sample_size"] for row in rows if row["policy"] in LEARNERS]
        cells.append(f"{min(learned):.0f}")
        print(f"| {share:g} | {' | '.join(cells)} |", flush=True)
    figure(options.share, curves, options.out)


if __name__ == "__main__":
    main()
