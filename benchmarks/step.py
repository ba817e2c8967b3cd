"""Steps a second of one transition, three ways side by side in one run.

    python benchmarks/step.py [--joints 2 6 12 19] [--batch 2048] [--repeats 7]

* ours: y = M^{-1/2}u by a Chebyshev series, float32, a batch of environments;
* eigh: the same step with M^{-1/2} from a batched eigendecomposition, float32, the same batch;
* numpy: the equations in plain NumPy float64, one environment.

Each is a whole step: drift, input, noise, stage cost. The three take turns, and the table gives
the median of the ratios of neighbouring turns, so that a machine that drifts does not decide.
Compilation is reported apart.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Callable

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # small products are fastest on one thread

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from cojax import inverse_sqrt, linalg
from cojax import system as systems
from cojax.families import ConverseArm
from cojax.quadratic import QuadraticGaussian

STEPS = 64


@struct.dataclass
class EighInverseSqrt(inverse_sqrt.InverseSqrt):
    """M^{-1/2} u from an eigendecomposition of M at every state: what the series replaces."""

    A: jax.Array
    name = "eigh"

    def __call__(self, D, u):
        M = self.A + jax.vmap(D)(jnp.eye(u.shape[-1], dtype=u.dtype))
        w, V = jnp.linalg.eigh(M)
        x = jnp.matmul(u, V, precision=linalg.HIGHEST) / jnp.sqrt(w)
        return jnp.matmul(V, x, precision=linalg.HIGHEST)


@jax.jit
def rollout(system: QuadraticGaussian, s: jax.Array, a: jax.Array, key: jax.Array):
    """STEPS steps of a batch under fixed actions; the state is pulled back so that it stays put."""

    def one(s, a, key):
        cost = system.stage_cost(s, a)
        return systems.step(system, s, a, key), cost

    def body(carry, key):
        s, total = carry
        s, cost = jax.vmap(one)(s, a, jax.random.split(key, s.shape[0]))
        return (jnp.clip(s, -3.0, 3.0), total + cost), None

    keys = jax.random.split(key, STEPS)
    return jax.lax.scan(body, (s, jnp.zeros(s.shape[0])), keys)[0]


def numpy_environment(system: QuadraticGaussian) -> Callable[[int], float]:
    """The arm's equations, one state, float64; returns a function that times some steps."""
    g = system.geometry
    n, d = g.n, 2 * g.n  # pyright: ignore
    P, Q, R = (linalg.to_full(np.asarray(x)) for x in (system.P, system.Q, system.R))
    gamma, p = float(system.gamma), float(system.p)
    alpha0, beta0, k1, k2, g0 = (
        float(x)
        for x in (g.alpha0, g.beta0, g.kappa1, g.kappa2, g.g0)  # pyright: ignore
    )
    root = linalg.sqrt_psd(P - Q)
    std = np.sqrt(np.asarray(system.noise.covariance()))
    rng = np.random.default_rng(0)

    def step(s: np.ndarray, a: np.ndarray) -> tuple[np.ndarray, float]:
        theta, omega = s[0::2], s[1::2]
        gs = np.zeros((d, n))
        gs[np.arange(1, d, 2), np.arange(n)] = np.cos(theta)
        Pg = P @ gs
        H = gamma * (P - gamma * p**2 * Pg @ np.linalg.solve(R + gamma * p**2 * gs.T @ Pg, Pg.T))
        w, V = np.linalg.eigh(0.5 * (H + H.T))
        x = root @ s
        for i in range(n):
            angle = alpha0 * p * np.tanh(k1 * theta[i] * omega[i]) + g0 * p * np.sin(theta[i])
            c, sn = np.cos(angle), np.sin(angle)
            x[2 * i], x[2 * i + 1] = (
                c * x[2 * i] - sn * x[2 * i + 1],
                sn * x[2 * i] + c * x[2 * i + 1],
            )
        for i in range(n - 1):
            angle = beta0 * p * np.tanh(k2 * (theta[i + 1] - theta[i]))
            c, sn, u, v = np.cos(angle), np.sin(angle), x[2 * i + 1], x[2 * i + 3]
            x[2 * i + 1], x[2 * i + 3] = c * u - sn * v, sn * u + c * v
        drift = V @ ((V.T @ x) / np.sqrt(w))
        cost = s @ Q @ s + a @ R @ a
        return drift + p * gs @ a + std * rng.normal(size=d), float(cost)

    def timed(steps: int) -> float:
        s, a = rng.uniform(-1.0, 1.0, d), np.zeros(n)
        start = time.perf_counter()
        for _ in range(steps):
            s, _ = step(s, a)
            s = np.clip(s, -3.0, 3.0)
        return steps / (time.perf_counter() - start)

    return timed


def compare(n: int, batch: int, repeats: int) -> dict[str, float]:
    """Medians of steps a second, of ratios, and compile seconds for an arm of n joints."""
    system = ConverseArm.build(n, 0.8, dtype=jnp.float32)
    variants = {
        "ours": system,
        "eigh": QuadraticGaussian(**{**vars(system), "inverse_sqrt": EighInverseSqrt(system.M0)}),
    }
    key = jax.random.key(0)
    s = jax.random.uniform(key, (batch, 2 * n), minval=-1.0)
    a = jnp.zeros((batch, n))
    row: dict[str, float] = {"joints": n}
    for name, variant in variants.items():
        start = time.perf_counter()
        compiled = rollout.lower(variant, s, a, key).compile()
        row[f"{name}_compile_s"] = time.perf_counter() - start
        variants[name] = (compiled, variant)
        jax.block_until_ready(compiled(variant, s, a, key))
    environment = numpy_environment(system)
    environment(50)
    rates: dict[str, list[float]] = {"ours": [], "eigh": [], "numpy": []}
    for _ in range(repeats):
        for name, (compiled, variant) in variants.items():
            start = time.perf_counter()
            jax.block_until_ready(compiled(variant, s, a, key))
            rates[name].append(STEPS * batch / (time.perf_counter() - start))
        rates["numpy"].append(environment(200))
    for name, values in rates.items():
        row[name] = statistics.median(values)
    for name in ("eigh", "numpy"):
        ratios = [x / y for x, y in zip(rates["ours"], rates[name], strict=True)]
        row[f"vs_{name}"] = statistics.median(ratios)
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--joints", type=int, nargs="+", default=[2, 6, 12, 19])
    parser.add_argument("--batch", type=int, default=2048)
    parser.add_argument("--repeats", type=int, default=7)
    options = parser.parse_args()
    print(f"{jax.devices()[0].device_kind}, batch {options.batch}, float32; steps a second")
    print("joints        ours        eigh    numpy   ours/eigh  ours/numpy   compile s")
    for n in options.joints:
        row = compare(n, options.batch, options.repeats)
        print(
            f"{n:6d}  {row['ours']:10.3g}  {row['eigh']:10.3g} {row['numpy']:8.3g}  "
            f"{row['vs_eigh']:10.1f}  {row['vs_numpy']:10.1f}  {row['ours_compile_s']:10.2f}"
        )


if __name__ == "__main__":
    main()
