"""Does the evaluation measure rightly on this machine? Canaries whose gaps and order are known.

On NVDEx the dithered oracle has the gap std² tr(B)(1-γᵀ)/(1-γ) from every state; the oracle has
none; a detuned oracle is the worse the further its factor is from 1, and factor 0 is the zero
policy. Of each further class of problems one shipped fixture is looked at: the oracle has no gap,
others have, and where B does not depend on the state the dithered oracle's is known.
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
from cojax.evaluation.risk import risk_gap
from cojax.fixtures import load_fixture
from cojax.risk import RiskSensitive

GOLDEN_STREAMS = "28183afd132689dc"
DITHER = (0.02, 0.05, 0.1)
POLICIES = (
    "oracle",
    *(f"dithered-oracle:{std:g}" for std in DITHER),
    "detuned-oracle:0.8",
    "detuned-oracle:0.5",
    "zero",
)
CLASSES = {  # a shipped fixture of each
    "a box of actions": "arm-n4-box",
    "a ball of actions": "nvdex-k1-ball",
    "Student-t noise": "arm-n4-student-t",
    "noise in gusts": "nvdex-k1-gusts",
    "impulses": "arm-n2-impulses",
    "uniform noise": "point-mass-uniform",
    "noise of actuators": "arm-n4-action-noise",
    "noise that grows with the state": "unicycle-state-noise",
    "noise in columns": "arm-n2-columns",
    "true kinematics": "kinematic-arm-n2",
    "cubic actuators": "planar-aerial",
    "sparse actions": "sparse-arm-n2",
    "a value with wells": "wells-arm-n1",
    "a value of fourth order": "quartic-arm-n2",
    "glued quadratics": "glued-n2",
    "a price on the rate of actions": "nvdex-k1-action-rate",
    "delayed actions": "nvdex-k1-delay",
    "modes that jump": "nvdex-k1-jump",
    "a correlated disturbance": "point-mass-wind",
    "a last step": "arm-n2-finite",
    "the average cost": "arm-n2-average",
    "ends by chance": "arm-n2-ending",
    "given drifts": "pendulums-n2",
    "listed actions": "pendulums-n1-list",
    "an opponent": "arm-n2-game",
    "a budget": "isotropic-n2",
    "risk": "arm-n2-risk-averse",
}
HIDDEN = {  # of which the agent does not see all
    "a hidden disturbance": "point-mass-hidden",
    "two hypotheses": "point-mass-two",
}
KNOWN = {"nvdex-k1-gusts", "nvdex-k1-action-rate", "nvdex-k1-delay"}  # gaps of a dithered oracle
DITHERED = ("dithered-oracle:0", f"dithered-oracle:{DITHER[1]:g}")  # one program each
DETUNED = ("detuned-oracle:1", "detuned-oracle:0.5", "detuned-oracle:0")
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
    """Run every check; about two minutes on two cores, compilation included."""
    start = time.perf_counter()
    fingerprint = streams.fingerprint()
    findings = [
        Finding("streams", fingerprint, GOLDEN_STREAMS, fingerprint == GOLDEN_STREAMS),
        _matrix_products(),
    ]
    with precision.x32():
        vehicle = cojax.make("NVDEx-v0", preset="easy")[1]
        arm = cojax.make("ConverseArm-v0", n=2, p=0.8, seed=7)[1]
    on_vehicle = _gaps(vehicle, REPEATS * TRIALS)
    for name, gaps in (("NVDEx", on_vehicle), ("ConverseArm", _gaps(arm, 128))):
        findings += _order(name, gaps)
    for std in DITHER:
        x = on_vehicle[f"dithered-oracle:{std:g}"]
        findings.append(_known(f"gap of dither {std:g}", x, dithered_gap(vehicle, std, NUM_STEPS)))
    findings += [_class(*row) for row in (CLASSES | HIDDEN).items()]
    findings += [_coverage(vehicle, on_vehicle), _against_float64(on_vehicle)]
    seconds = time.perf_counter() - start
    return [*findings, Finding("time", f"{seconds:.0f} s", "about two minutes", True)]


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


def _gaps(params: EnvParams, num_trials: int) -> dict[str, np.ndarray]:
    """Of every trial, by policy."""
    gaps = evaluate(POLICIES, params, num_trials, num_steps=NUM_STEPS).trials["suboptimality"][0]
    return dict(zip(POLICIES, gaps, strict=True))


def _order(name: str, gaps: dict[str, np.ndarray]) -> list[Finding]:
    worst = float(gaps["oracle"].max())
    ladders = (("oracle", *POLICIES[1:4]), ("oracle", *POLICIES[4:]))
    means = [[float(gaps[policy].mean()) for policy in ladder] for ladder in ladders]
    passed = all(np.all(np.diff(ladder) > 0.0) for ladder in means)
    found = "; ".join(" < ".join(f"{m:.3g}" for m in ladder) for ladder in means)
    return [
        Finding(f"oracle on {name}", f"gap {worst:g}", "exactly 0", worst == 0.0),
        Finding(f"order on {name}", found, "increasing: dithered, detuned to zero", passed),
    ]


def _known(check: str, gaps: np.ndarray, exact: float) -> Finding:
    """The mean of ``gaps`` against what it is."""
    allowed = float(stats.norm.isf(FALSE_ALARM / 2) * gaps.std(ddof=1) / np.sqrt(gaps.size))
    told = f"{gaps.mean():.6g}", f"{exact:.6g} ± {allowed:.1g}"
    return Finding(check, *told, bool(abs(gaps.mean() - exact) <= allowed))


def _class(what: str, name: str) -> Finding:
    """The oracle and what has a gap on a fixture: with dither where that is known, else detuned."""
    with precision.x32():
        params = load_fixture(name).params
    policies = DITHERED if name in KNOWN else DETUNED
    if isinstance(params.system, RiskSensitive):
        cells = [row["risk_gap"] for row in risk_gap(policies, params, 128)]
        gaps = [np.array([cell]) for cell in cells if isinstance(cell, float)]
    else:
        found = evaluate(policies, params, 128, num_steps=NUM_STEPS, progress=None)
        gaps = list(found.trials["suboptimality"][0])
    told = f"gaps {', '.join(f'{gap.mean():.3g}' for gap in gaps)}"
    if len(gaps) < len(policies):
        told += ", others refused"  # of risk, where a few trials carry the estimate
    if gaps[0].any() or not all(gap.min() >= 0.0 < gap.mean() for gap in gaps[1:]):
        return Finding(what, told, "0 of the oracle, above 0 of others", False)
    if name in KNOWN:
        return _known(what, gaps[1], dithered_gap(params, DITHER[1], NUM_STEPS))
    return Finding(what, told, "0 of the oracle, above 0 of others", True)


def _coverage(params: EnvParams, gaps: dict[str, np.ndarray]) -> Finding:
    x = gaps["dithered-oracle:0.05"].reshape(REPEATS, TRIALS)
    exact = dithered_gap(params, 0.05, NUM_STEPS)
    interval = interval_of_mean(x, num_resamples=2000)
    hits = int(np.sum((interval.low <= exact) & (exact <= interval.high)))
    low, high = stats.binom.ppf([FALSE_ALARM / 2, 1 - FALSE_ALARM / 2], REPEATS, 0.95)
    told = f"{hits} of {REPEATS}, {TRIALS} trials each", f"{low:.0f} to {high:.0f}"
    return Finding("coverage of 95% intervals", *told, bool(low <= hits <= high))


def _against_float64(gaps: dict[str, np.ndarray]) -> Finding:
    with precision.x64():
        params = cojax.make("NVDEx-v0", preset="easy")[1]
    exact = _gaps(params, 64)
    error = max(
        float(np.max(np.abs(gaps[policy][:64] - exact[policy]) / exact[policy]))
        for policy in POLICIES[1:]
    )
    told = f"{error:.1e} of a gap", "above 0, at most 1e-04"
    return Finding("float32 against float64", *told, 0.0 < error <= 1e-4)
