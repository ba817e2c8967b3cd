"""One configuration: views of it, schemas before it, and what it refuses."""

from __future__ import annotations

import pytest

from cojax.errors import InputError
from cojax.studies import load_study, shipped_studies, study

PPO = {"name": "ppo", "hyperparameters": {"learning_rate": 1e-3}}
NOW = {"schema": "cojax.study/1", "fixtures": ["point-mass"], "algorithms": [PPO]}


@pytest.mark.parametrize(
    ("before", "kind", "change"),
    [
        ({"schema": "cojax.experiment/1", "name": "a", "algorithms": [PPO]}, "run", {"name": "a"}),
        (
            {"schema": "cojax.train/1", "algorithm": PPO, "settings": [{"gamma": 0.9}]},
            "train",
            {"algorithms": [{**PPO, "settings": [{"gamma": 0.9}]}], "profile": "tuned"},
        ),
        ({"schema": "cojax.train/1", "algorithm": PPO, "tuned": False}, "train", {"profile": None}),
        ({"schema": "cojax.train/1", "algorithm": PPO}, "train", {"profile": "tuned"}),
        (
            {"schema": "cojax.sweep/1", "algorithms": [PPO], "num_seeds": 2},
            "sweep",
            {"num_seeds": 2, "profile": "tuned"},
        ),
        (
            {"schema": "cojax.sweep/1", "algorithms": [PPO], "curve": {"points": 3}},
            "sweep",
            {"curve": {"points": 3}, "profile": "tuned"},
        ),
    ],
)
def test_schemas_of_before_are_read(before, kind, change):
    before = {**before, "fixtures": ["point-mass"]}
    assert study(before) == study({**NOW, "kind": kind, **change})


def test_kinds_differ_in_what_lies_beneath():
    found = {kind: study({**NOW, "name": "a"}, kind) for kind in ("run", "train", "sweep")}
    assert {k: s.evaluation.policies for k, s in found.items()} == {
        "run": ["oracle", "zero", "random"], "train": [], "sweep": [],
    }  # fmt: skip
    assert {k: (s.evaluation.num_trials, s.evaluation.root) for k, s in found.items()} == {
        "run": (256, 0), "train": (256, 0), "sweep": (64, 2),
    }  # fmt: skip
    assert {k: s.curve.points for k, s in found.items()} == {"run": 10, "train": 20, "sweep": 5}
    assert {k: s.profile for k, s in found.items()} == {
        "run": None, "train": None, "sweep": None,
    }  # fmt: skip
    assert [k for k, s in found.items() if s.common_streams] == ["run"]


def test_what_is_written_is_what_was_read():
    for name in shipped_studies():
        found = load_study(name)
        assert study(found.content()) == found
    assert set(shipped_studies("sweep")) < set(shipped_studies())


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"schema": "cojax.study/2"}, "schema: input should be 'cojax.study/1'"),
        ({"kind": "sweep"}, "kind: expected train, got sweep: use cojax sweep"),
        ({"kind": "swep"}, "kind: input should be 'run', 'train' or 'sweep'"),
        ({"algorithms": [PPO, {"name": "sac"}]}, "algorithms: expected one to train, got 2"),
        ({"search": {}}, "search: expected in a sweep alone"),
        ({"initial_seeds": [1]}, "initial_seeds: expected none"),
        (
            {"algorithms": [{**PPO, "settings": [{}], "space": {"gamma": [0.9]}}]},
            "algorithms.ppo: expected settings or a space",
        ),
    ],
)
def test_unusable_studies_are_one_line(change, words):
    with pytest.raises(InputError, match="study: ") as caught:
        study({**NOW, **change}, "train")
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)
    with pytest.raises(InputError, match="expected none in a sweep"):
        study({**NOW, "evaluation": {"policies": ["zero"]}}, "sweep")


def test_a_plain_name_is_an_algorithm():
    content = {"schema": "cojax.study/1", "name": "plain", "fixtures": ["nvdex-k1-easy"]}
    plain = study({**content, "algorithms": ["ppo", {"name": "sac"}]}, "run")
    assert plain == study({**content, "algorithms": [{"name": "ppo"}, {"name": "sac"}]}, "run")
    with pytest.raises(InputError, match="unknown algorithm 'pppo'; did you mean 'ppo'"):
        study({**content, "algorithms": ["pppo"]}, "run")
