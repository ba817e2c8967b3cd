"""The house: imports run one way, loading is light, flags stay untouched."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "cojax"
FLOORS = [  # each may import what stands below it
    {"errors", "types"},
    {"io", "labels"},
    {"distinct", "inputs", "plugins", "precision", "linalg", "inverse_sqrt", "streams"},
    {"noise_laws", "noise", "initial", "action_limits", "action_lists"},
    {"value_forms", "value_terms", "control_costs"},
    {"system", "policy", "geometry", "delegated"},
    {
        "quadratic_gaussian",
        "quadratic",
        "oracle",
        "kinematic",
        "actuators",
        "memory",
        "delay",
        "disturbance",
        "budgets",
        "finite_horizon",
        "risk",
        "risk_kernel",
        "drift_share",
        "free_drift",
        "termination",
        "average_cost",
        "zero_sum",
        "games",
        "players",
        "belief",
        "hypotheses",
        "pushed",
    },
    {"converse", "coordinates"},
    {"consistency"},
    {"families"},
    {"observation_maps"},
    {"envs"},
    {"markov_jump", "hidden"},
    {"trials"},
    {"fixtures"},
    {"registration"},
    {"evaluation"},
    {"agents"},
    {"named_policies"},
    {"report"},
    {"studies"},
    {"experiments", "sweeps", "orbits"},
    {"commands"},
    {"cli", "__main__", "testing", "adapters"},
]
LEVEL = {name: level for level, names in enumerate(FLOORS) for name in names}


def imports(path: Path) -> set[str]:
    """Parts of cojax that a file imports, inside functions or outside."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            names = [f"{node.module}.{alias.name}" for alias in node.names]
            names += [node.module]
        for name in names:
            parts = name.split(".")
            if parts[0] == "cojax" and len(parts) > 1 and parts[1] in LEVEL:
                found.add(parts[1])
    return found


def part(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


FILES = sorted(p for p in PACKAGE.rglob("*.py") if part(p) != "__init__")


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_imports_run_one_way(path):
    own = part(path)
    assert own in LEVEL, f"{own} has no floor in the house"
    for other in imports(path) - {own}:
        assert LEVEL[other] <= LEVEL[own], f"{own} imports {other}"


def own_lazy_imports(path: Path) -> list[str]:
    """Imports of cojax inside functions."""
    functions = [n for n in ast.walk(ast.parse(path.read_text("utf-8")))
                 if isinstance(n, ast.FunctionDef)]  # fmt: skip
    inside = {node for f in functions for node in ast.walk(f)}
    return [ast.unparse(n) for n in inside
            if (isinstance(n, ast.ImportFrom) and (n.module or "").split(".")[0] == "cojax")
            or (isinstance(n, ast.Import) and "cojax" in {a.name.split(".")[0] for a in n.names})
            ]  # fmt: skip


LAZY = 19  # imports of our own inside functions, outside of commands: for loading alone


def test_imports_stand_at_the_top():
    files = [p for p in FILES if part(p) not in ("commands", "cli")]
    found = [f"{p.relative_to(PACKAGE)}: {line}" for p in files for line in own_lazy_imports(p)]
    assert len(found) <= LAZY, "\n".join(found)


def test_learners_cannot_see_the_oracle():
    hidden = {
        "system",
        "oracle",
        "quadratic_gaussian",
        "quadratic",
        "families",
        "fixtures",
        "evaluation",
        "zero_sum",
        "games",
        "players",
    }
    for path in (PACKAGE / "agents").rglob("*.py"):
        assert not imports(path) & hidden, path.name


def test_statistics_print_nothing():
    """Nor does anything that measures know of tables, figures and pages, or of learners."""
    shown = {"report", "commands", "cli", "agents", "named_policies"}
    for path in (PACKAGE / "evaluation").rglob("*.py"):
        assert not imports(path) & shown, path.name
        words = {node.id for node in ast.walk(ast.parse(path.read_text("utf-8")))
                 if isinstance(node, ast.Name)}  # fmt: skip
        assert "print" not in words, path.name


def test_own_modules_are_imported_at_the_top():
    """Inside functions only where loading must stay light, which here nothing must."""
    lazy = []
    for path in (p for p in FILES if part(p) in {"evaluation", "named_policies", "report"}):
        nodes = ast.walk(ast.parse(path.read_text("utf-8")))
        functions = [node for node in nodes if isinstance(node, ast.FunctionDef)]
        for node in (n for function in functions for n in ast.walk(function)):
            if isinstance(node, ast.ImportFrom) and str(node.module).startswith("cojax"):
                lazy.append(f"{path.name}:{node.lineno}")
    assert lazy == []


TEXT = {"open", "read_text", "write_text"}
BINARY = ("zipfile", "ZipFile", "Image", "urlopen", "os.open", "browser")


def texts_without_encoding(source: str) -> list[str]:
    """Calls that read or write text by the encoding of whoever runs them."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Call):
            continue
        call, function = ast.unparse(node), ast.unparse(node.func)
        if any(isinstance(k.value, ast.Constant) and k.arg == "text" for k in node.keywords):
            found.append(call)  # of a subprocess
        if function.rpartition(".")[2] not in TEXT or function.startswith(BINARY):
            continue
        given = [x.value for x in (*node.args, *(k.value for k in node.keywords))
                 if isinstance(x, ast.Constant)]  # fmt: skip
        mode = next((x for x in given if isinstance(x, str) and re.fullmatch("[rwxab+t]+", x)), "r")
        if "utf-8" not in given and "b" not in mode:
            found.append(call)
    return found


def test_text_is_utf8_whatever_the_locale():
    root = PACKAGE.parent
    sources = {p: p.read_text("utf-8") for p in (*FILES, *(root / "benchmarks").glob("*.py"))}
    for path in (root / "notebooks").glob("*.ipynb"):
        cells = json.loads(path.read_text("utf-8"))["cells"]
        lines = [c["source"] for c in cells if c["cell_type"] == "code"]
        code = ("".join(x for x in cell if x[0] not in "%!") for cell in lines)
        sources |= {path.with_suffix(f".{n}"): cell for n, cell in enumerate(code)}
    for path, source in sources.items():
        assert texts_without_encoding(source) == [], path
    for wrong in (
        "open(p)",
        "p.open('w')",
        "p.read_text()",
        "p.write_text(x)",
        "run(c, text=True)",
    ):
        assert texts_without_encoding(wrong) == [wrong]


def run_python(code: str) -> str:
    """What it prints."""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return done.stdout.strip()


HEAVY = (
    "chex", "flax", "gymnax", "jax", "jinja2", "matplotlib", "optax", "orbax", "pandas", "pyarrow",
    "pydantic", "rich", "scipy", "yaml",
)  # fmt: skip


def test_help_and_import_load_nothing_heavy():
    """Loading decides how long they take."""
    loaded = f"import sys; print([n for n in {HEAVY} if n in sys.modules])"
    help_of = "from cojax.cli import main; main(['--help'], standalone_mode=False)"
    assert run_python(f"{help_of}; {loaded}").splitlines()[-1] == "[]"
    assert run_python(f"import cojax; {loaded}") == "[]"
    assert run_python(f"import cojax.envs; {loaded}") != "[]"


def test_import_sets_no_flags():
    code = (
        "import jax; before = dict(jax.config.values); import cojax.envs, cojax.evaluation; "
        "import cojax.agents, cojax.fixtures; print(before == dict(jax.config.values))"
    )
    assert run_python(code) == "True"


def test_every_public_name_loads():
    code = "import cojax; [getattr(cojax, name) for name in cojax.__all__]; print(len(dir(cojax)))"
    assert int(run_python(code)) > 10


def test_gymnax_knows_us_whichever_is_imported_first():
    code = "import {}; print('ConverseArm-v0' in gymnax.registered_envs)"
    assert run_python(code.format("gymnax, cojax")) == "True"
    assert run_python(code.format("cojax, gymnax")) == "True"
