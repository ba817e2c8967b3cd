"""Steps a second of PPO of Stable-Baselines3, 64 environments, two ways side by side in one run.

    python benchmarks/adapters.py [--envs 64] [--joints 4 19] [--repeats 5] [--threads 1]

* ours: ``cojax.adapters.stable_baselines3.VecEnv``, all environments in one compiled call;
* numpy: the same arm written in plain NumPy as a Gymnasium environment, float64, 64 of them in the
  ``DummyVecEnv`` of Stable-Baselines3 with its ``Monitor``; "direct" solves with B and decomposes H
  at every step as the paper writes it, "quick" computes what does not change once and decomposes
  M (2n × 2n), which is cheaper.

Both learn with the same settings: ``--default`` takes those of Stable-Baselines3 (2,048 steps,
minibatches of 64, 10 epochs), where updates of the network take most of the time whatever steps;
otherwise the minibatch suits 64 environments. "env" is the same without a learner, random actions.
Before anything is timed, the mean next states of the two are compared. The two take turns; ratios
are medians over neighbouring turns.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # NumPy's small products are fastest on one

import gymnasium
import numpy as np
import torch
from gymnasium import spaces
from stable_baselines3 import PPO
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import DummyVecEnv

import cojax
from cojax import linalg
from cojax.adapters.stable_baselines3 import VecEnv

HORIZON = 512
LARGE = {"n_steps": 128, "batch_size": 2048, "n_epochs": 4}


class PlainArm(gymnasium.Env):
    """The arm in plain NumPy, float64, from the paper's equations; one state."""

    def __init__(self, system, seed: int = 0):
        g = system.geometry
        self.n, self.g = g.n, {k: float(v) for k, v in vars(g).items() if k != "n"}
        self.P, self.Q, self.R = (
            linalg.to_full(np.asarray(x, np.float64)) for x in (system.P, system.Q, system.R)
        )
        self.root = linalg.sqrt_psd(self.P - self.Q)
        self.A = np.linalg.inv(self.P) / float(system.gamma)
        self.inverse_R = 1.0 / np.diag(self.R)
        self.p = float(system.p)
        self.std = np.sqrt(
            np.diag(linalg.to_full(np.asarray(system.noise.covariance(), np.float64)))
        )
        d = 2 * self.n
        self.observation_space = spaces.Box(-1e6, 1e6, (d,), np.float32)
        self.action_space = spaces.Box(-1.0, 1.0, (self.n,), np.float32)
        self.rng = np.random.default_rng(seed)

    def mean(self, s, a):
        """f(s) + p g(s) a."""
        theta, omega = s[0::2], s[1::2]
        gain = np.cos(theta)
        D = np.zeros(2 * self.n)
        D[1::2] = self.p**2 * gain**2 * self.inverse_R
        M = self.A + np.diag(D)
        w, V = np.linalg.eigh(M)
        y = V @ ((V.T @ self.rotate(theta, omega, self.root @ s)) / np.sqrt(w))
        z = M @ y
        z[1::2] += self.p * gain * a
        return z

    def rotate(self, theta, omega, x):
        """S_p(s) x."""
        g, p = self.g, self.p
        angle = g["alpha0"] * p * np.tanh(g["kappa1"] * theta * omega) + g["g0"] * p * np.sin(theta)
        c, s = np.cos(angle), np.sin(angle)
        x[0::2], x[1::2] = c * x[0::2] - s * x[1::2], s * x[0::2] + c * x[1::2]
        angle = g["beta0"] * p * np.tanh(g["kappa2"] * np.diff(theta))
        for i, (c, s) in enumerate(
            zip(np.cos(angle).tolist(), np.sin(angle).tolist(), strict=True)
        ):
            u, v = x[2 * i + 1], x[2 * i + 3]
            x[2 * i + 1], x[2 * i + 3] = c * u - s * v, s * u + c * v
        return x

    def reset(self, *, seed=None, options=None):
        if seed is not None:
            self.rng = np.random.default_rng(seed)
        self.t = 0
        high = np.tile([2.8, 1.2], self.n)
        self.s = self.rng.uniform(-high, high)
        return self.s.astype(np.float32), {}

    def step(self, action):
        a = 2.0 * np.clip(action, -1.0, 1.0).astype(np.float64)
        reward = -(self.s @ self.Q @ self.s + a @ self.R @ a)
        self.s = self.mean(self.s, a) + self.std * self.rng.standard_normal(2 * self.n)
        self.t += 1
        return self.s.astype(np.float32), float(reward), False, self.t >= HORIZON, {}


class DirectArm(PlainArm):
    """The same, with the drift as the paper writes it: H⁻¹ᐟ² from H at every step."""

    def __init__(self, system, seed: int = 0):
        super().__init__(system, seed)
        self.gamma = float(system.gamma)

    def mean(self, s, a):
        """f(s) + p g(s) a with f = H⁻¹ᐟ² S (P-Q)¹ᐟ² s, H = γ(P - γp² P g B⁻¹ gᵀ P)."""
        theta, omega = s[0::2], s[1::2]
        g = np.zeros((2 * self.n, self.n))
        g[1::2] = np.diag(np.cos(theta))
        Pg = self.P @ g
        B = self.R + self.gamma * self.p**2 * g.T @ Pg
        H = self.gamma * (self.P - self.gamma * self.p**2 * Pg @ np.linalg.solve(B, Pg.T))
        w, V = np.linalg.eigh(H)
        f = V @ ((V.T @ self.rotate(theta, omega, self.root @ s)) / np.sqrt(w))
        return f + self.p * g @ a


def check(arm: PlainArm, system) -> float:
    """Largest difference of the mean next states of the two, relative, at 20 states."""
    rng = np.random.default_rng(0)
    worst = 0.0
    for _ in range(20):
        s, a = rng.normal(size=2 * arm.n), rng.normal(size=arm.n)
        ours = np.asarray(cojax.oracle.mean_next_state(system, s, a))
        worst = max(worst, float(np.abs(arm.mean(s, a) - ours).max() / np.abs(ours).max()))
    return worst


ARMS = {"quick": PlainArm, "direct": DirectArm}


def stepping(envs, steps: int) -> float:
    """Environment steps a second under random actions, without a learner."""
    rng = np.random.default_rng(0)
    actions = rng.uniform(-1.0, 1.0, (envs.num_envs, *envs.action_space.shape))
    start = time.perf_counter()
    for _ in range(steps):
        envs.step(actions)
    return steps * envs.num_envs / (time.perf_counter() - start)


def learning(model, rollouts: int) -> float:
    """Environment steps a second of PPO, its updates included."""
    steps = rollouts * model.n_steps * model.n_envs
    start = time.perf_counter()
    model.learn(steps, reset_num_timesteps=False)
    return steps / (time.perf_counter() - start)


def compare(n: int, num_envs: int, repeats: int, settings: dict, kind: str) -> None:
    """Print two rows of an arm of n joints, against one of ``ARMS``."""
    arm = ARMS[kind]
    _, params = cojax.make("ConverseArm-v0", n=n, p=0.8, max_steps_in_episode=HORIZON)
    makers = [lambda i=i: Monitor(arm(params.system, i)) for i in range(num_envs)]
    both = {"ours": VecEnv(params, num_envs), "numpy": DummyVecEnv(makers)}
    worst = check(arm(params.system), params.system)
    assert worst < 1e-4, worst
    rates: dict = {"env": {"ours": [], "numpy": []}, "PPO": {"ours": [], "numpy": []}}
    models = {k: PPO("MlpPolicy", v, device="cpu", seed=0, **settings) for k, v in both.items()}
    for model in models.values():
        learning(model, 1)  # compiles, and warms up
    for _ in range(repeats):
        for name, envs in both.items():
            rates["env"][name].append(stepping(envs, 50 if name == "numpy" else 500))
            rates["PPO"][name].append(learning(models[name], 1))
    for what, found in rates.items():
        ratio = statistics.median(x / y for x, y in zip(found["ours"], found["numpy"], strict=True))
        ours, plain = (statistics.median(found[name]) for name in ("ours", "numpy"))
        print(f"{n:6d} {kind:>6s} {what:>4s} {ours:12,.0f} {plain:12,.0f} {ratio:8.1f}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--envs", type=int, default=64)
    parser.add_argument("--joints", type=int, nargs="+", default=[4, 19])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1, help="Of PyTorch.")
    parser.add_argument("--default", action="store_true", help="PPO's own settings.")
    arguments = parser.parse_args()
    settings = {} if arguments.default else LARGE
    torch.set_num_threads(arguments.threads)
    print(
        f"{arguments.envs} environments; PPO {settings or 'with default settings'}; "
        f"{arguments.threads} threads of PyTorch"
    )
    print("joints  numpy what   ours, st/s  numpy, st/s    ratio")
    for n in arguments.joints:
        for kind in ARMS:
            compare(n, arguments.envs, arguments.repeats, settings, kind)


if __name__ == "__main__":
    main()
