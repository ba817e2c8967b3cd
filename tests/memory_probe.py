"""Peak memory of one training, measured from outside of JAX: run as a program by the tests.

    python tests/memory_probe.py loop|vmap|WIDTH ROWS [CHECKPOINT_FOLDER]

A WIDTH lays members out in a row over all devices (``JAX_NUM_CPU_DEVICES``).

Prints {"estimate", "measured"} in bytes: the growth of the resident set's high-water mark over a
training, against what was estimated before it.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import jax
import numpy as np
from agents_toy import Toy, ToyParams

from cojax.agents import loop, memory_budget, settings, train
from cojax.agents.layout import Layout
from cojax.agents.population import Population
from cojax.agents.training import lookup

SETTINGS = {
    "num_envs": 8,
    "num_steps": 8,
    "gradient_steps": 1,
    "batch_size": 32,
    "learning_starts": 128,
    "hidden": (8,),
}


def status(name):
    lines = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(lines[name].split()[0]) * 1024


def go(batching, rows, folder=None):
    return train(
        "ddpg",
        ToyParams(),
        jax.random.key(0),
        env=Toy(),
        hyperparameters={**SETTINGS, "buffer_size": rows},
        num_seeds=4,
        total_timesteps=640,
        eval_every=320,
        batching=batching,
        checkpoint_dir=folder,
    )


def in_a_row(batching, rows):
    """Four members laid out over devices; the estimate, bytes."""
    layout = Layout.over(jax.devices(), int(batching))
    spec = lookup("ddpg")
    h = settings.stack_hyperparameters(
        spec.hyperparameters, [{**SETTINGS, "buffer_size": rows}] * 4, {}
    )
    params = jax.tree.map(lambda x: np.stack([x] * 4), algorithm.strong(ToyParams()))
    keys = jax.random.split(jax.random.key(0), 4)
    params, h, keys = layout.place((params, h, keys))
    population = Population.flat(spec, Toy(), params, h, keys, layout)
    estimate = memory_budget.estimate(population, None)
    loop.run(population, loop.Plan.of(64, 640, 320), np.zeros(4))
    return estimate


def main(batching, rows, folder=None):
    if batching.isdigit():
        in_a_row(batching, 64)
        before = status("VmRSS")
        Path("/proc/self/clear_refs").write_text("5")
        estimate = in_a_row(batching, int(rows))
        print(json.dumps({"estimate": estimate, "measured": status("VmHWM") - before}))
        return
    first = folder and folder + "/first"
    go(batching, 64, first)  # what the compiler and the libraries take
    before = status("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # the mark starts again from here
    run = go(batching, int(rows), folder and folder + "/second")
    measured = status("VmHWM") - before
    print(json.dumps({"estimate": run.memory_bytes, "measured": measured}))


if __name__ == "__main__":
    main(*sys.argv[1:])
