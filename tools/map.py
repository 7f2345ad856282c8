"""The size and the shape of the package: what a reader must open to follow it.

``python -m tools.map`` counts files and lines of the package and of its tests, public names,
modules with a single user, long keyword lists and repeated runs of lines; then it follows six
small journeys and counts the files of the package that each visits and the calls that go from one
of them to another. ``--tree FOLDER`` measures another checkout; ``--files`` prints each file with
the first line of its docstring; ``--write`` draws the tree into ``docs/architecture.md``.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import re
import subprocess
import sys
import tempfile
import textwrap
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any
from unittest.mock import patch

from benchmarks.common import save_results
from tools.names import public_names

ROOT = Path(__file__).resolve().parents[1]
#: More keyword arguments than this ask for a settings record.
MANY = 10
#: A run of so many equal lines in two places is written twice.
RUN = 6


# --- What can be read off the sources. ---


def module_name(path: Path, root: Path) -> str:
    return ".".join(path.relative_to(root).with_suffix("").parts).removesuffix(".__init__")


def count_lines(folder: Path) -> dict[str, int]:
    files = sorted(folder.rglob("*.py"))
    return {"files": len(files), "lines": sum(len(f.read_text().splitlines()) for f in files)}


def imported_from(tree: ast.AST) -> Iterator[tuple[str, str]]:
    """Module and name of every import from the package, wherever it stands."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("botorch_dp"):
            for alias in node.names:
                yield str(node.module), alias.name


def single_users(root: Path) -> dict[str, str]:
    """Modules whose names are used by exactly one other module, with that module.

    A name imported from a subpackage counts for the module that defines it; what a subpackage
    hands on to its users outside is no use.
    """
    trees = {
        module_name(path, root): (path, ast.parse(path.read_text()))
        for path in sorted((root / "botorch_dp").rglob("*.py"))
    }
    subpackages = {name for name, (path, _) in trees.items() if path.name == "__init__.py"}
    handed_on = {
        (subpackage, name): module
        for subpackage in subpackages
        for module, name in imported_from(trees[subpackage][1])
        if module in trees
    }
    users = defaultdict(set)
    for user, (_, tree) in trees.items():
        if user in subpackages:
            continue
        for module, name in imported_from(tree):
            target = f"{module}.{name}" if f"{module}.{name}" in trees else module
            while (target, name) in handed_on:
                target = handed_on[target, name]
            if target not in subpackages and target != user:
                users[target].add(user)
    return {module: next(iter(who)) for module, who in sorted(users.items()) if len(who) == 1}


def records_written_by_callers(root: Path) -> set[str]:
    """Names that a document, an example or a tutorial calls: its reader writes their fields.

    All other records are made by the library, and only read.
    """
    places = {"docs": "md", "tutorials": "ipynb", "examples": "py"}
    texts = [f.read_text() for p, end in places.items() for f in (root / p).rglob(f"*.{end}")]
    sources = "".join(f.read_text() for f in (root / "botorch_dp").rglob("*.py"))
    texts += re.findall(r"^ +(?:>>>|\.\.\.) .*$", sources, re.MULTILINE)
    return {name for text in texts for name in re.findall(r"\b([A-Z]\w+)\(", text)}


def keyword_fields(record: ast.ClassDef) -> int:
    """How many fields of a dataclass are given by keyword: those after ``KW_ONLY``, else all."""
    fields = [ast.unparse(n.annotation) for n in record.body if isinstance(n, ast.AnnAssign)]
    fields = fields[fields.index("KW_ONLY") + 1 :] if "KW_ONLY" in fields else fields
    return sum(not field.startswith("ClassVar") for field in fields)


def keyword_lists(root: Path) -> list[tuple[int, str]]:
    """How many keyword-only arguments each function takes, and each record that callers write."""
    found = []
    written = records_written_by_callers(root)
    for path in sorted((root / "botorch_dp").rglob("*.py")):
        module = module_name(path, root).removeprefix("botorch_dp.")

        def visit(node: ast.AST, place: str) -> None:
            for child in ast.iter_child_nodes(node):
                inside = place
                if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
                    inside = f"{place}.{child.name}"
                    found.append((len(child.args.kwonlyargs), inside))
                elif isinstance(child, ast.ClassDef):
                    inside = f"{place}.{child.name}"
                    is_record = any("dataclass" in ast.unparse(d) for d in child.decorator_list)
                    if is_record and child.name in written:
                        found.append((keyword_fields(child), inside))
                visit(child, inside)

        visit(ast.parse(path.read_text()), module)
    return sorted(found, key=lambda pair: (-pair[0], pair[1]))


def set_aside(tree: ast.AST, *, signatures: bool) -> set[int]:
    """Lines of imports and, if these are set aside too, of signatures and docstrings."""
    lines: set[int] = set()
    for node in ast.walk(tree):
        first = last = None
        if isinstance(node, ast.Import | ast.ImportFrom):
            first, last = node.lineno, node.end_lineno
        elif not signatures:
            continue
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            first, last = node.lineno, node.body[0].lineno - 1
        elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            first, last = node.lineno, node.end_lineno
        if first is not None:
            lines.update(range(first, (last or first) + 1))
    return lines


def repeated_runs(root: Path, *, signatures: bool) -> list[tuple[str, str, int]]:
    """Pairs of places with at least ``RUN`` equal lines in a row, and how many.

    Two functions with the same arguments say so twice, in their signatures and docstrings: that
    is how a reader of either learns of them. Without ``signatures`` only other lines count.
    """
    texts: dict[str, list[tuple[int, str]]] = {}
    for path in sorted((root / "botorch_dp").rglob("*.py")):
        source = path.read_text()
        left_out = set_aside(ast.parse(source), signatures=not signatures)
        lines = [(i, line.strip()) for i, line in enumerate(source.splitlines(), 1)]
        texts[str(path.relative_to(root / "botorch_dp"))] = [
            (i, line) for i, line in lines if line and line[0] != "#" and i not in left_out
        ]
    places = defaultdict(list)
    for name, lines in texts.items():
        for start in range(len(lines) - RUN + 1):
            places[tuple(line for _, line in lines[start : start + RUN])].append((name, start))
    runs = []
    seen = set()
    for where in places.values():
        for a, (one, i) in enumerate(where):
            for other, j in where[a + 1 :]:
                if (one, i - 1, other, j - 1) not in seen:
                    runs.append([one, i, other, j, RUN])
                seen.add((one, i, other, j))
    counted = []
    for one, i, other, j, length in runs:
        while (one, i + length - RUN + 1, other, j + length - RUN + 1) in seen:
            length += 1
        counted.append((f"{one}:{texts[one][i][0]}", f"{other}:{texts[other][j][0]}", length))
    return sorted(counted, key=lambda run: -run[2])


# --- Journeys: what a call passes through. ---


def trial() -> Callable[[], object]:
    """One trial of a study, proposed by the model: its configuration, training and record."""
    from botorch_dp.pareto import DPareto, PrivacyUtilityProblem
    from botorch_dp.space import Real, SearchSpace

    problem = PrivacyUtilityProblem(
        SearchSpace(noise=Real(0.1, 10.0, log=True)),
        privacy=lambda config: 1 / config["noise"],
        utility=lambda config, seed: 1 / (1 + config["noise"]),
    )
    study = DPareto(problem, storage=os.path.join(tempfile.mkdtemp(), "study"), seed=0)
    study.run(17, initial=16)
    return lambda: study.run(18, initial=16)


def descent_step() -> Callable[[], object]:
    """One step of DP-GIBO, charged to a ledger."""
    import torch
    from gpytorch.kernels import RBFKernel

    from botorch_dp.descent import DPGIBO
    from botorch_dp.privacy import PrivacyBudget, PrivacyLedger

    records = torch.rand(100, 2, dtype=torch.double)
    ledger = PrivacyLedger(
        os.path.join(tempfile.mkdtemp(), "ledger"), PrivacyBudget(epsilon=5.0, delta=1e-6)
    )
    descent = DPGIBO(
        lambda X: torch.cdist(X, records),
        torch.full((2,), 0.2, dtype=torch.double),
        kernel=RBFKernel(),
        mu=0.1,
        steps=5,
        clip_norm=1.0,
        ledger=ledger,
    )
    descent.step()
    return descent.step


def ucb_release() -> Callable[[], object]:
    """One run of private GP-UCB with both of its releases, charged to a ledger."""
    import torch
    from gpytorch.kernels import MaternKernel

    from botorch_dp.privacy import PrivacyBudget, PrivacyLedger
    from botorch_dp.release import PrivateGPUCB

    ledger = PrivacyLedger(
        os.path.join(tempfile.mkdtemp(), "ledger"), PrivacyBudget(epsilon=50.0, delta=0.1)
    )
    choices = torch.linspace(0, 1, 20, dtype=torch.double).unsqueeze(-1)
    kernel = MaternKernel(nu=2.5)
    search = PrivateGPUCB(
        choices, kernel=kernel, noise_std=0.1, steps=4, epsilon=1.0, delta=1e-3,
        dataset_correlation=0.99,
    )  # fmt: skip

    def objective(x: torch.Tensor) -> torch.Tensor:
        return x.sin().sum(-1)

    search.release(objective, ledger=ledger)
    return lambda: search.release(objective, ledger=ledger)


def _trainer() -> Any:
    import torch

    from botorch_dp.training import DPTrainer, TrainTest, logistic_loss, logistic_regression

    X = torch.rand(200, 3)
    Y = (X.sum(-1) > 1.5).long()
    return DPTrainer(lambda: logistic_regression(3), logistic_loss, TrainTest(X, Y, X[:50], Y[:50]))


def training() -> Callable[[], object]:
    """One training with epsilon alone, charged to a ledger and published."""
    from botorch_dp.privacy import PrivacyBudget, PrivacyLedger

    path = os.path.join(tempfile.mkdtemp(), "ledger")
    ledger, trainer = PrivacyLedger(path, PrivacyBudget(epsilon=50.0, delta=1e-3)), _trainer()
    return lambda: trainer.fit(
        target_epsilon=1.0, delta=1e-5, feature_norm=2.0, publish=True, ledger=ledger
    )


def selection() -> Callable[[], object]:
    """One model of several, chosen by a private selection."""
    from botorch_dp.privacy import PrivacyBudget, TrialNumber
    from botorch_dp.space import Integer, Real, SearchSpace
    from botorch_dp.tuning import PrivateFit

    space = SearchSpace(
        learning_rate=Real(0.1, 1.0), clip_norm=Real(0.5, 1.0),
        batch_size=Integer(20, 25), epochs=Integer(1, 2),
    )  # fmt: skip
    fit = PrivateFit(_trainer(), space, budget=PrivacyBudget(3.0, 1e-5), trials=2)

    def run() -> object:
        """Two trials of fixed configurations, whatever is drawn."""
        with patch.object(TrialNumber, "draw", lambda _: 2), patch("secrets.randbits", lambda _: 7):
            return fit.run()

    return run


def search() -> Callable[[], object]:
    """One private search on sensitive validation records, by gradients."""
    import torch

    from botorch_dp.privacy import PrivacyBudget
    from botorch_dp.space import Real, SearchSpace
    from botorch_dp.tuning import PrivateSearch

    records = torch.rand(500, 3, dtype=torch.double)

    def scores(configs: Any) -> torch.Tensor:
        X = torch.tensor([[c["a"], c["b"], c["c"]] for c in configs], dtype=torch.double)
        return torch.cdist(X, records)

    return PrivateSearch(
        scores,
        SearchSpace(a=Real(0.0, 1.0), b=Real(0.0, 1.0), c=Real(0.0, 1.0)),
        bounds=(0.0, 2.0),
        budget=PrivacyBudget(1.0, 1e-6),
        evaluations=20,
        num_records=500,
    ).run


JOURNEYS: dict[str, Callable[[], Callable[[], object]]] = {
    "a trial": trial,
    "a training": training,
    "a private search": search,
    "a private selection": selection,
    "a descent step": descent_step,
    "a GP-UCB release": ucb_release,
}


def follow(journey: Callable[[], object], package: Path) -> tuple[list[str], int]:
    """Files of the package in the order in which a call first visits them, and crossings."""
    visited: dict[str, None] = {}
    crossings = 0

    def ours(frame: FrameType | None) -> str | None:
        if frame is None or not frame.f_code.co_filename.startswith(f"{package}{os.sep}"):
            return None
        return os.path.relpath(frame.f_code.co_filename, package)

    def profile(frame: FrameType, event: str, argument: Any) -> None:
        nonlocal crossings
        if event != "call" or frame.f_code.co_name == "<module>":
            return
        file = ours(frame)
        if file is None:
            return
        visited.setdefault(file)
        caller = frame.f_back
        while caller is not None and ours(caller) is None:
            caller = caller.f_back
        crossings += caller is not None and ours(caller) != file

    threading.setprofile(profile)
    sys.setprofile(profile)
    try:
        journey()
    finally:
        sys.setprofile(None)
        threading.setprofile(None)  # type: ignore[arg-type]
    return list(visited), crossings


def journeys() -> dict[str, Any]:
    """Follow all journeys in this process."""
    import botorch_dp

    package = Path(botorch_dp.__file__).parent
    results = {}
    for name, prepare in JOURNEYS.items():
        files, crossings = follow(prepare(), package)
        results[name] = {"count": len(files), "cross_file_calls": crossings, "files": files}
    return results


def measure(root: Path) -> dict[str, Any]:
    """Everything that is measured, of the checkout in a folder."""
    lists = keyword_lists(root)
    public = [name for f in sorted((root / "botorch_dp").rglob("*.py")) for name in public_names(f)]
    # In a process of its own, so that the package is that of the checkout.
    done = subprocess.run(
        [sys.executable, "-W", "ignore", __file__, "--journeys"],
        env={**os.environ, "PYTHONPATH": f"{root}{os.pathsep}{ROOT}"},
        cwd=tempfile.gettempdir(),
        capture_output=True,
        text=True,
    )
    if done.returncode:
        raise SystemExit(done.stderr)
    return {
        "package": count_lines(root / "botorch_dp"),
        "tests": count_lines(root / "tests"),
        "benchmarks": count_lines(root / "benchmarks"),
        "public_names": len(set(public)),
        "single_users": single_users(root),
        "longest_keyword_lists": lists[:8],
        "more_than_ten_keywords": [place for count, place in lists if count > MANY],
        "repeated_runs": repeated_runs(root, signatures=True),
        "repeated_code": repeated_runs(root, signatures=False),
        "journeys": json.loads(done.stdout),
    }


def show(found: dict[str, Any]) -> None:
    for part in ("package", "tests", "benchmarks"):
        print(f"{part:26s}{found[part]['files']} files, {found[part]['lines']:,} lines")
    print(f"{'public names':26s}{found['public_names']}")
    print(f"{'modules with one user':26s}{len(found['single_users'])}")
    print(f"{'more than ten keywords':26s}{len(found['more_than_ten_keywords'])}")
    for count, place in found["longest_keyword_lists"]:
        print(f"{'':26s}{count} {place}")
    runs = found["repeated_runs"]
    print(f"{'repeated runs of lines':26s}{len(runs)}")
    runs = found["repeated_code"]
    print(f"{'outside signatures':26s}{len(runs)}")
    for one, other, length in runs[:8]:
        print(f"{'':26s}{length} lines: {one}, {other}")
    for name, journey in found["journeys"].items():
        print(f"{name:26s}{journey['count']} files, {journey['cross_file_calls']} crossings")
        print(f"{'':26s}{' '.join(journey['files'])}")


def first_sentence(path: Path) -> str:
    """The first line of a module's docstring, without markup."""
    words = (ast.get_docstring(ast.parse(path.read_text())) or "").partition("\n")[0]
    return re.sub(r":\w+:|[`~]", "", words)


def subpackages() -> list[str]:
    """The folders and single files of the package, in the order of the table in the map."""
    page = (ROOT / "docs" / "architecture.md").read_text().partition("\n## ")[0]
    listed = re.findall(r"^\| (`.*?`) \|", page, re.MULTILINE)
    return ["errors.py", "_checks.py", "_files.py", *re.findall(r"`(.*?)`", " ".join(listed))]


def inside(folder: Path) -> tuple[list[Path], list[Path]]:
    """The files of a subpackage but for its ``__init__``, and its subpackages."""
    files = sorted(file for file in folder.glob("*.py") if file.name != "__init__.py")
    return files, sorted(found.parent for found in folder.glob("*/__init__.py"))


def described_files() -> str:
    """All files with the first lines of their docstrings."""
    lines = []

    def draw(place: Path, depth: int) -> None:
        folder = place.is_dir()
        name = "  " * depth + place.name + "/" * folder
        lines.append(f"{name:34s}{first_sentence(place / '__init__.py' if folder else place)}")
        for found in [each for part in inside(place) for each in part] if folder else []:
            draw(found, depth + 1)

    for name in subpackages():
        draw(ROOT / "botorch_dp" / name, 0)
    return "\n".join(lines)


def tree() -> str:
    """The names of all files, a paragraph for each folder."""
    lines = []

    def draw(folder: Path, depth: int) -> None:
        files, folders = inside(folder)
        name = "  " * depth + folder.name + "/"
        stems = " ".join(file.stem for file in files)
        lines.append(
            textwrap.fill(stems, 104, initial_indent=f"{name:16s}", subsequent_indent=" " * 16)
        )
        for found in folders:
            draw(found, depth + 1)

    for name in subpackages():
        if name.endswith("/"):
            draw(ROOT / "botorch_dp" / name, 0)
    return "\n".join(lines)


def write() -> None:
    """Draw the tree."""
    page = ROOT / "docs" / "architecture.md"
    before, mark, rest = page.read_text().partition("<!-- tree -->\n```\n")
    assert mark, "docs/architecture.md has no place for the tree"
    page.write_text(f"{before}{mark}{tree()}\n```{rest.partition('```')[2]}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tree", type=Path, help="another checkout; nothing is saved then")
    parser.add_argument("--write", action="store_true", help="draw the map in docs/architecture.md")
    parser.add_argument("--files", action="store_true", help="only print what each file is")
    parser.add_argument("--journeys", action="store_true", help="only follow the journeys, as JSON")
    options = parser.parse_args()
    if options.files:
        print(described_files())
        return
    if options.journeys:
        print(json.dumps(journeys()))
        return
    found = measure((options.tree or ROOT).resolve())
    show(found)
    if options.tree is None:
        save_results("map", found)
        if options.write:
            write()


if __name__ == "__main__":
    main()
