"""The papers' pages run as printed, and no benchmark calls a problem a paper's when it is not."""

from __future__ import annotations

import importlib
import re
import sys
from pathlib import Path

import pytest

from benchmarks.__main__ import questions
from benchmarks.common import REPRODUCTIONS, Reproduction
from benchmarks.pages import PAGES as FILLED_PAGES
from benchmarks.pages import PAPERS as PAGES
from benchmarks.pages import filled

ROOT = Path(__file__).resolve().parents[1]
SNIPPETS = [
    (page.stem, snippet)
    for page in PAGES
    for snippet in re.findall(r"```python\n(.*?)```", page.read_text(), flags=re.DOTALL)
]
COMMANDS = {
    (page.stem, command)
    for page in PAGES
    for command in re.findall(r"`(python -m benchmarks\.[^`]+)`", page.read_text())
}


@pytest.mark.parametrize(
    ("page", "snippet"), SNIPPETS, ids=[f"{page}-{n}" for n, (page, _) in enumerate(SNIPPETS)]
)
def test_snippets_run_as_printed(
    page: str, snippet: str, capsys: pytest.CaptureFixture[str]
) -> None:
    exec(compile(snippet, f"{page}.md", "exec"), {"__name__": "__main__"})
    assert capsys.readouterr().out.strip()


def test_every_page_shows_what_is_wrong() -> None:
    assert {page for page, _ in SNIPPETS} == {page.stem for page in PAGES} and len(PAGES) == 4
    assert all(sum(p == page.stem for p, _ in SNIPPETS) >= 2 for page in PAGES)
    assert all("## What is wrong in it" in page.read_text() for page in PAGES)


@pytest.mark.parametrize("page", FILLED_PAGES, ids=lambda page: page.stem)
def test_tables_are_those_of_the_results(page: Path) -> None:
    assert page.read_text() == filled(page.read_text()), "run `python -m benchmarks.pages`"


@pytest.mark.parametrize(("page", "command"), sorted(COMMANDS))
def test_commands_are_registered(page: str, command: str) -> None:
    """A page names only scripts that the registry knows, with options that they take."""
    script = command.split()[2].removeprefix("benchmarks.")
    main = importlib.import_module(f"benchmarks.{script}").main
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", [script, *command.split()[3:], "--help"])
        with pytest.raises(SystemExit) as done:
            main()
    assert done.value.code == 0
    assert script in {entry.script for entry in REPRODUCTIONS} | {"pages"}


NEEDS_DATA = {
    "Example 4.4 with the ranges of the authors' code",
    "Example 4.4 with the printed ranges and sizes",
    "Table 2: the lead over 19 disjoint draws of random points",
}
#: Half a minute for four figures, and ten seconds for a table; `make test-slow` makes them.
SLOW = {"Figures 1 to 4", "Table 2: the lead over 19 disjoint draws of random points"}
REDUCED = [entry for entry in REPRODUCTIONS if entry.reduced]


@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    "entry",
    [
        pytest.param(
            e,
            marks=[pytest.mark.data] * (e.item in NEEDS_DATA)
            + [pytest.mark.slow] * (e.item in SLOW),
            id=e.item,
        )
        for e in REDUCED
    ],
)
def test_reproductions_run_in_a_reduced_size(
    entry: Reproduction,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    module = importlib.import_module(f"benchmarks.{entry.script}")
    argv = [*entry.options.split(), *entry.reduced.split(), "--out", str(tmp_path)]
    monkeypatch.setattr(sys, "argv", [entry.script, *argv])
    module.main()
    shown = capsys.readouterr().out
    assert entry.item in shown and entry.problem in shown and "By default this takes" in shown
    assert list(tmp_path.glob("*.json"))


def docstring(script: str) -> str:
    return importlib.import_module(f"benchmarks.{script}").__doc__ or ""


def test_no_script_calls_a_problem_the_papers_when_it_is_not() -> None:
    """What the registry calls a stand-in or a variant, the script calls so too."""
    for entry in REPRODUCTIONS:
        doc = docstring(entry.script).lower()
        named = {"Avent2020": "dpareto paper"}.get(entry.paper, entry.paper.lower())
        assert f"[{entry.paper.lower()}]" in doc or named in doc, entry.script
        if entry.problem == "stand-in data":
            assert "in place of" in doc or "stand-in" in doc, entry.item
        if entry.problem == "variant":
            assert "variant" in doc, entry.item


def test_every_benchmark_says_how_long_it_takes_and_takes_a_folder() -> None:
    """The parser in ``benchmarks.common`` does both, once for all."""
    for script, question in questions().items():
        assert "BenchmarkParser(" in (ROOT / "benchmarks" / f"{script}.py").read_text(), script
        assert question.endswith((".", "?")), script


def test_scripts_that_name_a_papers_item_are_registered() -> None:
    registered = {entry.script for entry in REPRODUCTIONS}
    claim = re.compile(r"\b(example|examples|figure|figures|table|tables) [0-9C]", re.IGNORECASE)
    for path in (ROOT / "benchmarks").glob("*.py"):
        doc = path.read_text().split('"""')[1]
        if claim.search(doc):
            assert path.stem in registered | {"pages"}, f"{path.name}: {claim.search(doc)}"


def test_the_registry_names_scripts_that_exist_and_no_item_twice() -> None:
    for entry in REPRODUCTIONS:
        assert (ROOT / "benchmarks" / f"{entry.script}.py").exists()
    items = [(entry.paper, entry.item) for entry in REPRODUCTIONS]
    assert len(set(items)) == len(items)
