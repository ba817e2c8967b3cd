"""Differences of policies by sums of advantages and by their costs: five pairs a class.

    python benchmarks/pairs.py [--trials 2048] [--root 7] [--only risk budgets]

Where risk has a price (a shipped fixture at θ = 0.5, θλ small enough that costs by themselves say
something), and of the Lagrangian of costs with a budget. Both estimates with their standard errors,
whether they agree, and the ratio of their variances.
"""

from __future__ import annotations

import argparse

import cojax
from cojax.evaluation import at_risk, evaluate, policy_pairs, repriced
from cojax.types import Row

PAIRS = [
    ("detuned-oracle:0.9", "oracle"),
    ("detuned-oracle:0.8", "detuned-oracle:1.1"),
    ("lqr", "oracle"),
    ("lqr", "detuned-oracle:0.9"),
    ("dithered-oracle:0.05", "lqr"),
]
NAMES = list(dict.fromkeys(name for pair in PAIRS for name in pair))


def at(kind: str, trials: int, root: int) -> list[Row]:
    """Rows of one class."""
    if kind == "risk":
        subjects = [
            repriced(cojax.load_fixture("arm-n2-risk-averse"), 0.5),
            "point-mass-risk-averse",
        ]
        return policy_pairs(at_risk(NAMES, subjects, trials, root), PAIRS)
    subjects = ["isotropic-n2", "arm-n4-budget"]
    return policy_pairs(evaluate(NAMES, subjects, trials, root), PAIRS)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=2048)
    parser.add_argument("--root", type=int, default=7)
    parser.add_argument("--only", nargs="+", default=["risk", "budgets"])
    options = parser.parse_args()
    columns = ["system", "pair", "advantages", "costs", "differ by", "agree", "ratio of variances"]
    print(f"| {' | '.join(columns)} |\n| --- | --- |{' ---: |' * (len(columns) - 2)}", flush=True)
    for kind in options.only:
        for row in at(kind, options.trials, options.root):
            cells = [row["fixture"], f"{row['first']} - {row['second']}"]
            for name in ("advantages", "costs", "difference"):
                known = row[name] is not None
                cells.append(
                    f"{row[name]:.4g} ± {row[f'{name}_error']:.2g}" if known else "refused"
                )
            agree = {True: "yes", False: "no", None: "-"}[row["agree"]]
            ratio = "-" if row["variance_ratio"] is None else f"{row['variance_ratio']:.4g}"
            print(f"| {' | '.join([*cells, agree, ratio])} |", flush=True)


if __name__ == "__main__":
    main()
