"""What a run is beside its last policy: the best one, its discount, its memory and its chunks."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path

import gymnax
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from agents_toy import GAMMA, SMALL, Toy, ToyParams

from cojax.agents import DiscountWarning, checkpoint, memory_budget, ppo, prepare, train, training
from cojax.agents.algorithm import strong
from cojax.agents.layout import Layout
from cojax.agents.population import grid
from cojax.agents.run import labelled, numbers
from cojax.agents.training import discounts
from cojax.errors import InputError

ENV = Toy()


def distance(policy, env_params, key):
    """One number that goes up and down while the policy moves; NaN where it diverged."""
    return jnp.abs(policy(jnp.array([0.3]), key)[0] - 0.002 * (1.0 + env_params.target))


def fixtures():
    members = [ToyParams(), ToyParams(target=0.4), ToyParams(blow_up=1.0)]
    return jax.tree.map(lambda *x: jnp.stack(x), *[strong(p) for p in members])


OPTIONS = {
    "env": ENV,
    "hyperparameters": SMALL | {"learning_rate": 3e-3},
    "num_seeds": 4,
    "total_timesteps": 320,
    "eval_every": 64,
    "evaluate": distance,
    "batching": "loop",
}


def small(**changes):
    return train("ppo", fixtures(), jax.random.key(3), **OPTIONS | changes)


@pytest.fixture(scope="module")
def whole():
    return small()


def everything(run):
    return {
        "policy": run.policy.params,
        "best": run.best.params,
        "best_timesteps": run.best_timesteps,
        "metrics": run.metrics,
        "curves": run.curves,
        "failed": run.failed,
        "gamma": run.gamma,
        "timesteps": run.timesteps,
    }


def assert_same(a, b, **tolerance):
    pairs = zip(
        jax.tree_util.tree_leaves_with_path(everything(a)),
        jax.tree.leaves(everything(b)),
        strict=True,
    )
    for (path, x), y in pairs:
        assert np.shape(x) == np.shape(y), path
        np.testing.assert_allclose(
            x, y, err_msg=str(path), **{"rtol": 0.0, "atol": 0.0, **tolerance}
        )


def test_best_is_the_policy_of_the_lowest_interval(whole):
    finite = whole.curves[:2]
    assert finite.shape == (2, 4, 5)
    lowest = np.argmin(finite, axis=-1)
    assert len(np.unique(lowest)) > 1  # or the test says nothing
    np.testing.assert_array_equal(whole.best_timesteps[:2], whole.timesteps[lowest])
    for f in range(2):
        for seed in range(4):
            params = ToyParams(target=0.4 * f)
            policy = whole.member("best", fixture=f, seed=seed)
            assert float(distance(policy, params, jax.random.key(0))) == pytest.approx(
                finite[f, seed].min(), rel=1e-5, abs=1e-8
            )
            last = whole.member(fixture=f, seed=seed)
            assert float(distance(last, params, jax.random.key(0))) == pytest.approx(
                finite[f, seed, -1], rel=1e-5, abs=1e-8
            )
    assert np.isnan(whole.curves[2]).all()
    assert (whole.best_timesteps[2] == whole.timesteps[0]).all()


def test_there_is_no_best_without_a_number():
    run = small(evaluate=None, total_timesteps=64, num_seeds=None)
    assert run.best is None
    assert run.best_timesteps is None
    with pytest.raises(ValueError, match="there is no best policy"):
        run.member("best")
    with pytest.raises(ValueError, match="which: expected last or best, got 'first'"):
        run.member("first")
    assert numbers(np.zeros((3, 4, 2)), (3, 4)) is None
    assert numbers({"a": np.zeros(3), "b": np.zeros(3)}, (3,)) is None
    assert numbers({"a": np.zeros(3)}, (3,)) is not None


def test_curves_are_a_frame_with_settings_by_value(whole):
    rates = (1e-3, 3e-3)
    run = small(hyperparameters=[SMALL | {"learning_rate": rate} for rate in rates], num_seeds=2)
    assert run.settings() == [{"learning_rate": rate} for rate in rates]
    frame = run.frame()
    assert len(frame) == 3 * 2 * 2 * 5
    for fixture, setting, seed, interval in ((0, 0, 1, 0), (1, 1, 0, 4)):
        line = frame[
            (frame.fixture == fixture)
            & np.isclose(frame.learning_rate, rates[setting])
            & (frame.seed == seed)
            & (frame.timesteps == run.timesteps[interval])
        ]
        assert line.hyperparameters.tolist() == [setting]
        at = fixture, setting, seed, interval
        assert line.evaluation.tolist() == [run.curves[at]]
        assert line.policy_loss.tolist() == [run.metrics["policy_loss"][at]]
    rows = run.rows(["a", "b", "c"])
    assert [(row["fixture"], row["setting"]) for row in rows] == [
        (name, setting) for name in "abc" for setting in (0, 1)
    ]
    last = run.curves[1, 1, :, -1]
    assert rows[3]["seeds"] == pytest.approx(
        {"median": np.median(last), "low": last.min(), "high": last.max()}
    )
    assert rows[3]["hyperparameters"] == {"learning_rate": rates[1]}
    assert [dict(setting) for setting in run.policy.settings] == run.settings()
    assert run.policy.member(hyperparameters=1).settings == ()
    assert rows[-1]["seeds"]["median"] == np.inf  # it failed
    assert whole.settings() == [{}]
    assert "hyperparameters" not in whole.frame()
    with pytest.raises(ValueError, match="fixtures: expected 3 names, got 1"):
        run.rows(["a"])
    with pytest.raises(ValueError, match="no evaluation"):
        dataclasses.replace(run, curves=None).rows()


def test_progress_is_a_bar_a_function_or_nothing(monkeypatch, capsys):
    for progress in (None, "auto"):
        small(total_timesteps=64, num_seeds=None, progress=progress)
    assert capsys.readouterr().err == ""  # no terminal, no notebook
    for name in ("FORCE_COLOR", "TTY_INTERACTIVE"):  # to rich it is a terminal
        monkeypatch.setenv(name, "1")
    monkeypatch.setenv("TERM", "xterm")
    small(total_timesteps=64, num_seeds=None)
    assert "ppo: its defaults, with" in capsys.readouterr().err
    with pytest.raises(ValueError, match="progress: expected auto, None or a function, got 'bar'"):
        small(total_timesteps=64, num_seeds=None, progress="bar")


def test_chunks_of_members_that_run_in_turn_change_nothing(whole):
    """Bit for bit, whether an axis is cut once or into members."""
    assert whole.chunks == 1
    assert len(whole.states) == 12
    told = []
    state = memory_budget.tree_bytes(whole.states[0])
    for held, chunks in ((7, 2), (2, 4), (0, 12)):
        run = small(
            memory_limit=whole.memory_bytes - (11 - held) * state if held else one_member(),
            progress=lambda steps, total, metrics: told.append((steps, total)),
        )
        assert run.chunks == chunks
        assert run.states == []
        assert run.memory_bytes <= whole.memory_bytes - (11 - held) * state
        assert_same(run, whole)
    assert told[-1] == (320, 320)
    assert told[:10] == sorted(told[:10])


def one_member():
    """Bytes of a population of one."""
    return train(
        "ppo", ToyParams(), jax.random.key(3), **OPTIONS | {"num_seeds": None}
    ).memory_bytes


@pytest.mark.slow
def test_chunks_of_members_side_by_side_round_alike(whole):
    """Within 1e-5."""
    run = small(batching="vmap", num_seeds=3)
    cut = small(batching="vmap", num_seeds=3, memory_limit=0.8 * run.memory_bytes)
    assert run.chunks == 1
    assert cut.chunks > 1
    assert cut.memory_bytes <= 0.8 * run.memory_bytes
    assert_same(cut, run, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("size", "most", "length"),
    [
        (12, 12, 12),
        (12, 11, 6),
        (12, 7, 6),
        (12, 3, 3),
        (10, 7, 5),
        (30, 14, 10),
        (30, 4, 4),
        (30, 1, 1),
        (1, 1, 1),
        (5, 10**9, 5),
    ],
)
def test_length_of_chunks(size, most, length):
    assert memory_budget.chunk_length(size, most) == length <= most


def test_a_member_that_does_not_fit_is_one_line_before_any_work():
    limit = {"env": ENV, "memory_limit": 1e6}
    with pytest.raises(
        ValueError, match=r"one member of sac needs [\d.]+ GB, expected at most 1 MB"
    ):
        train(
            "sac",
            ToyParams(),
            jax.random.key(0),
            hyperparameters={"buffer_size": 1_000_000_000},  # 24 GB that nobody allocates
            **limit,
        )
    for bad in (0, -1.0, float("nan")):
        with pytest.raises(ValueError, match="memory_limit: expected a number of bytes > 0"):
            small(memory_limit=bad)


def test_a_member_whose_state_fits_and_whose_program_does_not(whole):
    with pytest.raises(ValueError, match="one member of ppo needs"):
        small(memory_limit=memory_budget.tree_bytes(whole.states[0]) + 8)


@pytest.mark.parametrize(
    ("batching", "devices"),
    [
        ("loop", 1),
        pytest.param("vmap", 1, marks=pytest.mark.slow),
        pytest.param("1", 1, marks=pytest.mark.slow),
        pytest.param("1", 2, marks=pytest.mark.slow),
        pytest.param("2", 1, marks=pytest.mark.slow),
    ],
)
def test_the_estimate_is_within_a_fifth_of_the_measured_peak(batching, devices):
    """4 replays of 192 MB; the mark of the process is reset before the training that counts."""
    probe, rows = Path(__file__).parent / "memory_probe.py", 8_000_000
    pool = {"JAX_NUM_CPU_DEVICES": str(devices), "PJRT_NPROC": "4", "NPROC": "4"}
    done = subprocess.run(
        [sys.executable, str(probe), batching, str(rows)],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, **pool},
    )
    bytes_ = json.loads(done.stdout)
    assert bytes_["estimate"] > 4 * rows * 6 * 4
    assert bytes_["estimate"] == pytest.approx(bytes_["measured"], rel=0.2)


def test_interrupted_in_the_middle_of_chunks(whole, tmp_path):
    """Continued under another limit: the chunks stay as they were, and so does the result."""
    limit = whole.memory_bytes - 6 * memory_budget.tree_bytes(whole.states[0])

    def interrupt(steps, total, metrics):
        if steps > 130:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        small(memory_limit=limit, checkpoint_dir=tmp_path, progress=interrupt)
    seen = []
    run = small(
        checkpoint_dir=tmp_path,
        progress=lambda steps, total, metrics: seen.append(steps),
    )
    assert run.chunks > 1
    assert min(seen) > 130
    assert_same(run, whole)


def test_states_are_written_no_oftener_than_asked(tmp_path):
    seen = []

    def look(steps, total, metrics):
        seen.append(sorted(p.name for p in tmp_path.iterdir() if p.name.isdigit()))

    options = {k: v for k, v in OPTIONS.items() if k != "num_seeds"}
    job = prepare(
        "ppo", ToyParams(), jax.random.key(3), num_seeds=None, checkpoint_dir=tmp_path, **options
    )
    job.run(look, checkpoint_seconds=3600.0)
    assert seen == [[], [], [], [], ["5"]]


def unstarted(params, hyperparameters, env=ENV, num_seeds=2):
    spec = ppo.ALGORITHM
    return grid(
        spec, env, params, jax.random.key(0), hyperparameters=hyperparameters,
        num_seeds=num_seeds, num_envs=None, batching="loop",
    )  # fmt: skip


def gammas(*arguments):
    population, sizes = unstarted(*arguments)
    gamma, line = discounts(population)
    return labelled(gamma, sizes), line


def test_gamma_of_each_member(whole):
    np.testing.assert_array_equal(whole.gamma, np.full((3, 4), GAMMA, np.float32))
    given = [SMALL | {"gamma": g} for g in (0.5, GAMMA)]
    gamma, line = gammas(fixtures(), given)
    assert line is not None
    assert line.startswith("gamma: 0.5 is not the system's own 0.9:")
    np.testing.assert_array_equal(gamma[:, 0], np.full((3, 2), 0.5, np.float32))
    np.testing.assert_array_equal(gamma[:, 1], np.full((3, 2), GAMMA, np.float32))
    varied = fixtures().replace(discount=jnp.array([0.9, 0.8, 0.7]))
    gamma, line = gammas(varied, SMALL)
    assert line is None
    np.testing.assert_array_equal(gamma[:, 1], np.array([0.9, 0.8, 0.7], np.float32))
    assert gammas(fixtures(), SMALL | {"gamma": GAMMA})[1] is None
    env, params = gymnax.make("Pendulum-v1")  # a system without a γ of its own
    gamma, line = gammas(params, SMALL | {"gamma": 0.5}, env, None)
    assert line is None
    assert gamma == np.float32(0.5)


def test_another_gamma_is_said_aloud_once(monkeypatch):
    monkeypatch.setattr(memory_budget, "fit", lambda *a: ([slice(0, 12)], 0))
    monkeypatch.setattr(training.Job, "run", lambda *a: None)
    with pytest.warns(DiscountWarning, match="0.5 is not the system's own 0.9") as caught:
        small(hyperparameters=SMALL | {"gamma": 0.5})
    assert len(caught) == 1
    small()  # and nothing here: warnings are errors


def test_chunks_cover_everybody():
    """Side by side all have one length: the last overlaps the one before."""
    turn, sizes = unstarted(fixtures(), SMALL, num_seeds=5)
    assert sizes == {"fixture": 3, "seed": 5}
    side = dataclasses.replace(turn, layout=Layout(15))
    for population, lengths in ((turn, {10, 5}), (side, {10})):
        cut = memory_budget.slices(population, 10)
        parts = [population.part(members) for members in cut]
        assert {part.size for part in parts} == lengths
        assert all(part.layout is None or part.layout.width == 10 for part in parts)
        seen = np.zeros(15, int)
        for members in cut:
            seen[members] += 1
        assert seen.min() == 1
    part = turn.part(slice(4, 11))
    np.testing.assert_allclose(part.env_params.target, [0.0, 0.4, 0.4, 0.4, 0.4, 0.4, 0.0])
    assert (part.keys == turn.keys[4:11]).all()
    assert (turn.keys[:5] == turn.keys[5:10]).all()


def test_members_that_share_a_system_share_its_memory():
    """Also in the call of a layout: neither parameters nor hyperparameters have members' axes."""
    population, _ = unstarted(ToyParams(), SMALL, num_seeds=5)
    assert population.arguments()[0].target.shape == ()
    assert population.part(slice(1, 4)).h.learning_rate.shape == ()
    assert population.arguments(3)[0] is population.env_params
    several, _ = unstarted(ToyParams(), [SMALL, SMALL], num_seeds=2)
    assert several.env_params.target.shape == ()
    assert several.h.learning_rate.shape == (4,)


@dataclasses.dataclass(frozen=True)
class Distance:
    """A measure with a setting of its own."""

    trials: int

    def __call__(self, policy, env_params, key):
        return self.trials * distance(policy, env_params, key)


def far(policy, env_params, key):
    return distance(policy, env_params, key) + 1.0


class Steeper(Toy):
    """Another environment under the name of the first."""

    def step_env(self, key, state, action, params):
        obs, state, reward, terminated, info = super().step_env(key, state, action, params)
        return obs, state, 2.0 * reward, terminated, info


Steeper.__name__ = "Toy"
ONE = OPTIONS | {"num_seeds": None, "total_timesteps": 64, "eval_every": 32}


def one(folder, **changes):
    return train("ppo", ToyParams(), jax.random.key(3), checkpoint_dir=folder, **ONE | changes)


def test_a_checkpoint_of_another_measure_environment_or_version_is_refused(tmp_path, monkeypatch):
    one(tmp_path, evaluate=Distance(2))
    one(tmp_path, evaluate=Distance(2))
    monkeypatch.setattr(memory_budget, "estimate", None)  # refused before anything is compiled
    for changes, words in (
        ({"evaluate": Distance(3)}, "another run: evaluate"),
        ({"evaluate": far}, "another run: evaluate"),
        ({"evaluate": None}, "another run: evaluate"),
        ({"evaluate": Distance(2), "env": Steeper()}, "another run: environment"),
    ):
        with pytest.raises(InputError, match=words):
            one(tmp_path, **changes)
    monkeypatch.setattr(checkpoint, "__version__", "0.0.1")
    with pytest.raises(InputError, match=r"versions: expected \{'cojax': '0\.0\.1'"):
        one(tmp_path, evaluate=Distance(2))


@pytest.mark.parametrize("damage", ["cut", "empty", "turned", "gone", "folder"])
def test_a_damaged_state_is_one_line(damage, tmp_path):
    one(tmp_path)
    files = [file for file in (tmp_path / "2").rglob("*") if file.is_file()]
    file = max(files, key=lambda file: file.stat().st_size)
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 16
    made = {"cut": content[: len(content) // 2], "empty": b"", "turned": content}
    file.unlink()
    if damage == "folder":
        file.mkdir()
    elif damage in made:
        file.write_bytes(made[damage])
    with pytest.raises(InputError, match="2: damaged, its files are not as written") as caught:
        one(tmp_path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["run.json", "chunk.json"])
@pytest.mark.parametrize("content", ["", "[1", "3", "[0]", "true", '"x"'])
def test_a_damaged_header_is_one_line(name, content, tmp_path):
    one(tmp_path)
    (tmp_path / name).write_text(content)
    with pytest.raises(InputError) as caught:
        one(tmp_path)
    assert "\n" not in str(caught.value)
