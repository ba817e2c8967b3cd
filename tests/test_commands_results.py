"""Default folders are each one process's own, and nothing is left of work that never began."""

from __future__ import annotations

import errno
import os
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from click.testing import CliRunner

from cojax.cli import main
from cojax.commands.results import results
from cojax.errors import InputError
from cojax.io.resume import claim, unfinished


@pytest.fixture(autouse=True)
def one_second(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(time, "strftime", lambda *_: "20250101-120000")


def test_jobs_of_the_same_second_have_folders_of_their_own():
    ready = threading.Barrier(8)

    def job(number):
        ready.wait(60)
        with results(None, "sweep") as folder:
            unfinished(folder).joinpath("config.yaml").touch()
            ready.wait(60)
            return str(folder)

    with ThreadPoolExecutor(8) as jobs:
        folders = set(jobs.map(job, range(8)))
    stem = "results/sweep-20250101-120000"
    assert folders == {stem, *(f"{stem}-{n}" for n in range(2, 9))}


def test_a_finished_folder_of_the_same_second_is_left_alone():
    Path("results/train-ppo-20250101-120000").mkdir(parents=True)
    with results(None, "train-ppo") as folder:
        assert folder == Path("results/train-ppo-20250101-120000-2")
    assert [entry.name for entry in Path("results").iterdir()] == ["train-ppo-20250101-120000"]


@pytest.mark.parametrize(
    "arguments",
    [
        ["train", "ppo", "--fixture", "no-such"],
        ["train", "ppo", "--fixture", "point-mass", "--set", "nothing=1"],
        ["run", "no.yaml"],
        ["sweep", "no.yaml"],
    ],
)
def test_nothing_is_left_of_what_never_began(arguments, tmp_path):
    assert CliRunner().invoke(main, arguments).exit_code == 2
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("error", [KeyboardInterrupt, OSError(errno.ENOSPC, "No space left")])
def test_work_that_stops_says_how_to_go_on(error, capsys):
    def work():
        with results(None, "train-ppo") as folder, claim(folder, {"a": 1}, False, dict):
            raise error

    with pytest.raises((SystemExit, OSError)) as ended:
        work()
    folder = "results/train-ppo-20250101-120000"
    assert getattr(ended.value, "code", 130) == 130
    line = f"interrupted; go on: the same command with --resume --out {folder}\n"
    assert capsys.readouterr().err == line
    assert sorted(os.listdir(unfinished(folder))) == ["config.yaml", "lock"]


@pytest.mark.parametrize("command", ["train", "run"])
def test_commands_without_a_folder_take_one_of_their_own(command, monkeypatch):
    """Two commands in one second, the first being at work."""
    taken = []

    def work(config, folder, **options):
        taken.append(folder)
        with claim(Path(folder), {"n": len(taken)}, False, dict):
            if len(taken) == 1:
                assert CliRunner().invoke(main, arguments).exit_code == 130
            raise KeyboardInterrupt

    arguments = {"train": ["train", "ppo", "--fixture", "point-mass"], "run": ["run", "quickstart"]}
    arguments = arguments[command]
    monkeypatch.setattr("cojax.studies.run_study", work, raising=False)
    assert CliRunner().invoke(main, arguments).exit_code == 130
    assert len(set(taken)) == len(taken) == 2


def test_sigterm_ends_work_as_ctrl_c_does(capsys):
    before = signal.getsignal(signal.SIGTERM)

    def work():
        with results("out", "work", "again") as folder, claim(folder, {"a": 1}, False, dict):
            os.kill(os.getpid(), signal.SIGTERM)
            signal.pause()

    with pytest.raises(SystemExit) as ended:
        work()
    assert ended.value.code == 143
    assert capsys.readouterr().err == "interrupted; go on: again --out out\n"
    assert signal.getsignal(signal.SIGTERM) == before


def test_overwritten_results_stay_until_new_ones_are_written(tmp_path):
    folder = tmp_path / "out"

    def write(word, error=None):
        with results(folder, "work", overwrite=True):
            assert not folder.exists()
            if error is not None:
                raise error
            folder.mkdir()
            (folder / "provenance.json").write_text(word)

    write("first")
    write("second")
    with pytest.raises(OSError, match="No space"):
        write("third", OSError(errno.ENOSPC, "No space left"))
    assert (folder / "provenance.json").read_text() == "second"
    assert os.listdir(tmp_path) == ["out"]
    (folder / "provenance.json").unlink()
    with pytest.raises(InputError, match="--overwrite: expected a results folder"):
        write("fourth")
