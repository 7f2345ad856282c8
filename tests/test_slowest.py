"""The table of the slowest tests adds up what was timed, and says what a test proves."""

from __future__ import annotations

from tools.slowest import proves, slowest

LOG = """\
============ slowest durations ============
9.00s setup    tests/test_slowest.py::test_a_docstring_comes_first
2.50s call     tests/test_slowest.py::test_a_docstring_comes_first
3.00s call     tests/test_slowest.py::test_or_the_name_in_words[a b::c]
0.10s teardown tests/gone.py::TestGone::test_gone
"""


def test_a_docstring_comes_first() -> None:
    """Setup and call are one number."""
    assert slowest(LOG, 1) == [
        (11.5, "tests/test_slowest.py::test_a_docstring_comes_first",
         "Setup and call are one number."),
    ]  # fmt: skip


def test_or_the_name_in_words() -> None:
    (_, second, third) = slowest(LOG, 9)
    assert second[1:] == (
        "tests/test_slowest.py::test_or_the_name_in_words[a b::c]", "or the name in words",
    )  # fmt: skip
    assert third[2] == proves("tests/gone.py", "TestGone::test_gone") == "gone"
