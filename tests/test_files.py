"""Half-written files never appear; private files are private from the first moment."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from botorch_dp._files import atomic_write


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.mark.parametrize(("private", "expected"), [(True, 0o600), (False, 0o644)])
def test_atomic_write(tmp_path: Path, private: bool, expected: int) -> None:
    path = tmp_path / "front.json"
    with atomic_write(path, owner_only=private) as file:
        file.write("whole")
        assert not path.exists()
    assert path.read_text() == "whole"
    assert mode(path) & 0o077 == expected & 0o077
    assert list(tmp_path.iterdir()) == [path]


def test_interrupted_write_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "front.json"
    path.write_bytes(b"old")
    with pytest.raises(KeyboardInterrupt), atomic_write(path, binary=True) as file:
        file.write(b"new, but")
        raise KeyboardInterrupt
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]
