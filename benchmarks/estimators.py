"""Trials that each estimator of a policy's gap needs for an interval of ± 5% of it.

python benchmarks/estimators.py [--timesteps 2000000] [--seeds 3]

On nvdex-k1-easy and three changes of it that let process noise dominate (offset b at least half of
V*(s_0)): starts at half the distance, three times the noise covariance, and starts at the origin;
and on an arm, where noise hardly matters. PPO, the best policy of each seed by the gap on other
streams than the table's, and oracles made worse by known amounts.
"""

import argparse
import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

import cojax
from cojax.evaluation import estimator_efficiency, evaluate
from cojax.evaluation.learning_curve import RelativeGap
from cojax.initial import Fixed

SETTINGS = {
    "NVDEx": {
        "num_envs": 32,
        "num_steps": 64,
        "num_minibatches": 8,
        "update_epochs": 4,
        "log_std_init": -4.5,
        "learning_rate": 1e-3,
        "gae_lambda": 0.85,
    },
    "ConverseArm": {},
}
ORACLES = ("dithered-oracle:{}", (0.005, 0.01, 0.05)), ("detuned-oracle:{}", (0.9, 0.8, 0.5))
NUM_TRIALS = 1024


def systems() -> dict[str, tuple[str, cojax.envs.EnvParams]]:
    """Family and system by name."""
    easy = cojax.load_fixture("nvdex-k1-easy").params
    law = easy.initial_state
    near = dataclasses.replace(
        law, **{n: 0.5 * getattr(law, n) for n in ("radius", "heading_std", "velocity_std")}
    )
    Sigma = np.asarray(easy.system.noise.covariance())
    loud = cojax.rebuild(easy.system, Sigma=3.0 * Sigma)
    return {
        "easy": ("NVDEx", easy),
        "easy, half the start": ("NVDEx", dataclasses.replace(easy, initial_state=near)),
        "easy, 3 Sigma": ("NVDEx", dataclasses.replace(easy, system=loud)),
        "easy, from 0": (
            "NVDEx",
            dataclasses.replace(easy, initial_state=Fixed(jnp.zeros(easy.system.state_dim))),
        ),
        "arm-n4-p0.50-s7": ("ConverseArm", cojax.load_fixture("arm-n4-p0.50-s7").params),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--timesteps", type=int, default=2_000_000)
    parser.add_argument("--seeds", type=int, default=3)
    options = parser.parse_args()
    answer = {True: "yes", False: "no"}
    oracles = [name.format(x) for name, values in ORACLES for x in values]
    print(
        f"{'system':21} {'policy':21} gap/V*  b/V*   exact  controlled  tail-corr.   returns"
        "  tail/exact  tail/controlled  agree controlled"
    )
    for name, (family, params) in systems().items():
        run = cojax.train(
            "ppo",
            params,
            jax.random.key(0, impl="threefry2x32"),
            hyperparameters=SETTINGS[family],
            num_seeds=options.seeds,
            total_timesteps=options.timesteps,
            evaluate=RelativeGap(32, int(params.max_steps_in_episode), root=1),
        )
        learners = {f"ppo {seed}": run.member("best", seed=seed) for seed in range(options.seeds)}
        everyone = {**learners, **{text: text for text in oracles}, "zero": "zero"}
        result = evaluate(everyone, params, NUM_TRIALS, root=7, controls=True)
        value = result.trials["optimal_value"][0, 0].mean()
        share = float(params.system.offset) / value
        for row in estimator_efficiency(result):
            print(
                f"{name:21} {row['policy']:21} {row['mean'] / value:6.3g} {share:5.2f} "
                f"{row['advantage_exact']:7.0f} {row['controlled']:11.1f} "
                f"{row['tail_corrected']:11.0f} {row['return_difference']:9.0f} "
                f"{row['ratio']:11.1f} {row['controlled_ratio']:16.1f}  "
                f"{answer[row['agree']]:>5} {answer[row['controlled_agree']]:>10}",
                flush=True,
            )


if __name__ == "__main__":
    main()
