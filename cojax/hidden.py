"""Systems that a hidden disturbance pushes, from the paper's: what they are is in
:mod:`cojax.pushed`, which hidden laws there are in :mod:`cojax.belief`.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import ArrayLike, DTypeLike

from cojax import errors, inputs, linalg, precision
from cojax.belief import Constant, Filter, Kalman, prices_of_constant, stationary
from cojax.errors import InputError
from cojax.hypotheses import Hypotheses, prices_of_two
from cojax.markov_jump import chances
from cojax.memory import as_stated, statement
from cojax.pushed import Hidden, Shown
from cojax.quadratic import Geometry, QuadraticGaussian
from cojax.types import Float, Option, Options

SHOWN = ("state", "belief")
SETTLED = 1e-12  # of a step of the covariance's recursion, relative
VERTICES = 12  # actions up to which c0 is the supremum itself


def hidden_disturbance(
    system: QuadraticGaussian,
    effect: ArrayLike,
    *,
    transition: ArrayLike,
    Sigma_z: ArrayLike,
    Sigma_a: ArrayLike,
    start: ArrayLike = 0.0,
    observe: Shown = "state",
    dtype: DTypeLike | None = None,
) -> Hidden:
    """A ``system`` of any family that a hidden z' = Φ z + ε pushes by n = E z + w_a.

    Args:
        system: of the paper's class.
        effect: E, (m, h).
        transition: Φ, (h, h), (h,) or a number, of spectral radius below 1.
        Sigma_z: covariance of ε, (h, h), (h,) or a number.
        Sigma_a: covariance of w_a, (m, m), (m,) or a number.
        start: ẑ_0, (h,) or a number; z_0 ~ N(ẑ_0, Π), Π the filter's own.
        observe: "state", or "belief" for s and ẑ.
        dtype: of the leaves; by default that of the system.

    Raises InputError, one line, for what is not as stated, and where the optimum is not exact: w
    on rows that actions push, g(s) that is neither constant nor one row an action.
    """
    stated, E = _stated("hidden_disturbance", system, effect, dtype)
    h, (m, gamma) = E.shape[1], (E.shape[0], stated["gamma"])
    Phi = np.asarray(transition, np.float64)
    Phi = Phi if Phi.ndim == 2 else np.diag(inputs.vector("transition", Phi, h))
    if Phi.shape != (h, h) or not np.isfinite(Phi).all():
        raise InputError(
            f"transition: expected finite numbers of shape ({h}, {h}), got {Phi.shape}"
        )
    radius = float(np.abs(np.linalg.eigvals(Phi)).max())
    if radius >= 1.0:
        raise InputError(
            f"transition: expected a spectral radius below 1, got {radius:.6g}; a constant z is "
            "that of hidden_constant"
        )
    Sigma_e = linalg.to_full(inputs.positive_semidefinite("Sigma_z", Sigma_z, h))
    Sa = linalg.to_full(inputs.positive_semidefinite("Sigma_a", Sigma_a, m))
    Pi, S, L = stationary(Phi, E, Sigma_e, Sa)
    residual = np.abs(Phi @ Pi @ Phi.T + Sigma_e - L @ S @ L.T - Pi).max()
    if residual > SETTLED * max(np.abs(Pi).max(), 1e-300):
        raise InputError(f"Sigma_z: the filter's covariance did not settle, off by {residual:.3g}")
    first = inputs.vector("start", start, h)
    spread = np.linalg.solve(np.eye(h * h) - np.kron(Phi, Phi), Sigma_e.reshape(-1)).reshape(h, h)
    leaves: Options = _base(E, Sa) | {"transition": Phi.T, "gain": L.T, "S": S, "root_S": root(S)}
    leaves |= {"root_Pi": root(Pi), "root_e": root(Sigma_e), "start": first}
    leaves |= {"reach": np.sqrt(np.diagonal(spread))}
    filter = Kalman(**leaves)
    geometry = stated["geometry"]
    R = linalg.to_full(stated["R"])
    if geometry.constant_input:
        spent = _spent(stated)
        B = R + gamma * spent
        unknown = float(np.sum(B * (E @ Pi @ E.T))) / (1.0 - gamma)
        return _made(system, stated, filter, spent=spent, floor=0.0, unknown=unknown, most=0.0,
                     priced=float(np.sum(B * S)), observe=observe)  # fmt: skip
    spent = _largest_spent(stated, S)
    floor = gamma * _supremum(geometry, spent)
    return _made(system, stated, filter, spent=spent, floor=floor, unknown=0.0, most=0.0,
                 priced=floor + float(np.sum(R * S)), observe=observe)  # fmt: skip


def hidden_constant(
    system: QuadraticGaussian,
    effect: ArrayLike,
    *,
    Pi_0: ArrayLike,
    Sigma_a: ArrayLike,
    start: ArrayLike = 0.0,
    observe: Shown = "state",
    dtype: DTypeLike | None = None,
) -> Hidden:
    """A ``system`` whose actuators are off by E z, z ~ N(ẑ_0, Π_0) constant in an episode: one task
    of many.

    Args:
        system: of the paper's class, of a family whose g does not depend on the state.
        effect: E, (m, h).
        Pi_0: (h, h), (h,) or a number.
        Sigma_a: covariance of w_a ≻ 0, (m, m), (m,) or a number.
        start: ẑ_0, (h,) or a number.
        observe: "state", or "belief" for s, ẑ and the step.
        dtype: of the leaves; by default that of the system.

    Not knowing z costs r_0 = Σ_k γᵏ tr(B E Π_k Eᵀ) = Σ_i ω_i ₂F₁(1, 1/κ_i; 1 + 1/κ_i; γ).
    Raises InputError, one line, for what is not as stated, and where the optimum is not exact.
    """
    stated, E = _stated("hidden_constant", system, effect, dtype)
    (m, h), gamma = E.shape, stated["gamma"]
    _require_constant("hidden_constant", stated)
    prior = linalg.to_full(inputs.positive_semidefinite("Pi_0", Pi_0, h))
    Sa = linalg.to_full(inputs.positive_definite("Sigma_a", Sigma_a, m))
    half = root(prior)
    seen = np.linalg.solve(Sa, E)  # Σ_a⁻¹E
    kappa, U = np.linalg.eigh(half @ E.T @ seen @ half)
    kappa, W = np.clip(kappa, 0.0, None), half @ U
    spent = _spent(stated)
    B = linalg.to_full(stated["R"]) + gamma * spent
    omega = np.diagonal(W.T @ E.T @ B @ E @ W)
    leaves: Options = _base(E, Sa) | {"inward": seen @ W, "outward": W.T, "kappa": kappa}
    leaves |= {"start": inputs.vector("start", start, h)}
    leaves |= {"prices": prices_of_constant(omega, kappa, gamma)}
    most, priced = float(omega.sum()), float(np.sum(B * Sa))
    return _made(system, stated, Constant(**leaves), spent=spent, floor=0.0, unknown=0.0,
                 most=most, priced=priced, observe=observe)  # fmt: skip


def hidden_hypotheses(
    system: QuadraticGaussian,
    effect: ArrayLike,
    *,
    Sigma_a: ArrayLike,
    transition: ArrayLike | None = None,
    start: ArrayLike = 0.5,
    observe: Shown = "state",
    dtype: DTypeLike | None = None,
) -> Hidden:
    """A ``system`` that is pushed by one of two constants E_1 and E_2, nobody knows which.

    Args:
        system: of the paper's class, of a family whose g does not depend on the state.
        effect: E, (m, 2): a column each.
        Sigma_a: covariance of w_a ≻ 0, (m, m), (m,) or a number.
        transition: chances (2, 2) of hypothesis j after hypothesis i, kept in multiples of 2⁻²⁰;
            none unless given, which stay as they are.
        start: the chance of the first hypothesis at first.
        observe: "state", or "belief" for s and π.
        dtype: of the leaves; by default that of the system.

    Raises InputError, one line, for what is not as stated, and where the optimum is not exact.
    """
    stated, E = _stated("hidden_hypotheses", system, effect, dtype)
    m, gamma = len(E), stated["gamma"]
    _require_constant("hidden_hypotheses", stated)
    if E.shape[1] != 2:
        raise InputError(
            f"effect: expected two columns, whose r is found on a grid, got {E.shape[1]}"
        )
    chain = np.eye(2) if transition is None else chances(transition, 2)
    first = inputs.number("start", start, 0.0, 1.0)
    Sa = linalg.to_full(inputs.positive_definite("Sigma_a", Sigma_a, m))
    spent = _spent(stated)
    B = linalg.to_full(stated["R"]) + gamma * spent
    apart = E[:, 0] - E[:, 1]
    leaves: Options = _base(E, Sa) | {"transition": chain, "start": np.array([first, 1.0 - first])}
    leaves |= {"whiten": linalg.to_full(linalg.inverse_sqrt_spd(Sa)), "weight": B}
    leaves |= {"prices": prices_of_two(E, chain, B=B, Sigma_a=Sa, gamma=gamma), "gamma": gamma}
    most, priced = 0.25 * float(apart @ B @ apart), float(np.sum(B * Sa))
    return _made(system, stated, Hypotheses(**leaves), spent=spent, floor=0.0, unknown=0.0,
                 most=most, priced=priced, observe=observe)  # fmt: skip


def _stated(
    name: str, system: QuadraticGaussian, effect: ArrayLike, dtype: DTypeLike | None
) -> tuple[Options, Float[np.ndarray, "m h"]]:
    """What a system was built of, and E; raises InputError where no filter is exact."""
    stated = statement(name, system, dtype)
    E, m = np.asarray(effect, np.float64), system.action_dim
    if E.ndim != 2 or len(E) != m or not E.shape[1] or not np.isfinite(E).all():
        raise InputError(f"effect: expected finite numbers of shape ({m}, h), got {E.shape}")
    geometry = stated["geometry"]
    if not (geometry.constant_input or geometry.one_row_each):
        raise InputError(
            f"{name}: expected a family whose g is constant or drives one row an action, got "
            f"{geometry.family}, for which no supremum of tr(gᵀP g S) is known"
        )
    high = _inputs_of(geometry)
    if np.linalg.matrix_rank(high if geometry.one_row_each else _inputs(geometry)) < m:
        raise InputError(f"{name}: expected a g of full column rank, which shows all that pushes")
    noisy, rows = np.diagonal(linalg.to_full(stated["Sigma"])) > 0.0, high.any(axis=0)
    if E.any() and (noisy & rows).any():
        raise InputError(
            f"{name}: expected no noise on row {int(np.argmax(noisy & rows))}, which actions push: "
            "what is learned of z would depend on the path; state it as Sigma_a"
        )
    return stated, E


def root(A: np.ndarray) -> np.ndarray:
    """A symmetric root of A ⪰ 0."""
    return linalg.to_full(linalg.sqrt_psd(A))


def _base(E: np.ndarray, Sigma_a: np.ndarray) -> Options:
    """Leaves that every filter has."""
    return {"effect": E.T, "root_a": root(Sigma_a), "cov_a": Sigma_a}


def _require_constant(name: str, stated: Options) -> None:
    """Raise InputError for a g that varies, with a Cov(z|b) that does too."""
    geometry = stated["geometry"]
    if not geometry.constant_input:
        raise InputError(
            f"{name}: expected a family whose g does not depend on the state, got "
            f"{geometry.family}: what is not known of z changes, and its price with s"
        )


def _inputs_of(geometry: Geometry) -> Float[np.ndarray, "m d"]:
    """sup |gᵀ| of a ``geometry``, entry by entry."""
    with precision.x64():
        return np.asarray(geometry.largest_input(np.float64))


def _spent(stated: Options) -> Float[np.ndarray, "m m"]:
    """p² gᵀP g of a g that is constant."""
    g = _inputs(stated["geometry"])
    return stated["p"] ** 2 * g @ linalg.to_full(stated["P"]) @ g.T


def _inputs(geometry: Geometry) -> Float[np.ndarray, "m d"]:
    """gᵀ of a ``geometry`` in which it is constant."""
    with precision.x64():
        s, eye = jnp.zeros(geometry.state_dim), jnp.eye(geometry.action_dim)
        return np.asarray(jax.vmap(lambda a: geometry.actuate(s, a))(eye))


def _largest_spent(stated: Options, S: np.ndarray) -> Float[np.ndarray, "m m"]:
    """p² P∘S on the rows that the actions drive, one each: tr(gᵀP g S) is a form of the gains."""
    rows = np.argmax(_inputs_of(stated["geometry"]), axis=1)
    return stated["p"] ** 2 * linalg.to_full(stated["P"])[np.ix_(rows, rows)] * S


def _supremum(geometry: Geometry, spent: np.ndarray) -> float:
    """sup tr(p²gᵀP g S) over gains: convex in them, so at a vertex of their box; with many actions
    what no vertex is above.
    """
    high, m = _inputs_of(geometry).max(axis=1), len(spent)
    if m > VERTICES:
        return float(high @ np.abs(spent) @ high)
    signs = np.array(np.meshgrid(*[[-1.0, 1.0]] * m, indexing="ij")).reshape(m, -1).T * high
    return float(np.einsum("vi,ij,vj->v", signs, spent, signs).max())


def _made(
    system: QuadraticGaussian,
    stated: Options,
    filter: Filter,
    *,
    priced: float,
    observe: Shown,
    **numbers: Option,
) -> Hidden:
    """The system with ``priced`` = (1-γ) b less what w costs."""
    errors.one_of("observe", observe, SHOWN)
    inner, gamma = as_stated(system, stated), stated["gamma"]
    leaf = inner.gamma.dtype
    offset = inner.offset
    if priced:
        noise = float(np.sum(linalg.to_full(stated["P"]) * linalg.to_full(stated["Sigma"])))
        offset = linalg.to_device((priced + gamma * noise) / (1.0 - gamma), leaf)
    leaves = {name: linalg.to_device(x, leaf) for name, x in numbers.items()}
    return Hidden(
        parts=(inner,), gamma=inner.gamma, offset=offset, observe=observe,
        filter=jax.tree.map(lambda x: linalg.to_device(x, leaf), filter), **leaves,
    )  # fmt: skip
