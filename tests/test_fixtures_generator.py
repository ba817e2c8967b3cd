"""The generator: the same instance whatever is asked beside it, and nothing that does not pass."""

from __future__ import annotations

import json

import jax
import numpy as np
import pytest
from helpers import run
from hypothesis import given
from hypothesis import strategies as st

import cojax
from cojax.errors import InputError
from cojax.fixtures import (
    dataset,
    generator,
    load_fixture,
    ranges,
    stack_fixtures,
)
from cojax.fixtures.generator import generate, generate_outcome, resolve
from cojax.fixtures.validator import validate_many

SMALL = {"n": 1, "horizon": 32}


@pytest.fixture(scope="module")
def five():
    return generate("ConverseArm", 5, seed=3, ranges=SMALL)


# --- distributions -------------------------------------------------------------------------------


@given(st.integers(0, 2**31), st.floats(0.01, 10.0), st.floats(0.0, 10.0))
def test_draws_stay_in_their_range(seed, low, width):
    rng = np.random.default_rng(seed)
    for spec in ({"uniform": [low, low + width]}, {"log_uniform": [low, low + width]}):
        assert low * (1 - 1e-12) <= ranges.sample(spec, rng) <= (low + width) * (1 + 1e-12)
    assert ranges.sample({"integer": [2, 4]}, rng) in (2, 3, 4)
    assert ranges.sample({"choice": ["a", 3]}, rng) in ("a", 3)
    assert ranges.sample(0.5, rng) == 0.5


def test_every_whole_number_of_a_range_is_drawn():
    rng = np.random.default_rng(0)
    assert {ranges.sample({"integer": [2, 4]}, rng) for _ in range(100)} == {2, 3, 4}


@given(st.integers(1, 6), st.floats(1.0, 1e4), st.floats(0.01, 10.0), st.integers(0, 2**31))
def test_spd_has_the_condition_number_asked_for(d, condition, scale, seed):
    A = ranges.spd(d, condition, scale, np.random.default_rng(seed))
    w = np.linalg.eigvalsh(A)
    assert np.array_equal(A, A.T)
    assert np.prod(w) ** (1.0 / d) == pytest.approx(scale, rel=1e-6)
    if d > 1:
        assert w[-1] / w[0] == pytest.approx(condition, rel=1e-6)


def test_covariance_has_the_deviations_and_correlations_asked_for():
    std = np.array([0.0, 0.1, 0.2, 0.3])
    rng = np.random.default_rng(0)
    assert np.array_equal(ranges.covariance(std, 0.0, rng), std**2)
    Sigma = ranges.covariance(std, 0.7, rng)
    assert np.allclose(np.sqrt(np.diagonal(Sigma)), std)
    assert np.allclose(np.abs(Sigma[1, 2:]), 0.7 * std[1] * std[2:])
    assert np.linalg.eigvalsh(Sigma)[0] >= -1e-15


@pytest.mark.parametrize(
    ("text", "spec"),
    [
        ("p=0.4:1.0", {"uniform": [0.4, 1.0]}),
        ("n=2:4", {"integer": [2, 4]}),
        ("n=2,4", {"choice": [2, 4]}),
        ("R=log:0.1:10", {"log_uniform": [0.1, 10]}),
        ("gamma=0.98", 0.98),
        ("parameterization=sqrt", "sqrt"),
    ],
)
def test_ranges_of_the_command_line(text, spec):
    name, parsed = ranges.parse(text)
    assert text.startswith(f"{name}=")
    assert parsed == spec


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ({"uniform": [2, 1]}, "ranges.p.uniform: expected low <= high, got 2 > 1"),
        ({"uniform": [1]}, "ranges.p.uniform: expected [low, high], got [1]"),
        ({"unifrom": [0, 1]}, "did you mean 'uniform'"),
        ({"normal": [0, 1]}, "ranges.p: distribution: unknown 'normal'"),
        ({"log_uniform": [0, 1]}, "ranges.p.log_uniform[0]: expected a number > 0, got 0"),
        ({"choice": []}, "ranges.p.choice: expected a list of values"),
        ({"uniform": ["a", 1]}, "ranges.p.uniform[0]: expected a finite number, got 'a'"),
        ({"integer": [1.5, 2]}, "ranges.p.integer[0]: expected a whole number"),
        ({"uniform": [0, 1], "choice": [1]}, "ranges.p: expected one of"),
    ],
)
def test_bad_distributions_are_refused(spec, said):
    with pytest.raises(InputError) as error:
        resolve("ConverseArm", {"p": spec})
    assert said in str(error.value)


@pytest.mark.parametrize(
    ("ranges", "said"),
    [
        ({"alpha": 0.1}, "ranges: unknown 'alpha'; did you mean 'alpha0'"),
        ({"P": {"conditon": 3}}, "ranges.P: expected {condition"),
        ({"P": {"condition": 3, "shape": 1}}, "ranges.P: unknown 'shape'"),
        ({"Sigma": 0.1}, "ranges.Sigma: expected {std"),
    ],
)
def test_unknown_names_are_refused(ranges, said):
    with pytest.raises(InputError) as error:
        resolve("ConverseArm", ranges)
    assert said in str(error.value)
    with pytest.raises(InputError, match="did you mean 'ConverseArm'"):
        resolve("ConversArm", {})
    with pytest.raises(InputError, match=r"ranges\.rho_target: expected none beside Q"):
        resolve("NVDEx", {"Q": 0.05, "rho_target": 1.0})


# --- instances -----------------------------------------------------------------------------------


def test_generated_fixtures_are_certified_and_distinct(five):
    assert [f.id for f in five] == [f"conversearm-s3-{i:05d}" for i in range(5)]
    for fixture in five:
        assert fixture.certificate is not None
        assert fixture.certificate.passed
        assert 0.4 <= fixture.p <= 1.0
        assert fixture.horizon == 32
    assert len({f.sha256 for f in five}) == len({f.p for f in five}) == 5
    assert len({f.seeds.noise for f in five}) == 5
    assert validate_many([five[2]], fixed=True)[0].passed


def test_instance_i_does_not_depend_on_how_many_are_asked_for(five):
    assert generate("ConverseArm", 2, seed=3, ranges=SMALL) == five[:2]
    assert generate("ConverseArm", 1, seed=3, ranges=SMALL, first=4) == five[4:]
    other = generate("ConverseArm", 1, seed=4, ranges=SMALL)[0]
    assert other.p != five[0].p


def test_changing_one_range_leaves_the_other_draws():
    before = resolve("ConverseArm", {})
    after = resolve("ConverseArm", {"kappa1": 3.0})
    a = generator.draw("ConverseArm", before, np.random.default_rng([0, 0, 0]))
    b = generator.draw("ConverseArm", after, np.random.default_rng([0, 0, 0]))
    assert b["kappa1"] == 3.0
    assert all(np.array_equal(a[k], b[k]) for k in a if k != "kappa1")


def test_every_part_of_psi_can_be_drawn():
    ranges = {
        "n": {"choice": [2, 3]},
        "P": {"condition": {"log_uniform": [2.0, 50.0]}, "scale": 2.0},
        "Sigma": {"std": 0.01, "correlation": {"uniform": [0.1, 0.8]}},
        "R": 3.0,
        "gamma": {"uniform": [0.9, 0.99]},
        "horizon": {"integer": [10, 20]},
        "action_limit": 4.0,
        "parameterization": {"choice": ["metric", "sqrt"]},
        "nonlinearity": {"uniform": [0.0, 2.0]},
    }
    settings = resolve("ConverseArm", ranges)
    made = [generator.attempt("ConverseArm", settings, (0, i, 0), f"x{i}") for i in range(20)]
    assert all(isinstance(f, cojax.fixtures.Fixture) for f in made)
    assert {f.knobs["n"] for f in made} == {2, 3}
    assert {f.parameterization for f in made} == {"metric", "sqrt"}
    assert {f.Sigma.ndim for f in made} == {2}
    assert all(10 <= f.horizon <= 20 and 0.9 <= f.gamma <= 0.99 for f in made)
    linear = resolve("ConverseArm", {"nonlinearity": 0.0})
    knobs = generator.attempt("ConverseArm", linear, (0, 0, 0), "x").knobs
    assert knobs["alpha0"] == knobs["beta0"] == knobs["g0"] == 0.0
    authors = resolve("ConverseArm", {"P": "authors", "n": 2})
    assert generator.attempt("ConverseArm", authors, (0, 0, 0), "x").P.shape == (4, 4)
    vehicle = resolve("NVDEx", {"K": 2, "r_v": {"integer": [1, 3]}, "nonlinearity": 0.5})
    assert generator.attempt("NVDEx", vehicle, (0, 0, 0), "x").knobs["alpha_xy"] == 0.15


def test_rejections_are_counted_and_giving_up_says_why():
    tight = {**SMALL, "action_limit": 1e-4}
    with pytest.raises(InputError, match=r"rejected 2 times; .*action_bound 2"):
        generate_outcome("ConverseArm", 1, ranges=tight, max_attempts=2)
    impossible = {"p": {"uniform": [1.5, 2.0]}}
    with pytest.raises(InputError, match=r"rejected 3 times; rejections so far: p 3"):
        generate_outcome("NVDEx", 1, ranges=impossible, max_attempts=3)


def test_shipped_recipes_are_distributions(tmp_path, monkeypatch):
    for name, family in (("thousand-arm", "ConverseArm"), ("thousand-nvdex", "NVDEx")):
        settings = resolve(family, dataset.read_ranges(name))
        made = [generator.attempt(family, settings, (0, i, 0), f"x{i}") for i in range(4)]
        assert all(isinstance(f, cojax.fixtures.Fixture) for f in made)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "thousand-arm").write_text("n: 1")  # a file of that name comes first
    assert dataset.read_ranges("thousand-arm") == {"n": 1}


def test_a_batch_of_fixtures_is_the_stack_of_their_params():
    fixtures = [load_fixture(f"arm-n4-p{p}-s7") for p in ("0.50", "0.60", "0.80")]
    for some in (fixtures, [f.with_changes(action_limit=None) for f in fixtures]):
        whole, apart = (
            stack_fixtures(some),
            cojax.stack([f.make_params(dtype=np.float32) for f in some]),
        )
        assert jax.tree.structure(whole) == jax.tree.structure(apart)
        for a, b in zip(jax.tree.leaves(whole), jax.tree.leaves(apart), strict=True):
            assert a.dtype == b.dtype
            np.testing.assert_allclose(a, b, rtol=1e-6)
    with pytest.raises(InputError, match="stack those of one shape"):
        stack_fixtures([fixtures[0], load_fixture("arm-n2-p0.80-s7")])


# --- folders and the command line ----------------------------------------------------------------


def small(folder, num, *more):
    options = ["--num", str(num), "--seed", "3", "--out", str(folder)]
    return run(
        "generate", "ConverseArm", *options, "--range", "n=1", "--range", "horizon=32", *more
    )


def contents(folder):
    return {p.name: p.read_bytes() for p in folder.iterdir() if p.name != "recipe.json"}


def test_a_folder_is_complete_repeatable_and_resumable(tmp_path, five):
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    code, out, error = small(whole, 5)
    assert code == 0
    assert "5 fixtures generated in 5 attempts" in out
    assert "generate ConverseArm: 100%" in error
    assert "5 of 5" in error
    assert [load_fixture(p) for p in sorted(whole.glob("*.yaml"))] == five
    rows = json.loads((whole / "manifest.json").read_text())["fixtures"]
    assert [row["sha256"] for row in rows] == [f.sha256 for f in five]

    assert small(parts, 2)[0] == 0
    assert small(parts, 5)[0] == 2  # the folder exists
    code, out, _ = small(parts, 5, "--resume")
    assert code == 0
    assert "3 fixtures generated in 3 attempts, 2 were there already" in out
    assert contents(parts) == contents(whole)


def test_a_folder_that_cannot_be_used(tmp_path):
    (tmp_path / "file").write_text("x")
    code, _, error = small(tmp_path / "file", 1)
    assert code == 2
    assert "expected a folder, got a file" in error
    folder = tmp_path / "set"
    assert small(folder, 0)[0] == 0
    code, _, error = small(folder, 0, "--resume", "--range", "p=0.5")
    assert code == 2
    assert "the folder holds another set" in error
    assert error.count("\n") == 1


def test_ranges_come_from_a_file(tmp_path):
    path = tmp_path / "ranges.yaml"
    path.write_text("n: 1\nhorizon: 32\np: {uniform: [1.0, 0.5]}\n")
    arguments = ("generate", "ConverseArm", "--ranges", str(path), "--out", str(tmp_path / "o"))
    code, _, error = run(*arguments, "--num", "1")
    assert code == 2
    assert error == "cojax: ranges.p.uniform: expected low <= high, got 1 > 0.5\n"
    assert not (tmp_path / "o").exists()
    assert dataset.read_ranges(path)["n"] == 1


def test_a_full_disk_leaves_finished_fixtures_whole(tmp_path, monkeypatch):
    saved = []

    def save(fixture, path):
        if len(saved) == 2:
            raise OSError(28, "No space left on device", str(path))
        saved.append(path)
        fixture_save(fixture, path)

    fixture_save = dataset.save_fixture
    monkeypatch.setattr(dataset, "save_fixture", save)
    code, _, error = small(tmp_path / "o", 5)
    assert code == 2
    assert "No space left on device; finished fixtures are whole" in error
    assert len([load_fixture(path) for path in saved]) == 2
    monkeypatch.undo()
    assert small(tmp_path / "o", 5, "--resume")[0] == 0
