"""The command line: six commands, exit codes and one-line errors."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from botorch_dp import DPareto, PrivacyUtilityProblem, Real, SearchSpace
from botorch_dp.cli import main
from botorch_dp.privacy import (
    NeighboringRelation,
    PrivacyBudget,
    PrivacyLedger,
    dp_sgd_epsilon,
    laplace_mechanism,
)
from tests.privacy.test_receipt import keys

RUN = ("--num-records", "32561", "--batch-size", "256", "--epochs", "8", "--delta", "1e-5")


@pytest.fixture(autouse=True)
def folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def receipt() -> None:
    release = laplace_mechanism(0.25, sensitivity=0.01, epsilon=1.0)
    release.receipt().save("receipt.json")
    Path("value.json").write_text(json.dumps(release.value))


def call(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    code = main(list(arguments))
    captured = capsys.readouterr()
    return code, captured.out, captured.err


@pytest.mark.parametrize("arguments", [[], ["epsilon", *RUN], ["suggest", "--num-records", "x"]])
def test_wrong_arguments_have_code_2(arguments: list[str], capsys) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(arguments)
    assert "error:" in capsys.readouterr().err


def test_ctrl_c_has_code_130(capsys, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(**_: object) -> float:
        raise KeyboardInterrupt

    monkeypatch.setattr("botorch_dp.privacy.dp_sgd_epsilon", interrupted)
    code, out, err = call(capsys, "epsilon", "--noise-multiplier", "2", *RUN)
    assert (code, out, err) == (130, "", "botorch-dp: interrupted\n")


class TestEpsilon:
    def test_all_ways_to_draw_batches_side_by_side(self, capsys) -> None:
        code, out, _ = call(capsys, "epsilon", "--epsilon", "2", *RUN)
        assert code == 0 and "1016 steps" in out and "shuffles" in out
        assert out.count("REPLACE_ONE") == 2 and out.count("ADD_OR_REMOVE_ONE") == 1

    def test_the_price_of_one_noise(self, capsys) -> None:
        code, out, _ = call(capsys, "epsilon", "--noise-multiplier", "2", *RUN, "--json")
        report = json.loads(out)
        assert code == 0
        run = {"batch_size": 256, "num_records": 32561, "steps": report["steps"], "delta": 1e-5}
        for row in report["epsilons"]:
            relation = NeighboringRelation[row["relation"]]
            assert row["epsilon"] == dp_sgd_epsilon(
                noise_multiplier=2.0, sampling=row["sampling"], relation=relation, **run
            )

    def test_wrong_numbers_have_one_line(self, capsys) -> None:
        code, out, err = call(capsys, "epsilon", "--noise-multiplier", "nan", *RUN)
        assert (code, out) == (1, "")
        assert err.startswith("botorch-dp: error: ") and err.count("\n") == 1


def test_settings_are_suggested_without_records(capsys) -> None:
    numbers = ("--num-records", "24000", "--num-features", "123", "--epsilon", "1")
    code, out, err = call(capsys, "suggest", *numbers, "--feature-norm", "3.7")
    assert code == 0 and not err
    assert "2,000" in out or "2000" in out
    assert "Warning" not in out and "Warning" in call(capsys, "suggest", *numbers)[1]
    private = call(capsys, "suggest", *numbers, "--feature-norm", "private")[1]
    assert "fit(feature_norm='private')" in private and "Warning" not in private


@pytest.mark.usefixtures("receipt")
class TestReceipts:
    def test_nothing_contradicts(self, capsys) -> None:
        code, out, _ = call(capsys, "verify", "receipt.json", "--artifact", "value.json")
        assert code == 0
        assert "agrees  artifact" in out and "agrees  epsilon" in out

    def test_an_entry_for_the_registry_of_deployments(self, capsys) -> None:
        code, out, _ = call(capsys, "verify", "receipt.json", "--registry")
        entry = json.loads(out)
        assert code == 0 and entry["basic"]["data_product_type"] == "number"
        assert entry["dp_variant"]["variant_name"] == "Pure DP"
        assert entry["privacy_loss"]["privacy_parameters"] == {"epsilon": 1.0, "delta": 0.0}
        assert "Laplace mechanism" in entry["implementation"]["mechanisms"]
        assert "not covered by epsilon" in str(entry["implementation"])

    def test_something_contradicts(self, capsys) -> None:
        document = json.loads(Path("receipt.json").read_text())
        document["promise"]["epsilon"] = 0.5
        Path("receipt.json").write_text(json.dumps(document))
        code, out, _ = call(capsys, "verify", "receipt.json")
        assert code == 1 and "it contradicts" in out

    @pytest.mark.parametrize("content", ["", "[1e999]"])
    def test_no_receipt_has_one_line_and_code_2(self, content: str, capsys) -> None:
        Path("bad.json").write_text(content)
        code, out, err = call(capsys, "verify", "bad.json")
        assert code == 2 and not out and err.count("\n") == 1
        assert err.startswith("botorch-dp: error: bad.json is no receipt")
        assert call(capsys, "verify", "nowhere.json")[0] == 2

    def test_another_artifact_has_code_2(self, capsys) -> None:
        Path("value.json").write_text("0.5")
        code, out, err = call(capsys, "verify", "receipt.json", "--artifact", "value.json")
        assert code == 2 and not out and "for another artifact" in err

    def test_signing(self, capsys, tmp_path: Path) -> None:
        keys(tmp_path)
        signing = ("sign", "receipt.json", "--key", "key.pem", "--out", "signed.json")
        assert call(capsys, *signing)[0] == 0
        code, out, _ = call(capsys, "verify", "signed.json", "--public-key", "public.pem")
        assert code == 0 and "it is signed by the named key" in out
        assert call(capsys, "verify", "receipt.json", "--public-key", "public.pem")[0] == 1


class TestLedger:
    def test_create_and_show(self, capsys) -> None:
        create = ("ledger", "create", "l.sqlite", "--epsilon", "2", "--delta", "1e-6", "--renyi")
        assert call(capsys, *create)[0] == 0
        with PrivacyLedger("l.sqlite") as ledger:
            assert ledger.budget == PrivacyBudget(2.0, 1e-6, renyi=True)
            laplace_mechanism(0.0, sensitivity=1.0, epsilon=0.5, ledger=ledger)
            shown = f"{ledger}\n"
        code, out, _ = call(capsys, "ledger", "show", "l.sqlite")
        assert (code, out) == (0, shown) and "Laplace mechanism" in out
        code, _, err = call(capsys, *create)
        assert code == 1 and "exists" in err

    def test_looking_creates_nothing(self, capsys, tmp_path: Path) -> None:
        code, _, err = call(capsys, "ledger", "show", "none")
        assert code == 1 and "none" in err and not (tmp_path / "none").exists()
        Path("text").write_text("not a ledger at all")
        assert call(capsys, "ledger", "show", "text")[0] == 1


def test_the_page_of_a_stored_study(capsys) -> None:
    problem = PrivacyUtilityProblem(
        SearchSpace(noise=Real(0.1, 10.0)),
        privacy=lambda config: 1 / config["noise"],
        utility=lambda config, seed: 1 / (1 + config["noise"]),
    )
    with DPareto(problem, storage="s.sqlite", seed=0) as study:
        study.run(3)
        assert call(capsys, "report", "s.sqlite")[:2] == (0, "s.html\n"), "while it is held"
    assert Path("s.html").read_text().startswith("<!doctype html>")
    code, _, err = call(capsys, "report", "s.sqlite", "--out", "page.txt")
    assert code == 1 and "must end in .html" in err
    assert call(capsys, "report", "none")[0] == 1
