"""``cojax list`` and ``cojax show``: what a person reads of fixtures."""

from __future__ import annotations

import json

from helpers import ARM, run

from cojax.fixtures import load_fixture, shipped


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


def test_show_draws_a_fixture_whole_or_not_at_all(tmp_path):
    path = tmp_path / "card.png"
    assert run("show", ARM, "--plot", str(path))[0] == 0
    assert path.read_bytes().startswith(b"\x89PNG")
    code, _, error = run("show", ARM, "--plot", str(tmp_path / "card.xyz"))
    assert code == 2
    assert "expected a file ending in .png, .pdf or .svg" in error
    assert [p.name for p in tmp_path.iterdir()] == ["card.png"]
