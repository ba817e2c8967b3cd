"""Gymnasium: single and vector environments, NumPy in and out.

    import gymnasium
    env = gymnasium.make("cojax/ConverseArm-v0", n=4, p=0.8)
    envs = gymnasium.make_vec("cojax/ConverseArm-v0", num_envs=64, n=4, p=0.8)

Actions are in [-1, 1]^m, 1 being the limit of the system, unless ``normalize_actions=False``. The
action space remembers the factor, so that a model of Stable-Baselines3 trained on it is scored by
:func:`cojax.evaluate` in the units of the system. Where the actions of a system are a list, the
space is Discrete and an action an index; :func:`cojax.evaluate` takes models that give one.
"""

from __future__ import annotations

# pyright: reportIncompatibleMethodOverride=false, reportIncompatibleVariableOverride=false
import copy
from collections.abc import Sequence
from typing import TypeAlias

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.envs.registration import EnvSpec
from gymnasium.error import ClosedEnvironmentError, MissingArgument, ResetNeeded
from gymnasium.vector import AutoresetMode

from cojax import envs, errors
from cojax.adapters.asked import asked_limit, require_spawn, stating_limit, with_limit
from cojax.adapters.batch import Batch, Step, resolve, to_numpy
from cojax.adapters.drawing import Window, picture
from cojax.errors import InputError
from cojax.labels import Labels
from cojax.types import Option, Options, PyTree

Infos: TypeAlias = dict[str, PyTree]

RENDER_MODES = ("rgb_array", "human")
FRAMES_PER_SECOND = 30
METADATA = {"render_modes": list(RENDER_MODES), "render_fps": FRAMES_PER_SECOND}


class ActionBox(spaces.Box):
    """A Box of actions that knows the factor to the units of the system.

    Attributes:
        low, high: (m,) float32, the bounds of the actions that Gymnasium sees.
        scale: (m,) float32; the system is given ``scale * action``.
    """

    def __init__(self, low: np.ndarray, high: np.ndarray, scale: np.ndarray):
        super().__init__(low, high, dtype=np.float32)
        self.scale = np.array(scale, np.float32)


def spaces_of(batch: Batch) -> tuple[spaces.Box, ActionBox | spaces.Discrete]:
    """Observation and action space of one environment of a batch: Discrete(k) where the actions
    of its system are a list.
    """
    observation = spaces.Box(batch.obs_low, batch.obs_high, dtype=np.float32)
    if batch.num_choices is not None:
        return observation, spaces.Discrete(batch.num_choices)
    return observation, ActionBox(*map(np.asarray, (batch.low, batch.high, batch.scale)))


class OfBatch:
    """What both environments say of the batch that they step."""

    _batch: Batch
    _spec: EnvSpec | None = None

    @property
    def spec(self) -> EnvSpec | None:
        """What Gymnasium made this of; its time limit is that of the system."""
        return self._spec

    @spec.setter
    def spec(self, value: EnvSpec | None) -> None:
        self._spec = stating_limit(value, self._batch)

    @property
    def num_clipped(self) -> int:
        """How many actions were outside of the box so far."""
        return self._batch.num_clipped

    @property
    def budget(self) -> np.ndarray:
        """What Σ γᵏ ``info["cost"]`` may be at most in expectation, (), or (F,) of a stacked batch.
        Raises InputError for a system without a budget.
        """
        budget = getattr(self._batch.problem, "budget", None)
        if budget is None:
            raise InputError("budget: expected a system with a budget (cojax.budgets)")
        return np.asarray(budget, np.float64)

    @property
    def labels(self) -> Labels:
        """Names and units of the entries of an observation and of an action, in the order of their
        spaces.
        """
        return self._batch.labels


class Env(OfBatch, gymnasium.Env[np.ndarray, np.ndarray]):
    """One environment on Gymnasium's interface.

        reward = -c(s, a), a Python float; observation = s, (d,) float32

    The time limit sets ``truncated``, the divergence guard ``terminated``. ``info["clipped"]``
    says whether the action was outside of the box, and ``num_clipped`` counts such actions;
    they are clipped where the system has bounds. Of a system with a budget (:mod:`cojax.budgets`)
    ``info["cost"]`` is what the constraint is on, and ``budget`` bounds its discounted sum.

    Args:
        system: a name of :func:`cojax.make` with its options, ``EnvParams``, a fixture, or
            (env, params) of a gymnax 1.0 environment with a Box of actions.
        render_mode: None, "rgb_array", or "human", a window of matplotlib.
        normalize_actions: whether actions are in [-1, 1]^m.
        constrained: of a system with a budget, whether the reward is that of its objective alone,
            -``info["objective"]``, the constraint being on the sum of ``info["cost"]``.

    Raises InputError, one line, for unusable options and actions; ``ResetNeeded`` for a step
    before a reset; ``ClosedEnvironmentError`` after ``close``.
    """

    metadata: Options = METADATA

    def __init__(
        self,
        system: object = "ConverseArm-v0",
        *,
        render_mode: str | None = None,
        normalize_actions: bool = True,
        constrained: bool = False,
        **options: Option,
    ):
        if render_mode is not None:
            errors.one_of("render_mode", render_mode, RENDER_MODES)
        require_spawn()
        env, params = resolve(system, options)
        env = envs.constrained(env) if constrained else env
        self.params = params
        self.render_mode = render_mode
        self.metadata = copy.deepcopy(METADATA)  # Gymnasium's vectors write into it
        self._batch = Batch(env, params, 1, normalize_actions=normalize_actions)
        self.observation_space, self.action_space = spaces_of(self._batch)
        self._window = Window()
        self._closed, self._over = False, True

    def reset(
        self, *, seed: int | None = None, options: Options | None = None
    ) -> tuple[np.ndarray, Infos]:
        """Draw s_0. Without a seed, the draws go on; the first time they begin anywhere."""
        self._require_open()
        super().reset(seed=seed)
        if seed is None and not self._batch.started:
            seed = int(self.np_random.integers(2**31))
        self._obs = self._batch.reset(seed, drawn=self._over)[0]
        self._over = False
        if self.render_mode == "human":
            self.render()
        return self._obs.copy(), {}  # pictures are drawn of ours

    def step(self, action: PyTree) -> tuple[np.ndarray, float, bool, bool, Infos]:
        """One transition under an action (m,)."""
        self._require_open()
        if self._over:
            raise ResetNeeded("step: expected a call of reset before it, and after an episode")
        out = self._batch.step(to_numpy(action)[None])
        self._obs = out.final_obs[0]
        terminated, truncated = bool(out.terminated[0]), bool(out.truncated[0])
        self._over = terminated or truncated
        if self.render_mode == "human":
            self.render()
        info = {"clipped": bool(out.clipped[0])}
        info |= {name: float(values[0]) for name, values in out.told.items()}
        return self._obs.copy(), float(out.reward[0]), terminated, truncated, info

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


class VectorEnv(OfBatch, gymnasium.vector.VectorEnv):
    """N environments in one compiled call, on Gymnasium's vector interface.

    Environment i with seed s is the single environment with seed s + i, up to rounding: another N
    is another program. Infos are those of N single environments in Gymnasium's ``SyncVectorEnv``.

    The step that ends an episode begins the next in autoreset mode SAME_STEP, where
    ``infos["final_obs"]`` and ``infos["final_info"]`` hold what it ended with. In NEXT_STEP,
    Gymnasium's default, the step after it does: it ignores its action and gives reward 0. In
    DISABLED only ``reset(options={"reset_mask": mask})`` does; a step before it is ``ResetNeeded``.

    Args:
        system: as in :class:`Env`, or a stacked batch of F systems: environment i is i mod F.
        num_envs: N.
        autoreset_mode: SAME_STEP, NEXT_STEP or DISABLED, or their text.
        render_mode: None or "rgb_array", an image an environment.
        normalize_actions, constrained: as in :class:`Env`.

    Errors are those of :class:`Env`.
    """

    def __init__(
        self,
        system: object = "ConverseArm-v0",
        num_envs: int | None = None,
        *,
        autoreset_mode: AutoresetMode | str = AutoresetMode.NEXT_STEP,
        render_mode: str | None = None,
        normalize_actions: bool = True,
        constrained: bool = False,
        **options: Option,
    ):
        if render_mode is not None:
            errors.one_of("render_mode", render_mode, ("rgb_array",))
        mode = getattr(autoreset_mode, "value", autoreset_mode)
        known = [known.value for known in AutoresetMode]
        self.autoreset_mode = AutoresetMode(errors.one_of("autoreset_mode", mode, known))
        self.metadata = {
            "autoreset_mode": self.autoreset_mode,
            "render_modes": ["rgb_array"],
            "render_fps": FRAMES_PER_SECOND,
        }
        self.render_mode = render_mode
        env, params = resolve(system, options)
        env = envs.constrained(env) if constrained else env
        self._batch = Batch(env, params, num_envs, normalize_actions=normalize_actions)
        self.num_envs = self._batch.num_envs
        self.single_observation_space, self.single_action_space = spaces_of(self._batch)
        batched = gymnasium.vector.utils.batch_space
        self.observation_space = batched(self.single_observation_space, self.num_envs)
        self.action_space = batched(self.single_action_space, self.num_envs)
        self._pending = np.zeros(self.num_envs, bool)  # episodes that ended, to begin yet
        shape = (self.num_envs, *self._batch.obs_low.shape)
        self._obs: np.ndarray = np.zeros(shape, np.float32)  # what was shown last

    def reset(
        self, *, seed: int | Sequence[int | None] | None = None, options: Options | None = None
    ) -> tuple[np.ndarray, Infos]:
        """Begin episodes, in all or where ``options["reset_mask"]``, (N,) bool, is true.

        ``seed`` is one number, the others following, or one each; None goes on drawing.
        """
        self._require_open()
        if isinstance(seed, int | np.integer):
            seed = int(seed)
        super().reset(seed=seed if isinstance(seed, int) else None)
        mask = self._mask(options)
        if not self._batch.started:
            if not mask.all():
                raise ResetNeeded("reset_mask: expected a call of reset without it before")
            seed = self._first_seeds(seed)
        obs = self._batch.reset(seed, mask, self._pending)
        self._obs = np.where(mask[:, None], obs, self._obs)
        self._pending = self._pending & ~mask
        return self._obs.copy(), {}

    def _first_seeds(self, seed: int | Sequence[int | None] | None) -> int | list[int]:
        """Seeds of the first episodes, by chance where none is given."""
        if seed is None:
            return int(self.np_random.integers(2**31))
        if isinstance(seed, int):
            return seed
        return [int(self.np_random.integers(2**31)) if one is None else one for one in seed]

    def _mask(self, options: Options | None) -> np.ndarray:
        if options is None or "reset_mask" not in options:
            return np.ones(self.num_envs, bool)
        mask = np.asarray(options["reset_mask"])
        if mask.shape != (self.num_envs,) or mask.dtype != bool or not mask.any():
            raise InputError(
                f"reset_mask: expected an array of {self.num_envs} bools, one of them true at "
                f"least, got {options['reset_mask']!r}"
            )
        return mask

    def step(self, actions: PyTree) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, dict]:
        """One step of all under actions (N, m)."""
        self._require_open()
        if not self._batch.started:
            raise ResetNeeded("step: expected a call of reset before it")
        mode = self.autoreset_mode
        if mode is AutoresetMode.DISABLED and self._pending.any():
            raise ResetNeeded(
                "step: an episode is over; expected reset(options={'reset_mask': mask}) before it"
            )
        out = self._batch.step(actions, self._pending if mode is AutoresetMode.NEXT_STEP else None)
        done = out.terminated | out.truncated
        infos: Infos = {}
        if mode is AutoresetMode.SAME_STEP:
            self._obs, told = out.obs, ~done
            if done.any():
                infos = _ends(out, done)
        else:
            self._obs, told, self._pending = out.final_obs, ~self._pending, done.copy()
        if told.any():  # an environment that has just begun tells nothing
            for name, values in {"clipped": out.clipped, **out.told}.items():
                infos |= {name: np.where(told, values, 0).astype(values.dtype), f"_{name}": told}
        reward = out.reward.astype(np.float64)
        return self._obs.copy(), reward, out.terminated, out.truncated, infos

    def render(self) -> tuple[np.ndarray, ...] | None:
        """An image (H, W, 3) an environment."""
        self._require_open()
        if self.render_mode is None:
            return None
        if not self._batch.started:
            raise ResetNeeded("render: expected a call of reset before it")
        return tuple(picture(self._batch.member(i)[0], s) for i, s in enumerate(self._obs))

    def close_extras(self, **kwargs: object) -> None:
        """Nothing is held open; ``kwargs`` are ignored."""

    def _require_open(self) -> None:
        if self.closed:
            raise ClosedEnvironmentError("the environment is closed; make another")


def _ends(out: Step, done: np.ndarray) -> Infos:
    """Infos of the episodes that are ``done``, in the form of Gymnasium's own vectors."""
    final = np.full(len(done), None, object)
    for i in np.flatnonzero(done):
        final[i] = out.final_obs[i].copy()
    final_info = {}
    for name, values in {"clipped": out.clipped, **out.told}.items():
        final_info |= {
            name: np.where(done, values, 0).astype(values.dtype),
            f"_{name}": done.copy(),
        }
    return {
        "final_obs": final,
        "_final_obs": done.copy(),
        "final_info": final_info,
        "_final_info": done.copy(),
    }


def make_env(name: str | None = None, *, family: str | None = None, **options: Option) -> Env:
    """What ``gymnasium.make`` calls for "cojax/FAMILY-v0", of the ``family``, and for
    "cojax/Fixture-v0", whose ``name`` is given. ``options`` are those of :class:`Env`.

    Raises Gymnasium's MissingArgument without a name.
    """
    return Env(_named(name, family), **with_limit(options, asked_limit()))


def make_vector_env(
    name: str | None = None,
    num_envs: int = 1,
    *,
    family: str | None = None,
    max_episode_steps: int | None = None,
    **options: Option,
) -> VectorEnv:
    """What ``gymnasium.make_vec`` calls, as :func:`make_env`; ``options`` are those of
    :class:`VectorEnv`. ``max_episode_steps`` is Gymnasium's word for the time limit, -1 for none.

    Raises Gymnasium's MissingArgument without a name.
    """
    return VectorEnv(_named(name, family), num_envs, **with_limit(options, max_episode_steps))


def _named(name: str | None, family: str | None) -> str:
    if family is not None and name is not None:
        raise InputError("name: expected none, since a family has one")
    if name is None and family is None:
        raise MissingArgument("name: expected that of a fixture, such as arm-n4-p0.80-s7")
    return name or f"{family}-v0"


make_env.metadata = METADATA  # pyright: ignore[reportFunctionMemberAccess]
