"""A learner of your own: a loss in PPO's place, registered, trained, saved, read and judged."""

import jax
import jax.numpy as jnp

import cojax
from cojax.agents import on_policy, ppo
from cojax.agents.distributions import gaussian_log_prob
from cojax.agents.networks import forward


def loss(params, batch, nets, h):
    mean, values = (forward(getattr(nets, n), params[n], batch.obs) for n in ("actor", "critic"))
    advantage = on_policy.standardize(batch.advantage, h.advantage_clip)
    gain = advantage * gaussian_log_prob(batch.u, mean, params["log_std"])
    return jnp.mean(h.vf_coef * (values[..., 0] - batch.target) ** 2 - gain), {}


cojax.agents.register(on_policy.make("my-reinforce", ppo.PPO, loss))
fixture, h = cojax.load_fixture("arm-n2-p0.80-s7"), {"num_envs": 8, "hidden": (8,)}
run = cojax.train("my-reinforce", fixture.params, jax.random.key(0), hyperparameters=h,
                  num_seeds=2, total_timesteps=1_024)  # fmt: skip
cojax.agents.save_policy("mine.npz", run.policy)
print(cojax.evaluate([cojax.agents.load_policy("mine.npz")], fixture, 8, num_steps=64))
