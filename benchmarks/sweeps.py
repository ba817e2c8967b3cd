"""Throughput of a population by layout, against members run one after another, in one process.

    python benchmarks/sweeps.py [--members 64] [--fixture arm-n2-p0.80-s7] [--algorithm ppo]

Every layout trains the same members for the same updates; compilation is timed apart. The first
row is what a loop over ``cojax.train`` does: one member a call.
"""

from __future__ import annotations

import argparse
import time

from cojax.sweeps import use_cores

use_cores()  # before gymnax is imported

import jax
import numpy as np

import cojax
from cojax.agents import loop
from cojax.agents.layout import Layout
from cojax.studies.members import Group, groups
from cojax.studies.systems import StartedFixture
from cojax.sweeps import sweep

REPEATS = 3


def rate(group: Group, layout: Layout, members: int, calls: int, steps: int) -> tuple[float, float]:
    """Seconds to compile, and the best of some rates: environment steps a second of all members."""
    plan = group.plan(1)
    populations = [
        group.population(np.arange(members // calls) + i * (members // calls), layout)
        for i in range(calls)
    ]
    trained = [loop.Members.create(p, plan) for p in populations]
    start = time.perf_counter()
    trained[0].compile(None)
    seconds = time.perf_counter() - start
    updates = max(1, steps // plan.steps)
    best = 0.0
    for _ in range(REPEATS):
        start = time.perf_counter()
        for one in trained:
            one.advance(None, updates)
        best = max(best, updates * plan.steps * members / (time.perf_counter() - start))
    return seconds, best


def main() -> None:
    """Print one row for each layout."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--members", type=int, default=64)
    parser.add_argument("--steps", type=int, default=10_000, help="environment steps of a member")
    parser.add_argument("--fixture", default="arm-n2-p0.80-s7")
    parser.add_argument("--algorithm", default="ppo")
    parser.add_argument("--widths", type=int, nargs="+", default=[1, 16])
    options = parser.parse_args()
    config = sweep(
        {
            "schema": "cojax.study/1",
            "fixtures": [options.fixture],
            "algorithms": [{"name": options.algorithm}],
            "num_seeds": options.members,
            "total_timesteps": options.steps,
        }
    )
    group = groups(config, [StartedFixture.of(cojax.load_fixture(options.fixture))])[0]
    devices = jax.local_devices()
    some = sorted({1, len(devices)})
    rows = [("one after another", Layout(1), options.members)]
    rows += [
        (f"width {w:4d} x {d} devices", Layout.over(devices[:d], w), 1)
        for w in options.widths
        for d in some
        if w * d <= options.members
    ]
    print(f"{options.algorithm} on {options.fixture}, {options.members} members, {devices[0]}")
    print(f"{'layout':26s} {'compile s':>10s} {'steps/s':>12s} {'ratio':>7s}")
    first = None
    for name, layout, calls in rows:
        seconds, best = rate(group, layout, options.members, calls, options.steps)
        first = first or best
        print(f"{name:26s} {seconds:10.1f} {best:12,.0f} {best / first:7.2f}", flush=True)


if __name__ == "__main__":
    main()
