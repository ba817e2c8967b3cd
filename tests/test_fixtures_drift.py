"""Fixtures of given drifts, with all actions or a list: what files state, what is refused."""

from __future__ import annotations

import dataclasses
import re

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from chex import assert_trees_all_equal
from helpers import run, scope

import cojax
from cojax import families, inputs
from cojax.action_lists import grid
from cojax.consistency import contradiction
from cojax.envs import ConverseEnv, Discrete, env_params
from cojax.errors import InputError
from cojax.families import ConverseArm, Pendulums
from cojax.fixtures import (
    batches,
    descent,
    generate,
    load_fixture,
    make_fixture,
    pointwise,
    query,
    samples,
    save_fixture,
)
from cojax.fixtures.certify import certify_many
from cojax.fixtures.drifts import rounded
from cojax.fixtures.fixture import Fixture, from_content

TORQUES = grid(5, 2.0)
OPTIONS = {"all": {"n": 1, "gravity": -6.0, "stiffness": 0.0, "R": 0.005},
           "list": {"n": 1, "actions": TORQUES}}  # fmt: skip
COLUMNS = np.zeros((2, 4, 4))
COLUMNS[0, 1, 0] = COLUMNS[1, 3, 2] = COLUMNS[1, 3, 0] = 0.3


def pendulum(kind: str = "list", **changes) -> Fixture:
    options = {**OPTIONS[kind], "id": f"one-{kind}", "certify": False} | changes
    return make_fixture("Pendulums", **options)


@pytest.fixture(scope="module")
def certified() -> dict[str, Fixture]:
    made = certify_many([pendulum(kind) for kind in OPTIONS])
    return dict(zip(OPTIONS, made, strict=True))


@pytest.fixture(scope="module")
def listed_file(certified, tmp_path_factory) -> str:
    path = tmp_path_factory.mktemp("drift") / "one-list.yaml"
    save_fixture(certified["list"], path)
    return str(path)


# --- what a file states ---------------------------------------------------------------------------


@pytest.mark.parametrize("kind", OPTIONS)
def test_it_is_certified_and_its_file_reads_back(certified, kind, tmp_path):
    fixture = certified[kind]
    assert fixture.certificate.passed, fixture.certificate.failures
    checks, measured = fixture.certificate.checks, fixture.difficulty.measured
    assert "proven at the corners" in checks["transversality"].note
    assert checks["transversality"].value == pytest.approx(fixture.Q.by, rel=1e-3)
    assert checks["mean_square_bounded"].value == pytest.approx(
        (1.0 - fixture.Q.by) / fixture.gamma, rel=1e-3
    )
    assert checks["descent_reaches"].value < 1e-6
    assert 1e-5 < measured["median_gap_lqr"] < measured["median_gap_zero_policy"]
    assert (measured["open_loop_radius"] > 1.0) == (kind == "all")  # on its head
    path = tmp_path / f"{fixture.id}.yaml"
    save_fixture(fixture, path)
    back = load_fixture(path)
    assert back == fixture
    assert_trees_all_equal(back.system(np.float32), fixture.system(np.float32))


@pytest.mark.parametrize("kind", OPTIONS)
def test_it_is_the_system_that_a_user_builds(kind):
    fixture = pendulum(kind)
    for dtype in (np.float32, np.float64):
        with scope(np.dtype(dtype).name):
            ours, built = fixture.system(dtype), Pendulums.build(**OPTIONS[kind], dtype=dtype)
        assert_trees_all_equal(ours, built)
        assert {leaf.dtype for leaf in jax.tree.leaves(ours)} == {np.dtype(dtype)}
    share = float(built.share)
    assert share * (1.0 - 1e-4) < fixture.Q.by < share
    assert fixture.make_params(dtype=np.float32).clip_actions == (kind == "list")


def test_a_share_is_rounded_down():
    for share in np.random.default_rng(0).uniform(1e-3, 1.0, 200):
        assert share * (1.0 - 1e-5 - 1e-8) < rounded(float(share)) < share


def test_lists_are_stated_in_three_ways_alike():
    named = pendulum(actions=None, action_limit={"kind": "list", "actions": TORQUES[:, 0].tolist()})
    assert named == pendulum()
    with scope("float64"):
        built = Pendulums.build(**OPTIONS["list"], dtype=np.float64)
    assert (
        cojax.fixtures.from_system(
            built, id="one-list", certify=False, horizon=200, Sigma=[0.0, 1e-3]
        )
        == pendulum()
    )
    assert str(pendulum().action_limit) == "list of 5, certified"
    np.testing.assert_array_equal(pendulum().action_box, [2.0])


def test_what_is_left_follows_changes():
    fixture = pendulum()
    shorter = fixture.with_changes(gamma=0.9)
    assert shorter.Q.by == pytest.approx(1.0 - 0.9 / 0.95 * (1.0 - fixture.Q.by), rel=1e-4)
    assert fixture.with_changes(horizon=7).Q == fixture.Q
    less = fixture.with_changes(Q={"scale": "P", "by": 0.05})
    assert less.Q.by == 0.05
    assert less.problem != fixture.problem
    free = fixture.with_changes(action_limit=None)
    assert free.system(np.float32).actions is None
    assert free.Q.by > fixture.Q.by  # torques of all sizes pay for more of the drift
    with pytest.raises(InputError, match=r"drift: expected to leave q >= 0\.001 sᵀP s, got -"):
        fixture.with_changes(gravity=9.0)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"action_limit": {"kind": "list", "actions": [[1.0], [-1.0]]}},
         "action_limit.actions: expected 0 among them"),
        ({"action_limit": {"kind": "list", "actions": [[0.0, 1.0], [0.0, 0.0]]}},
         "action_limit.actions: expected at least two of 1 finite numbers each, got shape (2, 2)"),
        ({"action_limit": {"kind": "list", "actions": [[0.0], ["much"]]}},
         "action_limit.actions[1][0]: expected a finite number, got 'much'"),
        ({"action_limit": {"kind": "list", "actions": 3.0}},
         "action_limit.actions: expected a list of actions, got 3.0"),
        ({"action_limit": {"kind": "list", "bound": 3.0}}, "action_limit: unknown 'bound'"),
        ({"action_limit": {"kind": "list"}}, "action_limit.actions: expected this field, got"),
        ({"action_limit": {"kind": "box", "bound": 1.0}},
         "action_limit: expected a list, a box that is declared or null"),
        ({"Q": {"scale": "P", "by": 0.5}}, "drift: expected to leave q >= 0.5 sᵀP s, got 0.07"),
        ({"Q": {"scale": "P", "by": 0.0}}, "matrices.Q.by: expected a number in (0, 1), got 0"),
        ({"Q": {"diag": [0.1, 0.1]}}, "matrices.Q: expected {scale: P, by: β}"),
        ({"P": {"diag": [1.0, 1.0, 1.0]}}, "matrices.P.diag: expected 2 numbers"),
        ({"parameterization": "sqrt"}, "parameterization: expected metric, got sqrt"),
        ({"noise": {"model": "gaussian", "on_state": 0.1}}, "noise.on_state: expected none"),
        ({"noise": {"model": "gaussian", "on_action": 0.1}}, "noise.on_action: expected none"),
        ({"extension": {"kind": "delay"}}, "extension: expected none beside a drift"),
        ({"value": {"terms": []}}, "value: expected none beside a drift that is given, Pendulums"),
        ({"control_cost": {"kind": "saturating"}}, "control_cost: expected none beside a drift"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused_in_one_line(changes, said):
    content = pendulum().content()
    for name, value in changes.items():
        (content["matrices"] if name in ("P", "Q") else content)[name] = value
    with pytest.raises(InputError, match=r"^" + re.escape(said)):
        from_content(content)


def test_other_families_have_no_list_and_the_generator_no_drift():
    arm = make_fixture("ConverseArm", id="arm", n=1, p=0.8, certify=False).content()
    arm["action_limit"] = {"kind": "list", "actions": [[0.0], [1.0]]}
    with pytest.raises(InputError, match=r"^action_limit: expected a list for a family of given"):
        from_content(arm)
    with pytest.raises(InputError, match=r"^family: Pendulums gives its drift, and is not drawn"):
        generate("Pendulums")
    with pytest.raises(InputError, match=r"gives its drift, and has no base"):
        pendulum().base()
    with pytest.raises(InputError, match=r"^family Pendulums: the name is taken"):
        families.register(type("Mine", (ConverseArm,), {"family": "Pendulums"}))


# --- what is checked ------------------------------------------------------------------------------


def broken(fixture: Fixture, **factors: float) -> tuple[batches.Batch, samples.Samples]:
    """A batch of the fixture in which leaves are multiplied."""
    batch = next(batches.batches([fixture]))[1]
    system = batch.double.system
    leaves = {name: factor * getattr(system, name) for name, factor in factors.items()}
    system = inputs.swapped(system, **leaves)
    double = inputs.swapped(batch.double, system=system)
    return dataclasses.replace(batch, double=double), samples.draw(batch)


def test_sequences_of_listed_actions_find_a_value_that_is_too_high():
    """Against J of each sequence on its own in NumPy; with prices doubled V* is too high."""
    batch, drawn = broken(pendulum())
    with scope("float64"):
        right = descent.enumerate_batch(batch.double, drawn.starts)
        wrong = descent.enumerate_batch(broken(pendulum(), prices=2.0)[0].double, drawn.starts)
    assert abs(float(right.lowest[0])) < 1e-14
    assert abs(float(right.reached[0])) < 1e-14 < float(right.start[0])
    assert float(wrong.lowest[0]) < -1e-4
    assert [descent.steps_ahead(k) for k in (2, 5, 9, 25, 20000)] == [6, 6, 4, 3, 1]
    assert 5**6 <= descent.SEQUENCES < 9**5


def test_all_listed_actions_are_compared_at_a_state():
    """An action that is not the best of the list, and an advantage that is not its, are found."""
    found = {}
    for name, factors in {"right": {}, "chosen": {"prices": 2.0}, "curved": {"B": 1.5}}.items():
        batch, drawn = broken(pendulum(), **factors)
        delta = samples.normals((drawn.test.shape[1], 1), 0)
        with scope("float64"):
            found[name] = pointwise.at_states_batch(
                batch.double, drawn.test, drawn.reference, delta
            )
    assert float(found["right"].stationarity[0]) < 1e-14
    assert float(found["right"].advantage[0]) < 1e-14
    assert float(found["chosen"].stationarity[0]) > 1e-4
    assert float(found["curved"].advantage[0]) > 1e-4


def test_leaves_that_disagree_are_found():
    for kind in OPTIONS:
        fixture = pendulum(kind)
        system, law = fixture.system(np.float32), fixture.initial_law(np.float32)
        assert contradiction(system) is None
        assert contradiction(jax.tree.map(lambda x: jnp.stack([x, x]), system)) is None
        derived = {"pull", "B", "spent", "offset", "gain" if kind == "all" else "prices"}
        for name in derived:
            other = inputs.swapped(system, **{name: 1.001 * getattr(system, name)})
            assert contradiction(other) is not None, name
        with pytest.raises(InputError, match=r"system\.pull: .*use cojax\.free_drift\.build"):
            env_params(inputs.swapped(system, p=0.9 * system.p), law)


def test_fixtures_of_one_shape_are_stacked():
    several = [pendulum(), pendulum(damping=1.5, id="other")]
    batch = batches.stack_fixtures(several)
    for i, fixture in enumerate(several):
        own = jax.tree.map(lambda leaf, i=i: np.asarray(leaf)[i], batch.system)
        assert_trees_all_equal(
            own, jax.tree.map(np.asarray, fixture.make_params(dtype=np.float32).system)
        )
    with pytest.raises(InputError, match=r"stack: number 1"):
        batches.stack_fixtures([pendulum(), pendulum("all")])


# --- what is done with it -------------------------------------------------------------------------


@pytest.mark.parametrize("kind", OPTIONS)
def test_the_oracle_has_no_gap_and_the_zero_policy_has_one(certified, kind):
    found = cojax.evaluate(["oracle", "zero"], certified[kind], num_trials=16, num_steps=40)
    gap = found.trials["suboptimality"]
    assert (gap[0, 0] == 0.0).all()
    assert (gap[0, 1] >= 0.0).all()
    assert (gap[0, 1] > 0.0).mean() > 0.9  # of a list doing nothing may be the best all along


def test_whole_numbers_are_played_by_name_and_have_an_exact_gap(listed_file):
    """Σ γᵏ A* against the coupled difference of costs, of a policy that draws indices."""
    env, params = cojax.make(listed_file)
    assert isinstance(env, Discrete)
    assert isinstance(cojax.make("point-mass")[0], ConverseEnv)
    host = gymnasium.make("cojax/Fixture-v0", name=listed_file)
    assert host.action_space == gymnasium.spaces.Discrete(5)
    host.reset(seed=0)
    indices = np.random.default_rng(0)
    steps = [host.step(indices.integers(5)) for _ in range(20)]
    assert all(host.observation_space.contains(obs) and reward < 0.0 for obs, reward, *_ in steps)

    drawn = np.random.default_rng(1)
    found = cojax.evaluate(
        {"indices": lambda obs: int(drawn.integers(5))}, params, 128, num_steps=60
    )
    gap = found.trials["suboptimality"][0][0]
    difference = found.trials["coupled_regret"][0][0] - gap
    assert (gap > 0.0).all()
    assert abs(difference.mean()) < 4.0 * difference.std() / np.sqrt(len(difference))
    assert difference.std() < 0.5 * gap.mean() * np.sqrt(len(gap))


def test_the_oracle_answers_for_the_action_that_is_played():
    problem = query.Problem(pendulum(), np.float64)
    row = problem.row("x", {"s": np.array([1.0, 0.5]), "a": np.array([0.7])})
    assert row["applied"] == [1.0]
    assert row["clipped"] is True
    assert row["action"][0] in TORQUES


def test_the_command_line_shows_a_list(listed_file):
    status, out, _ = run("show", listed_file)
    assert status == 0
    assert "action limit list of 5 actions, known to V*" in out


# --- columns of noise -----------------------------------------------------------------------------


def test_a_file_states_columns_of_noise(tmp_path):
    options = {"n": 2, "p": 0.8, "Sigma": np.tile([0.0, 1e-4], 2)}
    noise = {"model": "gaussian", "on_state_columns": COLUMNS.tolist()}
    fixture = make_fixture("ConverseArm", id="shaken", certify=False, noise=noise, **options)
    save_fixture(fixture, tmp_path / "shaken.yaml")
    assert load_fixture(tmp_path / "shaken.yaml") == fixture
    with scope("float64"):
        built = ConverseArm.build(**options, state_columns=COLUMNS, dtype=np.float64)
        assert_trees_all_equal(fixture.system(np.float64), built)
    for columns, said in (
        (COLUMNS[:, :3], "state_columns: expected finite numbers of shape (J, 4, 4)"),
        (10.0 * COLUMNS, "state_columns: expected P - Q - γ Σ DᵀP D ⪰ 0"),
    ):
        with pytest.raises(InputError, match=re.escape(said)):
            fixture.with_changes(noise={**noise, "on_state_columns": columns.tolist()})
    for ragged in ([], [[[1.0], [1.0, 2.0]]]):
        with pytest.raises(InputError, match=r"noise.on_state_columns: expected J matrices"):
            fixture.with_changes(noise={**noise, "on_state_columns": ragged})
    assert "on_state_columns = 2 matrices" in run("show", str(tmp_path / "shaken.yaml"))[1]
