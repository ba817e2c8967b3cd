"""One process at a time in a folder, with the kernel's locks and without."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import re
import subprocess
import sys

import pytest

from cojax.errors import InputError
from cojax.io import files, locks
from cojax.io.resume import claim, finish, part, unfinished

CONTENT = {"a": 1}
HOLD = """
import errno, fcntl, sys
from pathlib import Path
if {number}:
    def none(file, operation):
        raise OSError({number}, "no locks")
    fcntl.flock = none
from cojax.io import files, locks
with locks.held(Path({folder!r})):
    print("held", flush=True)
    sys.stdin.read()
"""


def _claim(folder, resume=False):
    return claim(folder, CONTENT, resume, lambda file: CONTENT)


@pytest.fixture(params=[None, errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP, errno.EINVAL])
def number(request, monkeypatch):
    """The error of a file system without locks; None for one that has them."""
    if request.param is not None:

        def none(file, operation):
            raise OSError(request.param, os.strerror(request.param))

        monkeypatch.setattr(fcntl, "flock", none)
    return request.param


def test_two_cannot_work_at_once_and_one_after_the_other_can(number, tmp_path):
    folder = tmp_path / "out"
    state = unfinished(folder)
    with _claim(folder):
        assert locks.holder(state)["pid"] == os.getpid()
        for resume in (False, True):
            words = f"another process is writing there: {os.getpid()} on "
            with pytest.raises(InputError, match=words), _claim(folder, resume):
                pass
    assert locks.holder(state) is None
    with pytest.raises(InputError, match="holds interrupted work; --resume"), _claim(folder):
        pass
    with _claim(folder, resume=True) as state:
        (state / "results").mkdir()
        finish(state, "results", folder)
    assert os.listdir(tmp_path) == ["out"]


@pytest.mark.parametrize("without", [0, errno.ENOLCK], ids=["locks", "none"])
def test_a_killed_process_holds_nothing(without, tmp_path):
    state = tmp_path / "out.unfinished"
    code = HOLD.format(number=without, folder=str(state))
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", code], **pipes) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"held\n"
        assert locks.holder(state)["pid"] == process.pid
        with pytest.raises(InputError, match=f"writing there: {process.pid} on"), locks.held(state):
            pass
        process.kill()
        process.wait()
    assert locks.holder(state) is None
    with locks.held(state):
        assert locks.holder(state)["pid"] == os.getpid()


def test_a_process_of_another_machine_is_believed(tmp_path, number):
    if number is None:
        (tmp_path / "owner.json").write_text(json.dumps({"host": "other", "pid": 1}), "utf-8")
    else:
        (tmp_path / "owner.json").write_text("", "utf-8")  # cut short
    with pytest.raises(InputError, match="another process is writing there"):
        locks.held(tmp_path).__enter__()
    assert locks.holder(tmp_path) is not None
    (tmp_path / "owner.json").unlink()
    with locks.held(tmp_path):
        pass


def test_a_number_that_another_process_has_now_is_not_believed(tmp_path, monkeypatch):
    monkeypatch.setattr(fcntl, "flock", lambda file, operation: os.stat("/no/such/file"))
    gone = {**locks._me(), "began": "1"}
    (tmp_path / "owner.json").write_text(json.dumps(gone), "utf-8")
    assert locks.holder(tmp_path) is None
    with locks.held(tmp_path):
        assert locks.holder(tmp_path)["began"] == locks._began(os.getpid())


def test_who_looks_on_writes_nothing(tmp_path):
    assert locks.holder(tmp_path) is None
    with locks.held(tmp_path):
        (tmp_path / "lock").chmod(0o444)
        assert locks.holder(tmp_path)["pid"] == os.getpid()
    assert os.listdir(tmp_path) == ["lock"]


def test_work_that_was_finished_meanwhile_is_left_alone(tmp_path):
    folder = tmp_path / "out"
    folder.mkdir()
    with pytest.raises(InputError, match="exists already"), _claim(folder):
        pass
    assert os.listdir(tmp_path) == ["out"]
    with _claim(tmp_path / "other") as state:
        (state / "results").mkdir()
        (tmp_path / "other").mkdir()
        with pytest.raises(InputError, match="exists already"):
            finish(state, "results", tmp_path / "other")
    assert (unfinished(tmp_path / "other") / "results").is_dir()


def test_killed_between_the_last_two_renames(tmp_path):
    folder = tmp_path / "out"
    with _claim(folder) as state, part(state, "results") as new:
        (new / "rows.json").write_text("old", "utf-8")
    with _claim(folder, resume=True) as state:
        with part(state, "results") as new:
            (new / "rows.json").write_text("new", "utf-8")
        finish(state, "results", folder)
    assert (folder / "rows.json").read_text("utf-8") == "new"


@pytest.mark.parametrize("name", [".", "..", "there/..", ""])
def test_folders_without_a_name_of_their_own(name, tmp_path, monkeypatch):
    (tmp_path / "there").mkdir()
    monkeypatch.chdir(tmp_path / "there")
    (tmp_path / "there" / "there").mkdir()
    expected = tmp_path if name == ".." else tmp_path / "there"
    assert unfinished(name) == expected.with_name(f"{expected.name}.unfinished")


def test_a_folder_that_cannot_be_is_refused_before_any_work(tmp_path, monkeypatch):
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    (tmp_path / "file").touch()
    for name, words in (("link", "exists already"), ("file/out", "file is not a folder")):
        with pytest.raises(InputError, match=words):
            files.refuse_existing(tmp_path / name)
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    with pytest.raises(InputError, match=re.escape(f"{tmp_path} cannot be written")):
        files.refuse_existing(tmp_path / "a" / "b")
