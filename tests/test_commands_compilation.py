"""Commands keep compiled programs, and leave alone what the user has set."""

from __future__ import annotations

import os

import pytest
from click.testing import CliRunner

from cojax.cli import main
from cojax.commands import compilation


@pytest.fixture
def environ(monkeypatch, tmp_path):
    for name in ("XLA_FLAGS", "JAX_COMPILATION_CACHE_DIR"):
        monkeypatch.setenv(name, "")  # what settle sets is taken back afterwards
        monkeypatch.delenv(name)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr("importlib.metadata.entry_points", lambda group: [])
    return monkeypatch


def test_programs_are_kept_below_the_users_cache(environ, tmp_path):
    compilation.settle()
    folder = compilation.cache_folder()
    assert os.environ["JAX_COMPILATION_CACHE_DIR"] == str(folder)
    assert (folder.is_dir(), folder.parent) == (True, tmp_path / "cojax")
    assert os.environ["XLA_FLAGS"] == "--xla_backend_optimization_level=2"


def test_what_the_user_has_set_stays(environ):
    environ.setenv("XLA_FLAGS", "--xla_backend_optimization_level=3")
    environ.setenv("JAX_COMPILATION_CACHE_DIR", "elsewhere")
    compilation.settle()
    assert os.environ["XLA_FLAGS"] == "--xla_backend_optimization_level=3"
    assert os.environ["JAX_COMPILATION_CACHE_DIR"] == "elsewhere"


def test_other_flags_are_added_to_and_accelerators_left_alone(environ):
    environ.setenv("XLA_FLAGS", "--xla_force_host_platform_device_count=2")
    compilation.settle()
    first, second = os.environ["XLA_FLAGS"].split()
    assert first == "--xla_force_host_platform_device_count=2"
    assert second == "--xla_backend_optimization_level=2"
    environ.setenv("XLA_FLAGS", "")
    environ.setattr("importlib.metadata.entry_points", lambda group: ["cuda12"])
    compilation.settle()
    assert os.environ["XLA_FLAGS"] == ""


def test_a_cache_that_cannot_be_written_is_done_without(environ, tmp_path):
    (tmp_path / "cojax").write_text("a file in its place")
    compilation.settle()
    assert "JAX_COMPILATION_CACHE_DIR" not in os.environ


def test_a_user_without_a_home_keeps_nothing(environ):
    """A container with an arbitrary uid: no HOME, and no entry for the uid."""

    def nobody(uid):
        raise KeyError(uid)

    environ.delenv("XDG_CACHE_HOME")
    environ.delenv("HOME", raising=False)
    environ.setattr("pwd.getpwuid", nobody)
    compilation.settle()
    assert "JAX_COMPILATION_CACHE_DIR" not in os.environ
    result = CliRunner().invoke(main, ["show", "arm-n2-p0.80-s7"])
    assert result.exit_code == 0, result.exception


def test_a_cache_of_somebody_else_is_done_without(environ, tmp_path):
    environ.setattr(os, "access", lambda path, mode: False)
    compilation.settle()
    assert "JAX_COMPILATION_CACHE_DIR" not in os.environ


def test_the_oldest_programs_go(tmp_path):
    for age in range(5):
        (tmp_path / str(age)).write_bytes(bytes(10))
        os.utime(tmp_path / str(age), (100 - age, 100 - age))
    compilation.prune(tmp_path, limit=50)
    assert len(list(tmp_path.iterdir())) == 5
    compilation.prune(tmp_path, limit=49)
    assert {path.name for path in tmp_path.iterdir()} == {"0", "1"}
