"""The first afternoon: ten tasks of a researcher, each a script of at most 25 lines, and each runs.

Scripts of Python run in this process; so does every line of a shell script that is a command of
cojax, unless it needs a shell, to be killed for example.
"""

from __future__ import annotations

import runpy
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from helpers import run, some_slow
from test_readme import COMMANDS as LINES

TASKS = Path(__file__).parents[1] / "notebooks" / "afternoon"
SCRIPTS = sorted(path for path in TASKS.iterdir() if path.suffix in (".py", ".sh"))
COMMANDS = [shlex.split(line) for line in LINES]
SHELL = ("&", "|", "$", "until", "export")
MADE = {  # what the reader is to have in the end, and a word of it where it is text
    "01": {"table.tex": b"toprule", "gaps.pdf": b"PDF", "mine/provenance.json": b"cojax.results"},
    "02": {"mine.npz": b"PK"},
    "04": {"landscape.png": b"PNG"},
    "05": {"both/rows.json": b'"old"'},
    "07": {"why.png": b"PNG"},
    "08": {"noisy.yaml": b"arm-n2-p0.80-s7-"},
    "09": {
        "job.log": b"interrupted; go on: cojax train --resume --out job",
        "job/provenance.json": b"cojax.results/2",
    },
    "10": {"page.html": b"<html"},
}


def test_every_task_is_short():
    assert SCRIPTS
    for path in SCRIPTS:
        lines = [line for line in path.read_text("utf-8").splitlines() if line.strip()]
        assert len(lines) <= 25, path.name
        assert all(len(line) <= 130 for line in lines), path.name


LONG = {"04_search_and_plot", "07_why_does_it_fail", "08_changed_noise"}


@pytest.mark.parametrize(
    "path",
    some_slow(SCRIPTS, [str(path) for path in SCRIPTS if path.stem in LONG]),
    ids=lambda path: path.stem,
)
def test_a_task_ends_in_what_was_asked_for(path, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    text = path.read_text("utf-8")
    commands = [line for line in text.splitlines() if line.strip() and not line.startswith("#")]
    if path.suffix == ".py":
        runpy.run_path(str(path), run_name="__main__")
    elif any(mark in text for mark in SHELL):
        found = subprocess.run(
            ["bash", "-eu", path], capture_output=True, text=True, check=False, timeout=300,
            env=_environment(),
        )  # fmt: skip
        assert found.returncode == 0, found.stderr
    else:
        for line in commands:
            words = shlex.split(line, comments=True)
            assert words[0] == "cojax", line
            if words[:2] == ["cojax", "run"] and words[:-2] in COMMANDS:
                continue  # minutes, and the README's test has them
            status, _, stderr = run(*words[1:])
            assert status == 0, f"{line}: {stderr}"
    for name, word in MADE.get(path.stem[:2], {}).items():
        assert word in (tmp_path / name).read_bytes(), name


def _environment() -> dict[str, str]:
    """Where a shell finds the ``cojax`` of this Python."""
    import os

    return os.environ | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
