"""M(s)^{-1/2} u by products alone, for M = A + D with A constant and D ⪰ 0 that depends on s."""

from __future__ import annotations

import abc
import dataclasses
import math
from collections.abc import Callable, Hashable, Sequence
from typing import ClassVar, Self, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from jax import lax
from numpy.typing import DTypeLike

from cojax import linalg
from cojax.distinct import Distinct
from cojax.linalg import Symmetric, matvec, padded, product, written_out
from cojax.types import Array, Float, Int

Vector: TypeAlias = Float[Array, " d"]

MAX_CHEBYSHEV_CONDITION = 1e3  # beyond it a polynomial needs several hundred products
BLOCK = 8  # terms of a trimmed series between two tests of the loop; divides its padded length
UNROLLED_DEGREE = 24  # longer recurrences are rolled into a loop, to keep compilation short


class InverseSqrt(Distinct, abc.ABC):
    """How y = M^{-1/2} u is computed for M = A + D, A constant and D ⪰ 0 depending on the state.

    ``D`` is a function v ↦ D v. Every implementation is a pytree, uses products only, and is
    differentiable everywhere.
    """

    name: str
    aligns: ClassVar[bool] = False  # whether all of the class can be aligned

    @abc.abstractmethod
    def __call__(self, D: Callable[[Vector], Vector], u: Vector) -> Vector:
        """y = M^{-1/2} u."""

    @property
    def kind(self) -> Hashable:
        """Those of one kind, for states of one dimension, can be aligned, and then stacked."""
        return type(self) if self.aligns else linalg.shape_of(self)

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

    def blocks(self) -> Int[Array, ""] | None:
        """Blocks of :data:`BLOCK` terms that are not zero in all of a stacked batch; or None."""
        return None

    def trimmed(self, blocks: Int[Array, ""] | int | None) -> InverseSqrt:
        """The same by so many blocks of its series alone."""
        return self


@struct.dataclass
class ConstantInverseSqrt(InverseSqrt):
    """M does not depend on the state: M^{-1/2} is a matrix made once, or a diagonal."""

    matrix: Symmetric
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

    coefficients: Float[Array, "*batch K"]  # K = degree + 1
    twice_t_A: Symmetric  # 2 t(A) = 2 (2 A - (hi + lo) I) / (hi - lo)
    twice_t_D: Float[Array, "*batch"]  # 4 / (hi - lo), the factor of D in 2 t(M)
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
        return self if blocks is None else TrimmedInverseSqrt(self, blocks)

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
    num_blocks: Int[Array, ""] | int  # blocks of BLOCK terms; the same for all members
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

    A: Symmetric
    hi: Float[Array, "*batch"]
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
            W = 1.5 * eye - 0.5 * product(Z, Y)
            return product(Y, W), product(W, Z)

        _, Z = lax.fori_loop(0, self.iterations, step, (M, eye))
        return product(Z, u) / jnp.sqrt(self.hi)


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


def choose(
    A: np.ndarray,
    lo: float,
    hi: float,
    dtype: DTypeLike,
    *,
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
        M = A + constant_D if same else linalg.to_full(A) + linalg.to_full(constant_D)
        return ConstantInverseSqrt(matrix=linalg.to_device(linalg.inverse_sqrt_spd(M), dtype))
    eps = float(np.finfo(dtype).eps)
    if hi / lo <= MAX_CHEBYSHEV_CONDITION:
        hi = max(hi, lo * (1.0 + 1e-3))  # an interval of no length has no affine map
        c = chebyshev_coefficients(lo, hi, 0.25 * eps)
        identity = np.ones(A.shape) if A.ndim == 1 else np.eye(A.shape[0])
        return ChebyshevInverseSqrt(
            coefficients=linalg.to_device(c, dtype),
            twice_t_A=linalg.to_device(2.0 * (2.0 * A - (hi + lo) * identity) / (hi - lo), dtype),
            twice_t_D=linalg.to_device(4.0 / (hi - lo), dtype),
        )
    linear_phase = 0.5 * math.log(hi / lo) / math.log(1.5)
    quadratic_phase = math.log2(-math.log2(eps)) + 2
    return NewtonSchulzInverseSqrt(
        A=linalg.to_device(A, dtype),
        hi=linalg.to_device(hi, dtype),
        iterations=math.ceil(linear_phase + quadratic_phase),
    )
