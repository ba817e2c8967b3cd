"""Means of seeds that all meet the same trials, and differences of two: interval and p-value.

An estimate is a signed sum of means, m = Σ_i ± mean(x_i), of cells x_i of shape (S_i, N): S_i
training seeds, drawn apart for each side, by N trials, the same for all. With D_t the signed sum of
column means, its variance has the parts (two-way random effects, a side of one seed being fixed)

    v_i = Σ_s (x_is. - x_i)²/(S_i(S_i-1))        seeds of side i
    v_t = Σ_t (D_t - m)²/(N(N-1))                trials
    v_c = Σ_i Σ_st (x_ist - x_is. - x_i.t + x_i)²/((S_i-1)(N-1) S_i N), which v_i and v_t both hold

    v = max(Σ_i v_i + max(v_t - v_c, 0), v_t, v_c)

Interval and p-value of one estimate come from one pivot, so that 0 lies outside of the interval
of confidence 1 - p' exactly where p < p'.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from functools import cached_property, lru_cache

import numpy as np
from scipy import special

from cojax.types import Float, Shaped

FEW = 8  # of seeds, or of trials where there is one seed: below, there are too few resamples
_DEGENERATE = 1e-12  # of the variance: a resample below it has no spread of its own
_OUTERMOST = 20  # resamples in a tail that say how likely it is; beyond them it is Student's
_LEAST = 1e-100  # p-values are not told apart below


@dataclasses.dataclass(frozen=True)
class Student:
    """Student's, with the quantile of each part of the variance weighted by the part.

        half = max(√v (w t_f + (1-w) t_{N-1}),  t_{N-1} √max(v_t, v_c)),   w = Σ_i v_i / v

    f, of the seeds of two sides, is Satterthwaite's; but where a side of two seeds happens to have
    little spread that is far too large, so f is at most the one of variances drawn half way to the
    pooled one, and t_f at most Cochran and Cox's Σ_i v_i t_{S_i-1}/Σ_i v_i.

    Attributes:
        mean: m.
        seeds, sizes: v_i and S_i of the sides with several seeds, (k,).
        trials: v_t.
        cells: v_c.
        num_trials: N.
    """

    mean: float
    seeds: Float[np.ndarray, " k"]
    sizes: Shaped[np.ndarray, " k"]
    trials: float
    cells: float
    num_trials: int

    @classmethod
    def of(cls, sides: Sequence[Float[np.ndarray, "S N"]]) -> Student:
        """Of cells with their signs; a mean over trials alone where every S_i is 1."""
        N = sides[0].shape[1]
        columns = np.sum([x.mean(axis=0) for x in sides], axis=0)
        several = [x for x in sides if len(x) > 1]
        cells = 0.0
        for x in several:
            rest = x - x.mean(axis=1, keepdims=True) - x.mean(axis=0) + x.mean()
            cells += np.sum(rest**2) / ((len(x) - 1) * max(N - 1, 1) * x.size)
        return cls(
            mean=float(columns.mean()),
            seeds=np.array([np.var(x.mean(axis=1), ddof=1) / len(x) for x in several]),
            sizes=np.array([len(x) for x in several]),
            trials=float(np.var(columns, ddof=1) / N) if N > 1 else 0.0,
            cells=float(cells),
            num_trials=N,
        )

    @cached_property
    def variance(self) -> float:
        """v."""
        least = max(self.trials, self.cells)
        return float(max(self.seeds.sum() + max(self.trials - self.cells, 0.0), least))

    @cached_property
    def freedom(self) -> float:
        """f, of the seeds."""
        own, sizes = self.seeds, self.sizes
        pooled = np.sum(own * sizes * (sizes - 1)) / np.sum(sizes - 1) / sizes
        drawn = (own * (sizes - 1) + pooled) / sizes
        return float(min(np.sum(v) ** 2 / np.sum(v**2 / (sizes - 1)) for v in (own, drawn)))

    def half(self, tail: float) -> float:
        """Half the width of the interval that leaves out ``tail`` on either side."""
        of_trials = -special.stdtrit(self.num_trials - 1, tail)
        of_seeds, total = 0.0, self.seeds.sum()
        if total > 0.0:
            separate = np.sum(self.seeds * -special.stdtrit(self.sizes - 1, tail)) / total
            of_seeds = min(-special.stdtrit(self.freedom, tail), separate)
        rest = max(self.trials - self.cells, 0.0)
        mixed = of_seeds * total + (of_trials * rest if rest else 0.0)
        mixed = mixed / np.sqrt(total + rest) if mixed else 0.0
        least = max(self.trials, self.cells)
        return float(max(mixed, of_trials * np.sqrt(least) if least else 0.0))

    def interval(self, confidence: float) -> tuple[float, float]:
        """Ends of the equal-tailed interval, of half-width ``half``."""
        half = self.half(0.5 * (1.0 - confidence))
        return self.mean - half, self.mean + half

    def p(self) -> float:
        """Two-sided p-value of the mean being 0: the level whose interval ends at 0, by bisection
        of its logarithm.
        """
        if self.variance == 0.0:
            return float(self.mean == 0.0)
        low, high = np.log(_LEAST), np.log(0.5)
        if self.half(_LEAST) <= abs(self.mean):
            return _LEAST
        while high - low > 1e-10:
            middle = 0.5 * (low + high)
            if self.half(float(np.exp(middle))) > abs(self.mean):
                low = middle
            else:
                high = middle
        return float(2.0 * np.exp(high))


@dataclasses.dataclass(frozen=True)
class Resampled:
    """Bootstrap-t of one side: quantiles of (m* - m)/√v*, seeds and trials drawn independently and
    cells weighted by the product of their counts (Owen, The pigeonhole bootstrap, Ann. Appl.
    Stat. 2007). Beyond the outermost 20 resamples the tail is Student's.

    Attributes:
        mean: m.
        ordered: of all resamples, increasing.
        error: √(v_1 + v_t).
        freedom: of the tail.
    """

    mean: float
    ordered: Float[np.ndarray, " R"]
    error: float
    freedom: float

    @classmethod
    def of(cls, cells: Float[np.ndarray, "S N"], num_resamples: int, seed: int) -> Resampled | None:
        """Of cells; None where too many resamples have no spread of their own."""
        S, N = cells.shape
        d = cells - cells.mean()
        of_trials = counts(N, num_resamples, seed) / N
        of_seeds = counts(S, num_resamples, seed + 1) / S
        rows, columns = of_trials @ d.T, of_seeds @ d  # (num_resamples, S), (num_resamples, N)
        means = np.sum(rows * of_seeds, axis=1)
        v = _spread(columns, of_trials, means) + _spread(rows, of_seeds, means)
        student = Student.of([cells])
        whole = student.seeds.sum() + student.trials
        flat = v <= _DEGENERATE * whole
        if np.mean(flat) > 1e-3:
            return None
        ordered = np.sort(means[~flat] / np.sqrt(v[~flat]))
        freedom = student.freedom if S > 1 else float(N - 1)
        return cls(student.mean, ordered, float(np.sqrt(whole)), freedom)

    def interval(self, confidence: float) -> tuple[float, float]:
        """Ends of the equal-tailed interval, m - √v times the quantiles of the other end."""
        tail, last = 0.5 * (1.0 - confidence), len(self.ordered) - 1
        upper, lower = self.ordered[[round((1.0 - tail) * last), round(tail * last)]]
        return self.mean - upper * self.error, self.mean - lower * self.error

    def p(self) -> float:
        """Two-sided p-value of the mean being 0: twice the share of resamples beyond m/√v."""
        t, total = self.mean / self.error, len(self.ordered)
        if t > 0.0:
            beyond, anchor = np.sum(self.ordered >= t), self.ordered[-_OUTERMOST]
        else:
            beyond, anchor = np.sum(self.ordered <= t), -self.ordered[_OUTERMOST - 1]
        if beyond >= _OUTERMOST or not 0.0 < anchor < abs(t):
            return float(min(1.0, 2.0 * max(beyond, 1) / total))
        ratio = np.divide(*special.stdtr(self.freedom, [-abs(t), -anchor]))
        return float(max(2.0 * _OUTERMOST / total * ratio, _LEAST))


def pivot(
    cells: Float[np.ndarray, "S N"], method: str, num_resamples: int, seed: int
) -> Student | Resampled:
    """The pivot of cells, not all equal; ``method`` is "auto" (studentized from 8 seeds on,
    and from 8 trials on where there is one seed), "studentized" or "student-t".
    """
    fewest = len(cells) if len(cells) > 1 else cells.shape[1]
    if method == "studentized" or (method == "auto" and fewest >= FEW):
        resampled = Resampled.of(cells, num_resamples, seed)
        if resampled is not None:
            return resampled
    return Student.of([cells])


def _spread(values: np.ndarray, weights: np.ndarray, means: np.ndarray) -> np.ndarray:
    """Variance of the mean of units, in each resample, by their shares of it; 0 of one unit."""
    squares = np.sum((values - means[:, None]) ** 2 * weights, axis=1)
    return squares / max(values.shape[1] - 1, 1) if values.shape[1] > 1 else 0.0 * squares


# --- resamples -----------------------------------------------------------------------------------


@lru_cache(maxsize=8)
def counts(N: int, num_resamples: int, seed: int) -> Float[np.ndarray, "R N"]:
    """How often each of N units is drawn in each of R resamples, read-only."""
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


def runs_of_resampled_trials(
    x: Float[np.ndarray, "F S N"], num_resamples: int, seed: int
) -> Float[np.ndarray, "R F S"]:
    """Means over resampled trials, the same for all runs; infinite where a failed one was drawn."""
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

    return lambda runs: np.take_along_axis(np.broadcast_to(runs, drawn.shape), drawn, axis=-1)
