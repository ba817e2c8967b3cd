"""The files of an animation: GIF, MP4, and a strip of six moments."""

from __future__ import annotations

import io
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from PIL import Image

from cojax.errors import InputError
from cojax.report.drawing import TRAIL, Drawing, action_scale, drawing, round_up
from cojax.report.style import COLOURS, GREY, GRID, METADATA, log_ticks
from cojax.types import Shaped

if TYPE_CHECKING:
    from cojax.report.animation import Animation, Side

SUFFIXES = (".gif", ".mp4", ".png")
FRAMES = 300  # at most; longer trials skip steps
MOMENTS = 6  # in a strip
SIZE = (8.8, 4.2)  # inches, at 100 dots each
PALETTE = 64  # colours of a GIF
SIDES = (COLOURS[0], COLOURS[1])  # of the policy, and of what stands beside it


class Stage:
    """A figure that is set up once; a frame draws what moves on top of what stays.

    Attributes:
        moments: the steps that are frames.
    """

    def __init__(self, animation: Animation) -> None:
        self.animation = animation
        figure = Figure(figsize=SIZE, dpi=100)
        self.canvas = FigureCanvasAgg(figure)
        axes = [figure.add_axes((0.065 + 0.415 * i, 0.16, 0.34, 0.70)) for i in range(2)]
        self.drawings = drawings(axes, animation)
        last = len(animation.sides[0].values) - 1
        self.moments = np.unique(np.linspace(0, last, min(FRAMES, last + 1)).round().astype(int))
        for axis, side, colour in zip(axes, animation.sides, SIDES, strict=True):
            axis.set_title(side.label, fontsize=10, color=colour, fontweight="bold")
        figure.suptitle(animation.title, fontsize=9, x=0.065, ha="left", y=0.985, color=GREY)
        figure.text(0.065, 0.02, _note(self.drawings[0]), fontsize=7.5, color=GREY)
        self.step = figure.text(0.985, 0.955, "", fontsize=9, ha="right", color=GREY)
        axis = figure.add_axes((0.915, 0.16, 0.07, 0.70))
        self.low = value_axis(axis, animation)
        axis.set(xlim=(-0.6, 1.6), xticks=[], title="V*")
        axis.title.set_fontsize(10)
        self.bars = axis.bar([0, 1], [1.0, 1.0], bottom=self.low, width=0.72, color=SIDES).patches
        self.numbers = [
            axis.text(i, self.low, "", fontsize=7, ha="center", va="bottom") for i in range(2)
        ]
        self.moving = [artist for one in self.drawings for artist in one.artists]
        self.moving += [self.step, *self.bars, *self.numbers]
        for artist in self.moving:
            artist.set_animated(True)
        self.canvas.draw()
        self.background = self.canvas.copy_from_bbox(figure.bbox)
        self.figure = figure

    def picture(self, k: int) -> Shaped[np.ndarray, "H W 3"]:
        """Frame of step k, RGB of uint8."""
        for one, side in zip(self.drawings, self.animation.sides, strict=True):
            update(one, side, k)
        for bar, number, side in zip(self.bars, self.numbers, self.animation.sides, strict=True):
            value = float(np.clip(np.nan_to_num(side.values[k], nan=np.inf), self.low, 1e30))
            bar.set_height(value - self.low)
            number.set_y(value)
            number.set_text(f"{side.values[k]:.2g}")
        lost = [s.label for s in self.animation.sides if s.failed is not None and k > s.failed]
        told = f"{' and '.join(lost)} left the guard · " if lost else ""
        self.step.set_text(f"{told}step {k} of {len(self.animation.sides[0].values) - 1}")
        self.canvas.restore_region(self.background)
        for artist in self.moving:
            self.figure.draw_artist(artist)
        return np.asarray(self.canvas.buffer_rgba())[..., :3]

    def pictures(self) -> Iterator[Shaped[np.ndarray, "H W 3"]]:
        """Every frame, in order."""
        return (np.ascontiguousarray(self.picture(int(k))) for k in self.moments)


def drawings(axes: Sequence[Axes], animation: Animation) -> list[Drawing]:
    """A drawing on each axes, the first half for the first side; views differ where sizes do."""
    sides = [animation.sides[i * 2 // len(axes)] for i in range(len(axes))]
    actions = np.concatenate([side.actions for side in animation.sides])
    scale = action_scale(actions)
    made = [
        drawing(axis, animation.params, side.states.shape[1], scale)
        for axis, side in zip(axes, sides, strict=True)
    ]
    halves = [made[0].view(side.states) for side in animation.sides]
    widest = 4.0 * min(halves)  # what runs away leaves the picture
    for one, side in zip(made, sides, strict=True):
        own = halves[0 if side is animation.sides[0] else 1]
        half = min(own, widest) if max(halves) > widest else max(halves)
        one.set_view(round_up(half) if half else 0.0)
    return made


def update(one: Drawing, side: Side, k: int) -> None:
    """Draw step k of a side."""
    action = side.actions[k] if k < len(side.actions) else None
    one.update(side.states[max(0, k - TRAIL) : k + 1], action)


def value_axis(axis: Axes, animation: Animation) -> float:
    """A logarithmic axis that holds V*, with what the noise alone costs; its lower end."""
    values, offset = np.stack([side.values for side in animation.sides]), animation.offset
    finite = values[np.isfinite(values) & (values > 0.0)]
    high = float(finite.max()) if finite.size else 1.0
    least = float(finite.min()) if finite.size else high
    low = max(min(least, offset) if offset > 0.0 else least, 1e-14 * high) / 1.6
    axis.set_yscale("log")
    axis.set_ylim(low, 2.5 * high)
    log_ticks(axis.yaxis, narrow=high < 300.0 * low)
    axis.tick_params(labelsize=7)
    axis.spines[["top", "right"]].set_visible(False)
    if offset > 0.0:
        axis.axhline(offset, color=GREY, linewidth=0.9, linestyle=":")
    return low


def _note(one: Drawing) -> str:
    note = f"{one.note} (full size: the largest shown). " if one.note else ""
    return note + "Same start, same noise. Dotted: V* at rest, what noise alone costs."


# --- files ---------------------------------------------------------------------------------------


def gif(animation: Animation) -> bytes:
    """All frames as a GIF."""
    stage = Stage(animation)
    some = stage.moments[[0, len(stage.moments) // 3, -1]]
    sample = np.concatenate([stage.picture(int(k)) for k in some])
    palette = Image.fromarray(sample).quantize(PALETTE, dither=Image.Dither.NONE)
    every = (
        Image.fromarray(rgb).quantize(palette=palette, dither=Image.Dither.NONE)
        for rgb in stage.pictures()
    )
    wait = max(2, round(100 / animation.fps))  # hundredths of a second, the unit of the format
    options = {"append_images": every, "duration": 10 * wait, "loop": 0, "optimize": False}
    buffer = io.BytesIO()
    next(every).save(buffer, "GIF", save_all=True, **options)
    return buffer.getvalue()


def mp4(animation: Animation, path: Path) -> bytes:
    """All frames as an MP4, by ffmpeg.

    Raises ValueError, one line that names ``path``, where ffmpeg cannot encode.
    """
    stage = Stage(animation)
    height, width, _ = stage.picture(0).shape
    raw = ["-f", "rawvideo", "-pix_fmt", "rgb24", "-s", f"{width}x{height}"]
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "out.mp4"
        command = ["ffmpeg", "-loglevel", "error", *raw, "-r", str(animation.fps), "-i", "-"]
        command += ["-pix_fmt", "yuv420p", "-movflags", "+faststart", str(out)]
        with subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
        ) as process:
            assert process.stdin is not None
            try:
                for rgb in stage.pictures():
                    process.stdin.write(rgb.tobytes())
            except BrokenPipeError:
                pass  # its error says why
            _, said = process.communicate()
        if process.returncode or not out.exists():
            reason = (said.decode(errors="replace").strip() or "no reason given").splitlines()[0]
            raise InputError(f"{path}: ffmpeg cannot encode it: {reason}")
        return out.read_bytes()


def strip(animation: Animation) -> bytes:
    """Six moments of both sides above V* over time, as a PNG.

    Moments lie closer together at the beginning, where most happens.
    """
    last = len(animation.sides[0].values) - 1
    moments = np.unique((last * np.linspace(0.0, 1.0, MOMENTS) ** 2).round().astype(int))
    figure = Figure(figsize=(10.5, 5.9), layout="constrained")
    grid = figure.add_gridspec(3, len(moments), height_ratios=(1.0, 1.0, 0.85))
    axes = [figure.add_subplot(grid[i, j]) for i in range(2) for j in range(len(moments))]
    made = drawings(axes, animation)
    for one, (i, k) in zip(made, np.ndindex(2, len(moments)), strict=True):
        step = int(moments[k])
        update(one, animation.sides[i], step)
        one.crowd()
        if i == 0:
            one.axis.set_title(f"step {step}", fontsize=9)
        if k == 0:
            one.axis.set_ylabel(
                animation.sides[i].label, fontsize=10, color=SIDES[i], fontweight="bold"
            )
        else:
            one.axis.set(ylabel="", yticklabels=[])
        if i == 0:
            one.axis.set(xlabel="", xticklabels=[])
    axis = figure.add_subplot(grid[2, :])
    value_axis(axis, animation)
    for side, colour in zip(animation.sides, SIDES, strict=True):
        axis.plot(side.values, color=colour, linewidth=1.5)
        axis.plot(moments, side.values[moments], "o", color=colour, markersize=5, label=side.label)
    axis.set_xlabel("step", fontsize=8)
    axis.set_ylabel("V*, a cost to go", fontsize=8)
    axis.grid(which="major", color=GRID, linewidth=0.6)
    axis.legend(frameon=False, fontsize=8, loc="best")
    figure.suptitle(f"{animation.title}. {_note(made[0])}", fontsize=8.5, color=GREY)
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=110, metadata=METADATA[".png"])
    return buffer.getvalue()
