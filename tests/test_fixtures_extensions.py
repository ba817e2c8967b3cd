"""Fixtures with an extension: what files state, what is made of it, what is refused."""

from __future__ import annotations

import dataclasses
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from chex import assert_trees_all_equal
from helpers import scope

import cojax
from cojax import (
    average_cost,
    delay,
    disturbance,
    games,
    inputs,
    markov_jump,
    memory,
    quadratic,
    termination,
)
from cojax.errors import InputError
from cojax.fixtures import batches, load_fixture, make_fixture, margins, samples, save_fixture
from cojax.fixtures.certify import certify_many
from cojax.fixtures.fixture import Fixture, from_content

ARM = {"n": 2, "p": 0.8, "seed": 7}
EFFECT = [[0.0], [0.05], [0.0], [0.03]]
PI = [[0.96875, 0.03125], [0.125, 0.875]]
MODES = [{}, {"p": 0.3, "R": 4.0, "g0": 0.2}]
STATED = {
    "action-rate": {"D": 4.0},
    "delay": {},
    "disturbance": {"rho": 0.9, "Sigma_z": 0.01, "effect": EFFECT},
    "markov-jump": {"transition": PI, "modes": MODES},
    "termination": {"least": 0.99, "weight": 0.5},
    "game": {"h": [[0.1], [0.0], [0.0], [0.2]], "Gamma": 10.0},
}
MADE = {  # of the base, by the functions that a user would call
    "action-rate": lambda s: memory.action_rate(s, 4.0),
    "delay": delay.delayed,
    "disturbance": lambda s: disturbance.disturbed(s, 0.9, 0.01, EFFECT),
    "termination": lambda s: termination.terminating(s, 0.99, 0.5),
    "markov-jump": lambda s: markov_jump.markov_jump(
        [quadratic.rebuild(s, **{k: np.asarray(v) for k, v in m.items()}) for m in MODES], PI
    ),
    "game": lambda s: games.game(s, h=STATED["game"]["h"], Gamma=10.0),
}


def arm(kind: str, **changes) -> Fixture:
    stated = {"kind": kind, **STATED[kind], **changes}
    return make_fixture("ConverseArm", id=f"an-{kind}", extension=stated, certify=False, **ARM)


@pytest.fixture(scope="module")
def certified() -> dict[str, Fixture]:
    return {f.extension.kind: f for f in certify_many([arm(kind) for kind in STATED])}


@pytest.mark.parametrize("kind", STATED)
def test_it_is_certified_and_its_file_reads_back(certified, kind, tmp_path):
    fixture = certified[kind]
    assert fixture.certificate.passed, fixture.certificate.failures
    checks = fixture.certificate.checks
    assert "least q/v" in checks["transversality"].note
    assert checks["descent_reaches"].value < 1e-5 < fixture.difficulty.measured["median_gap_lqr"]
    path = tmp_path / f"{fixture.id}.yaml"
    save_fixture(fixture, path)
    back = load_fixture(path)
    assert back == fixture
    assert back.extension == fixture.extension
    assert_trees_all_equal(back.system(np.float32), fixture.system(np.float32))


@pytest.mark.parametrize("kind", STATED)
def test_it_is_what_a_user_makes_of_the_base(kind):
    fixture = arm(kind)
    with scope("float64"):
        assert_trees_all_equal(fixture.system(np.float64), MADE[kind](fixture.base(np.float64)))
    single, base = fixture.system(np.float32), fixture.base(np.float32)
    assert_trees_all_equal(single.parts[0].geometry, base.geometry)
    assert {leaf.dtype.name for leaf in jax.tree.leaves(single)} == {"float32"}
    assert (single.state_dim, single.action_dim) == (fixture.state_dim, fixture.action_dim)
    law = fixture.initial_law(np.float32)
    alone = dataclasses.replace(fixture, id="x", certificate=None)
    assert law.sample(jax.random.key(0)).shape == (alone.state_dim,)


def test_the_last_digits_are_those_of_the_file():
    """Not of the base as it is in float32."""
    fixture = arm("delay")
    ours = fixture.system(np.float32)
    rounded = delay.delayed(fixture.base(np.float32))
    with scope("float64"):
        exact = fixture.system(np.float64)
    for name in ("forward", "gain", "effort"):
        want = np.asarray(getattr(exact, name)).astype(np.float32)
        np.testing.assert_array_equal(getattr(ours, name), want)
    assert any((getattr(ours, n) != getattr(rounded, n)).any() for n in ("forward", "gain"))


@pytest.mark.parametrize("kind", STATED)
def test_the_oracle_has_no_gap_and_the_zero_policy_has_one(certified, kind):
    found = cojax.evaluate(["oracle", "zero"], certified[kind], num_trials=16, num_steps=40)
    gap = found.trials["suboptimality"]
    assert (gap[0, 0] == 0.0).all()
    assert (gap[0, 1] > 0.0).all()


@pytest.mark.parametrize(
    ("kind", "changes", "said"),
    [
        ("action-rate", {"D": -1.0}, "D: expected numbers >= 0, got -1"),
        ("action-rate", {"E": 1.0}, "extension: unknown 'E' (known: D)"),
        ("action-rate", {"D": "much"}, "extension.D: input should be a valid number"),
        ("delay", {"steps": 2}, "steps: expected 1, with which V* is exact"),
        ("disturbance", {"rho": 1.0}, "rho[0]: expected a number in (-1, 1), got 1"),
        ("disturbance", {"effect": [[1.0]]}, "effect: expected finite numbers of shape (4, k)"),
        ("markov-jump", {"modes": [{}, {"Pi": 3}]}, "extension.modes[1]: unknown 'Pi'"),
        ("markov-jump", {"modes": [{}, {"n": 3}]}, "extension.modes[1]: unknown 'n'"),
        ("markov-jump", {"modes": [{}]}, "transition: expected finite numbers of shape (1, 1)"),
        ("markov-jump", {"modes": [{}, {"R": -1}]}, "extension.modes[1].R: expected"),
        ("game", {"Gamma": 1.0}, "Gamma: expected λ = γ sup λmax(Γ⁻¹hᵀP h) < β, where Q ⪰ βP, got"),
        ("game", {"h": "f"}, "h: unknown 'f' (known: g)"),
        ("game", {"h": [[1.0]]}, "h: expected finite numbers of shape (4, k), got (1, 1)"),
        ("markov-jump", {"transition": [[0.5, 0.6], [0, 1]]}, "transition: expected rows that sum"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(kind, changes, said):
    with pytest.raises(InputError, match=re.escape(said)) as error:
        arm(kind, **changes)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("stated", "said"),
    [
        (3, "extension: expected fields, got 3"),
        ({"kind": "dely"}, "extension.kind: unknown 'dely'; did you mean 'delay'?"),
        ({"kind": "action-rate"}, "extension.D: expected this field, got nothing"),
    ],
)
def test_an_extension_is_a_known_kind_with_its_fields(stated, said):
    content = arm("delay").content() | {"extension": stated}
    with pytest.raises(InputError, match=re.escape(said)):
        from_content(content)


def test_a_base_that_the_class_cannot_take_is_refused():
    with pytest.raises(InputError, match="expected a system without limit"):
        make_fixture(
            "ConverseArm", id="x", extension={"kind": "delay"}, certify=False, **ARM,
            action_limit={"kind": "box", "bound": 1.0},
        )  # fmt: skip


def test_a_long_average_cost_has_the_optimum_of_its_limit():
    """V* of step k is h + (T - k) λ*, with the action and the advantage of the limit."""
    stated = {"kind": "average-cost", "T": 32}
    fixture = make_fixture("ConverseArm", id="averaged", extension=stated, certify=False, **ARM)
    with scope("float64"):
        system = fixture.system(np.float64)
        base = fixture.with_changes(extension=None).system(np.float64)
        limit = average_cost.averaged(base)
        for k in (0, 7, 31):
            s = jnp.asarray(np.random.default_rng(k).uniform(-1.0, 1.0, 4))
            x, a = jnp.append(s, k / 32), jnp.array([0.3, -0.2])
            known = limit.value(s) + (32 - k) * limit.average
            np.testing.assert_allclose(system.value(x), known, rtol=1e-12)
            np.testing.assert_allclose(
                system.optimum(x).action, limit.optimum(s).action, rtol=1e-9, atol=1e-12
            )
            excess = cojax.oracle.advantage(limit, s, a)
            np.testing.assert_allclose(cojax.oracle.advantage(system, x, a), excess, rtol=1e-9)
    matrices = {"P": [2.0, 1.0, 2.0, 1.0], "Q": [1.0, 0.0, 1.0, 0.0]}
    with pytest.raises(InputError, match="Q: expected βP ⪯ Q with β > 0, got β = 0"):
        make_fixture("ConverseArm", id="x", extension=stated, certify=False, **ARM, **matrices)


def test_modes_follow_the_share_of_the_base():
    """Q of a mode that changes P alone is as much of it as in the base, where that is stated so."""
    P = {"diag": [2.0, 1.0, 3.0, 1.0]}
    fixture = arm("markov-jump", modes=[{}, {"P": P}])
    mode = fixture.system(np.float32).parts[1]
    np.testing.assert_allclose(mode.Q, fixture.Q.by * np.diag(P["diag"]), rtol=1e-6)


def test_a_value_that_costs_do_not_pay_for_is_found():
    """With P_z a tenth, V* is no longer paid for: q < 0 somewhere, and the margin says where."""
    batch = next(batches.batches([arm("disturbance")]))[1]
    drawn = samples.draw(batch)
    assert margins.margins(batch, drawn).least[0] > 0.01
    system = batch.double.system
    system = inputs.swapped(system, P_z=0.1 * system.P_z)
    broken = dataclasses.replace(batch, double=inputs.swapped(batch.double, system=system))
    found = margins.margins(broken, drawn)
    assert found.least[0] < 0.0
    s, z = found.state[0][:4], found.state[0][4]
    assert np.abs(s).max() > 0.0
    assert abs(z) > 0.0


def test_modes_are_sampled_as_modes(certified):
    """The grid of test states has one mode or the other, not parts of both."""
    batch = next(batches.batches([certified["markov-jump"]]))[1]
    modes = samples.draw(batch).test[0, :, 4:]
    assert set(map(tuple, modes)) == {(1.0, 0.0), (0.0, 1.0)}


def test_what_noise_adds_bounds_the_next_size():
    """E size(s') under π* against (size - least_cost)/γ + noise_power, by 4,000 draws."""
    for kind in STATED:
        with scope("float64"):
            fixture = arm(kind)
            system, law = fixture.system(np.float64), fixture.initial_law(np.float64)
            keys = jax.random.split(jax.random.key(1), 4000)
            drawn = jax.vmap(law.sample)(jax.random.split(jax.random.key(2), 4))
            drawn = drawn + 0.3 * jax.random.normal(jax.random.key(3), drawn.shape)
            for s in jax.vmap(system.project)(drawn):
                at = system.optimum(s)
                noise = jax.vmap(system.sample_noise, (None, 0, None))(s, keys, at.action)
                sizes = jax.vmap(system.size)(at.next_mean[None] + noise)
                most = (system.size(s) - system.least_cost(s)) / system.gamma + system.noise_power
                error = 4.0 * jnp.std(sizes) / np.sqrt(4000.0)
                assert jnp.mean(sizes) - error <= most, kind


def test_the_regulator_knows_a_price_on_the_rate():
    """A linear system with it is linear-quadratic, with a cross term: its LQR is the optimum."""
    priced = {"kind": "action-rate", "D": 0.5}
    fixture = make_fixture("DoubleIntegrator", id="smooth", extension=priced, certify=False)
    found = cojax.evaluate(["lqr", "zero"], fixture, num_trials=8, num_steps=30, names=["smooth"])
    lqr, zero = found.trials["relative_suboptimality"][0]
    assert lqr.max() < 1e-6 < 1e-2 < zero.min()
