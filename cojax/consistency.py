"""Whether the leaves of a system agree: for what no constructor can see."""

from __future__ import annotations

import numpy as np

from cojax.converse import Converse
from cojax.noise import covariance
from cojax.quadratic import HATS, QuadraticGaussian


def contradiction(system: QuadraticGaussian) -> str | None:
    """Which leaf of a ``system``, or of a stacked batch, is not what it is derived to be; None
    where all agree within the rounding of their dtype. For what no constructor can see.
    """
    batch = np.ndim(system.gamma)

    def full(name):
        x = np.asarray(getattr(system, name), np.float64)
        return x if x.ndim > batch + 1 else x[..., None] * np.eye(x.shape[-1])

    P, M0, R_inverse = map(full, ("P", "M0", "R_inverse"))
    root, difference = map(full, ("sqrt_P_minus_Q", "P_minus_Q"))
    ahead, Q, R = (
        full(name if getattr(system, hat) is None else hat)
        for name, hat in zip(("P", "Q", "R"), HATS, strict=True)
    )
    gamma, offset = (np.asarray(x, np.float64) for x in (system.gamma, system.offset))
    rounding = 32.0 * float(np.finfo(system.gamma.dtype).eps)
    size = {name: np.abs(x).max((-2, -1)) for name, x in (("P", P), ("R", R), ("M0", M0))}
    size["ahead"] = np.abs(ahead).max((-2, -1))
    inverse = size["R"] * np.abs(R_inverse).max((-2, -1))
    d, m = P.shape[-1], R.shape[-1]
    found: list[tuple[str, np.ndarray, np.ndarray]] = [
        ("P_minus_Q", difference - (P - Q), size["P"]),
        ("sqrt_P_minus_Q", root @ root - difference, d * size["P"]),
        ("R_inverse", R @ R_inverse - np.eye(m), m * inverse),
        ("M0", gamma[..., None, None] * ahead @ M0 - np.eye(d), d * size["ahead"] * size["M0"]),
    ]
    Sigma = covariance(system.noise)
    if Sigma is not None and system.P_hat is None:
        priced = np.sum(P * Sigma, (-2, -1))
        if isinstance(system, Converse):
            priced = priced + np.asarray(system.rest, np.float64)
        weighted = gamma / (1.0 - gamma) * priced
        scale = gamma / (1.0 - gamma) ** 2 * np.sum(np.abs(P * Sigma), (-2, -1))
        found.append(("offset", (offset - weighted)[..., None, None], scale))
    for name, error, scale in found:
        if not (np.abs(error).max((-2, -1)) <= rounding * scale).all():
            return f"system.{name}: not what its other leaves give; use cojax.rebuild to change one"
    return None
