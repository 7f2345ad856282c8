"""The README runs as printed; links lead somewhere; every work that is cited is listed."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
README = ROOT / "README.md"
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *ROOT.glob("tutorials/*.md")])

SNIPPETS = re.findall(r"```python\n(.*?)```", README.read_text(), flags=re.DOTALL)


@pytest.mark.parametrize("snippet", SNIPPETS, ids=lambda s: s.split("import ")[-1].split("\n")[0])
def test_readme_snippets_run_as_printed(
    snippet: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    monkeypatch.chdir(tmp_path)
    exec(compile(snippet, "README.md", "exec"), {"__name__": "__main__"})
    assert capsys.readouterr().out.strip()


#: Pages whose snippets run in tests of their own, which look at what they print or compute:
#: `training/test_examples.py`.
RUN_ELSEWHERE = ("guides/train.md",)


def _snippets_of_pages() -> Iterator[object]:
    for page in sorted((ROOT / "docs").rglob("*.md")):
        found = re.findall(r"^```python\n(.*?)^```", page.read_text(), flags=re.M | re.S)
        name = page.relative_to(ROOT / "docs").as_posix()
        if found and not name.startswith(RUN_ELSEWHERE):
            yield pytest.param(page, found, id=name)


@pytest.mark.parametrize(("page", "snippets"), list(_snippets_of_pages()))
def test_snippets_of_pages_run_one_after_the_other(
    page: Path, snippets: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {"__name__": "__main__"}
    for snippet in snippets:
        exec(compile(snippet, page.name, "exec"), names)


def anchors(page: Path) -> set[str]:
    """The anchors of a page: its own, and those that the usual renderers make of headings."""
    text = page.read_text()
    headings = re.findall(r"^#+ (.*)$", text, flags=re.MULTILINE)
    slugs = {re.sub(r"[^\w\- ]", "", h.lower()).replace(" ", "-") for h in headings}
    return slugs | set(re.findall(r'<a id="([^"]+)">', text))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
        if target.startswith(("http://", "https://")):
            continue
        path, _, anchor = target.partition("#")
        linked = (page.parent / path).resolve() if path else page
        assert linked.exists(), f"{page.name} links to {target}"
        if anchor:
            assert anchor in anchors(linked), f"{page.name} links to {target}"


def test_make_targets_named_in_the_docs_exist() -> None:
    makefile = (ROOT / "Makefile").read_text()
    for page in PAGES:
        for target in re.findall(r"`make ([a-z-]+)`", page.read_text()):
            assert re.search(rf"^{target}:", makefile, flags=re.MULTILINE), target


def test_tables_are_those_of_the_stored_results() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.pages", "--check"], cwd=ROOT, capture_output=True
    )
    assert done.returncode == 0, done.stderr.decode()


def test_benchmarks_named_in_the_docs_exist() -> None:
    for page in PAGES:
        for name in re.findall(r"benchmarks[./](\w+)(?:\.py)?\b", page.read_text()):
            if name in {"results", "md"}:
                continue
            assert (ROOT / "benchmarks" / f"{name}.py").exists(), f"{page.name}: {name}"


KEY = re.compile(r"\[([A-Za-z]+\d{4}[a-z]?)\]")
REFERENCES = ROOT / "docs" / "references.md"


def keys(files: Iterable[Path]) -> set[str]:
    return {key for file in files for key in KEY.findall(file.read_text())}


def python_files(*folders: str) -> list[Path]:
    return [file for folder in folders for file in (ROOT / folder).rglob("*.py")]


def test_every_work_cited_is_listed_and_every_entry_is_cited() -> None:
    entry = re.compile(r'^\* <a id="(\w+)"></a>\*\*\[(\w+)\]\*\* ', re.M)
    entries = entry.findall(REFERENCES.read_text())
    listed = [key for _, key in entries]
    assert all(anchor == key for anchor, key in entries)
    assert listed == sorted(set(listed), key=str.lower)
    cited = keys(python_files("botorch_dp", "benchmarks", "examples", "tutorials"))
    assert cited - set(listed) == set(), "cited but not in docs/references.md"
    pages = keys(page for page in PAGES if page != REFERENCES)
    assert set(listed) - cited - pages == set(), "in docs/references.md but cited nowhere"
    assert pages <= set(listed)


def test_files_named_in_the_map_exist() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text()
    named = re.findall(r"`([a-z_]+(?:/[a-z_]+)*\.py)`", text)
    assert len(named) > 10
    for name in named:
        assert (ROOT / name).exists() or (ROOT / "botorch_dp" / name).exists(), name


def _promises() -> list[str]:
    table = (ROOT / "docs/operations.md").read_text().partition("\n## ")[0]
    rows = re.findall(r"^\| (.*) \|$", table, flags=re.M)
    return [row for row in rows[2:] if not set(row) <= set("-| ")]


@pytest.mark.parametrize("row", _promises(), ids=lambda row: row.split(" | ")[0])
def test_what_each_promise_rests_on_is_shown_by_a_test(row: str) -> None:
    """Each row of the table names tests, and all of them exist."""
    _, rests_on, shown_by = row.split(" | ")
    tests = re.findall(r"`(tests/[\w/.]+)((?:::\w+)*)`", shown_by)
    faults = re.findall(r"`make faults` \(([^)]+)\)", shown_by)
    assert rests_on and (tests or faults)
    for file, names in tests:
        source = (ROOT / file).read_text()
        for name in names.split("::")[1:]:
            assert re.search(rf"^ *(class|def) {name}\b", source, flags=re.M), (file, name)
    table = json.loads((ROOT / "benchmarks/results/faults.json").read_text())["rows"]
    known = {line["fault"] for line in table}
    assert {fault for words in faults for fault in words.split(", ")} <= known
