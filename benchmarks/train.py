"""Training speed beside others: the same networks, batches and updates, in one process.

    python benchmarks/train.py [--env Pendulum-v1] [--hidden 64 64] [--batch 256]
                               [--peers sb3 sbx rejax] [--repeats 3] [--json]

PPO takes 10 epochs of minibatches of 256 over rollouts of 2048 steps in 8 environments; SAC one
gradient step of 256 transitions for each environment step (``--batch`` for others: PPO of
Stable-Baselines3 comes with 64). All learners train on the same
environment: gymnax's here and in rejax, its Gymnasium twin in Stable-Baselines3 (sb3) and SBX. They
are timed in turn, ``--repeats`` times, and ratios are of the medians. Compilation is not in the
rates (SBX compiles in a first call of ``learn``, which is not timed); ours is reported apart, and
so is the rate of a population of four seeds. ``of_products`` is our rate over that of a program
which has nothing but the matrix products of the same gradient steps, forwards and backwards.
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

ROLLOUT, EPOCHS = 2048, 10
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

    return jax.grad(loss)(nets)


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


def gymnasium_learner(library, algorithm, hidden):
    """A model of Stable-Baselines3 or SBX, which share an interface."""
    from stable_baselines3.common.vec_env import DummyVecEnv

    kwargs = {"policy": "MlpPolicy", "policy_kwargs": {"net_arch": list(hidden)}}
    if algorithm == "ppo":
        vec = DummyVecEnv([gymnasium_env] * 8)
        return library.PPO(
            env=vec, n_steps=ROLLOUT // 8, batch_size=BATCH, n_epochs=EPOCHS, **kwargs
        )
    return library.SAC(
        env=gymnasium_env(),
        batch_size=BATCH,
        learning_starts=WARMUP,
        buffer_size=100_000,
        **kwargs,
    )


def sb3(algorithm, hidden, steps):
    """Steps per second of Stable-Baselines3."""
    import stable_baselines3
    import torch

    torch.set_num_threads(THREADS)
    model = gymnasium_learner(stable_baselines3, algorithm, hidden)
    start = time.perf_counter()
    model.learn(steps)
    return steps / (time.perf_counter() - start)


def sbx(algorithm, hidden, steps):
    """Steps per second of SBX; its programs are compiled in a first call of ``learn``."""
    import sbx

    model = gymnasium_learner(sbx, algorithm, hidden)
    model.learn(ROLLOUT if algorithm == "ppo" else 2 * WARMUP)
    start = time.perf_counter()
    model.learn(steps, reset_num_timesteps=False)
    return steps / (time.perf_counter() - start)


def rejax(algorithm, hidden, steps):
    """Steps per second of rejax, compilation apart."""
    import rejax

    from cojax.adapters.five_values import five_values

    env, params = five_values(gymnax.make(ENV))
    shared = {
        "env": env,
        "env_params": params,
        "num_envs": 8,
        "total_timesteps": 5 * steps,
        "eval_freq": 5 * steps,
        "skip_initial_evaluation": True,
    }
    if algorithm == "ppo":
        learner = rejax.PPO.create(
            num_steps=ROLLOUT // 8,
            num_minibatches=ROLLOUT // BATCH,
            num_epochs=EPOCHS,
            agent_kwargs={"hidden_layer_sizes": tuple(hidden)},
            **shared,
        )
    else:
        learner = rejax.SAC.create(
            num_epochs=8,
            batch_size=BATCH,
            buffer_size=100_000,
            fill_buffer=WARMUP,
            hidden_layer_sizes=tuple(hidden),
            **shared,
        )
    learner = learner.replace(eval_callback=lambda *_: jnp.zeros(()))
    program = jax.jit(learner.train).lower(jax.random.key(0)).compile()
    start = time.perf_counter()
    jax.block_until_ready(program(jax.random.key(0)))
    return 5 * steps / (time.perf_counter() - start)


PEERS = {"sb3": sb3, "sbx": sbx, "rejax": rejax}


def compare(algorithm, hidden, peers, repeats):
    """One row of the table; compiled runs are longer, so that all take seconds."""
    our_steps, their_steps = {"ppo": (204_800, 8_192), "sac": (8_192, 1_536)}[algorithm]
    our_steps //= max(1, max(hidden) // 64)
    rates = {name: [] for name in ("ours", *peers)}
    compiling = []
    for _ in range(repeats):
        speed, seconds = ours(algorithm, hidden, our_steps)
        compiling.append(seconds)
        rates["ours"].append(speed)
        for name in peers:
            rates[name].append(PEERS[name](algorithm, hidden, their_steps))
    medians = {name: statistics.median(x) for name, x in rates.items()}
    bound = products(algorithm, hidden)
    population, _ = ours(algorithm, hidden, our_steps, seeds=4)
    row = {
        "algorithm": algorithm,
        "hidden": list(hidden),
        "batch": BATCH,
        "steps_per_second": round(medians["ours"]),
        "products_steps_per_second": round(bound),
        "of_products": round(medians["ours"] / bound, 2),
        "population_of_4_steps_per_second": round(population),
        "compile_seconds": round(compiling[0], 1),
    }
    for name in peers:
        row[f"{name}_steps_per_second"] = round(medians[name])
        row[f"times_{name}"] = round(medians["ours"] / medians[name], 2)
    return row


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--env", default="Pendulum-v1", help="a name gymnax and Gymnasium share")
    parser.add_argument("--hidden", type=int, nargs="+", default=[64, 64])
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--algorithms", nargs="+", default=["ppo", "sac"])
    parser.add_argument("--peers", nargs="*", choices=list(PEERS), default=list(PEERS))
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2, help="of PyTorch")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    ENV, BATCH, THREADS = options.env, options.batch, options.threads
    hidden = tuple(options.hidden)
    rows = [compare(a, hidden, options.peers, options.repeats) for a in options.algorithms]
    if options.json:
        print(json.dumps(rows))
    else:
        for row in rows:
            print("  ".join(f"{name}={value}" for name, value in row.items()))
        print(f"numpy {np.__version__}, jax {jax.__version__}, {jax.default_backend()}")
