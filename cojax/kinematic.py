"""Systems whose angles move as their velocities say, exactly, with V* and π* in closed form.

    s = [θ_1, ω_1, …, θ_n, ω_n],  θ' = f_θ = θ + τ ω (+ w),  ω' = f_ω(s) + p g_ω(s) a + w
    c = sᵀQ s + aᵀR a,  V* = sᵀP s + b,  b = γ/(1-γ) tr(P Σ)

Only the n velocity rows of the drift are free, where :func:`cojax.quadratic.build` chooses all 2n.
In blocks of P, with Ψ = P_θθ - P_θω P_ωω⁻¹ P_ωθ, the inverse of the block θθ of P⁻¹:

    C = -P_ωω⁻¹ P_ωθ      K(s) = P_ωω⁻¹/γ + p² g_ω R⁻¹ g_ωᵀ
    rem(s) = sᵀ(P - Q)s - γ f_θᵀ Ψ f_θ
    y = K^{-1/2} u,  |u|² = rem(s):    f_ω = C f_θ + K y,    a* = -p R⁻¹ g_ωᵀ y

for every field u(s) of that length. Why: γ min_a |f + p g a|²_P + |a|²_R is fᵀH f with
H = (P⁻¹/γ + p² g R⁻¹ gᵀ)⁻¹, whose Schur complement splits it into γ f_θᵀΨ f_θ, on which torques
have no say, and |f_ω - C f_θ|²_{K⁻¹}. So Bellman's equation needs rem >= 0 at every state: a matrix
inequality in P, Q, γ and τ alone, checked when a system is built.

Where P solves the Riccati equation of the chain θ' = θ + τ ω, ω' = ω + p τ a, rem has rank n:
rem(s) = |L s|² with L s = K̄^{-1/2}(ω - C f_θ), K̄ being K at g_ω = τ I. Then

    MN form: u = S(s) L s, S orthogonal               smooth at every state
    SR form: u = S(s) (sqrt(sᵀE_1 s), ℓ_2 … ℓ_n)      for rem of any rank, L its n greatest parts,
             ℓ = L s, E_1 = rem less ℓ_2² … ℓ_n²      and for one joint; the base pushes one way

and with S = I and g_ω = τ I the MN form is that chain with its regulator. L is the root of rem that
is nearest to K̄^{-1/2}(ω - C f_θ), whatever p has become since P was chosen.
"""

from __future__ import annotations

import abc

import jax
import jax.numpy as jnp
import numpy as np
import scipy.linalg
from flax import struct
from numpy.typing import ArrayLike, DTypeLike

from cojax import inputs, inverse_sqrt, linalg, precision, quadratic
from cojax.distinct import of_another
from cojax.errors import InputError
from cojax.geometry import Knob
from cojax.linalg import matvec, product, quadratic_form
from cojax.noise import scatter
from cojax.quadratic import Geometry, Parameterization, QuadraticGaussian
from cojax.system import Optimum
from cojax.types import Array, Float, Option, Options


def tolerance(dtype: DTypeLike) -> float:
    """Of eigenvalues of rem against V*, and so of Bellman's equation; float32 leaves, which are
    rebuilt, are as rounded.
    """
    return max(1e-10, 16.0 * float(np.finfo(dtype).eps))


class KinematicGeometry(Geometry):
    """A family of such systems: n joints, τ, the torques' effect and a rotation of velocities.

    Subclasses have knobs ``tau`` and ``n``, and methods ``gain`` and ``turn``; of the rest an
    initial law and a usual Q and R are left to say.
    """

    tau: Knob
    n: int
    dimensions = ("n",)
    positive = ("tau",)
    constant_input = False
    one_row_each = True

    @abc.abstractmethod
    def gain(self, s: Float[Array, "d"]) -> Float[Array, "n"]:
        """The diagonal of g_ω(s), without p; largest at the origin, where it is τ."""

    @abc.abstractmethod
    def turn(
        self, s: Float[Array, "d"], u: Float[Array, "n"], p: Float[Array, ""]
    ) -> Float[Array, "n"]:
        """S_p(s) u for an orthogonal field S of the velocities."""

    @property
    def state_dim(self):
        """2n."""
        return 2 * self.n

    @property
    def action_dim(self):
        """n."""
        return self.n

    def actuate(self, s, a):
        """g(s) a: the gains on the velocities."""
        return scatter(self.gain(s) * a, tuple(range(1, 2 * self.n, 2)), 2 * self.n)

    def actuate_transpose(self, s, v):
        """g(s)ᵀ v."""
        return self.gain(s) * v[1::2]

    def rotate(self, s, x, p):
        """S(s) on the velocities of x, the angles as they are."""
        return interleaved(x[0::2], self.turn(s, x[1::2], p))

    def input_norm(self):
        """sup |g(s)| = τ."""
        return abs(float(self.tau))

    def noise_order(self):
        """Velocities, then angles."""
        return (*range(1, 2 * self.n, 2), *range(0, 2 * self.n, 2))

    @classmethod
    def completed(cls, **options):
        """As for every family, but P, where it is not given, is that of the chain's Riccati
        equation at full authority, and Q, where P is given alone, the one that makes it so.

        Raises InputError where no P solves the equation.
        """
        rest = super().completed(**options)
        n, p, gamma = rest["n"], rest["p"], rest["gamma"]
        A, G = chain(n, rest["tau"])
        R = linalg.to_full(inputs.positive_definite("R", rest["R"], n))
        if options.get("P") is None:
            Q = inputs.positive_semidefinite("Q", rest["Q"], 2 * n)
            return rest | {"P": riccati(A, p * G, linalg.to_full(Q), R, gamma=gamma), "Q": Q}
        if options.get("Q") is None:
            P = linalg.to_full(inputs.positive_definite("P", rest["P"], 2 * n))
            M = np.linalg.inv(P) / gamma + p**2 * G @ np.linalg.solve(R, G.T)
            Q = P - A.T @ np.linalg.solve(M, A)
            rest["Q"] = 0.5 * (Q + Q.T)
        return rest

    def assemble(self, **options: Option) -> QuadraticGaussian:
        """The system from ``options``, all stated: those of :func:`build`."""
        return build(self, **options)


@inputs.guarded
@struct.dataclass(repr=False)
class KinematicGaussian(QuadraticGaussian):
    """A system with θ' = θ + τ ω. Build it with a family's ``build``; change it by
    :func:`cojax.rebuild`. Of what it inherits, ``inverse_sqrt`` is that of K, (n, n), and
    ``sqrt_P_minus_Q`` is not used.

    Attributes:
        carried: (2n, n), sᵀ times it is C f_θ.
        energy: (2n, n), Lᵀ.
        K0: (n, n), P_ωω⁻¹/γ.
        one_way: (2n, 2n), E_1 in the SR form; else None.
    """

    carried: Array = struct.field(default=None)
    energy: Array = struct.field(default=None)
    K0: Array = struct.field(default=None)
    one_way: Array | None = None

    def optimum(self, s):
        """Drift, optimal action and optimal next mean from y = K^{-1/2} u."""
        geometry, p, control = self.geometry, self.p, self.in_M
        assert isinstance(geometry, KinematicGeometry)
        gain = geometry.gain(s)
        diagonal = p * p * control * gain * gain if control.ndim == 1 else None

        def D(v):  # p² g_ω R⁻¹ g_ωᵀ v
            if diagonal is not None:
                return diagonal * v
            return p * p * gain * matvec(control, gain * v)

        y = self.inverse_sqrt(D, self.direction(s))
        action, moved = -p * matvec(self.R_inverse, gain * y), matvec(self.K0, y)
        if self.limit is not None:
            v, rest = p * gain * y, linalg.dot(y, moved)
            t, action = self.limit.stretched(v, action, rest=rest, R=self.effort)
            moved = t * moved
        theta = s[0::2] + geometry.tau * s[1::2]
        omega = product(s, self.carried) + moved
        drift = interleaved(theta, omega - p * gain * action)
        return Optimum(drift, action, interleaved(theta, omega))

    def direction(self, s: Float[Array, "d"]) -> Float[Array, "n"]:
        """u(s), (n,), with |u|² = rem(s)."""
        geometry = self.geometry
        assert isinstance(geometry, KinematicGeometry)
        u = product(s, self.energy)
        if self.one_way is not None:
            energy = quadratic_form(self.one_way, s)
            safe = jnp.where(energy > 0.0, energy, 1.0)
            first = jnp.where(energy > 0.0, jnp.sqrt(safe), 0.0)
            u = jnp.concatenate([first[None], u[1:]])
        return geometry.turn(s, u, self.p)


def interleaved(theta: jax.Array, omega: jax.Array) -> jax.Array:
    """[θ_1, ω_1, …, θ_n, ω_n] of both halves, (n,)."""
    return jnp.stack([theta, omega], axis=-1).reshape(-1)


# --- on the host ---------------------------------------------------------------------------------


def build(
    geometry: KinematicGeometry,
    *,
    P: ArrayLike,
    Q: ArrayLike,
    R: ArrayLike,
    gamma: float,
    p: float,
    Sigma: ArrayLike,
    action_noise: ArrayLike = 0.0,
    parameterization: Parameterization = "metric",
    dtype: DTypeLike | None = None,
    **switches: Option,
) -> KinematicGaussian:
    """The system of a ``geometry``: check the inputs, derive in float64 what a step needs, cast.

    Arguments are those of :func:`cojax.quadratic.build`, ``switches`` its ``law``, ``state_noise``,
    ``limit`` and ``R_hat``. Raises ValueError, one line, where one is not as stated there, where
    rem < 0 at some state, and in the MN form where rem has a rank above n. Source: the paper's arm,
    whose kinematic line the drift of the MN form does not give.
    """
    for name in ("P_hat", "Q_hat", "noise_cost", "state_columns"):
        if switches.get(name) is not None:
            raise InputError(f"{name}: expected none for a system of true kinematics")
    dtype = precision.usable_float(dtype)
    plain = quadratic.build(
        geometry, P=P, Q=Q, R=R, gamma=gamma, p=p, Sigma=Sigma, action_noise=action_noise,
        parameterization=parameterization, dtype=dtype, **switches,
    )  # fmt: skip
    n, d, tau = geometry.n, geometry.state_dim, float(geometry.tau)
    P, Q = (linalg.to_full(inputs.symmetric(*x, d)) for x in (("P", P), ("Q", Q)))
    R = inputs.symmetric("R", R, n)
    R_hat = quadratic.effort_of(geometry, P, R, weight=gamma * p**2, sigma=action_noise)
    R_inverse = linalg.inverse_spd(R_hat)
    carried, K0, rem = blocks(P, Q, gamma=gamma, tau=tau)

    full = K0 + (p * tau) ** 2 * linalg.to_full(R_inverse)
    nearest = linalg.inverse_sqrt_spd(full) @ (np.eye(d)[1::2] - carried.T)
    metric = parameterization == "metric"
    energy, one_way = roots(rem, P, nearest, slack=tolerance(dtype), metric=metric)
    lo, hi = linalg.extreme_eigenvalues(K0)
    hi += (p * geometry.input_norm()) ** 2 * linalg.extreme_eigenvalues(R_inverse)[1]
    leaves = {"carried": carried, "energy": energy.T, "K0": K0}
    leaves |= {} if metric else {"one_way": one_way}
    derived: Options = {name: linalg.to_device(x, dtype) for name, x in leaves.items()}
    derived["inverse_sqrt"] = inverse_sqrt.choose(K0, lo, hi, dtype)
    return KinematicGaussian(**(of_another(plain) | derived))


def blocks(
    P: Float[np.ndarray, "d d"], Q: Float[np.ndarray, "d d"], *, gamma: float, tau: float
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(C F)ᵀ, P_ωω⁻¹/γ and the matrix of rem, where f_θ = F s."""
    F = np.eye(len(P))[0::2] + tau * np.eye(len(P))[1::2]
    inverse = np.linalg.inv(P[1::2, 1::2])
    C = -inverse @ P[1::2, 0::2]
    psi = P[0::2, 0::2] + P[0::2, 1::2] @ C
    rem = P - Q - gamma * F.T @ psi @ F
    return (C @ F).T, 0.5 * (inverse + inverse.T) / gamma, 0.5 * (rem + rem.T)


def roots(
    rem: np.ndarray, P: np.ndarray, nearest: np.ndarray, *, slack: float, metric: bool
) -> tuple[np.ndarray, np.ndarray]:
    """L, (n, 2n), as near to ``nearest`` as its freedom on the left allows (Procrustes' problem),
    and E_1. Raises InputError where rem has eigenvalues, against V*, that no u accounts for, by
    more than ``slack``.
    """
    n, root, unroot = len(nearest), linalg.sqrt_psd(P), linalg.inverse_sqrt_spd(P)
    w, V = np.linalg.eigh(unroot @ rem @ unroot)
    if w[0] < -slack:
        raise InputError(
            "Q: expected sᵀ(P - Q)s >= γ f_θᵀΨ f_θ at every state, which θ' = θ + τ ω costs, "
            f"got {w[0]:.3g} as the least eigenvalue of the difference over V*; P, gamma and tau "
            "decide on Q"
        )
    if metric and w[n - 1] > slack:
        raise InputError(
            f"Q: expected sᵀ(P - Q)s - γ f_θᵀΨ f_θ of rank {n}, as of P's Riccati equation, got "
            f"{w[n - 1]:.3g} as its next eigenvalue over V*; parameterization='sqrt' takes any rank"
        )
    parts = (np.sqrt(np.clip(w, 0.0, None))[:, None] * V.T) @ root
    L, rest = parts[n:], parts[:n]
    left, _, right = np.linalg.svd(nearest @ L.T)
    L = left @ right @ L
    return L, np.outer(L[0], L[0]) + rest.T @ rest


def chain(n: int, tau: float) -> tuple[Float[np.ndarray, "d d"], Float[np.ndarray, "d n"]]:
    """A and G of θ' = θ + τ ω, ω' = ω + τ a for n joints."""
    eye = np.eye(n)
    return np.kron(eye, [[1.0, tau], [0.0, 1.0]]), np.kron(eye, [[0.0], [tau]])


def riccati(
    A: np.ndarray, G: np.ndarray, Q: np.ndarray, R: np.ndarray, *, gamma: float
) -> Float[np.ndarray, "d d"]:
    """P = Q + γAᵀPA - γ²AᵀPG (R + γGᵀPG)⁻¹ GᵀPA. Raises InputError where there is none."""
    root = np.sqrt(gamma)
    try:
        P = scipy.linalg.solve_discrete_are(root * A, root * G, Q, R)
    except np.linalg.LinAlgError as error:
        raise InputError(f"Q: the chain's Riccati equation has no solution: {error}") from None
    return 0.5 * (P + P.T)
