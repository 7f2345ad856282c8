"""`fit`: one model for one epsilon from the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from botorch_dp.privacy import PrivacyBudget, PrivacyLedger, TrialNumber
from tests.cli.calling import call

UNTUNED = (
    *("fit", "adult_logistic_sgd", "--data", "breast_cancer"),
    *("--epsilon", "4", "--delta", "1e-4"),
)
FIT = (*UNTUNED, "--trials", "20")


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


def test_without_settings_one_training_is_published(capsys) -> None:
    PrivacyLedger("a.ledger", PrivacyBudget(4.0, 1e-4)).close()
    code, out, err = call(capsys, *UNTUNED, "--plan", "--json", "--feature-norm", "2.5")
    assert code == 0 and not err
    plan = json.loads(out)
    assert plan["optimizer"] == "scale_free"
    arguments = (*UNTUNED, "--feature-norm", "2.5", "--model", "m.pt", "--ledger", "a.ledger")
    code, out, err = call(capsys, *arguments, "--quiet")
    assert code == 0, err
    assert "epsilon = 4" in out and "Score" not in out and "ccuracy" not in out
    assert set(torch.load("m.pt")) == {"weight", "bias"}
    with PrivacyLedger("a.ledger") as ledger:
        assert len(ledger.entries()) == 1
    code, _, err = call(capsys, *UNTUNED, "--plan")
    assert code == 0 and "`feature_norm` was not given" in err
    for option, value in (("--method", "random"), ("--test-epsilon", "1"), ("--workers", "2")):
        code, _, err = call(capsys, *UNTUNED, "--plan", option, value)
        assert code == 1 and option in err and "--trials" in err
    code, _, err = call(capsys, *FIT, "--plan", "--feature-norm", "2.5")
    assert code == 1 and "--feature-norm" in err


def test_settings_are_suggested_without_records(capsys) -> None:
    numbers = ("--records", "24000", "--features", "123", "--epsilon", "1")
    code, out, err = call(capsys, "suggest", *numbers, "--feature-norm", "3.7")
    assert code == 0 and not err
    assert "batch_size=2000, epochs=24" in out and "Distance 5.81" in out and "Warning" not in out
    code, out, _ = call(capsys, "suggest", *numbers, "--hidden", "32", "--json", "--outputs", "3")
    found = json.loads(out)
    assert found["optimizer"] == "scale_free" and "feature_norm" in found["warnings"][0]
    few = ("--records", "300", "--features", "5000", "--epsilon", "0.1")
    code, out, _ = call(capsys, "suggest", *few, "--feature-norm", "1")
    assert code == 0 and "Little can be learnt" in out and "records" in out
