"""Gymnasium: single and vector environments, NumPy in and out.

    import gymnasium
    env = gymnasium.make("cojax/ConverseArm-v0", n=4, p=0.8)
    envs = gymnasium.make_vec("cojax/ConverseArm-v0", num_envs=64, n=4, p=0.8)

Actions are in [-1, 1]^m, 1 being the limit of the system, unless ``normalize_actions=False``. The
action space remembers the factor, so that a model of Stable-Baselines3 trained on it is scored by
:func:`cojax.evaluate` in the units of the system.
"""

from __future__ import annotations

# pyright: reportIncompatibleMethodOverride=false, reportIncompatibleVariableOverride=false
from typing import Any, ClassVar

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.error import ClosedEnvironmentError, ResetNeeded
from gymnasium.vector import AutoresetMode

from cojax import inputs
from cojax.adapters.batch import Batch, resolve, to_numpy
from cojax.adapters.drawing import Window, picture

RENDER_MODES = ("rgb_array", "human")
FRAMES_PER_SECOND = 30


class ActionBox(spaces.Box):
    """A Box of actions that knows the factor to the units of the system.

    Attributes:
        low, high: (m,) float32, the bounds of the actions that Gymnasium sees.
        scale: (m,) float32; the system is given ``scale * action``.
    """

    def __init__(self, low: np.ndarray, high: np.ndarray, scale: np.ndarray):
        super().__init__(low, high, dtype=np.float32)
        self.scale = np.asarray(scale, np.float32)


def spaces_of(batch: Batch) -> tuple[spaces.Box, ActionBox]:
    """Observation and action space of one environment of a batch."""
    observation = spaces.Box(batch.obs_low, batch.obs_high, dtype=np.float32)
    return observation, ActionBox(batch.low, batch.high, batch.scale)


class Env(gymnasium.Env[np.ndarray, np.ndarray]):
    """One environment on Gymnasium's interface.

        reward = -c(s, a), a Python float; observation = s, (d,) float32

    The time limit sets ``truncated``, the divergence guard ``terminated``. ``info["clipped"]``
    says whether the action was outside of the box, and ``num_clipped`` counts such actions;
    they are clipped where the system has bounds.

    Args:
        system: a name of :func:`cojax.make` with its options, ``EnvParams``, a fixture, or
            (env, params) of a gymnax 1.0 environment with a Box of actions.
        render_mode: None, "rgb_array", or "human", a window of matplotlib.
        normalize_actions: whether actions are in [-1, 1]^m.

    Raises InputError, one line, for unusable options and actions; ``ResetNeeded`` for a step
    before a reset; ``ClosedEnvironmentError`` after ``close``.
    """

    metadata: ClassVar[dict[str, Any]] = {
        "render_modes": list(RENDER_MODES),
        "render_fps": FRAMES_PER_SECOND,
    }

    def __init__(
        self,
        system: Any = "ConverseArm-v0",
        *,
        render_mode: str | None = None,
        normalize_actions: bool = True,
        **options: Any,
    ):
        if render_mode is not None:
            inputs.one_of("render_mode", render_mode, RENDER_MODES)
        env, params = resolve(system, options)
        self.params = params
        self.render_mode = render_mode
        self._batch = Batch(env, params, 1, normalize_actions=normalize_actions)
        self.observation_space, self.action_space = spaces_of(self._batch)
        self._window = Window()
        self._closed, self._over = False, True
        self._next: np.ndarray | None = None

    @property
    def num_clipped(self) -> int:
        """How many actions were outside of the box so far."""
        return self._batch.num_clipped

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        """Draw s_0. Without a seed, the draws go on; the first time they begin anywhere."""
        self._require_open()
        super().reset(seed=seed)
        if seed is None and not self._batch.started:
            seed = int(self.np_random.integers(2**31))
        if seed is None and self._next is not None:
            self._obs = self._next  # drawn already, in the step that ended the episode
        else:
            self._obs = self._batch.reset(seed)[0]
        self._next = None
        self._over = False
        if self.render_mode == "human":
            self.render()
        return self._obs, {}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        """One transition under an action (m,)."""
        self._require_open()
        if self._over:
            raise ResetNeeded("step: expected a call of reset before it, and after an episode")
        out = self._batch.step(to_numpy(action)[None])
        self._obs = out.final_obs[0]
        terminated, truncated = bool(out.terminated[0]), bool(out.truncated[0])
        self._over = terminated or truncated
        self._next = out.obs[0] if self._over else None
        if self.render_mode == "human":
            self.render()
        info = {"clipped": bool(out.clipped[0])}
        return self._obs, float(out.reward[0]), terminated, truncated, info

    def render(self) -> np.ndarray | None:
        """The state as an RGB array (H, W, 3), or in a window."""
        self._require_open()
        if self.render_mode is None:
            return None
        if not self._batch.started:
            raise ResetNeeded("render: expected a call of reset before it")
        rgb = picture(self.params, self._obs)
        if self.render_mode == "rgb_array":
            return rgb
        self._window.show(rgb, 1.0 / FRAMES_PER_SECOND)
        return None

    def close(self) -> None:
        """Close the window; what comes after is an error, another ``close`` is not."""
        self._window.close()
        self._closed = True

    def _require_open(self) -> None:
        if self._closed:
            raise ClosedEnvironmentError("the environment is closed; make another")


class VectorEnv(gymnasium.vector.VectorEnv):
    """N environments in one compiled call, on Gymnasium's vector interface.

    Environment i with seed s is the single environment with seed s + i. In autoreset mode
    SAME_STEP ``infos["final_obs"]`` holds the last observations of episodes that ended, of object
    dtype, beside the mask ``infos["_final_obs"]``. In NEXT_STEP, Gymnasium's default, the step
    after the end of an episode ignores its action, gives the first observation and reward 0.

    Args:
        system: as in :class:`Env`, or a stacked batch of F systems: environment i is i mod F.
        num_envs: N.
        autoreset_mode: SAME_STEP or NEXT_STEP, or their text.
        render_mode: None or "rgb_array", an image an environment.
        normalize_actions: as in :class:`Env`.

    Errors are those of :class:`Env`.
    """

    def __init__(
        self,
        system: Any = "ConverseArm-v0",
        num_envs: int | None = None,
        *,
        autoreset_mode: AutoresetMode | str = AutoresetMode.NEXT_STEP,
        render_mode: str | None = None,
        normalize_actions: bool = True,
        **options: Any,
    ):
        if render_mode is not None:
            inputs.one_of("render_mode", render_mode, ("rgb_array",))
        mode = getattr(autoreset_mode, "value", autoreset_mode)
        known = (AutoresetMode.SAME_STEP.value, AutoresetMode.NEXT_STEP.value)
        self.autoreset_mode = AutoresetMode(inputs.one_of("autoreset_mode", mode, known))
        self.metadata = {"autoreset_mode": self.autoreset_mode, "render_modes": ["rgb_array"]}
        self.render_mode = render_mode
        env, params = resolve(system, options)
        self._batch = Batch(env, params, num_envs, normalize_actions=normalize_actions)
        self.num_envs = self._batch.num_envs
        self.single_observation_space, self.single_action_space = spaces_of(self._batch)
        batched = gymnasium.vector.utils.batch_space
        self.observation_space = batched(self.single_observation_space, self.num_envs)
        self.action_space = batched(self.single_action_space, self.num_envs)
        self._pending = np.zeros(self.num_envs, bool)  # episodes that ended, to begin next step

    @property
    def num_clipped(self) -> int:
        """How many actions were outside of the box so far."""
        return self._batch.num_clipped

    def reset(
        self, *, seed: Any = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        """Begin episodes in all; seed is one number, the others following, or one each."""
        self._require_open()
        super().reset(seed=seed if isinstance(seed, int) else None)
        if seed is None and not self._batch.started:
            seed = int(self.np_random.integers(2**31))
        obs = self._batch.reset(seed)
        self._pending[:] = False
        self._obs = obs
        return obs.copy(), {}

    def step(self, actions: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, dict]:
        """One step of all under actions (N, m)."""
        self._require_open()
        if not self._batch.started:
            raise ResetNeeded("step: expected a call of reset before it")
        held = self.autoreset_mode is AutoresetMode.NEXT_STEP
        out = self._batch.step(actions, self._pending if held else None)
        done = out.terminated | out.truncated
        infos: dict[str, Any] = {"clipped": out.clipped, "_clipped": np.ones_like(done)}
        obs = out.obs
        if held:
            obs = out.final_obs
            self._pending = done
        elif done.any():
            final = np.full(self.num_envs, None, object)
            for i in np.flatnonzero(done):
                final[i] = out.final_obs[i]
            infos |= {"final_obs": final, "_final_obs": done}
        self._obs = obs
        return obs.copy(), out.reward.astype(np.float64), out.terminated, out.truncated, infos

    def render(self) -> tuple[np.ndarray, ...] | None:
        """An image (H, W, 3) an environment."""
        self._require_open()
        if self.render_mode is None:
            return None
        if not self._batch.started:
            raise ResetNeeded("render: expected a call of reset before it")
        return tuple(picture(self._batch.member(i)[0], s) for i, s in enumerate(self._obs))

    def close_extras(self, **kwargs: Any) -> None:
        """Nothing is held open; ``kwargs`` are ignored."""

    def _require_open(self) -> None:
        if self.closed:
            raise ClosedEnvironmentError("the environment is closed; make another")


def make_env(family: str, **options: Any) -> Env:
    """What ``gymnasium.make("cojax/FAMILY-v0", ...)`` calls; ``options`` are those of :class:`Env`,
    the ``family``'s own among them.
    """
    return Env(f"{family}-v0", **options)


def make_vector_env(family: str, num_envs: int = 1, **options: Any) -> VectorEnv:
    """What ``gymnasium.make_vec("cojax/FAMILY-v0", num_envs=N, ...)`` calls.

    ``options`` are those of :class:`VectorEnv`, the ``family``'s own among them.
    """
    return VectorEnv(f"{family}-v0", num_envs, **options)


def make_fixture(name: str, **options: Any) -> Env:
    """What ``gymnasium.make("cojax/Fixture-v0", name="arm-n4-p0.80-s7")`` calls.

    ``options`` are those of :class:`Env`.
    """
    return Env(name, **options)


def make_fixture_vector_env(name: str, num_envs: int = 1, **options: Any) -> VectorEnv:
    """What ``gymnasium.make_vec("cojax/Fixture-v0", num_envs=N, name=...)`` calls.

    ``options`` are those of :class:`VectorEnv`.
    """
    return VectorEnv(name, num_envs, **options)
