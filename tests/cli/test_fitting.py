"""`fit`: one model for one epsilon from the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from botorch_dp.privacy import PrivacyBudget, PrivacyLedger, TrialNumber
from tests.cli.calling import call

FIT = ("fit", "adult_logistic_sgd", "--data", "breast_cancer", "--epsilon", "4", "--delta", "1e-4")


@pytest.fixture(autouse=True)
def few(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(TrialNumber, "draw", lambda self: 1)
    monkeypatch.chdir(tmp_path)


def test_a_plan_reads_nothing_and_says_both_guarantees(capsys) -> None:
    code, out, _ = call(capsys, *FIT, "--plan", "--test-epsilon", "1")
    assert code == 0
    assert "for one training record" in out
    assert "(1, 0.0001)-differentially private for one test record" in out
    assert "if tuning were ignored" in out and "if all of the models were published" in out
    code, out, _ = call(capsys, *FIT, "--plan", "--json", "--trials", "7")
    assert json.loads(out)["expected_trainings"] == 7


def test_a_model_is_written_and_one_checkpoint_gives_one_model(capsys) -> None:
    PrivacyLedger("a.ledger", PrivacyBudget(4.0, 1e-4)).close()
    arguments = (*FIT, "--model", "m.pt", "--checkpoint", "run", "--ledger", "a.ledger", "--quiet")
    code, out, err = call(capsys, *arguments)
    assert code == 0, err
    assert "Score" in out and "noise_multiplier = " in out
    first = torch.load("m.pt")
    code, out, _ = call(capsys, *arguments, "--json")
    assert code == 0
    report = json.loads(out)
    assert report["guarantees"]["training records"]["losses"][0]["epsilon"] == 4
    again = torch.load("m.pt")
    assert all(torch.equal(first[name], again[name]) for name in first)
    with PrivacyLedger("a.ledger") as ledger:
        assert len(ledger.entries()) == 1
    code, _, err = call(capsys, *FIT, "--model", "m.pt", "--ledger", "a.ledger", "--quiet")
    assert code == 1
    assert "ε = 4" in err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "--model"),
        (("--model", "no/folder/m.pt"), "no folder"),
        (("--model", "m.pt", "--ledger", "none"), "no ledger"),
        (
            ("--model", "m.pt", "--test-records", "public", "--test-epsilon", "1"),
            "--test-epsilon belongs",
        ),
    ],
)
def test_wrong_arguments(arguments: tuple[str, ...], message: str, capsys) -> None:
    code, _, err = call(capsys, *FIT, *arguments)
    assert code == 1
    assert message in err


def test_a_problem_that_cannot_publish(own: str, capsys) -> None:
    code, _, err = call(
        capsys, "fit", own, "--epsilon", "1", "--delta", "1e-5", "--model", "m.pt", "--quiet"
    )
    assert code == 1
    assert "publish" in err
