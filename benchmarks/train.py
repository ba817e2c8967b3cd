"""Training speed beside Stable-Baselines3: the same networks, batches and updates, in one process.

    python benchmarks/train.py [--env Pendulum-v1] [--hidden 64 64] [--repeats 3] [--json]

PPO takes 10 epochs of minibatches of 256 over rollouts of 2048 steps; SAC one gradient step of
256 transitions for each environment step. Both learners train on the same environment: the
gymnax one here, and the same one behind a Gymnasium interface there. Each pair is timed in turn,
``--repeats`` times, and the ratio is of the medians. Compilation is reported apart, and so is a
population of four seeds. ``of_products`` is our rate over that of a program which does nothing but
the matrix products of the same gradient steps, forwards and backwards.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import time

import gymnax
import jax
import jax.numpy as jnp
import numpy as np

from cojax.agents import train

ROLLOUT, BATCH, EPOCHS = 2048, 256, 10
WARMUP = 512


def ours(algorithm, hidden, steps, seeds=None):
    """Environment steps (PPO) or gradient steps (SAC) per second, and seconds to compile."""
    env, params = gymnax.make(ENV)
    if algorithm == "ppo":
        h = {
            "num_envs": 8,
            "num_steps": ROLLOUT // 8,
            "num_minibatches": ROLLOUT // BATCH,
            "update_epochs": EPOCHS,
        }
    else:
        h = {
            "num_envs": 8,
            "num_steps": 8,
            "gradient_steps": 64,
            "batch_size": BATCH,
            "buffer_size": 100_000,
            "learning_starts": WARMUP,
        }
    run = train(
        algorithm,
        params,
        jax.random.key(0),
        env=env,
        hyperparameters=h | {"hidden": hidden},
        num_seeds=seeds,
        total_timesteps=steps,
        eval_every=steps,
    )
    return run.steps_per_second, run.compile_seconds


def linear(weights, x):
    """A network's products, without its biases and activations."""
    for w in weights:
        x = x @ w
    return x


def ppo_products(nets, x, c):
    """Gradients of actor and critic on one minibatch; ``c`` stands for those of the loss."""

    def loss(nets):
        return jnp.sum(linear(nets[0], x) * c) + jnp.sum(linear(nets[1], x) * c)

    return jax.grad(loss)(nets[:2])


def sac_products(nets, x, c):
    """Gradients of two critics towards a target, and of the actor through both of them."""
    actor, *critics = nets
    obs = x[:, : actor[0].shape[0]]

    def q(critics, actor):
        inputs = jnp.concatenate([obs, linear(actor, obs)], axis=1)
        return [jnp.sum(linear(critic, inputs) * c) for critic in critics]

    y = sum(q(critics, actor))
    to_critics = jax.grad(lambda n: y * sum(jnp.sum(linear(one, x) * c) for one in n))(critics)
    to_actor = jax.grad(lambda n: sum(q(critics, n)))(actor)
    return [to_actor, *to_critics]


def products(algorithm, hidden):
    """Steps per second of a program that has only the products of the gradient steps."""
    env, params = gymnax.make(ENV)
    d, m = env.observation_space(params).shape[0], env.action_space(params).shape[0]
    inputs, function, steps = {
        "ppo": ((d, d), ppo_products, BATCH / EPOCHS),
        "sac": ((d, d + m, d + m), sac_products, 1),
    }[algorithm]
    nets = [
        [
            jax.random.normal(jax.random.key(i), shape) / shape[0] ** 0.5
            for i, shape in enumerate(itertools.pairwise((width, *hidden, m)))
        ]
        for width in inputs
    ]

    @jax.jit
    def program(nets, x, c):
        def step(nets, batch):
            grads = function(nets, *batch)
            return jax.tree.map(lambda w, g: w - 1e-9 * g, nets, grads), None

        return jax.lax.scan(step, nets, (x, c))[0]

    count = 400
    x = jax.random.normal(jax.random.key(1), (count, BATCH, max(inputs)))
    c = jax.random.normal(jax.random.key(2), (count, BATCH, m))
    jax.block_until_ready(program(nets, x, c))
    seconds = []
    for _ in range(5):
        start = time.perf_counter()
        jax.block_until_ready(program(nets, x, c))
        seconds.append(time.perf_counter() - start)
    return steps * count / statistics.median(seconds)


def gymnasium_env():
    import gymnasium

    return gymnasium.make(ENV)


def theirs(algorithm, hidden, steps):
    """Steps per second of Stable-Baselines3 on the Gymnasium twin of the environment."""
    import stable_baselines3 as sb3
    import torch

    torch.set_num_threads(THREADS)
    kwargs = {"net_arch": list(hidden)}
    if algorithm == "ppo":
        vec = sb3.common.vec_env.DummyVecEnv([gymnasium_env] * 8)
        model = sb3.PPO(
            "MlpPolicy", vec, n_steps=ROLLOUT // 8, batch_size=BATCH, n_epochs=EPOCHS,
            policy_kwargs=kwargs, device="cpu",
        )  # fmt: skip
    else:
        model = sb3.SAC(
            "MlpPolicy", gymnasium_env(), batch_size=BATCH, learning_starts=WARMUP,
            buffer_size=100_000, policy_kwargs=kwargs, device="cpu",
        )  # fmt: skip
    start = time.perf_counter()
    model.learn(steps)
    return steps / (time.perf_counter() - start)


def compare(algorithm, hidden, repeats):
    """One row of the table; our run is longer, so that both take seconds."""
    our_steps, their_steps = {"ppo": (204_800, 8_192), "sac": (8_192, 1_536)}[algorithm]
    pairs = []
    for _ in range(repeats):
        speed, compile_seconds = ours(algorithm, hidden, our_steps)
        if not pairs:
            first_compile = compile_seconds
        pairs.append((speed, theirs(algorithm, hidden, their_steps)))
    mine, other = (statistics.median(x) for x in zip(*pairs, strict=True))
    bound = products(algorithm, hidden)
    population, _ = ours(algorithm, hidden, our_steps, seeds=4)
    return {
        "algorithm": algorithm,
        "hidden": list(hidden),
        "steps_per_second": round(mine),
        "sb3_steps_per_second": round(other),
        "ratio": round(mine / other, 2),
        "products_steps_per_second": round(bound),
        "of_products": round(mine / bound, 2),
        "population_of_4_steps_per_second": round(population),
        "compile_seconds": round(first_compile, 1),
    }


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--env", default="Pendulum-v1", help="a name gymnax and Gymnasium share")
    parser.add_argument("--hidden", type=int, nargs="+", default=[64, 64])
    parser.add_argument("--algorithms", nargs="+", default=["ppo", "sac"])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2, help="of PyTorch")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    ENV, THREADS = options.env, options.threads
    rows = [compare(a, tuple(options.hidden), options.repeats) for a in options.algorithms]
    if options.json:
        print(json.dumps(rows))
    else:
        for row in rows:
            print("  ".join(f"{name}={value}" for name, value in row.items()))
        print(f"numpy {np.__version__}, jax {jax.__version__}, {jax.default_backend()}")
