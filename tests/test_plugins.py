"""Families of one's own: written, registered, found by entry points; and controllers."""

import dataclasses
import importlib.metadata
import importlib.util
from pathlib import Path
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from agents_toy import Toy, ToyParams
from flax import struct

import cojax
from cojax import families, plugins, quadratic
from cojax.agents import contract, off_policy, on_policy, ppo, td3
from cojax.errors import InputError
from cojax.evaluation import lqr_gain
from cojax.experiments import run_experiment
from cojax.fixtures.validator import validate_many
from cojax.initial import InitialLaw
from cojax.linalg import rotate
from cojax.studies import study
from cojax.sweeps import run_sweep, sweep


@struct.dataclass
class Sector(InitialLaw):
    """s_0 = size · centre · (1 + U), a law that no other family has; dt is not of the file."""

    size: jax.Array
    centre: jax.Array
    dt: float = struct.field(pytree_node=False)

    limits: ClassVar = {"size": (0.0, 10.0)}

    def sample(self, key):
        return self.size * self.centre * (1.0 + jax.random.uniform(key, ()))


@struct.dataclass
class Spinner(quadratic.Geometry):
    """A wheel: s = [angle, speed], one torque; S turns by gain · tanh(speed)."""

    gain: float = 0.3
    dt: float = 0.3

    family = "Spinner"
    dimensions = ()
    gains = ("gain",)
    positive = ("dt",)
    ranges: ClassVar = {"p": {"uniform": [0.6, 1.0]}, "gain": {"uniform": [0.0, 0.4]}}
    horizon = 20
    constant_input = True
    one_row_each = True

    @property
    def state_dim(self):
        return 2

    @property
    def action_dim(self):
        return 1

    def actuate(self, s, a):
        return jnp.stack([jnp.zeros_like(a[0]), self.dt * a[0]])

    def actuate_transpose(self, s, v):
        return self.dt * v[1:]

    def rotate(self, s, x, p):
        return jnp.stack(rotate(x[0], x[1], self.gain * jnp.tanh(s[1])))

    def input_norm(self):
        return abs(float(self.dt))

    def noise_order(self):
        return (1, 0)

    def initial_law(self, dtype=None):
        return Sector(jnp.asarray(1.0, dtype), jnp.full(2, 0.5, dtype), float(self.dt))

    @classmethod
    def defaults(cls, **sizes):
        return {"P": (1.0, 0.5), "R": 0.05, "gamma": 0.95, "Sigma": 1e-4}

    def picture(self):
        return "phase plane", {}


@pytest.fixture
def spinner():
    families.register(Spinner)
    yield Spinner
    del families.FAMILIES["Spinner"]


LEARNER = {"name": "ppo", "hyperparameters": {
    "num_envs": 4, "num_steps": 8, "num_minibatches": 2, "hidden": [8]}}  # fmt: skip
SHORT = {
    "algorithms": [LEARNER], "num_seeds": 1, "total_timesteps": 64,
    "curve": {"num_trials": 2, "points": 2},
}  # fmt: skip


def test_a_family_of_ones_own_goes_all_the_way(spinner, tmp_path):
    """Made by name, generated, stored, validated, trained, evaluated, reported and swept."""
    env, params = cojax.make("Spinner-v0", p=0.8)
    assert "Spinner-v0" in cojax.registered()
    assert env.reset(cojax.streams.root_key(0), params)[0].shape == (2,)
    ranges = {"R": {"uniform": [0.02, 0.1]}}
    made = cojax.fixtures.generate("Spinner", 3, seed=1, ranges=ranges)
    assert len({(f.p, f.knobs["gain"], float(f.R[0])) for f in made}) == 3
    assert all(0.6 <= f.p <= 1.0 and f.knobs["gain"] <= 0.4 for f in made)
    names = [str(tmp_path / f"{fixture.id}.yaml") for fixture in made]
    for fixture, name in zip(made, names, strict=True):
        cojax.fixtures.save_fixture(fixture, name)
        again = cojax.fixtures.load_fixture(name)
        assert again.sha256 == fixture.sha256
        law = again.params.initial_state
        assert (type(law), law.dt, law.size.dtype) == (Sector, 0.3, "float32")
    assert [c.failures for c in validate_many(names, fixed=True)] == [[], [], []]

    experiment = {
        "schema": "cojax.experiment/1", "name": "own", "fixtures": names[:2], **SHORT,
        "evaluation": {"policies": ["oracle", "zero"], "num_trials": 4},
    }  # fmt: skip
    outcome = run_experiment(study(experiment), tmp_path / "out")
    gaps = {(row["policy"], row["fixture"]): row["suboptimality"]["mean"] for row in outcome.rows}
    assert [gaps["oracle", f.id] for f in made[:2]] == [0.0, 0.0]
    assert min(gaps["zero", f.id] for f in made[:2]) > 0.01
    assert len(outcome.rows) == 2 * 3
    assert "Spinner" in (tmp_path / "out" / "report.html").read_text("utf-8")

    drawn = {"family": "Spinner", "num": 1, "seed": 1, "ranges": ranges}
    swept = run_sweep(
        sweep({"schema": "cojax.sweep/1", "name": "own", "generate": drawn, **SHORT,
               "evaluation": {"num_trials": 4}}),
        tmp_path / "swept",
    )  # fmt: skip
    assert [row["fixture"] for row in swept.rows] == [made[0].id]
    assert cojax.fixtures.load_fixture(next((tmp_path / "swept" / "fixtures").iterdir())) == made[0]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"initial_state": {"law": "sector", "size": -1.0}}, "initial_state.size: .* in .0, 10"),
        ({"initial_state": {"law": "sector", "centre": [1.0]}}, "initial_state.centre: .* shape"),
        ({"initial_state": {"law": "sector", "sise": 1.0}}, "sise: unknown field; .* 'size'"),
        ({"initial_state": {"law": "ring"}}, "initial_state.law: .*, sector, got 'ring'"),
        ({"dt": -1.0}, r"knobs.dt: expected a number in \(0"),
        ({"rho_target": 1.0}, "unknown 'rho_target'"),
    ],
)
def test_what_a_file_states_wrongly_of_it_is_one_line(spinner, change, message):
    fixture = cojax.fixtures.make_fixture("Spinner", id="spinner", certify=False)
    assert fixture.initial_state.model_dump() == {
        "law": "sector", "size": 1.0, "centre": [0.5, 0.5]
    }  # fmt: skip
    half = fixture.with_changes(initial_state={"law": "sector", "size": 0.5})
    law = half.make_params().initial_state
    assert law.size == 0.5
    np.testing.assert_array_equal(law.centre, [0.5, 0.5])
    with pytest.raises(ValueError, match=message) as error:
        fixture.with_changes(**change)
    assert "\n" not in str(error.value)


def test_arguments_of_the_one_build(spinner):
    system = Spinner.build(0.7, gain=0.1)
    assert (float(system.p), float(system.geometry.gain)) == pytest.approx((0.7, 0.1))
    np.testing.assert_allclose(system.Q, [0.5, 0.25])
    with pytest.raises(ValueError, match=r"Spinner\.build: unknown 'gian'; did you mean 'gain'"):
        Spinner.build(gian=1.0)
    with pytest.raises(ValueError, match="build: expected at most p without a name, got 2"):
        Spinner.build(0.7, 0.2)
    with pytest.raises(ValueError, match="family Bare: expected a default for every knob"):
        families.register(
            dataclasses.make_dataclass("Bare", ["size"], bases=(Spinner,),
                                       namespace={"family": "Bare"}, kw_only=True, frozen=True)
        )  # fmt: skip


def test_controllers_of_every_kind_agree(spinner):
    params = cojax.make("Spinner-v0", p=0.8, action_limit=None)[1]
    K = lqr_gain(params.system)

    class Controller:
        def predict(self, obs):
            return -obs @ K.T

    policies = {
        "function": lambda s: -K @ s,
        "predict": Controller(),
        "jax": lambda obs, key: -jnp.asarray(K, jnp.float32) @ obs,
        "lqr": "lqr",
    }
    if importlib.util.find_spec("torch"):
        import torch

        module = torch.nn.Sequential(torch.nn.Linear(2, 1, bias=False), torch.nn.Dropout(0.5))
        with torch.no_grad():
            module[0].weight.copy_(torch.from_numpy(-K))
        policies["torch"] = module
    gaps = cojax.evaluate(policies, params, 4).trials["suboptimality"][0]
    for gap in gaps[1:]:
        np.testing.assert_allclose(gap, gaps[0], rtol=1e-3, atol=1e-9)
    if "torch" in policies:
        assert module.training  # the mode is left as it was


class Entry:
    """What importlib.metadata gives for an installed plug-in."""

    def __init__(self, name, value):
        self.name, self.value, self.object = name, f"somewhere:{name}", value

    def load(self):
        if isinstance(self.object, Exception):
            raise self.object
        return self.object


def test_plugins_are_found_and_bad_ones_are_one_line(monkeypatch):
    class NoFamily:
        pass

    entries = [
        Entry("Spinner", Spinner),
        Entry("Bad", NoFamily),
        Entry("Other", Spinner),
        Entry("Broken", ImportError("no module named nothing\nmore")),
        Entry("NVDEx", type("Mine", (families.NVDEx,), {})),
    ]
    monkeypatch.setattr(importlib.metadata, "entry_points", lambda group: entries)
    with pytest.warns(plugins.PluginWarning) as caught:
        found = plugins.load("cojax.families", families.problem, families.FAMILIES)
    assert found == {"Spinner": Spinner}
    messages = [str(warning.message) for warning in caught]
    assert all("\n" not in message for message in messages)
    for words in (
        "Bad = somewhere:Bad is left out: expected a subclass of cojax.quadratic.Geometry",
        "it fails with ImportError: no module named nothing",
        "NVDEx = somewhere:NVDEx is left out: the name is taken",
        "Other = somewhere:Other is left out: expected family = 'Other', got 'Spinner'",
    ):
        assert any(words in message for message in messages)
    assert plugins.names("cojax.families") == ["Bad", "Broken", "NVDEx", "Other", "Spinner"]


def test_what_is_no_family_is_refused():
    class Unfinished(quadratic.Geometry):
        family = "Unfinished"

    with pytest.raises(ValueError, match="family Unfinished: expected methods action_dim, actuate"):
        families.register(Unfinished)
    stranger = type("Stranger", (Spinner,), {"family": "NVDEx"})
    with pytest.raises(ValueError, match="family NVDEx: the name is taken"):
        families.register(stranger)


def test_algorithms_of_plugins(monkeypatch):
    ppo = cojax.agents.ALGORITHMS["ppo"]
    mine = dataclasses.replace(ppo, name="mine")
    entries = [Entry("mine", mine), Entry("yours", mine), Entry("none", 3), Entry("ppo", ppo)]
    monkeypatch.setattr(importlib.metadata, "entry_points", lambda group: entries)
    with pytest.warns(plugins.PluginWarning) as caught:
        found = plugins.load("cojax.algorithms", contract.problem, cojax.agents.ALGORITHMS)
    assert found == {"mine": mine}
    messages = sorted(str(warning.message) for warning in caught)
    assert "none = somewhere:none is left out: expected a cojax.agents" in messages[0]
    assert "yours is left out: expected name = 'yours', got 'mine'" in messages[1]
    with pytest.warns(plugins.PluginWarning):
        importlib.reload(cojax.agents)
    assert cojax.agents.ALGORITHMS.pop("mine") is mine


def half_square(params):
    """A loss whose gradient is the parameters themselves."""
    return 0.5 * sum(jnp.sum(x**2) for x in jax.tree.leaves(params))


def own_algorithm(kind):
    if kind == "on-policy":
        return on_policy.make("own", ppo.PPO, lambda params, *_: (half_square(params), {}))
    method = dataclasses.replace(
        td3.METHOD, actor_loss=lambda actor, *_, h: (half_square(actor), {}), smallest=True
    )
    return off_policy.make("own", td3.TD3, method)


@pytest.mark.parametrize("kind", ["on-policy", "off-policy"])
def test_algorithms_of_ones_own_have_a_critic_and_a_gradient(kind, monkeypatch):
    spec = own_algorithm(kind)
    monkeypatch.setitem(cojax.agents.ALGORITHMS, "own", spec)
    h = {"num_envs": 2, "num_steps": 8, "hidden": (4,)}
    if kind == "off-policy":
        h |= {"learning_starts": 16, "buffer_size": 64, "batch_size": 4, "gradient_steps": 2}
    key = jax.random.key(0, impl="threefry2x32")
    arguments = {"hyperparameters": h, "num_seeds": 2, "total_timesteps": 48}
    run = cojax.train("own", ToyParams(), key, env=Toy(), **arguments)
    agent = run.agent(seed=1)
    gradients = agent.gradients(Toy(), ToyParams(), key, 3)
    for x, g in zip(*map(jax.tree.leaves, (agent.actor, gradients)), strict=True):
        np.testing.assert_array_equal(g, np.broadcast_to(x, (3, *x.shape)))
    obs = (jnp.ones(1),) if kind == "on-policy" else (jnp.ones(1), jnp.zeros(2))
    assert float(run.critic(seed=1)(*obs)) == float(agent.critic(*obs)) != 0.0
    assert agent.critic.apply.smallest == (kind == "off-policy")
    for part, ask in (("critic", run.critic), ("actor_gradients", run.agent)):
        monkeypatch.setitem(
            cojax.agents.ALGORITHMS, "own", dataclasses.replace(spec, **{part: None})
        )
        with pytest.raises(InputError, match=f"^run: the algorithm 'own' gives no {part}$"):
            ask(seed=1)


def test_our_algorithms_are_named_where_nothing_is_imported():
    agents = Path(cojax.agents.__file__).parent
    ours = {
        path.stem for path in agents.glob("*.py") if "\nALGORITHM = " in path.read_text("utf-8")
    }
    ours |= {
        path.stem for path in agents.glob("*.py") if "\nALGORITHM: " in path.read_text("utf-8")
    }
    assert set(plugins.ALGORITHMS) == ours
    assert ours <= set(cojax.agents.ALGORITHMS)
