"""How a state of each family is drawn: arms as links, vehicles in the plane or in flight, bars.

A drawing sets its axes up once and then moves its artists, so that a frame costs milliseconds.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

import numpy as np
import numpy.typing as npt
from matplotlib.collections import LineCollection
from matplotlib.ticker import MaxNLocator

from cojax.report.style import COLOURS, GREY
from cojax.types import Float

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.lines import Line2D

POSITIVE, NEGATIVE = COLOURS[0], COLOURS[1]  # of torques and forces
FAINT, INK = "#C8C8C8", "#303030"
TRAIL = 120  # states of the past that stay visible
TIP = 16  # of an arm, whose tip crosses its own path at every step
ROOM = 1.18  # of the view, around what is drawn
Moved = TypeVar("Moved", bound="Artist")


class Drawing:
    """One state on one axes.

    Attributes:
        axis: of matplotlib, set up for the family.
        artists: what moves, in the order it is drawn.
        scale: (m,) of the actions: an action of this size is drawn at full size.
        half: half the width of the view.
    """

    note = ""  # what the signs mean that stand for the action

    def __init__(self, axis: Axes, scale: Float[np.ndarray, " m"]) -> None:
        self.axis, self.scale, self.half = axis, scale, 1.0
        self.artists: list[Artist] = []
        axis.tick_params(labelsize=7, color=FAINT)
        for spine in axis.spines.values():
            spine.set_color(FAINT)

    def positions(self, states: Float[np.ndarray, "k n"]) -> np.ndarray:
        """What a view of ``states`` has to hold; nothing where the view is not theirs to say."""
        return states[:, :0]

    def view(self, paths: Float[np.ndarray, "k n"]) -> float:
        """Half the width of a view, about the origin, that holds states; 0 for no say."""
        return float(np.abs(np.nan_to_num(self.positions(paths))).max(initial=0.0))

    def set_view(self, half: float) -> None:
        """Show ``half`` to each side of the origin; what moves has one size on the screen."""
        if half > 0.0:
            self.axis.set(xlim=(-half, half), ylim=(-half, half))
        self.half = half or 1.0

    def update(
        self, trail: Float[np.ndarray, "k n"], action: Float[np.ndarray, " m"] | None
    ) -> None:
        """Draw the last of the states ``trail`` and the action taken there."""
        raise NotImplementedError

    def crowd(self) -> None:
        """Fewer ticks, for a small picture among others."""
        for axis in (self.axis.xaxis, self.axis.yaxis):
            if len(axis.get_majorticklocs()) and axis.get_scale() == "linear":
                axis.set_major_locator(MaxNLocator(4, steps=[1, 2, 5, 10]))

    def _add(self, artist: Moved) -> Moved:
        self.artists.append(artist)
        return artist

    def _line(self, *form: str, **look: str | float) -> Line2D:
        """A line, or markers, that moves."""
        return self._add(self.axis.plot([], [], *form, **look)[0])  # pyright: ignore

    def _strokes(self, zorder: int) -> LineCollection:
        """Arrows and arcs, coloured by their sign."""
        lines = LineCollection([], linewidths=1.8, zorder=zorder)
        return self._add(self.axis.add_collection(lines))  # pyright: ignore

    def _share(self, action: np.ndarray | None) -> np.ndarray:
        """An action as shares of its scale, (m,) within [-1, 1]; zeros where there is none."""
        if action is None:
            return np.zeros(len(self.scale))
        return np.clip(np.nan_to_num(action) / self.scale, -1.0, 1.0)

    def _plane(self, x: str, y: str, equal: bool) -> None:
        """Axes of a plane with its origin, which is where every optimum leads."""
        self.axis.axhline(0.0, color=FAINT, linewidth=0.7, zorder=0)
        self.axis.axvline(0.0, color=FAINT, linewidth=0.7, zorder=0)
        self.axis.set_xlabel(x, fontsize=8)
        self.axis.set_ylabel(y, fontsize=8, labelpad=0)
        if equal:
            self.axis.set_aspect("equal", adjustable="box")


class Arm(Drawing):
    """Links from a fixed base, each angle measured from the link before; torques as arcs.

    The arm of state 0 hangs straight down. All links together have length 1.
    """

    note = "Arcs: torques"

    def __init__(self, axis: Axes, scale: np.ndarray, n: int, interleaved: bool) -> None:
        super().__init__(axis, scale)
        self.n, self.interleaved = n, interleaved
        axis.set_aspect("equal", adjustable="box")
        axis.set(xlim=(-ROOM, ROOM), ylim=(-ROOM, ROOM), xticks=[], yticks=[])
        axis.plot([0, 0], [0, -1], color=FAINT, linewidth=5, solid_capstyle="round", zorder=0)
        axis.plot(0, 0, marker="s", markersize=9, color=GREY, zorder=1)
        size = float(np.clip(9.0 - 0.3 * n, 3.0, 8.0))
        self.path = self._line(color=COLOURS[5], linewidth=0.9)
        self.links = self._line(color=INK, linewidth=0.6 * size, solid_joinstyle="round")
        self.joints = self._line("o", markersize=size, color="white", markeredgecolor=INK)
        self.torques = self._strokes(4)

    def points(self, states: Float[np.ndarray, "k n"]) -> Float[np.ndarray, "k j 2"]:
        """Joints and tip of states."""
        theta = states[:, 0::2] if self.interleaved else states[:, : self.n]
        angle = np.cumsum(theta, axis=1)
        steps = np.stack([np.sin(angle), -np.cos(angle)], axis=-1) / self.n
        return np.concatenate([np.zeros((len(states), 1, 2)), np.cumsum(steps, axis=1)], axis=1)

    def update(self, trail: np.ndarray, action: np.ndarray | None) -> None:
        """Move links, joints and torques, and the trail of the tip."""
        points = self.points(np.nan_to_num(trail))
        self.path.set_data(points[-TIP:, -1, 0], points[-TIP:, -1, 1])
        self.links.set_data(points[-1, :, 0], points[-1, :, 1])
        self.joints.set_data(points[-1, :-1, 0], points[-1, :-1, 1])
        share = self._share(action)
        radius = 0.055 if self.n > 8 else 0.09
        both = zip(points[-1, :-1], share, strict=True)
        self.torques.set_segments([_arc(centre, 0.0, radius, part) for centre, part in both])
        self.torques.set_color(_signs(share))


class Vehicles(Drawing):
    """Vehicles in the plane, each a triangle along its heading, with its trail and its inputs.

    The arrow ahead or behind is the input that drives, the arc the one that turns.
    """

    note = "Arrow: driving input, arc: turning input"

    def __init__(self, axis: Axes, scale: np.ndarray, num: int, module_dim: int) -> None:
        super().__init__(axis, scale)
        self.num, self.module_dim = num, module_dim
        self._plane("x (m)", "y (m)", True)
        colours = [COLOURS[(2 + i) % 6] for i in range(num)]
        self.paths = [self._line(color=colour, linewidth=1.3) for colour in colours]
        self.bodies = [
            self._add(axis.fill([0], [0], facecolor=colour, edgecolor=INK)[0]) for colour in colours
        ]
        self.inputs = self._strokes(4)

    def poses(self, states: Float[np.ndarray, "k n"]) -> Float[np.ndarray, "k K 3"]:
        """Poses (x, y, φ) of states."""
        return states.reshape(len(states), self.num, self.module_dim)[:, :, :3]

    def positions(self, states: Float[np.ndarray, "k n"]) -> np.ndarray:
        """Of every vehicle."""
        return self.poses(states)[..., :2]

    def update(self, trail: np.ndarray, action: np.ndarray | None) -> None:
        """Move trails, bodies and inputs."""
        poses = np.nan_to_num(self.poses(trail))
        share = self._share(action).reshape(self.num, -1)
        lines = []
        for i, (drive, steer) in enumerate(share):
            x, y, phi = poses[-1, i]
            self.paths[i].set_data(poses[:, i, 0], poses[:, i, 1])
            turn = np.array([[np.cos(phi), np.sin(phi)], [-np.sin(phi), np.cos(phi)]])
            nose = np.array([[1.0, 0.0], [-0.7, 0.55], [-0.4, 0.0], [-0.7, -0.55]])
            self.bodies[i].set_xy(0.09 * self.half * nose @ turn + [x, y])
            ahead = turn[0] * 0.25 * self.half * drive
            start = np.array([x, y]) + turn[0] * 0.08 * self.half * np.sign(drive)
            lines += [_arrow(start, ahead), _arc((x, y), phi, 0.14 * self.half, steer)]
        self.inputs.set_segments(lines)
        self.inputs.set_color(_signs(share.ravel()))


class Mass(Drawing):
    """A point mass in the plane: its trail, its velocity in grey and its input in colour."""

    note = "Blue arrow: input, grey: velocity"
    labels, size, equal = ("x (m)", "y (m)"), 11, True

    def __init__(self, axis: Axes, scale: np.ndarray) -> None:
        super().__init__(axis, scale)
        self._plane(*self.labels, self.equal)
        self.path = self._line(color=COLOURS[2], linewidth=1.3)
        self.arrows = self._strokes(3)
        self.body = self._line("o", markersize=self.size, color=COLOURS[2], markeredgecolor=INK)

    def positions(self, states: Float[np.ndarray, "k n"]) -> np.ndarray:
        """The first two components."""
        return states[:, :2]

    def update(self, trail: np.ndarray, action: np.ndarray | None) -> None:
        """Move the trail, the body and its arrows."""
        trail = np.nan_to_num(trail)
        self.path.set_data(trail[:, 0], trail[:, 1])
        self.body.set_data(trail[-1:, 0], trail[-1:, 1])
        self._push(trail[-1], self._share(action))

    def _push(self, s: np.ndarray, share: np.ndarray) -> None:
        speed = np.clip(s[2:], -0.35 * self.half, 0.35 * self.half)
        self.arrows.set_segments([_arrow(s[:2], speed), _arrow(s[:2], 0.35 * self.half * share)])
        self.arrows.set_color([GREY, POSITIVE])


class PhasePlane(Mass):
    """Two states against each other, with the trail; the input pushes up or down."""

    note = "Arrow: input"
    labels, size, equal = ("position", "velocity"), 9, False

    def _push(self, s: np.ndarray, share: np.ndarray) -> None:
        self.arrows.set_segments([_arrow(s, np.array([0.0, 0.4 * self.half * share[0]]))])
        self.arrows.set_color(_signs(share[:1]))


class Flyer(Drawing):
    """A vehicle that flies, from the side: a beam across its thrust, with its trail.

    ``x``, ``z`` and ``tilt`` are the rows of position and of the angle that ``sign`` turns against
    the clock; ``torque`` is the action that turns it. The first action is the thrust.
    """

    note = "Arrow: thrust beyond hovering, arc: torque"

    def __init__(
        self,
        axis: Axes,
        scale: np.ndarray,
        *,
        x: int = 0,
        z: int = 1,
        tilt: int = 2,
        sign: float = 1.0,
        torque: int = 1,
    ) -> None:
        super().__init__(axis, scale)
        self.rows, self.tilt, self.sign, self.torque = (x, z), tilt, sign, torque
        self._plane("x (m)", "z (m)", True)
        self.path = self._line(color=COLOURS[2], linewidth=1.3)
        self.beam = self._line(color=INK, linewidth=3.5, solid_capstyle="round")
        self.rotors = self._line("o", markersize=6, color=COLOURS[2], markeredgecolor=INK)
        self.inputs = self._strokes(4)

    def positions(self, states: Float[np.ndarray, "k n"]) -> np.ndarray:
        """Across and up."""
        return states[:, list(self.rows)]

    def update(self, trail: np.ndarray, action: np.ndarray | None) -> None:
        """Move the trail, the beam and the inputs."""
        trail = np.nan_to_num(trail)
        points, angle = self.positions(trail), self.sign * trail[-1, self.tilt]
        centre, along = points[-1], np.array([np.cos(angle), np.sin(angle)])
        up, share = np.array([-along[1], along[0]]), self._share(action)
        ends = np.stack([centre - 0.12 * self.half * along, centre + 0.12 * self.half * along])
        self.path.set_data(points[:, 0], points[:, 1])
        self.beam.set_data(ends[:, 0], ends[:, 1])
        self.rotors.set_data(ends[:, 0], ends[:, 1])
        turn = self.sign * share[self.torque]
        arrow = _arrow(centre, 0.3 * self.half * share[0] * up)
        self.inputs.set_segments([arrow, _arc(centre, angle, 0.17 * self.half, turn)])
        self.inputs.set_color(_signs(np.array([share[0], turn])))


class Bars(Drawing):
    """The components of a state, for families that have no picture of their own."""

    def __init__(self, axis: Axes, scale: np.ndarray, dim: int) -> None:
        super().__init__(axis, scale)
        axis.axhline(0.0, color=GREY, linewidth=0.8)
        axis.set_yscale("symlog", linthresh=1.0)
        axis.set(xlim=(-0.6, dim - 0.4), ylim=(-10.0, 10.0))
        axis.set_xlabel("component of s", fontsize=8)
        self.bars = [self._add(bar) for bar in axis.bar(np.arange(dim), 0.0, color=COLOURS[0])]

    def update(self, trail: np.ndarray, action: np.ndarray | None) -> None:
        """Set the heights."""
        for bar, height in zip(self.bars, np.nan_to_num(trail[-1]), strict=True):
            bar.set_height(float(height))


PICTURES: dict[str, type[Drawing]] = {
    "arm": Arm, "vehicles": Vehicles, "mass": Mass, "phase plane": PhasePlane, "bars": Bars,
    "flyer": Flyer,
}  # fmt: skip


def drawing(axis: Axes, params: object, dim: int, scale: Float[np.ndarray, " m"]) -> Drawing:
    """The drawing of a system's family: ``params.system.geometry`` says which, else it is bars.

    ``dim`` is that of the state, ``scale`` that of the actions.
    """
    geometry = getattr(getattr(params, "system", None), "geometry", None)
    kind, options = ("bars", {"dim": dim}) if geometry is None else geometry.picture()
    return PICTURES[kind](axis, scale, **options)


def action_scale(actions: Float[np.ndarray, "k m"]) -> Float[np.ndarray, " m"]:
    """The largest of actions, component by component; those of one unit together."""
    largest = np.abs(np.nan_to_num(actions)).max(axis=0)
    return np.maximum(largest, 1e-9)


def round_up(half: float) -> float:
    """The next of 1, 1.2, 1.5, 2, 2.5, 3, 4, 5, 6, 8 times a power of ten, with some room."""
    if not half > 0.0:
        return 1.0
    half = ROOM * half
    power = 10.0 ** np.floor(np.log10(half))
    return next(
        (float(f * power) for f in (1, 1.2, 1.5, 2, 2.5, 3, 4, 5, 6, 8) if f * power >= half),
        float(10.0 * power),
    )


def _signs(shares: np.ndarray) -> list[str]:
    return [POSITIVE if part > 0.0 else NEGATIVE for part in shares]


def _arc(centre: npt.ArrayLike, start: float, radius: float, share: float) -> np.ndarray:
    """An arc with an arrow head, (k, 2): up to three quarters of a turn, and its sign."""
    if abs(share) < 0.01:
        return np.full((2, 2), np.nan)
    sweep = np.sign(share) * (0.25 + 1.25 * abs(share)) * np.pi
    angle = start + np.linspace(0.0, sweep, 24)
    points = np.asarray(centre) + radius * np.stack([np.cos(angle), np.sin(angle)], axis=1)
    along = np.sign(share) * np.array([-np.sin(angle[-1]), np.cos(angle[-1])])
    size = min(0.45 * radius, 0.5 * abs(sweep) * radius)
    return np.concatenate([points, _head(points[-1], along, size)])


def _arrow(start: np.ndarray, vector: np.ndarray) -> np.ndarray:
    """A straight arrow, (k, 2); nothing where it has no length."""
    length = float(np.hypot(*vector))
    if length < 1e-9:
        return np.full((2, 2), np.nan)
    tip = start + vector
    return np.concatenate([[start, tip], _head(tip, vector / length, 0.3 * length)])


def _head(tip: np.ndarray, along: np.ndarray, size: float) -> np.ndarray:
    """The two strokes of an arrow head, as a continuation of the line to ``tip``."""
    across = np.array([-along[1], along[0]])
    left, right = (tip - size * along + side * 0.6 * size * across for side in (1.0, -1.0))
    return np.array([left, tip, right])
