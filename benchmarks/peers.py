"""Do our environments pass the checks of other libraries, and do their learners train on them?

    python benchmarks/peers.py [--only sb3 sbx]

One row a check: passed, failed with the first line of the error, or skipped where the library is
not installed (``pip install dm_env stable-baselines3 sb3-contrib sbx-rl rejax brax rliable``), or
lacks what it calls itself.
Learners run for a moment; their models are scored by ``cojax.evaluate``, which must give a finite
gap above 0. Wrappers of Gymnasium and Stable-Baselines3 are in tests/test_adapters_*.py. Exit
status 1 where a check failed.
"""

from __future__ import annotations

import argparse
import copy
import importlib
import sys
import time
import unittest
import warnings
from collections.abc import Callable, Iterator

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np

import cojax
from cojax.adapters import registration
from cojax.adapters.five_values import five_values

SHORT = 16
NAME, OPTIONS = "DoubleIntegrator-v0", {"max_steps_in_episode": SHORT, "action_limit": 2.0}
SMALL = {"policy_kwargs": {"net_arch": [8]}, "seed": 0}
ON_POLICY = SMALL | {"n_steps": 16, "batch_size": 32}
OFF_POLICY = SMALL | {"learning_starts": 32, "buffer_size": 256, "batch_size": 16}
Check = tuple[str, Callable[[], object]]


def scored(policy) -> None:
    """The evaluator takes the model, and its gap is finite and above 0."""
    params = cojax.make(NAME, **OPTIONS)[1]
    gap = cojax.evaluate({"it": policy}, params, 4, num_steps=8).rows()[0]["suboptimality"]["mean"]
    assert 0.0 < gap < np.inf, gap


def dm_env_checks() -> Iterator[Check]:
    from dm_env import test_utils

    from cojax.adapters.dm_env import Environment

    for family in registration.BUILT_IN:

        class Conformance(test_utils.EnvironmentTestMixin, unittest.TestCase):
            name = f"{family}-v0"

            def make_object_under_test(self):
                return Environment(self.name, random_state=0, max_steps_in_episode=8)

        def run(case=Conformance):
            found = unittest.TestResult()
            unittest.defaultTestLoader.loadTestsFromTestCase(case).run(found)
            for _, trace in found.failures + found.errors:
                raise AssertionError(trace.strip().splitlines()[-1])
            return f"{found.testsRun} tests"

        yield f"EnvironmentTestMixin, {family}", run


def gymnasium_checks() -> Iterator[Check]:
    from gymnasium.utils.env_checker import check_env
    from gymnasium.utils.env_match import check_environments_match

    for family in registration.BUILT_IN:

        def run(name=f"cojax/{family}-v0"):
            one, two = (gymnasium.make(name, max_episode_steps=8) for _ in range(2))
            check_env(one.unwrapped, skip_render_check=True)
            check_environments_match(one, two, 20)

        yield f"check_env, check_environments_match, {family}", run


def model_checks(library: str, learners: dict[str, dict], device: dict) -> Iterator[Check]:
    """Learners on the interface of Stable-Baselines3 train on our VecEnv."""
    from cojax.adapters.stable_baselines3 import VecEnv

    module = importlib.import_module(library)
    for name, options in learners.items():

        def run(options=options, name=name):
            learner = getattr(module, name)
            policy = "MlpLstmPolicy" if name == "RecurrentPPO" else "MlpPolicy"
            model = learner(
                policy, VecEnv(NAME, 4, **OPTIONS), **copy.deepcopy(options), **device
            ).learn(128)
            scored(model)

        yield f"{name} trains and is scored", run


def sb3_checks() -> Iterator[Check]:
    from stable_baselines3.common.env_checker import check_env

    from cojax.adapters.gymnasium import Env

    yield "check_env", lambda: check_env(Env(NAME, **OPTIONS))
    learners = {"PPO": ON_POLICY, "A2C": SMALL, "SAC": OFF_POLICY, "TD3": OFF_POLICY}
    learners["DDPG"] = OFF_POLICY
    yield from model_checks("stable_baselines3", learners, {"device": "cpu"})


def contrib_checks() -> Iterator[Check]:
    learners = {"RecurrentPPO": ON_POLICY | {"policy_kwargs": {"lstm_hidden_size": 8}}}
    learners |= {"TRPO": ON_POLICY, "ARS": {"seed": 0, "n_delta": 2}}
    learners |= {"TQC": OFF_POLICY, "CrossQ": OFF_POLICY}
    yield from model_checks("sb3_contrib", learners, {"device": "cpu"})


def sbx_checks() -> Iterator[Check]:
    learners = {"PPO": ON_POLICY}
    learners |= dict.fromkeys(("SAC", "TD3", "DDPG", "TQC", "CrossQ"), OFF_POLICY)
    yield from model_checks("sbx", learners, {})


def rejax_checks() -> Iterator[Check]:
    import rejax

    replay = {"num_envs": 2, "buffer_size": 64, "fill_buffer": 16, "batch_size": 8}
    learners = {"PPO": {"num_envs": 4, "num_steps": 8, "num_epochs": 1, "num_minibatches": 2}}
    for name, options in (learners | {"SAC": replay, "TD3": replay}).items():

        def run(name=name, options=options):
            env, params = five_values(NAME, **OPTIONS)
            learner = getattr(rejax, name).create(
                env=env, env_params=params, total_timesteps=64, eval_freq=64, **options
            )
            state, _ = jax.jit(learner.train)(jax.random.key(0))
            act = learner.make_act(state)
            scored(lambda obs, key: jnp.reshape(act(obs, key), (1,)))

        yield f"{name} trains and is scored", run


def purejaxrl_checks() -> Iterator[Check]:
    """The loop of purejaxrl: a scan over steps of vmapped environments, five values each."""

    def run():
        env, params = five_values(NAME, **OPTIONS)
        keys = jax.random.split(jax.random.key(0), 4)
        first = jax.vmap(env.reset, (0, None))(keys, params)

        def step(carry, key):
            obs, state = carry
            keys = jax.random.split(key, 4)
            action = -0.1 * obs[:, :1]
            out = jax.vmap(env.step, (0, 0, 0, None))(keys, state, action, params)
            return out[:2], out[2:4]

        scan = jax.jit(lambda first, keys: jax.lax.scan(step, first, keys))
        _, (rewards, dones) = scan(first, jax.random.split(jax.random.key(1), 3 * SHORT))
        assert (rewards < 0.0).all()
        assert np.array_equal(np.flatnonzero(dones.all(axis=1)), SHORT * np.arange(1, 4) - 1)

    yield "scan over vmapped steps", run


def brax_checks() -> Iterator[Check]:
    from brax.envs.wrappers import training
    from brax.training.agents.ppo import train as ppo
    from brax.training.agents.sac import train as sac

    from cojax.adapters.brax import Env

    env = Env(NAME, **OPTIONS)

    def wrappers():
        wrapped = training.wrap(env, episode_length=SHORT)
        state = jax.jit(wrapped.reset)(jax.random.split(jax.random.PRNGKey(0), 2))
        for _ in range(SHORT):
            state = jax.jit(wrapped.step)(state, jnp.zeros((2, 1)))
        assert (state.done * state.info["truncation"] == 1.0).all()

    yield "wrappers", wrappers
    shared = {"environment": env, "episode_length": SHORT, "num_evals": 2, "num_eval_envs": 4}
    on = {"num_envs": 8, "batch_size": 4, "num_minibatches": 2, "unroll_length": 4}
    off = {"num_envs": 4, "min_replay_size": 32, "max_replay_size": 256, "batch_size": 16}

    def trains(learner, **options):
        if not hasattr(jax, "device_put_replicated"):
            raise unittest.SkipTest("brax calls jax.device_put_replicated, which this jax lacks")
        learner(**options, **shared)

    yield "PPO trains", lambda: trains(ppo.train, num_timesteps=512, **on)
    yield "SAC trains", lambda: trains(sac.train, num_timesteps=256, **off)


def rliable_checks() -> Iterator[Check]:
    """Its interquartile mean is ours."""
    from rliable import metrics

    from cojax.evaluation import aggregates

    def run():
        scores = np.random.default_rng(0).lognormal(size=(8, 3))
        ours = aggregates.iqm(scores)
        assert np.isclose(ours, metrics.aggregate_iqm(scores)), ours

    yield "IQM", run


PEERS: dict[str, Callable[[], Iterator[Check]]] = {
    "dm_env": dm_env_checks,
    "gymnasium": gymnasium_checks,
    "sb3": sb3_checks,
    "sb3-contrib": contrib_checks,
    "sbx": sbx_checks,
    "rejax": rejax_checks,
    "purejaxrl": purejaxrl_checks,
    "brax": brax_checks,
    "rliable": rliable_checks,
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--only", nargs="+", choices=PEERS, default=list(PEERS))
    warnings.simplefilter("ignore")
    counts = dict.fromkeys(("passed", "failed", "skipped"), 0)

    def row(peer, what, verdict, words="", seconds=0.0):
        counts[verdict] += 1
        print(f"{peer:12s} {what:48s} {verdict:8s} {seconds:6.1f} s  {words}", flush=True)

    for peer in parser.parse_args().only:
        try:
            for what, run in PEERS[peer]():
                start = time.perf_counter()
                verdict, words = "passed", ""
                try:
                    words = run() or ""
                except unittest.SkipTest as error:
                    verdict, words = "skipped", error
                except Exception as error:  # a row of the table, whatever another library raises
                    verdict = "failed"
                    words = f"{type(error).__name__}: {str(error).splitlines()[0][:90]}"
                row(peer, what, verdict, words, time.perf_counter() - start)
        except ImportError as error:
            row(peer, "", "skipped", str(error).splitlines()[0])
        except ValueError as error:
            row(peer, "", "skipped" if "expected the extra" in str(error) else "failed", error)
    print(", ".join(f"{count} {verdict}" for verdict, count in counts.items()))
    return 1 if counts["failed"] else 0


if __name__ == "__main__":
    sys.exit(main())
