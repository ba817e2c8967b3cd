"""The wheel holds what the package needs; importing needs no extra, and names a missing one."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = ("stable_baselines3", "torch", "brax", "dm_env", "rejax", "optuna", "tensorboardX")
EXTRAS += ("wandb", "ray", "control", "sbx", "nbformat", "pytest")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """The names in a wheel built of the package alone, without the network."""
    pytest.importorskip("setuptools", minversion="77")
    folder = tmp_path_factory.mktemp("wheel")
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, folder)
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "cojax", folder / "cojax", ignore=ignored)
    code = "from setuptools.build_meta import build_wheel; print(build_wheel('.'))"
    command = [sys.executable, "-c", code]
    out = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    assert out.returncode == 0, out.stderr
    with zipfile.ZipFile(folder / out.stdout.split()[-1]) as file:
        return set(file.namelist())


def test_the_wheel_holds_every_file_of_the_package(wheel):
    ours = {
        path.relative_to(ROOT).as_posix()
        for path in (ROOT / "cojax").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts and path.suffix != ".pyc"
    }
    assert ours - wheel == set()
    assert "cojax/py.typed" in wheel
    assert sum(name.startswith("cojax/fixtures/data/") for name in wheel) >= 61
    assert {name.split("/")[0] for name in wheel if "dist-info" not in name} == {"cojax"}
    assert any(name.endswith("licenses/LICENSE") for name in wheel)


def test_everything_is_imported_without_an_extra(tmp_path):
    code = f"""
import sys

class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {EXTRAS!r}:
            raise ImportError(name)

sys.meta_path.insert(0, Refuse())
import cojax, cojax.cli, cojax.adapters.gymnasium, cojax.report.page, cojax.experiments
[getattr(cojax, name) for name in cojax.__all__]
env, params = cojax.make("DoubleIntegrator-v0")
for name in ("stable_baselines3", "brax", "dm_env"):
    try:
        __import__(f"cojax.adapters.{{name}}")
    except ValueError as error:
        print(error)
"""
    out = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True)
    assert out.returncode == 0, out.stderr
    lines = out.stdout.strip().splitlines()
    assert len(lines) == 3
    for line, extra in zip(lines, ("sb3", "brax", "dm_env"), strict=True):
        assert f"pip install 'cojax[{extra}]'" in line
        assert extra in PROJECT["optional-dependencies"]


def test_versions_of_python_and_jax_are_stated_once():
    oldest = [re.sub(r"[^\d.].*", "", name.partition(">=")[2]) for name in PROJECT["dependencies"]]
    named = dict(zip((re.split(r"\W", n)[0] for n in PROJECT["dependencies"]), oldest, strict=True))
    assert named["jax"] == named["jaxlib"]
    cuda = PROJECT["optional-dependencies"]["cuda"][0]
    assert cuda.partition("]")[2] == PROJECT["dependencies"][0].removeprefix("jax")
    assert PROJECT["requires-python"] == ">=3.11"
