"""CrossQ: one joint pass through critics with batch statistics, and no slow copies."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from agents_toy import GAIN, PLAIN, RHO, Toy, ToyParams

from cojax.agents import crossq, off_policy, train
from cojax.agents.algorithm import strong
from cojax.agents.batch_norm import STATISTICS
from cojax.agents.off_policy_method import Minibatch
from cojax.agents.replay import Sample
from cojax.agents.settings import hyperparameters

ENV, B = Toy(), 32
SMALL = {
    "num_envs": 4,
    "num_steps": 4,
    "hidden": (8, 8),
    "buffer_size": 96,
    "learning_starts": 0,
    "gradient_steps": 4,
    "batch_size": 8,
}
H = hyperparameters(crossq.CrossQ, SMALL)


@pytest.fixture(scope="module")
def state():
    return crossq.ALGORITHM.init(ENV, jax.random.key(0), strong(ToyParams()), H)


def batch(next_shift=0.0):
    keys = jax.random.split(jax.random.key(3), 4)
    obs, u, reward, next_obs = (
        jax.random.normal(k, s) for k, s in zip(keys, ((B, 1), (B, 2), (B,), (B, 1)), strict=True)
    )
    rows = Sample(obs, u, -jnp.abs(reward), jnp.zeros(B), next_obs + next_shift)
    return Minibatch(rows, jnp.zeros((B, 2)), 0.9, jnp.ones(()))


def nets():
    return off_policy.networks(crossq.METHOD, ENV, ToyParams(), H)


def joint(state, minibatch):
    learner = state.learner
    return crossq.joint(learner.params["critics"], learner, minibatch, nets(), h=H)


def test_there_are_no_slow_copies_and_one_critic(state):
    assert state.learner.targets == {}
    assert len(state.learner.params["critics"]) == 1


def test_the_statistics_are_those_of_both_halves(state):
    """The first running means are the batch's: of all (s, a) and (s', π(s'))."""
    minibatch = batch(next_shift=5.0)
    rows = minibatch.rows
    *_, (known,) = joint(state, minibatch)
    u = crossq.act(nets(), state.learner.params["actor"], rows.next_obs)
    x = np.concatenate([np.hstack([rows.obs, rows.u]), np.hstack([rows.next_obs, u])])
    np.testing.assert_allclose(known["norm"]["mean"], x.mean(0), atol=1e-5)
    np.testing.assert_allclose(known["norm"]["var"], x.var(0), rtol=1e-5)
    assert set(known) == {"norm", "norm0", "norm1"}


def test_next_states_move_what_the_critic_says_of_states(state):
    near, far = (joint(state, batch(shift))[0] for shift in (0.0, 5.0))
    assert float(jnp.abs(near - far).max()) > 0.01


def test_targets_are_constants_and_the_statistics_get_no_gradient(state):
    learner, minibatch = state.learner, batch()

    def loss(critics):
        return crossq.critic_loss(critics, learner, minibatch, nets(), h=H)[0]

    def targets(critics):
        return jnp.sum(crossq.joint(critics, learner, minibatch, nets(), h=H)[1])

    (slopes,) = jax.grad(loss)(learner.params["critics"])
    assert all(not np.any(x) for x in jax.tree.leaves(slopes[STATISTICS]))
    assert all(np.any(x) for x in jax.tree.leaves(slopes["params"]["layer0"]))
    assert all(not np.any(x) for x in jax.tree.leaves(jax.grad(targets)(learner.params["critics"])))
    found = crossq.METHOD.target(learner, minibatch, nets(), H)
    np.testing.assert_array_equal(found, joint(state, minibatch)[1])


def test_an_update_takes_the_running_averages_as_they_come(state):
    """As many batches as gradient steps were seen, and Adam adds nothing to the averages."""
    params = strong(ToyParams())
    update = jax.jit(lambda s: crossq.ALGORITHM.update(ENV, s, params, H)[0])
    once = update(state)
    twice = update(once)
    (first,), (second,) = (s.learner.params["critics"] for s in (once, twice))
    for i in ("norm", "norm0", "norm1"):
        assert float(first[STATISTICS][i]["seen"]) == 4.0
        assert float(second[STATISTICS][i]["seen"]) == 8.0
        assert np.all(np.asarray(second[STATISTICS][i]["var"]) >= 0.0)
    # the states of the toy lie around 0, with the spread of what the replay holds
    spread = float(first[STATISTICS]["norm"]["var"][0])
    assert 0.3 < spread / float(jnp.var(once.replay[:16, 0])) < 3.0


def test_it_learns_to_cancel_the_drift():
    """The optimum of x' = ρx + g a + noise is a = -ρx/g within the box, as |x| is small."""
    given = PLAIN | {
        "num_envs": 16,
        "num_steps": 16,
        "gradient_steps": 32,
        "hidden": (32, 32),
        "learning_starts": 1_000,
        "buffer_size": 20_000,
        "exploration_noise": 0.2,
        "actor_learning_rate": 1e-3,
        "actor_ema_rate": 1.0,  # the average of so few updates would be that of the first
    }
    run = train(
        "crossq", ToyParams(), jax.random.key(0), env=ENV, hyperparameters=given, num_seeds=None,
        total_timesteps=20_000,
    )  # fmt: skip
    x = jnp.linspace(-0.2, 0.2, 9)
    key = jax.random.key(0)
    act = jax.vmap(lambda x: run.policy.apply(run.policy.params, x[None], key))
    actions = act(x)
    np.testing.assert_allclose(actions[:, 0], -RHO * x / GAIN, atol=0.3)
    np.testing.assert_allclose(actions[:, 1], 0.0, atol=1.0)  # the box has ±4
    assert not run.failed
