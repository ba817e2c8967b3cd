"""Networks of one's own: trained by every engine, refused in one line, named by entry points."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from agents_toy import PLAIN, SMALL, Toy, ToyParams
from flax import linen as nn
from helpers import some_slow
from test_plugins import Entry

import cojax
from cojax import agents, plugins
from cojax.agents import ddpg, networks, off_policy, on_policy, own_networks, ppo, sac, shac
from cojax.agents.settings import hyperparameters
from cojax.errors import InputError
from cojax.studies import study
from cojax.types import Array

KEY = jax.random.key(0, impl="threefry2x32")
ROLLOUT = PLAIN | {"num_envs": 4, "num_steps": 8}
OFF = ROLLOUT | {"learning_starts": 32, "buffer_size": 128, "batch_size": 8}
LEARNERS = {
    "ppo": SMALL,
    "shac": ROLLOUT | {"num_minibatches": 2, "update_epochs": 1},
    "ddpg": OFF | {"gradient_steps": 2},
    "sac": OFF | {"gradient_steps": 2},
}


class Skip(nn.Module):
    """A linear layer beside a hidden one: nothing of it is called head."""

    out: int
    width: int = 4
    phi: Callable[[Array], Array] = nn.tanh

    @nn.compact
    def __call__(self, x):
        hidden = self.phi(nn.Dense(self.width)(x))
        return nn.Dense(self.out, use_bias=False)(x) + nn.Dense(self.out)(hidden)


class Same(nn.Module):
    """The default by another name, its layers called alike."""

    out: int
    head_scale: float
    after: Callable[[Array], Array] = lambda x: x

    @nn.compact
    def __call__(self, x):
        init = networks.orthogonal(2.0**0.5)
        layer = nn.Dense(8, kernel_init=init, dot_general=networks.hidden_product, name="layer0")
        init, product = networks.orthogonal(self.head_scale), networks.narrow_product
        head = nn.Dense(self.out, kernel_init=init, dot_general=product, name="head")
        return self.after(head(nn.tanh(layer(x))))


class Faulty(nn.Module):
    """What no learner can take, of every kind."""

    fault: str
    out: int = 2

    @nn.compact
    def __call__(self, x):
        y = nn.Dense(self.out)(x)
        match self.fault:
            case "state":
                return nn.BatchNorm(use_running_average=False)(y)
            case "noise":
                return nn.Dropout(0.5, deterministic=False)(y)
            case "nothing":
                return jnp.zeros((*x.shape[:-1], self.out))
            case "pair":
                return y, y
            case "flat":
                return y.reshape(-1)
            case "precision":
                return y.astype(jnp.bfloat16)
            case "weights":
                return nn.Dense(self.out, param_dtype=jnp.bfloat16, dtype=jnp.float32)(x)
            case "error":
                raise RuntimeError("a fault\nin two lines")
        return y


class Parameterless(nn.Module):
    @nn.compact
    def __call__(self, x):
        return jnp.stack([x[..., 0], x[..., 0]], axis=-1)


def environment(name):
    """Toy has one dimension and two actions; SHAC needs gradients, of an arm with 4 and 2."""
    return cojax.make("arm-n2-p0.80-s7") if name == "shac" else (Toy(), ToyParams())


def trained(name, *, timesteps=96, **own):
    env, params = environment(name)
    h = LEARNERS[name] | own
    return agents.train(
        name, params, KEY, env=env, hyperparameters=h, num_seeds=2, total_timesteps=timesteps
    )


@pytest.mark.parametrize("name", some_slow(LEARNERS, ["a2c", "td3", "ddpg"]))
def test_every_engine_trains_networks_of_ones_own(name):
    """They learn, and are what the policy, the critic and the gradients are of."""
    env, params = environment(name)
    actor, critic = Skip(4 if name == "sac" else 2), Skip(1, 3)
    run = trained(name, actor=actor, critic=critic)
    assert not run.failed.any()
    learned = run.member(seed=1).params["actor"]["params"]
    assert {*learned} == {"Dense_0", "Dense_1", "Dense_2"}
    h = hyperparameters(agents.ALGORITHMS[name].hyperparameters, LEARNERS[name] | {"actor": actor})
    first = agents.ALGORITHMS[name].init(env, jax.random.fold_in(KEY, 1), params, h).average
    assert not np.allclose(learned["Dense_0"]["kernel"], first["params"]["Dense_0"]["kernel"])
    agent, obs = run.agent(seed=1), jnp.ones(env.observation_space(params).shape)
    action = agent.policy(obs, KEY)
    assert action.shape == (2,)
    value = agent.critic(obs, *(() if name in ("ppo", "shac") else (action,)))
    assert np.isfinite(value)
    gradients = jax.eval_shape(lambda key: agent.gradients(env, params, key, 2), KEY)
    assert jax.tree.map(lambda x: x.shape[1:], gradients) == jax.tree.map(jnp.shape, agent.actor)


@pytest.mark.parametrize("name", ["ppo", "ddpg"])
def test_the_default_by_another_name_trains_to_the_same_bits(name):
    rest = {"hidden": (8,), "activation": "tanh"}
    default = trained(name, **rest)
    own = trained(name, **rest, actor=Same(2, 0.01), critic=Same(1, 1.0))
    for a, b in zip(*map(jax.tree.leaves, (default.policy.params, own.policy.params)), strict=True):
        np.testing.assert_array_equal(a, b)
    for metric, curve in default.metrics.items():
        np.testing.assert_array_equal(curve, own.metrics[metric], err_msg=metric)
    obs = (jnp.ones(1),) if name == "ppo" else (jnp.ones(1), jnp.ones(2))
    assert default.critic(seed=1)(*obs) == own.critic(seed=1)(*obs)


def test_a_critic_is_rescaled_by_its_last_layer_alone():
    """A layer called head counts where it is the last, and linear."""
    assert own_networks.rescalable(Same(1, 1.0), 3) == Same(1, 1.0)
    for after in (nn.tanh, nn.leaky_relu, jnp.abs, lambda x: jnp.clip(x, -20.0, 20.0)):
        wrapped = own_networks.rescalable(Same(1, 0.0, after), 3)
        assert wrapped == own_networks.Rescalable(Same(1, 0.0, after))
    critic, x = own_networks.rescalable(Skip(1), 3), jax.random.normal(KEY, (5, 3))
    params = critic.init(KEY, x)
    inner = {"params": params["params"]["network"]}
    np.testing.assert_array_equal(critic.apply(params, x), Skip(1).apply(inner, x))
    moved = networks.scale_head(params, jnp.float32(0.5), jnp.float32(-2.0))
    expected = 0.5 * critic.apply(params, x) - 2.0
    np.testing.assert_allclose(critic.apply(moved, x), expected, rtol=1e-6)


@pytest.mark.parametrize("module", [ppo, shac])
def test_values_of_an_own_critic_stay_when_their_scale_moves(module):
    """PopArt: other targets, the same function."""
    env, params = environment(module.ALGORITHM.name)
    given = LEARNERS[module.ALGORITHM.name] | {"critic": Skip(1), "normalize_observations": False}
    h = hyperparameters(module.ALGORITHM.hyperparameters, given)
    state = module.ALGORITHM.init(env, KEY, params, h)
    critic = on_policy.networks(env, params, h).critic
    x = jax.random.normal(KEY, (6, state.obs.shape[-1]))
    before = networks.forward(critic, state.params["critic"], x)[:, 0]
    targets = jnp.array([300.0, -200.0, 50.0])
    if module is ppo:
        moved = on_policy._rescale(state, state.targets.merge(targets, 0.5))
        after = on_policy.value(critic, moved, x)
    else:
        new = state.targets.merge(targets, 0.5)
        by = 1.0 / new.std(), -new.mean() / new.std()
        moved = state.replace(targets=new)
        slow = networks.scale_head(state.slow, *by)
        after = shac.value(critic, slow, moved, x, h=h)
    assert float(moved.targets.std()) > 10.0
    np.testing.assert_allclose(after, before, rtol=1e-4, atol=1e-3)


LINES = {
    "shape": ({"actor": Skip(3)}, r"actor: .* shape \(\.\.\., 2\), Skip gives \(\.\.\., 3\)"),
    "critic": ({"critic": Skip(2)}, r"critic: .* shape \(\.\.\., 1\), Skip gives \(\.\.\., 2\)"),
    "state": ({"actor": Faulty("state")}, "actor: .* without state, Faulty has batch_stats"),
    "noise": ({"actor": Faulty("noise")}, "actor: .* draws no random numbers, as Faulty does"),
    "nothing": ({"actor": Parameterless()}, "actor: Parameterless has no parameters"),
    "pair": ({"actor": Faulty("pair")}, "actor: expected one array, Faulty gives a tuple"),
    "flat": ({"actor": Faulty("flat")}, r"actor: .* shape \(2, 2\) for an input of shape \(2, 1\)"),
    "precision": ({"actor": Faulty("precision")}, "output in float32, Faulty gives bfloat16"),
    "weights": ({"actor": Faulty("weights")}, "parameters in float32, Faulty has bfloat16"),
    "error": ({"actor": Faulty("error")}, r"Faulty fails on an input of shape \(1,\): a fault"),
    "class": ({"actor": Skip}, r"PPO.actor: expected a module, got its class; write Skip\("),
    "kind": ({"critic": 3}, "PPO.critic: expected a module of flax.linen .* got int"),
    "list": ({"actor": networks.MLP([8], 2)}, r"PPO.actor: .* hashed, .* MLP with hidden = \[8\]"),
    "name": ({"actor": "small"}, "PPO.actor: unknown 'small'"),
    "several": ([{"actor": Skip(2)}, {"actor": Skip(2, 5)}], "actor decides shapes and cannot"),
}


@pytest.mark.parametrize("case", LINES)
def test_what_no_learner_can_take_is_one_line(case, monkeypatch):
    """Said before anything is compiled."""
    monkeypatch.setattr(agents.training.memory_budget, "estimate", None)  # which compiles
    given, line = LINES[case]
    several = isinstance(given, list)
    h = [SMALL | one for one in given] if several else SMALL | given
    with pytest.raises(InputError, match=line) as error:
        agents.train("ppo", ToyParams(), KEY, env=Toy(), hyperparameters=h, num_seeds=None)
    assert "\n" not in str(error.value)


def test_actors_of_sac_and_critics_of_actions_have_widths_of_their_own():
    h = hyperparameters(sac.SAC, LEARNERS["sac"] | {"actor": Skip(2)})
    with pytest.raises(
        InputError, match=r"actor: .* shape \(\.\.\., 4\), Skip gives \(\.\.\., 2\)"
    ):
        off_policy.networks(sac.METHOD, Toy(), ToyParams(), h)
    h = hyperparameters(ddpg.DDPG, LEARNERS["ddpg"] | {"critic": Skip(1)})
    critic = off_policy.networks(ddpg.METHOD, Toy(), ToyParams(), h).critic
    assert critic == Skip(1)  # as it is: values of off-policy critics have no scale that moves


def wide(outputs):
    return Skip(outputs, 6)


@pytest.fixture
def named(monkeypatch):
    """Two networks of a package, as entry points, and three that are of no use."""
    entries = [
        Entry("skip", Skip),
        Entry("wide", wide),
        Entry("number", 3),
        Entry("text", str),
        Entry("lists", lambda outputs: networks.MLP([8], outputs)),
    ]
    monkeypatch.setattr(importlib.metadata, "entry_points", lambda group: entries)
    with pytest.warns(plugins.PluginWarning) as caught:
        found = plugins.load("cojax.networks", own_networks.problem, {})
    monkeypatch.setattr(own_networks, "NETWORKS", found)
    return found, sorted(str(warning.message) for warning in caught)


def test_networks_of_plugins(named):
    found, messages = named
    assert found == {"skip": Skip, "wide": wide}
    assert "lists = somewhere:lists is left out: expected fields that" in messages[0]
    assert "number is left out: expected a function of the number of outputs" in messages[1]
    assert "text is left out: expected a module of flax.linen, got '1'" in messages[2]
    assert not any("\n" in message for message in messages)
    run = trained("sac", timesteps=64, actor="wide", critic="skip")
    assert run.policy.apply.network == Skip(4, 6)
    assert run.critic(seed=0).apply.network == Skip(1)
    with pytest.raises(InputError, match=r"SAC.actor: unknown 'wild'; did you mean 'wide'"):
        trained("sac", actor="wild")


def test_studies_name_their_networks(named):
    """In a file, and in the space of a sweep; a module is no text."""
    learner = {"name": "ppo", "hyperparameters": {"actor": "wide"}}
    content = {"schema": "cojax.train/1", "fixtures": ["x"], "algorithm": learner}
    assert study(study(content).content()).algorithms[0].hyperparameters == {"actor": "wide"}
    space = {"critic": ["skip", "wide", None]}
    content = {"schema": "cojax.sweep/1", "fixtures": ["x"], "algorithms": [learner]}
    learner["space"] = space
    swept = study(content)
    settings = swept.settings(swept.algorithms[0])
    assert settings == [{"critic": "skip"}, {"critic": "wide"}, {"critic": None}]
    learner["space"] = {"critic": ["skip", "wode"]}
    with pytest.raises(InputError, match=r"space.critic: .* unknown 'wode'; did you mean 'wide'"):
        study(content)
    learner |= {"space": {}, "hyperparameters": {"actor": Skip(2)}}
    with pytest.raises(InputError, match=r"ppo: actor: a study is a file; .* got a Skip"):
        study(content)


def test_a_checkpoint_of_another_network_is_refused_in_one_line(tmp_path):
    def go(actor):
        agents.train(
            "ppo", ToyParams(), KEY, env=Toy(), hyperparameters=SMALL | {"actor": actor},
            num_seeds=None, total_timesteps=32, checkpoint_dir=tmp_path,
        )  # fmt: skip

    go(Skip(2))
    go(Skip(2))
    with pytest.raises(InputError, match=r"shapes: expected .*Skip\(out=2, width=4, .*tanh") as e:
        go(Skip(2, phi=nn.relu))
    assert "\n" not in str(e.value)


def test_a_network_is_described_in_one_line_without_addresses():
    told = own_networks.describe(Skip(2, phi=nn.relu))
    assert told == f"{__name__}:Skip(out=2, width=4, phi=jax._src.nn.functions:relu)"
    assert " at 0x" not in own_networks.describe(Same(1, 1.0, nn.PReLU()))
