"""Figures: what an algorithm looks like is the same wherever it is drawn."""

from __future__ import annotations

import matplotlib
import pandas as pd
from matplotlib.figure import Figure

from cojax.report.figures import gap_figure

GAPS = {"mean": 0.1, "low": 0.05, "high": 0.2}


def test_an_algorithm_has_one_colour_in_all_panels(tmp_path, monkeypatch):
    """Also where panels hold different algorithms, in other orders; the legend names each once."""
    panels = {"a": ["ppo", "sac"], "b": ["sac", "ddpg", "ppo"]}
    rows, curves = [], []
    for fixture, algorithms in panels.items():
        for algorithm in algorithms:
            rows.append({"fixture": fixture, "policy": algorithm, "relative_suboptimality": GAPS})
            one = {"fixture": fixture, "algorithm": algorithm, "relative_suboptimality": 0.1}
            curves += [{**one, "seed": s, "timesteps": t} for s in (0, 1) for t in (10, 20)]
    drawn = []
    monkeypatch.setattr(Figure, "savefig", lambda figure, *_, **__: drawn.append(figure))
    gap_figure(rows, pd.DataFrame(curves), tmp_path / "figure.png")
    seen = {}
    for axis, fixture in zip(drawn[0].axes, panels, strict=False):
        lines = {line.get_label(): line for line in axis.lines if line.get_label()[0] != "_"}
        assert sorted(lines) == sorted(name.upper() for name in panels[fixture])
        for name, line in lines.items():
            colour = matplotlib.colors.to_hex(line.get_color())
            assert seen.setdefault(name, colour) == colour
    assert len(set(seen.values())) == 3
    (legend,) = drawn[0].legends
    shown = {text.get_text(): line.get_color() for text, line in
             zip(legend.get_texts(), legend.get_lines(), strict=True)}  # fmt: skip
    assert {name: matplotlib.colors.to_hex(c) for name, c in shown.items()} == seen
