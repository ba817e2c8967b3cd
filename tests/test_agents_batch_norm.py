"""Batch renormalisation against NumPy: in training, in inference, its gradients and statistics."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from cojax.agents.batch_norm import (
    EPS,
    MOST_D,
    MOST_R,
    RATE,
    STATISTICS,
    BatchRenorm,
    NormalizedMLP,
    forward_training,
)

D = 3
NORM = BatchRenorm()


def layer(mean=0.0, var=1.0, seen=0.0):
    key = jax.random.key(1)
    params = {"scale": 1.0 + jax.random.uniform(key, (D,)), "bias": jax.random.normal(key, (D,))}
    full = {"mean": jnp.full(D, mean), "var": jnp.full(D, var), "seen": jnp.asarray(seen)}
    return {"params": params, STATISTICS: full}


def batch(seed=0, shift=0.0, size=64):
    return shift + jnp.array([1.0, 2.0, 0.5]) * jax.random.normal(jax.random.key(seed), (size, D))


def train(variables, x):
    y, changed = NORM.apply(variables, x, True, mutable=[STATISTICS])
    return y, {**variables, **changed}


def reference(variables, x):
    """Ioffe 2017, algorithm 1, in double precision; no corrections before the second batch."""
    x = np.asarray(x, np.float64)
    params, known = (
        {k: np.asarray(v, np.float64) for k, v in variables[part].items()}
        for part in ("params", STATISTICS)
    )
    mean, std = x.mean(0), np.sqrt(x.var(0) + EPS)
    r, d = np.ones(D), np.zeros(D)
    if known["seen"] > 0:
        running = np.sqrt(known["var"] + EPS)
        r = np.clip(std / running, 1 / MOST_R, MOST_R)
        d = np.clip((mean - known["mean"]) / running, -MOST_D, MOST_D)
    z = (x - mean) / std * r + d
    return params["scale"] * z + params["bias"]


@pytest.mark.parametrize(
    ("mean", "var", "seen", "shift"),
    [(0.0, 1.0, 0.0, 7.0), (0.5, 2.0, 9.0, 0.0), (0.0, 1.0, 9.0, 20.0), (0.0, 100.0, 9.0, 0.0)],
)
def test_training_is_the_papers_formula(mean, var, seen, shift):
    """Of the first batch, within both limits, beyond that of d, and beyond that of r."""
    variables, x = layer(mean, var, seen), batch(shift=shift)
    np.testing.assert_allclose(train(variables, x)[0], reference(variables, x), atol=2e-4)


def test_inference_takes_the_running_averages_and_any_shape():
    variables, x = layer(0.5, 4.0, 9.0), batch()
    z = (x - 0.5) / np.sqrt(4.0 + EPS)
    known = variables["params"]["scale"] * z + variables["params"]["bias"]
    np.testing.assert_allclose(NORM.apply(variables, x, False), known, atol=1e-5)
    np.testing.assert_allclose(NORM.apply(variables, x[0], False), known[0], atol=1e-5)


def test_training_agrees_with_inference_within_the_limits():
    variables, x = layer(0.3, 2.0, 9.0), batch()
    np.testing.assert_allclose(train(variables, x)[0], NORM.apply(variables, x, False), atol=1e-5)


def test_running_averages_are_means_first_and_forget_later():
    variables, xs = layer(), [batch(seed) for seed in range(3)]
    for x in xs:
        _, variables = train(variables, x)
    known = variables[STATISTICS]
    np.testing.assert_allclose(known["mean"], np.mean([x.mean(0) for x in xs], 0), atol=1e-6)
    np.testing.assert_allclose(known["var"], np.mean([x.var(0) for x in xs], 0), rtol=1e-5)
    assert float(known["seen"]) == 3.0
    late = layer(0.5, 2.0, 1.0 / RATE)
    _, after = train(late, xs[0])
    aim = 0.5 + RATE * (xs[0].mean(0) - 0.5)
    np.testing.assert_allclose(after[STATISTICS]["mean"], aim, atol=1e-6)
    assert float(after[STATISTICS]["seen"]) == 1.0 / RATE  # counting on would round


def test_no_gradient_goes_into_the_statistics_and_it_goes_through_those_of_the_batch():
    def loss(variables, x):
        y, _ = train(variables, x)
        return jnp.sum(jnp.sin(y))

    slopes, into = jax.grad(loss, (0, 1))(layer(0.5, 2.0, 9.0), batch())
    assert all(not np.any(x) for x in jax.tree.leaves(slopes[STATISTICS]))
    assert np.any(slopes["params"]["scale"])
    # the batch's mean is taken out: a shift of all rows alike changes nothing
    np.testing.assert_allclose(into.sum(0), 0.0, atol=1e-4)


def test_a_network_of_them_learns_to_standardise():
    """After many batches inference gives what training gives; inputs are far from 0 and 1."""
    net = NormalizedMLP((8, 8), 1, "silu")
    params = net.init(jax.random.key(0), jnp.zeros(D))
    xs = 100.0 + 10.0 * jax.random.normal(jax.random.key(2), (200, 256, D))

    def one(params, x):
        out, known = forward_training(net, params, x)
        return {**params, STATISTICS: known}, out

    params, outs = jax.lax.scan(one, params, xs)
    x = xs[-1]
    assert float(jnp.std(outs[-1])) > 0.1
    np.testing.assert_allclose(net.apply(params, x), outs[-1], atol=0.02)
    np.testing.assert_allclose(net.apply(params, x[0]), net.apply(params, x)[0], atol=1e-5)
