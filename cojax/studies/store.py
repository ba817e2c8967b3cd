"""What a study has done so far, on disk: chunks, each there whole or not at all."""

from __future__ import annotations

import dataclasses
import json
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING

import jax
import numpy as np

from cojax.agents import load_policy, save_policy
from cojax.agents.checkpoint import save_tree
from cojax.errors import InputError
from cojax.io import files, json_text, tables
from cojax.io.resume import check_part, part
from cojax.named_policies import MEMBERS
from cojax.policy import Policy
from cojax.studies.engine import Result
from cojax.studies.members import Chunk, Group
from cojax.types import Content, Json

if TYPE_CHECKING:
    import pandas as pd

CURVES = "curves.parquet"
POLICIES, BEST = "policies.npz", "best.npz"
LEARNERS = "learners"
STATUS = "status.json"
DATABASE = "search.sqlite"


@dataclasses.dataclass(frozen=True)
class Store:
    """Chunks of one study in a folder; a single process writes it, under a lock held elsewhere."""

    folder: Path

    @property
    def chunks(self) -> Path:
        """Where chunks are."""
        return self.folder / "chunks"

    def state(self, chunk: Chunk) -> Path:
        """Where the learners of a chunk in training are kept."""
        return self.folder / "learners" / chunk.name

    def done(self) -> list[Chunk]:
        """Chunks that are there, in order. Raises InputError for a folder that is none."""
        if not self.chunks.is_dir():
            return []
        found = []
        for entry in self.chunks.iterdir():
            if entry.name.endswith((".new", ".sha256")):  # cut short, or a checksum
                continue
            try:
                found.append(Chunk.named(entry.name))
            except (ValueError, TypeError):
                raise InputError(f"{entry}: expected a chunk, GROUP-START-STOP") from None
        return sorted(found)

    def write(self, group: Group, result: Result, policies: bool) -> None:
        """Add a chunk."""
        self.chunks.mkdir(exist_ok=True)
        with part(self.chunks, result.chunk.name) as folder:
            tables.write(member_frame(group, result), folder / MEMBERS)
            tables.write(curve_frame(group, result), folder / CURVES)
            if policies:
                save_policy(folder / POLICIES, result.policy)
                if result.best is not None:
                    save_policy(folder / BEST, result.best)
            if result.learners is not None:
                save_tree(folder / LEARNERS, result.learners)

    def read(self, name: str) -> pd.DataFrame:
        """A table of all chunks, in the order of their members."""
        import pandas as pd

        return pd.concat(
            [tables.read(self.chunks / chunk.name / name) for chunk in self.done()],
            ignore_index=True,
        )

    def policies(self, group: Group, name: str, *, settings: bool) -> Policy:
        """Policies of a group: axes "fixture", "hyperparameters" where there are ``settings``, and
        "seed".
        """
        files = [self.chunks / c.name / name for c in self.done() if c.group == group.number]
        parts = [load_policy(file) for file in files]

        def whole(*leaves):
            x = np.concatenate([np.asarray(leaf) for leaf in leaves])
            x = x.reshape(group.shape + x.shape[1:]).swapaxes(0, 1)
            return x if settings else x[:, 0]

        axes = ("fixture", "hyperparameters", "seed") if settings else ("fixture", "seed")
        params = jax.tree.map(whole, *(part.params for part in parts))
        return dataclasses.replace(parts[0], params=params, axes=axes)

    def check(self) -> None:
        """Raise InputError, one line, for the first chunk that is not as it was written."""
        for chunk in self.done():
            check_part(self.chunks, chunk.name)

    def decide(self, name: str, value: Json = None) -> Json:
        """A decision that later sittings keep: the one that was noted, or ``value``, now noted."""
        file = self.folder / f"{name}.json"
        if file.exists():
            return json_text.load(file)
        if value is not None:
            files.write_whole(file, json.dumps(value) + "\n")
        return value

    def note(self, **about: Json) -> None:
        """Leave a line for ``cojax status``: where the work stands now."""
        about |= {"pid": os.getpid(), "time": time.time()}
        files.write_whole(self.folder / STATUS, json.dumps(about))

    def noted(self) -> Content:
        """What was noted last; {} for nothing."""
        file = self.folder / STATUS
        return json_text.load(file, dict) if file.exists() else {}


def _labels(group: Group, chunk: Chunk) -> dict[str, np.ndarray]:
    setting, system, seed = group.labels(np.arange(chunk.start, chunk.stop))
    return {
        "fixture": np.array([one.id for one in group.systems], object)[system],
        "algorithm": np.full(chunk.size, group.spec.name, object),
        "setting": np.asarray(group.settings)[setting],
        "seed": seed,
    }


def member_frame(group: Group, result: Result) -> pd.DataFrame:
    """One line for each member: how its training ended and, of a sweep, its gap on the held-out
    streams.
    """
    import pandas as pd

    columns = {
        **_labels(group, result.chunk),
        "group": group.number,
        "timesteps": int(result.timesteps[-1]),
        "gamma": result.gamma.astype(np.float64),
        "failed": result.failed,
        "last_on_curve": _gap(result.curve[:, -1]),
        "best_on_curve": _gap(result.curve).min(axis=1),
        "episode_return": result.metrics["episode_return"][:, -1].astype(np.float64),
    }
    if result.gaps is not None:
        gaps = result.gaps.astype(np.float64)
        columns |= {
            "relative_suboptimality": gaps.mean(axis=1),
            "diverged": np.isinf(gaps).mean(axis=1),
            "trial_gaps": list(result.gaps.astype(np.float32)),
            "policy_file": f"{result.chunk.name}.npz",
            "policy_index": np.arange(len(gaps)),
        }
    return pd.DataFrame(columns)


def curve_frame(group: Group, result: Result) -> pd.DataFrame:
    """Gap and metrics of each member and interval, long form."""
    import pandas as pd

    M, K = result.curve.shape
    labels = {name: np.repeat(x, K) for name, x in _labels(group, result.chunk).items()}
    metrics = {name: x.ravel().astype(np.float64) for name, x in result.metrics.items()}
    return pd.DataFrame(
        {
            **labels,
            "timesteps": np.tile(result.timesteps, M),
            "relative_suboptimality": _gap(result.curve).ravel(),
            **metrics,
        }
    )


def trial_frame(members: pd.DataFrame) -> pd.DataFrame:
    """One line for each member and trial, as results folders have it, of :func:`member_frame`'s."""
    import pandas as pd

    gaps = np.stack(list(members["trial_gaps"])).astype(np.float64)
    M, N = gaps.shape
    labels = {"fixture": "fixture", "policy": "algorithm", "setting": "setting", "seed": "seed"}
    repeated = {name: np.repeat(members[own].to_numpy(), N) for name, own in labels.items()}
    return pd.DataFrame(
        {
            **repeated,
            "trial": np.tile(np.arange(N), M),
            "relative_suboptimality": gaps.ravel(),
            "failed": np.isinf(gaps).ravel(),
        }
    )


def _gap(x: np.ndarray) -> np.ndarray:
    """Float64; what is not a number is a failure, and infinite."""
    x = np.asarray(x, np.float64)
    return np.where(np.isnan(x), np.inf, x)
