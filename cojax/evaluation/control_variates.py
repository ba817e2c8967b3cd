"""Control variates for the advantage-exact gap: sums whose expectation is known to be zero.

Along a trajectory with mean next states z_k = z(s_k, a_k) and white noise w_k,

    L = Σ γᵏ⁺¹ w_k        X = Σ γᵏ⁺¹ z_k w_k, row by row        M = tail-corrected - suboptimality

have mean zero for every policy and every zero-mean noise, and so has φ(s_0) - E φ(s_0) for
coordinates and products of s_0. Where the gap to go is about a quadratic in s, the gap of a trial
is about a linear combination c_iᵀβ of these, and

    x̃_i = x_i - c_iᵀβ₍₋ᵢ₎

has the same mean and less variance (Glasserman, Monte Carlo Methods in Financial Engineering, 2003,
sec. 4.1). β₍₋ᵢ₎ is fitted by least squares to the trials of the other folds, of eight, and does not
depend on trial i: so there is no bias. Measured on nvdex-k1-easy over 250 steps, 400 repeats of 256
trials, 31 variates: the standard error falls to 22% (zero) and 10% (detuned-oracle:0.5), 95%
intervals cover 95.3% and 95.0%; with β fitted to all trials they covered 92.5% and 93.2%.
"""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from cojax.envs import EnvParams
from cojax.evaluation.aggregates import scores
from cojax.evaluation.intervals import interval_over_seeds
from cojax.evaluation.metrics import CONTROLLED
from cojax.evaluation.result import Evaluation
from cojax.types import Array, Float, PRNGKeyArray, Row

TRIALS_EACH = 8  # trials that a variate has to have, or fewer variates are used
DRAWS = 512  # of the initial law for each trial, for the mean of functions of s_0
FOLDS = 8
_BLOCK = 64  # trials


def features(
    s0: Float[Array, "*batch d"], value: Float[Array, "*batch"], products: str
) -> Float[Array, "*batch p"]:
    """Functions of initial states (…, d) with V*(s_0) (…), to (…, p): coordinates and their
    products ("all"), coordinates and squares ("squares"), or V*(s_0) alone ("value").
    """
    if products == "value":
        return value[..., None]
    if products == "squares":
        return jnp.concatenate([s0, s0**2], axis=-1)
    rows, columns = np.triu_indices(s0.shape[-1])
    return jnp.concatenate([s0, s0[..., rows] * s0[..., columns]], axis=-1)


def centred_features(
    params: EnvParams,
    s0: Float[np.ndarray, "N d"],
    starts: Float[Array, "k d"] | None,
    *,
    products: str,
    root: PRNGKeyArray,
) -> Float[np.ndarray, "N p"]:
    """φ(s_0) - E φ(s_0) of each trial, (N, p), with mean zero.

    Over the initial law, every trial subtracts the mean over 512 draws of its own: exactly mean
    zero, independent between trials, with 1/512 more variance. Over ``starts`` (k, d), where
    states are listed, E is their mean.
    """
    value = jax.vmap(params.system.value)
    states = jnp.asarray(s0, params.system.gamma.dtype)
    own = np.asarray(features(states, value(states), products), np.float64)
    if starts is not None:
        listed = jnp.asarray(starts)
        return own - np.asarray(features(listed, value(listed), products), np.float64).mean(axis=0)
    key = jax.random.fold_in(root, 0x5EED)
    means = []
    for first in range(0, len(own), _BLOCK):
        keys = jax.random.split(jax.random.fold_in(key, first), (_BLOCK, DRAWS))
        means.append(np.asarray(_mean_features(products, params, keys), np.float64))
    return own - np.concatenate(means)[: len(own)]


@partial(jax.jit, static_argnums=(0,))
def _mean_features(products: str, params: EnvParams, keys: Array) -> Array:
    def one(key):
        s0 = params.initial_state.sample(key)
        return features(s0, params.system.value(s0), products)

    return jnp.mean(jax.vmap(jax.vmap(one))(keys), axis=1)


def choose(num_trials: int, dim: int) -> str | None:
    """Which functions of s_0 there are trials for; None where there are too few for any."""
    sizes = {"all": 1 + 3 * dim + dim * (dim + 1) // 2, "squares": 1 + 4 * dim, "value": 2}
    for products, size in sizes.items():
        if TRIALS_EACH * size <= num_trials:
            return products
    return None


def controlled(
    gap: Float[np.ndarray, " N"],
    noise: Float[np.ndarray, "N q"],
    martingale: Float[np.ndarray, " N"],
    initial: Float[np.ndarray, "N p"],
) -> Float[np.ndarray, " N"]:
    """Values x̃ of one policy on one fixture, (N,), from its gaps (N,), L and X (N, 2d), M (N,) and
    centred functions of s_0 (N, p). A gap that is not finite leaves them all as they are.
    """
    if not np.isfinite(gap).all():
        return gap
    c = np.concatenate([martingale[:, None], noise, initial], axis=1)
    scale = c.std(axis=0)
    moving = scale > 1e-9 * np.abs(c).max(axis=0, initial=1e-300)
    c = c[:, moving] / scale[moving]
    design = np.concatenate([np.ones((len(gap), 1)), c], axis=1)
    fold = np.arange(len(gap)) % FOLDS
    out = gap.copy()
    for k in range(FOLDS):
        beta = np.linalg.lstsq(design[fold != k], gap[fold != k], rcond=1e-7)[0]
        out[fold == k] -= c[fold == k] @ beta[1:]
    return out


def control(
    raw: dict[str, np.ndarray],
    params: list[EnvParams],
    starts: Float[Array, "k d"] | None,
    root: PRNGKeyArray,
) -> Float[np.ndarray, "F M N"]:
    """x̃ of all fixtures and members, (F, M, N), from the program's sums ``raw``."""
    gap = raw["advantage"]
    F, M, N = gap.shape
    out = gap.copy()
    dim = raw["initial_state"].shape[1]
    products = choose(N, dim)
    if products is None:
        return out
    cost, value = raw["discounted_cost"], raw["optimal_value"]
    martingale = cost + raw["final_discount"] * raw["final_value"] - value - gap
    for f in range(F):
        initial = centred_features(
            params[f],
            raw["initial_state"][f].T,
            starts,
            products=products,
            root=jax.random.fold_in(root, f),
        )
        for m in range(M):
            noise = raw["controls"][f, :, m].T if products != "value" else np.zeros((N, 0))
            out[f, m] = controlled(gap[f, m], noise, martingale[f, m], initial)
    return out


def estimator_efficiency(evaluation: Evaluation, share: float = 0.05) -> list[Row]:
    """How many trials each estimator of the gap needs for one interval width.

    The width is ± ``share`` of the advantage-exact mean, so N = (1.96 sd/(share · mean))², with
    the sd over trials of each estimator, its square averaged over seeds; ``ratio`` is
    tail-corrected over advantage-exact. ``agree``: the interval of the paired difference of these
    two holds 0. An evaluation with ``controls`` also has ``controlled``, the advantage-exact one
    with control variates, ``controlled_ratio``, tail-corrected over it, and ``controlled_agree``.
    Policies with failures or without a gap are left out.
    """
    table = scores(evaluation, "suboptimality")
    others = {
        "advantage_exact": table,
        "tail_corrected": scores(evaluation, "tail_corrected"),
        "return_difference": scores(evaluation, "coupled_regret"),
    }
    if CONTROLLED in evaluation.trials:
        others["controlled"] = {
            name: evaluation.trials[CONTROLLED][:, members]
            for name, members in zip(table, evaluation.populations().values(), strict=True)
        }

    def agree(x, y):  # whether the interval of the paired difference of (S, N) scores holds 0
        low, high = interval_over_seeds(x - y)[1:]
        return bool(low <= 0.0 <= high)

    rows = []
    for f, fixture in enumerate(evaluation.fixtures):
        for policy, exact in table.items():
            mean_gap = float(exact[f].mean())
            if not np.isfinite(exact[f]).all() or mean_gap <= 0.0:
                continue
            row: Row = {"fixture": fixture, "policy": policy, "mean": mean_gap}
            for name, estimates in others.items():
                variance = float(np.mean(estimates[policy][f].var(axis=1, ddof=1)))
                row[name] = (1.96 / (share * mean_gap)) ** 2 * variance
            corrected = others["tail_corrected"][policy][f]
            row["agree"] = agree(corrected, exact[f])
            row["ratio"] = row["tail_corrected"] / max(row["advantage_exact"], 1e-300)
            if "controlled" in others:
                row["controlled_agree"] = agree(corrected, others["controlled"][policy][f])
                row["controlled_ratio"] = row["tail_corrected"] / max(row["controlled"], 1e-300)
            rows.append(row)
    return rows
