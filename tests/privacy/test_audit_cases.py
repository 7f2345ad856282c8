"""The audit table: which twins are caught, and what too few draws cannot catch."""

from __future__ import annotations

import json

import pytest

from botorch_dp.privacy.audit_cases import run_audits
from tests.cli.calling import call


def test_enough_draws_catch_the_twin(capsys) -> None:
    code, out, _ = call(capsys, "audit", "exponential", "--samples", "40000")
    assert code == 0
    assert "caught" in out
    assert "not refuted" in out


def test_too_few_draws_cannot_catch_the_twin_and_the_table_says_so(capsys) -> None:
    code, out, _ = call(capsys, "audit", "exponential", "--samples", "400", "--json")
    assert code == 1
    assert [row["good"] for row in json.loads(out)] == [True, False]


def test_an_unknown_mechanism_is_refused() -> None:
    with pytest.raises(ValueError, match="no mechanism"):
        run_audits(samples=400, only="nonsense")
