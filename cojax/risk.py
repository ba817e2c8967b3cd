"""Risk: the exponential of the cost, and the entropic recursion, with V* and π* in closed form.

    J_θ = (1/θ) log E exp(θ Σ_{k<T} γᵏ c_k + θ γᵀ s_TᵀP s_T)           :func:`risk_sensitive`
    V = min_a c + (γ/θ) log E exp(θ V(s'))                              :func:`recursive_risk`

with θ > 0 averse to risk, θ < 0 in search of it, θ → 0 the expected cost. w ~ N(0, Σ) must be
Gaussian. Each is the system of :mod:`cojax.quadratic_gaussian` with another look-ahead and price:

    P̂⁻¹ = P⁻¹ - 2θΣ     κ = -(1/2θ) log det(I - 2θΣP)     A* = |δ|²_R + γ p² |g δ|²_P̂

since the certainty equivalent (1/θ) log E exp(θ V*(z + w)) is zᵀP̂ z + κ + b, which is what
``expected_value`` gives here in the place of E V*, and Bellman's equation is for. The drift depends
on θ: each θ is another system, whose V* has the same sᵀP s. A limit of the actions goes with it.

The first is a problem with a last step (:mod:`cojax.finite_horizon`), θ_k = θγᵏ in step k, so that
with γ < 1 the drift changes from step to step. Let E_tilt be under the tilted kernel

    s' ~ N((I - 2θΣP)⁻¹ z, (I - 2θΣP)⁻¹ Σ),  z = f + p g a,     θ_{k+1} in step k,

:class:`cojax.risk_kernel.Kernel`. For every policy π, with A*_k at its states and actions,

    J_θ(π) - J_θ* = (1/θ) log E_tilt exp(θ Σ γᵏ A*_k)

because exp(θV*) times the Gaussian is that Gaussian. The gap is no expected sum of advantages, and
:func:`cojax.evaluate` refuses these systems: see :func:`cojax.evaluation.risk_gap`. Under the
recursion D = V^π - V* obeys D = A* + (γ/θ) log E_tilt exp(θ D(s')), which no plain estimate gives;
E_tilt Σ γᵏ A*_k is a bound of it, from below for θ > 0 and from above for θ < 0.
Sources: Jacobson 1973, Whittle 1981 (exponential of a quadratic); Donsker and Varadhan 1975.
"""

from __future__ import annotations

import dataclasses
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from numpy.typing import DTypeLike

from cojax import inputs, linalg
from cojax.distinct import of_another
from cojax.errors import InputError
from cojax.finite_horizon import Stepped, length, limited, stacked, summed, undiscounted
from cojax.linalg import product
from cojax.memory import as_stated, assembled
from cojax.noise import DiagonalNoise
from cojax.noise_laws import Normal
from cojax.quadratic_gaussian import QuadraticGaussian
from cojax.streams import pinned
from cojax.system import System
from cojax.types import Array, Float, Options, PRNGKeyArray

MARGIN = 0.05  # of 1 - 2θ λ_max(ΣP), below which P̂ is nearly without bound


@struct.dataclass
class Tilt:
    """How exp(θV*) changes a step's law; leading axis T where it changes from step to step.

    Attributes:
        theta: θ_{k+1}.
        carried: (I - 2θPΣ)⁻¹, so that the tilted mean is the row z times it.
        back: its inverse.
        spread: (r, d), Lᵀ(I - 2θPΣ)^{-1/2}: tilted noise is the row ξ times it, w being ξ Lᵀ.
    """

    theta: Float[Array, "*batch"]
    carried: Float[Array, "*batch d d"]
    back: Float[Array, "*batch d d"]
    spread: Float[Array, "*batch r d"]


class Risky(System):
    """What both classes share."""

    theta: Float[Array, "*batch"]
    tilt: Tilt

    @property
    def additive(self) -> bool:
        """No: the gap of a policy is no sum of advantages."""
        return False

    @property
    def follows_mean(self) -> bool:
        """No: beyond the mean costs the exponential of what is to come."""
        return False

    @property
    def recursive(self) -> bool:
        """Whether risk is priced anew in each step: then no estimate of the gap is known."""
        return True

    def tilted(self, x: Float[Array, "n"]) -> Tilt:
        """That of the step at state x."""
        return self.tilt

    def certainty(self, s, values):
        """(1/θ) log mean exp(θ values), and its standard error."""
        theta, n = self.tilted(s).theta, values.shape[0]
        scale = jnp.where(theta == 0.0, 1.0, theta)
        most = jnp.max(scale * values)
        weights = jnp.exp(scale * values - most)
        mean = jnp.mean(weights)
        error = jnp.std(weights) / (mean * jnp.abs(scale) * n**0.5)
        return (
            jnp.where(theta == 0.0, jnp.mean(values), (jnp.log(mean) + most) / scale),
            jnp.where(theta == 0.0, jnp.std(values) / n**0.5, error),
        )

    def pushed(self, x: Float[Array, "n"], z: Float[Array, "n"], by: str) -> Float[Array, "n"]:
        """z with its part of the state times a matrix of the tilt at x, called ``by``."""
        matrix = getattr(self.tilted(x), by)
        d = matrix.shape[0]
        return jnp.concatenate([product(z[:d], matrix), z[d:]])

    def tilted_noise(self, x: Float[Array, "n"], key: PRNGKeyArray) -> Float[Array, "n"]:
        """Tilted noise at x from the white noise that w is drawn from by a ``key``; each class has
        its own, and this raises NotImplementedError.
        """
        raise NotImplementedError


@inputs.guarded
@struct.dataclass
class RiskSensitive(Risky, Stepped):
    """min (1/θ) log E exp(θ Σ γᵏ c_k), of T steps. Build it with :func:`risk_sensitive`.

    Attributes:
        parts: the system with P̂ of step 0, alone.
        gamma: (), discount, 1 allowed.
        offset: (), 0, the least b_k.
        b: (T+1,), b_k = γ (κ_{k+1} + b_{k+1}).
        steps: P̂ and what follows from it, with γ < 1.
        theta: (), θ.
        tilt: of the kernel.
    """

    parts: tuple[QuadraticGaussian, ...]
    gamma: Float[Array, "*batch"]
    offset: Float[Array, "*batch"]
    b: Float[Array, "*batch K"]
    steps: dict[str, Array]
    theta: Float[Array, "*batch"]
    tilt: Tilt
    origin: dataclasses.InitVar[object] = dataclasses.field(default=None, kw_only=True)

    def __post_init__(self, origin: object) -> None:
        """Refuse replacement; raises InputError."""
        self._refuse(origin, "cojax.risk.risk_sensitive")

    @property
    def recursive(self):
        """No: of the exponential of the total cost."""
        return False

    def tilted(self, x):
        """That of step k."""
        if not self.steps:
            return self.tilt
        k = jnp.minimum(self.split(x)[1], self.horizon - 1)
        return jax.tree.map(lambda leaf: leaf[k], self.tilt)

    @pinned()
    def tilted_noise(self, x, key):
        """0 for τ and after the last step."""
        k = self.split(x)[1]
        w = jnp.where(k < self.horizon, _drawn(self.inner, self.tilted(x), key), 0.0)
        return jnp.concatenate([w, jnp.zeros(1, w.dtype)])


@inputs.guarded
@struct.dataclass(repr=False)
class RecursiveRisk(Risky, QuadraticGaussian):
    """V = min_a c + (γ/θ) log E exp(θ V(s')), without end. Build it with :func:`recursive_risk`.

    Attributes:
        theta: (), θ.
        tilt: of the kernel.
    """

    rebuilds: ClassVar[bool] = False
    theta: Float[Array, "*batch"] = struct.field(kw_only=True)
    tilt: Tilt = struct.field(kw_only=True)

    @pinned()
    def tilted_noise(self, x, key):
        """By the same white noise as w."""
        return _drawn(self, self.tilt, key)


def _drawn(system: QuadraticGaussian, tilt: Tilt, key: PRNGKeyArray) -> Float[Array, "d"]:
    """Tilted noise by a key of the noise of a ``system``."""
    noise, spread = system.noise, tilt.spread
    xi = noise.law.draw(key, spread.shape[:1]).astype(spread.dtype)
    return jnp.matmul(xi, spread, precision=linalg.HIGHEST)


# --- on the host ---------------------------------------------------------------------------------


def risk_sensitive(
    system: QuadraticGaussian,
    theta: float,
    T: int,
    *,
    gamma: float = 1.0,
    dtype: DTypeLike | None = None,
) -> RiskSensitive:
    """A ``system`` of any family, with its limit of actions where it has one, whose cost of ``T``
    steps is J_θ.

    Args:
        system: of the paper's class, or that with a limit, with Gaussian noise.
        theta: θ; 0 for the expected cost, and then the system to the bit where γ is its own.
        T: steps.
        gamma: discount, in (0, 1]; below 1 step k weighs risk by θγᵏ.
        dtype: of the leaves; by default that of the system.

    Raises InputError, one line with the number, unless Q ⪰ βP with 1 - β < γ, and for θ > 0
    2θ λ_max(ΣP) <= 0.95, for θ < 0 (1-β)(1 + 2|θ| λ_max(ΣP)) < γ; for other laws of noise,
    kinematics, actuators and noise of its own class.
    """
    stated = limited("risk_sensitive", system, dtype)
    T = length(T)
    gamma = inputs.discount("gamma", gamma, one=True)
    theta = _checked(stated, theta, gamma=gamma)
    kind, varying = np.dtype(stated["dtype"]), gamma < 1.0 and theta != 0.0
    thetas = [theta * gamma ** (k + 1) for k in range(T if varying else 1)]
    Sigma, P = linalg.to_full(stated["Sigma"]), linalg.to_full(stated["P"])
    priced = [price(t, Sigma, P) for t in thetas]
    ahead = [lookahead(t, stated["Sigma"], stated["P"]) for t in thetas]
    if theta == 0.0:
        inner = undiscounted(stated, system, gamma)
        inner = inputs.swapped(inner, P_hat=inner.P)
    else:
        inner = undiscounted(stated, system, gamma, P_hat=ahead[0])
    steps: dict[str, np.ndarray] = {}
    if varying:
        M0 = [linalg.inverse_spd(x) / gamma for x in ahead]
        steps = {"P_hat": stacked(ahead), "M0": stacked(M0)}
    tilts = [_tilt(stated, system, t) for t in thetas]
    leaves = {n: np.stack([t[n] for t in tilts]) for n in tilts[0]}
    if not varying:
        leaves = {n: x[0] for n, x in leaves.items()}
    discount = float(inner.gamma)
    return RiskSensitive(
        parts=(inner,),
        gamma=inner.gamma,
        offset=linalg.to_device(0.0, kind),
        b=linalg.to_device(summed(priced if varying else priced * T, discount), kind),
        steps={n: linalg.to_device(x, kind) for n, x in steps.items()},
        theta=linalg.to_device(theta, kind),
        tilt=Tilt(**{n: linalg.to_device(x, kind) for n, x in leaves.items()}),
    )


def recursive_risk(
    system: QuadraticGaussian, theta: float, *, dtype: DTypeLike | None = None
) -> RecursiveRisk:
    """A ``system`` of any family, with its limit of actions where it has one, whose cost is the
    entropic recursion with ``theta``, without end; leaves are of ``dtype``, by default that of the
    system.

    V* = sᵀP s + b, b = γ/(1-γ) κ. Raises InputError as :func:`risk_sensitive` does, and for θ > 0
    where 1 - β < γ (1 - 2θ λ_max(ΣP)) does not hold, without which the worst model diverges.
    """
    stated = limited("recursive_risk", system, dtype)
    theta = _checked(stated, theta, gamma=stated["gamma"], forever=True)
    Sigma, P = linalg.to_full(stated["Sigma"]), linalg.to_full(stated["P"])
    if theta == 0.0:
        built = as_stated(system, stated)
        built = inputs.swapped(built, P_hat=built.P)
    else:
        ahead = lookahead(theta, stated["Sigma"], stated["P"])
        built = assembled(stated | {"P_hat": ahead, "noise_cost": price(theta, Sigma, P)})
    kind = np.dtype(stated["dtype"])
    tilt = {n: linalg.to_device(x, kind) for n, x in _tilt(stated, system, theta).items()}
    own: Options = {"theta": linalg.to_device(theta, kind), "tilt": Tilt(**tilt)}
    return RecursiveRisk(**of_another(built), **own)


def lookahead(theta: float, Sigma: np.ndarray, P: np.ndarray) -> np.ndarray:
    """P̂ = (P⁻¹ - 2θΣ)⁻¹ for ``theta``, ``Sigma`` and P, a diagonal where both are; float64."""
    inverse = linalg.inverse_spd(P)
    if inverse.ndim != Sigma.ndim:
        inverse, Sigma = linalg.to_full(inverse), linalg.to_full(Sigma)
    return linalg.inverse_spd(inverse - 2.0 * theta * Sigma)


def price(theta: float, Sigma: np.ndarray, P: np.ndarray) -> float:
    """κ = -(1/2θ) log det(I - 2θΣP) for ``theta``, ``Sigma`` and P; tr ΣP at θ = 0."""
    powers = spectrum(Sigma, P)
    if theta == 0.0:
        return float(powers.sum())
    return float(-np.log1p(-2.0 * theta * powers).sum() / (2.0 * theta))


def spectrum(Sigma: np.ndarray, P: np.ndarray) -> np.ndarray:
    """Eigenvalues of ΣP, ascending, float64; ``Sigma`` and P are (d, d) or (d,)."""
    root = linalg.sqrt_psd(linalg.to_full(P))
    return np.clip(np.linalg.eigvalsh(root @ linalg.to_full(Sigma) @ root), 0.0, None)


def _tilt(stated: Options, system: QuadraticGaussian, theta: float) -> dict[str, np.ndarray]:
    """Leaves of :class:`Tilt` for one θ."""
    Sigma, P = linalg.to_full(stated["Sigma"]), linalg.to_full(stated["P"])
    noise = system.noise
    if isinstance(noise, DiagonalNoise):
        L = np.eye(noise.dim)[:, list(noise.rows)] * np.asarray(noise.sigma, np.float64)
    else:
        L = np.asarray(noise.L, np.float64)  # pyright: ignore[reportAttributeAccessIssue]
    back = np.eye(len(P)) - 2.0 * theta * P @ Sigma
    inner = np.eye(L.shape[1]) - 2.0 * theta * L.T @ P @ L
    spread = L if theta == 0.0 else L @ linalg.inverse_sqrt_spd(0.5 * (inner + inner.T))
    carried = np.eye(len(P)) if theta == 0.0 else np.linalg.inv(back)
    return {"theta": np.asarray(theta), "carried": carried, "back": back, "spread": spread.T}


def _checked(stated: Options, theta: float, *, gamma: float, forever: bool = False) -> float:
    """θ for which V* is the optimal value and all loops are bounded; raises InputError."""
    theta = inputs.number("theta", theta)
    if not isinstance(stated["law"], Normal):
        raise InputError(f"theta: expected Gaussian noise, got {stated['law'].word}")
    if theta == 0.0:
        return theta
    beta = linalg.largest_share(stated["Q"], stated["P"])
    if not (beta > 0.0 and 1.0 - beta < gamma):
        raise InputError(f"Q: expected Q ⪰ βP with 1 - β < γ = {gamma:g}, got β = {beta:.3g}")
    largest = 2.0 * abs(theta) * float(spectrum(stated["Sigma"], stated["P"])[-1])
    if theta > 0.0 and largest > 1.0 - MARGIN:
        raise InputError(
            f"theta: expected 2θ λ_max(ΣP) <= {1.0 - MARGIN:g}, beyond which the cost has no "
            f"finite exponential, got {largest:.4g}"
        )
    if theta < 0.0 and (1.0 - beta) * (1.0 + largest) >= gamma:
        raise InputError(
            f"theta: expected (1-β)(1 + 2|θ| λ_max(ΣP))/γ < 1, without which the optimal loop "
            f"diverges, got {(1.0 - beta) * (1.0 + largest) / gamma:.4g}"
        )
    if theta > 0.0 and forever and 1.0 - beta >= gamma * (1.0 - largest):
        raise InputError(
            f"theta: expected (1-β)/(γ (1 - 2θ λ_max(ΣP))) < 1, without which the tilted loop "
            f"diverges, got {(1.0 - beta) / (gamma * (1.0 - largest)):.4g}"
        )
    return theta
