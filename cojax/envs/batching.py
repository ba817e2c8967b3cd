"""Many systems of one shape as one pytree, so that they cost one compilation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from cojax import inputs, linalg, precision
from cojax.envs.params import EnvParams
from cojax.errors import InputError
from cojax.noise import DiagonalGaussian, Gaussian
from cojax.quadratic import QuadraticGaussian

MATRICES = ("P", "Q", "R", "P_minus_Q", "root", "A", "R_inverse", "P_hat", "Q_hat", "R_hat")


def stack(params: Sequence[EnvParams]) -> EnvParams:
    """Stack params of one shape along a new leading axis of every leaf.

    Differences of shape that carry no meaning are levelled first: Chebyshev series are padded
    with zeros (the result is the same to the bit), noise with rows of zero deviation, and
    diagonal matrices are written out where others are full.

    Raises ValueError for an empty list, and where shapes differ, naming the first that does.
    """
    params = list(params)
    if not params:
        raise InputError("stack: expected at least one params, got an empty list")
    if all(isinstance(p.system, QuadraticGaussian) for p in params):
        levelled = level([p.system for p in params])  # pyright: ignore
        pairs = zip(params, levelled, strict=True)
        params = [inputs.swapped(p, system=s) for p, s in pairs]
    first = jax.tree_util.tree_flatten_with_path(params[0])[0]
    for index, other in enumerate(params[1:], start=1):
        leaves = jax.tree_util.tree_flatten_with_path(other)[0]
        if jax.tree.structure(other) != jax.tree.structure(params[0]):
            raise InputError(
                f"stack: number {index} is built of other parts than number 0 "
                "(family, dimensions, noise or initial law); stack those of one shape"
            )
        for (path, a), (_, b) in zip(first, leaves, strict=True):
            if jnp.shape(a) != jnp.shape(b):
                raise InputError(
                    f"stack: {jax.tree_util.keystr(path).lstrip('.')} has shape {jnp.shape(b)} in "
                    f"number {index} and {jnp.shape(a)} in number 0; stack those of one shape"
                )
    return jax.tree.map(_stack, *params)


def _stack(*leaves: Any) -> jax.Array:
    """Stack on the host, which for a thousand small arrays is many times faster."""
    if any(isinstance(leaf, Tracer) for leaf in leaves):
        return jnp.stack(leaves)
    with precision.x64():  # where a float64 leaf stays one
        return jnp.asarray(np.stack([np.asarray(leaf) for leaf in leaves]))


def unstack(batch: EnvParams) -> list[EnvParams]:
    """The params of a stacked batch, one by one."""
    num = num_instances(batch)
    if num is None:
        return [batch]
    return [jax.tree.map(lambda leaf, i=i: leaf[i], batch) for i in range(num)]


def num_instances(params: Any) -> int | None:
    """How many systems a batch holds; None for params that are not stacked."""
    shape = jnp.shape(params.max_steps_in_episode)
    return shape[0] if shape else None


def level(systems: Sequence[QuadraticGaussian]) -> list[QuadraticGaussian]:
    """Bring systems to one shape where the difference carries no meaning."""
    out = [dict(vars(s)) for s in systems]
    for name in MATRICES:
        if all(s[name] is not None for s in out) and len({s[name].ndim for s in out}) > 1:
            for s in out:
                s[name] = _full(s[name])
    _level_roots(out)
    _level_noise(out)
    return [QuadraticGaussian(**s) for s in out]


def _full(A: Any) -> Any:
    if A.ndim != 1:
        return A
    return jnp.diag(A) if isinstance(A, Tracer) else np.diag(np.asarray(A))


def _pad(A: Any, widths: Any) -> Any:
    """Pad with zeros at the end; on the host, where every shape would else be compiled for."""
    return jnp.pad(A, widths) if isinstance(A, Tracer) else np.pad(np.asarray(A), widths)


def _level_roots(systems: list[dict[str, Any]]) -> None:
    roots = [s["inverse_root"] for s in systems]
    if all(isinstance(r, linalg.ChebyshevRoot) for r in roots):
        length = max(r.coefficients.shape[0] for r in roots)
        full = len({r.twice_t_A.ndim for r in roots}) > 1
        for s, r in zip(systems, roots, strict=True):
            missing = length - r.coefficients.shape[0]
            s["inverse_root"] = r.replace(
                coefficients=_pad(r.coefficients, (0, missing)),
                twice_t_A=_full(r.twice_t_A) if full else r.twice_t_A,
            )
    elif all(isinstance(r, linalg.ConstantRoot) for r in roots):
        if len({r.matrix.ndim for r in roots}) > 1:
            for s, r in zip(systems, roots, strict=True):
                s["inverse_root"] = r.replace(matrix=_full(r.matrix))
    elif all(isinstance(r, linalg.NewtonSchulzRoot) for r in roots):
        iterations = max(r.iterations for r in roots)
        full = len({r.A.ndim for r in roots}) > 1
        for s, r in zip(systems, roots, strict=True):
            A = _full(r.A) if full else r.A
            s["inverse_root"] = r.replace(iterations=iterations, A=A)


def _level_noise(systems: list[dict[str, Any]]) -> None:
    models = [s["noise"] for s in systems]
    if all(isinstance(m, DiagonalGaussian) for m in models):
        longest = max(models, key=lambda m: len(m.rows))
        if all(m.dim == longest.dim and longest.rows[: len(m.rows)] == m.rows for m in models):
            for s, m in zip(systems, models, strict=True):
                missing = len(longest.rows) - len(m.rows)
                s["noise"] = longest.replace(sigma=_pad(m.sigma, (0, missing)))
    elif all(isinstance(m, Gaussian) for m in models):
        rank = max(m.L.shape[1] for m in models)
        for s, m in zip(systems, models, strict=True):
            s["noise"] = m.replace(L=_pad(m.L, ((0, 0), (0, rank - m.L.shape[1]))))
