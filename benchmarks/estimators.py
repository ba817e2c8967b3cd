"""Trials that each estimator of a policy's gap needs for an interval of ± 5%, on trained PPO.

python benchmarks/estimators.py [--timesteps 100000]
"""

import argparse

import jax
import numpy as np

import cojax
from cojax.evaluation import estimator_efficiency, evaluate

FIXTURES = ("nvdex-k1-easy", "nvdex-k1-hard", "arm-n4-p0.50-s7")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--timesteps", type=int, default=100_000)
    timesteps = parser.parse_args().timesteps
    print("fixture            policy  gap/V*   b/V*  exact  tail-corr.  returns  ratio  agree")
    for name in FIXTURES:
        fixture = cojax.load_fixture(name)
        run = cojax.train(
            "ppo",
            cojax.stack([fixture.params]),
            jax.random.key(0, impl="threefry2x32"),
            num_seeds=2,
            total_timesteps=timesteps,
        )
        result = evaluate([run.policy, "zero"], fixture, 256, root=1)
        value = result.trials["optimal_value"][0, 0]
        offset = float(np.mean(float(fixture.params.system.offset) / value))
        for row in estimator_efficiency(result):
            print(
                f"{name:18} {row['policy']:6} {row['mean'] / value.mean():7.3g} {offset:6.2f} "
                f"{row['advantage_exact']:6.0f} {row['tail_corrected']:11.0f} "
                f"{row['return_difference']:8.0f} {row['ratio']:6.1f}  {row['agree']}"
            )


if __name__ == "__main__":
    main()
