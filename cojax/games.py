"""From a quadratic system to the game that is played on it: checked, and derived in float64.

What a game is, and the equations, are in :mod:`cojax.zero_sum`.
"""

from __future__ import annotations

import math
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import ArrayLike, DTypeLike

from cojax import errors, inputs, inverse_sqrt, linalg, precision
from cojax.errors import InputError
from cojax.kinematic import KinematicGaussian
from cojax.memory import as_stated, statement
from cojax.quadratic import QuadraticGaussian
from cojax.types import Options
from cojax.zero_sum import Adversary, Answer, Game, Split, require_known

ACTUATORS = "g"  # h = p g(s)


def game(
    system: QuadraticGaussian,
    *,
    h: ArrayLike | str,
    Gamma: ArrayLike,
    adversary: Adversary = "optimal",
    dtype: DTypeLike | None = None,
) -> Game:
    """The game on a ``system`` of the paper's class, of any family.

    Args:
        system: S, P, Q, R, γ, p and w are taken from it.
        h: (d, k), what a disturbance does to the state; "g" for p g(s), by the actuators. For a
            system with kinematics its rows of angles are 0.
        Gamma: Γ ≻ 0, the price of disturbances: a number, (k,) or (k, k).
        adversary: who plays the disturbance, "optimal" or "myopic". A disturbance that stays away
            ("none") leaves a problem whose optimum is not known: see
            :func:`cojax.evaluation.games.nominal`.
        dtype: of the leaves; by default that of the system.

    With h = 0 all of it is the system's own, to the bit. Raises InputError, one line with the
    number, unless Γ ≻ γ hᵀP h at every state, Q ⪰ βP with β > λ, and (1 - β)/(1 - λ) < γ; and for a
    system with a limit, actuators or noise of its own class.
    """
    stated = statement("game", system, dtype)
    if type(system) not in (QuadraticGaussian, KinematicGaussian):
        raise InputError(f"game: expected no system of a class of its own, got {system!r}")
    require_known(adversary)
    system = as_stated(system, stated)
    matrix = _matrix(system, h, stated)
    k = system.action_dim if matrix is None else matrix.shape[1]
    Gamma = inputs.positive_definite("Gamma", Gamma, k)
    margin = stated["gamma"] * _largest(Gamma, stated, matrix)
    _require_saddle(margin, stated)
    cast = partial(linalg.to_device, dtype=system.gamma.dtype)
    price = linalg.to_full(linalg.inverse_spd(Gamma))
    if matrix is None:
        strategy = -linalg.to_full(stated["R"]) @ price
        answer = _reply(Gamma, stated, margin, system.gamma.dtype)
    else:
        ahead = stated["gamma"] * linalg.to_full(stated["P"]) @ matrix
        strategy = ahead @ price
        B_d = linalg.to_full(Gamma) - ahead.T @ matrix
        answer = cast(np.linalg.solve(B_d, ahead.T).T) if matrix.any() else None
    return Game(
        parts=(_inner(system, stated, matrix, Gamma=Gamma, margin=margin),),
        gamma=system.gamma,
        offset=system.offset,
        Gamma=cast(Gamma),
        h=None if matrix is None else cast(matrix),
        strategy=cast(strategy),
        answer=answer,
        margin=cast(margin),
        adversary=adversary,
    )


def _inner(
    system: QuadraticGaussian,
    stated: Options,
    matrix: np.ndarray | None,
    *,
    Gamma: np.ndarray,
    margin: float,
) -> QuadraticGaussian:
    """The system with the game's M, its own where h = 0; ``margin`` is λ, ``matrix`` h."""
    if matrix is not None and not matrix.any():
        return system
    p, geometry, dtype = stated["p"], stated["geometry"], system.gamma.dtype
    kinematic = isinstance(system, KinematicGaussian)
    P, Gamma_inverse = linalg.to_full(stated["P"]), linalg.inverse_spd(Gamma)
    if kinematic:
        P = P[1::2, 1::2]
    M0 = linalg.inverse_spd(inputs.symmetric("P", 0.5 * (P + P.T), len(P))) / stated["gamma"]
    low, high = linalg.extreme_eigenvalues(M0)
    authority = linalg.inverse_spd(inputs.symmetric("R", stated["R"], system.action_dim))
    constant, changes = None, {}
    if matrix is None:
        authority = linalg.subtract(authority, Gamma_inverse)
        changes["authority"] = linalg.to_device(authority, dtype)
    else:
        h = matrix[1::2] if kinematic else matrix
        M0 = linalg.to_full(M0) - h @ linalg.to_full(Gamma_inverse) @ h.T
        if geometry.constant_input:
            constant = geometry.constant_D(p, authority)
    high += (p * geometry.input_norm()) ** 2 * max(0.0, linalg.extreme_eigenvalues(authority)[1])
    root = inverse_sqrt.choose(M0, (1.0 - margin) * low, high, dtype, constant_D=constant)
    return inputs.swapped(system, inverse_sqrt=root, **changes)


def _reply(Gamma: np.ndarray, stated: Options, margin: float, dtype: DTypeLike) -> Answer | Split:
    """The shorter of two series, the second where every action drives a row of its own and Γ is
    diagonal; ``margin`` is λ. Bounds of spectra are rounded up to a power of two, from 1/16 on to
    sixteenths, so that games of like λ share one shape.
    """
    geometry, cast = stated["geometry"], partial(linalg.to_device, dtype=dtype)
    high, driven = _rounded_up(margin), None
    c = _series(0.5 * high, 0.5 * high, dtype)
    c[0] -= 1.0
    if geometry.one_row_each:
        with precision.x64():
            most = np.asarray(geometry.largest_input(np.float64))
        rows, most = np.argmax(most, axis=1), most.max(axis=1)
        driven = linalg.to_full(stated["P"])[np.ix_(rows, rows)]
        driven = stated["gamma"] * stated["p"] ** 2 * driven
        if Gamma.ndim == 1:
            own = np.diagonal(driven).copy()
            others, scale = driven - np.diag(own), most / np.sqrt(Gamma - most**2 * own)
            r = float(np.linalg.norm(scale[:, None] * np.abs(others) * scale, 2))
            if r < 0.9 and len(shorter := _series(0.0, _rounded_up(r), dtype)) < len(c):
                return Split(
                    coefficients=cast(shorter),
                    twice_t_A=cast(np.zeros(len(own))),
                    twice_t_D=cast(2.0 / _rounded_up(r)),
                    price=cast(Gamma),
                    own=cast(own),
                    others=cast(others),
                )
    return Answer(
        coefficients=cast(c),
        twice_t_A=cast(np.full(len(Gamma), -2.0)),
        twice_t_D=cast(4.0 / high),
        root=cast(linalg.sqrt_psd(Gamma)),
        unroot=cast(linalg.inverse_sqrt_spd(Gamma)),
        ahead=None if driven is None else cast(driven),
    )


def _rounded_up(x: float) -> float:
    """To a power of two, from 1/16 on to a sixteenth, or half the way to 1."""
    x = max(x, 2.0**-20)
    step = 0.0625 if x > 0.0625 else 2.0 ** math.ceil(math.log2(x))
    return min(step * math.ceil(x / step), 0.5 * (1.0 + x))


def _series(middle: float, half: float, dtype: DTypeLike) -> np.ndarray:
    """Chebyshev coefficients of 1/(1 - x), |x - middle| <= half, to half a rounding of ``dtype``:
    c_j = 2 ϱ^j/l for j >= 1 with l² = (1 - middle)² - half² and ϱ = (1 - middle - l)/half (Mason
    and Handscomb, Chebyshev Polynomials, 2003, sec. 5.2).
    """
    low = math.sqrt((1.0 - middle) ** 2 - half**2)
    rho = half / (1.0 - middle + low)
    tolerance = 0.25 * float(np.finfo(dtype).eps) * low * (1.0 - rho)
    c = 2.0 / low * rho ** np.arange(max(2, math.ceil(math.log(tolerance) / math.log(rho))))
    c[0] *= 0.5
    return c


def _matrix(system: QuadraticGaussian, h: ArrayLike | str, stated: Options) -> np.ndarray | None:
    """h, (d, k); None for p g(s) where it depends on the state. Raises InputError."""
    d, geometry = system.state_dim, stated["geometry"]
    if isinstance(h, str):
        errors.one_of("h", h, (ACTUATORS,))
        if not geometry.constant_input:
            return None
        with precision.x64():
            eye = jnp.eye(system.action_dim)
            push = jax.vmap(lambda a: geometry.actuate(jnp.zeros(d), a))
            return stated["p"] * np.asarray(push(eye)).T
    matrix = np.asarray(h, np.float64)
    if matrix.ndim != 2 or len(matrix) != d or not matrix.size or not np.isfinite(matrix).all():
        raise InputError(f"h: expected finite numbers of shape ({d}, k), got {matrix.shape}")
    if isinstance(system, KinematicGaussian) and matrix[0::2].any():
        raise InputError("h: expected zeros in the rows of angles, which true kinematics decide")
    return matrix


def _largest(Gamma: np.ndarray, stated: Options, matrix: np.ndarray | None) -> float:
    """sup_s λmax(Γ⁻¹hᵀP h), or a bound of it; ``matrix`` is h, or None for p g(s).

    Where every action drives a row of its own, |g(s)| entry by entry is at most the family's
    largest, and λmax is convex in the entries: the largest g(s) decides, for a diagonal Γ. Else
    |p g|₂² λmax(P) λmax(Γ⁻¹) bounds it.
    """
    P, geometry, p = linalg.to_full(stated["P"]), stated["geometry"], stated["p"]
    unroot = linalg.inverse_sqrt_spd(Gamma)
    scale = linalg.to_full(unroot)
    largest = matrix
    if largest is None:
        if not geometry.one_row_each or unroot.ndim > 1:
            bound = (p * geometry.input_norm()) ** 2 * linalg.extreme_eigenvalues(P)[1]
            return float(bound * np.linalg.norm(scale, 2) ** 2)
        with precision.x64():
            largest = p * np.asarray(geometry.largest_input(np.float64)).T
    inside = scale @ largest.T @ P @ largest @ scale
    return max(0.0, float(np.linalg.eigvalsh(0.5 * (inside + inside.T))[-1]))


def _require_saddle(margin: float, stated: Options) -> None:
    """Raise InputError unless λ < 1, λ < β and (1 - β)/(1 - λ) < γ; ``margin`` is λ."""
    gamma = stated["gamma"]
    beta = linalg.largest_share(stated["Q"], linalg.to_full(stated["P"]))
    if not margin < 1.0:
        raise InputError(
            "Gamma: expected Γ ≻ γ hᵀP h at every state, without which the disturbance gains "
            f"without end, got λ = γ sup λmax(Γ⁻¹hᵀP h) = {margin:.6g}; expected λ < 1"
        )
    if not margin < beta:
        raise InputError(
            f"Gamma: expected λ = γ sup λmax(Γ⁻¹hᵀP h) < β, where Q ⪰ βP, got λ = {margin:.6g} "
            f"and β = {beta:.6g}"
        )
    if not (loop := (1.0 - beta) / (1.0 - margin)) < gamma:
        raise InputError(
            f"Q: expected (1 - β)/(1 - λ) < γ = {gamma:.6g}, which bounds the state at the saddle "
            f"point, got {loop:.6g} from β = {beta:.6g} and λ = {margin:.6g}"
        )
