"""Networks with batch renormalisation (Ioffe 2017, arXiv:1702.03275) of inputs and hidden layers.

In training a layer's inputs are standardised by mean and deviation of the batch, (μ_B, σ_B), and
corrected towards their running averages (μ, σ); in inference by the running averages alone:

    z = r (x - μ_B)/σ_B + d     r = σ_B/σ within [1/R, R],   d = (μ_B - μ)/σ within [-D, D]
    z = (x - μ)/σ               in inference, which is the same where neither limit is reached
    y = scale · z + bias

r and d are constants to gradients, which flow through μ_B and σ_B. Running averages are plain means
of what batches had until there are 1/RATE batches, so that they mean something from the second
batch on. Then corrections begin; with fixed rates (the authors of CrossQ) it takes a warm-up.

The running averages are a part of the parameters, ``STATISTICS``, that has no gradient.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from flax import linen as nn

from cojax.agents.networks import MLP, activation, head_layer, hidden_layer
from cojax.linalg import lift
from cojax.types import Array, Float, PyTree

STATISTICS = "batch_stats"  # flax's name of such parts
EPS = 1e-3  # added to variances
RATE = 0.01  # weight of the newest batch in running averages
MOST_R, MOST_D = 3.0, 5.0


class BatchRenorm(nn.Module):
    """y = scale · z + bias, see the module."""

    @nn.compact
    def __call__(self, x: Float[Array, "*batch d"], training: bool) -> Float[Array, "*batch d"]:
        """Standardise; in training ``x`` has shape (B, d), and the running averages are moved."""
        shape = x.shape[-1:]
        mean = self.variable(STATISTICS, "mean", jnp.zeros, shape)
        var = self.variable(STATISTICS, "var", jnp.ones, shape)
        # a float, as all else in a packed vector of parameters
        seen = self.variable(STATISTICS, "seen", jnp.zeros, ())
        scale = self.param("scale", nn.initializers.ones, shape)
        bias = self.param("bias", nn.initializers.zeros, shape)
        std = jnp.sqrt(var.value + EPS)
        if not training:
            gain = scale / std
            return lift(gain, x) * x + lift(bias - gain * mean.value, x)
        batch_mean = jnp.mean(x, axis=0)
        batch_var = jnp.mean((x - lift(batch_mean, x)) ** 2, axis=0)
        batch_std = jnp.sqrt(batch_var + EPS)
        most_r = jnp.where(seen.value > 0, MOST_R, 1.0)
        most_d = jnp.where(seen.value > 0, MOST_D, 0.0)
        r = jnp.clip(batch_std / std, 1.0 / most_r, most_r)
        d = jnp.clip((batch_mean - mean.value) / std, -most_d, most_d)
        r, d = jax.lax.stop_gradient((r, d))
        rate = jnp.maximum(RATE, 1.0 / (1.0 + seen.value))
        new_mean, new_var = jax.lax.stop_gradient((batch_mean, batch_var))
        mean.value += rate * (new_mean - mean.value)
        var.value += rate * (new_var - var.value)
        seen.value = jnp.minimum(seen.value + 1.0, 1.0 / RATE)
        gain = scale * r / batch_std
        return lift(gain, x) * x + lift(scale * d + bias - gain * batch_mean, x)


class NormalizedMLP(MLP):
    """x -> W_L h_{L-1} + b_L, h_l = N_l(φ(W_l h_{l-1} + b_l)), h_0 = N_0(x).

    N_l is batch renormalisation. The rest is as in ``networks.MLP``.
    """

    @nn.compact
    def __call__(
        self, x: Float[Array, "*batch d"], training: bool = False
    ) -> Float[Array, "*batch k"]:
        """Map inputs to outputs."""
        phi = activation(self.activation)
        x = BatchRenorm(name="norm")(x, training)
        for i, width in enumerate(self.hidden):
            x = BatchRenorm(name=f"norm{i}")(phi(hidden_layer(i, width)(x)), training)
        return head_layer(self.out, self.head_scale)(x)


def forward_training(
    module: NormalizedMLP, params: PyTree, x: Float[Array, "B d"]
) -> tuple[Float[Array, "B k"], PyTree]:
    """The outputs in training, and the running averages after this batch."""
    outputs, changed = module.apply(params, x, training=True, mutable=[STATISTICS])
    return outputs, changed[STATISTICS]
