"""The documentation site: built in time, whole, without a network, and fit to be looked at."""

from __future__ import annotations

import fcntl
import html
import importlib.util
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest

from tests.browser import chromium, visited
from tests.conftest import ROOT
from tools.names import PACKAGE, public_names, source_of

if importlib.util.find_spec("material") is None:
    pytest.skip("the site is built with MkDocs Material, which is missing", allow_module_level=True)


#: ``make docs`` builds it for each change; this looks at all that was built.
pytestmark = pytest.mark.slow

#: What docstrings are typed with, and nobody should read.
_UNRENDERED = r":(?:class|func|meth|mod|attr|data|math):|\.\. math::|&gt;&gt;&gt; "


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built as `make docs` builds it (a warning is an error), once for all workers."""
    temporary = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        temporary = temporary.parent
    folder, built = temporary / "site", temporary / "site is built"
    with (temporary / "site.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not built.exists():
            command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet"]
            done = subprocess.run(
                [*command, "--site-dir", str(folder)],
                cwd=ROOT,
                env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
                capture_output=True,
                text=True,
            )
            assert done.returncode == 0, done.stdout + done.stderr
            built.touch()
    return folder


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as started:
        yield started


def pages_of(site: Path) -> list[Path]:
    return sorted(page for page in site.rglob("*.html") if page.name != "404.html")


def test_has_all_that_it_should(site: Path) -> None:
    names = {str(page.relative_to(site)) for page in pages_of(site)}
    sources = [p for p in (ROOT / "docs").rglob("*.md")]
    assert {str(p.relative_to(ROOT / "docs").with_suffix(".html")) for p in sources} <= names
    notebooks = sorted((ROOT / "tutorials").glob("*.ipynb"))
    assert {f"tutorials/{notebook.stem}.html" for notebook in notebooks} <= names
    for name in ("index", "command_line", "changelog", "contributing", "security"):
        assert f"{name}.html" in names
    menu = (site / "index.html").read_text()
    for name in names:
        assert f'href="{name}"' in menu or name == "index.html", f"{name} is in no menu"


def test_every_public_name_is_in_the_reference(site: Path) -> None:
    import botorch_dp

    parts = {path.stem for path in PACKAGE.glob("[a-z]*") if path.suffix in ("", ".py")}
    # Scores are imported from `objectives`.
    for part in parts - {"cli", "errors", "estimator_scores", "groups", "integrations", "scores"}:
        text = (site / "reference" / f"{part}.html").read_text()
        for name in public_names(source_of(part)):
            assert f'id="botorch_dp.{part}.{name}"' in text, f"{part}.{name}"
    for name in ("opacus.PrivacyEngine", "optuna.DParetoSampler", "sklearn.PrivateSearchCV"):
        page = site / "reference" / "integrations" / f"{name.partition('.')[0]}.html"
        assert f'id="botorch_dp.integrations.{name}"' in page.read_text()
    assert set(botorch_dp.__all__) <= set(
        re.findall(
            r'id="botorch_dp\.[\w.]+\.(\w+)"', "".join(p.read_text() for p in pages_of(site))
        )
    )


def test_docstrings_are_rendered(site: Path) -> None:
    """No role, formula or doctest is left as it was typed."""
    for page in pages_of(site):
        text = re.sub(r"<pre.*?</pre>", "", page.read_text(), flags=re.S)
        left = re.search(_UNRENDERED, text)
        assert left is None, f"{page.relative_to(site)}: {text[left.start() :][:80]}"
    assert "<math" in (site / "reference" / "privacy.html").read_text()
    assert 'references.html#Avent2020">' in (site / "reference" / "pareto.html").read_text()


def test_asks_no_other_place(site: Path) -> None:
    for page in pages_of(site):
        found = re.findall(
            r'<(?:script|link|img|iframe)\b[^>]*\b(?:src|href)="(https?:[^"]*)"', page.read_text()
        )
        assert not found, f"{page.relative_to(site)} asks for {found}"


def test_links_and_anchors_lead_somewhere(site: Path) -> None:
    ids = {
        page: set(re.findall(r'\b(?:id|name)="?([^"\s>]+)', page.read_text()))
        for page in pages_of(site)
    }
    for page in ids:
        for target in re.findall(r'<a\b[^>]*\bhref="([^"]*)"', page.read_text()):
            if re.match(r"[a-z]+:", target) or target in ("", "."):
                continue
            path, _, anchor = html.unescape(target).partition("#")
            linked = (page.parent / unquote(path)).resolve() if path else page
            assert linked.exists(), f"{page.relative_to(site)} links to {target}"
            if anchor and linked in ids and anchor != "__skip":
                known = ids[linked]
                assert unquote(anchor) in known, f"{page.relative_to(site)} links to {target}"


def test_in_the_browser(site: Path, browser: Any) -> None:
    """Opened as files, on a wide and on a narrow screen; one after the other in one tab."""
    seen = browser.new_page()
    for page in pages_of(site):
        name = page.relative_to(site)
        seen.set_viewport_size({"width": 1300, "height": 900})
        with visited(seen, f"file://{site}/{name}"):
            seen.add_style_tag(content="* { transition: none !important }")  # what slides, jumps
            for width in (1300, 390):
                seen.set_viewport_size({"width": width, "height": 900})
                assert seen.evaluate("document.documentElement.scrollWidth") <= width, name
            broken = seen.evaluate(
                "[...document.images].filter(i => !i.complete || !i.naturalWidth).map(i => i.src)"
            )
            assert not broken, f"{name}: {broken}"
            assert len(seen.inner_text("article h1")) > 1, name
    seen.close()
