from __future__ import annotations

import math
import sys

import pytest

from cojax.errors import InputError
from cojax.studies.candidates import Proposer, Storage, calls_of, importances
from cojax.studies.schema import Search
from cojax.studies.space import Parameter

pytest.importorskip("optuna")
SPACE = {
    "learning_rate": Parameter(low=1e-4, high=1e-1, log=True),
    "gae_lambda": Parameter(values=[0.9, 0.95]),
    "clip_eps": Parameter(low=0.1, high=0.3, when={"gae_lambda": [0.9]}),
}


def bowl(setting: dict, share: float) -> float:
    """A gap that is least, 0.01, at a learning rate of 1e-2 and falls with training."""
    return 10 ** (abs(math.log10(setting["learning_rate"]) + 2) - 2) / share


def finish(proposer: Proposer, calls: int = 1000) -> Proposer:
    for _ in range(calls):
        if not proposer.running:
            return proposer
        proposer.feed(
            [
                bowl(t.setting, (len(t.bounds) + 1) / proposer.calls) if t else 1.0
                for t in proposer.places
            ]
        )
    return proposer


NEEDS = {"cmaes": "cmaes", "gp": "torch"}


@pytest.mark.filterwarnings("ignore::optuna.exceptions.ExperimentalWarning")
@pytest.mark.parametrize("sampler", ["tpe", "random", "cmaes", "gp"])
def test_the_budget_is_spent_and_the_better_are_trained_to_the_end(sampler):
    if sampler in NEEDS:
        pytest.importorskip(NEEDS[sampler])
    search = Search(sampler=sampler, population=8, startup=8)
    proposer = finish(Proposer(search, SPACE, 30, seed=1))
    assert 29 <= float(proposer.spent) <= 30
    states = [trial.state for trial in proposer.trials]
    assert min(states.count("pruned"), states.count("complete")) > 4
    assert set(states) == {"complete", "pruned"}
    done = {s: [t for t in proposer.trials if t.state == s] for s in set(states)}
    off = {
        s: sum(abs(math.log10(t.setting["learning_rate"]) + 2) for t in ts) / len(ts)
        for s, ts in done.items()
    }
    assert off["complete"] < 0.75 * off["pruned"]
    assert all(
        ("clip_eps" in t.setting) == (t.setting["gae_lambda"] == 0.9) for t in proposer.trials
    )


def test_a_sampler_without_its_package_is_one_line_before_any_training(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(InputError, match=r"search\.sampler: 'gp' expected a package: .*torch"):
        Proposer(Search(sampler="gp"), SPACE, 30, seed=1)


def test_a_learning_sampler_beats_chance():
    def best(sampler):
        runs = [
            finish(
                Proposer(Search(sampler=sampler, population=8, startup=8, rungs=[]), SPACE, 48, s)
            )
            for s in range(5)
        ]
        return sorted(min(t.value for t in run.trials) for run in runs)[2]

    assert best("tpe") < best("random")


def test_fed_again_it_proposes_the_same():
    search = Search(population=4, startup=4)
    first = Proposer(search, SPACE, 12, seed=3)
    fed = []
    while first.running:
        bounds = [bowl(t.setting, 1.0) if t else math.nan for t in first.places]
        first.feed(bounds)
        fed.append(bounds)
    second = Proposer(search, SPACE, 12, seed=3)
    for bounds in fed:
        second.feed(bounds)
    assert [t.setting for t in second.trials] == [t.setting for t in first.trials]
    assert [t.state for t in second.trials] == [t.state for t in first.trials]
    other = finish(Proposer(search, SPACE, 12, seed=4))
    assert other.trials[0].setting != first.trials[0].setting


def test_a_rung_keeps_the_better_half():
    proposer = Proposer(Search(population=4, rungs=[0.5], startup=4), SPACE, 100, seed=0)
    assert proposer.calls == 2
    first = list(proposer.places)
    replaced = proposer.feed([1.0, 4.0, 2.0, math.inf])
    assert replaced == [False, True, False, True]
    assert [t.state for t in first] == ["running", "pruned", "running", "pruned"]
    assert proposer.places[0] is first[0]
    assert proposer.places[1] is not first[1]
    proposer.feed([1.0, 1.0, 1.0, 1.0])
    assert [t.state for t in first] == ["complete", "pruned", "complete", "pruned"]


def test_rungs_end_calls_of_equal_length():
    assert calls_of([0.25, 0.5]) == (4, [1, 2])
    assert calls_of([0.1, 0.3]) == (10, [1, 3])
    assert calls_of([]) == (1, [])


def test_a_storage_gets_every_trial_once(tmp_path):
    import optuna

    url = f"sqlite:///{tmp_path / 'trials.sqlite'}"
    proposer = Proposer(Search(population=4, startup=4), SPACE, 8, seed=0)
    finish(proposer, 2)
    Storage(url, "study").keep(proposer)
    finish(proposer)
    for _ in range(2):
        Storage(url, "study").keep(proposer)
    kept = optuna.load_study(storage=url, study_name="study").get_trials()
    assert sorted(t.user_attrs["number"] for t in kept) == [t.number for t in proposer.trials]
    best = min(kept, key=lambda t: t.value if t.state.name == "COMPLETE" else math.inf)
    ours = min((t for t in proposer.trials if t.state == "complete"), key=lambda trial: trial.value)
    assert best.user_attrs["number"] == ours.number
    assert best.params["learning_rate"] == ours.setting["learning_rate"]


@pytest.mark.parametrize(
    "url", ["mysql+nodriver://x/y", "sqlite:////nowhere/at/all.sqlite", "words"]
)
def test_a_storage_that_cannot_be_opened_is_one_line(url):
    with pytest.raises(InputError, match="cannot be opened") as caught:
        Storage(url, "study")
    assert "\n" not in str(caught.value)


def test_importance_finds_what_matters():
    proposer = finish(Proposer(Search(population=8, startup=40, rungs=[]), SPACE, 40, seed=0))
    shares = importances(proposer)
    assert shares["learning_rate"] == max(shares.values())
    assert importances(Proposer(Search(population=2), SPACE, 4, seed=0)) == {}
