"""64 settings x 4 seeds x 2 systems learn in one program; the landscape in one call."""

import jax
import numpy as np

import cojax

names = ["arm-n4-p0.50-s7", "arm-n4-p0.50-s11"]
systems = cojax.stack([cojax.load_fixture(name).params for name in names])
draw = np.random.default_rng(0).uniform
small = {"hidden": (16,), "num_envs": 8, "target_kl": None}  # for a picture in a minute
settings = [
    small | {"learning_rate": 10 ** draw(-4, -1.5), "gae_lambda": draw(0.8, 1.0)} for _ in range(64)
]
run = cojax.train(
    "ppo", systems, jax.random.key(0), hyperparameters=settings, num_seeds=4,
    total_timesteps=1024, eval_every=512, evaluate=cojax.evaluation.RelativeGap(8, 64),
)  # fmt: skip
print(run)
print(run.frame().groupby("timesteps").evaluation.median())
print(min(run.rows(names), key=lambda row: row["seeds"]["median"]))
cojax.report.figures.landscape_figure(run, "landscape.png", fixtures=names)
