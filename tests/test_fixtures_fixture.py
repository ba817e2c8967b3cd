"""A fixture as data: changes, equality, params, and its file."""

from __future__ import annotations

import copy
import dataclasses
import pickle
import re

import jax
import numpy as np
import pytest
from helpers import ARM, run
from hypothesis import given
from hypothesis import strategies as st

import cojax
from cojax import precision
from cojax.errors import CertificateError, InputError, UncertifiedWarning
from cojax.fixtures import (
    Fixture,
    load_fixture,
    make_fixture,
    save_fixture,
    schema,
    store,
    validate,
)
from cojax.fixtures.fixture import from_content


@given(seed=st.integers(0, 2**31), n=st.integers(1, 3), form=st.sampled_from(["metric", "sqrt"]))
def test_a_fixture_reads_back_bit_for_bit(tmp_path_factory, seed, n, form):
    rng = np.random.default_rng(seed)
    B = rng.normal(size=(2 * n, 2 * n))
    P = B @ B.T + np.eye(2 * n)
    fixture = make_fixture(
        "ConverseArm",
        id=f"t-{seed}",
        n=n,
        p=rng.uniform(0.1, 1.0),
        P=0.5 * (P + P.T),
        R=rng.uniform(0.1, 3.0, n),
        Sigma=np.diag(rng.uniform(0, 1e-9, 2 * n)),
        parameterization=form,
        action_limit=rng.uniform(1, 2, n),
        initial_state={"law": "fixed", "state": rng.normal(size=2 * n).tolist()},
        certify=False,
    )
    path = tmp_path_factory.mktemp("fixtures") / "f.yaml"
    save_fixture(fixture, path)
    again = load_fixture(path)
    assert again == fixture
    for name in ("P", "R", "Sigma"):
        assert getattr(again, name).tobytes() == getattr(fixture, name).tobytes()
    assert np.asarray(again.knobs["p"]).tobytes() == np.asarray(fixture.knobs["p"]).tobytes()
    assert store.to_text(again) == path.read_text()


def test_with_changes_drops_what_described_the_old_one():
    fixture = load_fixture(ARM)
    changed = fixture.with_changes(p=0.5, R=4.0, horizon=10, id="other")
    assert changed.knobs["p"] == 0.5
    assert changed.horizon == 10
    assert (changed.R == 4.0).all()
    assert changed.certificate is None
    assert changed.reference is None
    assert fixture.p == 0.8
    with pytest.raises(InputError, match="did you mean 'horizon'"):
        fixture.with_changes(horizons=3)
    with pytest.raises(InputError, match=r"knobs\.p: expected a number in \(0, 1\], got 2"):
        fixture.with_changes(p=2.0)


def test_replacement_keeps_no_description_of_another_problem():
    """``dataclasses.replace`` and, from Python 3.13 on, ``copy.replace``, which calls it."""
    fixture = load_fixture(ARM)
    changes = {"R": fixture.R / 2, "knobs": fixture.knobs | {"p": 0.5}, "gamma": 0.9, "horizon": 9}
    for name, value in changes.items():
        for replace in (dataclasses.replace, getattr(copy, "replace", dataclasses.replace)):
            with pytest.raises(InputError, match=rf"{name}: .*use fixture\.with_changes\({name}="):
                replace(fixture, **{name: value})
    renamed = dataclasses.replace(fixture, id="other", certificate=None)
    assert (renamed.id, renamed.certificate) == ("other", None)
    for again in (copy.copy(fixture), copy.deepcopy(fixture), pickle.loads(pickle.dumps(fixture))):
        assert again == fixture


def test_params_follow_the_fixture_and_options_override_it():
    fixture = load_fixture(ARM).with_changes(action_limit=[1.0, 3.0])
    with pytest.warns(UncertifiedWarning, match=f"^{fixture.id}: no certificate; what it calls"):
        params = fixture.params
    assert params is fixture.params
    assert params.system.gamma.dtype == np.float32
    assert int(params.max_steps_in_episode) == 512
    assert np.asarray(params.action_limit).tolist() == [1.0, 3.0]
    assert int(fixture.make_params(max_steps_in_episode=5).max_steps_in_episode) == 5
    assert not fixture.with_changes(action_limit=None).make_params().clip_actions
    assert fixture.make_params(dtype=np.float64).action_limit.dtype == np.float64
    env, made = cojax.make(ARM, action_limit=0.5)
    assert np.asarray(made.action_limit).tolist() == [0.5, 0.5]
    assert env.default_params is made


def test_a_list_of_starts_is_drawn_alike_in_both_precisions():
    states = np.arange(40.0).reshape(10, 4).tolist()
    fixture = load_fixture(ARM).with_changes(initial_state={"law": "list", "states": states})
    keys = jax.random.split(jax.random.key(0, impl="threefry2x32"), 32)
    single = jax.jit(jax.vmap(lambda k: fixture.initial_law(np.float32).sample(k)))(keys)
    with precision.x64():
        double = jax.jit(jax.vmap(lambda k: fixture.initial_law(np.float64).sample(k)))(keys)
    np.testing.assert_array_equal(single, double)


@pytest.mark.parametrize("name", [ARM, "nvdex-k1-medium-deep"])
def test_initial_states_are_the_same_numbers_in_both_precisions(name):
    fixture = load_fixture(name)
    key = jax.random.key(3, impl="threefry2x32")
    single = jax.jit(lambda law: law.sample(key))(fixture.initial_law(np.float32))
    with precision.x64():
        double = jax.jit(lambda law: law.sample(key))(fixture.initial_law(np.float64))
    np.testing.assert_allclose(single, double, rtol=1e-5)


def test_a_fixture_without_Q_is_tuned_to_its_spectral_radius():
    content = load_fixture("nvdex-k1-easy").content()
    content["matrices"].pop("Q")
    content["matrices"]["R"] = 0.4
    tuned = from_content(content)
    assert np.allclose(tuned.R, 0.144)
    assert tuned.Q.by == pytest.approx(0.0247805935, rel=1e-8)  # pyright: ignore


def test_saving_writes_whole_or_not_at_all(tmp_path, monkeypatch):
    path = tmp_path / "f.yaml"
    path.write_text("before")
    monkeypatch.setattr("os.fsync", lambda _: (_ for _ in ()).throw(OSError(28, "no space")))
    with pytest.raises(OSError, match="no space"):
        save_fixture(load_fixture(ARM), path)
    assert path.read_text() == "before"
    assert list(tmp_path.iterdir()) == [path]


def test_make_fixture_suggests_the_nearest_option():
    with pytest.raises(InputError, match="did you mean 'alpha0'"):
        make_fixture("ConverseArm", id="x", alpha=0.1)
    with pytest.raises(InputError, match="did you mean 'NVDEx'"):
        make_fixture("NVDex", id="x")


def test_fixture_equality_is_equality_of_content():
    a, b = load_fixture(ARM), load_fixture(ARM)
    assert isinstance(a, Fixture)
    assert a == b
    assert len({a, b}) == 1
    assert a != a.with_changes(gamma=0.98)


def test_another_problem_has_another_id_and_nothing_of_what_described_the_old_one():
    fixture = load_fixture(ARM)
    changed = fixture.with_changes(gamma=0.98)
    assert re.fullmatch(rf"{ARM}-[0-9a-f]{{6}}", changed.id)
    assert changed.id == fixture.with_changes(gamma=0.98, horizon=512).id
    assert changed.id != fixture.with_changes(gamma=0.97).id
    assert fixture.with_changes(certificate=None).id == fixture.with_changes(p=0.8).id == ARM
    with pytest.raises(InputError, match=f"^id: expected another than '{ARM}'"):
        fixture.with_changes(gamma=0.98, id=ARM)


def test_a_derived_fixture_is_certified_or_refused_with_a_number():
    fixture = load_fixture(ARM)
    made = fixture.derive(Sigma=1e-5, horizon=64)
    assert (made.Sigma == 1e-5).all()
    assert made.certificate
    assert made.difficulty is not None
    assert made.difficulty.terms["tr(Sigma)"] == pytest.approx(4e-5)
    assert made.id == fixture.with_changes(Sigma=1e-5, horizon=64).id
    assert made == made.with_changes(
        certificate=made.certificate, difficulty=made.difficulty, reference=made.reference
    )
    refused = r"^tight: cannot be certified: action_bound: [0-9.]+, tolerance 0.01; "
    with pytest.raises(CertificateError, match=refused):
        fixture.derive(action_limit=0.1, horizon=64, id="tight")
    with pytest.raises(InputError, match=f"derive: expected a change, this is {ARM} itself"):
        fixture.derive(gamma=fixture.gamma)
    with pytest.raises(InputError, match="did you mean 'Sigma'"):
        fixture.derive(sigma=1.0)


def test_a_target_that_a_change_misses_is_dropped_and_one_that_is_changed_is_met():
    fixture = load_fixture("nvdex-k1-easy")
    assert fixture.derive(p=0.7, horizon=64).knobs["rho_target"] is None
    assert fixture.derive(Sigma=1e-5, horizon=64).knobs["rho_target"] == 1.001
    other = fixture.derive(rho_target=1.002, horizon=64)
    assert other.knobs["rho_target"] == 1.002
    assert isinstance(other.Q, schema.Scaled)
    assert isinstance(fixture.Q, schema.Scaled)
    assert other.Q.by != fixture.Q.by


def test_derive_from_the_command_line(tmp_path):
    out = tmp_path / "noisy.yaml"
    words = ["derive", ARM, "--set", "Sigma=1e-5", "--set", "horizon=64", "--out", str(out)]
    code, told, _ = run(*words, "--id", "noisy")
    assert code == 0
    assert told.startswith(f"{out}: noisy, certified, difficulty ")
    assert validate(out).passed
    assert run(*words)[0] == 2  # it is there already
    tight = tmp_path / "tight.yaml"
    words = ["derive", ARM, "--set", "action_limit=0.1", "--set", "horizon=64", "--out", str(tight)]
    code, told, error = run(*words)
    assert (code, told) == (1, "")
    assert "cannot be certified: action_bound: " in error
    assert run(*words[:2], "--set", "Sigma", "--out", str(tight))[0] == 2
    assert [path.name for path in tmp_path.iterdir()] == ["noisy.yaml"]
