"""What ships: certified, the authors' own, and made again to the bit."""

from __future__ import annotations

import dataclasses
import json
import re

import jax
import numpy as np
import pytest
from helpers import ARM, relative, source

from cojax import oracle, precision
from cojax.errors import InputError
from cojax.fixtures import (
    Certificate,
    Check,
    difficulty,
    generator,
    load_fixture,
    shelf,
    shipped,
    shipped_set,
    store,
)


@pytest.mark.parametrize("name", shipped())
def test_shipped_files_read_back_and_are_certified(name):
    fixture = load_fixture(name)
    assert fixture.id == name
    assert store.to_text(fixture) == source(name)
    assert fixture.certificate is not None
    assert fixture.certificate.passed
    assert fixture.reference is not None
    assert fixture.difficulty is not None


def test_the_authors_grid_is_shipped():
    names = set(shipped())
    assert {
        f"arm-n{n}-p{p:.2f}-s{s}" for n in (4, 9, 12, 19) for p in (0.5, 0.6, 0.8) for s in (7, 11)
    } <= names
    assert {
        f"nvdex-k{K}-{e}" for K in (1, 2) for e in ("easy", "medium", "hard", "insane")
    } <= names


def test_shipped_problems_can_be_made_again(monkeypatch):
    """All that a file states but what was measured on it, up to the rounding of processors.

    Of those that are drawn, one of the attempts is the shipped one; those before it were rejected.
    """

    def known(fixture):
        words, numbers = problem(fixture)
        return words in shipped_problems and np.allclose(
            numbers, shipped_problems[words], rtol=1e-12, atol=1e-14
        )

    def judged(fixtures, **_):
        for fixture in fixtures:
            certificate = Certificate(passed=known(fixture), checks=FAILED)
            yield dataclasses.replace(fixture, certificate=certificate)

    shipped_problems = dict(problem(load_fixture(name)) for name in shipped())
    monkeypatch.setattr(shipped_set, "certify_many", lambda fixtures, **_: fixtures)
    monkeypatch.setattr(generator, "certify_many", judged)
    made = list(shipped_set.make())
    assert [fixture.id for fixture in made if not known(fixture)] == []
    assert {problem(fixture)[0] for fixture in made} == set(shipped_problems)
    assert len(made) == len(shipped_problems) == len(shipped())


FAILED = {"another": Check(verdict="fail")}


def problem(fixture):
    """The file of a fixture as it was before it was measured: its words and its real numbers.

    Without its checksum, which follows the last bits of the numbers.
    """
    bare = {"difficulty": None, "certificate": None, "reference": None}
    text = store.to_text(dataclasses.replace(fixture, **bare)).partition("sha256:")[0]
    real = re.compile(r"(?<![\w.])-?\d+\.\d+(?:e[+-]?\d+)?")
    return real.sub("#", text), np.array(real.findall(text), float)


@pytest.mark.slow
def test_a_shipped_fixture_is_the_same_to_the_bit_whatever_is_made_beside_it(tmp_path):
    shipped_set.main(tmp_path / "one", ARM)
    shipped_set.main(tmp_path / "more", ARM, "nvdex-k1-easy")
    alone = (tmp_path / "one" / f"{ARM}.yaml").read_bytes()
    assert (tmp_path / "more" / f"{ARM}.yaml").read_bytes() == alone
    rows = json.loads((tmp_path / "more" / "manifest.json").read_text())["fixtures"]
    assert [row["id"] for row in rows] == [ARM, "nvdex-k1-easy"]
    with pytest.raises(InputError, match="did you mean 'nvdex-k1-easy'"):
        shipped_set.main(tmp_path / "more", "nvdex-k1-eas")


def test_the_manifest_lists_what_is_shipped():
    manifest = json.loads((shelf.DATA / "manifest.json").read_text())
    rows = manifest["fixtures"]
    assert tuple(row["id"] for row in rows) == shipped()
    assert len(rows) == manifest["num"] == 140
    for row in rows:
        fixture = load_fixture(row["id"])
        assert row["sha256"] == fixture.sha256
        assert row["seeds"] == fixture.seeds.model_dump()
        assert row["tier"] == difficulty.tier(fixture)
    assert {row["tier"] for row in rows} == set(shelf.TIERS)
    assert manifest["recipe"]["command"] == "python -m cojax.fixtures.shipped_set FOLDER"
    assert set(manifest["recipe"]["versions"]) == {"cojax", "jax", "numpy", "backend"}
    size = sum(path.stat().st_size for path in shelf.DATA.parent.rglob("*") if path.is_file())
    assert size < 3e6


@pytest.mark.parametrize(
    ("gap", "tier"),
    [(0.0, "easy"), (1e-3, "medium"), (0.0499, "medium"), (0.05, "hard"), (0.1, "extreme")],
)
def test_tiers_go_by_the_measured_gap_of_the_regulator(gap, tier):
    fixture = load_fixture(ARM)
    assert fixture.difficulty is not None
    measured = {**fixture.difficulty.measured, "median_gap_lqr": gap}
    measured_so = fixture.difficulty.model_copy(update={"measured": measured})
    assert difficulty.tier(dataclasses.replace(fixture, difficulty=measured_so)) == tier
    assert difficulty.tier(fixture.with_changes(p=0.5)) is None


def test_every_measure_of_difficulty_is_in_the_file():
    fixture = load_fixture("arm-n4-p0.80-s7")
    assert fixture.difficulty is not None
    assert set(fixture.difficulty.terms) == {"n", "p^-2", "tr(Sigma)", "alpha0", "cond(P)"}
    weights, terms = fixture.difficulty.weights, fixture.difficulty.terms
    assert fixture.difficulty.index == pytest.approx(
        sum(weights[name] * terms[name] for name in terms), rel=2e-3
    )
    assert set(fixture.difficulty.measured) == {
        "median_gap_zero_policy",
        "median_gap_lqr",
        "open_loop_radius",
        "closed_loop_radius",
        "contraction",
        "nonlinear_energy",
    }


GOLDEN = {
    ("ConverseArm", 2, 0.8, 7): "arm-n2-p0.80-s7",
    ("ConverseArm", 4, 0.5, 7): "arm-n4-p0.50-s7",
    ("ConverseArm", 4, 0.8, 11): "arm-n4-p0.80-s11",
    ("ConverseArm", 9, 0.6, 7): "arm-n9-p0.60-s7",
    ("NVDEx", 1, 0.5, None): "nvdex-k1-easy",
    ("NVDEx", 2, 1.0, None): "nvdex-k2-hard",
    ("NVDEx", 1, 0.8, None): "nvdex-k1-medium-deep",
}


@pytest.mark.parametrize(("key", "name"), GOLDEN.items())
def test_shipped_systems_are_the_authors(golden, key, name):
    family, size, p, seed = key
    entry = next(
        e
        for e in golden
        if e["family"] == family
        and e["p"] == p
        and e.get("seed") == seed
        and e["n" if family == "ConverseArm" else "K"] == size
        and e.get("r_v", 1) != 2
    )
    system = load_fixture(name).system(np.float64)
    with precision.x64():
        s, a = (np.array([point[k] for point in entry["points"]]) for k in "sa")
        results = jax.jit(jax.vmap(_oracle, (None, 0, 0)))(system, s, a)
        for i, point in enumerate(entry["points"]):
            for ours, theirs in results.items():
                assert relative(theirs[i], point[ours]) < 1e-10


def _oracle(system, s, a):
    return {
        "drift": oracle.drift(system, s),
        "optimal_action": oracle.action(system, s),
        "optimal_value": oracle.value(system, s),
        "mean_next_state": oracle.mean_next_state(system, s, a),
    }
