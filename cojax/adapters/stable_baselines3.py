"""Stable-Baselines3: a VecEnv that steps thousands of environments in one compiled call.

    from cojax.adapters.stable_baselines3 import VecEnv
    model = PPO("MlpPolicy", VecEnv("ConverseArm-v0", 64, n=4, p=0.8)).learn(100_000)
    cojax.evaluate({"ppo": model}, fixtures)

Actions are in [-1, 1]^m unless ``normalize_actions=False``; the evaluator knows the factor.
"""

from __future__ import annotations

# pyright: reportIncompatibleMethodOverride=false, reportMissingImports=false
# pyright: reportIncompatibleVariableOverride=false
from collections.abc import Sequence

import numpy as np

from cojax import errors, inputs
from cojax.adapters.batch import Batch, missing, resolve, to_numpy
from cojax.adapters.drawing import picture
from cojax.errors import InputError
from cojax.types import Option, Options, PyTree

try:
    from stable_baselines3.common import vec_env
except ImportError:
    raise missing("stable_baselines3", "sb3") from None

from cojax.adapters.gymnasium import FRAMES_PER_SECOND, spaces_of


class VecEnv(vec_env.VecEnv):
    """N environments in one compiled call, as Stable-Baselines3 asks for them.

    Where an episode ends, ``infos[i]`` holds ``terminal_observation``, the last observation,
    ``TimeLimit.truncated``, whether the time limit alone ended it (learners then bootstrap), and
    ``episode`` with its return and length; observations are those of the next episode.

    Args:
        system: a name of :func:`cojax.make` with its options, ``EnvParams``, a stacked batch of
            F systems (environment i is system i mod F), a fixture, or (env, params) of a gymnax
            1.0 environment with a Box of actions.
        num_envs: N; None for F, or 1.
        normalize_actions: whether actions are in [-1, 1]^m.
        render_mode: None or "rgb_array".

    Raises InputError, one line, for unusable options and actions, a step before a reset, and
    what comes after ``close``. Seeds are set by ``seed``, as learners do: environment i has
    seed + i.
    """

    def __init__(
        self,
        system: object = "ConverseArm-v0",
        num_envs: int | None = None,
        *,
        normalize_actions: bool = True,
        render_mode: str | None = None,
        **options: Option,
    ):
        if render_mode is not None:
            errors.one_of("render_mode", render_mode, ("rgb_array",))
        env, params = resolve(system, options)
        self._batch = Batch(env, params, num_envs, normalize_actions=normalize_actions)
        self._closed, self._actions = False, None
        self.render_mode = render_mode
        super().__init__(self._batch.num_envs, *spaces_of(self._batch))
        self.metadata: Options = {**self.metadata, "render_fps": FRAMES_PER_SECOND}
        self.seed()
        self._returns = np.zeros(self.num_envs)
        self._lengths = np.zeros(self.num_envs, int)

    @property
    def num_clipped(self) -> int:
        """How many actions were outside of the box so far."""
        return self._batch.num_clipped

    def seed(self, seed: int | None = None) -> Sequence[int | None]:
        """Seed the next reset; environment i gets seed + i. None leaves it to chance."""
        if seed is None:
            seed = int(np.random.default_rng().integers(2**31))
        first = inputs.whole("seed", seed, 0)
        self._seeds = [first + i for i in range(self.num_envs)]
        return self._seeds

    def reset(self) -> np.ndarray:
        """Begin episodes in all; observations (N, d) float32."""
        self._require_open()
        obs = self._batch.reset(self._seeds)
        self._reset_seeds()
        self._reset_options()
        self._returns[:] = self._lengths[:] = 0
        self.reset_infos = [{} for _ in range(self.num_envs)]
        self._obs = obs
        return obs.copy()  # pictures are drawn of ours

    def step_async(self, actions: np.ndarray) -> None:
        """Keep a copy of actions (N, m) for :meth:`step_wait`."""
        self._actions = np.array(to_numpy(actions))

    def step_wait(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, list[dict[str, PyTree]]]:
        """Step all: observations (N, d), rewards (N,), dones (N,) and N infos."""
        self._require_open()
        if self._actions is None:
            raise InputError("step_wait: expected a call of step_async before it")
        out = self._batch.step(self._actions)
        self._actions = None
        self._returns += out.reward
        self._lengths += 1
        dones = out.terminated | out.truncated
        infos: list[dict[str, PyTree]] = [{} for _ in range(self.num_envs)]
        for i in np.flatnonzero(dones):
            infos[i] = {
                "terminal_observation": out.final_obs[i].copy(),
                "TimeLimit.truncated": bool(out.truncated[i] and not out.terminated[i]),
                "episode": {"r": float(self._returns[i]), "l": int(self._lengths[i]), "t": 0.0},
            }
        self._returns[dones] = 0.0
        self._lengths[dones] = 0
        self._obs = out.obs
        return out.obs.copy(), out.reward.copy(), dones, infos

    def close(self) -> None:
        """What comes after is an error; another ``close`` is not."""
        self._closed = True

    def get_images(self) -> Sequence[np.ndarray | None]:
        """An image an environment, or None where the render mode is None."""
        self._require_open()
        if self.render_mode is None:
            return [None] * self.num_envs
        if not self._batch.started:
            raise InputError("render: expected a call of reset before it")
        return [picture(self._batch.member(i)[0], s) for i, s in enumerate(self._obs)]

    def get_attr(self, attr_name: str, indices: PyTree = None) -> list[PyTree]:
        """The attribute ``attr_name``, the same for every environment.

        ``params`` is each one's own. ``indices`` chooses environments: a number, several, or None
        for all; InputError where there is no such environment.
        """
        chosen = self._chosen(indices)
        if attr_name == "params":
            return [self._batch.member(i)[0] for i in chosen]
        return [getattr(self, attr_name)] * len(chosen)

    def set_attr(self, attr_name: str, value: object, indices: PyTree = None) -> None:
        """Refused: the environments are one program, so ``attr_name`` has no ``value`` to take at
        ``indices``. Raises InputError.
        """
        raise InputError(f"{attr_name}: an attribute cannot be set; make another VecEnv")

    def env_method(
        self,
        method_name: str,
        *method_args: object,
        indices: PyTree = None,
        **method_kwargs: object,
    ) -> list[PyTree]:
        """Refused: the environments are one program, and ``method_name`` cannot be called with
        ``method_args`` and ``method_kwargs`` at ``indices``. Raises InputError.
        """
        raise InputError(f"{method_name}: there are no single environments to call it on")

    def env_is_wrapped(self, wrapper_class: type, indices: PyTree = None) -> list[bool]:
        """Whether environments ``indices`` are wrapped in ``wrapper_class``: none is, but episodes
        are recorded as a Monitor would, so for that the answer is yes.
        """
        return [wrapper_class.__name__ == "Monitor"] * len(self._chosen(indices))

    def _chosen(self, indices: PyTree) -> list[int]:
        every = np.arange(self.num_envs)
        try:
            return np.atleast_1d(
                every if indices is None else every[np.asarray(indices, int)]
            ).tolist()
        except (IndexError, TypeError, ValueError):
            raise InputError(
                f"indices: expected numbers of environments below {self.num_envs}, got {indices!r}"
            ) from None

    def _require_open(self) -> None:
        if self._closed:
            raise InputError("VecEnv: it is closed; make another")
