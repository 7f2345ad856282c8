"""What is installed: every room works without the extras, and what needs one says which."""

from __future__ import annotations

import re
import subprocess
import sys
import textwrap
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS: dict[str, list[str]] = PROJECT["optional-dependencies"]

#: What each extra brings, as modules. GPyTorch itself brings scikit-learn.
MODULES = {
    "accounting": "dp_accounting",
    "opacus": "opacus",
    "plots": "matplotlib",
    "frames": "pandas",
    "ax": "ax",
    "dask": "distributed",
    "ray": "ray",
    "postgres": "psycopg",
    "service": "starlette",
}

BLOCKED = f"""
import sys
class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {sorted(MODULES.values())}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name.partition(".")[0])
sys.meta_path.insert(0, Missing())
"""


def without_extras(program: str) -> subprocess.CompletedProcess[str]:
    program = BLOCKED + textwrap.dedent(program)
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=ROOT)


def test_every_module_is_imported_without_the_extras() -> None:
    done = without_extras(
        """
        import importlib, pkgutil, botorch_dp
        for module in pkgutil.walk_packages(botorch_dp.__path__, "botorch_dp."):
            if not module.name.endswith(("__main__", "opacus_accountant")):
                importlib.import_module(module.name)
        """
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("program", "extra"),
    [
        ("import botorch_dp.privacy.opacus_accountant", "opacus"),
        (
            "from botorch_dp.privacy import laplace_guarantee\n"
            "laplace_guarantee(sensitivity=1.0, epsilon=1.0).to_event()",
            "accounting",
        ),
        (
            "from botorch_dp.plots import plot_guarantee\n"
            "from botorch_dp.privacy import laplace_guarantee\n"
            "plot_guarantee(laplace_guarantee(sensitivity=1.0, epsilon=1.0))",
            "plots",
        ),
        (
            "from botorch_dp.acquisition import register_with_ax\nregister_with_ax()",
            "ax",
        ),
        (
            "from botorch_dp.pareto.storage import StudyStorage\n"
            "StudyStorage('postgresql://user@host/database', description={})",
            "postgres",
        ),
    ],
)
def test_what_needs_an_extra_names_it(program: str, extra: str) -> None:
    done = without_extras(program)
    assert done.returncode == 1
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith("ModuleNotFoundError: ")
    assert MODULES[extra] in last and f"botorch_dp[{extra}]" in last


def test_every_extra_that_a_message_names_exists() -> None:
    named = set()
    for file in (ROOT / "botorch_dp").rglob("*.py"):
        text = file.read_text()
        named |= set(re.findall(r"needs_extra\(\s*\"([a-z]+)\"", text))
        named |= set(re.findall(r"botorch_dp\[([a-z]+)\]", text))
    assert named and named <= set(EXTRAS)


def test_the_core_holds_what_every_room_needs_and_no_more() -> None:
    core = {re.split(r"[<>=\[ ]", line)[0] for line in PROJECT["dependencies"]}
    heavy = {"opacus", "matplotlib", "scikit-learn", "pandas", "dp-accounting", "ax-platform"}
    assert not core & heavy
    used = set()
    for file in (ROOT / "botorch_dp").rglob("*.py"):
        for line in file.read_text().splitlines():
            found = re.match(r"(?:from|import) ([a-z_0-9]+)", line)
            if found:
                used.add(found[1].replace("_", "-"))
    foreign = {name for name in used if name.replace("-", "_") not in sys.stdlib_module_names}
    assert foreign - {"botorch-dp"} <= core | {"linear-operator"}
