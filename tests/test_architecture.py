"""Rules that one file alone cannot show: who imports whom, and what an import does."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "botorch_dp"

#: From the ground up; each may import from those before it and from the leaves.
SUBPACKAGES = [
    "privacy",
    "groups",
    "models",
    "space",
    "acquisition",
    "scores",
    "estimator_scores",
    "objectives",
    "release",
    "descent",
    "outsourced",
    "pareto",
    "training",
    "tuning",
    "integrations",
    "datasets",
    "tasks",
    "plots",
    "report",
    "cli",
]
LEAVES = {"errors", "_checks", "_files", "_progress"}
#: `ParetoFront.plot()` hands its data to the figures; imported inside the method only.
LATE_EXCEPTIONS = {("pareto", "plots"), ("pareto", "report")}

MODULES = sorted(PACKAGE.rglob("*.py"))


def subpackage_of(path: Path) -> str:
    first = path.relative_to(PACKAGE).parts[0]
    return first.removesuffix(".py")


def imported_subpackages(path: Path) -> list[tuple[str, bool]]:
    """What of ours a module imports, with whether the import is inside a function."""
    tree = ast.parse(path.read_text())
    late = {
        id(node)
        for function in ast.walk(tree)
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef)
        for node in ast.walk(function)
    }
    found = []
    for node in ast.walk(tree):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            module = node.module or ""
            names = (
                [f"botorch_dp.{alias.name}" for alias in node.names]
                if module == "botorch_dp"
                else [module]
            )
        for name in names:
            parts = name.split(".")
            if parts[0] == "botorch_dp" and len(parts) > 1:
                found.append((parts[1], id(node) in late))
    return found


@pytest.mark.parametrize("path", MODULES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_imports_come_from_below(path: Path) -> None:
    subpackage = subpackage_of(path)
    if subpackage == "__init__":  # hands on names, for type checkers only
        allowed = LEAVES | set(SUBPACKAGES)
    elif subpackage in LEAVES | {"__main__"}:
        allowed = set(LEAVES) | ({"cli"} if subpackage == "__main__" else set())
    elif subpackage in {"privacy", "models", "space"}:
        allowed = LEAVES | {subpackage}
    else:
        allowed = LEAVES | set(SUBPACKAGES[: SUBPACKAGES.index(subpackage) + 1])
    for target, late in imported_subpackages(path):
        if target == "__version__" or (late and (subpackage, target) in LATE_EXCEPTIONS):
            continue
        assert target in allowed, f"{path.name} ({subpackage}) imports from {target}"
    for other in re.findall(r"from botorch_dp\.(\w+)\._\w+ import", path.read_text()):
        assert other == subpackage, f"{path.name} imports from a file that {other}/ keeps to itself"


def test_every_subpackage_is_listed() -> None:
    subpackages = {subpackage_of(path) for path in MODULES} - LEAVES - {"__init__", "__main__"}
    assert subpackages <= set(SUBPACKAGES)


def test_prices_ledgers_and_the_command_line_need_no_torch() -> None:
    """They are there in a third of a second."""
    program = """
import sys
import botorch_dp
assert not {"opendp", "matplotlib"} & sys.modules.keys()
from botorch_dp import PrivacyBudget, PrivacyLedger
from botorch_dp.privacy import dp_sgd_epsilon
PrivacyLedger(budget=PrivacyBudget(1.0, 1e-6))
from botorch_dp.cli import main
try:
    main(["--help"])
finally:
    assert not {"torch", "scipy.stats", "dp_accounting"} & sys.modules.keys()
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    for name in ("epsilon", "suggest", "verify", "sign", "ledger", "report"):
        assert f"\n    {name} " in done.stdout


def test_the_map_shows_what_there_is() -> None:
    """Files of the tree exist (``python -m tools.map --write`` draws it), formulas too."""
    page = (ROOT / "docs" / "architecture.md").read_text()
    tree = page.partition("<!-- tree -->\n```\n")[2].partition("\n```")[0]
    folders, listed = [PACKAGE], 0
    for indent, name, stems in re.findall(r"^( *)(\w+/)?(.*)$", tree, re.MULTILINE):
        if name:
            del folders[len(indent) // 2 + 1 :]
            folders.append(folders[-1] / name)
        for stem in stems.split():
            listed += 1
            assert (folders[-1] / f"{stem}.py").exists(), f"{folders[-1]} has no {stem}.py"
    assert listed > 80

    formulas = re.findall(r"`([\w/]+\.py)::([\w.]+)`", page)
    assert len(formulas) > 15
    for file, name in formulas:
        place: ast.AST = ast.parse((PACKAGE / file).read_text())
        for part in name.split("."):
            found = [n for n in ast.iter_child_nodes(place) if getattr(n, "name", None) == part]
            assert found, f"{file} has no {name}"
            place = found[0]


def _tracked_text_files() -> list[Path]:
    names = ["botorch_dp", "tests", "benchmarks", "examples", "tutorials", "docs"]
    folders = [ROOT / name for name in names]
    files = [f for folder in folders if folder.exists() for f in folder.rglob("*") if f.is_file()]
    files += [f for f in ROOT.iterdir() if f.is_file() and f.name != ".git"]  # of a work tree
    endings = {".py", ".md", ".toml", ".txt", ".ipynb", ".json", ""}
    return [f for f in files if f.suffix in endings and ".sqlite" not in f.name]


def test_no_unfinished_business_and_no_machine_paths() -> None:
    unfinished = re.compile(r"(?<![\w+/])(TO" r"DO|FIX" r"ME|XX" r"X)(?![\w+/=])")
    machine = re.compile(r"(?<![\w.])/(?:work|root|home)/")
    for path in _tracked_text_files():
        text = path.read_text(errors="replace")
        assert not unfinished.search(text), f"{path.relative_to(ROOT)} leaves something unfinished"
        assert not machine.search(text), f"{path.relative_to(ROOT)} names a path of one machine"
