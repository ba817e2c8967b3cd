"""My own policy beside others on three systems: a table for a paper, a figure, and a verdict."""

from pathlib import Path

import cojax

NAMES = ["arm-n2-p0.80-s7", "arm-n4-p0.50-s7", "arm-n4-p0.80-s7"]


def brake(observation):
    """Torques against the velocities; any function of the observation will do."""
    return -0.1 * observation[1::2]


result = cojax.evaluate(
    {"brake": brake, "lqr": "lqr", "zero": "zero"},
    [cojax.load_fixture(name) for name in NAMES],
    num_trials=16,
    num_steps=50,
)
Path("table.tex").write_text(result.table("latex"), "utf-8")
result.plot("gaps.pdf")
result.save("mine")  # cojax report mine, cojax compare mine theirs
print(result, cojax.compare(result, policies=["brake", "zero"]), sep="\n")
