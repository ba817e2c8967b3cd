"""``cojax oracle``: answers at states from a file, or line by line."""

from __future__ import annotations

import json
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import ARM, relative, run

from cojax import oracle
from cojax.envs import ConverseEnv
from cojax.fixtures import load_fixture, save_fixture

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
