"""Hooks of the documentation site: pages from elsewhere, links, formulas, citations.

What people read on the site is what stands in the project: the README, the notebooks, docstrings
and help texts are turned into pages here, and nothing is copied by hand.
"""

from __future__ import annotations

import argparse
import html
import json
import os
import posixpath
import re
from pathlib import Path
from typing import Any

import griffe
from latex2mathml.converter import convert
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page
from mkdocs.utils import get_relative_url

from tools.names import public_names, source_of

ROOT = Path(__file__).resolve().parents[1]
#: Pages whose source lies outside of docs/.
MOVED = {
    "README.md": "index.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security.md",
}
#: What people import from, as the architecture orders them.
SUBPACKAGES = [
    "privacy",
    "models",
    "space",
    "acquisition",
    "objectives",
    "release",
    "descent",
    "outsourced",
    "pareto",
    "training",
    "tuning",
    "integrations.opacus",
    "integrations.optuna",
    "integrations.ray",
    "integrations.estimators",
    "integrations.sklearn",
    "datasets",
    "tasks",
    "plots",
    "report",
]


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Add the pages that follow from the project to their sections."""
    filled: dict[str, list[Any]] = {
        "Tutorials": [f"tutorials/{notebook.stem}.md" for notebook in _notebooks()],
        **{
            part.capitalize(): sorted(
                page.relative_to(ROOT / "docs").as_posix()
                for page in (ROOT / "docs" / part).glob("*.md")
            )
            for part in ("papers", "results")
        },
        # A longer name would be cut off.
        "Reference": [
            {name if "." in name else f"botorch_dp.{name}": _page_of_reference(name)}
            for name in SUBPACKAGES
        ],
    }
    assert config.nav is not None
    menu = {name: part for section in config.nav for name, part in section.items()}
    listed = re.findall(r"[\w/]+\.md", str(menu))
    # A page that nobody put into the menu is one of the others.
    own = sorted(page.name for page in (ROOT / "docs").glob("*.md"))
    menu["More"] += [page for page in own if page not in listed]
    config.nav = [
        {name: [*part, *filled[name]] if name in filled else part} for name, part in menu.items()
    ]
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages and figures that lie elsewhere."""
    for source, page in MOVED.items():
        files.append(File.generated(config, page, content=(ROOT / source).read_text()))
    files.append(File.generated(config, "command_line.md", content=_command_line()))
    for figure in sorted((ROOT / "benchmarks/results").glob("*.png")):
        place = f"benchmarks/results/{figure.name}"
        files.append(File.generated(config, place, abs_src_path=str(figure)))
    for notebook in _notebooks():
        place = f"tutorials/{notebook.stem}.md"
        files.append(File.generated(config, place, content=notebook_markdown(notebook)))
    for name in SUBPACKAGES:
        files.append(File.generated(config, _page_of_reference(name), content=_reference(name)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Lead links of the project's files to the pages that they have become."""
    place = page.file.src_uri
    if place == "benchmarks.md":
        markdown += _further_figures()
    origins = {page: source for source, page in MOVED.items()}
    origin = origins.get(place, place if place.startswith("tutorials/") else f"docs/{place}")

    def led(match: re.Match[str]) -> str:
        text, target = match[1], match[2]
        if re.match(r"[a-z]+:|#", target):
            return match[0]
        path, mark, anchor = target.partition("#")
        linked = posixpath.normpath(posixpath.join(posixpath.dirname(origin), path))
        there = _page_of(linked)
        if there is None or files.get_file_from_path(there) is None:
            return text  # a file that is no part of the site
        return f"[{text}]({posixpath.relpath(there, posixpath.dirname(place))}{mark}{anchor})"

    return re.sub(r"\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^)\s]+)\)", led, markdown)


def _further_figures() -> str:
    """The figures of benchmarks that no page shows."""
    names = [path.name for path in sorted((ROOT / "benchmarks/results").glob("*.png"))]
    pages = "".join(page.read_text() for page in (ROOT / "docs").rglob("*.md"))
    further = [name for name in names if f"results/{name})" not in pages]
    shown = "".join(f"\n\n![{name}](../benchmarks/results/{name})" for name in further)
    return f"\n\n## Further figures{shown}\n" if further else ""


def _page_of(linked: str) -> str | None:
    if linked in MOVED:
        return MOVED[linked]
    if linked == "tutorials":
        return f"tutorials/{_notebooks()[0].stem}.md"
    if linked.startswith("docs/"):
        return linked.removeprefix("docs/")
    if linked.startswith(("tutorials/", "benchmarks/results/")):
        return linked.replace(".ipynb", ".md")
    return None


def on_page_content(content: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Turn formulas into MathML, which needs no script, and link citations."""
    content = re.sub(
        r'<(span|div) class="arithmatex">\\[(\[](.*?)\\[)\]]</\1>', _formula, content, flags=re.S
    )
    if page.file.src_uri == "references.md":
        return content
    references = get_relative_url("references.html", page.url)
    known = re.findall(r'<a id="(\w+)">', (ROOT / "docs/references.md").read_text())
    cited = "|".join(map(re.escape, known))
    # Not in code, where brackets mean something else.
    parts = re.split(r"(<pre.*?</pre>|<code.*?</code>)", content, flags=re.S)
    parts[::2] = [
        re.sub(rf"\[({cited})\]", rf'<a href="{references}#\1">[\1]</a>', part)
        for part in parts[::2]
    ]
    return "".join(parts)


def _formula(match: re.Match[str]) -> str:
    display = "block" if match[1] == "div" else "inline"
    return convert(html.unescape(match[2]).strip(), display=display)


def _notebooks() -> list[Path]:
    return sorted((ROOT / "tutorials").glob("*.ipynb"))


def notebook_markdown(path: Path) -> str:
    """An executed notebook as Markdown: its text, its code, and what the code printed and drew."""
    parts = []
    for cell in json.loads(path.read_text())["cells"]:
        text = "".join(cell["source"])
        if cell["cell_type"] != "code":
            parts.append(text)
            continue
        parts.append(f"```python\n{text}\n```")
        for output in cell["outputs"]:
            data = output.get("data", {})
            if "image/png" in data:
                picture = "".join(data["image/png"].split())
                source = f"data:image/png;base64,{picture}"
                parts.append(f'<img alt="What the code above draws" src="{source}">')
            else:
                printed = "".join(output.get("text") or data.get("text/plain", []))
                if printed.strip():
                    parts.append(f"``` {{.text .output}}\n{printed.rstrip()}\n```")
    return "\n\n".join(parts)


def _command_line() -> str:
    """The help of every command."""
    os.environ["COLUMNS"] = "84"
    from botorch_dp.cli import parser

    parts = ["# The command line"]

    def tell(one: argparse.ArgumentParser, level: int) -> None:
        if level > 1:
            parts.append(f"{'#' * min(level, 3)} {one.prog}")
        parts.append(f"```text\n{one.format_help().rstrip()}\n```")
        for action in one._actions:
            if isinstance(action, argparse._SubParsersAction):
                for part in action.choices.values():
                    tell(part, level + 1)

    tell(parser(), 1)
    return "\n\n".join(parts)


def _page_of_reference(name: str) -> str:
    return f"reference/{name.replace('.', '/')}.md"


def _reference(name: str) -> str:
    """A page for a subpackage: what it is, and each of its public names."""
    names = public_names(source_of(name))
    title = f"# botorch_dp.{name}"
    if not names:
        return f"{title}\n\n::: botorch_dp.{name}\n    options: {{show_root_heading: false}}\n"
    quiet = "members: false, show_root_heading: false, show_root_toc_entry: false"
    about = f"::: botorch_dp.{name}\n    options: {{{quiet}}}"
    return "\n\n".join([title, about, *(f"::: botorch_dp.{name}.{part}" for part in names)])


class Docstrings(griffe.Extension):
    """Docstrings are reStructuredText in a few places: its roles become Markdown."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Called with each object that was loaded."""
        if obj.docstring is not None:
            obj.docstring.value = as_markdown(obj.docstring.value)


def as_markdown(text: str) -> str:
    """Formulas and references of a docstring as Markdown."""
    text = re.sub(r"^( *)Example:$", r"\1Examples:", text, flags=re.M)
    text = re.sub(r":math:`([^`]*)`", r"$\1$", text)
    text = re.sub(
        r"^( *)\.\. math::((?:.*\n?)(?:\1 +.*\n?|\n)*)",
        lambda m: f"\n{m[1]}$$\n{m[1]}{' '.join(m[2].split())}\n{m[1]}$$\n\n",
        text,
        flags=re.M,
    )
    text = re.sub(r":[a-z]+:`~?\.?([\w.]+)`", _referred, text)
    return re.sub(r"``([^`]+)``", r"`\1`", text)


def _referred(match: re.Match[str]) -> str:
    name = match[1].rpartition(".")[2]
    if "." not in match[1]:
        return f"`{name}`"
    return f'<autoref identifier="{match[1]}" optional>`{name}`</autoref>'
