"""The validator: what it passes, and the ways of being wrong that it must find."""

from __future__ import annotations

import dataclasses
import re

import jax
import numpy as np
import pytest
from click.testing import CliRunner
from flax import struct

from cojax import cli, inverse_sqrt, precision
from cojax.errors import InputError
from cojax.fixtures import (
    Fixture,
    batches,
    descent,
    host_checks,
    load_fixture,
    measure,
    paths,
    pointwise,
    samples,
    save_fixture,
    shelf,
    validate,
    validator,
)
from cojax.fixtures.validator import compare, validate_many
from cojax.quadratic import QuadraticGaussian

ARM = "arm-n2-p0.80-s7"
VEHICLE = "nvdex-k1-easy"
PAPER = {"B_definite", "bellman_residual", "closed_loop"}
REST = {
    "inputs",
    "bellman_residual_float32",
    "stationarity",
    "next_mean",
    "advantage",
    "noise_moments",
    "transversality",
    "mean_square_bounded",
    "divergence_guard",
    "action_bound",
    "never_beaten",
    "descent_reaches",
    "reference",
    "difficulty",
    "certificate",
}


@pytest.mark.parametrize("name", [ARM, VEHICLE])
def test_a_shipped_fixture_passes_every_check(name):
    certificate = validate(name)
    assert certificate.failures == []
    assert certificate.passed
    assert set(certificate.checks) >= PAPER | REST
    assert certificate.precision is not None
    assert certificate.precision.float64 < 1e-13
    assert 1e-8 < certificate.precision.float32 < 1e-5
    assert certificate.resolution_floor == certificate.precision.floor
    assert certificate.checks["mean_square_bounded"].note.startswith("analytic")


# --- twelve broken fixtures, each with its own reason --------------------------------------------


def edited(name: str, *changes: tuple[str, str]) -> str:
    source = shelf.find(name).read_text()
    for old, new in changes:
        assert old in source
        source = source.replace(old, new, 1)
    return source


ROW = "- [0.3281281463674974, 1.2599350777244382,"
UNUSABLE = {
    "asymmetric P": (ARM, (ROW, ROW.replace("0.3281281463674974", "0.33")), "symmetric"),
    "indefinite P": (ARM, ("1.2599350777244382", "-1.2599350777244382"), "positive definite"),
    "Q not below P": (ARM, ("{scale: P, by: 0.03}", "{diag: [0.1, 0.1, 0.1, 9.0]}"), "Q ⪯ P"),
    "gamma = 1": (ARM, ("gamma: 0.99", "gamma: 1.0"), r"gamma: expected a number in \(0, 1\)"),
    "NaN": (ARM, ("1.2599350777244382", ".nan"), r"P\[1\]\[1\]: expected a finite number, got nan"),
    "wrong shape": (ARM, ("R: 10.0", "R: {diag: [1.0, 1.0, 1.0]}"), "expected 2 numbers"),
    "string numeral": (ARM, ("gamma: 0.99", 'gamma: "0.99"'), "gamma: expected a number, got '0"),
}


@pytest.mark.parametrize("broken", UNUSABLE)
def test_unusable_fixtures_are_refused_with_their_reason(tmp_path, broken):
    name, change, reason = UNUSABLE[broken]
    path = tmp_path / "broken.yaml"
    path.write_text(edited(name, change))
    with pytest.raises(InputError, match=reason):
        validate(path)
    result = CliRunner().invoke(cli.main, ["validate", str(path)])
    assert result.exit_code == 2
    assert re.search(reason, result.stderr)
    assert result.stderr.count("\n") == 1


INVALID = {
    "Q = 0": (ARM, {"Q": 0.0}, "transversality", "Q = 0"),
    "singular undetectable Q": (
        VEHICLE,
        {"Q": {"diag": [0.0, 0.05, 0.05, 0.02, 0.02]}, "rho_target": None},
        "transversality",
        "undetectable",
    ),
    "divergent pose": (
        VEHICLE,
        {"Q": {"scale": "P", "by": 0.001}, "rho_target": None},
        "mean_square_bounded",
        "by simulation only",
    ),
    "action bound that binds": (ARM, {"action_limit": 0.1}, "action_bound", "clipping voids V"),
}


@pytest.mark.parametrize("broken", INVALID)
def test_invalid_fixtures_fail_their_check(tmp_path, broken):
    name, changes, check, reason = INVALID[broken]
    fixture = load_fixture(name).with_changes(**changes)
    certificate = validate(fixture)
    assert not certificate.passed
    assert not certificate.checks[check].passed
    assert reason in certificate.checks[check].note
    path = tmp_path / "broken.yaml"
    save_fixture(fixture, path)
    result = CliRunner().invoke(cli.main, ["validate", str(path)])
    assert result.exit_code == 1
    assert reason in result.stdout


def test_an_edited_value_under_an_old_hash_is_found_twice(tmp_path):
    path = tmp_path / "edited.yaml"
    path.write_text(edited(ARM, ("R: 10.0", "R: 10.1")))
    certificate = validate(path)
    assert not certificate.checks["sha256"].passed
    assert not certificate.checks["reference"].passed
    result = CliRunner().invoke(cli.main, ["validate", str(path)])
    assert result.exit_code == 1
    assert "edited after it was validated" in result.stdout


def test_an_edited_value_under_a_new_hash_is_found_by_its_values(tmp_path):
    fixture = load_fixture(ARM)
    for change in ({"P": fixture.P * (1.0 + 1e-8)}, {"knobs": fixture.knobs | {"g0": 0.8000001}}):
        path = tmp_path / "forged.yaml"
        parts = {f.name: getattr(fixture, f.name) for f in dataclasses.fields(fixture)}
        save_fixture(Fixture(**(parts | change)), path)
        certificate = validate(path)
        assert "sha256" not in certificate.checks
        assert not certificate.checks["reference"].passed


def test_a_forged_certificate_is_not_believed():
    fixture = load_fixture(ARM).with_changes(Q=0.0)
    forged = load_fixture(ARM).certificate
    certificate = validate(dataclasses.replace(fixture, certificate=forged))
    assert not certificate.checks["certificate"].passed
    assert "passed is True, computed False" in certificate.checks["certificate"].note


def test_a_stored_figure_that_differs_is_found():
    stored = load_fixture(ARM).certificate
    assert stored is not None
    assert compare(stored, stored).passed
    bound = stored.checks["action_bound"]
    checks = stored.checks | {"action_bound": bound.model_copy(update={"value": 0.001})}
    assert "action_bound" in compare(stored.model_copy(update={"checks": checks}), stored).note


# --- errors in the system itself -----------------------------------------------------------------


@struct.dataclass
class Wrong(QuadraticGaussian):
    """A system that is wrong by a factor in each of its parts."""

    errors: dict = dataclasses.field(default_factory=dict)

    def optimum(self, s):
        found = super().optimum(s)
        return type(found)(*(x * (1.0 + self.errors[k]) for k, x in found._asdict().items()))

    def excess_cost(self, s, delta, optimum=None):
        return super().excess_cost(s, delta) * (1.0 + self.errors["advantage"])

    def expected_value(self, s, z, a=None):
        return super().expected_value(s, z) + self.errors["moments"]


PARTS = ("drift", "action", "next_mean", "advantage", "moments")


@pytest.fixture(scope="module")
def figures():
    """The pointwise checks of a shipped system with an error put into one part."""
    fixture = load_fixture(ARM)
    ((_, batch),) = batches.batches([fixture])
    drawn = samples.draw(batch)
    single = jax.tree.map(lambda leaf: leaf[0], batch.double)
    delta = samples.normals((drawn.test.shape[1], fixture.action_dim), 0)
    compiled = jax.jit(pointwise.at_states)

    def of(part: str, error: float) -> pointwise.AtStates:
        errors = {name: np.float64(error * (name == part)) for name in PARTS}
        leaves = {f.name: getattr(single.system, f.name) for f in dataclasses.fields(single.system)}
        params = single.replace(system=Wrong(**leaves, errors=errors))
        with precision.x64():
            return jax.device_get(compiled(params, drawn.test[0], drawn.reference[0], delta))

    return of


@pytest.mark.parametrize(
    ("part", "error", "figure", "tolerance"),
    [
        ("drift", 1e-6, "residual", 1e-9),
        ("drift", 1e-6, "shortcut", 1e-9),
        ("action", 1e-6, "stationarity", 1e-8),
        ("next_mean", 1e-6, "shortcut", 1e-9),
        ("advantage", 1e-6, "advantage", 1e-9),
        ("moments", 1e-6, "residual", 1e-9),
        ("moments", 1e-3, "noise", 5.0),
    ],
)
def test_a_small_error_is_detected(figures, part, error, figure, tolerance):
    assert getattr(figures(part, 0.0), figure) < tolerance / 2.0
    assert getattr(figures(part, error), figure) > tolerance


def test_descent_finds_a_better_value_than_a_wrong_one():
    """A value that is one part in a thousand too high is beaten by descent."""
    fixture = load_fixture(VEHICLE)
    ((_, batch),) = batches.batches([fixture])
    drawn = samples.draw(batch)
    shape = (len(descent.SCALES), samples.NUM_STARTS, descent.HORIZON, fixture.action_dim)
    noise = samples.normals(shape, 1)

    class Claimed:
        """A system whose claimed value at the start is wrong."""

        def __init__(self, system, factor):
            self.system, self.factor = system, factor
            self.offset, self.gamma, self.action_dim = system.offset, system.gamma, 2

        def __getattr__(self, name):
            return getattr(self.system, name)

        def stage_cost(self, s, a):
            return self.system.stage_cost(s, a) * self.factor

    def stand_in(params, factor):
        params = jax.tree.map(lambda leaf: leaf[0], params)
        return type("Params", (), {"system": Claimed(params.system, factor)})

    search = jax.jit(lambda factor, s, xi: descent.search(stand_in(batch.single, factor), s, xi))
    weigh = jax.jit(lambda factor, *x: descent.weigh(stand_in(batch.double, factor), *x))

    def attack(factor):
        single = (np.float32(x) for x in (factor, drawn.starts[0], noise))
        found = (np.asarray(x, np.float64) for x in search(*single))
        with precision.x64():
            return jax.device_get(weigh(factor, drawn.starts[0], *found))

    assert attack(1.0).lowest > -1e-9
    assert attack(1.0).reached < 1e-3
    assert attack(0.95).lowest < -1e-6
    assert attack(1.2).reached > 1e-3


# --- pieces --------------------------------------------------------------------------------------


def test_detectability_by_hand():
    A = np.array([[1.1, 0.0], [0.5, 0.3]])
    assert host_checks.undetectable_modes(A, np.diag([1.0, 0.0])) == []
    assert host_checks.undetectable_modes(A, np.diag([0.0, 1.0])) == []
    diagonal = np.diag([1.1, 0.3])
    assert host_checks.undetectable_modes(diagonal, np.diag([1.0, 0.0])) == []
    assert host_checks.undetectable_modes(diagonal, np.diag([0.0, 1.0])) == pytest.approx([1.1])


@pytest.mark.parametrize(("count", "total"), [(0, 320), (3, 100), (10, 10)])
def test_clopper_pearson_solves_its_equation(count, total):
    from scipy.special import bdtr

    bound = host_checks.log_gap_upper_bound(count, total)
    if count == total:
        assert bound == 1.0
    else:
        assert bdtr(count, total, bound) == pytest.approx(0.05, rel=1e-9)


def test_beta_is_the_largest_multiple_of_P_below_Q():
    fixture = load_fixture(ARM)
    assert host_checks.beta(fixture) == pytest.approx(0.03, rel=1e-12)
    rng = np.random.default_rng(0)
    B = rng.normal(size=(4, 4))
    Q = 0.01 * B @ B.T
    beta = host_checks.beta(fixture.with_changes(Q=0.5 * (Q + Q.T)))
    lows = [np.linalg.eigvalsh(Q - f * beta * fixture.P)[0] for f in (0.999, 1.001)]
    assert lows[0] > 0.0 > lows[1]


def test_a_batch_gives_what_each_fixture_gives_alone():
    fixture = load_fixture(ARM)
    others = [fixture, fixture.with_changes(p=0.5), fixture.with_changes(R=4.0)]
    together, alone = validate_many(others, size=2), [validate(f) for f in others]
    for many, one in zip(together, alone, strict=True):
        assert many.passed
        for name, check in many.checks.items():
            assert check.verdict == one.checks[name].verdict
            if check.value and abs(check.value) > 1e-6:
                assert check.value == pytest.approx(one.checks[name].value, rel=1e-2)


def test_a_trimmed_series_is_the_series():
    """What leads all members of a batch and is zero is left out; nothing else is."""
    fixtures = [load_fixture(ARM), load_fixture(ARM).with_changes(R=0.5)]
    ((_, batch),) = batches.batches(fixtures)
    root = batch.single.system.inverse_sqrt
    padded = np.pad(root.coefficients, ((0, 0), (0, 2 * inverse_sqrt.BLOCK)))
    gains, horizons = np.zeros((2, 2, 2, 4), np.float32), np.full(2, 16, np.int32)
    longer = dataclasses.replace(
        batch.single,
        system=dataclasses.replace(
            batch.single.system, inverse_sqrt=dataclasses.replace(root, coefficients=padded)
        ),
    )
    walks = [paths.closed_loop_batch(p, gains, horizons) for p in (batch.single, longer)]
    for a, b in zip(*walks, strict=True):
        np.testing.assert_array_equal(a, b)
    x = batch.single.initial_state.high[0]
    single = jax.tree.map(lambda leaf: leaf[0], batch.single.system)
    blocks = -(-int(np.flatnonzero(single.inverse_sqrt.coefficients)[-1] + 1) // inverse_sqrt.BLOCK)
    trimmed = inverse_sqrt.TrimmedInverseSqrt(single.inverse_sqrt, blocks)
    other = dataclasses.replace(single, inverse_sqrt=trimmed).optimum(x)
    np.testing.assert_allclose(other.action, single.optimum(x).action, rtol=2e-6)


def test_what_is_after_a_systems_own_horizon_does_not_count():
    fixture = load_fixture(ARM)
    ((_, batch),) = batches.batches([fixture, fixture])
    gains = np.zeros((2, 2, 2, 4), np.float32)
    alone = paths.closed_loop_batch(batch.single, gains, np.array([8, 8], np.int32))
    mixed = paths.closed_loop_batch(batch.single, gains, np.array([8, 16], np.int32))
    for a, b in zip(alone, mixed, strict=True):
        np.testing.assert_array_equal(a[0], b[0])
    assert (mixed.final[1] != mixed.final[0]).any()


def test_many_files_are_validated_in_one_pass(tmp_path, monkeypatch):
    sizes = []
    measured = validator.measure

    def counted(batch):
        sizes.append((batch.own, batch.fixtures[0].family))
        return measured(batch)

    monkeypatch.setattr(validator, "measure", counted)
    path = tmp_path / "edited.yaml"
    path.write_text(edited(ARM, ("R: 10.0", "R: 10.1")))
    names = [ARM, VEHICLE, str(path), ARM]
    result = CliRunner().invoke(cli.main, ["validate", *names])
    assert sizes == [(3, "ConverseArm"), (1, "NVDEx")]
    assert result.exit_code == 1
    words = [f"{name}: {'INVALID' if name == str(path) else 'valid'}" for name in names]
    assert [line for line in result.stdout.splitlines() if not line.startswith(" ")] == words
    assert "validate: 100%" in result.stderr
    assert "4 of 4" in result.stderr


def test_the_ledger_holds_the_backends_own_precision(monkeypatch):
    """Off the CPU the residual is also measured with the backend's own products, and counts."""
    fixture = load_fixture(ARM)
    ((_, batch),) = batches.batches([fixture])
    drawn = samples.draw(batch)
    test = drawn.test.astype(np.float32)
    traced = str(jax.make_jaxpr(pointwise.default_batch.__wrapped__)(batch.single, test))
    assert "DEFAULT" in traced
    assert "HIGHEST" not in traced

    def coarse(params, test):
        asked.append(test.shape)
        return np.full(len(test), 3e-3, np.float32)

    asked = []
    monkeypatch.setattr(measure.pointwise, "default_batch", coarse)
    assert validate(fixture).precision.default == validate(fixture).precision.float32
    monkeypatch.setattr(measure.jax, "default_backend", lambda: "gpu")
    certificate = validate(fixture)
    assert asked == [test.shape]
    assert certificate.precision.default == pytest.approx(3e-3)
    assert certificate.resolution_floor == certificate.precision.default
    assert "floor" not in certificate.checks  # it limits what tables may claim; it is no failure
