"""Speed of the paired evaluator: 256 trials × 512 steps × 8 policies on the arm with 9 joints.

    python benchmarks/evaluate.py [--repeats 5]

Six references and two networks of 64 × 64 units; the time is that of ``evaluate`` and its table
of intervals, compilation excluded.
"""

import argparse
import time

import jax
import jax.numpy as jnp

import cojax
from cojax.evaluation import evaluate
from cojax.policy import Policy

POLICIES = ["oracle", "zero", "random", "lqr", "dithered-oracle:0.05", "detuned-oracle:0.8"]


def network(params, obs, key):
    hidden = jnp.tanh(params[0] @ obs)
    return 0.1 * jnp.tanh(params[2] @ jnp.tanh(params[1] @ hidden))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=5)
    repeats = parser.parse_args().repeats
    params = cojax.make("ConverseArm-v0", n=9, p=0.8, seed=7)[1]
    keys = jax.random.split(jax.random.key(0), 3)
    shapes = [(2, 64, 18), (2, 64, 64), (2, 9, 64)]
    weights = [0.2 * jax.random.normal(k, shape) for k, shape in zip(keys, shapes, strict=True)]
    networks = Policy(tuple(weights), network, "network", ("seed",))

    def once() -> tuple[float, float]:
        start = time.perf_counter()
        result = evaluate([*POLICIES, networks], params, 256)
        ran = time.perf_counter()
        result.rows()
        return ran - start, time.perf_counter() - ran

    first = once()
    times = [once() for _ in range(repeats)]
    run, table = (sorted(column)[repeats // 2] for column in zip(*times, strict=True))
    steps = 8 * 256 * 512
    print(f"first call, compilation included: {first[0]:.2f} s")
    print(f"evaluate: {run:.2f} s (median of {repeats}), {steps / run:,.0f} policy steps a second")
    print(f"rows with intervals: {table:.2f} s")
    print(f"together: {run + table:.2f} s; target 5 s")


if __name__ == "__main__":
    main()
