"""What an evaluation gives: every trial, and tables made of them."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from cojax.errors import InputError
from cojax.evaluation.intervals import interval_of_mean, interval_over_seeds
from cojax.types import Float, Row, Shaped

if TYPE_CHECKING:
    import pandas as pd

# Metrics of a trial and what a failed trial scores: the worst there is.
WORST = {
    "suboptimality": np.inf,
    "relative_suboptimality": np.inf,
    "tail_corrected": np.inf,
    "relative_tail_corrected": np.inf,
    "paper_optgap": -np.inf,
    "paper_regret": np.inf,
    "coupled_regret": np.inf,
    "discounted_return": -np.inf,
    "undiscounted_return": -np.inf,
    "action_distance": np.inf,
    "time_to_target": np.inf,
}
METRICS = tuple(WORST)
TAIL = "tail_value"  # γᵀ V*(s_T): the scale of what a finite horizon cuts from the gap
CONTROLLED = "suboptimality_controlled"  # of evaluations that were asked for it
NEVER_NEGATIVE = {"suboptimality", "relative_suboptimality", "action_distance", "time_to_target"}


@dataclasses.dataclass(frozen=True)
class Member:
    """One policy that was run: a policy's name, and where it sits in its population.

    Attributes:
        policy: its name, as tables call it.
        hyperparameters: index of its setting; None where there is one alone.
        seed: index of its training seed; None where there is one alone.
    """

    policy: str
    hyperparameters: int | None = None
    seed: int | None = None


@dataclasses.dataclass(frozen=True)
class Evaluation:
    """Every trial of every policy on every fixture.

    Attributes:
        fixtures: F names.
        members: M policies, seeds and hyperparameter settings counted apiece.
        trials: by metric, float64. Metrics of :data:`METRICS`, in units of cost, the
            relative ones as fractions of V*(s_0) (0 of 0 is 0, and a gap above 0 of it infinite);
            a failed trial holds the worst value there is, ±inf. Besides: ``optimal_value``
            V*(s_0), ``steps`` taken, ``saturated`` share of action components at the bound,
            ``reached`` the target set, ``failed``, ``diverged`` (stopped by the guard) and
            ``nonfinite``, the last four 0 or 1; ``tail_value``, γᵀ V*(s_T); and, where control
            variates were asked for, ``suboptimality_controlled``.
            The gaps are of the policy that hands over to π* at the horizon T. That of the policy
            itself is larger by γᵀ E[V^π(s_T) - V*(s_T)]: by at most ρ times the mean tail value
            where V^π <= (1 + ρ) V* on the states reached then.
        horizons: steps of an episode.
        root: seed of the streams.
        dtype: what the systems ran in.
        floors: for each fixture its resolution floor, a fraction of V*(s_0), below which no
            difference is claimed; None where it has no certificate.
        hashes: SHA-256 of each fixture, None where it is not one.
    """

    fixtures: tuple[str, ...]
    members: tuple[Member, ...]
    trials: dict[str, Float[np.ndarray, "F M N"]]
    horizons: Shaped[np.ndarray, " F"]
    root: int
    dtype: str
    floors: tuple[float | None, ...] = ()
    hashes: tuple[str | None, ...] = ()

    def __post_init__(self) -> None:
        """Refuse parts of different evaluations in one; raises ValueError."""
        F, M = len(self.fixtures), len(self.members)
        for name, values in self.trials.items():
            if np.shape(values)[:2] != (F, M):
                raise InputError(
                    f"trials: expected {F} fixtures and {M} members in {name}, "
                    f"got shape {np.shape(values)}"
                )
        for name in ("horizons", "floors", "hashes"):
            num = len(getattr(self, name))
            if num != F and (num or name == "horizons"):
                raise InputError(f"{name}: expected one for each of {F} fixtures, got {num}")

    @property
    def num_trials(self) -> int:
        """N."""
        return self.trials["failed"].shape[-1]

    def rows(self, **options: float | str) -> list[Row]:
        """One row for each fixture, policy and hyperparameter setting; seeds are averaged.

        Each metric is ``{"mean", "low", "high"}`` with a 95% paired bootstrap interval over trials
        (over seeds and trials where there are several seeds). With failures the mean over all
        trials is ±inf, and ``<metric>_completed`` leaves them out. ``options`` are those of
        :func:`cojax.evaluation.intervals.interval_of_mean`.
        """
        out = []
        for f, fixture in enumerate(self.fixtures):
            for (policy, setting), members in self.populations().items():
                row: Row = {"fixture": fixture, "policy": policy}
                if setting is not None:
                    row["setting"] = setting
                cells = {name: values[f, members] for name, values in self.trials.items()}
                row.update(summarize(cells, options))
                row["resolution_floor"] = self.floors[f] if self.floors else None
                out.append(row)
        return out

    def frame(self) -> pd.DataFrame:
        """One line for each fixture, policy, setting, seed and trial, with every metric."""
        import pandas as pd

        F, M, N = self.trials["failed"].shape
        columns: Row = {
            "fixture": np.repeat(self.fixtures, M * N),
            "policy": np.tile(np.repeat([m.policy for m in self.members], N), F),
        }
        for name, own in (("setting", "hyperparameters"), ("seed", "seed")):
            values = [getattr(m, own) for m in self.members]
            if any(v is not None for v in values):
                column = np.tile(np.repeat(np.array(values, object), N), F)
                columns[name] = pd.array(column.tolist(), dtype="Int64")
        columns["trial"] = np.tile(np.arange(N), F * M)
        for name, values in self.trials.items():
            columns[name] = values.reshape(-1)
        return pd.DataFrame(columns)

    def populations(self) -> dict[tuple[str, int | None], list[int]]:
        """Members that make one row: the seeds of one policy and setting."""
        groups: dict[tuple[str, int | None], list[int]] = {}
        for index, member in enumerate(self.members):
            groups.setdefault((member.policy, member.hyperparameters), []).append(index)
        return groups


def summarize(cells: dict[str, np.ndarray], options: Row) -> Row:
    """The rest of a row from its trials, (S, N) each: ``failed``, and whichever metrics there are.

    ``options`` are those of :func:`cojax.evaluation.intervals.interval_of_mean`.
    """
    metrics = [name for name in METRICS if name in cells]
    failed = cells["failed"].astype(bool)
    row: Row = {"num_trials": failed.shape[1]}
    if failed.shape[0] > 1:
        row["num_seeds"] = failed.shape[0]
    row["failures"] = int(failed.sum())
    row |= {name: int(cells[name].sum()) for name in ("diverged", "nonfinite") if name in cells}
    means = ("saturated", "reached", "optimal_value", TAIL)
    row |= {name: float(cells[name].mean()) for name in means if name in cells}
    values = np.stack([cells[name] for name in metrics])  # (metrics, S, N)
    if CONTROLLED in cells:
        row |= _intervals([CONTROLLED], cells[CONTROLLED][None], options)
    if not failed.any():
        return row | _intervals(metrics, values, options)
    row |= {name: cell_of(WORST[name], WORST[name], WORST[name]) for name in metrics}
    completed = ~failed.any(axis=0)
    names = [f"{name}_completed" for name in metrics]
    if not completed.any():
        return row | dict.fromkeys(names)
    return row | _intervals(names, values[..., completed], options)


def _intervals(names: list[str], values: np.ndarray, options: Row) -> Row:
    """Intervals of several metrics, (metrics, S, N), under the names given."""
    # where V*(s_0) is 0 a share of it may be infinite, and then so is the mean
    finite = np.array([np.isfinite(own).all() for own in values])
    worst = [WORST.get(name.removesuffix("_completed"), np.inf) for name in names]
    cells = {n: cell_of(w, w, w) for n, w, ok in zip(names, worst, finite, strict=True) if not ok}
    if not finite.any():
        return cells
    names, values = np.asarray(names)[finite].tolist(), values[finite]
    if values.shape[1] > 1:
        options = {k: v for k, v in options.items() if k != "method"}
        interval = interval_over_seeds(values, **options)
    else:
        interval = interval_of_mean(values[:, 0], **options)
    for name, mean, low, high in zip(names, *interval, strict=True):
        if name.removesuffix("_completed") in NEVER_NEGATIVE:
            low = max(low, 0.0)  # studentised ends know no bounds; the quantity has one
        cells[name] = cell_of(mean, low, high)
    return cells


def cell_of(mean: npt.ArrayLike, low: npt.ArrayLike, high: npt.ArrayLike) -> dict[str, float]:
    """What a table holds of an interval."""
    return {"mean": float(mean), "low": float(low), "high": float(high)}  # pyright: ignore
