"""The audit table: which mistakes are caught, and what too few draws cannot catch."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace

import pytest

from botorch_dp.privacy import audit_cases
from botorch_dp.privacy.audit_cases import Broken, run_audits
from tests.cli.calling import call


@pytest.fixture(autouse=True)
def the_same_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    """Broken versions draw by seeds, whatever was audited before in this process.

    Of other draws as few, one set in a few hundred would not show the weakest mistake.
    """
    monkeypatch.setattr(audit_cases, "_seeds", itertools.count(1))


@pytest.mark.slow
def test_enough_draws_catch_the_mistake(capsys) -> None:
    code, out, _ = call(capsys, "audit", "exponential", "--samples", "40000")
    assert code == 0
    assert "caught" in out
    assert "not refuted" in out
    assert "No mechanism was refuted; every broken version was caught." in out


def test_too_few_draws_cannot_catch_the_mistake_and_the_table_says_so(capsys) -> None:
    code, out, _ = call(capsys, "audit", "exponential", "--samples", "400", "--json")
    assert code == 1
    assert [row["good"] for row in json.loads(out)] == [True, False]
    code, out, _ = call(capsys, "audit", "exponential", "--samples", "400")
    assert "not caught with so few draws: it takes 40,000" in out
    assert "No mechanism was refuted. 1 of 1 broken versions were not caught with so few" in out
    assert "FAILED" not in out and "REFUTED" not in out


def test_a_refuted_mechanism_and_a_useless_audit_are_called_so(capsys, monkeypatch) -> None:
    (case,) = [case for case in audit_cases.CASES if case.name == "Laplace"]
    (mistake, broken), *_ = case.broken.items()
    swapped = replace(case, honest=broken.mechanism, broken={mistake: Broken(case.honest, 100)})
    monkeypatch.setattr(audit_cases, "CASES", [swapped])
    code, out, _ = call(capsys, "audit", "laplace", "--samples", "5000")
    assert code == 1
    assert "1 mechanisms were REFUTED (Laplace). 1 of 1 broken versions were NOT CAUGHT" in out


def test_an_unknown_mechanism_is_refused() -> None:
    with pytest.raises(ValueError, match="no mechanism"):
        run_audits(samples=400, only="nonsense")
