"""Where else a study is told of: TensorBoard and Weights & Biases, both extras.

The Parquet files of the results folder are always written and hold everything; trackers are for
looking on.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Protocol, cast

import numpy as np

from cojax.errors import InputError
from cojax.io.resume import unfinished
from cojax.studies.members import Chunk
from cojax.studies.schema import Study
from cojax.types import Row

if TYPE_CHECKING:
    import pandas as pd

LABELS = ("fixture", "algorithm", "setting", "seed", "timesteps")


class Tracker(Protocol):
    """Told of a study as it goes."""

    def interval(self, chunk: Chunk, steps: int, metrics: Row) -> None:
        """An interval of a chunk ended, ``steps`` environment steps of each member in; ``metrics``
        are those of ``train``'s progress.
        """
        ...

    def chunk(self, done: int, gaps: np.ndarray) -> None:
        """A chunk ended: members done in all, and its members' mean gaps, (M,)."""
        ...

    def end(self, rows: list[Row], curves: pd.DataFrame, folder: Path) -> None:
        """All is done, and ``folder`` is being filled."""
        ...


def trackers(
    config: Study, folder: str | Path, tensorboard: bool, wandb: str | None = None
) -> list[Tracker]:
    """Those asked for. Raises InputError, one line, where an extra is not installed."""
    found: list[Tracker] = []
    if tensorboard:
        found.append(TensorBoard(Path(folder)))
    if wandb is not None:
        found.append(WeightsAndBiases(config, Path(folder), wandb))
    return found


class TensorBoard:
    """The curve of every member, as event files in ``FOLDER/tensorboard``; while it trains, the
    medians of each chunk in ``FOLDER.unfinished/tensorboard``.

    Numbers that are not finite are left out: TensorBoard cannot draw them. The Parquet has them.
    """

    def __init__(self, folder: Path) -> None:
        try:
            from tensorboardX import SummaryWriter  # pyright: ignore[reportMissingImports]
        except ImportError:
            raise InputError(
                "tensorboard: expected the extra, pip install 'cojax[tensorboard]'"
            ) from None
        self.writer = SummaryWriter
        self.live = unfinished(folder) / "tensorboard"
        self.open: dict[Chunk, SummaryWriter] = {}

    def interval(self, chunk: Chunk, steps: int, metrics: Row) -> None:
        """Write medians; the ``evaluation`` of progress has the name it has in tables."""
        if chunk not in self.open:  # chunks of one process follow one another
            self._close()
            self.open[chunk] = self.writer(str(self.live / chunk.name))
        for name, value in metrics.items():
            tag = "relative_suboptimality" if name == "evaluation" else name
            middle = float(np.median(np.asarray(value, np.float64)))
            if np.isfinite(middle):
                self.open[chunk].add_scalar(tag, middle, steps)
        self.open[chunk].flush()

    def chunk(self, done: int, gaps: np.ndarray) -> None:
        """Nothing: event files are written with the results, so that they are whole."""

    def end(self, rows: list[Row], curves: pd.DataFrame, folder: Path) -> None:
        """Write the event files: one run of TensorBoard for each member."""
        del rows
        self._close()
        tags = [name for name in curves.columns if name not in LABELS]
        several = len(set(curves["algorithm"])) > 1
        for labels, mine in curves.groupby(list(LABELS[:-1]), sort=False):
            fixture, algorithm, setting, seed = map(str, cast("tuple", labels))
            where = folder / "tensorboard" / (algorithm if several else "") / fixture
            with self.writer(str(where / f"setting-{setting}" / f"seed-{seed}")) as events:
                steps = mine["timesteps"].to_numpy()
                for tag in tags:
                    for step, number in zip(steps, mine[tag].to_numpy(np.float64), strict=True):
                        if np.isfinite(number):
                            events.add_scalar(tag, number, step)

    def _close(self) -> None:
        while self.open:
            self.open.popitem()[1].close()


class WeightsAndBiases:
    """One run for the study: its progress, then its table.

    Whether it is sent or kept is said by ``WANDB_MODE``, as everywhere: ``offline`` keeps it in
    ``wandb`` beside the results folder, for ``wandb sync``.
    """

    def __init__(self, config: Study, folder: Path, project: str) -> None:
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

    def interval(self, chunk: Chunk, steps: int, metrics: Row) -> None:
        """Nothing: chunks are told of."""

    def chunk(self, done: int, gaps: np.ndarray) -> None:
        """Log members done, and the median and the best of their gaps."""
        finite = gaps[np.isfinite(gaps)]
        seen = {"members_done": done}
        if len(finite):
            seen |= {"gap/median": float(np.median(finite)), "gap/best": float(finite.min())}
        self.run.log(seen)

    def end(self, rows: list[Row], curves: pd.DataFrame, folder: Path) -> None:
        """Log the table and close the run."""
        del curves, folder
        names = ["policy", "setting", "fixture", "median", "hyperparameters"]
        table = self.wandb.Table(columns=names)
        learned = [row for row in rows if "hyperparameters" in row]
        for row in learned:
            varied = ", ".join(f"{k}={v}" for k, v in row["hyperparameters"].items())
            table.add_data(*(row[name] for name in names[:3]), _median(row), varied)
        self.run.log({"settings": table})
        if learned:
            self.run.summary["best_median"] = min(map(_median, learned))
        self.run.finish()


def _median(row: Row) -> float:
    return row.get("seeds", row["last"])["median"]
