"""Whether the leaves of a system agree: for what no constructor can see."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from cojax import precision
from cojax.converse import Converse
from cojax.free_drift import FreeDrift
from cojax.kinematic import KinematicGaussian, KinematicGeometry, tolerance
from cojax.noise import covariance
from cojax.quadratic_gaussian import HATS, QuadraticGaussian
from cojax.types import Float

Residual = tuple[str, np.ndarray, np.ndarray]  # of a leaf: its equation's two sides apart, and size


def contradiction(system: QuadraticGaussian | FreeDrift) -> str | None:
    """Which leaf of a ``system``, or of a stacked batch, is not what it is derived to be; None
    where all agree within the rounding of their dtype. For what no constructor can see.
    """
    batch = np.ndim(system.gamma)
    if isinstance(system, FreeDrift):
        return _of_drift(system)

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
    found: list[Residual] = [
        ("P_minus_Q", difference - (P - Q), size["P"]),
        ("sqrt_P_minus_Q", root @ root - difference, d * size["P"]),
        ("R_inverse", R @ R_inverse - np.eye(m), m * inverse),
        ("M0", gamma[..., None, None] * ahead @ M0 - np.eye(d), d * size["ahead"] * size["M0"]),
    ]
    if isinstance(system, KinematicGaussian):
        found += _kinematic(system, P, P - Q, gamma=gamma[..., None, None])
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


def _of_drift(system: FreeDrift) -> str | None:
    """Which leaf of a system of a given drift is not what it is derived to be."""

    def full(name):
        x = np.asarray(getattr(system, name), np.float64)
        return x if x.ndim > np.ndim(system.gamma) + 1 else x[..., None] * np.eye(x.shape[-1])

    P, R, B, pull, spent = map(full, ("P", "R", "B", "pull", "spent"))
    gamma, offset = (np.asarray(x, np.float64) for x in (system.gamma, system.offset))
    factor = gamma[..., None, None]
    pushed = np.asarray(_pushed(system), np.float64)  # p g
    moved = np.swapaxes(pull, -1, -2)
    found = [
        ("pull", pull - factor * P @ pushed, P),
        ("B", B - R - np.swapaxes(pushed, -1, -2) @ pull, B),
    ]
    if system.gain is not None:
        gain = full("gain")
        found += [("gain", gain @ B - pull, B), ("spent", spent - factor * P + gain @ moved, P)]
    else:
        actions, prices = (np.asarray(x, np.float64) for x in (system.actions, system.prices))
        paid = np.sum((actions @ B) * actions, axis=-1)
        found += [("spent", spent - factor * P, P)]
        found += [("prices", (prices - paid)[..., None], paid[..., None])]
    Sigma = covariance(system.noise)
    if Sigma is not None:
        priced = gamma / (1.0 - gamma) * np.sum(P * Sigma, (-2, -1))
        scale = np.sum(np.abs(P * Sigma), (-2, -1)) * gamma / (1.0 - gamma) ** 2
        found.append(("offset", (offset - priced)[..., None, None], scale[..., None, None]))
    rounding = 32.0 * P.shape[-1] * float(np.finfo(system.gamma.dtype).eps)
    for name, error, scale in found:
        if not (np.abs(error).max((-2, -1)) <= rounding * np.abs(scale).max((-2, -1))).all():
            return f"system.{name}: not what its other leaves give; use cojax.free_drift.build"
    return None


def _pushed(system: FreeDrift) -> np.ndarray:
    """p g, (..., d, m)."""

    def one(system):
        s = jnp.zeros(system.state_dim, system.gamma.dtype)
        return jax.vmap(lambda a: system.actuate(s, a))(jnp.eye(system.action_dim, dtype=s.dtype)).T

    for _ in np.shape(system.gamma):
        one = jax.vmap(one)
    double = system.gamma.dtype == np.float64
    with precision.x64() if double else precision.x32():
        return np.asarray(one(jax.tree.map(jnp.asarray, system)))


def _kinematic(
    system: KinematicGaussian,
    P: Float[np.ndarray, "*batch d d"],
    difference: Float[np.ndarray, "*batch d d"],
    *,
    gamma: np.ndarray,
) -> list[Residual]:
    """What :mod:`cojax.kinematic` derives: C, K's constant part and the roots of rem."""
    geometry = system.geometry
    assert isinstance(geometry, KinematicGeometry)
    leaves = (system.carried, system.energy, system.K0)
    carried, energy, K0 = (np.asarray(x, np.float64) for x in leaves)
    n, eye, step = K0.shape[-1], np.eye(P.shape[-1]), np.asarray(geometry.tau, np.float64)
    F = eye[0::2] + step[..., None, None] * eye[1::2]
    angles, rates, both = P[..., 0::2, 0::2], P[..., 1::2, 1::2], P[..., 0::2, 1::2]
    fixed, CF = np.swapaxes(F, -1, -2), np.swapaxes(carried, -1, -2)
    rem = difference - gamma * fixed @ (angles @ F + both @ CF)
    own = energy[..., 1:] if system.one_way is not None else energy
    rem = rem - own @ np.swapaxes(own, -1, -2)
    if system.one_way is not None:
        rem = rem - np.asarray(system.one_way, np.float64)
    size, of_K0 = np.abs(P).max((-2, -1)), np.abs(K0).max((-2, -1))
    dtype = system.gamma.dtype
    left_out = 1.0 + tolerance(dtype) / float(np.finfo(dtype).eps)
    return [
        ("carried", rates @ CF + np.swapaxes(both, -1, -2) @ F, 2 * n * size),
        ("K0", gamma * rates @ K0 - np.eye(n), n * size * of_K0),
        ("energy", rem, 2 * n * size * left_out),
    ]
