"""Fixtures beyond quadratics: what files state, what the validator passes, what it refuses."""

from __future__ import annotations

import dataclasses
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import ARM

import cojax
from cojax import inputs, precision
from cojax.converse import Converse
from cojax.errors import InputError
from cojax.families.arm import authors_P
from cojax.fixtures import (
    Fixture,
    batches,
    descent,
    load_fixture,
    make_fixture,
    margins,
    pointwise,
    samples,
    save_fixture,
    store,
    validator,
)
from cojax.fixtures.certify import certify_many
from cojax.quadratic import QuadraticGaussian

WELLS = {"kind": "cosine", "weight": 3.0, "frequency": 2.5, "along": [1.0, 1.0]}
SOFT = {"kind": "soft-threshold", "mu": 0.3}


def one_joint(id: str, weight: float = 3.0, **changes) -> Fixture:
    P = authors_P(1, 7)
    options = {"p": 0.8, "P": P, "Q": 0.7 * P, "R": 2.0, "Sigma": 0.16, "control_cost": SOFT}
    value = {"terms": [{**WELLS, "weight": weight}]}
    return make_fixture(
        "ConverseArm", id=id, n=1, certify=False, value=value,
        **{**options, "action_limit": None, **changes},
    )  # fmt: skip


@pytest.fixture(scope="module")
def judged() -> dict[str, Fixture]:
    """A good one, and others of its shape each with one thing wrong."""
    made = [
        one_joint("good"),
        one_joint("too-deep", 9.0),
        one_joint("concave", R=0.3, control_cost={"kind": "soft-threshold", "mu": 0.01}),
    ]
    return {f.id: f for f in certify_many(made)}


def test_a_system_with_wells_and_a_sparse_optimum_is_certified(judged):
    certificate = judged["good"].certificate
    assert certificate.failures == []
    checks = certificate.checks
    assert checks["bellman_residual"].value < 1e-13
    assert 0.1 < checks["transversality"].value < 0.7
    assert "least q/v, of 4096 states on the domain" in checks["transversality"].note
    assert "for every action, by a bound below ∇²W" in checks["B_definite"].note
    assert 0.0 < checks["B_definite"].value < 1.0  # v is concave somewhere, and R outweighs it
    assert checks["mean_square_bounded"].note.startswith("E v(s') <= (1-β)/γ v(s)")
    share = checks["transversality"].value
    assert checks["mean_square_bounded"].value == pytest.approx((1.0 - share) / 0.99, rel=1e-3)
    measured = judged["good"].difficulty.measured
    assert measured["contraction"] == pytest.approx((1.0 - share) / 0.99, rel=1e-3)
    assert measured["median_gap_zero_policy"] > 0.05


def test_a_stage_cost_below_zero_is_refused_with_state_and_number(judged):
    """Doing as the oracle says would then pay for leaving: V* is not the optimal value."""
    fixture = judged["too-deep"]
    check = fixture.certificate.checks["transversality"]
    assert not fixture.certificate
    assert check.value < -0.1
    state = re.search(r"q/v at s = \[(.*)\], where v = ([\d.]+): q >= βv fails", check.note)
    assert state is not None
    s = np.array(state[1].split(","), float)
    with precision.x64():
        system = fixture.system(np.float64)
        v = float(system.value(s) - system.offset)
        q = float(system.stage_cost(s, np.zeros(1)))
    assert v == pytest.approx(float(state[2]), rel=0.05)
    assert q / v == pytest.approx(check.value, rel=0.1)
    assert any(line.startswith("transversality: -") for line in fixture.certificate.failures)


@pytest.mark.slow
def test_derive_refuses_with_the_check_and_its_number(judged):
    with pytest.raises(InputError, match=r"cannot be certified: B_definite: -1\.\d+, tolerance"):
        judged["good"].derive(value={"terms": [{**WELLS, "weight": 9.0}]})


def test_a_value_more_concave_than_the_cost_of_control_is_refused(judged):
    """There a* is a stationary point of Q*, and need not be the least one."""
    fixture = judged["concave"]
    check = fixture.certificate.checks["B_definite"]
    assert check.value < 0.0
    assert check.verdict == "fail"
    with precision.x64():
        system = fixture.system(np.float64)
        s = jnp.zeros(2)
        drift = system.optimum(s).drift
        a = jnp.linspace(-4.0, 4.0, 81)[:, None]

        def Q(a):
            z = drift + system.actuate(s, a)
            return system.stage_cost(s, a) + system.gamma * system.expected_value(s, z)

        smooth = jax.vmap(lambda x: Q(x) - 0.01 * jnp.abs(x).sum())
        bends = np.diff(np.asarray(smooth(a)), 2)
    assert bends.min() < 0.0  # as the certificate says, and by its own number at the least:
    assert bends.min() / 0.1**2 / 2.0 / 0.3 > check.value - 1e-6


def test_wrong_parts_are_found():
    """A wrong expectation, and a wrong reply: what is derived is checked against what it is for."""
    fixture = one_joint("x")
    batch = next(batches.batches([fixture]))[1]
    drawn = samples.draw(batch)
    delta = samples.normals((drawn.test.shape[1], 1), 0)
    double = batch.double
    term = double.system.terms[0]

    def found(**changes):
        params = inputs.swapped(double, system=inputs.swapped(double.system, **changes))
        return pointwise.at_states_batch(params, drawn.test, drawn.reference, delta)

    with precision.x64():
        good = found()
        decay = found(terms=(dataclasses.replace(term, decay=0.5 * term.decay),))
        reply = found(R_inverse=1.01 * double.system.R_inverse)
        good, decay, reply = jax.device_get((good, decay, reply))
    assert good.noise[0] < validator.NOISE_TOLERANCE < decay.noise[0]
    assert good.stationarity[0] < 1e-12
    assert good.advantage[0] < 1e-12
    assert reply.advantage[0] > 1e-6


def test_gradient_descent_keeps_to_the_bound_comes_down_to_the_value_and_not_below():
    fixture = one_joint("x", control_cost={"kind": "box"}, action_limit=0.2)
    batch = next(batches.batches([fixture]))[1]
    starts = samples.draw(batch).starts
    noise = samples.normals((len(descent.SCALES), samples.NUM_STARTS, descent.HORIZON, 1), 1)
    found = descent.search_batch(batch.single, starts.astype(np.float32), noise.astype(np.float32))
    first, best = (np.asarray(actions, np.float64) for actions in found)
    assert np.abs(first).max() < 0.2 * (1.0 + 1e-6)
    assert np.abs(best).max() < 0.2 * (1.0 + 1e-6)
    assert (np.abs(best) > 0.199).mean() > 0.05  # the bound binds
    with precision.x64():
        right = descent.weigh_batch(batch.double, starts, first, best)
        assert float(right.lowest[0]) > -1e-9
        assert float(right.reached[0]) < 1e-3 < float(right.start[0])


def test_margins_are_found_where_a_fine_grid_finds_them():
    fixture = one_joint("x")
    batch = next(batches.batches([fixture]))[1]
    drawn = samples.draw(batch)
    found = margins.margins(batch, drawn)
    extent = 2.0 * np.abs(drawn.drawn[0]).max(axis=0)
    axes = [np.linspace(-x, x, 301) for x in extent]
    grid = np.stack(np.meshgrid(*axes), -1).reshape(-1, 2)
    with precision.x64():
        system = fixture.system(np.float64)
        q = np.asarray(jax.vmap(system.stage_cost)(grid, np.zeros((len(grid), 1))))
        v = np.asarray(jax.vmap(system.value)(grid)) - float(system.offset)
    share = np.where(v > 1e-6, q / np.maximum(v, 1e-6), np.inf).min()
    assert float(found.least[0]) == pytest.approx(share, abs=2e-3)
    assert np.isnan(margins.margins(next(batches.batches([load_fixture(ARM)]))[1], drawn).least[0])


# --- files ----------------------------------------------------------------------------------------


def test_files_state_both_and_read_back_to_the_bit(tmp_path):
    fixture = one_joint("both")
    path = tmp_path / "both.yaml"
    save_fixture(fixture, path)
    text = path.read_text("utf-8")
    assert "  terms:\n    - {kind: cosine, weight: 3.0, frequency: 2.5, along: [1.0, 1.0]}" in text
    assert "control_cost: {kind: soft-threshold, mu: 0.3}" in text
    again = load_fixture(path)
    assert again == fixture
    assert store.to_text(again) == text
    assert isinstance(again.system(), Converse)
    assert list(again.content())[6:10] == ["matrices", "noise", "value", "control_cost"]


def test_quadratic_files_are_what_they_were():
    fixture = load_fixture(ARM)
    assert not {"value", "control_cost"} & set(fixture.content())
    assert type(fixture.system()) is QuadraticGaussian
    same = fixture.with_changes(control_cost={"kind": "quadratic"})
    assert same.problem == fixture.problem
    assert fixture.with_changes(value=None) == fixture.with_changes()
    other = fixture.with_changes(control_cost={"kind": "saturating"})
    assert other.problem != fixture.problem
    assert other.with_changes(control_cost=None).problem == fixture.problem
    assert other.certificate is None
    assert np.asarray(other.system().control.limit).tolist() == [2.0, 2.0]
    assert other.with_changes(action_limit=0.5).system().control.limit[0] == 0.5


BAD = [
    ({"value": {"terms": [{"kind": "cosine"}]}}, r"value\.terms\[0\]\.weight: expected this field"),
    ({"value": 3}, r"value: expected fields, got 3"),
    ({"value": {"term": []}}, r"value: expected {terms: \[\.\.\.\]}, got {'term': \[\]}"),
    ({"control_cost": {"kind": "hard"}}, r"control_cost\.kind: unknown 'hard'"),
    (
        {"control_cost": {"kind": "box"}, "action_limit": None},
        r"action_limit: expected the bound of control_cost box, got none",
    ),
    ({"value": {"terms": [{"kind": "absolute", "weight": 1.0, "along": 0}]}}, "with noise"),
    ({"control_costs": {"kind": "box"}}, "unknown 'control_costs'; did you mean 'control_cost'"),
]


@pytest.mark.parametrize(("changes", "message"), BAD)
def test_bad_fields_are_refused_in_one_line(changes, message):
    with pytest.raises(InputError, match=message) as caught:
        load_fixture(ARM).with_changes(**changes)
    assert "\n" not in str(caught.value)


def test_a_fault_in_a_file_is_found_at_its_line(tmp_path):
    path = tmp_path / "bad.yaml"
    text = store.to_text(one_joint("bad")).partition("sha256")[0]
    assert "frequency: 2.5" in text
    path.write_text(text.replace("frequency: 2.5", "frequency: -1.0"), encoding="utf-8")
    line = next(i for i, x in enumerate(text.splitlines(), 1) if "frequency" in x)
    with pytest.raises(InputError, match=rf"bad.yaml: line {line}: value\.terms\[0\]\.frequency"):
        load_fixture(path)


def test_like_fixtures_stack_and_others_are_told_apart():
    made = [one_joint(f"x{i}", weight) for i, weight in enumerate((1.0, 2.0))]
    stacked = cojax.stack([f.make_params() for f in made])
    assert stacked.system.terms[0].weight.shape == (2, 1)
    bare = batches.stack_fixtures(made)
    np.testing.assert_allclose(stacked.divergence_radius, bare.divergence_radius, rtol=1e-5)
    assert jax.tree.structure(bare.system.terms) == jax.tree.structure(stacked.system.terms)
    boxed = one_joint("x2", control_cost={"kind": "box"}, action_limit=1.0)
    with pytest.raises(InputError, match="number 1 is built of other parts"):
        cojax.stack([made[0].make_params(action_limit=1.0), boxed.make_params()])
    groups = [indices for indices, _ in batches.batches([made[0], boxed, made[1]])]
    assert sorted(map(sorted, groups)) == [[0, 2], [1]]
