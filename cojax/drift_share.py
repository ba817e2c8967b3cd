"""How much a given drift leaves of sᵀP s: 1 - sup_s fᵀW f/sᵀP s, for the W of what f is paid.

Where f(s) = A s with A in the convex hull of known matrices, the supremum is at most the largest
eigenvalue of AᵀW A against P over the corners, since sᵀAᵀW A s is convex in A: a proof, which costs
one small eigenvalue problem a corner. Else it is looked for: 8,192 states of a box, half of them
near the origin, and a climb along the gradient from the 64 that have most.
"""

from __future__ import annotations

from typing import Protocol

import jax
import jax.numpy as jnp
import numpy as np

from cojax import linalg, precision
from cojax.errors import InputError
from cojax.linalg import quadratic_form
from cojax.types import Array, Float

HULL, SAMPLED = "hull", "sampled"
SAMPLES, CLIMBERS, CLIMBS = 8192, 64, 60
ROUNDING = 1e-9  # of shares


class Drift(Protocol):
    """What is asked of a family: see :class:`cojax.free_drift.DriftFamily`."""

    @property
    def state_dim(self) -> int:
        """d."""
        ...

    def drift(self, s: Float[Array, "d"]) -> Float[Array, "d"]:
        """f(s)."""
        ...

    def hull(self) -> Float[np.ndarray, "k d d"] | None:
        """The corners."""
        ...

    def domain(self) -> Float[np.ndarray, "d"]:
        """The box."""
        ...


def shares(hull: np.ndarray, spent: np.ndarray, P: np.ndarray) -> Float[np.ndarray, "k"]:
    """The largest AᵀWA/P of each corner of a ``hull``, W what is ``spent`` of f."""
    root = linalg.to_full(linalg.inverse_sqrt_spd(P))
    turned = root @ np.swapaxes(hull, 1, 2) @ spent @ hull @ root
    return np.linalg.eigvalsh(0.5 * (turned + np.swapaxes(turned, 1, 2)))[:, -1]


def left(geometry: Drift, P: np.ndarray, spent: np.ndarray, *, beta: float) -> tuple[float, str]:
    """What the drift of a ``geometry`` leaves, W being ``spent``, (d, d), and how it is known:
    "hull" or "sampled". Raises InputError, one line, where that is below ``beta``, where f(0) is
    not 0, and for a hull that does not hold the drift.
    """
    with precision.x64():
        at_origin = np.abs(np.asarray(geometry.drift(jnp.zeros(geometry.state_dim)))).max()
    if not at_origin <= ROUNDING:
        raise InputError(f"drift: expected f(0) = 0, got {at_origin:.3g}")
    most, worst = _searched(geometry, P, spent)
    hull = geometry.hull()
    shown, where = SAMPLED, f"s = {_words(worst)}"
    if hull is not None:
        found = shares(hull, spent, P)
        corner = int(np.argmax(found))
        if most > found[corner] * (1.0 + ROUNDING) + ROUNDING:
            raise InputError(
                f"hull: expected one around the drift, got fᵀWf = {most:.6g} sᵀP s at {where}, "
                f"and {found[corner]:.6g} at the corners"
            )
        root = linalg.to_full(linalg.inverse_sqrt_spd(P))
        A = hull[corner] @ root
        direction = root @ np.linalg.eigh(A.T @ spent @ A)[1][:, -1]
        direction = direction / np.abs(direction).max()
        most, shown = float(found[corner]), HULL
        where = f"corner {corner} of the drift's hull along s = {_words(direction)}"
    if not 1.0 - most >= beta:
        raise InputError(
            f"drift: expected to leave q >= {beta:g} sᵀP s, got {1.0 - most:.4g} sᵀP s at {where}; "
            "more damping, a smaller gamma or R, or another P leave more"
        )
    return 1.0 - most, shown


def _words(s: np.ndarray) -> str:
    return "[" + ", ".join(f"{x:.3g}" for x in s) + "]"


def _searched(
    geometry: Drift, P: np.ndarray, spent: np.ndarray
) -> tuple[float, Float[np.ndarray, "d"]]:
    """The largest fᵀ spent f/sᵀP s that was found in the family's domain, and where."""
    rng = np.random.default_rng(0)
    domain = geometry.domain()
    sizes = 10.0 ** rng.uniform(-3.0, 0.0, (SAMPLES, 1))
    sizes[: SAMPLES // 2] = 1.0
    points = sizes * rng.uniform(-1.0, 1.0, (SAMPLES, len(domain))) * domain
    with precision.x64():
        geometry = jax.tree.map(lambda x: jnp.asarray(x, jnp.float64), geometry)
        most, where = _climbed(geometry, P, spent, points=points, domain=domain)
        return float(most), np.asarray(where)


@jax.jit
def _climbed(
    geometry: Drift, P: jax.Array, spent: jax.Array, *, points: jax.Array, domain: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """The largest share of all points, and of a climb from those that have most, in the box."""

    def share(s):
        f, energy = geometry.drift(s), quadratic_form(P, s)
        return quadratic_form(spent, f) / jnp.where(energy > 0.0, energy, 1.0)

    def climb(s, size):
        def up(_, carry):
            s, size, best = carry
            slope = jax.grad(share)(s) * domain
            to = s + size * domain * slope / jnp.maximum(jnp.linalg.norm(slope), 1e-300)
            to = jnp.clip(to, -domain, domain)
            found = share(to)
            better = found > best
            s, best = jnp.where(better, to, s), jnp.where(better, found, best)
            return s, jnp.where(better, 1.5 * size, 0.5 * size), best

        return jax.lax.fori_loop(0, CLIMBS, up, (s, size, share(s)))

    found = jax.vmap(share)(points)
    _, first = jax.lax.top_k(found, CLIMBERS)
    s, _, best = jax.vmap(climb, (0, None))(points[first], 0.1)
    top = jnp.argmax(best)
    return best[top], s[top]
