"""Resamples of a bootstrap: how often each trial is drawn, and which seeds."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

import numpy as np


@lru_cache(maxsize=8)
def counts(N: int, num_resamples: int, seed: int) -> np.ndarray:
    """How often each of N units is drawn in each resample, (num_resamples, N), read-only."""
    rng = np.random.default_rng(np.random.SeedSequence([seed, N, num_resamples]))
    result = np.empty((num_resamples, N))
    block = max(1, 2**22 // N)
    for first in range(0, num_resamples, block):
        rows = min(block, num_resamples - first)
        drawn = rng.integers(0, N, (rows, N), dtype=np.int32) + N * np.arange(rows)[:, None]
        result[first : first + rows] = np.bincount(drawn.ravel(), minlength=rows * N).reshape(
            rows, N
        )
    result.flags.writeable = False
    return result


def runs_of_resampled_trials(x: np.ndarray, num_resamples: int, seed: int) -> np.ndarray:
    """Means over resampled trials of scores (F, S, N): (num_resamples, F, S), the same trials for
    all; infinite where a failed trial was drawn.
    """
    F, S, N = x.shape
    weights = counts(N, num_resamples, seed)
    finite = np.isfinite(x)
    runs = weights @ np.where(finite, x, 0.0).reshape(F * S, N).T / N
    if not finite.all():
        hit = weights @ (~finite).reshape(F * S, N).T.astype(float) > 0
        runs = np.where(hit, np.inf, runs)
    return runs.reshape(num_resamples, F, S)


def draw_seeds(
    shape: tuple[int, int], num_resamples: int, seed: int
) -> Callable[[np.ndarray], np.ndarray]:
    """A function that draws seeds within each fixture, from runs ([num_resamples,] F, S)."""
    F, S = shape
    rng = np.random.default_rng(np.random.SeedSequence([seed, F, S]))
    drawn = rng.integers(0, S, (num_resamples, F, S))

    def take(runs: np.ndarray) -> np.ndarray:
        return np.take_along_axis(np.broadcast_to(runs, drawn.shape), drawn, axis=-1)

    return take
