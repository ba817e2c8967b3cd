"""Games: what a step costs, what pairs of policies cost, and how exploitable learners are.

    python benchmarks/games.py [--only step pairs reply train] [--trials 128] [--seeds 5]
                               [--games arm-n2-game ...]

step: the time of a step (drift, noise, cost) over that of the system without a disturbance, in
turns, medians with quartiles. pairs: J - V* of five pairs, by costs and by sums of Q* - V*. reply:
how much of a known exploitability a trained disturbance finds, and what it finds of the LQR. train:
self-play of shipped games from its defaults, over seeds.
"""

from __future__ import annotations

import argparse
import time

import jax
import jax.numpy as jnp
import numpy as np

import cojax
from cojax import system as systems
from cojax.agents.self_play import self_play
from cojax.envs import EnvParams
from cojax.envs.games import nobody
from cojax.evaluation.best_response import STARTS, best_response
from cojax.evaluation.games import against, exploitability, regret
from cojax.policy import Policy
from cojax.zero_sum import ADVERSARIES, Game

STEPS = 64
PARTS = ("step", "pairs", "reply", "train")


@jax.jit
def rollout(system: systems.System, s: jax.Array, key: jax.Array) -> jax.Array:
    """STEPS steps of a batch under a fixed action."""
    a = jnp.full((system.action_dim,), 0.1)

    def one(s, key):
        at = system.optimum(s)
        following = systems.next_mean(system, s, a, at) + system.sample_noise(s, key, a)
        return following, system.cost_at(s, a, at)

    def body(carry, key):
        s, total = carry
        s, cost = jax.vmap(one)(s, jax.random.split(key, s.shape[0]))
        return (jnp.clip(s, -1.0, 1.0), total + cost), None

    zero = jnp.zeros(s.shape[0])
    return jax.lax.scan(body, (s, zero), jax.random.split(key, STEPS))[0][1]


def ratios(name: str, batch: int = 2048, repeats: int = 9) -> dict[str, np.ndarray]:
    """Quartiles of the time of a step against each adversary over that without one."""
    fixture = cojax.load_fixture(name)
    known = against(fixture, "optimal").system
    variants = {"none": fixture.base(np.float32), "optimal": known}
    variants["myopic"] = against(fixture, "myopic").system
    s = jax.random.uniform(jax.random.key(0), (batch, fixture.state_dim), minval=-1.0)
    seconds = {word: [] for word in variants}
    for _ in range(repeats + 1):  # the first compiles
        for word, system in variants.items():
            start = time.perf_counter()
            jax.block_until_ready(rollout(system, s, jax.random.key(1)))
            seconds[word].append(time.perf_counter() - start)
    plain = np.array(seconds.pop("none")[1:])
    return {w: np.quantile(np.array(x[1:]) / plain, (0.25, 0.5, 0.75)) for w, x in seconds.items()}


def scaled(params: tuple[Game, jax.Array], obs: jax.Array, key: jax.Array) -> jax.Array:
    """So much of d*."""
    return params[1] * params[0].saddle(obs).disturbance


PAIRS = (  # a policy, and how much of d* plays against it
    ("detuned-oracle:0.8", 0.0),
    ("detuned-oracle:1.3", 1.5),
    ("lqr", 0.5),
    ("lqr", -1.0),
    ("dithered-oracle:0.2", 1.0),
)


def pairs(params: EnvParams, trials: int, root: int = 11) -> list[dict[str, float]]:
    """Of five pairs (π, σ) J - V* in two ways, on the same trials: costs and γᵀV*(s_T) less
    V*(s_0), and the sum of Q* - V*; means, standard errors, how many of these they are apart, and
    trials that the sum needs for the same interval over those that costs need.
    """
    game, rows = params.system, []
    others = {
        str(share): Policy((game, jnp.asarray(share, game.gamma.dtype)), scaled)
        for share in dict.fromkeys(share for _, share in PAIRS)
    }
    names = [*dict.fromkeys(name for name, _ in PAIRS)]
    found = exploitability(names, params, trials, root, adversaries=others).evaluation
    for name, share in PAIRS:
        at = found.fixtures.index(str(share)), names.index(name)
        costs, sums = (found.trials[n][at] for n in ("tail_corrected", "suboptimality"))
        apart = costs - sums
        of_costs, of_sums, of_both = (x.std(ddof=1) / trials**0.5 for x in (costs, sums, apart))
        row = {"policy": name, "share": share, "costs": costs.mean(), "costs_error": of_costs}
        row |= {"sums": sums.mean(), "sums_error": of_sums, "apart": apart.mean() / of_both}
        rows.append(row | {"ratio": (of_sums / of_costs) ** 2})
    return rows


def main() -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser(description="Games: cost of a step, pairs, exploitability")
    parser.add_argument("--only", nargs="+", choices=PARTS, default=PARTS)
    parser.add_argument("--trials", type=int, default=128)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--games", nargs="*", default=["arm-n2-game"])
    given = parser.parse_args()
    for part in given.only:
        {"step": steps, "pairs": table, "reply": replies, "train": training}[part](given)


def steps(given: argparse.Namespace) -> None:
    """What a step costs."""
    for name in ("arm-n2-game", "arm-n4-game", "point-mass-game"):
        for word, (low, middle, high) in ratios(name).items():
            print(f"step  {name:18s} {word:8s} {middle:5.2f}  [{low:.2f}, {high:.2f}]", flush=True)


def table(given: argparse.Namespace) -> None:
    """Five pairs."""
    params = cojax.load_fixture("arm-n2-game").params
    for row in pairs(params, 4 * given.trials):
        print(
            f"pair  {row['policy']:20s} {row['share']:4.1f} d*  costs {row['costs']:8.3f} ± "
            f"{1.96 * row['costs_error']:.3f}  sums {row['sums']:8.3f} ± "
            f"{1.96 * row['sums_error']:.3f}  apart {row['apart']:5.2f} s.e.  trials "
            f"{row['ratio']:.3f}",
            flush=True,
        )


def shifted(params: tuple[Game, jax.Array], obs: jax.Array, key: jax.Array) -> jax.Array:
    """a*, and a constant more."""
    return params[0].saddle(obs).action + params[1]


def replies(given: argparse.Namespace) -> None:
    """What trained disturbances find: of a known answer, and of policies."""
    params = cojax.load_fixture("point-mass-game").params
    game, shift = params.system, jnp.asarray([0.1, -0.05])
    B_hat = game.curvature(jnp.zeros(4)).B_hat  # pyright: ignore[reportAttributeAccessIssue]
    known = float(shift @ B_hat @ shift) / (1.0 - float(game.gamma))
    player = Policy((game, shift), shifted, "a* + constant")
    for start in STARTS:
        found = best_response(
            player, params, jax.random.key(0), start=start, num_updates=200, num_steps=150
        )
        row = exploitability(
            player, params, given.trials, 7, adversaries={"trained": found}, num_steps=150
        ).rows[0]
        share = row["trained"]["mean"] / known / (1.0 - float(game.gamma) ** 150)
        print(f"reply  known answer, trained from {start}: {share:.4f} of it", flush=True)
    params = cojax.load_fixture("arm-n2-game").params
    found = best_response("lqr", params, jax.random.key(0), num_updates=200, num_steps=256)
    row = exploitability("lqr", params, given.trials, 7, adversaries={"trained": found}).rows[0]
    each = {name: row[name]["mean"] / row["optimal_value"] for name in (*ADVERSARIES, "trained")}
    print("reply  lqr on arm-n2-game", " ".join(f"{n} {x:.4f}" for n, x in each.items()))


def training(given: argparse.Namespace) -> None:
    """Self-play of shipped games."""
    for name in given.games:
        seeds(name, given.seeds, given.trials)


def seeds(name: str, num_seeds: int, trials: int) -> None:
    """Self-play from its defaults on one shipped game: gap against d*, against the reply of one
    step, and regret of the disturbance, over V*, beside that of none.
    """
    params = cojax.load_fixture(name).params
    run = self_play("ppo", params, jax.random.key(2026), num_seeds=num_seeds)
    away = nobody(params)
    missed = regret({"own": run.adversary, "none": away}, params, trials, 7)
    print(f"self-play {name}: regret of no disturbance {missed[-1]['relative']:.4f}")
    rows = exploitability(run.agent, params, trials, 7).rows
    for seed, (row, other) in enumerate(zip(rows, missed[:-1], strict=True)):
        known, myopic = (row[word]["mean"] / row["optimal_value"] for word in ADVERSARIES)
        print(
            f"  seed {seed}  agent d* {known:.4f}  myopic {myopic:.4f}  disturbance "
            f"{other['relative']:.4f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
