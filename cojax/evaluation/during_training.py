"""The gap of a policy while it learns, on streams of its own, inside the compiled training."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
from jax import lax

from cojax import streams
from cojax.envs import EnvParams
from cojax.policy import Policy
from cojax.system import next_mean


@dataclasses.dataclass(frozen=True)
class RelativeGap:
    """Mean relative suboptimality Σ_{k<T} γᵏ A*(s_k, a_k)/V*(s_0) over some trials; a scalar.

    Give it to ``train(..., evaluate=RelativeGap())``. A trial that leaves the divergence guard or
    is not finite makes the mean infinite. Use another root than the final evaluation, so that
    what is chosen by the curve is judged on streams it has not seen.

    Attributes:
        num_trials: trials, on instances 0 … num_trials - 1 of the root's streams.
        num_steps: steps of a trial; those beyond the system's horizon count for nothing.
        root: seed of the streams.
    """

    num_trials: int = 16
    num_steps: int = 512
    root: int = 1

    def __call__(self, policy: Policy, params: EnvParams, key: jax.Array) -> jax.Array:
        """The gap of one policy on one system; ``key`` is not used, the streams are fixed."""
        del key
        keys = streams.stream_keys(self.root, self.num_trials)
        return jnp.mean(jax.vmap(lambda k: self._trial(policy, params, k))(keys))

    def _trial(self, policy: Policy, params: EnvParams, stream: jax.Array) -> jax.Array:
        system = params.system
        episode = streams.episode_key(stream, 0)
        noise, own = streams.noise_root(episode), streams.policy_root(episode)
        s0 = params.initial_state.sample(streams.initial_key(episode))
        limit = jnp.where(params.clip_actions, params.action_limit, jnp.inf)

        def step(carry, k):
            s, discount, gap = carry
            optimum = system.optimum(s)
            a = jnp.clip(policy(s, jax.random.fold_in(own, k)), -limit, limit)
            gap = gap + discount * system.excess_cost(s, a - optimum.action)
            w = system.sample_noise(s, jax.random.fold_in(noise, k))
            s_next = next_mean(system, s, a, optimum) + w
            inside = system.value(s_next) - system.offset <= params.divergence_radius**2
            gap = jnp.where(inside, gap, jnp.inf)  # also where the value is not a number
            discount = jnp.where(k + 1 < params.max_steps_in_episode, discount * system.gamma, 0.0)
            return (jnp.where(inside, s_next, s0), discount, gap), None

        start = (s0, jnp.ones_like(system.gamma), jnp.zeros_like(system.gamma))
        (_, _, gap), _ = lax.scan(step, start, jnp.arange(self.num_steps))
        return gap / system.value(s0)
