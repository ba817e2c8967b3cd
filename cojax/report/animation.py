"""Animations: a policy beside no control under the same noise, and V* falling.

Everything is drawn with Agg, without a display. Frames are what was there before with the moving
artists drawn anew on top.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from cojax.report.drawing import TRAIL, drawing, round_up


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
    limit = np.atleast_1d(np.asarray(getattr(params, "action_limit", 1.0), np.float64))
    if action is not None:
        action = np.asarray(action, np.float64)
        limit = np.where(np.isfinite(limit), limit, np.maximum(np.abs(action), 1.0))
    picture = drawing(axis, params, len(state), np.where(np.isfinite(limit), limit, 1.0))
    half = picture.view(states)
    picture.set_view(round_up(half) if half else 0.0)
    picture.update(states, action)
    if hasattr(params, "system"):
        axis.set_title(f"V* = {float(_value(params.system, jnp.asarray(state))):.3g}", fontsize=9)
    canvas.draw()
    return np.asarray(canvas.buffer_rgba())[..., :3].copy()


@jax.jit
def _value(system: Any, s: jax.Array) -> jax.Array:
    return system.value(s.astype(system.gamma.dtype))
