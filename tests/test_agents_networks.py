"""Networks: their products are the plain ones, and compiled as they should be."""

from __future__ import annotations

import re
from functools import partial

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from cojax.agents import networks


def test_head_rescaling_is_exact():
    mlp = networks.MLP((8,), 1)
    params, x = mlp.init(jax.random.key(0), jnp.ones(3)), jnp.array([[0.2, -1.0, 3.0]])
    moved = networks.scale_head(params, jnp.float32(0.5), jnp.float32(-2.0))
    np.testing.assert_allclose(mlp.apply(moved, x), 0.5 * mlp.apply(params, x) - 2.0, rtol=1e-5)


@pytest.mark.parametrize("outputs", [1, 4, networks.NARROW, networks.NARROW + 1])
def test_a_head_is_one_product_with_its_kernel(outputs):
    """Values, gradients and forward derivatives, alone and batched."""
    head = networks.MLP((), outputs, head_scale=1.0)
    x = jax.random.normal(jax.random.key(1), (3, 5, 7))
    params = head.init(jax.random.key(0), x)
    kernel, c = params["params"]["head"]["kernel"], jnp.cos(jnp.arange(outputs))

    def loss(product):
        return lambda kernel, x: jnp.sum(jnp.sin(product(kernel, x)) * c)

    def ours(kernel, x):
        return head.apply({"params": {"head": {**params["params"]["head"], "kernel": kernel}}}, x)

    def known(kernel, x):
        return x @ kernel

    for derivative in (jax.grad, jax.jacfwd):
        mine, other = (derivative(loss(f), (0, 1))(kernel, x) for f in (ours, known))
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5), mine, other)
    batched = jax.jit(jax.vmap(ours, (None, 0)))(kernel, x)
    np.testing.assert_allclose(batched, known(kernel, x), atol=1e-5)


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.float64])
def test_the_product_of_a_hidden_layer_is_the_plain_one(dtype):
    """Values, forward, reverse and second derivatives, alone and vmapped."""
    with jax.enable_x64(dtype is jnp.float64):
        keys = jax.random.split(jax.random.key(0), 4)
        x, dx = jax.random.normal(keys[0], (2, 3, 7, 5), dtype)
        kernel, dkernel = jax.random.normal(keys[1], (2, 3, 5, 4), dtype)
        dims = (((1,), (0,)), ((), ()))

        def everything(product):
            def square(x, kernel):
                return jnp.sum(jnp.tanh(product(x, kernel, dims)) ** 2)

            def one(x, kernel, dx, dkernel):
                return (
                    product(x, kernel, dims),
                    jax.jvp(partial(product, dimension_numbers=dims), (x, kernel), (dx, dkernel)),
                    jax.grad(square, (0, 1))(x, kernel),
                    jax.grad(square)(x, kernel),
                    jax.grad(square, 1)(x, kernel),
                    jax.hessian(square, (0, 1))(x, kernel),
                )

            alone = jax.jit(one)(x[0], kernel[0], dx[0], dkernel[0])
            return alone, jax.jit(jax.vmap(one))(x, kernel, dx, dkernel)

        tolerance = 1e-12 if dtype is jnp.float64 else 1e-5
        chex.assert_trees_all_close(
            everything(networks.hidden_product),
            everything(jax.lax.dot_general),
            rtol=tolerance,
            atol=10 * tolerance,
        )


def test_gradients_of_hidden_layers_sum_over_last_axes_on_cpu():
    mlp = networks.MLP((24, 24), 1)
    with jax.default_device(jax.devices("cpu")[0]):
        x = jnp.ones((64, 6))
        params = mlp.init(jax.random.key(0), x)
        grad = jax.jit(jax.grad(lambda params: jnp.sum(networks.forward(mlp, params, x) ** 2)))
        program = grad.lower(params).compile().as_text()
    found = re.findall(r"f32\[(\d+),24\]\S* dot\(.*lhs_contracting_dims=\{(\d)\}", program)
    axes = {rows: axis for rows, axis in found if rows != "1"}  # without the head's
    # activations and their gradients have 64 rows, kernels 6 and 24
    assert axes == {"64": "1", "6": "1", "24": "1"}


def test_networks_of_a_population_are_factorised_one_after_another_on_cpu():
    """Batches of factorisations at a time can take all threads and wait for ever."""
    mlp = networks.MLP((16, 16), 1)
    with jax.default_device(jax.devices("cpu")[0]):
        keys = jax.random.split(jax.random.key(0), 6).reshape(3, 2)
        init = jax.jit(jax.vmap(jax.vmap(lambda key: mlp.init(key, jnp.ones(4)))))
        program = init.lower(keys).compile()
        found = re.findall(r"f32\[([\d,]+)\]\S*, \S* custom-call.*geqrf", program.as_text())
        assert sorted(found) == sorted(["16,4", "16,16", "16,1"])
        members = program(keys)
        alone = jax.jit(lambda key: mlp.init(key, jnp.ones(4)))(keys[2, 1])
    chex.assert_trees_all_equal(jax.tree.map(lambda x: x[2, 1], members), alone)
    layer = alone["params"]["layer1"]["kernel"]
    np.testing.assert_allclose(layer.T @ layer, 2.0 * np.eye(16), atol=1e-5)
