"""What the page says: the summary in words, the rows with their commands, the fixtures' cards."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from cojax import linalg
from cojax.evaluation.aggregates import aggregate
from cojax.evaluation.provenance import Results, named
from cojax.evaluation.references import NAMES
from cojax.evaluation.result import WORST
from cojax.fixtures import load_fixture, shipped
from cojax.fixtures.difficulty import tier
from cojax.fixtures.fixture import Fixture
from cojax.report.printing import number, with_interval

if TYPE_CHECKING:
    import pandas as pd

RESAMPLES = 1000
MANY_RUNS = 64  # beyond, trials are averaged before the bootstrap, to which they add little
MANY_CARDS = 50  # beyond, a card is lines of text and no table
METRIC = "relative_suboptimality"
CELLS = (METRIC, "paper_optgap", "paper_regret")


def summary(
    results: Results,
    rows: list[dict[str, Any]],
    learners: list[str],
    configuration: dict[str, Any],
) -> dict[str, Any]:
    """What was run, and the main result, in sentences; and a line for each policy."""
    policies = []
    for policy in dict.fromkeys(results.trials["policy"]):
        of_policy: Any = results.trials[results.trials["policy"] == policy]
        x = _scores(of_policy)
        averaged = x.shape[1] > 1 and x[..., 0].size > MANY_RUNS
        middle, low, high = aggregate(
            x.mean(axis=-1, keepdims=True) if averaged else x,
            "median",
            num_resamples=RESAMPLES,
        )
        gap = {"mean": float(middle), "low": max(float(low), 0.0), "high": float(high)}
        policies.append(
            {
                "name": policy,
                "learner": _learned(policy, learners),
                "gap": gap,
                "text": with_interval(gap),
                "runs": int(x[..., 0].size),
                "failed": int((~np.isfinite(x)).sum()),
                "trials": int(x.size),
            }
        )
    policies.sort(key=lambda p: (p["gap"]["mean"], p["name"]))
    fixtures = len(results.provenance["fixtures"])
    failed = sum(p["failed"] for p in policies)
    trials = sum(p["trials"] for p in policies)
    return {
        "policies": policies,
        "what": _what(policies, learners, fixtures, configuration, results.provenance),
        "main": _main(policies),
        "failures": (
            f"{failed:,} of {trials:,} trials failed: they left the divergence guard or a number "
            "in them was not finite. A run with a failed trial has an infinite gap."
            if failed
            else f"None of {trials:,} trials failed."
        ),
        "over": "seeds and, where runs are few, trials, for these systems",
        "fixtures": fixtures,
        "members": sum(p["runs"] for p in policies),
        "trials": trials,
        "failed": failed,
    }


def _learned(policy: str, learners: list[str]) -> bool:
    """Whether a policy is a learner's, of whatever setting."""
    return any(policy == name or policy.startswith(f"{name} (") for name in learners)


def _scores(of_policy: pd.DataFrame) -> np.ndarray:
    """The gap of one policy, (F, S, N); settings count as seeds. Infinite where a trial failed."""
    x = of_policy[METRIC].to_numpy(np.float64)
    num_trials = len(set(of_policy["trial"]))
    num_fixtures = len(set(of_policy["fixture"]))
    if x.size % (num_fixtures * num_trials):
        return x.reshape(-1, 1, num_trials)
    return x.reshape(num_fixtures, -1, num_trials)


def _what(
    policies: list[dict[str, Any]],
    learners: list[str],
    fixtures: int,
    configuration: dict[str, Any],
    about: dict[str, Any],
) -> str:
    systems = f"{fixtures:,} system{'s' if fixtures > 1 else ''}"
    others = [p["name"] for p in policies if not p["learner"]]
    parts = []
    if learners:
        steps, seeds = (configuration.get(n) for n in ("total_timesteps", "num_seeds"))
        trained = f"{_listed([n.upper() for n in learners])} trained on {systems}"
        trained += f", {seeds} seed{'s' if seeds != 1 else ''} each" if seeds else ""
        trained += f", for {steps:,} environment steps" if isinstance(steps, int) else ""
        parts.append(f"{trained}.")
        beside = f", beside {_listed(others)}," if others else ""
        parts.append(f"Every policy was then measured{beside}")
    else:
        parts.append(f"{_listed(others)} measured on {systems},")
    parts.append(f"on the same {about['num_trials']:,} starts and noise paths a system.")
    return " ".join(parts)


def _main(policies: list[dict[str, Any]]) -> list[str]:
    """The policies whose gap is a finding, best first: learners where there are any."""
    said = []
    found = [p for p in policies if p["learner"]] or [p for p in policies if p["name"] != "oracle"]
    for p in found[:6]:
        name = p["name"].upper() if p["learner"] else p["name"]
        middle = p["gap"]["mean"]
        if not np.isfinite(middle):
            said.append(f"{name}: at least half of its runs had a failed trial.")
            continue
        low, high = (number(p["gap"][end]) for end in ("low", "high"))
        said.append(
            f"{name}: median gap {number(middle)} V* above the optimum, 95% interval "
            f"{low} {'upward' if high == 'inf' else f'to {high}'}."
        )
    return said


def _listed(words: list[str]) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"


# --- rows ----------------------------------------------------------------------------------------


def result_rows(
    folder: Path,
    rows: list[dict[str, Any]],
    learners: list[str],
    about: dict[str, Any],
    again: str,
) -> list[dict[str, Any]]:
    """A line for each fixture and policy, with texts, numbers to sort by, and the command."""
    out = []
    for row in rows:
        failures = int(row["failures"])
        line: dict[str, Any] = {
            "fixture": str(row["fixture"]),
            "anchor": anchor(str(row["fixture"])),
            "policy": str(row["policy"]),
            "learner": _learned(row["policy"], learners),
            "failures": failures,
            "trials": int(row["num_trials"]) * int(row.get("num_seeds") or 1),
            "command": again
            if _learned(row["policy"], learners)
            else _command(folder, row, about, again),
        }
        if row.get("setting") is not None:
            line["policy"] = named(line["policy"], row["setting"])
            varied = row.get("hyperparameters") or {}
            line["policy"] += "".join(f", {name} {_short(x)}" for name, x in varied.items())
        for name in CELLS:
            if name not in row:  # a sweep measures the gap alone
                line[name] = {"value": "", "text": "–", "completed": ""}
                continue
            cell, partly = _finite(row[name], WORST[name]), ""
            floor = row.get("resolution_floor") if name == METRIC else None
            completed = row.get(f"{name}_completed") if failures else None
            if completed:
                partly = with_interval(_finite(completed, WORST[name]))
            line[name] = {
                "value": cell["mean"],
                "text": with_interval(cell, floor).replace("inf", "∞"),
                "completed": partly,
            }
        out.append(line)
    return out


def _finite(cell: dict[str, Any], worst: float) -> dict[str, float]:
    """A cell read back from JSON, where null stands for the worst there is."""
    return {k: worst if cell[k] is None else float(cell[k]) for k in ("mean", "low", "high")}


def _command(folder: Path, row: dict[str, Any], about: dict[str, Any], again: str) -> str:
    """What measures one reference policy on one fixture again, run inside the folder."""
    fixture, policy = str(row["fixture"]), str(row["policy"])
    if policy.partition(":")[0] not in NAMES:
        return again
    own = f"fixtures/{fixture}.yaml"
    if (folder / own).is_file():
        fixture = own
    elif fixture not in shipped():
        return again
    horizon = about["fixtures"][row["fixture"]]["horizon"]
    return (
        f"cojax evaluate --fixture {shlex.quote(fixture)} --policy {shlex.quote(policy)} "
        f"--trials {about['num_trials']} --root {about['root']} --steps {horizon}"
    )


def anchor(name: str) -> str:
    """The id of a fixture's card."""
    return "fixture-" + re.sub(r"[^A-Za-z0-9.]+", "-", name)


# --- cards ---------------------------------------------------------------------------------------


def cards(folder: Path, fixtures: dict[str, Any]) -> list[dict[str, Any]]:
    """A card for each fixture, from ``fixtures/*.yaml`` or the shipped one of the same hash."""
    out = []
    many = len(fixtures) > MANY_CARDS
    for name, about in fixtures.items():
        file = folder / "fixtures" / f"{name}.yaml"
        fixture, source = None, name
        if file.is_file() and file.resolve().parent == (folder / "fixtures").resolve():
            fixture, source = load_fixture(file), f"fixtures/{name}.yaml"
        elif name in shipped():
            fixture = load_fixture(name)
            fixture = fixture if fixture.sha256 == about["sha256"] else None
        card: dict[str, Any] = {"name": name, "anchor": anchor(name), "sha256": about["sha256"]}
        card |= {"facts": [], "checks": [], "plain": ""}
        if fixture is not None:
            card |= {"source": shlex.quote(source), **_card(fixture)}
            if many:
                card["plain"] = _aligned(card["facts"], card["checks"])
        out.append(card)
    return out


def _card(fixture: Fixture) -> dict[str, Any]:
    knobs = ", ".join(f"{k} = {_short(v)}" for k, v in fixture.knobs.items() if v is not None)
    limit = "none" if fixture.action_limit is None else str(fixture.action_limit)
    facts = [
        ("family", f"{fixture.family}, {fixture.parameterization} form"),
        ("dimensions", f"state {fixture.state_dim}, action {fixture.action_dim}"),
        ("horizon, discount", f"{fixture.horizon} steps, γ = {fixture.gamma}"),
        ("knobs", knobs),
        ("action limit", limit),
        ("initial law, noise", f"{_law(fixture)}, {getattr(fixture.noise, 'model', '')}"),
    ]
    for label, A in (("P", fixture.P), ("R", fixture.R)):
        low, high = linalg.extreme_eigenvalues(A)
        facts.append((f"eigenvalues of {label}", f"{low:.4g} … {high:.4g}"))
    if fixture.difficulty is not None:
        level = tier(fixture)
        facts.append(
            ("difficulty", f"{fixture.difficulty.index:g}" + (f", {level}" if level else ""))
        )
    checks, passed, floor = [], None, ""
    if fixture.certificate is not None:
        passed = bool(fixture.certificate.passed)
        for name, check in fixture.certificate.checks.items():
            value, tolerance = (
                "" if x is None else f"{x:.3g}" for x in (check.value, check.tolerance)
            )
            checks.append((check.verdict, name.replace("_", " "), value, tolerance, check.note))
        if fixture.certificate.precision is not None:
            floor = f"{fixture.certificate.precision.floor:.2g}"
    return {"facts": facts, "checks": checks, "passed": passed, "floor": floor}


def _aligned(facts: list[tuple[str, str]], checks: list[tuple[str, ...]]) -> str:
    """A card as lines of text, which a browser takes in at once where there are thousands."""
    lines = [f"{key:<24}{value}" for key, value in facts]
    lines += ["", *(f"{v:<6}{n:<26}{x:>10}{t:>10}  {note}" for v, n, x, t, note in checks)]
    return "\n".join(line.rstrip() for line in lines)


def _law(fixture: Fixture) -> str:
    return str(getattr(fixture.initial_state, "law", ""))


def _short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
