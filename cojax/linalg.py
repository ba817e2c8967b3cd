"""Linear algebra of the construction: products, symmetric roots, rotations.

Throughout, a symmetric matrix is an array of shape (d, d), or (d,) when it is diagonal: which of
the two is known when a function is traced, so diagonal structure costs nothing to exploit.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from jax import lax
from jax.core import Tracer
from numpy.typing import ArrayLike, DTypeLike

from cojax.types import Array, Float, PyTree

Symmetric: TypeAlias = Float[Array, "*batch d d"] | Float[Array, "*batch d"]

HIGHEST = lax.Precision.HIGHEST
_precision: ContextVar[lax.Precision] = ContextVar("precision", default=HIGHEST)
_on_host: ContextVar[bool] = ContextVar("on_host", default=False)


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


@struct.dataclass
class Chosen:
    """One of k matrices, which a state says: :func:`product` and :func:`matvec` take it for B.

    x B is then a product with all k under each other, (k d, e), of x in the place of the chosen
    one and zeros: over a batch one product of matrices, where each state's own would be a small
    product for each.
    """

    matrices: Float[Array, "k d e"]
    weights: Float[Array, "k"]  # 1 for the chosen one, else 0
    ndim = 2


def product(A: jax.Array, B: jax.Array | Chosen) -> jax.Array:
    """A B, at the precision of the scope."""
    if isinstance(B, Chosen):
        A = (B.weights[:, None] * A[None]).reshape(-1)
        B = B.matrices.reshape(-1, B.matrices.shape[-1])
    return jnp.matmul(A, B, precision=_precision.get())


def matvec(A: Symmetric, x: Float[Array, "d"]) -> Float[Array, "d"]:
    """A x for a symmetric A, shape (d, d) or (d,) for a diagonal.

    Written xᵀA, so that a batch of x against one A is a single (batch, d) × (d, d) product.
    """
    return A * x if A.ndim == 1 else product(x, A)


def dot(x: Float[Array, "d"], y: Float[Array, "d"]) -> Float[Array, ""]:
    """xᵀy."""
    return jnp.sum(x * y, axis=-1)


def quadratic_form(A: Symmetric, x: Float[Array, "d"]) -> Float[Array, ""]:
    """xᵀA x for a symmetric A, shape (d, d) or (d,)."""
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


def to_device(x: ArrayLike, dtype: DTypeLike) -> jax.Array:
    """A host array on the device, rounded to a dtype on the host, which is faster."""
    array = np.asarray(x, dtype)
    return array if _on_host.get() else jnp.asarray(array)  # pyright: ignore[reportReturnType]


def to_full(A: np.ndarray) -> np.ndarray:
    """The (d, d) form of a symmetric matrix given as (d, d) or as its diagonal (d,)."""
    A = np.asarray(A, np.float64)
    return np.diag(A) if A.ndim == 1 else A


def subtract(P: np.ndarray, Q: np.ndarray) -> np.ndarray:
    """P - Q in the cheapest form that holds both."""
    return P - Q if P.ndim == Q.ndim else to_full(P) - to_full(Q)


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


def largest_share(A: np.ndarray, P: np.ndarray) -> float:
    """The largest x with A ⪰ x P, λ_min(P^{-1/2} A P^{-1/2}); P ≻ 0, each (d, d) or (d,)."""
    root = to_full(inverse_sqrt_spd(P))
    return float(np.linalg.eigvalsh(root @ to_full(A) @ root)[0])


def written_out(A: Symmetric, others: Sequence[Symmetric]) -> Symmetric:
    """A as (d, d) where any of ``others`` is, and as it is where all are diagonals (d,)."""
    if A.ndim != 1 or all(other.ndim == 1 for other in others):
        return A
    return jnp.diag(A) if isinstance(A, Tracer) else np.diag(np.asarray(A))  # pyright: ignore


def padded(A: jax.Array, length: int) -> jax.Array:
    """A with zeros at the end of its last axis; on the host, where every shape would else be
    compiled for.
    """
    widths = [(0, 0)] * (A.ndim - 1) + [(0, length - A.shape[-1])]
    return jnp.pad(A, widths) if isinstance(A, Tracer) else np.pad(np.asarray(A), widths)  # pyright: ignore


def shape_of(tree: PyTree) -> tuple[Hashable, ...]:
    """Structure of a pytree, and path and shape of its leaves."""
    leaves, structure = jax.tree_util.tree_flatten_with_path(tree)
    return structure, tuple((path, np.shape(x)) for path, x in leaves)


def lift(x: jax.Array, like: jax.Array) -> jax.Array:
    """x under leading axes of length 1, as many axes as ``like`` has: it then broadcasts also where
    people have set ``jax_numpy_rank_promotion`` to find their own slips.
    """
    return x.reshape((1,) * (like.ndim - x.ndim) + x.shape)


def solve_spd(A: Float[Array, "m m"], B: Float[Array, "m k"]) -> Float[Array, "m k"]:
    """X with A X = B for a small symmetric A ≻ 0: Gauss-Jordan elimination.

    A ≻ 0 needs no pivots. Vmapped, this is faster on CPU than a batch of LAPACK calls up to
    m = 20 or so, and two of those at a time can wait for each other for ever (jaxlib 0.10).
    """

    def eliminate(i: jax.Array, M: jax.Array) -> jax.Array:
        row = M[i] / M[i, i]
        return (M - M[:, i, None] * row[None]).at[i].set(row)

    m = A.shape[0]
    return lax.fori_loop(0, m, eliminate, jnp.concatenate([A, B], axis=1))[:, m:]


def log_det_spd(A: Float[Array, "m m"]) -> Float[Array, ""]:
    """log det A of a small symmetric A ≻ 0: the pivots of the elimination of :func:`solve_spd`."""

    def eliminate(i: jax.Array, carry: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        M, total = carry
        pivot = M[i, i]
        column = jnp.where(jnp.arange(m) > i, M[:, i], 0.0) / pivot
        return M - column[:, None] * M[i][None], total + jnp.log(pivot)

    m = A.shape[0]
    return lax.fori_loop(0, m, eliminate, (A, jnp.zeros((), A.dtype)))[1]


# --- planar rotations ----------------------------------------------------------------------------


def rotate(x: jax.Array, y: jax.Array, angle: jax.Array | float) -> tuple[jax.Array, jax.Array]:
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
