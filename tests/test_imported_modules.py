"""``--import MODULE``: a user's module registers its own before any command works."""

from __future__ import annotations

import pickle
import shutil
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from flax import struct
from helpers import ARM, run
from test_plugins import Spinner

import cojax
from cojax import families, plugins
from cojax.agents import ALGORITHMS
from cojax.errors import InputError
from cojax.io import json_text
from cojax.studies import engine
from cojax.studies.cluster import _chunk

SIZES = ("--set", "num_envs=4", "--set", "num_steps=8")
SHORT = ("--seeds", "1", "--timesteps", "64", "--points", "2", *SIZES)


@pytest.fixture
def module(tmp_path, monkeypatch):
    """A file of a user's with a learner and a family, which it registers."""
    folder = Path(__file__).parent
    shutil.copy(folder / "own_learner.py", tmp_path / "learner_of_mine.py")
    file = tmp_path / "mine.py"
    file.write_text(
        "import cojax, learner_of_mine, test_plugins\n"
        "cojax.agents.register(learner_of_mine.ALGORITHM)\n"
        "cojax.families.register(test_plugins.Spinner)\n"
    )
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield str(file)
    for name in ("mine", "learner_of_mine"):
        sys.modules.pop(name, None)
    ALGORITHMS.pop("reinforce", None)
    families.FAMILIES.pop("Spinner", None)


def test_every_command_has_it():
    for words in (["list"], ["train"], ["sweep", "run"], ["sweep", "status"], ["compare"]):
        assert "--import MODULE|FILE.py" in run(*words, "--help")[1], words


def test_names_of_algorithms_are_those_of_the_registry():
    assert set(plugins.algorithms()) == set(ALGORITHMS)
    assert set(plugins.ALGORITHMS) == set(cojax.agents.training.BUILT_IN)
    assert "ppo, a2c, sac" in " ".join(run("train", "--help")[1].split())
    assert "expected ppo, a2c, sac" in run("train")[2]


def test_a_learner_and_a_family_of_a_module(module, tmp_path):
    """Listed, trained, swept, generated and gone on with."""
    assert "reinforce" in run("train", "--import", module, "--help")[1]
    out, fixtures = str(tmp_path / "out"), str(tmp_path / "spinners")
    words = ["train", "reinforce", "--import", module, "--fixture", ARM, *SHORT, "--out", out]
    code, _, error = run(*words)
    assert code == 0, error
    row = json_text.load(Path(out) / "rows.json", list)[0]
    assert row["policy"] == "reinforce"
    policy = next(Path(out).glob("policies/*.npz"))
    assert cojax.agents.load_policy(policy).axes
    code, _, error = run(
        "generate", "Spinner", "--num", "1", "--range", "p=0.8", "--out", fixtures,
        "--import", module,
    )  # fmt: skip
    assert code == 0, error
    sweep = tmp_path / "sweep.yaml"
    sweep.write_text(
        "schema: cojax.study/1\nkind: sweep\nnum_seeds: 1\ntotal_timesteps: 64\n"
        f"fixtures: [{next(Path(fixtures).glob('*.yaml'))}]\n"
        "curve: {points: 2, num_trials: 2}\nevaluation: {num_trials: 2}\n"
        "algorithms:\n- name: reinforce\n  hyperparameters: {num_envs: 4, num_steps: 8}\n"
        "  space: {std: [0.1, 0.2]}\n"
    )
    swept = str(tmp_path / "swept")
    code, _, error = run("sweep", str(sweep), "--import", module, "--out", swept, "--devices", "1")
    assert code == 0, error
    assert len(json_text.load(Path(swept) / "rows.json", list)) == 2


def test_what_cannot_be_imported_is_one_line(tmp_path):
    bad, taken = tmp_path / "bad_module.py", tmp_path / "pytest.py"
    bad.write_text("raise KeyError('lost\\nmore')")
    taken.write_text("")
    for word, said in (
        (str(tmp_path / "no.py"), "no such file"),
        ("no_such_module", "no such module; expected a name, or a file ending in .py"),
        (str(bad), "it fails with KeyError: 'lost"),
        (str(taken), "another module is called pytest; rename the file"),
    ):
        code, out, error = run("list", "--import", word)
        assert (code, out) == (2, "")
        assert error.startswith(f"cojax: --import {word}: {said}")
        assert error.count("\n") == 1
    assert "bad_module" not in sys.modules
    assert run("list")[0] == 0


def test_workers_import_before_they_look_at_a_learner(module, monkeypatch):
    plugins.import_modules([module])
    packed = pickle.dumps((1, sys.modules["learner_of_mine"].init))
    for name in ("mine", "learner_of_mine"):
        del sys.modules[name]
    del ALGORITHMS["reinforce"]
    monkeypatch.setitem(sys.modules, "ray", SimpleNamespace(cloudpickle=pickle))
    monkeypatch.setattr(engine, "prepare", lambda *_: None)
    monkeypatch.setattr(engine, "run", lambda group, *_: group)
    monkeypatch.setattr(sys, "path", [x for x in sys.path if x != str(Path(module).parent)])
    found = _chunk(None, packed, None, [module], width=1, length=1)  # pyright: ignore
    assert found[1] is sys.modules["learner_of_mine"].init  # pyright: ignore
    assert "reinforce" in ALGORITHMS


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"actuate": lambda self, s, a: a}, r"actuate\(s, a\): expected an array of shape \(2,\)"),
        ({"rotate": lambda self, s, x: x}, r"rotate\(s, x, p\) fails with TypeError: "),
        ({"noise_order": lambda self: (0, 0)}, r"noise_order\(\): expected every row of 0 … 1 onc"),
    ],
)
def test_families_are_tried_when_they_are_registered(change, words):
    bare = type("Spinner", (Spinner,), change)
    with pytest.raises(InputError, match=r"family Spinner: expected a pytree: put @flax\.struct"):
        families.register(bare)
    kind = struct.dataclass(bare)
    with pytest.raises(InputError, match=f"^family Spinner: {words}") as caught:
        families.register(kind)
    assert "\n" not in str(caught.value)
    assert "Spinner" not in families.FAMILIES


def test_a_family_without_ranges_says_so(monkeypatch):
    kind = type("Spinner", (Spinner,), {"ranges": cojax.quadratic.Geometry.ranges})
    kind = struct.dataclass(kind)
    monkeypatch.setitem(families.FAMILIES, "Spinner", kind)
    with pytest.raises(InputError, match=r"ranges: Spinner has none of its own; expected some, of"):
        cojax.fixtures.generate("Spinner")
    (made,) = cojax.fixtures.generate("Spinner", ranges={"gain": 0.1})
    assert made.knobs["gain"] == 0.1
