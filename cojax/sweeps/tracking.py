"""Where else a sweep is told of: TensorBoard and Weights & Biases, both extras.

The Parquet files of the results folder are always written and hold everything; trackers are for
looking on.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from cojax.errors import InputError
from cojax.experiments import events
from cojax.sweeps.config import Sweep

if TYPE_CHECKING:
    import pandas as pd


class Tracker(Protocol):
    """Told of a sweep as it goes."""

    def chunk(self, done: int, gaps: np.ndarray) -> None:
        """A chunk ended: members done in all, and its members' mean gaps, (M,)."""
        ...

    def end(self, rows: list[dict[str, Any]], curves: pd.DataFrame, folder: Path) -> None:
        """All is done, and ``folder`` is being filled."""
        ...


def trackers(
    config: Sweep, folder: str | Path, tensorboard: bool, wandb: str | None
) -> list[Tracker]:
    """Those asked for. Raises InputError, one line, where an extra is not installed."""
    found: list[Tracker] = []
    if tensorboard:
        found.append(TensorBoard())
    if wandb is not None:
        found.append(WeightsAndBiases(config, Path(folder), wandb))
    return found


class TensorBoard:
    """The curve of every member, as event files in ``FOLDER/tensorboard``."""

    def __init__(self) -> None:
        events.require()

    def chunk(self, done: int, gaps: np.ndarray) -> None:
        """Nothing: event files are written with the results, so that they are whole."""

    def end(self, rows: list[dict[str, Any]], curves: pd.DataFrame, folder: Path) -> None:
        """Write the event files."""
        del rows
        named = curves.assign(fixture=curves["algorithm"] + "/" + curves["fixture"])
        events.write_curves(folder / "tensorboard", named.drop(columns="group"))


class WeightsAndBiases:
    """One run for the sweep: its progress, then its table.

    Whether it is sent or kept is said by ``WANDB_MODE``, as everywhere: ``offline`` keeps it in
    ``wandb`` beside the results folder, for ``wandb sync``.
    """

    def __init__(self, config: Sweep, folder: Path, project: str) -> None:
        try:
            import wandb  # pyright: ignore[reportMissingImports]
        except ImportError:
            raise InputError("wandb: expected the extra, pip install 'cojax[tracking]'") from None
        folder.absolute().parent.mkdir(parents=True, exist_ok=True)
        self.wandb = wandb
        self.run = wandb.init(
            project=project,
            name=folder.name,
            config=config.content(),
            dir=str(folder.absolute().parent),
            settings=wandb.Settings(silent=True),
        )

    def chunk(self, done: int, gaps: np.ndarray) -> None:
        """Log members done, and the median and the best of their gaps."""
        finite = gaps[np.isfinite(gaps)]
        seen = {"members_done": done}
        if len(finite):
            seen |= {"gap/median": float(np.median(finite)), "gap/best": float(finite.min())}
        self.run.log(seen)

    def end(self, rows: list[dict[str, Any]], curves: pd.DataFrame, folder: Path) -> None:
        """Log the table and close the run."""
        del curves, folder
        columns: list[Any] = ["policy", "setting", "fixture", "bound"]
        table = self.wandb.Table(columns=[*columns, "median", "hyperparameters"])
        for row in rows:
            varied = ", ".join(f"{k}={v}" for k, v in row["hyperparameters"].items())
            table.add_data(*(row[name] for name in columns), row["seeds"]["median"], varied)
        self.run.log({"settings": table})
        if rows:
            self.run.summary["best_bound"] = min(row["bound"] for row in rows)
        self.run.finish()
