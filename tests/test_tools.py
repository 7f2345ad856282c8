"""What ``tools`` says of the code is true of it as it is."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools import mutants
from tools.mutants import MUTANTS, ROOT, Mutant, run_mutant, stale
from tools.slowest import slowest

HERE = "tests/test_tools.py::test_times_of_a_test_are_added_up_and_named"


def test_each_mutant_changes_one_fragment_and_names_its_tests() -> None:
    assert not [(mutant.file, mutant.old) for mutant in stale()]
    assert len(set(MUTANTS)) == len(MUTANTS) >= 60
    for mutant in MUTANTS:
        assert mutant.old != mutant.new and mutant.tests
        assert all((ROOT / "tests" / test).is_file() for test in mutant.tests), mutant


@pytest.mark.parametrize(("passes", "outcome"), [(False, "killed"), (True, "survived")])
def test_a_mutant_is_judged_and_taken_back(
    passes: bool, outcome: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "botorch_dp").mkdir()
    code = tmp_path / "botorch_dp" / "two.py"
    code.write_text("TWO = 1 + 1\n")

    def judged(*_: object) -> bool:
        assert code.read_text() == "TWO = 2 - 2\n"
        return passes

    monkeypatch.setattr(mutants, "tests_pass", judged)
    assert (
        run_mutant(Mutant("two.py", "1 + 1", "2 - 2", ("t.py",)), tmp_path, 60).outcome == outcome
    )
    assert code.read_text() == "TWO = 1 + 1\n"


def test_times_of_a_test_are_added_up_and_named() -> None:
    """Setup and call are one number."""
    log = f"9.00s setup    {HERE}\n2.50s call     {HERE}\n0.10s call     tests/gone.py::test_gone\n"
    (first, second) = slowest(log, 2)
    assert first == (11.5, HERE, "Setup and call are one number.") and second[2] == "gone"
