"""Does the evaluation measure rightly on this machine? Canaries whose gaps and order are known.

On NVDEx the dithered oracle has the gap std² tr(B)(1-γᵀ)/(1-γ) from every state; the oracle has
none; a detuned oracle is the worse the further its factor is from 1, and factor 0 is the zero
policy.
"""

from __future__ import annotations

import os
import time
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from scipy import stats

import cojax
from cojax import precision, streams
from cojax.envs import EnvParams
from cojax.evaluation.evaluator import evaluate
from cojax.evaluation.intervals import interval_of_mean
from cojax.evaluation.result import Evaluation

GOLDEN_STREAMS = "28183afd132689dc"
DITHER = (0.02, 0.05, 0.1)
POLICIES = (
    "oracle",
    *(f"dithered-oracle:{std:g}" for std in DITHER),
    "detuned-oracle:0.8",
    "detuned-oracle:0.5",
    "zero",
)
NUM_STEPS = 100
REPEATS, TRIALS = 200, 32  # of the coverage check
FALSE_ALARM = 1e-4  # probability that one statistical check fails on a sound machine


class Finding(NamedTuple):
    """One check: what was found, what was expected, and whether it holds."""

    check: str
    found: str
    expected: str
    passed: bool


def examine() -> list[Finding]:
    """Run every check; under two minutes on two cores, compilation included."""
    start = time.perf_counter()
    fingerprint = streams.fingerprint()
    findings = [
        Finding("streams", fingerprint, GOLDEN_STREAMS, fingerprint == GOLDEN_STREAMS),
        _matrix_products(),
    ]
    with precision.x32():
        vehicle = cojax.make("NVDEx-v0", preset="easy")[1]
        arm = cojax.make("ConverseArm-v0", n=2, p=0.8, seed=7)[1]
    on_vehicle = evaluate(POLICIES, vehicle, REPEATS * TRIALS, num_steps=NUM_STEPS)
    on_arm = evaluate(POLICIES, arm, 128, num_steps=NUM_STEPS)
    for name, result in (("NVDEx", on_vehicle), ("ConverseArm", on_arm)):
        findings += [_oracle(name, result), _order(name, result)]
    findings += _known_gaps(vehicle, on_vehicle)
    findings += [_coverage(vehicle, on_vehicle), _against_float64(on_vehicle)]
    seconds = time.perf_counter() - start
    return [*findings, Finding("time", f"{seconds:.0f} s", "under 120 s", seconds < 120.0)]


def machine() -> dict[str, str]:
    """Backend, device, memory and versions, in words."""
    device = jax.devices()[0]
    memory = getattr(device, "memory_stats", lambda: None)() or {}
    if "bytes_limit" in memory:
        size = f"{memory['bytes_limit'] / 2**30:.1f} GiB on the device"
    elif hasattr(os, "sysconf"):
        pages = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        size = f"{pages / 2**30:.1f} GiB"
    else:
        size = "unknown"
    return {
        "backend": jax.default_backend(),
        "device": f"{len(jax.devices())} × {device.device_kind}",
        "cores": str(os.cpu_count()),
        "memory": size,
        "jax": jax.__version__,
        "cojax": cojax.__version__,
    }


def dithered_gap(params: EnvParams, std: float, num_steps: int) -> float:
    """std² tr(B)(1 - γᵀ)/(1 - γ), exact where B does not depend on the state."""
    system = params.system
    origin, eye = jnp.zeros(system.state_dim), jnp.eye(system.action_dim)
    trace = float(jax.vmap(lambda a: system.excess_cost(origin, a))(eye).sum())
    gamma = float(system.gamma)
    return std**2 * trace * (1.0 - gamma**num_steps) / (1.0 - gamma)


def _matrix_products() -> Finding:
    x = np.random.default_rng(0).normal(size=(2, 64, 64)).astype(np.float32)
    product = jnp.matmul(x[0], x[1], precision=jax.lax.Precision.HIGHEST)
    error = np.abs(np.asarray(product, np.float64) - x[0].astype(np.float64) @ x[1])
    relative = float(error.max() / np.sqrt(64.0))
    return Finding("matrix products", f"error {relative:.1e}", "at most 2e-06", relative <= 2e-6)


def _gaps(result: Evaluation, policy: str) -> np.ndarray:
    return result.trials["suboptimality"][0, POLICIES.index(policy)]


def _oracle(name: str, result: Evaluation) -> Finding:
    worst = float(_gaps(result, "oracle").max())
    return Finding(f"oracle on {name}", f"gap {worst:g}", "exactly 0", worst == 0.0)


def _order(name: str, result: Evaluation) -> Finding:
    ladders = (("oracle", *POLICIES[1:4]), ("oracle", *POLICIES[4:]))
    means = [[float(_gaps(result, policy).mean()) for policy in ladder] for ladder in ladders]
    passed = all(np.all(np.diff(ladder) > 0.0) for ladder in means)
    found = "; ".join(" < ".join(f"{m:.3g}" for m in ladder) for ladder in means)
    return Finding(f"order on {name}", found, "increasing: dithered, detuned to zero", passed)


def _known_gaps(params: EnvParams, result: Evaluation) -> list[Finding]:
    findings = []
    for std in DITHER:
        x = _gaps(result, f"dithered-oracle:{std:g}")
        exact = dithered_gap(params, std, NUM_STEPS)
        allowed = stats.norm.isf(FALSE_ALARM / 2) * x.std(ddof=1) / np.sqrt(x.size)
        findings.append(
            Finding(
                f"gap of dither {std:g}",
                f"{x.mean():.6g}",
                f"{exact:.6g} ± {allowed:.1g}",
                bool(abs(x.mean() - exact) <= allowed),
            )
        )
    return findings


def _coverage(params: EnvParams, result: Evaluation) -> Finding:
    x = _gaps(result, "dithered-oracle:0.05").reshape(REPEATS, TRIALS)
    exact = dithered_gap(params, 0.05, NUM_STEPS)
    interval = interval_of_mean(x, num_resamples=2000)
    hits = int(np.sum((interval.low <= exact) & (exact <= interval.high)))
    low, high = stats.binom.ppf([FALSE_ALARM / 2, 1 - FALSE_ALARM / 2], REPEATS, 0.95)
    return Finding(
        "coverage of 95% intervals",
        f"{hits} of {REPEATS}, {TRIALS} trials each",
        f"{low:.0f} to {high:.0f}",
        bool(low <= hits <= high),
    )


def _against_float64(single: Evaluation) -> Finding:
    with precision.x64():
        params = cojax.make("NVDEx-v0", preset="easy")[1]
    double = evaluate(POLICIES, params, 64, num_steps=NUM_STEPS)
    error = 0.0
    for policy in POLICIES[1:]:
        exact = _gaps(double, policy)
        error = max(error, float(np.max(np.abs(_gaps(single, policy)[:64] - exact) / exact)))
    return Finding(
        "float32 against float64",
        f"{error:.1e} of a gap",
        "above 0, at most 1e-04",
        0.0 < error <= 1e-4,
    )
