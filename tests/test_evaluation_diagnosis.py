"""Diagnosis meters: known errors come out as known, gradients against finite differences."""

import dataclasses
import functools
import itertools
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from agents_toy import PLAIN_PPO
from helpers import some_slow

import cojax
from cojax.agents import crossq, off_policy, on_policy, replay, sac, td3
from cojax.agents.networks import forward
from cojax.envs import ConverseEnv
from cojax.evaluation import diagnose
from cojax.evaluation.diagnosis import exact_gradients, summary
from cojax.evaluation.learning_curve import RelativeGap, TrialGaps
from cojax.evaluation.members import singles
from cojax.initial import Fixed
from cojax.policy import Policy
from cojax.report.animation import animate
from cojax.report.figures import diagnosis_figure

STEPS = 10
SHORT = {"num_trials": 8, "num_steps": STEPS, "bins": 4}
SMALL = {"hidden": (4,), "num_envs": 2, "num_steps": 8}
OFF = {**SMALL, "batch_size": 32, "learning_starts": 16, "buffer_size": 64, "gradient_steps": 2}
SETTINGS = {
    "ppo": {**SMALL, "num_minibatches": 2, "update_epochs": 1, "reward_scale": 3.0},
    "sac": {**OFF, "reward_scale": 3.0},
    "td3": OFF,
    "crossq": OFF,
}


@functools.cache
def params():
    return cojax.make("NVDEx-v0", K=1, preset="easy")[1]


LEARNERS = some_slow(["ppo", "sac", "td3", "crossq"], ["td3", "crossq"])


@pytest.fixture(scope="module", params=LEARNERS)
def run(request):
    key = jax.random.key(0, impl="threefry2x32")
    h = SETTINGS[request.param]
    return cojax.train(
        request.param, params(), key, hyperparameters=h, num_seeds=2, total_timesteps=64
    )


def test_errors_and_splits_of_known_policies():
    for name, error in (("oracle", 0.0), ("zero", 1.0), ("detuned-oracle:0.6", 0.4)):
        found = diagnose(name, params(), **SHORT)
        assert found.action_error == pytest.approx(error, abs=1e-6), name
        for split in (found.by_region, found.by_time):
            assert sum(cell["visits"] for cell in split) == 8 * STEPS
            assert sum(cell["gap"] for cell in split) == pytest.approx(found.relative_gap)
            assert all(a["high"] <= b["low"] for a, b in itertools.pairwise(split))
        assert found.critic is found.value_error is found.gradient is None
    result = cojax.evaluate(name, params(), 8, 2, num_steps=STEPS)
    gap = result.trials["suboptimality"][0, 0]
    ours = (found.visits["weight"] * found.visits["advantage"]).sum(axis=1)
    np.testing.assert_allclose(ours, gap, rtol=1e-5)  # on the streams of evaluate


def test_policies_of_the_host_are_read_as_those_of_programs_are():
    def lazy(obs):
        return np.zeros(params().system.action_dim)

    host, program = (diagnose(policy, params(), **SHORT) for policy in (lazy, "zero"))
    assert host.policy == "lazy"
    assert host.failures == program.failures
    assert set(host.visits) == set(program.visits)
    for name, x in host.visits.items():
        np.testing.assert_allclose(x, program.visits[name], rtol=2e-5, err_msg=name)


def test_a_critic_whose_value_is_no_scalar_is_refused_while_tracing():
    """It would broadcast against the values of other states."""
    critic = SimpleNamespace(kind="V", params=(), apply=lambda p, obs: obs[:1])
    agent = SimpleNamespace(policy=push(0.0), critic=critic, actor=(), gradients=None)
    with pytest.raises(AssertionError, match="shape"):
        diagnose(agent, params(), **SHORT, batches=0)


def test_failures_count_until_they_happen():
    wild = cojax.policy.Policy((), lambda p, obs, key: jnp.full(2, jnp.nan), "wild")
    found = diagnose(wild, params(), **SHORT)
    assert (found.failures, found.by_time) == (8, [])
    assert np.isnan(found.relative_gap)


def test_critics_are_in_raw_reward(run):
    """Against what the engines compute with."""
    h, agent = run.hyperparameters, run.agent(seed=1)
    state = run.states[1]
    obs, action = 0.1 * jnp.arange(5.0), jnp.array([0.3, -0.2])
    z = off_policy.normalize(state, obs, h)
    if run.algorithm == "ppo":
        ours = agent.critic(obs)
        raw = forward(
            on_policy.networks(ConverseEnv(), params(), h).critic, state.params["critic"], z
        )[0]
        theirs = (state.targets.mean() + state.targets.std() * raw) / 3.0
    else:
        ours = agent.critic(obs, action)
        method = {"sac": sac, "td3": td3, "crossq": crossq}[run.algorithm].METHOD
        nets = off_policy.networks(method, ConverseEnv(), params(), h, actions=state.actions)
        q = nets.q_values(state.learner.params["critics"], z, action / (2.0 * state.unit))
        q = q.min() if run.algorithm == "sac" else q[0]
        theirs = q * state.rewards.moments.std() / h.reward_scale
    assert ours == pytest.approx(float(theirs), rel=1e-4, abs=1e-6)
    assert run.critic(seed=1).kind == ("V" if run.algorithm == "ppo" else "Q")
    with pytest.raises(ValueError, match="action: expected"):
        agent.critic(obs, action if run.algorithm == "ppo" else None)


def test_a_right_critic_has_no_error_and_a_shifted_one_its_shift(run):
    agent, system = run.agent(seed=0), params().system
    right = Exact(1.0)
    for factor in (1.0, 1.25):
        critic = dataclasses.replace(agent.critic, params=system, apply=Exact(factor))
        told = diagnose(dataclasses.replace(agent, critic=critic), params(), **SHORT, batches=0)
        cells = [told.q_error] if told.critic == "Q" else [told.value_error]
        for cell in (*cells, told.by_time[-1]["q_error" if told.critic == "Q" else "value_error"]):
            assert cell["low"] == pytest.approx(factor - 1.0, abs=1e-5)
            assert cell["high"] == pytest.approx(factor - 1.0, abs=1e-5)
    assert right(system, jnp.zeros(5)) < 0.0  # a reward to go


@dataclasses.dataclass(frozen=True)
class Exact:
    """-factor V*, or -factor Q*, as the ``apply`` of a critic."""

    factor: float

    def __call__(self, system, obs, action=None):
        if action is None:
            return -self.factor * system.value(obs)
        return -self.factor * cojax.oracle.q_value(system, obs, action)


def test_exact_gradients_are_those_of_finite_differences(run):
    agent, system = run.agent(seed=0), params()
    keys = cojax.streams.stream_keys(2, 4)
    exact = exact_gradients(agent, system, STEPS, keys)
    leaves, structure = jax.tree.flatten(agent.actor)
    rng = np.random.default_rng(0)
    direction = [rng.normal(size=leaf.shape) for leaf in leaves]
    slope = exact @ np.concatenate([x.ravel() for x in direction])
    gaps = []
    for sign in (1.0, -1.0):
        moved = structure.unflatten(
            [leaf + sign * 3e-3 * x for leaf, x in zip(leaves, direction, strict=True)]
        )
        policy = dataclasses.replace(agent.policy, params={**agent.policy.params, "actor": moved})
        visits = diagnose(policy, system, num_trials=4, num_steps=STEPS).visits
        gaps.append((visits["weight"] * visits["advantage"]).sum(axis=1))
    rounding = 1e-3 * np.abs(slope).max()  # of differences in float32
    np.testing.assert_allclose(slope, (gaps[0] - gaps[1]) / 6e-3, rtol=0.02, atol=rounding)


def test_gradients_of_a_method_are_those_of_its_loss():
    """Of TD3, whose loss -E w Q_1(s, π(s)) is written out here, on the replay's batches."""
    key = jax.random.key(0, impl="threefry2x32")
    run = cojax.train("td3", params(), key, hyperparameters=OFF, num_seeds=None, total_timesteps=64)
    agent, state = run.agent(), run.states[0]
    ours = agent.gradients(ConverseEnv(), params(), key, 400)
    nets = off_policy.networks(
        td3.METHOD, ConverseEnv(), params(), run.hyperparameters, actions=state.actions
    )
    everything = replay.unpack(state.replay, 5)
    z, kappa = everything.obs, run.hyperparameters.relative_error

    def loss(actor):
        u = jnp.tanh(forward(nets.actor, actor, z))
        q = nets.q_values(state.learner.params["critics"][:1], z, u)
        return -jnp.mean(q / jnp.sqrt(1.0 + jax.lax.stop_gradient(kappa * q) ** 2))

    theirs = jax.grad(loss)(agent.actor)
    for mean, exact in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
        scale = 0.1 * np.abs(exact).max() + 1e-7  # 400 batches of 32 of 64 rows
        np.testing.assert_allclose(mean.mean(axis=0), exact, atol=scale)


def test_a_learner_heads_downhill_at_first():
    """From a policy that does nothing; single batches of a policy gradient are mostly noise."""
    key = jax.random.key(0, impl="threefry2x32")
    shapes = {"hidden": (16,), "num_envs": 128, "num_steps": 64, "update_epochs": 1}
    h = {**PLAIN_PPO, **shapes, "num_minibatches": 1, "gae_lambda": 1.0, "log_std_init": -2.0}
    system = cojax.make("point-mass")[1]
    # in units this small neither the first policy nor its exploration does anything
    system = system.replace(action_limit=jnp.full_like(system.action_limit, 4e-6))
    run = cojax.train("ppo", system, key, hyperparameters=h, num_seeds=1, total_timesteps=81_920)
    found = diagnose(run.agent(), system, num_trials=32, num_steps=64, batches=32)
    assert found.action_error == pytest.approx(1.0, abs=0.01)
    assert found.gradient["reference"] > 0.9
    assert found.gradient["of_mean"] > 0.4
    assert found.gradient["of_mean"] > found.gradient["cosine"] > 0.0


def test_chart_and_table(run, tmp_path):
    told = diagnose(run.agent(seed=0), params(), **SHORT, batches=2)
    assert set(told.gradient) == {"cosine", "sd", "of_mean", "reference", "batches"}
    readings = [told, diagnose("zero", params(), **SHORT)]
    diagnosis_figure(readings, tmp_path / "where.png")
    assert (tmp_path / "where.png").read_bytes()[:4] == b"\x89PNG"
    rows = summary(readings)
    assert rows[0]["gradient_cosine"] == told.gradient["cosine"]
    assert rows[1]["value_error"] is None


def test_bad_input_is_one_line(run):
    assert [m.name for m in singles(run.policy)] == [f"{run.algorithm} (seed {i})" for i in (0, 1)]
    for call, words in (
        (lambda: run.agent(), "expected seed=0 … 1, got None"),
        (lambda: run.agent(seed=2), "expected seed=0 … 1, got 2"),
        (lambda: run.agent(sed=1), "unknown axis 'sed'"),
        (lambda: dataclasses.replace(run, states=[], chunks=3).agent(seed=0), "3 chunks"),
        (lambda: diagnose(run.policy, params()), "expected one policy, got a population"),
        (lambda: diagnose(3, params()), "expected a policy, the name of a reference"),
        (lambda: diagnose("zero", [params(), params()]), "expected one system, got 2"),
        (lambda: diagnose("zero", params(), bins=0), "bins"),
        (lambda: diagnosis_figure([], "x.png"), "at least one"),
    ):
        with pytest.raises(ValueError, match=words) as caught:
            call()
        assert "\n" not in str(caught.value)


@functools.cache
def at_rest():
    """A system without noise that starts in the origin, where V* = 0."""
    system = cojax.families.ConverseArm.build(n=2, p=0.6, Sigma=0.0)
    return cojax.envs.env_params(system, Fixed(jnp.zeros(4)), max_steps_in_episode=8)


def constant(size, obs, key):
    return jnp.full(2, size)


def push(size):
    """One function for all sizes, which share a program."""
    return Policy(params=jnp.float32(size), apply=constant, name=f"push {size:g}")


@pytest.mark.filterwarnings("error")
def test_shares_of_an_optimal_value_of_0(tmp_path):
    params = at_rest()
    readings = [diagnose(who, params, num_trials=4) for who in ("oracle", push(0.1))]
    assert [t.relative_gap for t in readings] == [0.0, np.inf]
    assert readings[0].action_error == 0.0
    assert [c["gap"] for c in readings[0].by_time] == [0.0] * 8
    diagnosis_figure(readings, tmp_path / "where.png")
    settings = {"hyperparameters": SETTINGS["ppo"], "total_timesteps": 64}
    trained = cojax.train("ppo", params, jax.random.key(0), **settings)
    reading = diagnose(trained.agent(seed=0), params, num_trials=4, batches=0)
    assert not np.isnan(list(reading.value_error.values())).any()
    diagnosis_figure([reading], tmp_path / "where.png")


def test_curves_count_shares_of_0_and_only_steps_within_the_horizon():
    measure = jax.jit(TrialGaps(3, 12))
    for size, expected in ((0.0, 0.0), (0.1, np.inf), (np.inf, np.inf), (np.nan, np.inf)):
        gaps = measure(push(size), at_rest(), None)
        assert gaps.tolist() == [expected] * 3
    assert float(jax.jit(RelativeGap(3, 12))(push(0.1), at_rest(), None)) == np.inf
    short = params().replace(max_steps_in_episode=jnp.int32(STEPS))
    late = short.replace(divergence_radius=1.001 * radius_over(short, STEPS))
    gaps = [jax.jit(TrialGaps(1, T))(push(2.0), late, None) for T in (STEPS, 10 * STEPS)]
    assert np.isfinite(gaps).all()
    assert gaps[0] == gaps[1]


def radius_over(params, steps):
    """The largest sqrt(V* - b) that a constant push meets within some steps of trial 0."""
    states = animate(params, push(2.0), num_steps=steps, root=2).sides[0].values
    return np.sqrt(max(states) - float(params.system.offset))


@pytest.mark.parametrize("value", [np.inf, -np.inf, np.nan])
def test_an_action_that_is_not_finite_is_a_failure_in_meters_and_pictures(value):
    limited = cojax.make("NVDEx-v0", K=1, preset="easy", action_limit=2.0)[1]
    assert diagnose(push(value), limited, **SHORT).failures == 8
    assert animate(limited, push(value), num_steps=4).sides[0].failed == 0
