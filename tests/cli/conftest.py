"""A problem in a module of the user's."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.calling import OWN_PROBLEM


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A problem in a module of the user's, in the current folder."""
    name = f"own_{abs(hash(tmp_path))}"
    (tmp_path / f"{name}.py").write_text(OWN_PROBLEM.format(seconds=0))
    monkeypatch.chdir(tmp_path)
    return f"{name}:problem"
