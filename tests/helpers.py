"""What several tests need: systems to test on, plain NumPy references, relative errors."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from cojax import cli, linalg, precision
from cojax.families import FAMILIES, ConverseArm, NVDEx
from cojax.fixtures import shelf
from cojax.quadratic import QuadraticGaussian


def some_slow(cases: Iterable[Any], slow: Iterable[str]) -> list[Any]:
    """Parameters of a test, those whose words are in ``slow`` marked so."""
    slow = set(slow)
    return [pytest.param(x, marks=pytest.mark.slow) if str(x) in slow else x for x in cases]


GOLDEN_KEYS = ("alpha0", "beta0", "kappa1", "kappa2", "g0")


def scope(dtype: str) -> AbstractContextManager[Any]:
    """The precision scope of a dtype name."""
    return precision.x64() if dtype == "float64" else nullcontext()


def golden_system(entry: dict, **changes: Any) -> QuadraticGaussian:
    """The system of one golden entry, built from its stated matrices and knobs."""
    if entry["family"] == "ConverseArm":
        P = np.array(entry["P"])
        Sigma = np.tile([entry["sigma_theta"] ** 2, entry["sigma_omega"] ** 2], entry["n"])
        options = {
            "n": entry["n"],
            "P": P,
            "Q": entry["tau"] * P,
            "R": entry["r_u"],
            "Sigma": Sigma,
            **{k: entry[k] for k in GOLDEN_KEYS},
        }
    else:
        options = {
            "P": entry["P_diag"],
            "R": entry["r_u_v"],
            "Sigma": entry["Sigma_diag"],
            **{
                k: entry[k]
                for k in ("K", "r_v", "r_omega", "tau", "alpha", "kappa", "alpha_xy", "rho_target")
            },
        }
    options |= {"p": entry["p"], "gamma": entry["gamma"], **changes}
    return FAMILIES[entry["family"]].build(**options)


def random_spd(rng: np.random.Generator, d: int, condition: float = 20.0) -> np.ndarray:
    """A random symmetric positive definite matrix of a given condition number."""
    V = np.linalg.qr(rng.normal(size=(d, d)))[0]
    A = (V * np.geomspace(1.0 / condition, 1.0, d)) @ V.T
    return 0.5 * (A + A.T)


def general_arm(n: int = 3, seed: int = 0, **changes: Any) -> QuadraticGaussian:
    """An arm with full P, Q, R and a correlated singular Sigma: nothing diagonal to lean on."""
    rng = np.random.default_rng(seed)
    P, R = random_spd(rng, 2 * n), random_spd(rng, n, 4.0)
    Q = 0.1 * P + 0.02 * np.linalg.eigvalsh(P)[0] * np.eye(2 * n)
    L = 0.02 * rng.normal(size=(2 * n, n))
    return ConverseArm.build(n, **{"p": 0.7, "P": P, "Q": Q, "R": R, "Sigma": L @ L.T} | changes)


def general_vehicle(seed: int = 0, **changes: Any) -> QuadraticGaussian:
    """A vehicle with full P, R and correlated Sigma."""
    rng = np.random.default_rng(seed)
    P, R, L = random_spd(rng, 7), random_spd(rng, 2, 4.0), 0.02 * rng.normal(size=(7, 7))
    options = {"P": P, "Q": 0.15 * P, "R": R, "Sigma": L @ L.T, "r_v": 3, "p": 0.9}
    return NVDEx.build(1, **options | changes)


SYSTEMS = {
    "arm-authors": lambda **k: ConverseArm.build(3, 0.8, **k),
    "arm-one-joint": lambda **k: ConverseArm.build(1, 0.6, **k),
    "arm-sqrt": lambda **k: ConverseArm.build(3, 0.8, parameterization="sqrt", **k),
    "arm-general": lambda **k: general_arm(**k),
    "arm-ill-conditioned": lambda **k: general_arm(
        **{"P": random_spd(np.random.default_rng(3), 6, 1e5), "Q": 0.0} | k
    ),
    "nvdex-authors": lambda **k: NVDEx.build(2, preset="hard", **k),
    "nvdex-sqrt": lambda **k: NVDEx.build(1, parameterization="sqrt", **k),
    "nvdex-general": lambda **k: general_vehicle(**k),
}


def numpy_optimum(system: QuadraticGaussian, s: np.ndarray) -> dict[str, np.ndarray]:
    """Drift, optimal action and B from the paper's formulas, with inverses, in plain NumPy.

    f = H^{-1/2} u by an eigendecomposition of H, a* = -γ p B⁻¹ gᵀ P f. Only the rotation field
    and the input map are the system's own.
    """
    with precision.x64():
        g_geometry = system.geometry
        m = system.action_dim
        g = np.stack([np.asarray(g_geometry.actuate(s, e)) for e in np.eye(m)], axis=1)
        u = np.asarray(system.direction(s))
    P, R = (linalg.to_full(np.asarray(x)) for x in (system.P, system.R))
    gamma, p = float(system.gamma), float(system.p)
    B = R + gamma * p**2 * g.T @ P @ g
    H = gamma * (P - gamma * p**2 * P @ g @ np.linalg.solve(B, g.T @ P))
    w, V = np.linalg.eigh(0.5 * (H + H.T))
    drift = V @ ((V.T @ u) / np.sqrt(w))
    action = -gamma * p * np.linalg.solve(B, g.T @ P @ drift)
    return {"drift": drift, "action": action, "B": B, "H": H, "g": g, "u": u}


def relative(x: Any, reference: Any) -> float:
    """|x - reference| / |reference|, in the Euclidean norm of the whole vector."""
    x, reference = np.asarray(x, np.float64), np.asarray(reference, np.float64)
    return float(np.linalg.norm(x - reference) / np.linalg.norm(reference))


ARM = "arm-n2-p0.80-s7"


def source(name: str = ARM) -> str:
    """The file of a shipped fixture."""
    return shelf.find(name).read_text("utf-8")


def run(*arguments: str) -> tuple[int, str, str]:
    """Status and output of the command line."""
    result = CliRunner().invoke(cli.main, list(arguments))
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result.exit_code, result.stdout, result.stderr
