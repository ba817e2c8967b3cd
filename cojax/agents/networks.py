"""Networks of actors and critics: multilayer perceptrons, sizes and activation static.

Modules of one's own take their place, see :mod:`cojax.agents.own_networks`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
from flax import linen as nn

from cojax.errors import InputError
from cojax.types import Array, Float, PyTree

if TYPE_CHECKING:
    from cojax.agents.programs import Program

ACTIVATIONS: dict[str, Callable[[jax.Array], jax.Array]] = {
    "tanh": jnp.tanh,
    "relu": nn.relu,
    "silu": nn.silu,
    "gelu": nn.gelu,
    "elu": nn.elu,
}

NARROW = 12  # outputs, up to which a layer is multiplied column by column on CPU


def activation(name: str) -> Callable[[jax.Array], jax.Array]:
    """Return the activation called ``name``; ValueError for an unknown one."""
    if name not in ACTIVATIONS:
        raise InputError(f"activation: unknown {name!r}; choose from {', '.join(ACTIVATIONS)}")
    return ACTIVATIONS[name]


def _on_cpu(product: Callable[..., jax.Array], x: jax.Array, kernel: jax.Array, *args, **kwargs):
    """``product`` on CPU, where it is the quicker one, and elsewhere ``jax.lax.dot_general``."""
    return jax.lax.platform_dependent(
        x,
        kernel,
        cpu=product,
        default=lambda x, kernel: jax.lax.dot_general(x, kernel, *args, **kwargs),
    )


def _columns(x: jax.Array, kernel: jax.Array) -> jax.Array:
    """x @ kernel, (..., d) and (d, k), as k products with one column each."""
    return jnp.stack([x @ kernel[:, k] for k in range(kernel.shape[1])], axis=-1)


def narrow_product(x: jax.Array, kernel: jax.Array, *args: Any, **kwargs: Any) -> jax.Array:
    """``jax.lax.dot_general`` of a layer with few outputs.

    On CPU the product with a matrix of a few columns, and above all its gradient, takes two to four
    times as long as one product for each column.
    """
    if kernel.shape[1] > NARROW:
        return jax.lax.dot_general(x, kernel, *args, **kwargs)
    return _on_cpu(_columns, x, kernel, *args, **kwargs)


@jax.custom_jvp
def _product(x: jax.Array, kernel: jax.Array) -> jax.Array:
    """x @ kernel, (B, d) and (d, k); its gradient to the kernel, xᵀ @ dy, copies xᵀ first."""
    return x @ kernel


def _along_kernel(dkernel: jax.Array, _: jax.Array, x: jax.Array, kernel: jax.Array) -> jax.Array:
    copy = jax.lax.optimization_barrier(x.T)  # without the barrier XLA would not copy
    return jax.lax.dot_general(copy, dkernel, (((0,), (0,)), ((), ())))


_product.defjvps(lambda dx, _, x, kernel: dx @ kernel, _along_kernel)


def hidden_product(x: jax.Array, kernel: jax.Array, *args: Any, **kwargs: Any) -> jax.Array:
    """``jax.lax.dot_general`` of a hidden layer.

    On CPU a product that sums over the first axis of its left factor, as the gradient xᵀ @ dy does,
    takes 10 to 25% longer than a copy of xᵀ and a product that sums over its last.
    """
    if x.ndim != 2:
        return jax.lax.dot_general(x, kernel, *args, **kwargs)
    return _on_cpu(_product, x, kernel, *args, **kwargs)


def orthogonal(scale: float) -> Callable[..., jax.Array]:
    """``flax.linen.initializers.orthogonal``, which vmap runs one after another on CPU.

    There a batch of factorisations waits for threads of the pool that runs it: several batches at
    a time, one for each layer, take all threads and wait for ever (jaxlib 0.10).
    """
    known = nn.initializers.orthogonal(scale)

    def init(key, shape, dtype=jnp.float32):
        def one(key):
            return known(key, shape, dtype)

        return jax.lax.platform_dependent(
            key, cpu=jax.custom_batching.sequential_vmap(one), default=one
        )

    return init


def hidden_layer(number: int, width: int) -> nn.Dense:
    """Hidden layer ``number`` of a perceptron: orthogonal weights with gain √2, zero biases."""
    init, name = orthogonal(2.0**0.5), f"layer{number}"
    return nn.Dense(width, kernel_init=init, dot_general=hidden_product, name=name)


def head_layer(width: int, scale: float) -> nn.Dense:
    """Last layer of a perceptron, see ``scale_head``: orthogonal weights with gain ``scale``."""
    return nn.Dense(width, kernel_init=orthogonal(scale), dot_general=narrow_product, name="head")


class MLP(nn.Module):
    """x -> W_L φ(... φ(W_1 x + b_1)) + b_L, orthogonal weights and zero biases.

    Hidden weights are orthogonal with gain √2, the head's with gain ``head_scale``: 0.01 makes an
    actor's first mean almost 0 (Andrychowicz et al. 2021, "What matters in on-policy RL").

    Attributes:
        hidden: widths of the hidden layers.
        out: width of the output.
        activation: name in ``ACTIVATIONS``.
        head_scale: gain of the last layer.
    """

    hidden: tuple[int, ...]
    out: int
    activation: str = "tanh"
    head_scale: float = 1.0

    @nn.compact
    def __call__(self, x: Float[Array, "*batch d"]) -> Float[Array, "*batch k"]:
        """Map inputs to outputs."""
        phi = activation(self.activation)
        for i, width in enumerate(self.hidden):
            x = phi(hidden_layer(i, width)(x))
        return head_layer(self.out, self.head_scale)(x)


def forward(
    module: nn.Module | Program, params: PyTree, x: Float[Array, "*batch d"]
) -> Float[Array, "*batch k"]:
    """Return the module's output."""
    return module.apply(params, x)  # pyright: ignore[reportReturnType]


def scale_head(params: PyTree, scale: Float[Array, ""], shift: Float[Array, ""]) -> PyTree:
    """Return the network whose output is ``scale · f(x) + shift``, by changing its head alone.

    f is the network of ``params``. Its last layer must be a dense one called "head", as that of an
    MLP is.
    """
    head = params["params"]["head"]
    head = {"kernel": head["kernel"] * scale, "bias": head["bias"] * scale + shift}
    return {**params, "params": {**params["params"], "head": head}}
