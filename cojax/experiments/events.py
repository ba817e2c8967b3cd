"""TensorBoard event files; they need the extra ``tensorboard``.

Numbers that are not finite are left out: TensorBoard cannot draw them. The Parquet has them.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from cojax.errors import InputError

if TYPE_CHECKING:
    import pandas as pd

LABELS = ("fixture", "algorithm", "setting", "seed", "timesteps")


def require() -> type:
    """The writer; InputError, one line, where the extra is not installed."""
    try:
        from tensorboardX import SummaryWriter  # pyright: ignore[reportMissingImports]
    except ImportError:
        raise InputError(
            "tensorboard: expected the extra, pip install 'cojax[tensorboard]'"
        ) from None
    return SummaryWriter


def write_curves(folder: Path, curves: pd.DataFrame) -> None:
    """One run of TensorBoard for each fixture, setting and seed, from the curves of a training."""
    writer = require()
    tags = [name for name in curves.columns if name not in LABELS]
    runs = curves["fixture"] + "/setting-" + curves["setting"].astype(str)
    runs = runs + "/seed-" + curves["seed"].astype(str)
    for run in runs.unique():
        with writer(str(folder / run)) as events:
            mine = curves.loc[runs == run]
            steps = mine["timesteps"].to_numpy()
            for tag in tags:
                for step, number in zip(steps, mine[tag].to_numpy(np.float64), strict=True):
                    if np.isfinite(number):
                        events.add_scalar(tag, number, step)


class Live:
    """Medians over the members in training, to be looked at meanwhile."""

    def __init__(self, folder: Path) -> None:
        self.events = require()(str(folder))

    def write(self, steps: int, metrics: dict[str, Any]) -> None:
        """Write an interval as ``train`` tells it; ``evaluation`` has the name it has in tables."""
        for name, value in metrics.items():
            tag = "relative_suboptimality" if name == "evaluation" else name
            numbers = np.asarray(value, np.float64)
            middle = float(np.median(numbers))
            if np.isfinite(middle):
                self.events.add_scalar(tag, middle, steps)
        self.events.flush()

    def close(self) -> None:
        """Finish the file."""
        self.events.close()
