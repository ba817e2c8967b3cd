"""A curriculum: one training run through stages of a problem, from an easier one to its own."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from cojax import inputs
from cojax.agents.algorithm import Clock, Number
from cojax.envs.batching import stack, unstack
from cojax.envs.params import EnvParams
from cojax.envs.stages import knobs, stages
from cojax.errors import InputError
from cojax.types import Array, PyTree


@struct.dataclass
class Curriculum:
    """Parameters of an environment that change while a learner trains; see :func:`curriculum`.

    Attributes:
        problem: what is to be learned, and what policies are measured on.
        stages: the problems on the way, leaves (K, ...); the last is ``problem``.
        until: share of the updates after which only ``problem`` is met.
    """

    problem: PyTree
    stages: PyTree
    until: Number

    @property
    def max_steps_in_episode(self) -> Array:
        """Of the problem."""
        return self.problem.max_steps_in_episode

    @property
    def discount(self) -> Array:
        """Of the problem, and of all stages."""
        return self.problem.discount

    def at(self, clock: Clock) -> PyTree:
        """The stage of an update: number ⌊(K - 1) · progress/until⌋, the last from ``until`` on.

        Without a plan of updates, the problem itself.
        """
        last = self.stages.max_steps_in_episode.shape[0] - 1
        progress = clock.update / jnp.maximum(clock.total, 1)
        number = jnp.floor(last * progress / jnp.maximum(self.until, 1e-6))
        number = jnp.where(clock.total > 0, jnp.minimum(number, float(last)), float(last))
        return jax.tree.map(lambda x: x[number.astype(jnp.int32)], self.stages)


def curriculum(
    params: EnvParams, *, until: float = 0.5, num_stages: int = 8, **start: float
) -> Curriculum:
    """Parameters for ``train`` that begin at another value of one knob and move to their own.

        x_k = x_start + (x - x_start) k/(K - 1),   0 ≤ k < K, in equal shares of ``until``

    In the homotopy over the control strength, ``curriculum(params, p=0.2)``, V* stays the same
    while the drift turns from nearly none to its own (paper, Section VI). Policies are measured on
    the problem itself. A replay buffer keeps what it saw in earlier stages.

    Args:
        params: the problem, or a stacked batch.
        until: share of the updates after which the problem itself is met, in (0, 1].
        num_stages: K, at least 2.
        start: the knob, by name, and its first value.

    Raises InputError for parameters of another library, for more than one knob or none, one that
    the family lacks, an unusable value, and other numbers than these.
    """
    if not isinstance(params, EnvParams):
        raise InputError(f"curriculum: expected cojax's EnvParams, got {type(params).__name__}")
    if len(start) != 1:
        raise InputError(f"curriculum: expected one knob and where it starts, got {sorted(start)}")
    share = inputs.number("curriculum: until", until, 0.0, 1.0, low_open=True)
    num_stages = inputs.whole("curriculum: num_stages", num_stages, 2)
    ((knob, first),) = start.items()
    first = inputs.number(f"curriculum: {knob}", first)
    way = []
    for one in unstack(params):
        last = knobs(one.system).get(knob, first)
        way += stages(one, knob, np.linspace(first, last, num_stages).tolist())
    lead = jnp.shape(params.max_steps_in_episode)  # all at once, so that all have one shape
    both = jax.tree.map(lambda x: x.reshape(*lead, num_stages, *x.shape[1:]), stack(way))
    return Curriculum(params, both, jnp.full(lead, share, jnp.float32))


def stage_of(env_params: PyTree, clock: Clock) -> PyTree:
    """What an update at ``clock`` is to learn in."""
    return env_params.at(clock) if isinstance(env_params, Curriculum) else env_params


def problem_of(env_params: PyTree) -> PyTree:
    """What is to be learned."""
    return env_params.problem if isinstance(env_params, Curriculum) else env_params
