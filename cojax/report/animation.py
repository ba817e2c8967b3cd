"""Animations: a policy beside no control under the same noise, and V* falling.

The trial is the evaluator's: trial i of a root starts and is disturbed as in every evaluation.
Everything is drawn with Agg, without a display.
"""

from __future__ import annotations

import base64
import dataclasses
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from cojax import inputs, streams
from cojax.envs import EnvParams
from cojax.errors import InputError
from cojax.evaluation.members import player, singles
from cojax.evaluation.named_systems import named_systems, scope
from cojax.evaluation.references import ORACLE, ZERO, ReferencePolicy
from cojax.named_policies import policy_from_text
from cojax.policy import Policy
from cojax.report.animation_files import SUFFIXES, gif, mp4, strip
from cojax.report.drawing import TRAIL, drawing, round_up
from cojax.trials import initial_state, scan_trial

STEPS = 200  # shown where nobody says how many
FPS = 20


@dataclasses.dataclass(frozen=True)
class Side:
    """What one policy did.

    Attributes:
        label: how it is called in the picture.
        states: (T + 1, d); the last one stays where the trial failed.
        actions: (T, m), as the system received them.
        values: (T + 1,) V* of the states.
        failed: the first step whose end was not inside the divergence guard, or None.
    """

    label: str
    states: np.ndarray
    actions: np.ndarray
    values: np.ndarray
    failed: int | None


@dataclasses.dataclass(frozen=True)
class Animation:
    """A policy beside another on one trial; in a notebook it shows itself.

    Attributes:
        title: of the picture.
        params: of the system.
        sides: the policy, and what stands beside it.
        offset: V* of the optimum at rest: what the noise alone costs.
        fps: frames a second, 1 … 50.
    """

    title: str
    params: Any = dataclasses.field(repr=False)
    sides: tuple[Side, Side] = dataclasses.field(repr=False)
    offset: float
    fps: int = FPS

    def save(self, path: str | Path) -> Path:
        """Write a GIF, an MP4, or a PNG strip of six moments, by the suffix; whole or not at all.

        Returns the path that was written: a GIF beside it where there is no video encoder.

        Raises ValueError, one line, for another suffix.
        """
        path = Path(path)
        write = {".gif": gif, ".mp4": mp4, ".png": strip}[suffix(path)]
        return write(self, path)

    @cached_property
    def _gif(self) -> bytes:
        return gif(self, None)

    def _repr_html_(self) -> str:
        data = base64.b64encode(self._gif).decode()
        return f'<img alt="animation" src="data:image/gif;base64,{data}">'

    def _repr_png_(self) -> bytes:
        return strip(self, None)


def suffix(path: str | Path) -> str:
    """The suffix of a file to write; raises ValueError, one line, for one that is not known."""
    found = Path(path).suffix.lower()
    if found not in SUFFIXES:
        raise InputError(f"{path}: expected a file ending in {', '.join(SUFFIXES)}")
    return found


@streams.pinned()
def animate(
    fixture_or_params: Any,
    policy: Any = "oracle",
    *,
    num_steps: int | None = None,
    trial: int = 0,
    root: int = 0,
    fps: int = FPS,
    member: int = 0,
) -> Animation:
    """A policy beside no control, or the zero policy beside π*, on one trial of the evaluator.

    Args:
        fixture_or_params: a fixture, or ``EnvParams`` of one system.
        policy: a :class:`~cojax.policy.Policy`, a reference, or the text of one: "oracle", "zero",
            "lqr", the path of a checkpoint.
        num_steps: T; by default the horizon, 200 at most.
        trial: which trial of the streams, >= 0.
        root: seed of the streams.
        fps: frames a second, 1 … 50.
        member: which one of a population, in order.

    Raises ValueError, one line, for anything unusable.
    """
    trial, root = inputs.whole("trial", trial, 0), inputs.whole("root", root, 0)
    fps = int(inputs.number("fps", inputs.whole("fps", fps, 1), 1, 50))
    found = named_systems(fixture_or_params)
    if len(found) != 1:
        raise InputError(f"fixture: expected one system, got {len(found)}")
    params = found[0].params
    num_steps = (
        min(STEPS, int(params.max_steps_in_episode))
        if num_steps is None
        else inputs.whole("steps", num_steps, 1)
    )
    one = _one_of(policy, member)
    other = ORACLE if isinstance(one, ReferencePolicy) and one.act is ZERO.act else ZERO
    with scope(params):
        sides = _sides((one, other), params, streams.stream_key(root, trial), num_steps)
        offset = float(params.system.offset)  # pyright: ignore[reportAttributeAccessIssue]
    return Animation(f"{found[0].name}, trial {trial} of root {root}", params, sides, offset, fps)


def _one_of(policy: Any, member: int) -> Policy | ReferencePolicy:
    """The policy asked for, of a population its member-th."""
    if isinstance(policy, str):
        policy = policy_from_text(policy)
    if not isinstance(policy, Policy | ReferencePolicy):
        raise InputError(
            "policy: expected a policy, the name of a reference or a checkpoint, "
            f"got {type(policy).__name__}"
        )
    every = singles(policy)
    member = inputs.whole("member", member, 0)
    if member >= len(every):
        raise InputError(f"member: expected one of {len(every)}, from 0, got {member}")
    return every[member]


def _sides(
    policies: tuple[Policy | ReferencePolicy, ...],
    params: EnvParams,
    key: jax.Array,
    num_steps: int,
) -> tuple[Side, Side]:
    players, own = zip(*(player(policy, params) for policy in policies), strict=True)
    paths = _program(players, num_steps, own, params, key)
    sides = []
    for policy, path in zip(policies, paths, strict=True):
        states, actions, values = (np.asarray(x, np.float64) for x in path[:3])
        alive = np.asarray(path[3])
        failed = None if alive.all() else int(np.argmin(alive))
        label = {"zero": "no control", "oracle": "π*"}.get(policy.name, policy.name)
        sides.append(Side(label, states, actions, values, failed))
    return sides[0], sides[1]


@partial(jax.jit, static_argnums=(0, 1))
def _program(players: Any, num_steps: int, own: Any, params: Any, key: jax.Array) -> Any:
    """For each player states (T + 1, d), actions (T, m), values (T + 1,), alive (T,)."""
    system = params.system
    s0 = initial_state(params, key)

    def path(act, policy_params):
        def observe(total, step):
            s = jnp.where(step.alive, step.following, step.s)
            return total, (s, jnp.where(step.alive, step.action, 0.0), step.alive)

        _, (states, actions, alive) = scan_trial(
            partial(act, policy_params), params, key, num_steps, observe=observe, total=None
        )
        states = jnp.concatenate([s0[None], states])
        return states, actions, jax.vmap(system.value)(states), alive

    return [path(act, policy_params) for act, policy_params in zip(players, own, strict=True)]


def frame(
    params: Any,
    state_vector: Any,
    trail: Any = None,
    action: Any = None,
) -> np.ndarray:
    """One state as a picture.

    Args:
        params: ``EnvParams`` of one system; its family decides what is drawn. Params of anything
            else give bars, a component of the state each.
        state_vector: (d,).
        trail: states before it, (k, d), oldest first, or None.
        action: (m,) taken there, or None; actions at the limit are drawn at full size.

    Returns:
        RGB array (H, W, 3) = (360, 360, 3), uint8.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    state = np.asarray(state_vector, np.float64)
    states = state[None]
    if trail is not None and len(trail):
        states = np.concatenate([np.asarray(trail, np.float64)[-TRAIL:], states])
    figure = Figure(figsize=(3.6, 3.6), dpi=100)
    canvas = FigureCanvasAgg(figure)
    axis = figure.add_axes((0.15, 0.12, 0.81, 0.8))
    if action is not None:
        action = np.asarray(action, np.float64)
    scale = _limit(params, action)
    picture = drawing(axis, params, len(state), scale)
    half = picture.view(states)
    picture.set_view(round_up(half) if half else 0.0)
    picture.update(states, action)
    if hasattr(params, "system"):
        axis.set_title(f"V* = {float(_value(params.system, jnp.asarray(state))):.3g}", fontsize=9)
    canvas.draw()
    return np.asarray(canvas.buffer_rgba())[..., :3].copy()


def _limit(params: Any, action: np.ndarray | None) -> np.ndarray:
    """(m,) the size at which actions are drawn in full: the limit, or what is taken beyond it."""
    limit = np.atleast_1d(np.asarray(getattr(params, "action_limit", 1.0), np.float64))
    return np.maximum(limit, 1e-9 if action is None else np.abs(np.nan_to_num(action)))


@jax.jit
def _value(system: Any, s: jax.Array) -> jax.Array:
    return system.value(s.astype(system.gamma.dtype))
