"""What an evaluation gives: every trial, and tables made of them."""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from cojax.errors import InputError
from cojax.evaluation import provenance
from cojax.evaluation.metrics import METRIC, flat, summarize
from cojax.policy import Setting
from cojax.types import Float, Json, Row, Shaped

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure


@dataclasses.dataclass(frozen=True)
class Member:
    """One policy that was run: a policy's name, and where it sits in its population.

    Attributes:
        policy: its name, as tables call it.
        hyperparameters: index of its setting; None where there is one alone.
        seed: index of its training seed; None where there is one alone.
        values: pairs (name, value) of its setting, where somebody said.
    """

    policy: str
    hyperparameters: int | None = None
    seed: int | None = None
    values: Setting = dataclasses.field(default=(), compare=False)


@dataclasses.dataclass(frozen=True, repr=False)
class Evaluation:
    """Every trial of every policy on every fixture.

    :meth:`table` and :meth:`plot` show it, :meth:`rows` and :meth:`to_frame` give numbers,
    :meth:`save` writes it, and :func:`cojax.compare` holds two against each other.

    Attributes:
        fixtures: F names.
        members: M policies, seeds and hyperparameter settings counted apiece.
        trials: by metric, float64. Those of ``cojax.evaluation.METRICS``, in units of cost, the
            relative ones as fractions of V*(s_0) (0 of 0 is 0, a gap above 0 of it infinite);
            a failed trial holds the worst value there is, ±inf. Besides: ``optimal_value``
            V*(s_0), ``steps`` taken, ``saturated`` share of action components at the bound,
            ``reached`` the target set, ``failed``, ``diverged`` (stopped by the guard) and
            ``nonfinite``, the last four 0 or 1; ``tail_value``, γᵀ V*(s_T); and, where control
            variates were asked for, ``suboptimality_controlled``. Of systems with measures
            (:mod:`cojax.budgets`) each sum, ``measured_NAME``, and ``excess_NAME`` where its
            optimum is known; NaN on systems without it.
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

        Of a run's policies over settings, ``hyperparameters`` holds those that were varied.

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
                if values := self.members[members[0]].values:
                    row["hyperparameters"] = dict(values)
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

    def to_frame(self, **options: float | str) -> pd.DataFrame:
        """The :meth:`rows` with a number a column: ``relative_suboptimality``,
        ``relative_suboptimality_low``, ``relative_suboptimality_high``, and so on.

        ``options`` are those of :meth:`rows`.
        """
        import pandas as pd

        return pd.DataFrame([flat(row) for row in self.rows(**options)])

    def table(self, format: str = "text", metric: str = METRIC) -> str:
        """A table with a line for each fixture and a column for each policy: mean [low, high].

        Args:
            format: "text", "markdown" or "latex" (booktabs, with a caption that says what every
                mark means).
            metric: one of ``cojax.evaluation.METRICS``.

        Raises ValueError, one line, for another format or metric.
        """
        return _shown("tables").evaluation_table(self, format, metric)

    def plot(self, path: str | Path | None = None, *, metric: str = METRIC) -> Figure:
        """The mean of each policy with its 95% interval, a panel for each fixture.

        Args:
            path: where to write it, too: .pdf, .png or .svg.
            metric: one of ``cojax.evaluation.METRICS``.

        Raises ValueError, one line, for another kind of file or another metric.
        """
        return _shown("evaluation_figure").evaluation_figure(self, path, metric)

    def save(self, folder: str | Path, configuration: Json = None) -> None:
        """Write a results folder, as ``cojax evaluate --out`` does; whole or not at all.

        Args:
            folder: to be made; ``cojax compare`` and ``cojax report`` read it, and :meth:`load`.
            configuration: anything JSON can hold that is to be kept with it.

        Raises ValueError, one line, where the folder exists.
        """
        provenance.save(self, folder, configuration)

    @classmethod
    def load(cls, folder: str | Path) -> Evaluation:
        """Read the evaluation in a results ``folder``, whichever command wrote it.

        Raises ValueError, one line, for a folder that is none, or damaged, whose streams are not
        those of this version, or whose fixtures met different policies.
        """
        found = provenance.load(folder, full_names=False)
        about, frame = found.provenance, found.trials
        for name, ours in provenance.streams_now().items():
            if about[name] != ours:
                raise InputError(f"{folder}: {name}: expected {ours}, got {about[name]}")
        fixtures = list(about["fixtures"])
        who = [name for name in ("policy", "setting", "seed") if name in frame]
        distinct = frame[who].drop_duplicates().itertuples(index=False, name=None)
        labels = [dict(zip(who, values, strict=True)) for values in distinct]
        place = {name: k for k, name in enumerate(fixtures)}
        f = np.array([place[name] for name in frame["fixture"]])
        m = frame.groupby(who, sort=False, dropna=False).ngroup().to_numpy()
        n = np.unique(frame["trial"], return_inverse=True)[1]
        shape = len(fixtures), len(labels), int(about["num_trials"])
        if len(frame) != np.prod(shape) or n.max() >= shape[2]:
            raise InputError(f"{folder}: expected the same policies and trials on every fixture")
        trials = {}
        for name in frame.columns.drop([*who, "fixture", "trial"]):
            trials[name] = np.empty(shape)
            trials[name][f, m, n] = frame[name].to_numpy(np.float64)
        of_fixtures = about["fixtures"].values()
        return cls(
            fixtures=tuple(fixtures),
            members=tuple(
                Member(one["policy"], _whole(one.get("setting")), _whole(one.get("seed")))
                for one in labels
            ),
            trials=trials,
            horizons=np.array([one["horizon"] for one in of_fixtures]),
            root=int(about["root"]),
            dtype=about["precision"],
            floors=tuple(one.get("resolution_floor") for one in of_fixtures),
            hashes=tuple(one["sha256"] for one in of_fixtures),
        )

    def join(self, other: Evaluation) -> Evaluation:
        """Both evaluations as one, the policies of ``other`` after one's own.

        A policy of the same name and the same trials is kept once; of the same name and other
        trials, it is called NAME#2. Raises ValueError, one line, unless both are on the same
        fixtures, horizons, root, number of trials and precision.
        """
        for name in ("root", "dtype", "num_trials", "fixtures", "hashes"):
            ours, theirs = getattr(self, name), getattr(other, name)
            if ours != theirs:
                raise InputError(f"other: {name}: expected {ours}, got {theirs}")
        if not np.array_equal(self.horizons, other.horizons):
            raise InputError(f"other: horizons: expected {self.horizons}, got {other.horizons}")
        known = {member.policy for member in self.members}
        repeated, renamed = [], {}
        for policy in dict.fromkeys(member.policy for member in other.members):
            mine, theirs = (
                [k for k, member in enumerate(e.members) if member.policy == policy]
                for e in (self, other)
            )
            both = self.trials[METRIC][:, mine], other.trials[METRIC][:, theirs]
            if policy in known and np.array_equal(*both):
                repeated += theirs
            number, name = 2, policy
            while name in known:
                name, number = f"{policy}#{number}", number + 1
            renamed[policy] = name
        kept = [k for k in range(len(other.members)) if k not in repeated]
        members = [
            dataclasses.replace(other.members[k], policy=renamed[other.members[k].policy])
            for k in kept
        ]
        trials = {
            name: np.concatenate([values, other.trials[name][:, kept]], axis=1)
            for name, values in self.trials.items()
            if name in other.trials
        }
        return dataclasses.replace(self, members=(*self.members, *members), trials=trials)

    def __repr__(self) -> str:
        return _shown("tables").evaluation_words(self)

    def _repr_html_(self) -> str:
        return _shown("tables").evaluation_table(self, "html", METRIC)

    def populations(self) -> dict[tuple[str, int | None], list[int]]:
        """Members that make one row: the seeds of one policy and setting."""
        groups: dict[tuple[str, int | None], list[int]] = {}
        for index, member in enumerate(self.members):
            groups.setdefault((member.policy, member.hyperparameters), []).append(index)
        return groups


def beside(alone: Sequence[Evaluation]) -> Evaluation:
    """Evaluations of the same members, each on fixtures of its own, as one.

    Raises InputError where their members differ.
    """
    first = alone[0]
    for one in alone:
        if one.members != first.members:
            raise InputError(
                "policies: expected as many seeds and settings of a policy on every fixture, got "
                f"{len(first.members)} members on {first.fixtures[0]} and {len(one.members)} on "
                f"{one.fixtures[0]}"
            )
    names = dict.fromkeys(n for one in alone for n in one.trials)
    nothing = np.full_like(first.trials["failed"], np.nan)  # of a measure of others
    together = {n: np.concatenate([one.trials.get(n, nothing) for one in alone]) for n in names}
    return dataclasses.replace(
        first,
        fixtures=tuple(name for one in alone for name in one.fixtures),
        trials=together,
        horizons=np.concatenate([one.horizons for one in alone]),
        dtype=", ".join(sorted({one.dtype for one in alone})),
        floors=tuple(floor for one in alone for floor in one.floors),
        hashes=tuple(digest for one in alone for digest in one.hashes),
    )


def _whole(value: object) -> int | None:
    """An index read back from a table, where NaN or NA stands for none."""
    try:
        return int(value)  # pyright: ignore[reportArgumentType]
    except (TypeError, ValueError):
        return None


def _shown(name: str) -> Any:
    """A module that shows results. It stands above this one, so it is looked up when asked for."""
    return importlib.import_module(f"cojax.report.{name}")
