"""Every certified class of problems: its certificate, what a step costs, what learners reach.

    python benchmarks/classes.py [--fixtures F ...] [--batch 2048] [--repeats 7] [--train]

One row a fixture: the Bellman residual in float64, the Monte Carlo figure of the noise in standard
errors, how far gradient descent on actions went below V* and how near it came, the rate of a step
against that of the paper's system of the same matrices in the same run (median of neighbouring
turns, with quartiles), and the median relative gap of doing nothing and of the LQR of the
linearisation. ``--train`` adds one seed of PPO (300,000 steps) and DDPG (100,000), relative gaps
of 64 trials on streams of root 7, from their defaults.
"""

from __future__ import annotations

import argparse
import time

import jax
import jax.numpy as jnp
import numpy as np

import cojax
from cojax import system as systems
from cojax.families import ConverseArm
from cojax.fixtures import Fixture, validate

STEPS = 64
CLASSES = (
    "arm-n4-box", "arm-n9-box", "arm-n4-ball", "nvdex-k1-ball", "arm-n4-student-t",
    "nvdex-k1-gusts", "arm-n2-impulses", "point-mass-uniform", "arm-n4-action-noise",
    "nvdex-k2-action-noise", "arm-n4-state-noise", "unicycle-state-noise", "kinematic-arm-n2",
    "kinematic-arm-n6", "planar-aerial", "aerial-strong", "sparse-arm-n2", "sparse-arm-n4",
    "wells-arm-n1", "wells-arm-n2", "quartic-arm-n2", "quartic-arm-n4",
    "arm-n4-action-rate", "nvdex-k1-action-rate", "arm-n4-delay", "nvdex-k1-delay", "arm-n4-jump",
    "nvdex-k1-jump", "arm-n4-wind", "point-mass-wind", "arm-n2-columns", "glued-n2",
    "glued-n2-kinked", "arm-n2-finite", "point-mass-finite", "arm-n2-average",
    "point-mass-average", "arm-n2-ending", "arm-n4-ending", "point-mass-ending",
    "pendulums-n2", "pendulums-n2-inverted", "pendulums-n1-list", "pendulums-n2-list",
    "arm-n4-game", "point-mass-game", "isotropic-n2", "arm-n4-budget", "arm-n2-risk-averse",
    "arm-n4-risk-seeking", "arm-n4-hidden", "nvdex-k1-hidden", "point-mass-task",
    "point-mass-switching",
)  # fmt: skip
OTHERS = ("KinematicArm", "PlanarAerial", "Aerial", "Pendulums", "Isotropic")
BUDGETS = {"ppo": 300_000, "ddpg": 100_000}


@jax.jit
def rollout(system: systems.System, s: jax.Array, key: jax.Array) -> jax.Array:
    """STEPS steps of a batch under a fixed action, the feasible one that is nearest."""
    action = jnp.full((system.action_dim,), 0.1)

    def one(s, key):
        a, optimum = system.feasible(action), system.optimum(s)
        s_next = systems.next_mean(system, s, a, optimum) + system.sample_noise(s, key, a)
        return s_next, system.cost_at(s, a, optimum)

    def body(carry, key):
        s, total = carry
        s, cost = jax.vmap(one)(s, jax.random.split(key, s.shape[0]))
        return (jnp.clip(s, -1.0, 1.0), total + cost), None

    zero = jnp.zeros(s.shape[0])
    return jax.lax.scan(body, (s, zero), jax.random.split(key, STEPS))[0][1]


def plain(fixture: Fixture) -> systems.System:
    """The paper's system of the same matrices; the arm of as many states for other families."""
    if fixture.family in OTHERS:
        return ConverseArm.build(-(-fixture.state_dim // 2), 0.8)
    changes = {"action_limit": 2.0, "noise": {"model": "gaussian"}}
    if fixture.extension is not None and fixture.extension.hides:  # noise in the place of pushes
        changes["Sigma"] = 1e-3
    return fixture.with_changes(value=None, control_cost=None, extension=None, **changes).system()


def rates(fixture: Fixture, batch: int, repeats: int) -> tuple[float, np.ndarray]:
    """Steps a second, and quartiles of the time of a step over that of the paper's system."""
    pair = (fixture.system(), plain(fixture))
    starts = [
        jax.vmap(system.project)(
            jax.random.uniform(jax.random.key(0), (batch, system.state_dim), minval=-1.0)
        )
        for system in pair
    ]
    key, seconds = jax.random.key(1), []
    for _ in range(repeats + 1):  # the first compiles
        for system, s in zip(pair, starts, strict=True):
            start = time.perf_counter()
            jax.block_until_ready(rollout(system, s, key))
            seconds.append(time.perf_counter() - start)
    ours, papers = np.reshape(seconds, (-1, 2))[1:].T
    return STEPS * batch / float(np.median(ours)), np.quantile(ours / papers, (0.25, 0.5, 0.75))


def learned(name: str, algorithm: str) -> float:
    """The mean relative gap of one learner."""
    fixture = cojax.load_fixture(name)
    run = cojax.train(
        algorithm, fixture.params, jax.random.key(100), num_seeds=None,
        total_timesteps=BUDGETS[algorithm], progress=None,
    )  # fmt: skip
    row = cojax.evaluate([run.policy], fixture, 64, 7).rows()[0]
    mean = row["relative_suboptimality"]["mean"]
    return np.inf if mean is None else float(mean)


def main() -> None:
    """Print the table, a row as it is done."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--fixtures", nargs="+", default=list(CLASSES))
    parser.add_argument("--batch", type=int, default=2048)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--train", action="store_true")
    options = parser.parse_args()
    columns = ["residual", "noise z", "below V*", "reached", "steps/s", "time / paper's"]
    columns += ["zero", "lqr", *(BUDGETS if options.train else ())]
    print(f"| fixture | {' | '.join(columns)} |\n| --- |{' ---: |' * len(columns)}")
    for name in options.fixtures:
        fixture = cojax.load_fixture(name)
        certificate = validate(fixture)
        assert certificate.passed, certificate.failures
        assert fixture.difficulty is not None
        names = ("bellman_residual", "noise_moments", "never_beaten", "descent_reaches")
        row = [f"{certificate.checks[check].value or 0.0:.2g}" for check in names]
        rate, (low, median, high) = rates(fixture, options.batch, options.repeats)
        row += [f"{rate:.3g}", f"{median:.2f} [{low:.2f}, {high:.2f}]"]
        measured = fixture.difficulty.measured
        row += [f"{measured[f'median_gap_{policy}']:.3g}" for policy in ("zero_policy", "lqr")]
        row += [f"{learned(name, a):.3g}" for a in BUDGETS if options.train]
        print(f"| {name} | {' | '.join(row)} |", flush=True)


if __name__ == "__main__":
    main()
