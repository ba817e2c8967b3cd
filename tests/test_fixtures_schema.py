"""Broken files: one line with file and field."""

from __future__ import annotations

import pytest
from helpers import run, source

from cojax.errors import InputError
from cojax.fixtures import load_fixture

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
    (
        "model: gaussian",
        "model: student",
        "noise.model: expected 'gaussian', 'student-t', 'laplace'",
    ),
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
