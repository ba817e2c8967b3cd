"""Sweeps over devices, processes and nodes: the same table as on one device."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys

import numpy as np
import pandas as pd
import pytest
from test_sweeps import SMALL, changed, of, same

from cojax.errors import InputError
from cojax.sweeps import run_sweep, sweep

DEVICES = """
import json, sys
from cojax.sweeps import run_sweep, sweep
content, out = json.loads(sys.argv[1]), sys.argv[2]
for count in (1, 8):
    execution = {"devices": count, "chunk_members": 6}
    run_sweep(sweep({**content, "execution": execution}), f"{out}/{count}")
"""


def environment(**extra):
    return {**os.environ, "JAX_NUM_CPU_DEVICES": "1", **extra}


GENTLE = {  # slow learning in whole episodes, which amplifies rounding least
    "log_std_init": -3.5, "target_kl": 0.02, "gae_lambda": 0.95, "actor_ema_rate": 1.0,
    "max_episode_steps": 512,
}  # fmt: skip


@pytest.mark.slow  # two processes, below, take the same road
def test_eight_devices_give_what_one_gives(tmp_path):
    """Six members on eight devices: two are padding. Programs for several devices round otherwise,
    so equal is up to rounding, amplified by four updates.
    """
    (algorithm,) = SMALL["algorithms"]
    algorithm = {**algorithm, "hyperparameters": {**algorithm["hyperparameters"], **GENTLE}}
    content = {**SMALL, "algorithms": [algorithm]}
    env = environment(JAX_NUM_CPU_DEVICES="8", PJRT_NPROC="12", NPROC="12")
    done = subprocess.run(
        [sys.executable, "-c", DEVICES, json.dumps(content), str(tmp_path)],
        env=env, capture_output=True, text=True, timeout=400,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "on each of 6 devices" in done.stderr or "on each of 8 devices" in done.stderr
    one, eight = (pd.read_parquet(tmp_path / n / "members.parquet") for n in ("1", "8"))
    assert list(one["seed"]) == list(eight["seed"])
    gaps = [pd.read_parquet(tmp_path / n / "trials.parquet") for n in ("1", "8")]
    a, b = (x["relative_suboptimality"].to_numpy().reshape(6, -1) for x in gaps)
    tame = a < 100.0  # a trial that runs away depends on rounding
    assert tame.mean() > 0.3
    np.testing.assert_allclose(a[tame], b[tame], rtol=1e-2)
    assert len(np.unique(a[:, 0])) == 6  # members differ: the comparison means something


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """The sweep on one device of one process."""
    folder = tmp_path_factory.mktemp("alone")
    run_sweep(changed(execution={"devices": 1, "chunk_members": 4}), folder / "out")
    return folder / "out"


def slurm(index: int, job: int) -> dict[str, str]:
    """What srun tells the tasks of a step of two on this machine; the job decides the port."""
    return {
        "SLURM_JOB_ID": str(job), "SLURM_STEP_NODELIST": "localhost", "SLURM_NTASKS": "2",
        "SLURM_PROCID": str(index), "SLURM_LOCALID": str(index), "SLURM_STEP_NUM_NODES": "1",
    }  # fmt: skip


@pytest.mark.parametrize("started_by", [pytest.param("hand", marks=pytest.mark.slow), "srun"])
def test_two_processes_give_what_one_gives(started_by, alone, tmp_path):
    """Each trains two of four members: a loop over one alone is compiled to other roundings."""
    content = {**SMALL, "execution": {"chunk_members": 4}}
    (tmp_path / "small.yaml").write_text(json.dumps(content))
    address = f"127.0.0.1:{free_port()}"
    command = [sys.executable, "-m", "cojax", "sweep", str(tmp_path / "small.yaml")]
    command += ["--out", str(tmp_path / "out"), "--devices", "1"]
    by_hand = started_by == "hand"
    runs = [
        subprocess.Popen(
            [*command, "--hosts", f"{address},2,{index}" if by_hand else "auto"],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            env=environment(**({} if by_hand else slurm(index, os.getpid()))),
        )
        for index in range(2)
    ]  # fmt: skip
    try:
        words = [run.communicate(timeout=400)[0] for run in runs]
    finally:
        for run in runs:
            run.kill()
    assert [run.returncode for run in runs] == [0, 0], words
    same(alone, tmp_path / "out")


@pytest.mark.parametrize(
    ("hosts", "words"),
    [("here", "expected ADDRESS,N,I"), ("a:1,2,2", "I from 0"), ("a:1,1,0", "N >= 2")],
)
def test_processes_that_cannot_be(hosts, words):
    from cojax.studies.hosts import join

    with pytest.raises(InputError, match=words):
        join(hosts)


def test_nothing_that_started_several_processes_is_one_line(tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "cojax", "sweep", "learning_rate", "--hosts", "auto"],
        capture_output=True, text=True, cwd=tmp_path, env=environment(), timeout=100,
    )  # fmt: skip
    assert done.returncode == 2
    assert done.stderr == (
        "cojax: --hosts: auto: expected processes started by srun or mpirun, found none\n"
    )
    assert list(tmp_path.iterdir()) == []


def test_a_ray_address_that_does_not_answer_is_one_line(tmp_path):
    pytest.importorskip("ray")
    from cojax.studies.cluster import on_ray

    for address in (f"127.0.0.1:{free_port()}", "nowhere", "ray://x:0"):
        with pytest.raises(InputError, match="ray: ") as caught:
            on_ray(address)
        assert "\n" not in str(caught.value)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # Ray's own
@pytest.mark.parametrize("kill", [False, True], ids=["whole", "one node killed"])
def test_two_ray_nodes_give_what_one_process_gives(kill, alone, tmp_path, monkeypatch):
    ray = pytest.importorskip("ray")
    from ray._private import ray_constants
    from ray.cluster_utils import Cluster

    from cojax.studies.cluster import on_ray

    # else Ray replaces the loopback address by another of this machine
    monkeypatch.setattr(ray_constants, "ENABLE_RAY_CLUSTER", False)
    here = {"node_ip_address": "127.0.0.1", "num_cpus": 1}
    cluster = Cluster(initialize_head=True, head_node_args={**here, "include_dashboard": False})
    second = cluster.add_node(**here)
    ray.init(address=cluster.address, log_to_driver=False)
    try:
        assert len([n for n in ray.nodes() if n["Alive"]]) == 2

        class Killer:
            killed = False

            def chunk(self, done, gaps):
                if kill and not self.killed:
                    cluster.remove_node(second, allow_graceful=False)
                    self.killed = True

            def end(self, rows, curves, folder):
                pass

        killer = Killer()
        config = changed(execution={"devices": 1, "chunk_members": 1})  # both nodes are at work
        run_sweep(config, tmp_path / "out", engine=on_ray(), trackers=[killer])
        assert killer.killed == kill
        assert second.any_processes_alive() == (not kill)
    finally:
        ray.shutdown()
        cluster.shutdown()
    same(alone, tmp_path / "out", ("curves.parquet", "rows.json"))


def processes(tmp_path, configs):
    """Two processes of one sweep, each with a configuration of its own: statuses and words."""
    address, runs = f"127.0.0.1:{free_port()}", []
    for index, content in enumerate(configs):
        (tmp_path / f"{index}.yaml").write_text(json.dumps(content))
        command = [sys.executable, "-m", "cojax", "sweep", str(tmp_path / f"{index}.yaml"), "--out"]
        command += [str(tmp_path / "out"), "--hosts", f"{address},2,{index}", "--devices", "1"]
        runs.append(
            subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                env=environment(),
            )
        )  # fmt: skip
    try:
        words = [run.communicate(timeout=400)[1] for run in runs]
    finally:
        for run in runs:
            run.kill()
    return [run.returncode for run in runs], words


SEARCHED = {
    **SMALL,
    "algorithms": [{"name": "ppo", "space": {"clip_eps": {"low": 0.1, "high": 0.3}}}],
    "search": {},
}


@pytest.mark.parametrize(
    ("configs", "line"),
    [
        ((SEARCHED, SEARCHED), "cojax: search: runs on one host; leave --hosts out"),
        (
            (SMALL, {**SMALL, "seed": 5}),
            "cojax: --hosts: expected one sweep, the processes were given different ones",
        ),
    ],
)
def test_hosts_refuse_a_search_and_different_sweeps(configs, line, tmp_path):
    statuses, words = processes(tmp_path, configs)
    assert statuses == [2, 2], words
    assert [said.strip().splitlines()[-1] for said in words] == [line, line]
    assert not list(tmp_path.glob("out*"))


def test_a_search_runs_on_one_host(tmp_path):
    from cojax.studies.hosts import across_hosts
    from cojax.studies.runner import Work
    from cojax.studies.store import Store

    algorithm = {"name": "ppo", "space": {"clip_eps": {"low": 0.1, "high": 0.3}}}
    config = sweep({**SMALL, "algorithms": [algorithm], "search": {}})
    with pytest.raises(InputError, match="runs on one host"):
        next(across_hosts(Work(config, (), (), Store(tmp_path)), lambda chunk: None))


def test_processes_that_follow_make_the_same_groups(tmp_path, monkeypatch):
    """Also where the first group is finished: chunks are named by the numbers of their groups."""
    from cojax.agents.layout import Layout
    from cojax.studies import hosts
    from cojax.studies.members import Chunk, groups
    from cojax.studies.placement import Placement
    from cojax.studies.runner import Task, Work
    from cojax.studies.store import Store

    config = changed(fixtures=["nvdex-k1-easy", "arm-n2-p0.80-s7"])
    systems = of(*config.fixtures)
    group = groups(config, systems)[1]
    work = Work(
        config,
        systems,
        [Task(group, Chunk(1, 0, 2), Placement(Layout(1), 2, 0, 0))],
        Store(tmp_path),
    )
    said, trained = [], []
    monkeypatch.setattr(hosts, "_together", lambda config, group, *a, **k: trained.append(group))
    monkeypatch.setattr(hosts, "_say", said.append)
    list(hosts.across_hosts(work, lambda chunk: None))
    monkeypatch.setattr(hosts, "_say", lambda _: json.loads(json.dumps(said[0])))
    hosts.follow(config)
    leads, follows = trained
    assert [one.id for one in leads.systems] == [one.id for one in follows.systems]
    assert (leads.number, follows.number) == (1, 1)
