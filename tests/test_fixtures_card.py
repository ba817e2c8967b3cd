"""``cojax list`` and ``cojax show``: what a person reads of fixtures."""

from __future__ import annotations

import json
import subprocess
import sys

import numpy as np
import pytest
from helpers import ARM, relative, run

from cojax.errors import InputError
from cojax.fixtures import card, load_fixture, save_fixture, shelf, shipped, store
from cojax.io import yaml


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


def test_show_names_terms_of_the_value_and_the_cost_of_control():
    out = run("show", "wells-arm-n1")[1]
    assert "value sᵀPs + cosine, weight 3.0, frequency 2.5, along [1.0, 1.0]" in out
    assert "V* at the origin" not in out  # which P and Sigma alone do not give
    assert "control cost soft-threshold, mu 0.5" in run("show", "sparse-arm-n2")[1]


def test_show_draws_a_fixture_whole_or_not_at_all(tmp_path):
    path = tmp_path / "card.png"
    assert run("show", ARM, "--plot", str(path))[0] == 0
    assert path.read_bytes().startswith(b"\x89PNG")
    code, _, error = run("show", ARM, "--plot", str(tmp_path / "card.xyz"))
    assert code == 2
    assert "expected a file ending in .png, .pdf or .svg" in error
    assert [p.name for p in tmp_path.iterdir()] == ["card.png"]


@pytest.mark.parametrize("words", [("list",), ("list", "--json"), ("show", ARM)])
def test_reading_files_waits_for_neither_jax_nor_gymnax(words):
    code = (
        "import sys; from cojax import cli\n"
        f"cli.main({list(words)}, standalone_mode=False)\n"
        "print([m for m in ('jax', 'gymnax', 'flax', 'scipy') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, encoding="utf-8")
    assert done.stdout.splitlines()[-1] == "[]", done.stderr
    assert ARM in done.stdout


def test_what_is_read_quickly_is_what_is_loaded():
    for name in (ARM, "nvdex-k2-hard", "unicycle"):
        fixture = load_fixture(name)
        content, names = card.read(name)
        assert content == {**fixture.content(), "sha256": fixture.sha256}
        assert names == fixture.geometry.labels()
        line = next(x for x in card.card(content, names).splitlines() if "V* at" in x)
        offset = float(fixture.system(np.float64).offset)
        assert relative(float(line.split()[-1]), offset) < 1e-5


def test_what_a_system_remembers_is_called_the_same():
    kinds = set()
    for name in shipped():
        content, names = card.read(name)
        if "extension" in content and content["extension"]["kind"] not in kinds:
            kinds.add(content["extension"]["kind"])
            system = load_fixture(name).system()
            states, actions = system.labels()
            assert names == (states[: system.observed_dim], actions), name  # hidden ones are last
    assert {"action-rate", "delay", "markov-jump", "disturbance", "termination", "game"} <= kinds


def test_drafts_and_edited_files_are_checked_in_full(tmp_path):
    draft = tmp_path / "draft.yaml"
    save_fixture(load_fixture(ARM).with_changes(gamma=0.5, id="draft"), draft)
    code, out, _ = run("show", str(draft))
    assert code == 0
    assert "gamma = 0.5" in out
    assert "no certificate" in out
    edited = tmp_path / "edited.yaml"
    edited.write_text(store.to_text(load_fixture(ARM)).replace("gamma: 0.99", "gamma: 0.98"))
    assert shelf.validated(edited) is None
    code, _, error = run("show", str(edited))
    assert code == 2
    assert "the file was edited after it was validated" in error
    content = {"family": "NVDEx", "certificate": {"passed": True}}
    hashed = tmp_path / "hashed.yaml"
    hashed.write_text(yaml.dump({**content, "sha256": shelf.digest(content)}))
    with pytest.raises(InputError, match="expected this field, got nothing"):
        card.read(hashed)


def test_an_unknown_name_offers_the_nearest(tmp_path):
    assert "did you mean 'arm-n2-p0.80-s7'?" in run("show", "arm-n2-p0.8")[2]
    assert f"'{ARM}' is shipped" in run("show", str(tmp_path / f"{ARM}.yaml"))[2]
