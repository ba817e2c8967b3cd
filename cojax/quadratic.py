"""From a family and its matrices to a system: checked, derived in float64, cast once.

What a system is, and the equations, are in :mod:`cojax.quadratic_gaussian`.
"""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import ArrayLike, DTypeLike

from cojax import errors, inputs, inverse_sqrt, linalg, precision
from cojax.action_limits import ActionLimit, Box
from cojax.geometry import BASE, Family
from cojax.noise import WHITE, white
from cojax.noise_laws import NORMAL, Law
from cojax.quadratic_gaussian import HATS, Parameterization, QuadraticGaussian
from cojax.types import Option, Options

PARAMETERIZATIONS = ("metric", "sqrt")


class Geometry(Family):
    """A family of systems: :class:`cojax.geometry.Family` says what is to be written, and this
    builds from it.
    """

    @classmethod
    def build(cls, *args: Option, **options: Option) -> QuadraticGaussian:
        """Build a system of the family; what is not given is as the authors have it, or as
        ``defaults`` says, and Q is ``share`` P, or β P for the β that meets the family's target.

        Args:
            args: the dimensions and the control strength p, in this order.
            options: those by name, knobs, ``settings``, the target, and P, Q, R, gamma, Sigma,
                parameterization and dtype: see :func:`cojax.quadratic.build`.

        Raises ValueError, one line, for anything unusable.
        """
        names = (*cls.dimensions, "p")
        if len(args) > len(names):
            expected = f"at most {', '.join(names)} without a name, got {len(args)} values"
            raise errors.InputError(f"{cls.family}.build: expected {expected}")
        rest = cls.completed(**dict(zip(names, args, strict=False)) | options)
        geometry = cls(**{name: rest.pop(name) for name in cls.fields()})
        target, share = rest.pop(cls.target or "", None), rest.pop("share")
        P = rest["P"] = inputs.symmetric("P", rest["P"], geometry.state_dim)
        if target is not None:
            R = inputs.positive_definite("R", rest["R"], geometry.action_dim)
            P, gamma, p = inputs.positive_definite("P", P, len(P)), rest["gamma"], rest["p"]
            rest["R"], share = geometry.tune(P, R, gamma=gamma, p=p, target=target)
        rest["Q"] = share * P if rest["Q"] is None else rest["Q"]
        return geometry.assemble(**rest)

    def assemble(self, **options: Option) -> QuadraticGaussian:
        """The system of this geometry; ``options`` are the matrices and numbers of
        :func:`cojax.quadratic.build`, all stated.
        """
        return build(self, **options)


def build(
    geometry: Geometry,
    *,
    P: ArrayLike,
    Q: ArrayLike,
    R: ArrayLike,
    gamma: float,
    p: float,
    Sigma: ArrayLike,
    P_hat: ArrayLike | None = None,
    Q_hat: ArrayLike | None = None,
    R_hat: ArrayLike | None = None,
    noise_cost: float | None = None,
    law: Law = NORMAL,
    state_noise: float = 0.0,
    action_noise: ArrayLike = 0.0,
    state_columns: ArrayLike | None = None,
    limit: ActionLimit | None = None,
    parameterization: Parameterization = "metric",
    dtype: DTypeLike | None = None,
) -> QuadraticGaussian:
    """Check the inputs, derive what a step needs in float64, and cast once.

    Args:
        geometry: the family's input map and rotation field, with float64 or Python knobs.
        P: symmetric positive definite, (d, d), a diagonal (d,), or a number for a multiple of I.
        Q: 0 ⪯ Q ⪯ P, in the same forms.
        R: symmetric positive definite, (m, m), (m,), or a number.
        gamma: discount, in (0, 1).
        p: control strength, in (0, 1].
        Sigma: noise covariance, positive semidefinite, singular and correlated included.
        P_hat: look-ahead P̂ ≻ 0; P unless given, which is the paper's system, as the next three.
        Q_hat: effective cost of states, 0 ⪯ Q̂ ⪯ P; Q unless given.
        R_hat: effective cost of actions R̂ ≻ 0; R unless given.
        noise_cost: κ in b = γ/(1-γ) κ; tr(P Σ) unless given.
        law: of the white noise that Sigma colours.
        state_noise: η >= 0 in Cov w = (1 + η sᵀQ s) Σ. V* and f stay as they are, and the cost of
            states is (1 - γ η tr(P Σ)) sᵀQ s, for which γ η tr(P Σ) < 1.
        action_noise: σ >= 0, a number or (m,): p g(0) σ_i a_i ξ_i is added to w, ξ of ``law``;
            R̂ = R + γ diag(σ_i² |p g(0) e_i|²_P), so that the optimum is more careful.
        state_columns: (J, d, d), D: Σ_j D_j s ζ_j is added to w, ζ white of ``law``; V* and cost
            stay as they are, and f has less to spend, P - Q - γ Σ_j D_jᵀP D_j ⪰ 0; none with
            ``state_noise``.
        limit: of the actions, known to V*; a box needs a diagonal R̂.
        parameterization: "metric" (MN) or "sqrt" (SR).
        dtype: of the leaves; by default the float dtype JAX computes in.

    Raises ValueError, one line, where an input is not as stated. Source: paper, Section V.
    """
    d, m = geometry.state_dim, geometry.action_dim
    gamma = inputs.discount("gamma", gamma)
    p = inputs.number("p", p, 0.0, 1.0, low_open=True)
    errors.one_of("parameterization", parameterization, PARAMETERIZATIONS)
    definite, semidefinite = inputs.positive_definite, inputs.positive_semidefinite
    P, R = definite("P", P, d), definite("R", R, m)
    Q, Sigma = semidefinite("Q", Q, d), semidefinite("Sigma", Sigma, d)
    hats = {
        "P_hat": None if P_hat is None else definite("P_hat", P_hat, d),
        "Q_hat": None if Q_hat is None else semidefinite("Q_hat", Q_hat, d),
        "R_hat": None if R_hat is None else definite("R_hat", R_hat, m),
    }
    by_state, by_action = (bool(np.any(np.asarray(x) != 0.0)) for x in (state_noise, action_noise))
    if by_state:
        Q, hats["Q_hat"] = _with_state_noise(P, Q, Sigma, gamma=gamma, eta=state_noise, hats=hats)
    columns = _columns(state_columns, d)
    if columns is not None:
        if by_state or hats["Q_hat"] is not None:
            other = "state_noise" if by_state else "Q_hat"
            raise errors.InputError(f"state_columns: expected none where {other} is given")
        hats["Q_hat"] = _charged(P, Q, columns, gamma=gamma)
    if by_action:
        if hats["R_hat"] is not None:
            raise errors.InputError("action_noise: expected none where R_hat is given")
        hats["R_hat"] = effort_of(geometry, P, R, weight=gamma * p**2, sigma=action_noise)
    ahead, charged, effort = (
        x if hat is None else hat for x, hat in zip((P, Q, R), hats.values(), strict=True)
    )
    P_minus_Q = inputs.above("Q" if Q_hat is None else "Q_hat", P, charged)
    dtype = precision.usable_float(dtype)
    if isinstance(limit, Box) and effort.ndim > 1:
        raise errors.InputError(
            "action_limit: a box needs a diagonal R, with which the optimum is a clip, got a full "
            "one; use kind: ball"
        )
    R_inverse, M0 = linalg.inverse_spd(effort), linalg.inverse_spd(ahead) / gamma

    D_if_constant = geometry.constant_D(p, R_inverse) if geometry.constant_input else None
    lo, hi = linalg.extreme_eigenvalues(M0)
    hi += p**2 * geometry.input_norm() ** 2 * linalg.extreme_eigenvalues(R_inverse)[1]
    priced = np.sum(linalg.to_full(P) * linalg.to_full(Sigma))
    if noise_cost is not None:
        priced = inputs.number("noise_cost", noise_cost, 0.0)
    offset = gamma / (1.0 - gamma) * priced
    cast = partial(linalg.to_device, dtype=dtype)
    return QuadraticGaussian(
        geometry=jax.tree.map(cast, geometry),
        P=cast(P),
        Q=cast(Q),
        R=cast(R),
        gamma=cast(gamma),
        p=cast(p),
        noise=white(Sigma, geometry.noise_order(), dtype, law),
        offset=cast(offset),
        P_minus_Q=cast(P_minus_Q),
        sqrt_P_minus_Q=cast(linalg.sqrt_psd(P_minus_Q)),
        M0=cast(M0),
        R_inverse=cast(R_inverse),
        inverse_sqrt=inverse_sqrt.choose(M0, lo, hi, dtype, constant_D=D_if_constant),
        **{name: None if hat is None else cast(hat) for name, hat in hats.items()},
        limit=None if limit is None else jax.tree.map(cast, limit),
        state_noise=cast(state_noise) if by_state else None,
        action_noise=cast(inputs.vector("action_noise", action_noise, m)) if by_action else None,
        state_columns=None if columns is None else cast(columns),
        parameterization=parameterization,
    )


def _columns(given: ArrayLike | None, d: int) -> np.ndarray | None:
    """D, (J, d, d), checked; None where nothing is drawn."""
    if given is None:
        return None
    columns = np.asarray(given, np.float64)
    if columns.ndim != 3 or columns.shape[1:] != (d, d) or not np.isfinite(columns).all():
        raise errors.InputError(
            f"state_columns: expected finite numbers of shape (J, {d}, {d}), got {columns.shape}"
        )
    return columns if columns.any() else None


def _charged(P: np.ndarray, Q: np.ndarray, columns: np.ndarray, *, gamma: float) -> np.ndarray:
    """Q̂ = Q + γ Σ_j D_jᵀP D_j, refused where it is not ⪯ P."""
    priced = gamma * np.einsum("jea,ef,jfb->ab", columns, linalg.to_full(P), columns)
    Q_hat = linalg.to_full(Q) + 0.5 * (priced + priced.T)
    low, high = linalg.extreme_eigenvalues(linalg.to_full(P) - Q_hat)[0], np.abs(P).max()
    if low < -inputs.DEFINITENESS_TOLERANCE * high:
        raise errors.InputError(
            "state_columns: expected P - Q - γ Σ DᵀP D ⪰ 0, which is left for the drift, got "
            f"smallest eigenvalue {low:.4g}"
        )
    diagonal = np.diagonal(Q_hat)
    same = np.array_equal(Q_hat, np.diag(diagonal))
    return diagonal.copy() if same else Q_hat


def _with_state_noise(
    P: np.ndarray, Q: np.ndarray, Sigma: np.ndarray, *, gamma: float, eta: float, hats: Options
) -> tuple[np.ndarray, np.ndarray]:
    """Q of the cost, (1 - κ) Q, and Q̂ = Q, for κ = γ η tr(P Σ) < 1."""
    if hats["Q_hat"] is not None:
        raise errors.InputError("state_noise: expected none where Q_hat is given")
    power = float(np.sum(linalg.to_full(P) * linalg.to_full(Sigma)))
    most = np.inf if power == 0.0 else 1.0 / (gamma * power)
    eta = inputs.number("state_noise", eta, 0.0)
    if not eta < most:
        raise errors.InputError(
            f"state_noise: expected less than 1/(γ tr(PΣ)) = {most:.6g}, at which nothing is left "
            f"of the cost of states, got {eta:g}"
        )
    return (1.0 - eta * gamma * power) * Q, Q


def effort_of(
    geometry: Geometry, P: np.ndarray, R: np.ndarray, *, weight: float, sigma: ArrayLike
) -> np.ndarray:
    """R̂ = R + γ p² diag(σ_i² |g(0) e_i|²_P) of a ``geometry``; P and R were checked, ``weight`` is
    γ p², and ``sigma`` σ, a number or (m,). Raises ValueError for σ < 0.
    """
    sigma = inputs.vector("action_noise", sigma, geometry.action_dim)
    if (sigma < 0.0).any():
        raise errors.InputError(f"action_noise: expected numbers >= 0, got {sigma.min():g}")
    with precision.x64():
        s, eye = jnp.zeros(geometry.state_dim), jnp.eye(geometry.action_dim)
        g = np.asarray(jax.vmap(lambda a: geometry.actuate(s, a))(eye))
    price = weight * sigma**2 * np.sum((g @ linalg.to_full(P)) * g, axis=1)
    return R + (price if R.ndim == 1 else np.diag(price))


def rebuild(system: QuadraticGaussian, **changes: Option) -> QuadraticGaussian:
    """The same system with some of P, Q, R, gamma, p, Sigma, law, state_noise, action_noise,
    state_columns, limit, parameterization, dtype or the geometry's knobs changed, and everything
    that depends on them derived again.

    ``changes`` are given by name. What is not named stays as it is: in the homotopy
    over p, P, Q and R are held (paper, §VI). The leaves are taken at the precision they have:
    rebuild a float64 system where the last digits matter. Raises ValueError for an unknown name, an
    unusable value, and for what P̂, Q̂, R̂ and κ of a class of its own depend on.
    """
    if not getattr(system, "rebuilds", False) or system.authority is not None:
        kind = type(system).__name__
        raise errors.InputError(f"rebuild: expected a quadratic system, got {kind}")
    if jnp.ndim(system.gamma):
        raise errors.InputError(
            "system: expected one system, got a stacked batch; rebuild, then stack"
        )
    own = {n: getattr(system, n) for n in ("state_noise", "action_noise", "state_columns")}
    own = {n: np.asarray(x, np.float64) for n, x in own.items() if x is not None}
    charging = "state_noise" in own or "state_columns" in own
    derived = {"Q_hat": charging, "R_hat": "action_noise" in own}
    hats = [n for n in HATS if getattr(system, n) is not None and not derived.get(n)]
    leaf = {name: np.asarray(getattr(system, name), np.float64) for name in (*BASE, *hats)}
    leaf["Q"] = np.asarray(system.charge if "state_noise" in own else system.Q, np.float64)
    with precision.x64():
        host = jax.tree.map(lambda x: np.asarray(x, np.float64), (system.noise, system.limit))
        noise, limit = jax.tree.map(jnp.asarray, host)
        leaf["Sigma"] = np.asarray(noise.covariance())
    settings = {"parameterization": system.parameterization, "dtype": system.gamma.dtype}
    settings |= {"state_noise": 0.0, "action_noise": 0.0, "state_columns": None}
    settings |= {**own, "limit": limit}
    settings["law"] = host[0].law if isinstance(noise, WHITE) else NORMAL
    geometry = system.geometry
    knobs = set(geometry.fields()) - set(geometry.dimensions)
    for name in changes:
        errors.one_of("rebuild", name, [*leaf, *settings, *knobs])
        if hats and name not in ("p", *settings, *geometry.gains):
            raise errors.InputError(f"{name}: {hats[0]} depends on it; build the system again")
    if hats:
        leaf["noise_cost"] = float(system.offset) * (1.0 - leaf["gamma"]) / leaf["gamma"]
    new_knobs = {k: geometry.checked(k, v) for k, v in changes.items() if k in knobs}
    geometry = geometry.replace(**new_knobs)  # pyright: ignore[reportAttributeAccessIssue]
    geometry = jax.tree.map(lambda x: np.asarray(x, np.float64), geometry)
    rest = {k: v for k, v in changes.items() if k not in knobs}
    built = geometry.assemble(**{**leaf, **settings, **rest})
    if isinstance(system.noise, WHITE):
        return built
    if "Sigma" in changes:
        raise errors.InputError(f"Sigma: expected none for {type(system.noise).__name__} noise")
    dtype = built.gamma.dtype
    return inputs.swapped(built, noise=jax.tree.map(lambda x: jnp.asarray(x, dtype), system.noise))
