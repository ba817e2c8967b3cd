"""Every snippet and command of the README runs."""

from __future__ import annotations

import importlib.util
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from helpers import run

README = (Path(__file__).parents[1] / "README.md").read_text()
BLOCKS = re.findall(r"```(\w+)\n(.*?)```", README, re.S)
COMMANDS = [
    line
    for language, text in BLOCKS
    if language == "bash"
    for line in text.strip().splitlines()
    if line.startswith("cojax ")
]
# Programs of their own, as a user starts them: what prints and evaluates, and a sweep, which makes
# a device of every core before JAX looks. The others share what this process has compiled.
PROGRAMS = ("list", "show", "evaluate", "sweep")
OPTIONAL = ("stable_baselines3", "dm_env", "brax", "import control")


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_python_snippets_in_order(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    namespace: dict = {}
    snippets = [text for language, text in BLOCKS if language == "python"]
    assert len(snippets) >= 5
    for snippet in snippets:
        needs = [name for name in OPTIONAL if name in snippet]
        if not all(importlib.util.find_spec(name.split()[-1]) for name in needs):
            continue
        exec(compile(snippet, "README.md", "exec"), namespace)
    assert float(namespace["advantage"]) > 0.0
    assert namespace["run"].policy.axes == ()
    rows = namespace["result"].rows()
    assert {r["policy"] for r in rows} == {"ppo", "oracle", "zero"}
    assert all(r["suboptimality"]["mean"] == 0.0 for r in rows if r["policy"] == "oracle")
    assert "arm-n4-p0.80-s7 zero" in capsys.readouterr().out


@pytest.mark.parametrize("command", [c for c in COMMANDS if c != "cojax run quickstart"])
def test_commands(command, tmp_path, monkeypatch):
    arguments = shlex.split(command)[1:]
    if arguments[0] in PROGRAMS:
        out = subprocess.run(
            [sys.executable, "-m", "cojax", *arguments],
            capture_output=True,
            text=True,
            check=False,
            cwd=tmp_path,
        )
        status, stdout, stderr = out.returncode, out.stdout, out.stderr
    else:
        monkeypatch.chdir(tmp_path)
        status, stdout, stderr = run(*arguments)
    assert status == 0, stderr
    assert stdout.strip()
    if command == "cojax run nvdex --scale smoke":
        (folder,) = (tmp_path / "results").iterdir()
        for name in ("table_1.csv", "table_1_gap.tex", "table_1_compact.tex", "table_1_paper.tex"):
            assert (folder / "tables" / name).stat().st_size > 100, name


def test_two_commands_and_the_test_command_are_as_documented():
    assert "cojax run quickstart" in COMMANDS
    assert "python -m pytest\n" in README
    for path in re.findall(r"\]\(((?!http)[^)]+)\)", README):
        assert (Path(__file__).parents[1] / path).exists(), path
