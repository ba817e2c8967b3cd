"""The gap of a policy while it learns, on streams of its own, inside the compiled training."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp

from cojax import streams, trials
from cojax.envs import EnvParams
from cojax.policy import Policy
from cojax.types import Array, Float, PRNGKeyArray


@dataclasses.dataclass(frozen=True)
class TrialGaps:
    """Relative suboptimality Σ_{k<T} γᵏ A*(s_k, a_k)/V*(s_0) of each of some trials; (num_trials,).

    A trial that leaves the divergence guard or is not finite counts as infinite; where V*(s_0) is
    0, so does one of any gap, and one without has none.

    Attributes:
        num_trials: trials, on instances 0 … num_trials - 1 of the root's streams.
        num_steps: steps of a trial; those beyond the system's horizon count for nothing.
        root: seed of the streams.
    """

    num_trials: int = 64
    num_steps: int = 512
    root: int = 2

    @streams.pinned()
    def __call__(
        self, policy: Policy, params: EnvParams, key: PRNGKeyArray | None
    ) -> Float[Array, "*trials"]:
        """The gaps of one policy on one system; ``key`` is not used, the streams are fixed."""
        del key
        system = params.system

        def observe(total, step):
            discount, gap = total
            longer = gap + discount * step.advantage(system)
            longer = jnp.where(step.alive, longer, jnp.inf)  # also where the value is no number
            gap = jnp.where(step.k < params.max_steps_in_episode, longer, gap)
            return (discount * system.gamma, gap), None

        def of(stream):
            start = (jnp.ones_like(system.gamma), jnp.zeros_like(system.gamma))
            (_, gap), _ = trials.scan_trial(
                lambda optimum, s, key: policy(s, key),
                params,
                stream,
                self.num_steps,
                observe=observe,
                total=start,
            )
            return trials.relative(gap, system.value(trials.initial_state(params, stream)))

        return jax.vmap(of)(streams.stream_keys(self.root, self.num_trials))


@dataclasses.dataclass(frozen=True)
class RelativeGap(TrialGaps):
    """Mean relative suboptimality over some trials, a scalar; fields as in :class:`TrialGaps`.

    Give it to ``train(..., evaluate=RelativeGap())``. One infinite trial makes the mean infinite.
    Use another root than the final evaluation, so that what is chosen by the curve is judged on
    streams it has not seen.
    """

    num_trials: int = 16
    root: int = 1

    def __call__(
        self, policy: Policy, params: EnvParams, key: PRNGKeyArray | None
    ) -> Float[Array, ""]:
        """The gap of one policy on one system; ``key`` is not used, the streams are fixed."""
        return jnp.mean(super().__call__(policy, params, key))
