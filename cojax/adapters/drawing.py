"""A picture of a state, for the render modes of adapters."""

from __future__ import annotations

import numpy as np

from cojax.envs import EnvParams
from cojax.types import PyTree


def picture(params: EnvParams, s: np.ndarray) -> np.ndarray:
    """RGB array (H, W, 3) uint8 of a state (d,), as its family is drawn."""
    from cojax.report.animation import frame  # loads matplotlib: where somebody wants a picture

    return frame(params, s)


class Window:
    """A window that shows pictures, opened at the first; without a display nothing is shown."""

    def __init__(self) -> None:
        self.figure: PyTree = None
        self.image: PyTree = None

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
