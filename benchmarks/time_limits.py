"""How far critics are from V* and Q* with the policy held at the optimum, by the time limit of the
episodes they see, and by what the same code gives where truncation is taken for an end.

    python benchmarks/time_limits.py [--algorithms ppo a2c ddpg td3 sac] [--horizons 16 64 512]

Minutes for each row. The tolerances of ``tests/test_agents_optimum.py`` come from these figures.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from test_agents_optimum import error


def main() -> None:
    """Print one row for each algorithm, time limit and treatment of truncation."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--algorithms", nargs="+", default=["ppo", "a2c", "ddpg", "td3", "sac"])
    parser.add_argument("--horizons", type=int, nargs="+", default=[16, 64, 512])
    options = parser.parse_args()
    print(f"{'algorithm':10s} {'limit':>6s} {'truncation':>12s} {'error':>8s} {'s':>5s}")
    for name in options.algorithms:
        for horizon in options.horizons:
            for faulty in (False, True):
                start = time.perf_counter()
                found = error(name, horizon, faulty)
                kind = "as an end" if faulty else "bootstrapped"
                seconds = time.perf_counter() - start
                print(
                    f"{name:10s} {horizon:6d} {kind:>12s} {found:8.4f} {seconds:5.0f}", flush=True
                )


if __name__ == "__main__":
    main()
