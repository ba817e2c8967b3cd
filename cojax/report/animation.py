"""Animations: a policy beside no control under the same noise, and V* falling.

The trial is the evaluator's: trial i of a root starts and is disturbed as in every evaluation.
Everything is drawn with Agg, without a display.
"""

from __future__ import annotations

import base64
import dataclasses
import shutil
from functools import cached_property, partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from cojax import inputs, streams
from cojax.envs import EnvParams
from cojax.errors import InputError
from cojax.evaluation.members import jax_policy, player, singles
from cojax.evaluation.named_systems import named_systems, scope
from cojax.evaluation.references import ORACLE, ZERO, ReferencePolicy
from cojax.io import files
from cojax.named_policies import policy_from_text
from cojax.policy import Policy
from cojax.report.animation_files import SUFFIXES, gif, mp4, strip
from cojax.report.drawing import TRAIL, drawing, round_up
from cojax.system import System
from cojax.trials import initial_state, scan_trial
from cojax.types import Array, Float, PRNGKeyArray, Shaped

STEPS = 200  # shown where nobody says how many
FPS = 20


@dataclasses.dataclass(frozen=True)
class Side:
    """What one policy did.

    Attributes:
        label: how it is called in the picture.
        states: s_0 … s_T; the last one stays where the trial failed.
        actions: as the system received them.
        values: V* of the states.
        failed: the first step whose end was not inside the divergence guard, or None.
    """

    label: str
    states: Float[np.ndarray, "T+1 n"]
    actions: Float[np.ndarray, "T m"]
    values: Float[np.ndarray, " T+1"]
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
    params: EnvParams = dataclasses.field(repr=False)
    sides: tuple[Side, Side] = dataclasses.field(repr=False)
    offset: float
    fps: int = FPS

    def save(self, path: str | Path) -> Path:
        """Write a GIF, an MP4, or a PNG strip of six moments, by the suffix; whole or not at all.

        Returns the path that was written: a GIF beside it where there is no video encoder.

        Raises ValueError, one line, for another suffix.
        """
        path = Path(path)
        kind = suffix(path)
        if kind == ".mp4" and shutil.which("ffmpeg") is None:
            path, kind = path.with_suffix(".gif"), ".gif"
        moving = partial(mp4, self, path) if kind == ".mp4" else lambda: self._gif
        files.write_whole(path, strip(self) if kind == ".png" else moving())
        return path

    @cached_property
    def _gif(self) -> bytes:
        return gif(self)

    def _repr_html_(self) -> str:
        data = base64.b64encode(self._gif).decode()
        return f'<img alt="animation" src="data:image/gif;base64,{data}">'

    def _repr_png_(self) -> bytes:
        return strip(self)


def suffix(path: str | Path) -> str:
    """The suffix of a file to write; raises ValueError, one line, for one that is not known."""
    found = Path(path).suffix.lower()
    if found not in SUFFIXES:
        raise InputError(f"{path}: expected a file ending in {', '.join(SUFFIXES)}")
    return found


@streams.pinned()
def animate(
    fixture_or_params: object,
    policy: object = "oracle",
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
    every = singles(
        jax_policy(
            policy_from_text(policy) if isinstance(policy, str) else policy,
            "policy: expected a policy, the name of a reference or a checkpoint",
        )
    )
    member = inputs.whole("member", member, 0)
    if member >= len(every):
        raise InputError(f"member: expected one of {len(every)}, from 0, got {member}")
    one = every[member]
    other = ORACLE if isinstance(one, ReferencePolicy) and one.act is ZERO.act else ZERO
    with scope(params):
        sides = _sides((one, other), params, streams.stream_key(root, trial), num_steps)
        offset = float(params.system.offset)  # pyright: ignore[reportAttributeAccessIssue]
    title = f"{found[0].name}, trial {trial} of root {root}"
    return Animation(title, params, (sides[0], sides[1]), offset, fps)


def _sides(
    policies: tuple[Policy | ReferencePolicy, ...], params: EnvParams, key: PRNGKeyArray, num: int
) -> list[Side]:
    """What each policy does on the trial of a stream key, over ``num`` steps."""
    players, own = zip(*(player(policy, params) for policy in policies), strict=True)
    sides = []
    for policy, path in zip(policies, _program(players, num, own, params, key=key), strict=True):
        states, actions, values, alive = (np.asarray(x, np.float64) for x in path)
        failed = None if alive.all() else int(np.argmin(alive))
        label = {"zero": "no control", "oracle": "π*"}.get(policy.name, policy.name)
        sides.append(Side(label, states, actions, values, failed))
    return sides


@partial(jax.jit, static_argnums=(0, 1))
def _program(players, num_steps, own, params, *, key):
    """For each player states (T + 1, d), actions (T, m), values (T + 1,), alive (T,)."""
    s0 = initial_state(params, key)

    def path(act, policy_params):
        def observe(total, step):
            s = jnp.where(step.alive, step.following, step.s)
            return total, (s, jnp.where(step.alive, step.action, 0.0), step.alive)

        _, (states, actions, alive) = scan_trial(
            partial(act, policy_params), params, key, num_steps, observe=observe, total=None
        )
        states = jnp.concatenate([s0[None], states])
        return states, actions, jax.vmap(params.system.value)(states), alive

    return [path(act, policy_params) for act, policy_params in zip(players, own, strict=True)]


def frame(
    params: object,
    state_vector: npt.ArrayLike,
    trail: npt.ArrayLike | None = None,
    action: npt.ArrayLike | None = None,
) -> Shaped[np.ndarray, "360 360 3"]:
    """One state as a picture, RGB of uint8.

    Args:
        params: ``EnvParams`` of one system; its family decides what is drawn. Params of anything
            else give bars, a component of the state each.
        state_vector: (d,).
        trail: states before it, (k, d), oldest first, or None.
        action: (m,) taken there, or None; actions at the limit, or the larger ones that are taken
            beyond it, are drawn at full size.
    """
    state = np.asarray(state_vector, np.float64)
    states = state[None]
    if trail is not None and len(past := np.asarray(trail, np.float64)):
        states = np.concatenate([past[-TRAIL:], states])
    figure = Figure(figsize=(3.6, 3.6), dpi=100)
    canvas = FigureCanvasAgg(figure)
    axis = figure.add_axes((0.15, 0.12, 0.81, 0.8))
    taken = None if action is None else np.asarray(action, np.float64)
    limit = np.atleast_1d(np.asarray(getattr(params, "action_limit", 1.0), np.float64))
    scale = np.maximum(limit, 1e-9 if taken is None else np.abs(np.nan_to_num(taken)))
    picture = drawing(axis, params, len(state), scale)
    half = picture.view(states)
    picture.set_view(round_up(half) if half else 0.0)
    picture.update(states, taken)
    if isinstance(system := getattr(params, "system", None), System):
        axis.set_title(f"V* = {float(_value(system, jnp.asarray(state))):.3g}", fontsize=9)
    canvas.draw()
    return np.asarray(canvas.buffer_rgba())[..., :3].copy()


@jax.jit
def _value(system: System, s: Float[Array, " n"]) -> Float[Array, ""]:
    return system.value(s.astype(system.gamma.dtype))
