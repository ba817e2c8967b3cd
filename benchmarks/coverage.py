"""How often 95% intervals hold the truth: of differences, means over seeds, statistics and shares.

    python benchmarks/coverage.py
    python benchmarks/coverage.py --repeats 200 --only differences

Scores are a level, a seed's effect (normal, or lognormal less its mean), an effect that policies
share in a trial, and noise. A side of one seed is a fixed policy. Beside the share of intervals
that hold the truth stands, for differences, that of p > 0.05, which must be the same.
"""

from __future__ import annotations

import argparse

import numpy as np
from scipy import stats

from cojax.evaluation import aggregate, performance_profile, probability_of_improvement
from cojax.evaluation.intervals import difference, interval_over_seeds
from cojax.studies.rows import log_gap_upper_bound

LAWS = {"normal": 0.0, "lognormal 0.5": 0.5, "lognormal 1": 1.0}
PAIRS = (
    (1, 1),
    (1, 2),
    (1, 4),
    (1, 10),
    (2, 2),
    (2, 4),
    (2, 10),
    (4, 4),
    (4, 5),
    (4, 10),
    (10, 10),
)
N = 64


def effects(rng, law, shape):
    """Of mean 0 and, but for their law, spread about 1."""
    z = rng.normal(size=shape)
    return np.exp(law * z) - np.exp(0.5 * law**2) if law else z


def scores(rng, law, num_seeds, shared):
    """(S, N) of mean 0."""
    own = effects(rng, law, (num_seeds, 1)) + 0.3 * rng.normal(size=(num_seeds, N))
    return (own if num_seeds > 1 else rng.normal(size=(1, N))) + shared


def differences(law, repeats):
    """Interval and p of a difference that is 0, by numbers of seeds."""
    out = {}
    for S, T in PAIRS:
        rng = np.random.default_rng(S * 100 + T)
        hits = agree = 0
        for _ in range(repeats):
            shared = rng.normal(size=(1, N))
            x, y = scores(rng, law, S, shared), scores(rng, law, T, shared)
            (_, low, high), p = difference(x, y, num_resamples=2000)
            hits += low <= 0.0 <= high
            agree += p > 0.05
        out[f"{S} - {T}"] = f"{hits / repeats:.1%} ({agree / repeats:.1%})"
    return out


def means(law, repeats):
    """Interval of a mean over seeds; upper bound of the typical gap of a setting (of 90%)."""
    out = {}
    for S in (1, 2, 4, 10):
        rng = np.random.default_rng(S)
        hits = bound = 0
        for _ in range(repeats):
            x = scores(rng, law, S, rng.normal(size=(1, N)))
            _, low, high = interval_over_seeds(x, num_resamples=2000)
            hits += low <= 0.0 <= high
            if S > 1:
                factors = np.exp((law or 0.2) * rng.normal(size=(S, 1)) + 0 * x)
                bound += log_gap_upper_bound(factors, 0.9) >= 1.0
        out[f"mean, {S}"] = f"{hits / repeats:.1%}"
        if S > 1:
            out[f"bound, {S}"] = f"{bound / repeats:.1%}"
    return out


def several(law, repeats):
    """Statistics and shares over five systems of other levels."""
    out = {}
    levels = np.array([0.05, 0.2, 0.5, 2.0, 8.0])[:, None, None]
    for S in (1, 2, 4, 10):
        rng = np.random.default_rng(S)

        def draw(shift=0.0, num=S, rng=rng):
            own = effects(rng, law, (5, num, 1)) if num > 1 else np.zeros((5, 1, 1))
            return levels * (1.0 + shift + 0.3 * own + 0.1 * rng.normal(size=(5, num, N)))

        found = {name: [] for name in ("mean", "median", "iqm")}
        share, better = [], []
        for _ in range(repeats):
            x, y = draw(), draw(0.2)
            for name in found:
                found[name].append(aggregate(x, name, num_resamples=300))
            share.append(np.ravel(performance_profile(x, [0.4], num_resamples=100)))
            better.append(probability_of_improvement(x, y, num_resamples=100))
        found |= {"share": share} | ({"P(better)": better} if S > 1 else {})
        if law and S > 1:
            a, b = (effects(rng, law, 4000) * 0.3 + s for s in (0.0, 0.2))
            exact = 1.0 - stats.mannwhitneyu(a, b).statistic / 4000**2
        else:
            exact = stats.norm.cdf(0.2 / (0.3 * 2**0.5))
        for name, intervals in found.items():
            middle, low, high = np.transpose(intervals)
            true = exact if name == "P(better)" else middle.mean()
            out[f"{name}, {S}"] = f"{np.mean((low <= true) & (true <= high)):.1%}"
    return out


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=2000)
    parser.add_argument("--only", choices=("differences", "means", "several"))
    options = parser.parse_args()
    if options.repeats < 1:
        parser.error("--repeats: expected at least 1")
    for study in (differences, means, several):
        if options.only in (None, study.__name__):
            table = {name: study(law, options.repeats) for name, law in LAWS.items()}
            print(f"\n{study.__doc__}\n")
            print("| seeds | " + " | ".join(table) + " |\n|---|" + "---|" * len(table))
            for key in next(iter(table.values())):
                print(f"| {key} | " + " | ".join(t[key] for t in table.values()) + " |")


if __name__ == "__main__":
    main()
