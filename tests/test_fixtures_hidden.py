"""Fixtures with a hidden part: checks pass, and fail for a wrong filter; files read back."""

from __future__ import annotations

import re

import numpy as np
import pytest
from helpers import scope

from cojax import hidden
from cojax.errors import InputError
from cojax.evaluation import hidden as splits
from cojax.fixtures import hidden_checks, load_fixture, make_fixture, save_fixture
from cojax.fixtures.batches import batches
from cojax.fixtures.card import read
from cojax.fixtures.fixture import Fixture

EFFECT = [[0.5, 0.1], [-0.2, 0.4]]
STATED = {
    "hidden-disturbance": {"transition": 0.9, "Sigma_z": 0.1, "Sigma_a": 0.1},
    "hidden-constant": {"Pi_0": 1.0, "Sigma_a": 0.2},
    "hidden-hypotheses": {"Sigma_a": 0.2, "transition": [[0.9375, 0.0625], [0.125, 0.875]]},
}


def mass(kind: str, **changes) -> Fixture:
    stated = {"kind": kind, "effect": EFFECT, **STATED[kind], **changes}
    return make_fixture(
        "PointMass", id=f"a-{kind}", extension=stated, Sigma=0.0, action_limit=None, certify=False
    )


def failed(fixture: Fixture) -> set[str]:
    return {name for name, check in hidden_checks.checks(fixture).items() if not check.passed}


def broken(monkeypatch, kind: str) -> set[str]:
    """What fails where one number of the filter is wrong."""
    if kind == "hidden-disturbance":
        right = hidden.stationary

        def wrong(*args):
            Pi, S, L = right(*args)
            return Pi, S, 1.3 * L

        monkeypatch.setattr(hidden, "stationary", wrong)
        monkeypatch.setattr(hidden, "SETTLED", np.inf)
        return {"filter", "filter_error"}
    name = {"hidden-constant": "prices_of_constant", "hidden-hypotheses": "prices_of_two"}[kind]
    exact = getattr(hidden, name)
    monkeypatch.setattr(hidden, name, lambda *args, **options: 0.5 * exact(*args, **options))
    return {"bayes_return"} if kind == "hidden-constant" else {"filter", "bayes_return"}


@pytest.mark.parametrize("kind", STATED)
def test_its_checks_pass_and_a_wrong_filter_fails_them(kind, monkeypatch):
    assert failed(mass(kind)) == set()
    expected = broken(monkeypatch, kind)
    assert expected <= failed(mass(kind))


def test_where_memory_is_of_no_use_it_is_no_fixture():
    assert failed(mass("hidden-disturbance", effect=np.zeros((2, 2)).tolist())) == {"memory_counts"}


def test_what_is_certified_is_what_can_be_known(tmp_path):
    kind = "hidden-constant"
    fixture = mass(kind)
    ((_, batch),) = batches([fixture])
    assert batch.double.system.state_dim == fixture.state_dim
    assert fixture.make_params().system.observed_dim == 4
    path = tmp_path / f"{fixture.id}.yaml"
    save_fixture(fixture, path)
    back = load_fixture(path)
    assert back == fixture
    assert len(read(path)[1][0]) == 4
    shown = mass(kind, observe="belief")
    assert shown.make_params().system.observed_dim == shown.state_dim
    assert shown.extension is not None
    assert (shown.extension.unseen, fixture.extension.unseen) == (0, fixture.state_dim - 4)


def test_the_price_is_that_of_its_system():
    fixture = mass("hidden-constant")
    with scope("float64"):
        params = fixture.make_params(dtype=np.float64)
        price = splits.price_of_not_knowing(params)
    assert fixture.extension.price_of_not_knowing(fixture) == pytest.approx(price, rel=1e-12)


@pytest.mark.parametrize(
    ("kind", "changes", "said"),
    [
        ("hidden-disturbance", {"transition": 1.0}, "transition: expected a spectral radius below"),
        ("hidden-constant", {"Sigma_a": 0.0}, "Sigma_a: "),
        ("hidden-hypotheses", {"effect": [[1.0], [1.0]]}, "effect: expected two columns"),
        ("hidden-constant", {"observe": "z"}, "extension.observe"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(kind, changes, said):
    with pytest.raises(InputError, match=re.escape(said)) as error:
        mass(kind, **changes)
    assert "\n" not in str(error.value)
