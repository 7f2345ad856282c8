"""The public names of the package, read off its sources."""

from __future__ import annotations

import ast
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[1] / "botorch_dp"


def source_of(name: str, package: Path = PACKAGE) -> Path:
    """The file that states the public names of a subpackage or of a module."""
    folder = package.joinpath(*name.split("."))
    return folder / "__init__.py" if folder.is_dir() else folder.with_suffix(".py")


def public_names(source: Path) -> list[str]:
    """What an ``__init__`` imports from the package, or what a module states in ``__all__``."""
    tree = ast.parse(source.read_text())
    for node in tree.body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            return [] if isinstance(node.value, ast.Call) else sorted(ast.literal_eval(node.value))
    if source.name != "__init__.py":
        return []
    # Names that are loaded on first use are imported for type checkers only.
    blocks = [tree.body, *(node.body for node in tree.body if isinstance(node, ast.If))]
    return sorted(
        alias.name
        for block in blocks
        for node in block
        if isinstance(node, ast.ImportFrom) and str(node.module).startswith("botorch_dp.")
        for alias in node.names
        if not str(node.module).startswith("botorch_dp._")
    )
