"""dm_env: an ``Environment``, NumPy in and out.

from cojax.adapters.dm_env import Environment
env = Environment("ConverseArm-v0", n=4, p=0.8, random_state=0)
"""

from __future__ import annotations

# Where the library is missing, its name is this very file's to a type checker.
# pyright: reportMissingImports=false, reportIncompatibleMethodOverride=false
# pyright: reportAttributeAccessIssue=false, reportGeneralTypeIssues=false
import numpy as np
from numpy.typing import ArrayLike

from cojax import inputs
from cojax.adapters.batch import Batch, missing, resolve, to_numpy
from cojax.types import Option

try:
    import dm_env
    from dm_env import specs
except ImportError:
    raise missing("dm_env", "dm_env") from None


class Environment(dm_env.Environment):
    """One system on dm_env's interface, in the units of the system.

    The last step of an episode has discount 0 where the divergence guard ended it and 1 where
    the time limit did; a step after it begins the next episode, and ignores its action.

    Args:
        system: a name of :func:`cojax.make` with its options, ``EnvParams``, a fixture, or
            (env, params) of a gymnax 1.0 environment with a Box of actions.
        random_state: seed of the first episode; the others follow. None for chance.

    Raises InputError, one line, for anything else, and for unusable actions.
    """

    def __init__(
        self,
        system: object = "ConverseArm-v0",
        *,
        random_state: int | None = None,
        **options: Option,
    ):
        self._batch = Batch(*resolve(system, options), 1, normalize_actions=False)
        if random_state is None:
            random_state = int(np.random.default_rng().integers(2**31))
        self._seed: int | None = inputs.whole("random_state", random_state, 0)
        self._over = True

    def reset(self) -> dm_env.TimeStep:
        """The first step of an episode."""
        obs = self._batch.reset(self._seed)[0]
        self._seed, self._over = None, False
        return dm_env.restart(obs)

    def step(self, action: ArrayLike) -> dm_env.TimeStep:
        """One transition under an action (m,)."""
        if self._over:
            return self.reset()
        out = self._batch.step(to_numpy(action)[None])
        reward, obs = float(out.reward[0]), out.final_obs[0]
        self._over = bool(out.terminated[0] or out.truncated[0])
        if out.terminated[0]:
            return dm_env.termination(reward, obs)
        if out.truncated[0]:
            return dm_env.truncation(reward, obs)
        return dm_env.transition(reward, obs)

    def observation_spec(self) -> specs.BoundedArray:
        """Bounds of s, (d,) float32."""
        low, high = self._batch.obs_low, self._batch.obs_high
        return specs.BoundedArray(low.shape, np.float32, low, high, "observation")

    def action_spec(self) -> specs.BoundedArray:
        """Bounds of a, (m,) float32; where the actions of the system are a list, of its index."""
        if self._batch.num_choices is not None:
            return specs.DiscreteArray(self._batch.num_choices, name="action")
        low, high = self._batch.low, self._batch.high
        return specs.BoundedArray(low.shape, np.float32, low, high, "action")
