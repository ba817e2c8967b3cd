"""Linear algebra of the construction: symmetric roots, M^{-1/2} u by products alone, rotations.

Throughout, a symmetric matrix is an array of shape (d, d), or (d,) when it is diagonal: which of
the two is known when a function is traced, so diagonal structure costs nothing to exploit.
"""

from __future__ import annotations

import abc
import dataclasses
import math
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, ClassVar, Self

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from jax import lax
from jax.core import Tracer

HIGHEST = lax.Precision.HIGHEST
_precision: ContextVar[lax.Precision] = ContextVar("precision", default=HIGHEST)
_on_host: ContextVar[bool] = ContextVar("on_host", default=False)

MAX_CHEBYSHEV_CONDITION = 1e3  # beyond it a polynomial needs several hundred products
BLOCK = 8  # terms of a trimmed series between two tests of the loop; divides its padded length
UNROLLED_DEGREE = 24  # longer recurrences are rolled into a loop, to keep compilation short


# --- products ------------------------------------------------------------------------------------


@contextmanager
def default_precision() -> Iterator[None]:
    """Scope in which what is traced multiplies at the backend's own precision, not the highest.

    For the precision ledger of certificates alone: on some accelerators it is far below float32.
    """
    token = _precision.set(lax.Precision.DEFAULT)
    try:
        yield
    finally:
        _precision.reset(token)


def matvec(A: jax.Array, x: jax.Array) -> jax.Array:
    """A x for a symmetric A, shape (d, d) or (d,) for a diagonal; x has shape (d,).

    Written xᵀA, so that a batch of x against one A is a single (batch, d) × (d, d) product.
    """
    return A * x if A.ndim == 1 else jnp.matmul(x, A, precision=_precision.get())


def dot(x: jax.Array, y: jax.Array) -> jax.Array:
    """xᵀy for vectors of shape (d,)."""
    return jnp.sum(x * y, axis=-1)


def quadratic_form(A: jax.Array, x: jax.Array) -> jax.Array:
    """xᵀA x for a symmetric A, shape (d, d) or (d,); x has shape (d,)."""
    return dot(x, matvec(A, x))


# --- on the host, in float64 ---------------------------------------------------------------------


@contextmanager
def host_arrays() -> Iterator[None]:
    """Scope in which what is built keeps its arrays on the host, for systems that are stacked
    next: for a thousand of them the transfers of single leaves would cost more than all the rest.
    """
    token = _on_host.set(True)
    try:
        yield
    finally:
        _on_host.reset(token)


def to_device(x: Any, dtype: Any) -> jax.Array:
    """A host array on the device, rounded to a dtype on the host, which is faster."""
    array = np.asarray(x, dtype)
    return array if _on_host.get() else jnp.asarray(array)  # pyright: ignore[reportReturnType]


def to_full(A: np.ndarray) -> np.ndarray:
    """The (d, d) form of a symmetric matrix given as (d, d) or as its diagonal (d,)."""
    A = np.asarray(A, np.float64)
    return np.diag(A) if A.ndim == 1 else A


def apply_spectral(A: np.ndarray, function: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
    """f(A) = V f(Λ) Vᵀ for a symmetric A on the host; a diagonal stays a diagonal."""
    A = np.asarray(A, np.float64)
    if A.ndim == 1:
        return function(A)
    eigenvalues, V = np.linalg.eigh(A)
    result = (V * function(eigenvalues)) @ V.T
    return 0.5 * (result + result.T)


def sqrt_psd(A: np.ndarray) -> np.ndarray:
    """Principal square root A^{1/2} of a symmetric A ⪰ 0; rounding below zero is cut."""
    return apply_spectral(A, lambda w: np.sqrt(np.clip(w, 0.0, None)))


def inverse_sqrt_spd(A: np.ndarray) -> np.ndarray:
    """A^{-1/2} of a symmetric A ≻ 0."""
    return apply_spectral(A, lambda w: w**-0.5)


def inverse_spd(A: np.ndarray) -> np.ndarray:
    """A^{-1} of a symmetric A ≻ 0."""
    return apply_spectral(A, lambda w: 1.0 / w)


def extreme_eigenvalues(A: np.ndarray) -> tuple[float, float]:
    """(λ_min, λ_max) of a symmetric matrix, (d, d) or (d,)."""
    w = np.sort(A) if A.ndim == 1 else np.linalg.eigvalsh(A)
    return float(w[0]), float(w[-1])


def written_out(A: Any, others: Sequence[Any]) -> Any:
    """A as (d, d) where any of ``others`` is, and as it is where all are diagonals (d,)."""
    if A.ndim != 1 or all(other.ndim == 1 for other in others):
        return A
    return jnp.diag(A) if isinstance(A, Tracer) else np.diag(np.asarray(A))


def padded(A: Any, length: int) -> Any:
    """A with zeros at the end of its last axis; on the host, where every shape would else be
    compiled for.
    """
    widths = [(0, 0)] * (A.ndim - 1) + [(0, length - A.shape[-1])]
    return jnp.pad(A, widths) if isinstance(A, Tracer) else np.pad(np.asarray(A), widths)


def shape_of(tree: Any) -> tuple[Hashable, ...]:
    """Structure of a pytree, and path and shape of its leaves."""
    leaves, structure = jax.tree_util.tree_flatten_with_path(tree)
    return structure, tuple((path, np.shape(x)) for path, x in leaves)


def lift(x: jax.Array, like: jax.Array) -> jax.Array:
    """x under leading axes of length 1, as many axes as ``like`` has: it then broadcasts also where
    people have set ``jax_numpy_rank_promotion`` to find their own slips.
    """
    return x.reshape((1,) * (like.ndim - x.ndim) + x.shape)


def solve_spd(A: jax.Array, B: jax.Array) -> jax.Array:
    """X, (m, k), with A X = B for a small symmetric A ≻ 0, (m, m): Gauss-Jordan elimination.

    A ≻ 0 needs no pivots. Vmapped, this is faster on CPU than a batch of LAPACK calls up to
    m = 20 or so, and two of those at a time can wait for each other for ever (jaxlib 0.10).
    """

    def eliminate(i: jax.Array, M: jax.Array) -> jax.Array:
        row = M[i] / M[i, i]
        return (M - M[:, i, None] * row[None]).at[i].set(row)

    m = A.shape[0]
    return lax.fori_loop(0, m, eliminate, jnp.concatenate([A, B], axis=1))[:, m:]


# --- M(s)^{-1/2} u -------------------------------------------------------------------------------


class InverseSqrt(abc.ABC):
    """How y = M^{-1/2} u is computed for M = A + D, A constant and D ⪰ 0 depending on the state.

    ``D`` is a function v ↦ D v. Every implementation is a pytree, uses products only, and is
    differentiable everywhere.
    """

    name: str
    aligns: ClassVar[bool] = False  # whether all of the class can be aligned

    @abc.abstractmethod
    def __call__(self, D: Callable[[jax.Array], jax.Array], u: jax.Array) -> jax.Array:
        """y = M^{-1/2} u; u and y have shape (d,)."""

    @property
    def kind(self) -> Hashable:
        """Those of one kind, for states of one dimension, can be aligned, and then stacked."""
        return type(self) if self.aligns else shape_of(self)

    def aligned(self, others: Sequence[Self]) -> Self:
        """The same in a shape that ``others`` of its kind, itself among them, have in common."""
        return self

    @property
    def length(self) -> int:
        """Terms of a series, which zeros can follow; 0 where there is none."""
        return 0

    def padded_to(self, length: int) -> Self:
        """The same with zeros after its series, to the bit."""
        return self

    def blocks(self) -> jax.Array | None:
        """Blocks of :data:`BLOCK` terms that are not zero in all of a stacked batch; or None."""
        return None

    def trimmed(self, blocks: Any) -> InverseSqrt:
        """The same by so many blocks of its series alone."""
        return self


@struct.dataclass
class ConstantInverseSqrt(InverseSqrt):
    """M does not depend on the state: M^{-1/2} is a matrix made once, or a diagonal."""

    matrix: jax.Array  # (d, d) or (d,)
    name = "constant"
    aligns = True

    def __call__(self, D, u):
        """y = M^{-1/2} u by one product."""
        return matvec(self.matrix, u)

    def aligned(self, others):
        """Full where others are."""
        full = written_out(self.matrix, [r.matrix for r in others])
        return dataclasses.replace(self, matrix=full)


@struct.dataclass
class ChebyshevInverseSqrt(InverseSqrt):
    """x^{-1/2} ≈ Σ_k c_k T_k(t(x)) on [lo, hi] ⊇ spec M(s), t affine onto [-1, 1].

    Evaluated by Clenshaw's recurrence b_k = c_k u + 2 t(M) b_{k+1} - b_{k+2},
    y = c_0 u + t(M) b_1 - b_2 (Clenshaw 1955; Higham, Functions of Matrices, 2008, ch. 4).
    One product with ``twice_t_A`` and one with D for each degree.
    """

    coefficients: jax.Array  # (degree + 1,)
    twice_t_A: jax.Array  # 2 t(A) = 2 (2 A - (hi + lo) I) / (hi - lo); (d, d) or (d,)
    twice_t_D: jax.Array  # 4 / (hi - lo), the factor of D in 2 t(M)
    name = "chebyshev"
    aligns = True

    def aligned(self, others):
        """As long as the longest, and full where others are."""
        A = written_out(self.twice_t_A, [r.twice_t_A for r in others])
        return dataclasses.replace(self, twice_t_A=A).padded_to(max(r.length for r in others))

    @property
    def length(self):
        """Its coefficients."""
        return self.coefficients.shape[-1]

    def padded_to(self, length):
        """Zeros after its coefficients."""
        return dataclasses.replace(self, coefficients=padded(self.coefficients, length))

    def blocks(self):
        """Up to the last coefficient of any that is not zero."""
        terms = jnp.arange(1, self.length + 1)
        return -(-jnp.max(jnp.where(self.coefficients != 0.0, terms, 0)) // BLOCK)

    def trimmed(self, blocks):
        """The first ``blocks``."""
        return TrimmedInverseSqrt(self, blocks)

    def __call__(self, D, u):
        """y = M^{-1/2} u to the accuracy of the dtype the coefficients were chosen for."""

        def twice_t(v):
            return matvec(self.twice_t_A, v) + self.twice_t_D * D(v)

        c = self.coefficients
        degree = c.shape[0] - 1
        zero = jnp.zeros_like(u)
        if degree <= UNROLLED_DEGREE:
            b1, b2 = zero, zero
            for k in range(degree, 0, -1):
                b1, b2 = c[k] * u + twice_t(b1) - b2 if k < degree else c[k] * u, b1
        else:
            (b1, b2), _ = lax.scan(
                lambda b, c_k: ((c_k * u + twice_t(b[0]) - b[1], b[0]), None),
                (zero, zero),
                c[:0:-1],
            )
        return c[0] * u + 0.5 * twice_t(b1) - b2


@struct.dataclass
class TrimmedInverseSqrt(InverseSqrt):
    """The Chebyshev series of a batch without the zeros that lead all its members.

    Batches share one padded length, and one compilation; the sum starts at the first block of
    terms that some member has. Clenshaw's recurrence goes one term further than
    :class:`ChebyshevInverseSqrt`: y = b_0 - t(M) b_1. It has no derivative.
    """

    series: ChebyshevInverseSqrt
    num_blocks: jax.Array  # (): blocks of BLOCK terms; the same for all members
    name = "chebyshev"

    def __call__(self, D, u):
        """y = M^{-1/2} u, as the whole series gives it."""
        series = self.series

        def twice_t(v):
            return matvec(series.twice_t_A, v) + series.twice_t_D * D(v)

        def block(i, b):
            b1, b2 = b
            c = lax.dynamic_slice(
                series.coefficients, (BLOCK * (self.num_blocks - 1 - i),), (BLOCK,)
            )
            for k in reversed(range(BLOCK)):
                b1, b2 = c[k] * u + twice_t(b1) - b2, b1
            return b1, b2

        zero = jnp.zeros_like(u)
        b0, b1 = lax.fori_loop(0, self.num_blocks, block, (zero, zero))
        return b0 - 0.5 * twice_t(b1)


@struct.dataclass
class NewtonSchulzInverseSqrt(InverseSqrt):
    """Coupled Newton-Schulz iteration for ill-conditioned M, with M formed once a state.

    Y_0 = M/hi, Z_0 = I, W = (3 I - Z_k Y_k)/2, Y_{k+1} = Y_k W, Z_{k+1} = W Z_k: Y → (M/hi)^{1/2},
    Z → (M/hi)^{-1/2} for every spectrum in (0, hi], the smallest eigenvalue growing by 3/2 an
    iteration until it converges quadratically (Higham 2008, eq. 6.35). ``iterations`` is chosen
    from hi/lo when the system is built.
    """

    A: jax.Array  # (d, d) or (d,)
    hi: jax.Array
    iterations: int = struct.field(pytree_node=False)
    name = "newton-schulz"
    aligns = True

    def aligned(self, others):
        """As many iterations as any takes, and full where others are."""
        A = written_out(self.A, [r.A for r in others])
        return dataclasses.replace(self, A=A, iterations=max(r.iterations for r in others))

    def __call__(self, D, u):
        """y = M^{-1/2} u = Z u / sqrt(hi)."""
        eye = jnp.eye(u.shape[-1], dtype=u.dtype)
        A = jnp.diag(self.A) if self.A.ndim == 1 else self.A
        M = (A + jax.vmap(D)(eye)) / self.hi

        def step(_, YZ):
            Y, Z = YZ
            W = 1.5 * eye - 0.5 * jnp.matmul(Z, Y, precision=_precision.get())
            return jnp.matmul(Y, W, precision=_precision.get()), jnp.matmul(
                W, Z, precision=_precision.get()
            )

        _, Z = lax.fori_loop(0, self.iterations, step, (M, eye))
        return jnp.matmul(Z, u, precision=_precision.get()) / jnp.sqrt(self.hi)


def chebyshev_coefficients(lo: float, hi: float, tolerance: float) -> np.ndarray:
    """Coefficients c_0 … c_K of x^{-1/2} on [lo, hi], cut where the tail falls below tolerance.

    The coefficients decay like ϱ^{-k}, ϱ = (√κ + 1)/(√κ - 1) with κ = hi/lo, so the dropped tail
    is at most |c_{K+1}|/(1 - 1/ϱ). The tolerance is relative to hi^{-1/2}, the smallest value of
    x^{-1/2} on the interval, and so bounds the relative error at every eigenvalue. K is even, so
    that systems of like spectrum share one shape (Trefethen, Approximation Theory and
    Approximation Practice, 2013, thm. 8.1).

    Raises ValueError unless 0 < lo < hi.
    """
    if not 0.0 < lo < hi:
        raise ValueError(f"spectrum: expected 0 < lo < hi, got [{lo:g}, {hi:g}]")
    kappa_root = math.sqrt(hi / lo)
    decay = math.log((kappa_root + 1.0) / (kappa_root - 1.0))
    longest = 2 * math.ceil(0.5 * math.log(4.0 * kappa_root / tolerance) / decay) + 2
    angles = (np.arange(2 * longest) + 0.5) * np.pi / (2 * longest)
    x = 0.5 * (hi - lo) * np.cos(angles) + 0.5 * (hi + lo)
    c = np.cos(np.outer(np.arange(longest + 1), angles)) @ x**-0.5 / longest
    c[0] *= 0.5
    tail = np.abs(c) * math.sqrt(hi) / (1.0 - math.exp(-decay))
    below = np.flatnonzero(tail < tolerance)
    degree = int(below[0]) - 1 if below.size else longest
    return c[: max(2, degree + degree % 2) + 1]


def inverse_sqrt(
    A: np.ndarray,
    lo: float,
    hi: float,
    dtype: np.dtype,
    constant_D: np.ndarray | None = None,
) -> InverseSqrt:
    """Choose how M^{-1/2} u is computed for M = A + D with spectrum in [lo, hi].

    Args:
        A: constant part, (d, d) or (d,), float64 on the host.
        lo, hi: bounds on the spectrum of M(s) over all states.
        dtype: the precision the system runs in; it sets the degree.
        constant_D: D itself, (d, d) or (d,), where it does not depend on the state.
    """
    dtype = np.dtype(dtype)
    if constant_D is not None:
        same = A.ndim == constant_D.ndim
        M = A + constant_D if same else to_full(A) + to_full(constant_D)
        return ConstantInverseSqrt(matrix=to_device(inverse_sqrt_spd(M), dtype))
    eps = float(np.finfo(dtype).eps)
    if hi / lo <= MAX_CHEBYSHEV_CONDITION:
        hi = max(hi, lo * (1.0 + 1e-3))  # an interval of no length has no affine map
        c = chebyshev_coefficients(lo, hi, 0.25 * eps)
        identity = np.ones(A.shape) if A.ndim == 1 else np.eye(A.shape[0])
        return ChebyshevInverseSqrt(
            coefficients=to_device(c, dtype),
            twice_t_A=to_device(2.0 * (2.0 * A - (hi + lo) * identity) / (hi - lo), dtype),
            twice_t_D=to_device(4.0 / (hi - lo), dtype),
        )
    linear_phase = 0.5 * math.log(hi / lo) / math.log(1.5)
    quadratic_phase = math.log2(-math.log2(eps)) + 2
    return NewtonSchulzInverseSqrt(
        A=to_device(A, dtype),
        hi=to_device(hi, dtype),
        iterations=math.ceil(linear_phase + quadratic_phase),
    )


# --- planar rotations ----------------------------------------------------------------------------


def rotate(x: jax.Array, y: jax.Array, angle: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Givens rotation G(x, y; φ): (x, y) ↦ (cos φ x - sin φ y, sin φ x + cos φ y), elementwise."""
    c, s = jnp.cos(angle), jnp.sin(angle)
    return c * x - s * y, s * x + c * y


def rotate_chain(x: jax.Array, angles: jax.Array) -> jax.Array:
    """Rotate neighbours (x_1, x_2), (x_2, x_3), … in turn, each on the outcome of the one before.

    x has shape (n,), angles (n - 1,). O(n), no matrix is formed: with the carry t_1 = x_1,
    x'_i = cos φ_i t_i - sin φ_i x_{i+1} and t_{i+1} = sin φ_i t_i + cos φ_i x_{i+1}; x'_n = t_n.
    """
    if x.shape[-1] == 1:
        return x
    # A loop, since an unrolled recurrence is fused into each of its n outcomes: O(n²) work.
    last, rotated = lax.scan(_rotate_next, x[0], (jnp.cos(angles), jnp.sin(angles), x[1:]))
    return jnp.concatenate([rotated, last[None]])


def _rotate_next(t: jax.Array, csx: tuple) -> tuple[jax.Array, jax.Array]:
    """One link of the chain: the carry t meets the next entry."""
    c, s, x_next = csx
    return s * t + c * x_next, c * t - s * x_next
