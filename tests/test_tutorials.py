"""Every notebook runs from top to bottom in a reduced size, and is stored with its pictures."""

from __future__ import annotations

import multiprocessing
import os
import runpy
from pathlib import Path

import matplotlib
import nbformat
import pytest

ROOT = Path(__file__).resolve().parents[1]
NOTEBOOKS = sorted((ROOT / "tutorials").glob("*.ipynb"))


def code_of(path: Path) -> str:
    notebook = nbformat.read(path, as_version=4)
    return "\n\n".join(cell.source for cell in notebook.cells if cell.cell_type == "code")


#: A server that has imported what all of them need, and nothing else, forks a process for each.
SERVER = multiprocessing.get_context("forkserver")
SERVER.set_forkserver_preload(
    [
        "botorch.optim",
        "botorch_dp.release",
        "botorch_dp.training",
        "matplotlib.pyplot",
        "torch._dynamo",  # of every optimizer of torch
    ]
)


def run(script: Path) -> None:
    """In a process of its own, which keeps what it writes for an error."""
    os.chdir(script.parent)
    os.environ.update(SMOKE_TEST="1")
    matplotlib.use("agg")
    with open("output", "w") as output:
        os.dup2(output.fileno(), 1)
        os.dup2(output.fileno(), 2)
    runpy.run_path(str(script), run_name="__main__")


@pytest.mark.one_in(8)  # `make tutorials` executes them whole
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_runs_in_a_reduced_size(path: Path, tmp_path: Path) -> None:
    program = code_of(path)
    assert "SMOKE_TEST" in program
    script = tmp_path / "tutorial.py"
    # Notebooks show a figure by naming it, which a script may do as well.
    script.write_text(program)
    process = SERVER.Process(target=run, args=(script,))
    process.start()
    process.join(500)
    process.kill()
    process.join()
    assert process.exitcode == 0, (tmp_path / "output").read_text()[-3000:]


def test_all_are_stored_executed_and_without_errors() -> None:
    assert len(NOTEBOOKS) == 8
    for path in NOTEBOOKS:
        notebook = nbformat.read(path, as_version=4)
        cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
        assert all(cell.execution_count for cell in cells), path
        outputs = [output for cell in cells for output in cell.outputs]
        assert not [output for output in outputs if output.output_type == "error"], path
        assert any("image/png" in output.get("data", {}) for output in outputs), path
        assert path.stat().st_size < 1_500_000
