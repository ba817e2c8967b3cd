"""Every notebook runs from its first cell to its last, in its short mode, and keeps its outputs."""

import sys
from pathlib import Path

import matplotlib.pyplot as plt
import nbformat
import pytest
from helpers import some_slow
from IPython.core.interactiveshell import InteractiveShell
from IPython.utils.capture import capture_output
from nbclient import NotebookClient
from traitlets.config import Config

FOLDER = Path(__file__).parents[1] / "notebooks"
NAMES = (
    "certificates",
    "first_steps",
    "how_robust_is_robust",
    "hyperparameter_search",
    "own_family",
    "own_learner",
    "paper_table",
    "pareto_front",
    "price_of_risk",
    "sb3_against_ours",
    "what_went_wrong",
)
NEEDS = {"sb3_against_ours": "stable_baselines3"}


# In kernels of their own, as a user runs them: what is opened first, and what defines a family.
IN_KERNELS = ("first_steps", "own_family", "sb3_against_ours")


def run_here(notebook):
    """Run the cells in a shell of this process, which has imported and compiled much already."""
    main = sys.modules["__main__"]
    config = Config({"HistoryManager": {"enabled": False}})
    shell = InteractiveShell.instance(config=config, user_ns={})
    try:
        with capture_output():  # pictures are shown, and go nowhere
            plt.switch_backend("module://matplotlib_inline.backend_inline")
            for cell in notebook.cells:
                if cell.cell_type == "code":
                    shell.run_cell(cell.source).raise_error()
    finally:
        plt.close("all")
        plt.switch_backend("agg")
        InteractiveShell.clear_instance()
        sys.modules["__main__"] = main


LONG = ("paper_table", "how_robust_is_robust", "own_family", "what_went_wrong")


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("name", some_slow(NAMES, LONG))
def test_notebook_runs(name, monkeypatch, tmp_path):
    if name in NEEDS:
        pytest.importorskip(NEEDS[name])
    monkeypatch.setenv("COJAX_SHORT", "1")
    notebook = nbformat.read(FOLDER / f"{name}.ipynb", as_version=4)
    if name in IN_KERNELS:
        place = {"metadata": {"path": str(tmp_path)}}
        NotebookClient(notebook, timeout=300, kernel_name="python3", resources=place).execute()
    else:
        monkeypatch.chdir(tmp_path)
        run_here(notebook)


def test_outputs_are_kept_and_none_is_an_error():
    assert {path.stem for path in FOLDER.glob("*.ipynb")} == set(NAMES)
    for name in NAMES:
        notebook = nbformat.read(FOLDER / f"{name}.ipynb", as_version=4)
        nbformat.validate(notebook)
        code = [cell for cell in notebook.cells if cell.cell_type == "code"]
        kinds = [output.output_type for cell in code for output in cell.outputs]
        assert all(cell.execution_count for cell in code)
        assert "error" not in kinds
        pictures = [o for cell in code for o in cell.outputs if "image/png" in o.get("data", {})]
        assert pictures, name
        assert "COJAX_SHORT" in code[0].source
