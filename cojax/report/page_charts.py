"""Charts as data for inline SVG, so that they follow the page's colours: intervals and curves."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from cojax.report.printing import number
from cojax.types import Content

if TYPE_CHECKING:
    import pandas as pd

FLOOR = 1e-6  # gaps below are drawn on it
ENDS = ("mean", "low", "high")
MANY = 12  # fixtures with a chart of their own; beyond, one for all together


def forest(policies: list[Content]) -> Content:
    """The gap of each policy and its interval on a logarithmic axis; one without a finite gap is
    in a lane of its own, and an exact 0, which a logarithm does not have, is left out.

    Returns width, height, left, lane (None where nothing is infinite), ticks (at, text) and marks
    (y, name, x, low, high, learner, finite, text).
    """
    shown = [p for p in policies if not p["finite"] or p["gap"]["mean"] > 0.0]
    if not shown:
        return {"marks": []}
    left, width, row = 150.0, 740.0, 30.0
    finite = [p for p in shown if p["finite"]]
    lane = width - 24.0 if len(finite) < len(shown) else None
    right = 700.0 if lane is None else lane - 30.0
    ends = [max(p["gap"][e], FLOOR) for p in finite for e in ENDS if np.isfinite(p["gap"][e])]
    x, ticks = _log_axis(min(ends, default=0.1), max(ends, default=10.0), left, right)
    marks = []
    for k, p in enumerate(shown):
        beyond = right + 12.0 if lane is None else lane
        places = [x(max(p["gap"][e], FLOOR)) if np.isfinite(p["gap"][e]) else beyond for e in ENDS]
        mark = {"y": 20.0 + row * k, "name": p["shown"]}
        mark |= dict(zip(("x", "low", "high"), places, strict=True))
        marks.append(mark | {name: p[name] for name in ("learner", "finite", "text")})
    height = 20.0 + row * len(shown) + 46.0
    return {"marks": marks, "ticks": ticks, "width": width, "height": height, "left": left} | {
        "lane": lane
    }


def curve_charts(curves: pd.DataFrame, learners: list[str]) -> list[Content]:
    """The gap over training: median and the band of 10 to 90% of runs, a chart for each fixture,
    or for all together where there are many.

    A run with a failed trial at some moment has an infinite gap then: in the lane at the top.
    """
    names = list(dict.fromkeys(curves["fixture"]))
    if len(names) > MANY:
        return [_chart(f"all {len(names):,} systems", curves, learners)]
    return [_chart(str(n), curves.loc[curves["fixture"] == n], learners) for n in names]


def _chart(name: str, frame: pd.DataFrame, learners: list[str]) -> Content:
    width, height = 360.0, 234.0
    left, right, top, bottom = 46.0, width - 10.0, 22.0, height - 40.0
    chart: Content = {"name": name, "width": width, "height": height, "series": []}
    found = []
    for index, learner in enumerate(learners):
        table = frame[frame["algorithm"] == learner].pivot_table(
            "relative_suboptimality", ["fixture", "seed"], "timesteps", dropna=False
        )
        if table.size:
            values = table.to_numpy(np.float64)
            values = np.where(np.isnan(values), np.inf, np.maximum(values, FLOOR))
            bands = np.quantile(values, [0.1, 0.5, 0.9], axis=0, method="nearest")
            found.append((index, learner, table.columns.to_numpy(np.float64), bands))
    if not found:
        return chart
    seen = np.concatenate([bands.ravel() for *_, bands in found])
    lane = top + 8.0 if np.isinf(seen).any() else None
    seen = seen[np.isfinite(seen)] if np.isfinite(seen).any() else np.array([0.1, 10.0])
    upper = top if lane is None else lane + 14.0
    place, ticks = _log_axis(float(seen.min()), float(seen.max()), bottom, upper)

    def y(value: float) -> float:
        return lane if lane is not None and np.isinf(value) else place(value)

    longest = max(steps.max() for _, _, steps, _ in found)
    for index, learner, steps, bands in found:
        x = left + (right - left) * steps / longest
        low, middle, high = ([(a, y(b)) for a, b in zip(x, band, strict=True)] for band in bands)
        one = {"index": index % 6, "name": learner.upper(), "line": middle}
        one |= {"band": low + high[::-1], "final": number(float(bands[1, -1]))}
        chart["series"].append(one)
    moments = [
        {"x": left + (right - left) * share, "text": _thousands(share * longest)}
        for share in (0.0, 0.5, 1.0)
    ]
    box = {"left": left, "right": right, "top": top, "bottom": bottom}
    return chart | box | {"ticks": ticks, "moments": moments, "lane": lane}


def _log_axis(
    low: float, high: float, start: float, end: float
) -> tuple[Callable[[float], float], list[Content]]:
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


def _thousands(steps: float) -> str:
    if steps >= 1e6:
        return f"{steps / 1e6:.3g}M"
    return f"{steps / 1e3:.3g}k" if steps >= 1e3 else f"{steps:.3g}"
