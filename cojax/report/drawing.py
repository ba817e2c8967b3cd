"""How a state of each family is drawn: arms as links, vehicles in the plane, phase planes, bars.

A drawing sets its axes up once and then moves its artists, so that a frame costs milliseconds.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from cojax.report.style import COLOURS, GREY

POSITIVE, NEGATIVE = COLOURS[0], COLOURS[1]  # of torques and forces
FAINT = "#C8C8C8"
TRAIL = 120  # states of the past that stay visible
TIP = 16  # of an arm, whose tip crosses its own path at every step
ROOM = 1.18  # of the view, around what is drawn


class Drawing:
    """One state on one axes.

    Attributes:
        axis: a matplotlib axes, set up for the family.
        artists: what moves, in the order it is drawn.
        scale: (m,) of the actions: an action of this size is drawn at full size.
    """

    aspect = "auto"
    note = ""  # what the signs mean that stand for the action

    def __init__(self, axis: Any, scale: np.ndarray) -> None:
        self.axis = axis
        self.scale = scale
        self.artists: list[Any] = []
        axis.tick_params(labelsize=7, color=FAINT)
        for spine in axis.spines.values():
            spine.set_color(FAINT)

    def view(self, paths: np.ndarray) -> float:
        """Half the width of a view, about the origin, that holds states (k, d); 0 for no say."""
        del paths
        return 0.0

    def set_view(self, half: float) -> None:
        """Show ``half`` to each side of the origin."""
        if half > 0.0:
            self.axis.set(xlim=(-half, half), ylim=(-half, half))

    def update(self, trail: np.ndarray, action: np.ndarray | None) -> None:
        """Draw the last of the states ``trail``, (k, d), and the action (m,) taken there."""
        raise NotImplementedError

    def crowd(self) -> None:
        """Fewer ticks, for a small picture among others."""
        from matplotlib.ticker import MaxNLocator

        for axis in (self.axis.xaxis, self.axis.yaxis):
            if len(axis.get_majorticklocs()) and axis.get_scale() == "linear":
                axis.set_major_locator(MaxNLocator(4, steps=[1, 2, 5, 10]))

    def _add(self, artist: Any) -> Any:
        self.artists.append(artist)
        return artist

    def _share(self, action: np.ndarray | None) -> np.ndarray:
        """An action as shares of its scale, (m,) within [-1, 1]; zeros where there is none."""
        if action is None:
            return np.zeros(len(self.scale))
        return np.clip(np.nan_to_num(action) / self.scale, -1.0, 1.0)

    def _plane(self, x: str, y: str) -> None:
        """Axes of a plane with its origin, which is where every optimum leads."""
        self.axis.axhline(0.0, color=FAINT, linewidth=0.7, zorder=0)
        self.axis.axvline(0.0, color=FAINT, linewidth=0.7, zorder=0)
        self.axis.set_xlabel(x, fontsize=8)
        self.axis.set_ylabel(y, fontsize=8, labelpad=0)
        if self.aspect == "equal":
            self.axis.set_aspect("equal", adjustable="box")


class Arm(Drawing):
    """Links from a fixed base, each angle measured from the link before; torques as arcs.

    The arm of state 0 hangs straight down. All links together have length 1.
    """

    aspect = "equal"
    note = "Arcs: torques"

    def __init__(self, axis: Any, scale: np.ndarray, n: int, interleaved: bool) -> None:
        from matplotlib.collections import LineCollection

        super().__init__(axis, scale)
        self.n, self.interleaved = n, interleaved
        axis.set_aspect("equal", adjustable="box")
        axis.set(xlim=(-ROOM, ROOM), ylim=(-ROOM, ROOM), xticks=[], yticks=[])
        axis.plot([0, 0], [0, -1], color=FAINT, linewidth=5, solid_capstyle="round", zorder=0)
        axis.plot(0, 0, marker="s", markersize=9, color=GREY, zorder=1)
        size = float(np.clip(9.0 - 0.3 * n, 3.0, 8.0))
        self.path = self._add(axis.plot([], [], color=COLOURS[5], linewidth=0.9)[0])
        self.links = self._add(
            axis.plot([], [], color="#303030", linewidth=0.6 * size, solid_joinstyle="round")[0]
        )
        self.joints = self._add(
            axis.plot([], [], "o", markersize=size, color="white", markeredgecolor="#303030")[0]
        )
        self.torques = self._add(axis.add_collection(LineCollection([], linewidths=1.8, zorder=4)))

    def points(self, states: np.ndarray) -> np.ndarray:
        """Joints and tip, (k, n + 1, 2), of states (k, 2n)."""
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
        arcs = [
            _arc(centre, 0.0, radius, part)
            for centre, part in zip(points[-1, :-1], share, strict=True)
        ]
        self.torques.set_segments(arcs)
        self.torques.set_color([POSITIVE if part > 0.0 else NEGATIVE for part in share])


class Vehicles(Drawing):
    """Vehicles in the plane, each a triangle along its heading, with its trail and its inputs.

    The arrow ahead or behind is the input that drives, the arc the one that turns.
    """

    aspect = "equal"
    note = "Arrow: driving input, arc: turning input"

    def __init__(self, axis: Any, scale: np.ndarray, num: int, module_dim: int) -> None:
        from matplotlib.collections import LineCollection

        super().__init__(axis, scale)
        self.num, self.module_dim = num, module_dim
        self._plane("x (m)", "y (m)")
        self.half = 1.0
        self.paths = [
            self._add(axis.plot([], [], color=COLOURS[(2 + i) % 6], linewidth=1.3)[0])
            for i in range(num)
        ]
        self.bodies = [
            self._add(axis.fill([0], [0], facecolor=COLOURS[(2 + i) % 6], edgecolor="#303030")[0])
            for i in range(num)
        ]
        self.inputs = self._add(axis.add_collection(LineCollection([], linewidths=1.8, zorder=4)))

    def poses(self, states: np.ndarray) -> np.ndarray:
        """Poses (x, y, φ), (k, K, 3), of states (k, d)."""
        return states.reshape(len(states), self.num, self.module_dim)[:, :, :3]

    def view(self, paths: np.ndarray) -> float:
        """What holds every position."""
        return float(np.abs(np.nan_to_num(self.poses(paths)[..., :2])).max())

    def set_view(self, half: float) -> None:
        """Show ``half`` to each side; vehicles have one size on the screen."""
        super().set_view(half)
        self.half = half or 1.0

    def update(self, trail: np.ndarray, action: np.ndarray | None) -> None:
        """Move trails, bodies and inputs."""
        poses = np.nan_to_num(self.poses(trail))
        share = self._share(action).reshape(self.num, -1)
        lines, colours = [], []
        for i in range(self.num):
            x, y, phi = poses[-1, i]
            self.paths[i].set_data(poses[:, i, 0], poses[:, i, 1])
            turn = np.array([[np.cos(phi), np.sin(phi)], [-np.sin(phi), np.cos(phi)]])
            nose = np.array([[1.0, 0.0], [-0.7, 0.55], [-0.4, 0.0], [-0.7, -0.55]])
            self.bodies[i].set_xy(0.09 * self.half * nose @ turn + [x, y])
            drive, steer = share[i]
            ahead = turn[0] * 0.25 * self.half * drive
            start = np.array([x, y]) + turn[0] * 0.08 * self.half * np.sign(drive)
            lines += [_arrow(start, ahead), _arc((x, y), phi, 0.14 * self.half, steer)]
            colours += [POSITIVE if part > 0.0 else NEGATIVE for part in (drive, steer)]
        self.inputs.set_segments(lines)
        self.inputs.set_color(colours)


class Mass(Drawing):
    """A point mass in the plane: its trail, its velocity in grey and its input in colour."""

    aspect = "equal"
    note = "Blue arrow: input, grey: velocity"

    def __init__(self, axis: Any, scale: np.ndarray) -> None:
        from matplotlib.collections import LineCollection

        super().__init__(axis, scale)
        self._plane("x (m)", "y (m)")
        self.half = 1.0
        self.path = self._add(axis.plot([], [], color=COLOURS[2], linewidth=1.3)[0])
        self.arrows = self._add(axis.add_collection(LineCollection([], linewidths=1.8, zorder=3)))
        self.body = self._add(
            axis.plot([], [], "o", markersize=11, color=COLOURS[2], markeredgecolor="#303030")[0]
        )

    def view(self, paths: np.ndarray) -> float:
        """What holds every position."""
        return float(np.abs(np.nan_to_num(paths[:, :2])).max())

    def set_view(self, half: float) -> None:
        """Show ``half`` to each side; the input is drawn in the same size whatever it is."""
        super().set_view(half)
        self.half = half or 1.0

    def update(self, trail: np.ndarray, action: np.ndarray | None) -> None:
        """Move the trail, the mass and its arrows."""
        trail = np.nan_to_num(trail)
        self.path.set_data(trail[:, 0], trail[:, 1])
        self.body.set_data(trail[-1:, 0], trail[-1:, 1])
        push = 0.35 * self.half * self._share(action)
        speed = np.clip(trail[-1, 2:], -0.35 * self.half, 0.35 * self.half)
        self.arrows.set_segments([_arrow(trail[-1, :2], speed), _arrow(trail[-1, :2], push)])
        self.arrows.set_color([GREY, POSITIVE])


class PhasePlane(Drawing):
    """Two states against each other, with the trail; the input pushes up or down."""

    note = "Arrow: input"

    def __init__(self, axis: Any, scale: np.ndarray) -> None:
        from matplotlib.collections import LineCollection

        super().__init__(axis, scale)
        self._plane("position", "velocity")
        self.half = 1.0
        self.path = self._add(axis.plot([], [], color=COLOURS[2], linewidth=1.3)[0])
        self.push = self._add(axis.add_collection(LineCollection([], linewidths=1.8, zorder=3)))
        self.body = self._add(
            axis.plot([], [], "o", markersize=9, color=COLOURS[2], markeredgecolor="#303030")[0]
        )

    def view(self, paths: np.ndarray) -> float:
        """What holds every state."""
        return float(np.abs(np.nan_to_num(paths)).max())

    def set_view(self, half: float) -> None:
        """Show ``half`` to each side of the origin."""
        super().set_view(half)
        self.half = half or 1.0

    def update(self, trail: np.ndarray, action: np.ndarray | None) -> None:
        """Move the trail, the state and the input."""
        trail = np.nan_to_num(trail)
        self.path.set_data(trail[:, 0], trail[:, 1])
        self.body.set_data(trail[-1:, 0], trail[-1:, 1])
        share = float(self._share(action)[0])
        self.push.set_segments([_arrow(trail[-1], np.array([0.0, 0.4 * self.half * share]))])
        self.push.set_color([POSITIVE if share > 0.0 else NEGATIVE])


class Bars(Drawing):
    """The components of a state, for families that have no picture of their own."""

    def __init__(self, axis: Any, scale: np.ndarray, dim: int) -> None:
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
    "arm": Arm,
    "vehicles": Vehicles,
    "mass": Mass,
    "phase plane": PhasePlane,
    "bars": Bars,
}


def drawing(axis: Any, params: Any, dim: int, scale: np.ndarray) -> Drawing:
    """The drawing of a system's family on an axes.

    Args:
        axis: of matplotlib.
        params: ``EnvParams``, or anything whose ``system.geometry`` says the family.
        dim: of the state.
        scale: (m,) of the actions.
    """
    geometry = getattr(getattr(params, "system", None), "geometry", None)
    kind, options = ("bars", {"dim": dim}) if geometry is None else geometry.picture()
    return PICTURES[kind](axis, scale, **options)


def action_scale(actions: np.ndarray) -> np.ndarray:
    """(m,) the largest of actions (k, m), component by component; those of one unit together."""
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


def _arc(centre: Any, start: float, radius: float, share: float) -> np.ndarray:
    """An arc with an arrow head, (k, 2): up to three quarters of a turn, and its sign."""
    if abs(share) < 0.01:
        return np.full((2, 2), np.nan)
    sweep = np.sign(share) * (0.25 + 1.25 * abs(share)) * np.pi
    angle = start + np.linspace(0.0, sweep, 24)
    points = np.asarray(centre) + radius * np.stack([np.cos(angle), np.sin(angle)], axis=1)
    along = np.sign(share) * np.array([-np.sin(angle[-1]), np.cos(angle[-1])])
    size = min(0.45 * radius, 0.5 * abs(sweep) * radius)
    return np.concatenate([points, _head(points[-1], along, size)])


def _arrow(start: Any, vector: np.ndarray) -> np.ndarray:
    """A straight arrow, (k, 2); nothing where it has no length."""
    length = float(np.hypot(*vector))
    if length < 1e-9:
        return np.full((2, 2), np.nan)
    start = np.asarray(start)
    tip = start + vector
    return np.concatenate([[start, tip], _head(tip, vector / length, 0.3 * length)])


def _head(tip: np.ndarray, along: np.ndarray, size: float) -> np.ndarray:
    """The two strokes of an arrow head, as a continuation of the line to ``tip``."""
    across = np.array([-along[1], along[0]])
    left, right = (tip - size * along + side * 0.6 * size * across for side in (1.0, -1.0))
    return np.array([left, tip, right])
