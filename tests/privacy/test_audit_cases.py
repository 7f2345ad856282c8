"""The audit table: which mistakes are caught, and what too few draws cannot catch."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest

from benchmarks import audit
from benchmarks.audit import Broken, run_audits


@pytest.fixture(autouse=True)
def the_same_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    """Broken versions draw by seeds, whatever was audited before in this process.

    Of other draws as few, one set in a few hundred would not show the weakest mistake.
    """
    monkeypatch.setattr(audit, "_seeds", itertools.count(1))


@pytest.mark.slow
def test_enough_draws_catch_the_mistake(capsys) -> None:
    assert all(row.good for row in run_audits(samples=40_000, only="exponential"))
    assert "No mechanism was refuted; every broken version was caught." in capsys.readouterr().out


def test_too_few_draws_cannot_catch_the_mistake_and_the_table_says_so(capsys) -> None:
    assert [row.good for row in run_audits(samples=400, only="exponential")] == [True, False]
    out = capsys.readouterr().out
    assert "not caught with so few draws: it takes 40,000" in out
    assert "FAILED" not in out and "REFUTED" not in out


def test_a_refuted_mechanism_and_a_useless_audit_are_called_so(capsys, monkeypatch) -> None:
    (case,) = [case for case in audit.CASES if case.name == "Laplace"]
    (mistake, broken), *_ = case.broken.items()
    swapped = replace(case, honest=broken.mechanism, broken={mistake: Broken(case.honest, 100)})
    monkeypatch.setattr(audit, "CASES", [swapped])
    assert not any(row.good for row in run_audits(samples=5000, only="laplace"))
    assert "1 mechanisms were REFUTED (Laplace)." in capsys.readouterr().out
