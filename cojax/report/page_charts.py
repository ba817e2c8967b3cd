"""Charts as data for inline SVG, so that they follow the page's colours: intervals and curves."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from cojax.report.printing import number

if TYPE_CHECKING:
    import pandas as pd

FLOOR = 1e-6  # gaps below are drawn on it
MANY = 12  # fixtures with a chart of their own; beyond, one for all together


def forest(policies: list[dict[str, Any]]) -> dict[str, Any]:
    """Median and interval of each policy on a logarithmic axis; those without one are left out.

    Returns width, height, ticks (x, text) and marks (y, name, x, low, high, learner).
    """
    shown = [p for p in policies if np.isfinite(p["gap"]["mean"]) and p["gap"]["mean"] > 0.0]
    left, right, row = 150.0, 700.0, 30.0
    if not shown:
        return {"marks": [], "ticks": [], "width": 0, "height": 0}
    ends = [p["gap"][k] for p in shown for k in ("mean", "low", "high")]
    ends = [max(e, FLOOR) for e in ends if np.isfinite(e)]
    x, ticks = _log_axis(min(ends), max(ends), left, right)
    marks = []
    for k, p in enumerate(shown):
        gap = {name: max(value, FLOOR) for name, value in p["gap"].items()}
        marks.append(
            {
                "y": 20.0 + row * k,
                "name": p["name"].upper() if p["learner"] else p["name"],
                "x": x(gap["mean"]),
                "low": x(gap["low"]),
                "high": x(gap["high"]) if np.isfinite(gap["high"]) else right + 12.0,
                "learner": p["learner"],
                "text": p["text"],
            }
        )
    height = 20.0 + row * len(shown) + 28.0
    return {"marks": marks, "ticks": ticks, "width": 740, "height": height, "left": left}


def curve_charts(curves: pd.DataFrame, learners: list[str]) -> list[dict[str, Any]]:
    """The gap over training: median and the band of 10 to 90% of runs, a chart for each fixture,
    or for all together where there are many.

    A run with a failed trial at some moment is drawn at the top of its chart then.
    """
    names = list(dict.fromkeys(curves["fixture"]))
    groups: list[tuple[str, Any]] = [(str(n), curves[curves["fixture"] == n]) for n in names]
    if len(names) > MANY:
        groups = [(f"all {len(names):,} systems", curves)]
    return [_chart(name, frame, learners) for name, frame in groups]


def _chart(name: str, frame: pd.DataFrame, learners: list[str]) -> dict[str, Any]:
    width, height = 360.0, 234.0
    box = {"left": 46.0, "right": width - 10.0, "top": 10.0, "bottom": height - 40.0}
    series = []
    for index, learner in enumerate(learners):
        table = frame[frame["algorithm"] == learner].pivot_table(
            index=["fixture", "seed"],
            columns="timesteps",
            values="relative_suboptimality",
            dropna=False,
        )
        if not table.size:
            continue
        values = np.nan_to_num(table.to_numpy(np.float64), nan=np.inf)
        low, middle, high = np.quantile(
            np.clip(values, FLOOR, 1e12), [0.1, 0.5, 0.9], axis=0, method="nearest"
        )
        series.append((index, learner, table.columns.to_numpy(np.float64), low, middle, high))
    if not series:
        return {"name": name, "width": width, "height": height, "series": [], **box}
    seen = np.concatenate([np.concatenate(s[3:]) for s in series])
    seen = seen[seen < 1e11] if (seen < 1e11).any() else seen
    y, ticks = _log_axis(float(seen.min()), float(seen.max()), box["bottom"], box["top"])
    longest = max(s[2].max() for s in series)

    def x(steps: np.ndarray) -> np.ndarray:
        return box["left"] + (box["right"] - box["left"]) * steps / longest

    lines = [
        {
            "index": index % 6,
            "name": learner.upper(),
            "line": _points(x(steps), [y(v) for v in middle]),
            "band": _points(
                np.concatenate([x(steps), x(steps)[::-1]]),
                [y(v) for v in np.concatenate([low, high[::-1]])],
            ),
            "final": number(float(middle[-1])),
        }
        for index, learner, steps, low, middle, high in series
    ]
    moments = [
        {"x": float(x(np.array(share * longest))), "text": _thousands(share * longest)}
        for share in (0.0, 0.5, 1.0)
    ]
    return {
        "name": name, "width": width, "height": height, **box,
        "ticks": ticks, "moments": moments, "series": lines,
    }  # fmt: skip


def _log_axis(
    low: float, high: float, start: float, end: float
) -> tuple[Callable[[float], float], list[dict[str, Any]]]:
    """A map onto [start, end] and ticks (at, text): powers of ten, or 1, 2, 5 where few fit."""
    a, b = math.log10(low), math.log10(high)
    pad = 0.06 * max(b - a, 0.5)
    a, b = a - pad, b + pad

    def place(value: float) -> float:
        share = (math.log10(min(max(value, 1e-300), 1e300)) - a) / (b - a)
        return start + (end - start) * min(max(share, -0.02), 1.02)

    exponents = range(math.floor(a), math.ceil(b) + 1)
    factors = (1,) if b - a > 1.7 else (1, 2, 5) if b - a > 0.5 else tuple(range(1, 10))
    values = [float(f"{f}e{e}") for e in exponents for f in factors]
    values = [v for v in values if a <= math.log10(v) <= b]
    every = -(-len(values) // 7)
    return place, [{"at": place(v), "text": f"{v:g}"} for v in values[::every]]


def _points(x: Any, y: Any) -> str:
    return " ".join(f"{a:.1f},{b:.1f}" for a, b in zip(x, y, strict=True))


def _thousands(steps: float) -> str:
    if steps >= 1e6:
        return f"{steps / 1e6:.3g}M"
    return f"{steps / 1e3:.3g}k" if steps >= 1e3 else f"{steps:.3g}"
