"""Every algorithm on every shipped fixture, at one setting each: how near to the optimum.

    python benchmarks/suite.py [--algorithms shac ppo ...] [--fixtures F ...] [--seeds 5]
                               [--timesteps 300000] [--references zero lqr receding-horizon:8]
                               [--devices N] --out suite

Each algorithm is a sweep of one setting, its defaults, in ``OUT/ALGORITHM``: over all cores, and
the same command goes on where it was interrupted, chunk by chunk. What is finished is not trained
again. Then come the references, in ``OUT/references.parquet``, and from all of it one table
(``OUT/suite.md``: systems by algorithms, and what sums them up) and one figure (``OUT/suite.png``:
the share of systems within a gap, over the gap).

The gap of an algorithm on a system is the median over its seeds of the mean relative
suboptimality of 64 trials on streams of root 7, which nothing was chosen by. A trial that leaves
the guard is infinite, and so is its seed.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import pandas as pd

from cojax.studies.cores import use_cores

ALGORITHMS = ("shac", "ppo", "a2c", "ddpg", "td3", "sac", "crossq")
REFERENCES = ("zero", "lqr", "receding-horizon:8")
WITHIN = (0.01, 0.05, 0.1, 0.2)
TRIALS, ROOT = 64, 7
LOW, HIGH = 1e-4, 1e3  # of the figure


def trained(algorithm: str, options: argparse.Namespace) -> pd.DataFrame:
    """The members of one algorithm: trained now, or found in its folder."""
    from cojax.io.resume import begun, unfinished
    from cojax.studies import run_study
    from cojax.studies.config import study

    folder = options.out / algorithm
    if not folder.exists():
        config = study(
            {
                "schema": "cojax.study/1",
                "name": f"suite-{algorithm}",
                "profile": None,
                "fixtures": options.fixtures,
                "algorithms": [{"name": algorithm}],
                "num_seeds": options.seeds,
                "total_timesteps": options.timesteps,
                "evaluation": {"num_trials": TRIALS, "root": ROOT},
                "curve": {"points": 10, "num_trials": 8, "root": 2},
            },
            "sweep",
        )
        run_study(config, folder, resume=begun(unfinished(folder)))
    members = pd.read_parquet(folder / "members.parquet")
    failed = members.failed.astype(bool)
    gap = members.relative_suboptimality.where(~failed).fillna(np.inf)
    return members.assign(gap=gap)[["fixture", "algorithm", "seed", "gap"]]


def referred(options: argparse.Namespace) -> pd.DataFrame:
    """The gap of each reference policy on each fixture, kept in a file as they come."""
    import cojax

    path = options.out / "references.parquet"
    found = pd.read_parquet(path) if path.exists() else pd.DataFrame()
    for name in options.references:
        done = set() if found.empty else set(found[found.algorithm == name].fixture)
        for fixture in (f for f in options.fixtures if f not in done):
            rows = cojax.evaluate([name], cojax.load_fixture(fixture), TRIALS, ROOT).rows()
            mean = rows[0]["relative_suboptimality"]["mean"]
            row = {"fixture": fixture, "algorithm": name, "seed": 0}
            gap = np.inf if mean is None else float(mean)
            found = pd.concat([found, pd.DataFrame([row | {"gap": gap}])], ignore_index=True)
            found.to_parquet(path)
    if found.empty:
        return found
    wanted = found.algorithm.isin(options.references) & found.fixture.isin(options.fixtures)
    return found[wanted]


def summary(medians: pd.DataFrame, references: list[str]) -> pd.DataFrame:
    """For each column of ``medians`` (systems × algorithms): shares within gaps, the median, the
    worst, how many are infinite, and how many are worse than the best of zero and LQR.
    """
    floor = medians[[r for r in ("zero", "lqr") if r in medians]].min(axis=1)
    rows = {}
    for name in medians:
        gaps = medians[name].dropna()
        row = {f"<= {w:g}": int((gaps <= w).sum()) for w in WITHIN}
        row |= {"median": gaps.median(), "worst": gaps.max(), "systems": len(gaps)}
        row["infinite"] = int(np.isinf(gaps).sum())
        lost = np.nan if name in references or floor.empty else (gaps > floor[gaps.index]).sum()
        rows[name] = row | {"worse than zero or lqr": lost}
    return pd.DataFrame(rows).T


def draw(medians: pd.DataFrame, references: list[str], path: Path) -> None:
    """Performance profiles: the share of systems within a gap, a line for each algorithm."""
    from cojax.report import style

    with style.style():
        drawing = style.figure(style.PAGE, 3.2)
        axis = drawing.subplots()
        for name, index in zip(medians, range(medians.shape[1]), strict=True):
            gaps = np.sort(medians[name].dropna())
            finite = gaps[np.isfinite(gaps)]
            share = np.arange(len(finite) + 1) / len(gaps)
            x = np.concatenate([[LOW], np.clip(finite, LOW, HIGH), [HIGH]])
            y = np.concatenate([share, share[-1:]])
            reference = name in references
            axis.step(
                x, y, where="post", label=name,
                color=style.GREY if reference else style.colour(index),
                linestyle=("-", "--", ":", "-.")[references.index(name) % 4] if reference else "-",
                linewidth=1.0 if reference else 1.6,
            )  # fmt: skip
        axis.set_xscale("log")
        axis.set_xlim(LOW, HIGH)
        axis.set_ylim(0.0, 1.02)
        axis.set_xlabel("gap τ: relative suboptimality, V*")
        axis.set_ylabel("share of systems with gap ≤ τ")
        style.grid(axis)
        drawing.legend(loc="outside right center", frameon=False)
        drawing.savefig(path, dpi=200)


def number(x: float) -> str:
    """A gap with three digits."""
    return "" if np.isnan(x) else "∞" if np.isinf(x) else f"{x:.3g}"


def markdown(table: pd.DataFrame) -> str:
    """A table in Markdown, numbers with three digits."""
    lines = [["", *table.columns], ["---", *["---:"] * table.shape[1]]]
    values = zip(table.index, table.to_numpy(float), strict=True)
    lines += [[str(name), *map(number, row)] for name, row in values]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def main() -> None:
    """Train what is missing, measure references, write table and figure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--algorithms", nargs="+", default=list(ALGORITHMS))
    parser.add_argument("--fixtures", nargs="+")
    parser.add_argument("--references", nargs="*", default=list(REFERENCES))
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--timesteps", type=int, default=300_000)
    parser.add_argument("--devices", type=int)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    use_cores(options.devices)  # before gymnax, whose import makes JAX look at its devices
    from cojax.fixtures import shipped

    options.fixtures = options.fixtures or list(shipped())
    options.out.mkdir(parents=True, exist_ok=True)
    parts = [trained(name, options) for name in options.algorithms] + [referred(options)]
    members = pd.concat([p for p in parts if not p.empty], ignore_index=True)
    names = [*options.algorithms, *options.references]
    medians = members.pivot_table(
        index="fixture", columns="algorithm", values="gap", aggfunc="median", sort=False
    )[names]
    medians.insert(0, "best of all", medians[options.algorithms].min(axis=1))
    sums = summary(medians, options.references)
    text = f"{options.seeds} seeds, {options.timesteps:,} steps, median gaps.\n\n"
    text += f"{markdown(sums)}\n\n{markdown(medians)}\n"
    (options.out / "suite.md").write_text(text, "utf-8")
    draw(medians, options.references, options.out / "suite.png")
    print(text)


if __name__ == "__main__":
    main()
