"""Execute the notebooks in place, so that their pictures are those the code draws.

``python tutorials/execute.py`` runs all of them; ``SMOKE_TEST=1`` runs reduced sizes and leaves
the files as they are. Names after the command run only those.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from pathlib import Path

import nbformat
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError

from botorch_dp._files import atomic_write

FOLDER = Path(__file__).parent


def execute(path: Path, *, keep: bool) -> float:
    """Run one notebook in a scratch folder; returns the seconds it took.

    Args:
        path: The notebook.
        keep: Whether to write it back with its outputs.
    """
    notebook = nbformat.read(path, as_version=4)
    start = time.perf_counter()
    with tempfile.TemporaryDirectory() as scratch:
        client = NotebookClient(
            notebook,
            timeout=1800,
            kernel_name="python3",
            resources={"metadata": {"path": scratch}},
        )
        client.execute()
    seconds = time.perf_counter() - start
    if keep:
        # What differs from run to run and from machine to machine is no part of a tutorial.
        notebook.metadata = {
            "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
            "language_info": {"name": "python"},
        }
        for cell in notebook.cells:
            cell.metadata.pop("execution", None)
        with atomic_write(path) as file:
            nbformat.write(notebook, file)
    return seconds


def main() -> int:
    """Run the notebooks named on the command line, or all."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="parts of the names to run")
    options = parser.parse_args()
    smoke = os.environ.get("SMOKE_TEST") == "1"
    failures = 0
    for path in sorted(FOLDER.glob("*.ipynb")):
        if options.names and not any(name in path.name for name in options.names):
            continue
        try:
            print(f"{path.name}: {execute(path, keep=not smoke):.0f} s", flush=True)
        except CellExecutionError as error:
            failures += 1
            print(f"{path.name} FAILED\n{error}", file=sys.stderr)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
