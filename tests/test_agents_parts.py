"""The pieces learners are made of: densities, returns, normalisation, hyperparameters."""

from __future__ import annotations

import dataclasses
import inspect
import json
import re
from functools import partial

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from agents_toy import Toy, ToyParams
from flax import struct
from scipy import stats

from cojax.agents import (
    RenamedWarning,
    algorithm,
    ddpg,
    distributions,
    networks,
    off_policy,
    on_policy,
    optimization,
    ppo,
    returns,
    td3,
    train,
    training,
    tuned,
)
from cojax.agents.algorithm import (
    Clock,
    Episodes,
    hyperparameters,
    reset_all,
    shorten_episodes,
    stagger_episodes,
    strong,
)
from cojax.agents.loop import Plan
from cojax.agents.normalization import Moments, PopArt, RewardScale
from cojax.agents.population import advance, averages
from cojax.agents.run import Best
from cojax.errors import InputError
from cojax.studies import study as study_of


def numpy_gae(r, v, w, terminated, truncated, gamma, lam):
    """The documented recursion, step by step."""
    advantages, later = np.zeros_like(r), np.zeros_like(r[0])
    for t in reversed(range(len(r))):
        for i in range(r.shape[1]):
            next_value = 0.0 if terminated[t, i] else w[t, i]
            delta = r[t, i] + gamma * next_value - v[t, i]
            trace = 0.0 if terminated[t, i] or truncated[t, i] else later[i]
            advantages[t, i] = later[i] = delta + gamma * lam * trace
    return advantages


def test_gae_against_a_loop_with_mixed_flags():
    rng = np.random.default_rng(0)
    r, v, w = rng.normal(size=(3, 37, 5)).astype(np.float32)
    terminated, truncated = rng.random((2, 37, 5)) < 0.2
    assert (terminated & truncated).any()
    assert (truncated & ~terminated).any()
    ours = returns.gae(
        r, v, w, terminated=terminated, truncated=truncated, gamma=0.97, gae_lambda=0.9
    )
    want = numpy_gae(r, v, w, terminated, truncated, 0.97, 0.9)
    np.testing.assert_allclose(ours, want, rtol=1e-5, atol=1e-5)


def test_gaussian_density_and_entropy():
    u, mean, log_std = jnp.array([0.3, -1.0]), jnp.array([0.1, 0.5]), jnp.array([-0.7, 0.2])
    normal = stats.norm(mean, np.exp(log_std))
    log_prob = distributions.gaussian_log_prob(u, mean, log_std)
    np.testing.assert_allclose(log_prob, normal.logpdf(u).sum(), rtol=1e-6)
    np.testing.assert_allclose(
        distributions.gaussian_entropy(log_std), normal.entropy().sum(), rtol=1e-6
    )


def test_squashed_density_integrates_to_one_in_action_units():
    half = jnp.array([2.5])
    x = jnp.linspace(-9.0, 9.0, 200_001)[:, None]
    log_prob = distributions.tanh_gaussian_log_prob(x, jnp.array([0.4]), jnp.array([-0.3]), half)
    actions = np.asarray(half * jnp.tanh(x), np.float64)[:, 0]
    total = np.trapezoid(np.exp(np.asarray(log_prob, np.float64)), actions)
    assert abs(total - 1.0) < 1e-3


def test_tanh_slope_is_finite_where_tanh_saturates():
    x = jnp.array([-40.0, -9.5, 0.0, 0.3, 9.5, 40.0])
    exact = np.log(4.0) - 2.0 * np.logaddexp(x, -np.asarray(x, np.float64))
    np.testing.assert_allclose(distributions.log_tanh_slope(x), exact, rtol=1e-6, atol=1e-6)


def test_bounds_are_per_dimension_and_infinite_ones_have_unit_scale():
    box = distributions.ActionBox(jnp.array([-1.0, 0.0, -jnp.inf]), jnp.array([3.0, 0.5, jnp.inf]))
    np.testing.assert_allclose(box.half_range(), [2.0, 0.25, 1.0])
    np.testing.assert_allclose(box.to_action(jnp.ones(3)), [3.0, 0.5, 1.0])
    np.testing.assert_allclose(box.to_action(-jnp.ones(3)), [-1.0, 0.0, -1.0])
    np.testing.assert_allclose(box.clip(jnp.full(3, 9.0)), [3.0, 0.5, 9.0])


def test_moments_merge_like_the_whole():
    rng = np.random.default_rng(1)
    x = rng.normal(3.0, 2.0, size=(500, 4)).astype(np.float32)
    moments = Moments(jnp.zeros(4), jnp.zeros(4), jnp.zeros(()))
    for part in np.split(x, [10, 200, 201]):
        moments = moments.merge(jnp.asarray(part))
    np.testing.assert_allclose(moments.mean, x.mean(0), rtol=1e-5)
    np.testing.assert_allclose(moments.var, x.var(0), rtol=1e-4)


def test_winsorised_merge_is_bounded_and_survives_nan():
    moments = Moments.create((1,)).merge(jnp.linspace(-1.0, 1.0, 100)[:, None])
    wild = jnp.array([[1e6], [jnp.inf], [jnp.nan], [0.0]])
    merged = moments.merge(moments.winsorize(wild, 10.0))
    assert float(merged.std()[0]) < 3.0 * float(moments.std()[0])


def test_reward_accumulator_is_zeroed_after_the_terminal_reward():
    reward = jnp.array([[1.0], [1.0], [10.0], [1.0]])
    done = jnp.array([[False], [False], [True], [False]])
    scale = RewardScale.create(1).merge(reward, done, 0.5)
    seen = np.array([1.0, 1.5, 10.75, 1.0])  # the terminal 10 counts, then nothing leaks
    np.testing.assert_allclose(scale.moments.mean, np.append(seen, 0.0).mean(), rtol=1e-6)
    np.testing.assert_allclose(scale.accumulator, [1.0])


def test_target_scale_forgets_and_is_unbiased_at_the_start():
    scale = PopArt.create().merge(jnp.array([1e6, 3e6]), 0.1)
    np.testing.assert_allclose([scale.mean(), scale.std()], [2e6, 1e6], rtol=1e-5)
    for _ in range(400):
        scale = scale.merge(jnp.array([1.0, 3.0]), 0.1)
    np.testing.assert_allclose([scale.mean(), scale.std()], [2.0, 1.0], rtol=1e-3)


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


@pytest.mark.parametrize("width", [4, optimization.PACKED])
def test_parameters_are_packed_where_they_are_few(width):
    """A step is the same either way."""
    params = {"a": jnp.linspace(0.0, 1.0, width), "b": jnp.float32(2.0)}
    packed, unpack = optimization.pack(params)
    assert isinstance(packed, dict) == (width == optimization.PACKED)
    opt, grads = optimization.optimizer(0.5, 1e-5), jax.tree.map(jnp.cos, params)
    ours = opt, packed, optimization.pack(grads)[0], opt.init(packed)
    step = optimization.descend(*ours, rate=0.1)
    known = optimization.descend(opt, params, grads, opt.init(params), rate=0.1)
    chex.assert_trees_all_close(unpack(step[0]), known[0], rtol=1e-6)


@pytest.mark.parametrize("moved", [0.0, 0.3])
def test_ppo_loss_is_the_clipped_surrogate_and_so_is_its_gradient(moved):
    """Beside the textbook's minimum of two products, on both sides of the clip and at ratio 1."""
    h = ppo.PPO(ent_coef=0.01)
    nets = on_policy.Networks(networks.MLP((8,), 2), networks.MLP((8,), 1))
    keys = jax.random.split(jax.random.key(0), 7)
    obs, u = jax.random.normal(keys[0], (64, 3)), jax.random.normal(keys[1], (64, 2))
    params = {
        "actor": nets.actor.init(keys[2], obs[0]),
        "critic": nets.critic.init(keys[3], obs[0]),
        "log_std": jnp.array([0.1, -0.2]),
    }

    def log_prob(params):
        mean = networks.forward(nets.actor, params["actor"], obs)
        return distributions.gaussian_log_prob(u, mean, params["log_std"])

    old = log_prob(params) + moved * jax.random.normal(keys[4], (64,))
    advantage, target = jax.random.normal(keys[5], (64,)), jax.random.normal(keys[6], (64,))
    batch = on_policy.Batch(obs, u, old, advantage, target)

    def textbook(params):
        ratio = jnp.exp(log_prob(params) - old)
        a = (advantage - advantage.mean()) / advantage.std()
        surrogate = jnp.minimum(ratio * a, jnp.clip(ratio, 0.8, 1.2) * a)
        error = networks.forward(nets.critic, params["critic"], obs)[:, 0] - target
        entropy = jnp.sum(params["log_std"] + 0.5 * jnp.log(2.0 * jnp.pi * jnp.e))
        return -surrogate.mean() + 0.5 * jnp.mean(error**2) - 0.01 * entropy

    (value, metrics), grads = jax.value_and_grad(ppo.loss, has_aux=True)(params, batch, nets, h)
    expected, expected_grads = jax.value_and_grad(textbook)(params)
    np.testing.assert_allclose(value, expected, rtol=1e-5)
    chex.assert_trees_all_close(grads, expected_grads, rtol=1e-4, atol=1e-6)
    log_ratio = np.asarray(log_prob(params) - old, float)
    kl = np.mean(np.expm1(log_ratio) - log_ratio)
    np.testing.assert_allclose(metrics["approx_kl"], kl, rtol=1e-3, atol=1e-6)
    clipped = np.mean(np.abs(np.expm1(log_ratio)) > 0.2)
    assert metrics["clip_fraction"] == clipped
    assert (clipped > 0.2) == (moved > 0.0)


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


@pytest.mark.parametrize("n", [1, 2, 7, 1000, 4096])
def test_permutation_is_one(n):
    order = optimization.permutation(jax.random.key(n), n)
    assert sorted(np.asarray(order).tolist()) == list(range(n))


def test_permutation_is_uniform():
    keys = jax.random.split(jax.random.key(0), 20_000)
    orders = jax.vmap(lambda k: optimization.permutation(k, 6))(keys)
    counts = np.stack([np.bincount(orders[:, i], minlength=6) for i in range(6)])
    assert np.all(np.abs(counts - 20_000 / 6) < 5 * np.sqrt(20_000 / 6))


def test_a_hyperparameter_of_the_wrong_kind_is_named():
    build = algorithm.hyperparameters
    with pytest.raises(ValueError, match=r"unknown hyperparameter 'learning_rat'.*'learning_rate'"):
        build(ppo.PPO, {"learning_rat": 1e-3})
    with pytest.raises(ValueError, match=r"PPO.gamma: expected a number in \[0, 1\], got 1.5"):
        build(ppo.PPO, {"gamma": 1.5})
    with pytest.raises(ValueError, match=r"PPO.learning_rate: expected a number.*nan"):
        build(ppo.PPO, {"learning_rate": float("nan")})
    with pytest.raises(ValueError, match=r"PPO.num_envs decides shapes"):
        build(ppo.PPO, {"num_envs": 2.5})
    with pytest.raises(ValueError, match=r"PPO.num_envs: expected at least 1"):
        build(ppo.PPO, {"num_envs": 0})
    with pytest.raises(ValueError, match=r"PPO.hidden: expected positive integers"):
        build(ppo.PPO, {"hidden": [64, -1]})
    with pytest.raises(ValueError, match=r"PPO.learning_rate: expected one number"):
        build(ppo.PPO, {"learning_rate": "fast"})
    with pytest.raises(ValueError, match="cannot vary in one run"):
        algorithm.stack_hyperparameters(ppo.PPO, [{"num_envs": 2}, {"num_envs": 4}], {})
    with pytest.raises(ValueError, match="in every setting or in none"):
        algorithm.stack_hyperparameters(ppo.PPO, [{"gamma": 0.9}, {}], {})


def test_stagger_episodes_spreads_the_first_episodes_and_no_others():
    params = strong(ToyParams(max_steps_in_episode=400))
    _, state = reset_all(Toy(), jax.random.key(0), params, 256)
    spread = stagger_episodes(jax.random.key(0), state, params)
    np.testing.assert_array_equal(spread.x, state.x)
    assert spread.time.dtype == state.time.dtype
    assert int(spread.time.min()) >= 0
    assert int(spread.time.max()) < 400
    counts = np.histogram(spread.time, bins=4, range=(0, 400))[0]
    assert counts.min() > 40, counts
    fewer = stagger_episodes(jax.random.key(0), jax.tree.map(lambda x: x[:8], state), params)
    np.testing.assert_array_equal(fewer.time, spread.time[:8])


@pytest.mark.parametrize(("limit", "every"), [(3, 3), (100, 8), (None, 8)])
def test_episodes_are_cut_short_and_truncation_is_reported(limit, every):
    """x' = ρx + noise: across a reset it would be anywhere in [-1, 1]."""
    params, env = strong(ToyParams(max_steps_in_episode=8, gain=0.0)), Toy()
    size = {"num_envs": 16, "num_steps": 24, "max_episode_steps": limit}
    h = hyperparameters(ppo.PPO, size)
    state = on_policy.init(env, jax.random.key(0), params, h)
    _, rollout, _ = on_policy.collect(env, state, params, h, key=jax.random.key(1))
    ended = np.arange(1, 25) % every == 0
    np.testing.assert_array_equal(rollout.truncated, np.repeat(ended[:, None], 16, axis=1))
    assert not rollout.terminated.any()
    residual = (rollout.final_obs - 0.9 * rollout.obs)[ended]
    assert float(jnp.abs(residual).max()) < 1.0
    h = hyperparameters(ddpg.DDPG, size)
    state = ddpg.ALGORITHM.init(env, jax.random.key(0), params, h)
    _, rollout, _ = off_policy.collect(
        env, state, params, h, key=jax.random.key(1), method=ddpg.METHOD
    )
    np.testing.assert_array_equal(rollout.truncated, np.repeat(ended[:, None], 16, axis=1))
    assert not rollout.terminated.any()


def test_an_environment_without_a_time_limit_cannot_be_cut_short():
    h = hyperparameters(ppo.PPO, {"max_episode_steps": 3})
    with pytest.raises(InputError, match=r"max_episode_steps: .* got int"):
        on_policy.init(Toy(), jax.random.key(0), 3, h)


def policy_of(**hyperparameters):
    """A short PPO run on the toy: its state and what ``policy_params`` gives."""
    h = {"num_envs": 4, "num_steps": 8, "num_minibatches": 2, "update_epochs": 4, "hidden": (8,)}
    run = train(
        "ppo",
        strong(ToyParams()),
        jax.random.key(0),
        env=Toy(),
        hyperparameters=h | hyperparameters,
        num_seeds=None,
        total_timesteps=640,
        eval_every=640,
        batching="loop",
    )
    return run.states[0], run


def test_the_policy_is_the_average_of_the_actors():
    newest, _ = policy_of()
    for a, b in zip(
        *(jax.tree.leaves(x) for x in (newest.average, newest.params["actor"])), strict=False
    ):
        np.testing.assert_array_equal(a, b)
    averaged, run = policy_of(actor_ema_rate=0.25)
    np.testing.assert_array_equal(
        averaged.params["actor"]["params"]["head"]["kernel"],
        newest.params["actor"]["params"]["head"]["kernel"],
    )
    kernel = averaged.average["params"]["head"]["kernel"]
    assert float(jnp.abs(kernel - averaged.params["actor"]["params"]["head"]["kernel"]).max()) > 0
    assert any(np.array_equal(kernel, x) for x in jax.tree.leaves(run.policy.params))


def test_a_divergence_target_is_kept():
    """Too large a rate is brought down, too small a one up; without a target nothing moves."""
    loose = {"learning_rate": 0.03, "final_lr_fraction": 1.0, "log_std_init": -2.0}
    _, free = policy_of(**loose)
    held_state, held = policy_of(**loose, target_kl=0.01)
    kl = {"free": free.metrics["approx_kl"][-1], "held": held.metrics["approx_kl"][-1]}
    assert kl["held"] < 0.5 * kl["free"], kl
    assert float(held_state.rate_factor) < 0.8
    slow_state, _ = policy_of(**(loose | {"learning_rate": 1e-6}), target_kl=0.01)
    assert float(slow_state.rate_factor) > 2.0


def test_critics_see_standardised_actions():
    h = hyperparameters(td3.TD3, {"hidden": (8,)})
    seen = Moments(jnp.array([0.1, 0.0]), jnp.array([0.01, 4.0]), jnp.ones(()))
    params = strong(ToyParams())
    raw = off_policy.networks(td3.METHOD, Toy(), params, h)
    scaled = off_policy.networks(td3.METHOD, Toy(), params, h, actions=seen)
    critic = (scaled.critic.init(jax.random.key(0), jnp.zeros(3)),)
    u = jnp.array([[0.3, -0.5]])
    z = (u - seen.mean) / seen.std()
    obs = jnp.zeros((1, 1))
    np.testing.assert_allclose(
        scaled.q_values(critic, obs, u), raw.q_values(critic, obs, z), rtol=1e-6
    )


@pytest.mark.parametrize("algorithm", ["ppo", "td3"])
def test_tuned_hyperparameters_are_valid(algorithm):
    for family in tuned.table()["algorithms"][algorithm]:
        given = tuned.tuned(algorithm, family)
        assert given
        training.check(algorithm, given)
    assert tuned.tuned(algorithm, "no such family") == {}


@pytest.mark.parametrize(("count", "n"), [(2**24 - 100, 1), (2**31, 64), (2**33, 2048)])
def test_moments_go_on_where_float32_stops_counting(count, n):
    """Against the exact sums: batches that alternate between two values, mean 5, std 2."""
    batches = count // n // 64
    values = jnp.array([3.0, 7.0])

    def merge(i, moments):
        one = values[i % 2] if n == 1 else jnp.tile(values, n // 2)
        return moments.merge(jnp.broadcast_to(one, (n,))[:, None])

    moments = Moments(jnp.full(1, 3.0), jnp.ones(1), jnp.float32(count))
    moments = jax.jit(lambda x: jax.lax.fori_loop(0, batches, merge, x))(moments)
    share = batches * n / (count + batches * n)
    np.testing.assert_allclose(moments.count, count + batches * n, rtol=1e-7)
    np.testing.assert_allclose(moments.mean, 3.0 + 2.0 * share, rtol=1e-5)
    var = (1 - share) + share * 4.0 + share * (1 - share) * 4.0
    np.testing.assert_allclose(moments.var, var, rtol=1e-3)


def test_an_episode_is_counted_beyond_what_float32_counts():
    episodes = Episodes(jnp.zeros(1), jnp.full(1, 2**24, jnp.int32))
    episodes, _ = episodes.step(jnp.ones(1), jnp.array([False]))
    _, ended = episodes.step(jnp.ones(1), jnp.array([True]))
    assert float(ended["episode_length"]) == 2**24 + 2


class Counting(struct.PyTreeNode):
    """The state of a learner that does nothing but count."""

    clock: Clock
    failed: jax.Array


def test_sums_of_metrics_see_what_is_added_after_a_million_updates():
    def update(env, state, env_params, h):
        clock = state.clock.replace(update=state.clock.update + 1)
        metrics = {"reward": jnp.float32(0.1), "episodes": jnp.float32(1.0)}
        return state.replace(clock=clock), metrics

    state = Counting(Clock.create(), jnp.array(False))
    spec = dataclasses.replace(ppo.ALGORITHM, update=update)
    updates = 2**20 + 5
    state, sums, _ = advance(
        spec, Toy(), None, None,
        state=state, num_updates=jnp.int32(updates), env_params=ToyParams(), h=None,
    )  # fmt: skip
    metrics = averages(jax.device_get(sums), updates)
    assert int(state.clock.update) == updates
    np.testing.assert_allclose(metrics["reward"], 0.1, rtol=2**-10)  # a stretch rounds 2¹⁴ times
    assert float(metrics["episodes"]) == updates


def test_more_updates_than_can_be_counted_are_refused():
    assert Plan.of(64, 10**11, None).timesteps >= 10**11
    with pytest.raises(InputError, match="total_timesteps: expected at most 2,147,483,647 updates"):
        Plan.of(1, 2**31, None)


def test_the_best_is_never_what_is_not_a_number():
    best = Best.create((4,), {"w": np.zeros(4)})
    for interval, value in enumerate(([np.nan, np.inf, -np.inf, 0.5], [0.3, 0.3, 0.3, np.nan])):
        best.see(interval, np.array(value), {"w": np.full(4, interval)})
    np.testing.assert_array_equal(best.value, np.float32([0.3, 0.3, 0.3, 0.5]))
    np.testing.assert_array_equal(best.interval, [1, 1, 1, 0])
    np.testing.assert_array_equal(best.params["w"], [1, 1, 1, 0])


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("learning_rate", np.inf, "expected a number in [0, inf), got inf"),
        ("learning_rate", 1e39, "expected a number in [0, inf), got 1e+39"),
        ("ent_coef", -np.inf, "expected a number in (-inf, inf), got -inf"),
        ("max_grad_norm", np.nan, "expected a number in [0, inf], got nan"),
        ("max_grad_norm", 10**400, "expected a number in [0, inf], got 1000"),
        ("learning_rate", {"a": 1}, "expected one number, got {'a': 1}"),
        ("num_envs", 10**30, "expected at most 2,147,483,647"),
        ("hidden", [True], "expected positive integers"),
    ],
)
def test_numbers_that_float32_cannot_hold_are_refused(name, value, words):
    with pytest.raises(InputError, match=re.escape(words)):
        hyperparameters(ppo.PPO, {name: value})
    assert float(hyperparameters(ppo.PPO, {"max_grad_norm": np.inf}).max_grad_norm) == np.inf


def test_an_infinite_limit_leaves_the_environments_own():
    params = strong(ToyParams())
    for limit in (np.inf, 1e10, 16.0):
        h = hyperparameters(ppo.PPO, {"max_episode_steps": limit})
        assert int(shorten_episodes(params, h).max_steps_in_episode) == 16


@pytest.mark.parametrize("name", ["ppo", "a2c", "sac", "td3", "ddpg"])
def test_help_says_what_every_hyperparameter_means(name):
    cls = training.ALGORITHMS[name].hyperparameters
    words = inspect.getdoc(cls)
    for field in dataclasses.fields(cls):
        assert words.count(f"\n    {field.name}: ") == 1, field.name
    fixed = {"a2c": ("num_minibatches", "update_epochs"), "ddpg": ("num_critics", "policy_delay")}
    for other in fixed.get(name, ()):
        assert getattr(cls, other) == 1
        assert f"{other}:" not in words


@pytest.mark.filterwarnings("always::cojax.agents.RenamedWarning")
def test_the_last_versions_names_are_accepted_with_a_warning():
    given = {"average_rate": 0.5, "gamma": 0.9, "random_phase": True}
    with pytest.warns(RenamedWarning, match=r"^PPO: average_rate is now called actor_ema_rate; "):
        h = hyperparameters(ppo.PPO, given)
    assert (float(h.actor_ema_rate), h.stagger_episodes) == (0.5, True)
    both = {"value_rate": 0.1, "popart_rate": 0.1}
    with pytest.raises(InputError, match=r"^PPO: value_rate is now called popart_rate; give one"):
        hyperparameters(ppo.PPO, both)
    with pytest.raises(InputError, match="unknown hyperparameter 'value_rate'"):
        hyperparameters(td3.TD3, {"value_rate": 0.1})


def test_files_with_the_last_versions_names_say_what_they_said():
    """Beneath and above the tuned defaults, which have the new ones; order and all."""

    def both_ways(read, old):
        with pytest.warns(RenamedWarning):
            ours = read(old)
        words = json.dumps(old)
        for name, new in algorithm.RENAMED.items():
            words = words.replace(name, new)
        assert ours == read(json.loads(words))
        return ours

    learner = {
        "name": "ppo",
        "hyperparameters": {"average_rate": 0.5, "gamma": 0.9},
        "families": {"ConverseArm": {"value_rate": 0.3}},
    }
    content = {"schema": "cojax.train/1", "fixtures": ["x"], "algorithm": learner}
    content["settings"] = [{"random_phase": True}, {}]
    ours = both_ways(study_of, content)
    (algorithm,) = ours.algorithms
    setting = {**ours.base(algorithm, "ConverseArm"), **ours.settings(algorithm)[0]}
    hyperparameters(ppo.PPO, setting)  # neither is there twice
    assert (setting["actor_ema_rate"], setting["stagger_episodes"]) == (0.5, True)
    space = {"random_phase": [True, False], "value_rate": {"low": 0.1, "high": 0.2, "num": 2,
             "when": {"random_phase": [True]}}, "gamma": [0.9]}  # fmt: skip
    learner = {"name": "ppo", "hyperparameters": {"average_rate": 0.5}, "space": space}
    content = {"schema": "cojax.sweep/1", "fixtures": ["x"], "algorithms": [learner]}
    swept = both_ways(study_of, content)
    assert len(swept.settings(swept.algorithms[0])) == 3
    assert list(swept.algorithms[0].space) == ["stagger_episodes", "popart_rate", "gamma"]
