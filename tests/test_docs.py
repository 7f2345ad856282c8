"""The README runs as printed; links inside the documentation lead somewhere."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
README = ROOT / "README.md"
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md"), *ROOT.glob("tutorials/*.md")])

SNIPPETS = re.findall(r"```python\n(.*?)```", README.read_text(), flags=re.DOTALL)


@pytest.mark.parametrize("snippet", SNIPPETS, ids=lambda s: s.split("import ")[-1].split("\n")[0])
def test_readme_snippets_run_as_printed(snippet: str, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", snippet], capture_output=True, text=True, cwd=tmp_path, timeout=300
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.strip()


def test_readme_has_a_snippet_for_each_job() -> None:
    assert len(SNIPPETS) == 4
    assert all(snippet.count("\n") <= 14 for snippet in SNIPPETS)


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as the usual renderers make them."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", h.lower()).replace(" ", "-") for h in headings}


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


def test_ci_runs_the_readme_test_command() -> None:
    assert "make test" in README.read_text()
    assert re.search(r"^make test$", (ROOT / ".ci" / "run").read_text(), flags=re.MULTILINE)


def test_make_targets_named_in_the_docs_exist() -> None:
    makefile = (ROOT / "Makefile").read_text()
    for page in PAGES:
        for target in re.findall(r"`make ([a-z-]+)`", page.read_text()):
            assert re.search(rf"^{target}:", makefile, flags=re.MULTILINE), target


def test_benchmarks_named_in_the_docs_exist() -> None:
    for page in PAGES:
        for name in re.findall(r"benchmarks[./](\w+)(?:\.py)?\b", page.read_text()):
            if name in {"results", "md"}:
                continue
            assert (ROOT / "benchmarks" / f"{name}.py").exists(), f"{page.name}: {name}"
