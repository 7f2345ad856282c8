"""The mutants of ``make mutants`` belong to the code as it is."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools.mutants import MUTANTS, ROOT, Mutant, run_mutant, stale


def test_every_fragment_occurs_exactly_once() -> None:
    assert not [(mutant.file, mutant.old) for mutant in stale()]


def test_mutants_differ_and_their_tests_exist() -> None:
    assert len(set(MUTANTS)) == len(MUTANTS) >= 60
    for mutant in MUTANTS:
        assert mutant.old != mutant.new
        assert mutant.tests
        for test in mutant.tests:
            assert (ROOT / "tests" / test).is_file(), test


@pytest.mark.parametrize(
    ("new", "outcome"),
    [
        ("2 - 2", "killed"),
        pytest.param("3 - 1", "survived", marks=pytest.mark.slow),
        (None, "stale"),
    ],
)
def test_a_mutant_is_judged_and_taken_back(new: str | None, outcome: str, tmp_path: Path) -> None:
    for name in ("botorch_dp", "tests"):
        (tmp_path / name).mkdir()
    code = tmp_path / "botorch_dp" / "two.py"
    code.write_text("TWO = 1 + 1\n")
    test = "from botorch_dp.two import TWO\n\ndef test_two():\n    assert TWO == 2\n"
    (tmp_path / "tests" / "test_two.py").write_text(test)
    (tmp_path / "botorch_dp" / "__init__.py").touch()
    mutant = Mutant("two.py", "1 + 1" if new else "gone", new or "-", ("test_two.py",))
    assert run_mutant(mutant, tmp_path, timeout=60).outcome == outcome
    assert code.read_text() == "TWO = 1 + 1\n"
