"""Peak memory of one training, measured from outside of JAX: run as a program by the tests.

    python tests/memory_probe.py loop|vmap ROWS [CHECKPOINT_FOLDER]

Prints {"estimate", "measured"} in bytes: the growth of the resident set's high-water mark over a
training, against what was estimated before it.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import jax
from agents_toy import Toy, ToyParams

from cojax.agents import train


def status(name):
    lines = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(lines[name].split()[0]) * 1024


def go(batching, rows, folder=None):
    return train(
        "ddpg",
        ToyParams(),
        jax.random.key(0),
        env=Toy(),
        hyperparameters={
            "num_envs": 8,
            "num_steps": 8,
            "gradient_steps": 1,
            "batch_size": 32,
            "learning_starts": 128,
            "hidden": (8,),
            "buffer_size": rows,
        },
        num_seeds=4,
        total_timesteps=640,
        eval_every=320,
        batching=batching,
        checkpoint_dir=folder,
    )


def main(batching, rows, folder=None):
    first = folder and folder + "/first"
    go(batching, 64, first)  # what the compiler and the libraries take
    before = status("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # the mark starts again from here
    run = go(batching, int(rows), folder and folder + "/second")
    measured = status("VmHWM") - before
    print(json.dumps({"estimate": run.memory_bytes, "measured": measured}))


if __name__ == "__main__":
    main(*sys.argv[1:])
