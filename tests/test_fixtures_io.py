"""Fixture files: what is written is what is read; what is wrong is said in one line."""

from __future__ import annotations

import copy
import dataclasses
import json
import pickle
import re
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import yaml
from click.testing import CliRunner
from helpers import relative
from hypothesis import given
from hypothesis import strategies as st

import cojax
from cojax import cli, oracle, precision
from cojax.envs import ConverseEnv
from cojax.errors import InputError
from cojax.fixtures import (
    Certificate,
    Check,
    Fixture,
    difficulty,
    generator,
    load_fixture,
    make_fixture,
    save_fixture,
    shipped,
    shipped_set,
    store,
)
from cojax.fixtures.fixture import from_content
from cojax.io import json_text
from cojax.io import yaml as text

ARM = "arm-n2-p0.80-s7"
numbers = st.floats(allow_nan=False, allow_infinity=False)


def source(name: str = ARM) -> str:
    return store.find(name).read_text()


def run(*arguments: str) -> tuple[int, str, str]:
    result = CliRunner().invoke(cli.main, list(arguments))
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result.exit_code, result.stdout, result.stderr


# --- text ----------------------------------------------------------------------------------------


@given(numbers)
def test_a_number_reads_back_bit_for_bit_under_yaml_1_1_and_1_2(x):
    word = f"a: {text.number(x)}\n"
    for value in (text.parse(word, "F")["a"], yaml.safe_load(word)["a"]):
        assert isinstance(value, float)
        assert np.float64(value).tobytes() == np.float64(x).tobytes()


@pytest.mark.parametrize("word", ["1e-8", "1.0e8", "1E+3", ".5", "-2.", "+1e-300"])
def test_numbers_of_yaml_1_2_are_numbers(word):
    assert text.parse(f"a: {word}", "F")["a"] == float(word)


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | numbers | st.text("ab: #'\"\\n-é", max_size=8),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(st.text("abc", min_size=1, max_size=3), inner, max_size=3)
        ),
        max_leaves=12,
    )
)
def test_plain_data_reads_back(value):
    content = {"value": value, "rows": [[1.0, value], [2.0]]}
    assert text.parse(text.dump(content), "F") == content


@pytest.mark.parametrize(
    ("bad", "said"),
    [
        ("a: !!python/object/apply:os.system [ls]", "line 1: expected plain data, got the tag"),
        ("a: !mine 3", "got the tag"),
        ("a: !!timestamp 2020-01-01", "got the tag"),
        ("a: &x [1]\nb: *x", "line 1: expected plain data, got an alias"),
        ("a: &a [*a]", "recursive"),
        ("a: [1,", "cut short"),
        ("a: 1\na: 2", "line 2: expected plain data, got the field 'a' twice"),
        ("1: 2", "not a word"),
        ("- 1", "expected a mapping of fields, got a list"),
        ("", "got nothing"),
        ("a: \x00", "expected YAML"),
        ("[" * 20_000, "expected YAML"),
        ("a: !!int x", "under the tag"),
        ("a: " + "9" * 5000, "line 1"),
    ],
)
def test_what_is_not_plain_yaml_gives_one_line(bad, said):
    with pytest.raises(InputError) as error:
        text.parse(bad, "F")
    assert str(error.value).startswith("F: ")
    assert said in str(error.value)
    assert "\n" not in str(error.value)


# --- round trips ---------------------------------------------------------------------------------


@given(seed=st.integers(0, 2**31), n=st.integers(1, 3), form=st.sampled_from(["metric", "sqrt"]))
def test_a_fixture_reads_back_bit_for_bit(tmp_path_factory, seed, n, form):
    rng = np.random.default_rng(seed)
    B = rng.normal(size=(2 * n, 2 * n))
    P = B @ B.T + np.eye(2 * n)
    fixture = make_fixture(
        "ConverseArm",
        id=f"t-{seed}",
        n=n,
        p=rng.uniform(0.1, 1.0),
        P=0.5 * (P + P.T),
        R=rng.uniform(0.1, 3.0, n),
        Sigma=np.diag(rng.uniform(0, 1e-9, 2 * n)),
        parameterization=form,
        action_limit=rng.uniform(1, 2, n),
        initial_state={"law": "fixed", "state": rng.normal(size=2 * n).tolist()},
        certify=False,
    )
    path = tmp_path_factory.mktemp("fixtures") / "f.yaml"
    save_fixture(fixture, path)
    again = load_fixture(path)
    assert again == fixture
    for name in ("P", "R", "Sigma"):
        assert getattr(again, name).tobytes() == getattr(fixture, name).tobytes()
    assert np.asarray(again.knobs["p"]).tobytes() == np.asarray(fixture.knobs["p"]).tobytes()
    assert store.to_text(again) == path.read_text()


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
    manifest = json.loads((store.DATA / "manifest.json").read_text())
    rows = manifest["fixtures"]
    assert tuple(row["id"] for row in rows) == shipped()
    assert len(rows) == manifest["num"] == 60
    for row in rows:
        fixture = load_fixture(row["id"])
        assert row["sha256"] == fixture.sha256
        assert row["seeds"] == fixture.seeds.model_dump()
        assert row["tier"] == difficulty.tier(fixture)
    assert {row["tier"] for row in rows} == set(difficulty.TIERS)
    assert manifest["recipe"]["command"] == "python -m cojax.fixtures.shipped_set FOLDER"
    assert set(manifest["recipe"]["versions"]) == {"cojax", "jax", "numpy", "backend"}
    size = sum(path.stat().st_size for path in store.DATA.parent.rglob("*") if path.is_file())
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


# --- changes and params --------------------------------------------------------------------------


def test_with_changes_drops_what_described_the_old_one():
    fixture = load_fixture(ARM)
    changed = fixture.with_changes(p=0.5, R=4.0, horizon=10, id="other")
    assert changed.knobs["p"] == 0.5
    assert changed.horizon == 10
    assert (changed.R == 4.0).all()
    assert changed.certificate is None
    assert changed.reference is None
    assert fixture.p == 0.8
    with pytest.raises(InputError, match="did you mean 'horizon'"):
        fixture.with_changes(horizons=3)
    with pytest.raises(InputError, match=r"knobs\.p: expected a number in \(0, 1\], got 2"):
        fixture.with_changes(p=2.0)


def test_replacement_keeps_no_description_of_another_problem():
    """``dataclasses.replace`` and, from Python 3.13 on, ``copy.replace``, which calls it."""
    fixture = load_fixture(ARM)
    changes = {"R": fixture.R / 2, "knobs": fixture.knobs | {"p": 0.5}, "gamma": 0.9, "horizon": 9}
    for name, value in changes.items():
        for replace in (dataclasses.replace, getattr(copy, "replace", dataclasses.replace)):
            with pytest.raises(InputError, match=rf"{name}: .*use fixture\.with_changes\({name}="):
                replace(fixture, **{name: value})
    renamed = dataclasses.replace(fixture, id="other", certificate=None)
    assert (renamed.id, renamed.certificate) == ("other", None)
    for again in (copy.copy(fixture), copy.deepcopy(fixture), pickle.loads(pickle.dumps(fixture))):
        assert again == fixture


def test_params_follow_the_fixture_and_options_override_it():
    fixture = load_fixture(ARM).with_changes(action_limit=[1.0, 3.0])
    params = fixture.params
    assert params is fixture.params
    assert params.system.gamma.dtype == np.float32
    assert int(params.max_steps_in_episode) == 512
    assert np.asarray(params.action_limit).tolist() == [1.0, 3.0]
    assert int(fixture.make_params(max_steps_in_episode=5).max_steps_in_episode) == 5
    assert not fixture.with_changes(action_limit=None).params.clip_actions
    assert fixture.make_params(dtype=np.float64).action_limit.dtype == np.float64
    env, made = cojax.make(ARM, action_limit=0.5)
    assert np.asarray(made.action_limit).tolist() == [0.5, 0.5]
    assert env.default_params is made


def test_a_list_of_starts_is_drawn_alike_in_both_precisions():
    states = np.arange(40.0).reshape(10, 4).tolist()
    fixture = load_fixture(ARM).with_changes(initial_state={"law": "list", "states": states})
    keys = jax.random.split(jax.random.key(0, impl="threefry2x32"), 32)
    single = jax.jit(jax.vmap(lambda k: fixture.initial_law(np.float32).sample(k)))(keys)
    with precision.x64():
        double = jax.jit(jax.vmap(lambda k: fixture.initial_law(np.float64).sample(k)))(keys)
    np.testing.assert_array_equal(single, double)


@pytest.mark.parametrize("name", [ARM, "nvdex-k1-medium-deep"])
def test_initial_states_are_the_same_numbers_in_both_precisions(name):
    fixture = load_fixture(name)
    key = jax.random.key(3, impl="threefry2x32")
    single = jax.jit(lambda law: law.sample(key))(fixture.initial_law(np.float32))
    with precision.x64():
        double = jax.jit(lambda law: law.sample(key))(fixture.initial_law(np.float64))
    np.testing.assert_allclose(single, double, rtol=1e-5)


def test_a_fixture_without_Q_is_tuned_to_its_spectral_radius():
    content = load_fixture("nvdex-k1-easy").content()
    content["matrices"].pop("Q")
    content["matrices"]["R"] = 0.4
    tuned = from_content(content)
    assert np.allclose(tuned.R, 0.144)
    assert tuned.Q.by == pytest.approx(0.0247805935, rel=1e-8)  # pyright: ignore


# --- bad files -----------------------------------------------------------------------------------

BAD = [
    ("schema: cojax.fixture/1", "schema: cojax.fixture/2", "schema: expected cojax.fixture/1"),
    ("family: ConverseArm", "family: ConversArm", "did you mean 'ConverseArm'"),
    ("gamma: 0.99", "gamma: '0.99'", "line 6: gamma: expected a number, got '0.99'"),
    ("gamma: 0.99", "gamma: 1.0", "gamma: expected a number in (0, 1), got 1"),
    ("gamma: 0.99", "gamma: 1e400", "line 6: expected plain data, got 1e400, beyond the range"),
    ("gamma: 0.99", "gamma: .nan", "gamma: expected a finite number, got nan"),
    ("gamma: 0.99", "gamma: true", "gamma: expected a number, got True"),
    ("gamma: 0.99\n", "", "gamma: expected this field, got nothing"),
    ("gamma: 0.99", "gama: 0.99", "gama: unknown field; did you mean 'gamma'"),
    ("p: 0.8", "p: 1.8", "knobs.p: expected a number in (0, 1], got 1.8"),
    ("p: 0.8", "p: '0.8'", "line 5: knobs.p: expected a number in (0, 1], got '0.8'"),
    ("alpha0: 0.125", "alpha: 0.125", "knobs: unknown 'alpha'; did you mean 'alpha0'"),
    ("n: 2", "n: 2.5", "knobs.n: expected a whole number >= 1, got 2.5"),
    (
        "1.2599350777244382",
        "'1.25'",
        "line 10: matrices.P[1][1]: expected a finite number, got '1.25'",
    ),
    ("1.2599350777244382", ".inf", "matrices.P[1][1]: expected a finite number, got inf"),
    ("1.2599350777244382", "-1.25", "expected a positive definite matrix"),
    ("1.2599350777244382, ", "", "matrices.P: expected rows of equal length"),
    ("- [0.3281281463674974, 1.", "- [0.33, 1.", "expected a symmetric matrix"),
    ("R: 10.0", "R: {diag: [1.0, 2.0, 3.0]}", "matrices.R.diag: expected 2 numbers"),
    ("R: 10.0", "R: {diag: 3.0}", "matrices.R.diag: expected a list of 2 numbers, got 3.0"),
    ("R: 10.0", "R: [1.0, 2.0]", "matrices.R[0]: expected a row of numbers, got 1.0"),
    ("R: 10.0", "R: {dig: [1.0, 2.0]}", "matrices.R: expected rows, {diag: [...]} or a number"),
    ("R: 10.0", "R: 0.0", "matrices.R: expected a positive definite matrix"),
    ("  R: 10.0\n", "", "matrices.R: expected this field, got nothing"),
    ("R: 10.0", "R: 10.0\n  T: 1", "matrices.T: unknown field"),
    ("by: 0.03", "by: 1.03", "matrices.Q.by: expected a number in [0, 1], got 1.03"),
    ("{scale: P, by: 0.03}", "{scale: R, by: 0.03}", "matrices.Q: expected {scale: P, by: x}"),
    ("{scale: P, by: 0.03}", "1.0", "matrices.Q: expected Q ⪯ P"),
    ("{diag: [0.0, 1.0e-06", "{diag: [0.0, -1.0e-06", "expected a positive semidefinite matrix"),
    ("model: gaussian", "model: student", "noise.model: expected 'gaussian', got 'student'"),
    ("law: uniform", "law: uniforn", "initial_state.law: expected one of uniform"),
    ("low: [-2.8,", "low: [4.8,", "initial_state.high[0]: expected a number in [4.8, inf]"),
    ("low: [-2.8, ", "low: [", "initial_state.low: expected 4 numbers"),
    ("horizon: 512", "horizon: 0", "horizon: expected a whole number >= 1, got 0"),
    ("horizon: 512", "horizon: 5.0", "horizon: expected a whole number, got 5.0"),
    ("action_limit: 2.0", "action_limit: 0.0", "action_limit: expected a number in (0, inf]"),
    ("action_limit: 2.0", "action_limit: [1.0]", "action_limit: expected 2 numbers"),
    ("action_limit: 2.0\n", "", "action_limit: expected this field"),
    ("noise: 7}", "noise: -7}", "seeds.noise: expected a whole number >= 0, got -7"),
    ("id: arm", "id: ../arm", "id: expected letters, digits"),
    ("passed: true", "passed: 3", "certificate.passed: expected true or false, got 3"),
    ("verdict: pass", "verdict: maybe", "expected 'pass' or 'fail', got 'maybe'"),
    ("index: 11.52", "index: x", "difficulty.index: expected a number, got 'x'"),
    ("values: [8.9", "values: [1.0, 8.9", "reference.values: expected 8 numbers"),
    ("by: 0.03}", "by: 0.031}", "the file was edited after it was validated"),
    ("id: arm-n2-p0.80-s7", "id: renamed", "sha256: expected"),
    ("sha256: ", "sha256: 1", "sha256: expected"),
    ("sha256: ", "sha25: ", "sha25: unknown field; did you mean 'sha256'"),
]


@pytest.mark.parametrize(("old", "new", "said"), BAD)
def test_a_broken_file_gives_one_line_with_file_and_field(tmp_path, old, new, said):
    path = tmp_path / "broken.yaml"
    assert old in source()
    path.write_text(source().replace(old, new, 1))
    with pytest.raises(InputError) as error:
        load_fixture(path)
    message = str(error.value)
    assert message.startswith(f"{path}: ")
    assert said in message
    assert "\n" not in message
    assert run("show", str(path)) == (2, "", f"cojax: {message}\n")


def test_a_file_cut_short_anywhere_is_refused(tmp_path):
    whole = source()
    path = tmp_path / "cut.yaml"
    draft = whole.index("difficulty:")  # all a draft needs is above: it has no certificate
    for end in {*range(0, len(whole) - 1, 37), *(i for i, c in enumerate(whole[:-1]) if c == "\n")}:
        if end in (draft - 1, draft):
            continue
        path.write_text(whole[:end])
        with pytest.raises(InputError, match=r"cut\.yaml: "):
            load_fixture(path)


def test_paths_and_names_that_do_not_exist(tmp_path):
    with pytest.raises(InputError, match=r"did you mean 'arm-n4-p0\.80-s7'"):
        load_fixture("arm-n4-p0.8-s7")
    with pytest.raises(InputError, match="no such fixture file"):
        load_fixture(tmp_path / "none.yaml")
    with pytest.raises(InputError, match="expected a fixture file, got a folder"):
        load_fixture(tmp_path)
    binary = tmp_path / "binary.yaml"
    binary.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InputError, match="expected UTF-8 text"):
        load_fixture(binary)


def test_saving_writes_whole_or_not_at_all(tmp_path, monkeypatch):
    path = tmp_path / "f.yaml"
    path.write_text("before")
    monkeypatch.setattr("os.fsync", lambda _: (_ for _ in ()).throw(OSError(28, "no space")))
    with pytest.raises(OSError, match="no space"):
        save_fixture(load_fixture(ARM), path)
    assert path.read_text() == "before"
    assert list(tmp_path.iterdir()) == [path]


def test_make_fixture_suggests_the_nearest_option():
    with pytest.raises(InputError, match="did you mean 'alpha0'"):
        make_fixture("ConverseArm", id="x", alpha=0.1)
    with pytest.raises(InputError, match="did you mean 'NVDEx'"):
        make_fixture("NVDex", id="x")


# --- the command line ----------------------------------------------------------------------------


def test_list_as_table_and_as_json():
    code, out, _ = run("list", "--json")
    rows = json.loads(out)
    assert code == 0
    assert [row["id"] for row in rows] == list(shipped())
    fields = {"family", "state_dim", "action_dim", "p", "gamma", "horizon", "difficulty", "tier"}
    assert fields <= set(rows[0])
    code, out, _ = run("list")
    assert code == 0
    assert ARM in out


def test_show_names_what_a_person_asks_for():
    code, out, _ = run("show", ARM)
    assert code == 0
    for word in (ARM, "alpha0 = 0.125", "condition", "bellman_residual", "difficulty"):
        assert word in out
    code, out, _ = run("show", ARM, "--json")
    assert json.loads(out)[0]["sha256"] == load_fixture(ARM).sha256


def test_show_draws_a_fixture_whole_or_not_at_all(tmp_path):
    path = tmp_path / "card.png"
    assert run("show", ARM, "--plot", str(path))[0] == 0
    assert path.read_bytes().startswith(b"\x89PNG")
    code, _, error = run("show", ARM, "--plot", str(tmp_path / "card.xyz"))
    assert code == 2
    assert "expected a file ending in .png, .pdf or .svg" in error
    assert [p.name for p in tmp_path.iterdir()] == ["card.png"]


ASKED = {"a", "applied", "clipped", "stage_cost", "q_value", "advantage"}


@pytest.mark.parametrize("name", [ARM, "nvdex-k2-hard"])
def test_oracle_prints_the_golden_values(tmp_path, golden, name):
    index = {ARM: 0, "nvdex-k2-hard": 7}[name]
    points = golden[index]["points"]
    path = tmp_path / "states.json"
    path.write_text(json.dumps([{"s": p["s"], "a": p["a"]} for p in points] + [points[0]["s"]]))
    code, out, _ = run("oracle", name, "--states", str(path), "--x64")
    rows = json.loads(out)
    assert code == 0
    assert len(rows) == len(points) + 1
    for row, point in zip(rows, points, strict=False):
        for ours, theirs in (
            ("drift", "drift"),
            ("action", "optimal_action"),
            ("value", "optimal_value"),
            ("mean_next_state", "mean_next_state"),
            ("stage_cost", "stage_cost"),
        ):
            assert relative(row[ours], point[theirs]) < 1e-10
        assert row["q_value"] - row["value"] == pytest.approx(row["advantage"], rel=1e-9)
    fixture = load_fixture(name)
    about = {"action_limit": [fixture.action_limit] * fixture.action_dim}
    about |= {"discount": fixture.gamma, "horizon": fixture.horizon, "action_within_limit": True}
    assert all(row | about == row for row in rows)
    answer = {"s", "drift", "action", "value", "mean_next_state"}
    assert set(rows[-1]) == answer | set(about)
    assert set(rows[0]) == set(rows[-1]) | ASKED
    single = json.loads(run("oracle", name, "--states", str(path))[1])
    assert 0.0 < relative(single[0]["drift"], rows[0]["drift"]) < 2e-6


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("[1, 2", "line 1: expected JSON"),
        ("{}", "expected a list of states, got a dict"),
        ('[{"s": [1, 2, 3]}]', "[0].s: expected a list of 4 numbers, got 3"),
        ("[[1, 2, 3, NaN]]", "expected finite numbers, got NaN"),
        ('[[1, 2, 3, "4"]]', "[0][3]: expected a finite number, got '4'"),
        ('[{"s": [1, 2, 3, 4], "a": [1]}]', "[0].a: expected a list of 2 numbers"),
        ('[{"s": [1, 2, 3, 4], "act": [1, 1]}]', "[0]: unknown 'act'"),
        ('[{"a": [1, 1]}]', "[0].s: expected 4 numbers, got nothing"),
        ("[3]", "[0]: expected"),
        ("[[1, 2, 3, 1e400]]", "[0][3]: expected a finite number, got inf"),
        ("[[1, 2, 3, 1" + "0" * 400 + "]]", "[0][3]: expected a finite number, got one beyond"),
    ],
)
def test_bad_states_give_one_line(tmp_path, content, said):
    path = tmp_path / "states.json"
    path.write_text(content)
    code, out, error = run("oracle", ARM, "--states", str(path))
    assert (code, out) == (2, "")
    assert error.startswith(f"cojax: {path}: ")
    assert said in error
    assert error.count("\n") == 1


@pytest.mark.parametrize("x64", [(), ("--x64",)])
def test_the_oracle_answers_for_what_the_system_makes_of_an_action(tmp_path, x64):
    fixture = load_fixture(ARM)
    limit, path = fixture.action_limit, tmp_path / "states.json"
    s, far = [0.3, -0.2, 1.0, 0.4], [900.0, -500.0, 700.0, 800.0]
    asked = [[3.0 * limit, -0.1], [limit, -0.1], [-1e30, 0.0]]
    path.write_text(json.dumps([{"s": s, "a": a} for a in asked] + [far]))
    code, out, _ = run("oracle", ARM, "--states", str(path), *x64)
    beyond, at, below, distant = json.loads(out)
    assert code == 0
    assert [row["clipped"] for row in (beyond, at, below)] == [True, False, True]
    assert (beyond["a"], below["applied"]) == (asked[0], [-limit, 0.0])
    for name in ("applied", "stage_cost", "q_value", "advantage", "mean_next_state"):
        assert beyond[name] == at[name]
    assert [row["action_within_limit"] for row in (at, distant)] == [True, False]
    env, params = ConverseEnv(), fixture.params
    state = env.reset(jax.random.key(0), params)[1].replace(s=jnp.asarray(s, jnp.float32))
    reward = env.step_env(jax.random.key(0), state, jnp.asarray(asked[0]), params)[2]
    assert -float(reward) == pytest.approx(beyond["stage_cost"], rel=1e-5)


def test_the_oracle_of_a_system_without_a_limit_clips_nothing(tmp_path):
    free, path = tmp_path / "free.yaml", tmp_path / "states.json"
    changed = load_fixture(ARM).with_changes(action_limit=None, id="free", certificate=None)
    save_fixture(changed, free)
    path.write_text('[{"s": [0.3, -0.2, 1.0, 0.4], "a": [50.0, 0.0]}]')
    (row,) = json.loads(run("oracle", str(free), "--states", str(path))[1])
    assert (row["action_limit"], row["clipped"], row["applied"]) == (None, False, [50.0, 0.0])
    assert row["action_within_limit"]


BAD_LINES = {
    b"": "expected JSON",
    b"nonsense": "expected JSON, got: Expecting value",
    b"\xff\xfe": "expected JSON, got: 'utf-8' codec",
    b"[1, 2, 3]": "expected a list of 4 numbers, got 3",
    b"[1, 2, 3, NaN]": "expected finite numbers, got NaN",
    b"[1, 2, 3, 1e400]": "expected a finite number, got inf",
    b"[1, 2, 3, 1" + b"0" * 400 + b"]": "got one beyond 1e308",
    b"[1, 2, 3, 1" + b"0" * 5000 + b"]": "expected JSON, got: Exceeds",
    b"[1, 2, 3, 1e30]": "beyond the range of float32; expected smaller numbers, or --x64",
    b'{"s": [1, 2, 3, 4], "a": [1]}': "a: expected a list of 2 numbers",
    b"[" * 100_000: "expected JSON, got: RecursionError",
    b"7": "expected",
}


def test_a_controller_talks_to_the_oracle_line_by_line():
    command = [sys.executable, "-m", "cojax", "oracle", ARM, "--states", "-"]
    fixture = load_fixture(ARM)
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    with subprocess.Popen(command, **pipes) as process:

        def ask(line):
            process.stdin.write(line + b"\n")
            process.stdin.flush()
            return json.loads(process.stdout.readline())

        s = [0.3, -0.2, 1.0, 0.4]
        for _ in range(5):  # a loop: the optimum along the mean dynamics
            answer = ask(json.dumps(s).encode())
            exact = oracle.action(fixture.params.system, jnp.asarray(s, jnp.float32))
            np.testing.assert_allclose(answer["action"], exact, rtol=1e-5, atol=1e-7)
            assert (answer["discount"], answer["horizon"]) == (fixture.gamma, fixture.horizon)
            s = answer["mean_next_state"]
        for number, (line, words) in enumerate(BAD_LINES.items(), 6):
            answer = ask(line)
            assert list(answer) == ["error"]
            assert answer["error"].startswith(f"line {number}")
            assert words in answer["error"]
        assert ask(b'{"s": [0, 0, 0, 0], "a": [9, 0]}')["clipped"]
        process.stdin.close()
        assert process.stdout.read() == b""
        said = process.stderr.read().decode()
    assert process.returncode == 2
    assert said.count("\n") == 1
    assert said.startswith("cojax: standard input: line 6: expected JSON")
    assert said.endswith(f"not be used: {len(BAD_LINES)}\n")


def test_a_file_of_lines_is_answered_line_by_line(tmp_path):
    path = tmp_path / "states.jsonl"
    path.write_text('[0, 0, 0, 0]\r\n{"s": [1, 1, 1, 1], "a": [0, 0]}')
    code, out, error = run("oracle", ARM, "--states", str(path))
    rows = [json.loads(line) for line in out.splitlines()]
    assert (code, error, len(rows)) == (0, "", 2)
    assert set(rows[1]) == set(rows[0]) | ASKED
    path.write_text("[0, 0, 0, 0]\nno\n")
    code, out, error = run("oracle", ARM, "--states", str(path))
    assert (code, len(out.splitlines())) == (2, 2)
    assert error.startswith(f"cojax: {path}: line 2: expected JSON")


def test_the_program_itself_ends_with_status_2_and_one_line(tmp_path):
    result = subprocess.run(
        [sys.executable, "-m", "cojax", "show", "no-such-fixture"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 2
    assert result.stderr.startswith("cojax: fixture: unknown 'no-such-fixture'")
    assert result.stderr.count("\n") == 1


def test_fixture_equality_is_equality_of_content():
    a, b = load_fixture(ARM), load_fixture(ARM)
    assert isinstance(a, Fixture)
    assert a == b
    assert len({a, b}) == 1
    assert a != a.with_changes(gamma=0.98)


def test_every_number_reads_back():
    numbers = [np.inf, -np.inf, -0.0, 5e-324, 1e308, 10**400, -(2**63), 0.1, 1e-8]
    read = text.parse(text.dump({"numbers": numbers}), "x")["numbers"]
    assert [repr(number) for number in read] == [repr(number) for number in numbers]
    assert np.isnan(text.parse(text.dump({"x": np.nan}), "x")["x"])


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "is the file cut short?"),
        (b'{"a": [1, 2', "is the file cut short?"),
        (b"[1]", "expected a mapping, got a list"),
        (b"\xff\xfe", "expected UTF-8 text"),
        (b"[" * 100_000, "expected JSON, got: RecursionError"),
        (None, "expected a file, got a folder"),
    ],
)
def test_unusable_json_is_one_line(content, words, tmp_path):
    file = tmp_path / "x.json"
    file.mkdir() if content is None else file.write_bytes(content)
    with pytest.raises(InputError, match=re.escape(words)) as caught:
        json_text.load(file, dict)
    assert str(caught.value).startswith(f"{file}: ")
    assert "\n" not in str(caught.value)
