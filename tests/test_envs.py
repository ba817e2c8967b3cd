from __future__ import annotations

import copy
import dataclasses
import pickle

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import struct
from helpers import scope

import cojax
from cojax import inputs, oracle, streams
from cojax.envs import CommonStreams, ConverseEnv, EnvParams, EnvState
from cojax.families import BUILT_IN, FAMILIES
from cojax.initial import Fixed, InitialLaw, Listed, Normal
from cojax.noise import CorrelatedNoise, Noise
from cojax.registration import env_ids

ENV = ConverseEnv()


def arm(**options) -> EnvParams:
    return cojax.make("ConverseArm-v0", **{"n": 2, "p": 0.8} | options)[1]


def count_traces(function):
    """The function, and a list that grows by one whenever it is traced."""
    traces = []

    def counted(*args):
        traces.append(1)
        return function(*args)

    return counted, traces


def rollout(env, params, reset_key, actions, step_key=None):
    """Observations, rewards and flags of one environment under given actions."""
    step_key = jax.random.key(99) if step_key is None else step_key

    @jax.jit
    def run(params, reset_key, actions):
        obs, state = env.reset(reset_key, params)

        def body(carry, inputs):
            action, key = inputs
            obs, state, reward, terminated, truncated, info = env.step(key, carry, action, params)
            return state, (obs, reward, terminated, truncated, info)

        keys = jax.random.split(step_key, len(actions))
        return obs, jax.lax.scan(body, state, (actions, keys))[1]

    return run(params, reset_key, actions)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", ["ConverseArm-v0", "NVDEx-v0"])
def test_step_contract(name, dtype):
    with scope(dtype):
        env, params = cojax.make(name)
        obs, state = env.reset(jax.random.key(0), params)
        action = jnp.full(env.action_space(params).shape, 0.1)
        result = env.step(jax.random.key(1), state, action, params)
        again = env.step(jax.random.key(1), state, action)  # the params it was made with
        next_obs, next_state, reward, terminated, truncated, info = result
        assert obs.dtype == next_obs.dtype == reward.dtype == dtype
        assert terminated.dtype == truncated.dtype == bool
        assert next_state.time == 1
        assert env.observation_space(params).contains(next_obs)
        assert (info["final_observation"] == next_obs).all()
        assert jax.tree.all(jax.tree.map(lambda a, b: (a == b).all(), result, again))
        expected = params.system.stage_cost(obs, action)
        np.testing.assert_allclose(reward, -expected, rtol=1e-6)


def test_spaces_are_finite_and_hold_the_optimal_action():
    for name in ("ConverseArm-v0", "NVDEx-v0"):
        for options in ({}, {"action_limit": None}):
            env, params = cojax.make(name, **options)
            for space in (env.action_space(params), env.observation_space(params)):
                assert np.isfinite(space.low).all()
                assert np.isfinite(space.high).all()
                assert jnp.isfinite(space.sample(jax.random.key(0))).all()
            keys = jax.random.split(jax.random.key(1), 100)
            s = jax.vmap(params.initial_state.sample)(keys)
            best = jax.vmap(oracle.action, (None, 0))(params.system, s)
            assert (abs(best) <= env.action_space(params).high).all()


def test_actions_are_clipped_to_the_box_of_each_dimension():
    params = arm(action_limit=[1.0, 2.0])
    _, state = ENV.reset(jax.random.key(0), params)
    key = jax.random.key(1)
    far, near = jnp.array([9.0, -9.0]), jnp.array([1.0, -2.0])
    outcomes = [ENV.step(key, state, a, params)[0] for a in (far, near)]
    assert (outcomes[0] == outcomes[1]).all()
    free = arm(action_limit=None)
    outcomes = [ENV.step(key, state, a, free)[0] for a in (far, near)]
    assert not (outcomes[0] == outcomes[1]).all()


def test_time_limit_truncates_and_resets():
    params = arm(max_steps_in_episode=3)
    first, (obs, _, terminated, truncated, info) = rollout(
        ENV, params, jax.random.key(0), jnp.zeros((7, 2))
    )
    assert truncated.tolist() == [False, False, True, False, False, True, False]
    assert not terminated.any()
    final = info["final_observation"]
    assert not (obs[2] == final[2]).any()  # a fresh state is returned, the last one is in info
    assert (obs[1] == final[1]).all()
    assert not (first == obs[2]).any()


def test_a_thousand_one_step_episodes_start_at_a_thousand_states():
    params = arm(max_steps_in_episode=1)
    _, (obs, _, _, truncated, _) = rollout(ENV, params, jax.random.key(0), jnp.zeros((1000, 2)))
    assert truncated.all()
    assert len(np.unique(np.asarray(obs), axis=0)) == 1000


def test_divergence_guard_terminates_with_the_optimal_value():
    params = arm(divergence_radius=1e-3)
    obs, state = ENV.reset(jax.random.key(0), params)
    a = jnp.zeros(2)
    _, _, reward, terminated, truncated, info = ENV.step(jax.random.key(1), state, a, params)
    assert terminated
    assert info["diverged"]
    assert not truncated
    system, s_exit = params.system, info["final_observation"]
    expected = -system.stage_cost(obs, a) - system.gamma * system.value(s_exit)
    np.testing.assert_allclose(reward, expected, rtol=1e-6)


def test_a_state_that_is_not_finite_terminates():
    params = arm()
    _, state = ENV.reset(jax.random.key(0), params)
    result = ENV.step(jax.random.key(1), state, jnp.array([jnp.nan, 0.0]), params)
    assert result[3]
    assert result[5]["diverged"]


@pytest.mark.parametrize("horizon", [1, 7, 40])
def test_optimal_terminal_value_keeps_the_value_at_every_horizon(horizon):
    """Under π*, the mean discounted return of a finite episode is -V*(s_0)."""
    s0 = jnp.array([0.8, -0.2, -0.5, 0.3])
    params = arm(
        terminal_value="optimal",
        max_steps_in_episode=horizon,
        initial_state=Fixed(s0),
        Sigma=[0.0, 1e-3, 0.0, 1e-3],
    )
    system = params.system

    @jax.jit
    @jax.vmap
    def discounted_return(key):
        obs, state = ENV.reset(key, params)

        def body(carry, key):
            obs, state, total, alive, discount = carry
            out = ENV.step(key, state, system.optimum(obs).action, params)
            total = total + alive * discount * out[2]
            return (out[0], out[1], total, alive * ~out[3], discount * system.gamma), out[4]

        start = (obs, state, 0.0, 1.0, 1.0)
        carry, truncated = jax.lax.scan(body, start, jax.random.split(key, horizon))
        return carry[2], truncated.any(), carry[3]

    total, truncated, alive = discounted_return(jax.random.split(jax.random.key(0), 4000))
    assert not truncated.any()
    assert not alive.any()
    error = 4.0 * float(total.std()) / 4000**0.5
    assert abs(float(total.mean() + system.value(s0))) < error + 1e-5
    assert error < 0.05 * float(system.value(s0))


def test_fifty_systems_of_one_shape_cost_one_compilation():
    every = [arm(p=0.3 + 0.01 * i, seed=i, max_steps_in_episode=5 + i) for i in range(50)]
    batch = cojax.stack(every)
    step, traces = count_traces(lambda *args: ENV.step(*args)[:4])
    step = jax.jit(jax.vmap(step))
    keys = jax.random.split(jax.random.key(0), 50)
    _, state = jax.jit(jax.vmap(ENV.reset))(keys, batch)
    for scale in (0.0, 0.5):
        obs, *_ = step(keys, state, jnp.full((50, 2), scale), batch)
    assert len(traces) == 1
    # a member of the batch does what it does alone: the padding is exact
    one, expected = jax.tree.map(lambda x: x[7], (keys, state)), obs[7]
    alone = ENV.step(one[0], one[1], jnp.full(2, 0.5), every[7])[0]
    np.testing.assert_allclose(alone, expected, rtol=3e-6, atol=1e-7)


def test_systems_one_after_another_share_a_compilation():
    """The same for systems given one by one: the environment is stateless and params are leaves."""
    step, traces = count_traces(lambda key, s, a, params: ENV.step(key, s, a, params)[0])
    step = jax.jit(step)
    for p in (0.6, 0.7, 0.8):
        params = arm(p=p)
        other = cojax.make("ConverseArm-v0", n=2, p=p)[0]
        assert other == ENV
        assert hash(other) == hash(ENV)
        _, state = ENV.reset(jax.random.key(0), params)
        step(jax.random.key(1), state, jnp.zeros(2), params)
    assert len(traces) == 1


def test_stack_keeps_the_precision_of_its_members():
    with scope("float64"):
        params = arm()
    for batch in (cojax.stack([params, params]), cojax.stack([arm(), arm()])):
        first = jax.tree.leaves(batch.system)[0]
        assert {x.dtype for x in jax.tree.leaves(batch.system)} == {first.dtype}
    assert cojax.stack([params, params]).system.gamma.dtype == "float64"


def test_stack_levels_noise_and_unstack():
    every = [cojax.make("NVDEx-v0", preset=p)[1] for p in ("easy", "insane")]
    batch = cojax.stack(every)
    for i, back in enumerate(cojax.envs.unstack(batch)):
        s = jnp.zeros(5)
        key = jax.random.key(4)
        drawn = back.system.sample_noise(s, key)
        np.testing.assert_array_equal(drawn, every[i].system.sample_noise(s, key))
    with pytest.raises(ValueError, match="number 1 is built of other parts than number 0"):
        cojax.stack([every[0], arm()])
    listed = [arm(initial_state=Listed(jnp.zeros((k, 4)))) for k in (2, 3)]
    with pytest.raises(ValueError, match=r"stack: initial_state\.states has shape \(3, 4\)"):
        cojax.stack(listed)
    with pytest.raises(ValueError, match="at least one"):
        cojax.stack([])


def test_shape_says_what_stacks():
    """Series of any length, diagonal and full matrices, and ranks of noise stack; else none."""
    full = np.eye(4) + 0.1
    every = [
        arm(),
        arm(R=0.5, P=full),
        arm(P=np.diag([1e6, 1.0, 1.0, 1.0])),
        arm(action_limit=None),
    ]
    every += [arm(parameterization="sqrt"), arm(Sigma=1e-6), arm(Sigma=full)]
    every += [cojax.make("NVDEx-v0", preset=p)[1] for p in ("easy", "insane")]
    every += [arm(initial_state=Fixed(jnp.zeros(4))), arm(terminal_value="optimal")]
    shapes = [cojax.envs.batching.shape(params) for params in every]
    assert len({x.system.inverse_sqrt.length for x in every[:3]}) == 3
    assert [shapes.index(x) for x in shapes] == [0, 0, 2, 3, 4, 0, 6, 7, 7, 9, 10]
    for i, j in ((0, 1), (1, 5), (7, 8), (0, 2), (1, 6), (0, 3), (5, 9)):
        if shapes[i] == shapes[j]:
            assert cojax.envs.num_instances(cojax.stack([every[i], every[j]])) == 2
        else:
            with pytest.raises(ValueError, match="stack: number 1 is built of other parts"):
                cojax.stack([every[i], every[j]])


def test_transition_gradients_are_opt_in():
    params = arm()
    _, state = ENV.reset(jax.random.key(0), params)

    def next_norm(action, env):
        return (env.step(jax.random.key(1), state, action, params)[0] ** 2).sum()

    a = jnp.full(2, 0.1)
    assert (jax.grad(next_norm)(a, ENV) == 0.0).all()
    gradient = jax.grad(next_norm)(a, ENV.with_transition_gradients())
    assert (gradient != 0.0).all()


def test_common_streams_ignore_keys_and_batch_size():
    env, params = CommonStreams(ENV), arm(max_steps_in_episode=4)
    actions = jnp.full((10, 2), 0.2)
    many = streams.stream_keys(3, 6)
    runs = [
        jax.vmap(lambda k, key=key: rollout(env, params, k, actions, jax.random.key(key)))(keys)
        for keys, key in ((many, 0), (many[:2], 1))
    ]
    for a, b in zip(jax.tree.leaves(runs[0]), jax.tree.leaves(runs[1]), strict=True):
        np.testing.assert_allclose(a[:2], b, rtol=2e-5, atol=1e-6)
    first, (obs, *_) = runs[0]
    starts = jnp.concatenate([first[:, None], obs[:, 3::4]], axis=1)  # of episodes 0, 1, 2
    for instance in range(6):
        for episode in range(3):
            key = streams.episode_key(streams.stream_key(3, instance), episode)
            expected = params.initial_state.sample(streams.initial_key(key))
            np.testing.assert_allclose(starts[instance, episode], expected, atol=1e-6)


def test_no_key_is_used_twice():
    params = arm(max_steps_in_episode=2)
    with jax.debug_key_reuse(True):
        for env in (ENV, CommonStreams(ENV)):
            key = streams.stream_key(0, 0)
            _, state = env.reset(key, params)
            for i in range(4):
                _, state, *_ = env.step(jax.random.key(i), state, jnp.zeros(2), params)


def test_gymnax_makes_our_environments():
    import gymnax

    env, params = gymnax.make("ConverseArm-v0", n=3, p=0.5)
    assert params.system.state_dim == 6
    assert isinstance(env, ConverseEnv)
    assert set(env_ids()) <= set(gymnax.registered_envs)
    assert "arm-n4-p0.80-s7" in cojax.registered()


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("ConverseArm-v0", {"alpha": 1.0}, "make('ConverseArm-v0'): unknown 'alpha'; did you mean"),
        ("ConverseArm-v0", {"action_limit": 0.0}, "action_limit: expected numbers > 0, got 0"),
        ("ConverseArm-v0", {"action_limit": [1.0]}, "action_limit: expected 4 numbers"),
        ("NVDEx-v0", {"max_steps_in_episode": 0}, "max_steps_in_episode: expected a whole number"),
        ("NVDEx-v0", {"terminal_value": "optimum"}, "terminal_value: unknown 'optimum'; did you"),
        ("NVDEx-v0", {"divergence_radius": -1.0}, "divergence_radius: expected a number in (0"),
        ("arm-n4-p0.80-s8", {}, "make: unknown 'arm-n4-p0.80-s8'; did you mean 'arm-n4-p0.80-s"),
        ("ConverseArm-v1", {}, "make: unknown 'ConverseArm-v1'; did you mean 'ConverseArm-v0'?"),
        ("nvdex-k1-easy", {"p": 0.5}, "make('nvdex-k1-easy'): unknown 'p'"),
    ],
)
def test_bad_input_gives_one_line(name, options, message):
    with pytest.raises(ValueError) as error:  # noqa: PT011  the message is checked below
        cojax.make(name, **options)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_action_of_the_wrong_shape():
    params = arm()
    _, state = ENV.reset(jax.random.key(0), params)
    with pytest.raises(ValueError, match=r"action: expected shape \(2,\), got \(3,\)"):
        ENV.step(jax.random.key(1), state, jnp.zeros(3), params)


@pytest.mark.parametrize("value", [np.inf, -np.inf, np.nan])
@pytest.mark.parametrize("limit", [2.0, None])
def test_an_action_that_is_not_finite_ends_the_episode_as_a_failure(value, limit):
    params = arm(action_limit=limit)
    for env in (ENV, CommonStreams(ENV)):
        key = streams.stream_key(streams.root_key(0), 3)
        _, state = env.reset(key, params)
        for action in (jnp.full(2, value), jnp.array([0.0, value])):
            after, _, _, terminated, truncated, info = env.step(key, state, action, params)
            assert (bool(terminated), bool(truncated)) == (True, False)
            assert bool(info["diverged"])
            assert np.isfinite(after).all()  # of the next episode
    gradient = jax.grad(lambda a: params.clip(a).sum())(jnp.array([0.5, 9.0]))
    assert gradient.tolist() == [1.0, 0.0 if limit else 1.0]


def test_a_start_in_the_origin_has_a_guard_with_and_without_noise():
    for Sigma, radius in ((0.0, 1e4), (1e-2, None)):
        system = cojax.families.ConverseArm.build(n=2, p=0.6, Sigma=Sigma)
        params = cojax.envs.env_params(system, Fixed(jnp.zeros(4)))
        expected = radius or 1e4 * np.sqrt(float(system.offset))
        assert float(params.divergence_radius) == pytest.approx(expected)


# --- what is replaced ----------------------------------------------------------------------------


def routes(params):
    """Every way of exchanging fields that Python and flax know."""
    return {
        "dataclasses": lambda **changes: dataclasses.replace(params, **changes),
        "flax": lambda **changes: params.replace(**changes),
        # what copy.replace calls, from Python 3.13 on
        "copy": lambda **changes: getattr(params, "__replace__", params.replace)(**changes),
    }


ROUTES = ("dataclasses", "flax", "copy")


@pytest.mark.parametrize("route", ROUTES)
def test_the_guard_and_the_free_box_follow_system_and_law(route):
    """V* times 1e10: a radius that stayed would end every episode of π* in its first step."""
    for options in ({}, {"action_limit": None}):
        params = arm(**options)
        change = routes(params)[route]
        P = np.asarray(params.system.P, np.float64)
        larger = cojax.rebuild(params.system, P=1e10 * P, Q=3e8 * P, R=1e11)
        after = change(system=larger)
        np.testing.assert_allclose(after.divergence_radius, 1e5 * params.divergence_radius, 1e-4)
        assert after.clip_actions == params.clip_actions
        if route == "flax":
            assert not cojax.evaluate("oracle", after, 4, num_steps=20).trials["failed"].any()
        far = Normal(mean=jnp.full(4, 1e6), std=jnp.ones(4))
        assert change(initial_state=far).divergence_radius > 1e5 * params.divergence_radius
        free = params.clip_actions is False
        assert (change(initial_state=far).action_limit[0] > params.action_limit[0]) == free
    given = routes(arm(divergence_radius=7.0))[route](system=larger)
    assert given.divergence_radius == 7.0
    both = routes(arm())[route](system=larger, divergence_radius=9.0)
    assert both.divergence_radius == 9.0


def test_a_stacked_batch_follows_too():
    batch = cojax.stack([arm(), arm(seed=3)])
    P = [np.asarray(x, np.float64) for x in batch.system.P]
    singles = [jax.tree.map(lambda x, i=i: x[i], batch.system) for i in range(2)]
    larger = [cojax.rebuild(s, P=1e4 * p, Q=3e2 * p) for s, p in zip(singles, P, strict=True)]
    systems = cojax.envs.batching.align_shapes(larger)
    after = batch.replace(system=jax.tree.map(lambda *x: jnp.stack(x), *systems))
    np.testing.assert_allclose(after.divergence_radius, 1e2 * batch.divergence_radius, 1e-4)
    with pytest.raises(ValueError, match="as many as the batch has"):
        batch.replace(system=larger[0])


@pytest.mark.parametrize("route", ROUTES)
def test_what_is_replaced_is_checked(route):
    params = arm()
    change = routes(params)[route]
    for changes, message in (
        ({"terminal_value": "Optimal"}, "terminal_value: unknown 'Optimal'; did you mean"),
        ({"clip_actions": "no"}, "clip_actions: expected True or False"),
        ({"max_steps_in_episode": 0}, "max_steps_in_episode: expected whole numbers in"),
        ({"max_steps_in_episode": 2.5}, "max_steps_in_episode: expected whole numbers"),
        ({"divergence_radius": -1.0}, "divergence_radius: expected finite numbers >= 0"),
        ({"divergence_radius": jnp.nan}, "divergence_radius: expected finite numbers >= 0"),
        ({"action_limit": [1.0, -1.0]}, "action_limit: expected finite numbers > 0"),
        ({"action_limit": [1.0]}, r"action_limit: expected shape \(2,\)"),
        ({"initial_state": Fixed(jnp.zeros(6))}, r"initial_state: expected states of shape \(4,\)"),
        ({"system": arm(n=3).system}, "expected .* of shape"),
    ):
        with pytest.raises(ValueError, match=message) as error:
            change(**changes)
        assert "\n" not in str(error.value)
    short = change(max_steps_in_episode=5)
    assert short.max_steps_in_episode.dtype == "int32"
    assert change(action_limit=0.5).action_limit.tolist() == [0.5, 0.5]
    free = change(action_limit=None)
    expected = arm(action_limit=None)
    assert not free.clip_actions
    np.testing.assert_allclose(free.action_limit, expected.action_limit, rtol=1e-5)
    assert free.replace(action_limit=1.5).clip_actions


def test_leaves_that_contradict_each_other_are_refused_where_they_are_used():
    """The constructor and edits of a pytree see no names; who measures looks at the numbers."""
    params = arm()
    system = params.system
    for name in (
        "P",
        "Q",
        "R",
        "gamma",
        "offset",
        "M0",
        "sqrt_P_minus_Q",
        "R_inverse",
        "P_minus_Q",
    ):
        made = inputs.swapped(system, **{name: 0.9 * getattr(system, name)})
        edited = jax.tree_util.tree_map_with_path(
            lambda path, x, name=name: 0.9 * x if path[0].name == name else x, system
        )
        for wrong in (made, edited):
            with pytest.raises(ValueError, match=r"system\.\w+: not what its other leaves give"):
                cojax.envs.env_params(wrong, params.initial_state)
            with pytest.raises(ValueError, match=r"use cojax\.rebuild"):
                cojax.evaluate("oracle", inputs.swapped(params, system=wrong), 4, num_steps=4)


def test_copies_pickles_and_pytrees_are_as_before():
    params = arm()
    again = [copy.copy(params), copy.deepcopy(params), pickle.loads(pickle.dumps(params))]
    again += [jax.tree.map(lambda x: x, params), jax.jit(lambda x: x)(params)]
    for other in again:
        assert jax.tree.structure(other) == jax.tree.structure(params)
        same = jax.tree.map(lambda a, b: (a == b).all(), other, params)
        assert jax.tree.all(same)

    @jax.jit
    def radius(params, steps):  # nothing is derived where nothing can be measured
        return params.replace(max_steps_in_episode=steps, system=params.system).divergence_radius

    assert radius(params, 3) == params.divergence_radius


# --- the observation space -----------------------------------------------------------------------


@jax.jit
def under(params, action):
    """16 environments for 60 steps under one action, (m,): the first observations, and of every
    step the observations, the last ones of episodes, the true states, rewards and infos.
    """
    keys = jax.random.split(jax.random.key(0), 16)
    obs, state = jax.vmap(ENV.reset, (0, None))(keys, params)

    def body(state, key):
        def one(key, state):
            out = ENV.step(key, state, action, params)
            true = ENV.step_env(jax.random.split(key)[0], state, action, params)[1].s
            return out[1], (out[0], out[5]["final_observation"], true, out[2], out[5])

        return jax.vmap(one)(jax.random.split(key, 16), state)

    return obs, jax.lax.scan(body, state, jax.random.split(jax.random.key(1), 60))[1]


@jax.jit
def left(params, observations):
    """Whether states as they are shown, (steps, num, d), are outside of the guard."""
    return jax.vmap(jax.vmap(lambda s: ENV.is_terminated(EnvState(0, s), params)))(observations)


def inside(space, *observations):
    """Whether a space holds all observations, (..., d)."""
    return all(bool(space.contains(x)) for x in observations)


@pytest.mark.parametrize(
    ("family", "terminal_value"), [*((name, "none") for name in BUILT_IN), ("Unicycle", "optimal")]
)
def test_every_observation_is_in_the_space_whatever_acts(family, terminal_value):
    base = cojax.make(f"{family}-v0", terminal_value=terminal_value, max_steps_in_episode=40)[1]
    sizes = [base, base.replace(action_limit=1.0), base.replace(action_limit=None)]
    for radius in (1e-6, 1e-2, 3.0, None):
        for params in sizes:
            if radius is not None:
                params = params.replace(divergence_radius=radius)
            space = ENV.observation_space(params)
            assert np.isfinite(space.high).all()
            assert np.isfinite(space.sample(jax.random.key(0))).all()
            for size in (1.0, np.nan) if params.clip_actions else (1.0, 1e30, np.inf, np.nan):
                obs, (later, final, true, _, info) = under(params, size * params.action_limit)
                assert inside(space, obs, later, final)
                if size == 1.0:  # the space is wide enough: nothing had to be clipped
                    rounding = 1e-6 * np.nan_to_num(np.abs(true)).max()  # of two compilations
                    np.testing.assert_allclose(final, true, rtol=1e-6, atol=rounding)
                if radius is None:  # what is shown tells whether the guard was left
                    np.testing.assert_array_equal(left(params, final), info["diverged"])


@struct.dataclass
class HeavyTailed(Noise):
    """Student's t of three degrees of freedom: no bound."""

    scale: jax.Array

    def sample(self, key, s):
        return self.scale * jax.random.t(key, 3.0, self.scale.shape)

    def covariance(self):
        return 3.0 * self.scale**2


@struct.dataclass
class Anywhere(InitialLaw):
    """A law that does not say how far it goes."""

    scale: jax.Array

    def sample(self, key):
        return self.scale * jax.random.normal(key, (4,))


def test_noise_and_starts_without_a_bound_are_shown_in_the_space():
    params = arm(divergence_radius=1e-4)
    noise = HeavyTailed(jnp.sqrt(params.system.noise.covariance() / 3.0))
    system = inputs.swapped(params.system, noise=noise)
    wild = inputs.swapped(params, system=system, initial_state=Anywhere(jnp.float32(1e3)))
    space = ENV.observation_space(wild)
    obs, (later, final, true, reward, _) = under(wild, jnp.full(2, 2.0))
    assert inside(space, obs, later, final)
    assert (np.abs(true) > np.asarray(space.high)).any()
    # the reward is that of the true state, not of what is shown
    value = jax.vmap(jax.vmap(system.value))(true)
    assert (reward <= -0.99 * system.gamma * value).all()
    assert isinstance(cojax.rebuild(system, p=0.5).noise, HeavyTailed)


def reached(params):
    """The observation limit from the definition, in plain JAX."""
    system, law = params.system, params.initial_state
    high = system.reach(params.divergence_radius, law.bound(), params.action_limit)
    return 1.0001 * high


CHANGES = {
    "system": lambda p: {"system": cojax.rebuild(p.system, R=0.5)},
    "initial_state": lambda p: {"initial_state": Fixed(jnp.full(4, 1e6, jnp.float32))},
    "action_limit": lambda p: {"action_limit": jnp.full(2, 1e5, jnp.float32)},
    "divergence_radius": lambda p: {"divergence_radius": jnp.float32(7.0)},
    "the free box": lambda p: {"action_limit": None},
}


@pytest.mark.parametrize("name", CHANGES)
def test_the_observation_limit_follows_what_it_depends_on(name):
    """By each route, inside jit, in a batch, and in the space that the environment states."""
    params = arm()
    change = CHANGES[name](params)
    for replace in routes(params).values():
        after = replace(**change)
        assert not np.allclose(after.observation_limit, params.observation_limit, rtol=5e-6)
        np.testing.assert_allclose(after.observation_limit, reached(after), rtol=1e-6)
        np.testing.assert_array_equal(ENV.observation_space(after).high, after.observation_limit)
    np.testing.assert_array_equal(
        params.replace(observation_limit=0.0).observation_limit, params.observation_limit
    )
    if name == "the free box":
        return
    inside_jit = jax.jit(lambda p, c: p.replace(**c))(params, change)
    np.testing.assert_allclose(inside_jit.observation_limit, reached(inside_jit), rtol=1e-6)
    assert not np.allclose(inside_jit.observation_limit, params.observation_limit, rtol=1e-3)
    batch = cojax.stack([params, arm(p=0.5)])
    np.testing.assert_allclose(batch.observation_limit[0], params.observation_limit, rtol=1e-6)
    if name == "divergence_radius":
        for by in (lambda p, c: p.replace(**c), jax.jit(lambda p, c: p.replace(**c))):
            found = by(batch, {name: jnp.array([7.0, 9.0], jnp.float32)}).observation_limit
            np.testing.assert_allclose(found[0], after.observation_limit, rtol=1e-6)


def test_a_step_only_clips():
    """What an observation is clipped to is no longer worked out in the step."""
    params = arm()
    _, state = ENV.reset(jax.random.key(0), params)
    narrow = inputs.swapped(params, observation_limit=jnp.full(4, 1e-3, jnp.float32))
    obs = ENV.step(jax.random.key(1), state, jnp.ones(2), narrow)[0]
    assert (jnp.abs(obs) <= jnp.float32(1e-3)).all()


def test_an_overflow_is_shown_finite():
    params = arm(action_limit=None, max_steps_in_episode=3)
    space = ENV.observation_space(params)
    _, state = ENV.reset(jax.random.key(0), params)
    for action in (jnp.nan, jnp.inf, 3e38):
        obs, after, *_ = ENV.step_env(jax.random.key(1), state, jnp.full(2, action), params)
        assert space.contains(obs)
        assert space.contains(ENV.get_obs(after, params))
        assert ENV.is_terminated(after, params)


def test_draws_stay_within_the_bounds_of_their_laws():
    keys = jax.random.split(jax.random.key(0), 20_000)
    largest = float(jnp.sqrt(2.0) * jax.lax.erf_inv(jnp.float32(1.0 - 2.0**-24)))
    assert largest < 5.5
    L = jnp.array([[1.0, -2.0], [0.5, 0.0]])
    for law in (CorrelatedNoise(L), arm().system.noise):
        draws = jax.jit(jax.vmap(law.sample, (0, None)))(keys, jnp.zeros(2))
        assert (jnp.abs(draws) <= law.bound()).all()
    families = ("ConverseArm", "NVDEx", "PointMass", "DoubleIntegrator")
    laws = [FAMILIES[name].build().geometry.initial_law() for name in families]
    for law in (*laws, Listed(jnp.array([[1.0, -3.0], [-2.0, 0.5]]))):
        draws = jax.jit(jax.vmap(law.sample))(keys)
        assert (jnp.abs(draws) <= 1.00001 * law.bound()).all()


# --- gymnax's own wrappers -----------------------------------------------------------------------


@pytest.mark.parametrize("family", BUILT_IN)
def test_the_spaces_of_every_environment_are_those_of_gymnax(family):
    from gymnax.environments.spaces import gymnax_space_to_gym_space

    env, params = cojax.make(f"{family}-v0")
    _, state = env.reset(jax.random.key(0), params)
    whole = env.state_space(params)
    assert whole.contains(state)
    for space in (env.action_space(params), env.observation_space(params), *whole.spaces.values()):
        one = space.sample(jax.random.key(1))
        assert space.contains(one)
        assert (one.shape, one.dtype) == (space.shape, space.dtype)
        assert space.low.dtype == space.high.dtype == space.dtype
        assert space.low.shape == space.high.shape
    for space in (env.action_space(params), env.observation_space(params), whole):
        converted = gymnax_space_to_gym_space(space)
        assert converted.contains(jax.tree.map(np.asarray, converted.sample()))


def test_the_wrappers_of_gymnax_take_our_environments():
    """On the family of one action, which takes them the furthest."""
    from gymnax import wrappers

    env, params = cojax.make("DoubleIntegrator-v0")
    key, a = jax.random.key(0), 0.0 * params.action_limit
    for wrapper in (wrappers.FlattenObservationWrapper, wrappers.LogWrapper):
        wrapped = wrapper(env)
        _, state = wrapped.reset(key, params)
        assert set(wrapped.step(key, state, a, params)[5]) >= CONTRACT
    legacy = wrappers.LegacyStepAPIWrapper(env)
    assert len(legacy.step(key, legacy.reset(key, params)[1], a, params)) == 5
    stepped = wrappers.GymnaxToDmEnvWrapper(env)
    assert stepped.step(key, stepped.reset(key, params), a, params).discount == 1.0
    gym = wrappers.GymnaxToGymWrapper(env, params)
    obs, _ = gym.reset(seed=0)
    for shown in (obs, gym.step(gym.action_space.sample())[0]):
        assert gym.observation_space.contains(np.asarray(shown))
    vector = wrappers.GymnaxToVectorGymWrapper(env, 3, params)
    vector.reset(seed=0)
    assert vector.step(vector.action_space.sample())[0].shape == (3, 2)
    with pytest.raises(ValueError, match="Discrete"):  # actions are continuous
        wrappers.StickyActionWrapper(env)


CONTRACT = {"discount", "terminated", "truncated", "final_observation"}


def test_info_has_the_entries_of_gymnax_and_tells_the_guard_aside():
    """A wrapper may carry a dict of the four through a scan, as gymnax's own for brax does."""
    params = arm(divergence_radius=1e-3)
    obs, state = ENV.reset(jax.random.key(0), params)
    flag = jnp.zeros((), bool)
    info = {"discount": jnp.ones(()), "terminated": flag, "truncated": flag}

    def body(carry, key):
        state, old = carry
        _, state, _, _, _, info = ENV.step(key, state, jnp.zeros(2), params)
        return (state, {**old, **info}), info

    start = (state, {**info, "final_observation": obs})
    (_, last), every = jax.lax.scan(body, start, jax.random.split(jax.random.key(1), 3))
    assert set(last) == CONTRACT
    assert every["diverged"].all()
    assert every.get("diverged").all()
    assert every.get("other", 3) == 3
    assert "diverged" not in every
    assert jax.tree.map(lambda x: x[0], every)["diverged"]
    with pytest.raises(KeyError):
        every["other"]
    assert copy.deepcopy(every)["diverged"].all()
