"""How figures look: colours that colour-blind readers can tell apart, sizes that fit a column."""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import matplotlib
import numpy as np
import numpy.typing as npt
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter, NullLocator

from cojax.io import files

COLUMN, PAGE = 3.4, 7.0  # inches: one column, and both
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")  # Okabe and Ito
MARKERS = ("o", "s", "^", "D", "v", "P")
GREY = "#595959"
GRID = "#E5E5E5"
# Nothing in a file says when it was written: the same results give the same files.
METADATA: dict[str, dict[str, None]] = {
    ".pdf": {"CreationDate": None, "ModDate": None},
    ".svg": {"Date": None},
    ".png": {"Software": None},
}
SETTINGS: dict[str, float | str | bool] = {
    "font.size": 8.0,
    "axes.titlesize": 8.5,
    "axes.labelsize": 8.0,
    "xtick.labelsize": 7.5,
    "ytick.labelsize": 7.5,
    "legend.fontsize": 7.5,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "pdf.fonttype": 42,  # fonts that can be edited and searched
    "svg.hashsalt": "cojax",
    "hatch.linewidth": 0.6,
}


@contextmanager
def style() -> Iterator[None]:
    """Settings of all figures, for what is drawn and saved inside."""
    with matplotlib.rc_context(SETTINGS):  # pyright: ignore[reportArgumentType]
        yield


def figure(width: float, height: float) -> Figure:
    """An empty figure, in inches."""
    return Figure(figsize=(width, height), layout="constrained")


def save(drawing: Figure, stem: Path) -> None:
    """Write ``stem.pdf`` and ``stem.png``."""
    drawing.savefig(stem.with_suffix(".pdf"), metadata=METADATA[".pdf"])
    drawing.savefig(stem.with_suffix(".png"), metadata=METADATA[".png"], dpi=200)


def save_as(drawing: Figure, path: Path) -> None:
    """Write a figure whole, as its name ends: .pdf, .png or .svg."""
    buffer = io.BytesIO()
    kind = path.suffix
    drawing.savefig(buffer, format=kind[1:], metadata=METADATA[kind], dpi=200)
    files.write_whole(path, buffer.getvalue())


def colour(index: int) -> str:
    """The colour of the index-th series."""
    return COLOURS[index % len(COLOURS)]


def marker(index: int) -> str:
    """The marker of the index-th series."""
    return MARKERS[index % len(MARKERS)]


def thousands(axis: Axes) -> None:
    """Environment steps on the x axis, in thousands or millions."""

    def label(x: float, _: float) -> str:
        return f"{x / 1e6:g}M" if abs(x) >= 1e6 else f"{x / 1e3:g}k" if x else "0"

    axis.xaxis.set_major_formatter(label)
    axis.set_xlabel("environment steps")


def log_ticks(axis: Axis, *, narrow: bool, minor: bool = False) -> None:
    """Of a logarithmic axis: numbers at 1, 2 and 5 of each decade where few decades are shown."""
    if minor:
        axis.set_minor_formatter(NullFormatter())
    else:
        axis.set_minor_locator(NullLocator())
    if narrow:
        axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        axis.set_major_formatter("{x:g}")


def lane(axis: Axes, values: npt.ArrayLike, top: float | None = None) -> np.ndarray:
    """Values for a logarithmic y axis, with what is infinite in a lane of its own above the rest,
    under ∞; a ``top`` puts the lane there, and what is greater into it.
    """
    x = np.asarray(values, np.float64)
    beyond = ~np.isfinite(x) if top is None else ~(x < top)
    if not beyond.any():
        return x
    place = (4.0 * x[~beyond].max() if not beyond.all() else 1.0) if top is None else top
    axis.axhline(place / 1.8, color=GREY, linestyle="--", linewidth=0.7)
    axis.annotate(
        "∞", (1.0, place), xycoords=axis.get_yaxis_transform(), xytext=(3, 0),
        textcoords="offset points", va="center", color=GREY,
    )  # fmt: skip
    return np.where(beyond, place, x)


def grid(axis: Axes, along: str = "both") -> None:
    """Faint lines at the major ticks, and no frame above and to the right."""
    axis.grid(which="major", axis=along, color=GRID, linewidth=0.6)  # pyright: ignore
    axis.spines[["top", "right"]].set_visible(False)


def legend(
    drawing: Figure,
    handles: Sequence[Artist],
    labels: Sequence[str],
    *,
    columns: int,
    where: str = "upper",
) -> None:
    """One legend for the whole figure, above the panels, or below them ("lower")."""
    place = f"outside {where} center"
    drawing.legend(handles, labels, loc=place, ncols=columns, frameon=False)  # pyright: ignore


def upper(names: Sequence[str]) -> list[str]:
    """Names of algorithms as they are written."""
    return [name.upper() for name in names]
