"""Off-policy learners: critics that reach known values, the replay, what each method promises."""

from __future__ import annotations

from functools import partial

import gymnax
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from agents_toy import Toy, ToyParams, relative, value

from cojax.agents import crossq, ddpg, off_policy, optimization, population, replay, sac, td3, train
from cojax.agents.algorithm import strong
from cojax.agents.learner import Rollout
from cojax.agents.normalization import Moments
from cojax.agents.off_policy_method import Minibatch
from cojax.agents.replay import Sample
from cojax.agents.settings import hyperparameters

ENV = Toy()
MODULES = {
    "sac": (sac, sac.SAC),
    "td3": (td3, td3.TD3),
    "ddpg": (ddpg, ddpg.DDPG),
    "crossq": (crossq, crossq.CrossQ),
}
SMALL = {
    "num_envs": 4,
    "num_steps": 4,
    "hidden": (8,),
    "buffer_size": 96,
    "learning_starts": 64,
    "gradient_steps": 4,
    "batch_size": 8,
}
# The actor is held near a = 0 and hardly explores, so that Q(s, 0) is the value of a = 0.
VALUE = {
    "num_envs": 16,
    "num_steps": 16,
    "gradient_steps": 64,
    "hidden": (32, 32),
    "activation": "tanh",
    "learning_starts": 5_000,
    "warmup_scale": 0.3,
    "actor_learning_rate": 0.0,
    "critic_learning_rate": 3e-3,
    "final_lr_fraction": 0.0,
    "polyak": 0.02,
    "relative_error": 0.0,
    "buffer_size": 100_000,
}
HELD = {
    "sac": {"learn_temperature": False, "temperature": 0.0, "log_std_init": -5.0},
    "td3": {"target_noise": 0.0, "exploration_noise": 0.01},
    "ddpg": {"exploration_noise": 0.01},
    "crossq": {"exploration_noise": 0.01},
}


def q_error(name, horizon, steps=60_000, **faults):
    """Mean |Q(s, 0) - V(s)| over states of a rollout, relative to mean |V|."""
    module, _ = MODULES[name]
    params = strong(ToyParams(max_steps_in_episode=horizon, gain=0.0, **faults))
    run = train(
        name,
        params,
        jax.random.key(1),
        env=ENV,
        hyperparameters=VALUE | HELD[name],
        num_seeds=None,
        total_timesteps=steps,
        eval_every=steps,
        batching="loop",
    )
    h, state = run.hyperparameters, run.states[0]
    nets = off_policy.networks(module.METHOD, ENV, params, h)
    rows = state.replay[steps // 2 : steps]  # seen by a ≈ 0
    obs = replay.unpack(rows, 1).obs
    z, u = off_policy.normalize(state, obs, h), jnp.zeros((obs.shape[0], 2))
    scale = state.rewards.moments.std()
    learned = scale * nets.q_values(state.learner.params["critics"], z, u)[0]
    known = value(obs[:, 0], 0.0)
    return relative(learned, known)


@pytest.mark.parametrize(
    ("name", "horizon"),
    [
        ("ddpg", 16),
        *[
            pytest.param(name, horizon, marks=pytest.mark.slow)
            for name, horizon in [
                ("ddpg", 64),
                ("ddpg", 512),
                ("td3", 16),
                ("td3", 64),
                ("sac", 16),
                ("sac", 64),
                ("crossq", 16),
                ("crossq", 64),
            ]
        ],
    ],
)
def test_critics_converge_to_the_known_value_whatever_the_time_limit(name, horizon):
    assert q_error(name, horizon) < 0.02


def test_truncation_taken_for_terminal_fails_the_same_test():
    assert q_error("ddpg", 16, steps=20_000, limit_is_terminal=1.0) > 0.1


def test_replay_is_a_ring():
    buffer, block = replay.create(6, 1, 1), 2
    rows = jnp.arange(10.0)[:, None] * jnp.ones((1, 5))
    for i in range(5):
        buffer = replay.write(buffer, rows[2 * i : 2 * i + 2], jnp.int32(i))
    np.testing.assert_array_equal(buffer[:, 0], [6, 7, 8, 9, 4, 5])
    drawn = replay.sample(jax.random.key(0), buffer, jnp.int32(5), block, shape=(3, 400))
    assert drawn.shape == (3, 400, 5)
    assert set(np.unique(drawn)) == {4, 5, 6, 7, 8, 9}


def test_replay_draws_only_what_was_written():
    buffer = replay.write(replay.create(100, 1, 1), jnp.ones((2, 5)), jnp.int32(0))
    drawn = replay.sample(jax.random.key(0), buffer, jnp.int32(1), 2, shape=(500,))
    assert float(drawn.min()) == 1.0
    assert replay.capacity(100, 64) == 128


def test_rows_pack_and_unpack():
    keys = jax.random.split(jax.random.key(0), 5)
    shapes = [(7, 3), (7, 2), (7,), (7,), (7, 3)]
    sample = Sample(*[jax.random.normal(k, s) for k, s in zip(keys, shapes, strict=True)])
    for x, y in zip(sample, replay.unpack(replay.pack(sample), 3), strict=True):
        np.testing.assert_array_equal(x, y)


def test_the_stored_next_observation_is_the_one_before_the_reset():
    """x' = ρx + noise: across a reset it would be anywhere in [-1, 1]."""
    h = hyperparameters(ddpg.DDPG, SMALL).replace(num_steps=64, buffer_size=256)
    params = strong(ToyParams(max_steps_in_episode=2, gain=0.0))
    state = ddpg.ALGORITHM.init(ENV, jax.random.key(0), params, h)
    _, rollout, _ = off_policy.collect(
        ENV, state, params, h, key=jax.random.key(1), method=ddpg.METHOD
    )
    kept = off_policy.remember(state, rollout, 0.9, h)
    rows = replay.unpack(kept.replay, 1)
    residual = (rows.next_obs - 0.9 * rows.obs)[..., 0] / 0.2
    done = rollout.truncated.reshape(-1)
    assert done.any()
    assert abs(float(jnp.std(residual[done])) - 1.0) < 0.2
    assert not rollout.terminated.any()


@pytest.fixture(scope="module")
def sac_state():
    h = hyperparameters(sac.SAC, SMALL)
    return h, sac.ALGORITHM.init(ENV, jax.random.key(0), strong(ToyParams()), h)


def test_sac_density_is_that_of_its_samples(sac_state):
    """Mean log-density of samples equals the entropy found by a histogram, in action units."""
    h, state = sac_state
    nets = off_policy.networks(sac.METHOD, ENV, ToyParams(), h)
    obs = jnp.zeros((200_000, 1))
    actor = state.learner.params["actor"]
    noise = jax.random.normal(jax.random.key(2), (200_000, 2))
    u, log_prob = sac.draw(nets, actor, obs, noise, h=h)
    actions = np.asarray(nets.box.to_action(u))
    entropy = 0.0
    for i, half in enumerate(nets.box.half_range()):
        density, edges = np.histogram(
            actions[:, i], bins=200, range=(-float(half), float(half)), density=True
        )
        p = density * np.diff(edges)
        entropy -= np.sum(p[p > 0] * np.log(density[p > 0]))
    assert abs(-float(jnp.mean(log_prob)) - entropy) < 0.02


def test_sac_first_spread_is_log_std_init_and_stays_in_its_limits(sac_state):
    h, state = sac_state
    nets = off_policy.networks(sac.METHOD, ENV, ToyParams(), h)
    actor = state.learner.params["actor"]
    _, log_std = sac.distribution(nets, actor, jnp.ones((1, 1)), h)
    np.testing.assert_allclose(log_std, h.log_std_init, atol=0.05)
    wild = h.replace(log_std_init=jnp.float32(50.0))
    _, log_std = sac.distribution(nets, actor, jnp.ones((1, 1)), wild)
    np.testing.assert_allclose(log_std, h.log_std_max)


def test_terminal_states_are_worth_nothing_and_time_limits_are():
    batch = Sample(jnp.ones((2, 1)), jnp.ones((2, 2)), -jnp.ones(2), jnp.array([0.0, 1.0]),
                   jnp.ones((2, 1)))  # fmt: skip
    for module, cls in MODULES.values():
        h = hyperparameters(cls, SMALL)
        nets, learner = (
            off_policy.networks(module.METHOD, ENV, ToyParams(), h),
            learner_of(module, h),
        )
        minibatch = Minibatch(batch, jnp.ones((2, 2)), 0.9, jnp.ones(()))
        y = module.METHOD.target(learner, minibatch, nets, h)
        assert float(y[1]) == -1.0
        assert float(y[0]) != -1.0


def learner_of(module, config):
    return module.ALGORITHM.init(ENV, jax.random.key(0), ToyParams(), config).learner


def test_td3_moves_actor_and_targets_only_when_due():
    h = hyperparameters(td3.TD3, SMALL | {"policy_delay": 4, "gradient_steps": 1})
    params = strong(ToyParams())
    state = td3.ALGORITHM.init(ENV, jax.random.key(0), params, h)
    update = jax.jit(lambda s: td3.ALGORITHM.update(ENV, s, params, h)[0])
    moved = []
    for _ in range(12):
        before, state = state, update(state)
        changed = [
            not all(np.array_equal(x, y) for x, y in zip(*map(jax.tree.leaves, pair), strict=True))
            for pair in (
                (before.learner.params["actor"], state.learner.params["actor"]),
                (before.learner.params["critics"], state.learner.params["critics"]),
            )
        ]
        moved.append(changed)
    # learning starts with update 4 (64 steps of 16 are then taken)
    assert [m[0] for m in moved] == [i >= 4 and i % 4 == 0 for i in range(12)]
    assert all(m[1] for m in moved[4:])


@pytest.mark.parametrize("name", ["sac", "td3", "ddpg", "crossq"])
def test_learning_packed_parameters_is_learning_them(name, monkeypatch):
    module, cls = MODULES[name]
    h = hyperparameters(cls, SMALL | {"learning_starts": 0})
    params, after = strong(ToyParams()), []
    for packed in (optimization.PACKED, 0):
        monkeypatch.setattr(optimization, "PACKED", packed)
        state = module.ALGORITHM.init(ENV, jax.random.key(0), params, h)
        update = jax.jit(lambda s: module.ALGORITHM.update(ENV, s, params, h)[0])
        after.append(update(update(state)).learner)
    vector, tree = after
    moments = vector.opt_states["critics"][1].mu
    assert moments.ndim == 1
    assert len(jax.tree.leaves(tree.opt_states["critics"][1].mu)) > 1
    jax.tree.map(
        partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-6),
        *((x.params, x.targets) for x in after),
    )


def test_td3_smoothing_noise_is_clipped_in_units_of_the_box():
    h = hyperparameters(td3.TD3, SMALL | {"target_noise": 100.0, "target_noise_clip": 0.25})
    nets = off_policy.networks(td3.METHOD, ENV, ToyParams(), h)
    learner = learner_of(td3, h)
    seen = []

    class Spy:
        box = nets.box
        output = staticmethod(nets.output)

        def q_values(self, critics, obs, u):
            seen.append(u)
            return nets.q_values(critics, obs, u)

    batch = Sample(*[jnp.ones(s) for s in ((99, 1), (99, 2), (99,), (99,), (99, 1))])
    noise = jax.random.normal(jax.random.key(0), (99, 2))
    td3.target(learner, Minibatch(batch, noise, 0.9, jnp.ones(())), Spy(), h)
    shift = seen[0] - td3.act(nets, learner.targets["actor"], batch.next_obs)
    np.testing.assert_allclose(jnp.abs(shift), 0.25, atol=1e-5)


def test_the_reward_scale_stays_what_it_was_when_learning_began(sac_state):
    h, state = sac_state
    obs, u, reward = (100.0 * jnp.ones((4, 4, *s)) for s in ((1,), (2,), ()))
    ends = jnp.zeros((4, 4), bool)
    rollout = Rollout(obs, u, None, reward, ends, ends, obs)

    def after(update, h):
        clock = state.clock.replace(update=jnp.int32(update))
        kept = off_policy.remember(state.replace(clock=clock), rollout, 0.9, h)
        return float(kept.rewards.moments.std())

    first = float(state.rewards.moments.std())
    assert [after(i, h) > 10.0 * first for i in range(6)] == [True] * 4 + [False] * 2
    assert after(4, h) == first
    # without a warm-up it is that of the first update
    at_once = h.replace(learning_starts=0)
    assert after(0, at_once) > 10.0 * first
    assert after(1, at_once) == first


@pytest.mark.parametrize("kappa", [0.0, 0.1, 10.0])
def test_targets_stay_in_what_the_rewards_of_a_batch_bound(kappa):
    """A critic of 1e4 for rewards in [-2, -1] at γ = 0.9: no value is outside [-20, 0]."""
    rows = Sample(*[jnp.ones(s) for s in ((2, 1), (2, 2))], jnp.array([-1.0, -2.0]),
                  jnp.zeros(2), jnp.ones((2, 1)))  # fmt: skip
    for module, cls in MODULES.values():
        h = hyperparameters(cls, SMALL | {"relative_error": kappa})
        nets = off_policy.networks(module.METHOD, ENV, ToyParams(), h)
        learner = learner_of(module, h)
        for sign, bound in ((1.0, 0.0), (-1.0, -20.0)):
            part = "targets" if learner.targets else "params"  # CrossQ has no slow copies
            held = getattr(learner, part)
            critics = jax.tree.map(lambda x: x, held["critics"])
            for critic in critics:
                critic["params"]["head"]["bias"] = jnp.full(1, sign * 1e4)
            told = learner.replace(**{part: held | {"critics": critics}})
            minibatch = Minibatch(rows, jnp.zeros((2, 2)), 0.9, jnp.ones(()))
            y = module.METHOD.target(told, minibatch, nets, h)
            # SAC's rewards have its entropy in them
            np.testing.assert_allclose(y, bound, atol=1.0 if module is sac else 1e-5)
            free = module.METHOD.target(told, minibatch, nets, h.replace(episode_growth=0.0))
            assert float(jnp.abs(free).min()) > 100.0


@pytest.mark.parametrize("name", ["sac", "crossq", pytest.param("a2c", marks=pytest.mark.slow)])
def test_interrupted_and_continued_equals_uninterrupted(name, tmp_path):
    setting = {"num_envs": 4, "num_steps": 4, "hidden": (8,)} if name == "a2c" else SMALL

    def go(progress=None, **kwargs):
        return train(
            name, ToyParams(), jax.random.key(0), env=ENV, hyperparameters=setting, num_seeds=None,
            total_timesteps=320, eval_every=160, progress=progress, **kwargs,
        )  # fmt: skip

    def interrupt(steps, total, metrics):
        if steps >= 160:
            raise KeyboardInterrupt

    whole = go()
    with pytest.raises(KeyboardInterrupt):
        go(interrupt, checkpoint_dir=tmp_path)
    before = population.advance._cache_size()
    continued = go(checkpoint_dir=tmp_path)
    assert population.advance._cache_size() == before  # what is read needs no program of its own
    pairs = zip(
        jax.tree.leaves((whole.policy.params, whole.metrics)),
        jax.tree.leaves((continued.policy.params, continued.metrics)),
        strict=True,
    )
    for x, y in pairs:
        np.testing.assert_array_equal(x, y)
    with pytest.raises(ValueError, match="checkpoint of another run: hyperparameters"):
        train(
            name, ToyParams(), jax.random.key(0), env=ENV,
            hyperparameters=setting | {"reward_scale": 0.5},
            num_seeds=None, total_timesteps=320, eval_every=160, checkpoint_dir=tmp_path,
        )  # fmt: skip


@pytest.mark.slow
def test_a_vmapped_population_equals_solo_runs():
    """Also where the delay branches: the clock is shared, so it stays a branch."""
    runs = [
        train(
            "td3",
            ToyParams(),
            jax.random.key(0),
            env=ENV,
            hyperparameters=SMALL,
            num_seeds=2,
            total_timesteps=192,
            batching=batching,
        )
        for batching in ("vmap", "loop")
    ]
    for x, y in zip(*[jax.tree.leaves(r.policy.params) for r in runs], strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-4)


def test_unbounded_actions_are_refused():
    class Unbounded(Toy):
        def action_space(self, params):
            return gymnax.environments.spaces.Box(-jnp.inf, jnp.inf, (2,))

    with pytest.raises(ValueError, match="sac needs finite action bounds"):
        train("sac", ToyParams(), jax.random.key(0), env=Unbounded())


@pytest.mark.slow
@pytest.mark.parametrize("name", ["sac", "td3", "ddpg", "crossq"])
def test_pendulum_is_swung_up(name):
    env, params = gymnax.make("Pendulum-v1")
    run = train(name, params, jax.random.key(0), env=env, num_seeds=3, total_timesteps=30_000)
    assert np.median(run.metrics["episode_return"][..., -1]) > -300


@pytest.mark.parametrize("name", ["sac", "td3", "ddpg", "crossq"])
def test_an_update_beyond_2_to_the_31_steps_is_the_one_before(name):
    """The clock enters by the replay's place, the delay's phase and the warm-up alone."""
    module, cls = MODULES[name]
    delay = {} if name == "ddpg" else {"policy_delay": 3, "gradient_steps": 5}
    h = hyperparameters(cls, SMALL | {"learning_starts": 16 * 18} | delay)
    params = strong(ToyParams())
    update = jax.jit(lambda s: module.ALGORITHM.update(ENV, s, params, h))
    state = module.ALGORITHM.init(ENV, jax.random.key(0), params, h)
    first = 18  # a multiple of the ring's 6 blocks and of the delay, where learning starts
    later = first * (2**30 // first)  # times 16 steps, or 5 gradient steps: beyond 32 bits
    (a, seen), (b, also) = (
        update(state.replace(clock=state.clock.replace(update=jnp.int32(at))))
        for at in (first, later)
    )
    assert int(b.clock.update) == later + 1
    assert float(seen["critic_loss"]) > 0.0
    for x, y in zip(*(jax.tree.leaves(t) for t in (seen, also)), strict=True):
        np.testing.assert_array_equal(x, y)
    for x, y in zip(*(jax.tree.leaves(s.learner) for s in (a, b)), strict=True):
        np.testing.assert_array_equal(x, y)
    np.testing.assert_array_equal(a.replay, b.replay)


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
