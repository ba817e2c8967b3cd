"""Do 95% intervals hold the exact gap 95% of the time? On the dithered oracle it is known."""

import numpy as np
import pytest

import cojax
from cojax.evaluation import evaluate
from cojax.evaluation.doctor import dithered_gap
from cojax.evaluation.intervals import interval_of_mean

REPEATS = 1000


@pytest.mark.slow
@pytest.mark.parametrize("num_steps", [20, 200])
def test_intervals_of_the_dithered_gap_cover_it(num_steps):
    params = cojax.make("NVDEx-v0", preset="easy")[1]
    exact = dithered_gap(params, 0.05, num_steps)
    for root, num_trials in enumerate((32, 128, 512)):
        total = REPEATS * num_trials
        result = evaluate(
            "dithered-oracle:0.05", params, total, root, num_steps=num_steps, chunk=4000
        )
        x = result.trials["suboptimality"][0, 0].reshape(REPEATS, num_trials)
        _, low, high = interval_of_mean(x)
        covered = np.mean((low <= exact) & (exact <= high))
        print(f"{num_steps} steps, {num_trials} trials: {covered:.1%}")
        assert 0.93 <= covered <= 0.97, (num_trials, covered)
