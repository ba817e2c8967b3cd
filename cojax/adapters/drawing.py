"""A picture of a state, for the render modes of adapters."""

from __future__ import annotations

from typing import Any

import numpy as np


def picture(params: Any, s: np.ndarray) -> np.ndarray:
    """RGB array (240, 320, 3) uint8: the components of s (d,), and V*(s) where it is known."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(3.2, 2.4), dpi=100, layout="constrained")
    canvas = FigureCanvasAgg(figure)
    axis = figure.subplots()
    axis.bar(np.arange(len(s)), s, color="#0072B2")
    axis.axhline(0.0, color="#595959", linewidth=0.8)
    axis.set_yscale("symlog", linthresh=1.0)
    axis.set(xlabel="component of s", ylim=(-10.0, 10.0))
    axis.spines[["top", "right"]].set_visible(False)
    if hasattr(params, "system"):
        axis.set_title(f"V* = {float(params.system.value(s)):.3g}", fontsize=9)
    canvas.draw()
    return np.asarray(canvas.buffer_rgba())[..., :3].copy()


class Window:
    """A window that shows pictures, opened at the first; without a display nothing is shown."""

    def __init__(self) -> None:
        self.figure: Any = None
        self.image: Any = None

    def show(self, rgb: np.ndarray, seconds: float) -> None:
        """Show one picture and wait."""
        from matplotlib import pyplot

        if self.figure is None:
            self.figure = pyplot.figure("cojax")
            self.image = self.figure.add_axes((0, 0, 1, 1)).imshow(rgb)
            self.image.axes.set_axis_off()
        self.image.set_data(rgb)
        if getattr(self.figure.canvas, "required_interactive_framework", None):
            self.figure.show()
            pyplot.pause(seconds)

    def close(self) -> None:
        """Close the window."""
        if self.figure is not None:
            from matplotlib import pyplot

            pyplot.close(self.figure)
            self.figure = None
