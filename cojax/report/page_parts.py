"""What the page says: policies in numbers, the rows with their commands, the fixtures' cards."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from cojax import linalg
from cojax.evaluation.aggregates import over_systems
from cojax.evaluation.metrics import AT_LEAST, AT_MOST, METRIC, worst
from cojax.evaluation.provenance import Results, named
from cojax.evaluation.references import NAMES
from cojax.fixtures import load_fixture, shipped
from cojax.fixtures.difficulty import tier
from cojax.fixtures.fixture import Fixture
from cojax.report.printing import cell_text, of_systems, with_interval
from cojax.types import Content, Row

CELLS = (METRIC, AT_LEAST, AT_MOST, "paper_optgap", "paper_regret")
MORE = {  # cells of rows where costs have a budget, and where risk has a price
    "cost_gap": "J_c - J_c*",
    "violation": "J_d - D",
    "front_gap": "J_c - J_c*(J_d)",
    "relative_risk_gap": "Risk gap / V*",
}


def summary(results: Results, learners: list[str], configuration: Content) -> Content:
    """What was run, in numbers, with a line for each policy, best first."""
    policies = []
    for policy, of_policy in results.trials.groupby("policy", sort=False):
        # the gap, (F, S, N); settings count as seeds; infinite where a trial failed
        x = of_policy[METRIC].to_numpy(np.float64)
        F, N = len(set(of_policy["fixture"])), len(set(of_policy["trial"]))
        x = x.reshape(-1, 1, N) if x.size % (F * N) else x.reshape(F, -1, N)
        gap = over_systems(x)
        learner = _learned(str(policy), learners)
        policies.append(
            {
                "name": policy,
                "shown": str(policy).upper() if learner else policy,
                "learner": learner,
                "gap": gap,
                "finite": bool(np.isfinite(gap["mean"])),
                "text": of_systems(gap),
                "runs": int(x[..., 0].size),
                "failed": int((~np.isfinite(x)).sum()),
                "trials": int(x.size),
            }
        )
    policies.sort(key=lambda p: (p["gap"]["mean"], p["name"]))
    steps = configuration.get("total_timesteps")
    found = [p for p in policies if p["learner"]] or [p for p in policies if p["name"] != "oracle"]
    return {
        "policies": policies,
        "main": found[:6],  # whose gap is a finding: learners where there are any
        "learners": [name.upper() for name in learners],
        "others": [p["name"] for p in policies if not p["learner"]],
        "seeds": configuration.get("num_seeds"),
        "steps": steps if isinstance(steps, int) else None,
        "num_trials": results.provenance["num_trials"],
        "fixtures": len(results.provenance["fixtures"]),
        **{total: sum(p[total] for p in policies) for total in ("runs", "trials", "failed")},
    }


def _learned(policy: str, learners: list[str]) -> bool:
    """Whether a policy is a learner's, of whatever setting."""
    return any(policy == name or policy.startswith(f"{name} (") for name in learners)


# --- rows ----------------------------------------------------------------------------------------


def result_rows(
    folder: Path, rows: list[Row], learners: list[str], *, about: Content, again: str
) -> list[Row]:
    """A line for each fixture and policy, with texts, numbers to sort by, and the command."""
    out = []
    for row in rows:
        fixture, policy, failures = str(row["fixture"]), str(row["policy"]), int(row["failures"])
        line: Row = {
            "fixture": fixture,
            "anchor": anchor(fixture),
            "policy": policy,
            "failures": failures,
            "trials": int(row["num_trials"]) * int(row.get("num_seeds") or 1),
            "command": again,
        }
        own = f"fixtures/{fixture}.yaml" if _own(folder, fixture) else fixture
        known = policy.partition(":")[0] in NAMES and not _learned(policy, learners)
        if known and (own != fixture or fixture in shipped()):
            horizon = about["fixtures"][row["fixture"]]["horizon"]
            line["command"] = evaluate_command(about, [own], [policy], horizon)
        if row.get("setting") is not None:
            varied = row.get("hyperparameters") or {}
            words = "".join(f", {name} {_short(x)}" for name, x in varied.items())
            line["policy"] = named(policy, row["setting"]) + words
        if "risk_gap" in row and "seed" in row:
            line["policy"] += f", seed {row['seed']}"
        for name in CELLS:
            if name not in row:
                continue
            cell = _finite(row[name], worst(name))
            bound = name in (AT_LEAST, AT_MOST)
            floor = row.get("resolution_floor") if name == METRIC or bound else None
            completed = row.get(f"{name}_completed") if failures else None
            line[name] = {
                "value": cell["mean"],
                "text": with_interval(cell, floor)
                if bound
                else cell_text({**row, name: cell}, name, floor, short=True),
                "completed": with_interval(_finite(completed, worst(name))) if completed else "",
                "note": "",
            }
        line |= {name: _more(row, name) for name in MORE if name in row}
        out.append(line)
    return out


def _more(row: Row, name: str) -> Row:
    """A cell of ``MORE``: a dash where it is not known, and why it is refused."""
    text, value = "–", np.inf
    if row[name] is not None:
        cell = _finite(row[name], np.inf)
        text, value = with_interval(cell), cell["mean"]
    elif row.get("refused"):
        text = "refused"
    note = ""
    if name == "relative_risk_gap":
        note = f"{row['effective_sample_size']:.0f} of {row['num_trials']:,} trials carry it"
    return {"value": value, "text": text, "note": note, "completed": ""}


def _finite(cell: dict[str, float | None], worst: float) -> dict[str, float]:
    """A cell read back from JSON, where null stands for the worst there is."""
    return {k: worst if (x := cell[k]) is None else float(x) for k in ("mean", "low", "high")}


def evaluate_command(
    about: Content,
    fixtures: Sequence[str] | None = None,
    policies: Sequence[str] | None = None,
    steps: int | None = None,
    *,
    risk: float | None = None,
    **_: object,
) -> str:
    """What measures policies on fixtures again, run inside the folder; empty where they are not
    known by name.
    """
    if not all(isinstance(value, list | tuple) for value in (fixtures, policies)):
        return ""
    words = [f"--fixture {shlex.quote(str(fixture))}" for fixture in fixtures or ()]
    words += [f"--policy {shlex.quote(str(policy))}" for policy in policies or ()]
    words += [f"--trials {about['num_trials']} --root {about['root']}"]
    words += [f"--steps {steps}"] if isinstance(steps, int) else []
    words += [f"--risk {risk:g}"] if isinstance(risk, float) else []
    return f"cojax evaluate {' '.join(words)}"


def anchor(name: str) -> str:
    """The id of a fixture's card."""
    return "fixture-" + re.sub(r"[^A-Za-z0-9.]+", "-", name)


# --- cards ---------------------------------------------------------------------------------------


def _own(folder: Path, name: str) -> Path | None:
    """The file of a fixture in the folder, where it has one."""
    file = folder / "fixtures" / f"{name}.yaml"
    inside = file.is_file() and file.resolve().parent == (folder / "fixtures").resolve()
    return file if inside else None


def cards(folder: Path, fixtures: Content) -> list[Content]:
    """A card for each fixture, from ``fixtures/*.yaml`` or the shipped one of the same hash."""
    out = []
    for name, about in fixtures.items():
        fixture, source = None, name
        if (file := _own(folder, name)) is not None:
            fixture, source = load_fixture(file), f"fixtures/{name}.yaml"
        elif name in shipped():
            fixture = load_fixture(name)
            fixture = fixture if fixture.sha256 == about["sha256"] else None
        card: Content = {"name": name, "anchor": anchor(name), "sha256": about["sha256"]}
        card |= {"facts": [], "checks": [], "source": shlex.quote(source)}
        out.append(card if fixture is None else card | _card(fixture))
    return out


def _card(fixture: Fixture) -> Content:
    knobs = ", ".join(f"{k} = {_short(v)}" for k, v in fixture.knobs.items() if v is not None)
    law = getattr(fixture.initial_state, "law", "")
    facts = [
        ("family", f"{fixture.family}, {fixture.parameterization} form"),
        ("dimensions", f"state {fixture.state_dim}, action {fixture.action_dim}"),
        ("horizon, discount", f"{fixture.horizon} steps, γ = {fixture.gamma}"),
        ("knobs", knobs),
        ("action limit", "none" if fixture.action_limit is None else str(fixture.action_limit)),
        ("initial law, noise", f"{law}, {getattr(fixture.noise, 'model', '')}"),
    ]
    for label, A in (("P", fixture.P), ("R", fixture.R)):
        low, high = linalg.extreme_eigenvalues(A)
        facts.append((f"eigenvalues of {label}", f"{low:.4g} … {high:.4g}"))
    if fixture.difficulty is not None:
        level = tier(fixture)
        words = f"{fixture.difficulty.index:g}" + (f", {level}" if level else "")
        facts.append(("difficulty", words))
    certificate = fixture.certificate
    if certificate is None:
        return {"facts": facts, "checks": [], "passed": None, "floor": ""}
    checks = []
    for name, check in certificate.checks.items():
        numbers = ("" if x is None else f"{x:.3g}" for x in (check.value, check.tolerance))
        checks.append((check.verdict, name.replace("_", " "), *numbers, check.note))
    floor = "" if certificate.precision is None else f"{certificate.precision.floor:.2g}"
    return {"facts": facts, "checks": checks, "passed": bool(certificate.passed), "floor": floor}


def _short(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
