"""`ledger`, `calibrate` and `epsilon`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from botorch_dp.cli import main
from botorch_dp.privacy import (
    PrivacyBudget,
    PrivacyLedger,
    dp_sgd_epsilon,
    gaussian_epsilon,
    gaussian_guarantee,
    laplace_guarantee,
)
from tests.cli.calling import call


class TestLedger:
    def test_show(self, capsys, tmp_path: Path) -> None:
        path = tmp_path / "ledger.sqlite"
        with PrivacyLedger(path, PrivacyBudget(2.0, 1e-6, summed=0.5)) as ledger:
            ledger.charge(laplace_guarantee(sensitivity=1.0, epsilon=0.3), label="best score")
            ledger.charge(gaussian_guarantee(sensitivity=1.0, mu=0.05))
            spent = ledger.spent()
        code, out, _ = call(capsys, "ledger", "show", str(path))
        assert code == 0
        assert "best score" in out
        assert "Gaussian mechanism" in out
        assert "REPLACE_ONE" in out
        code, out, _ = call(capsys, "ledger", "show", str(path), "--json")
        report = json.loads(out)
        assert tuple(report["spent"]) == spent
        assert [entry["label"] for entry in report["entries"]] == ["best score", ""]

    def test_errors(self, capsys, tmp_path: Path) -> None:
        code, _, err = call(capsys, "ledger", "show", str(tmp_path / "none"))
        assert code == 1
        assert "no ledger" in err
        assert not (tmp_path / "none").exists()
        (tmp_path / "text").write_text("not a ledger at all")
        code, _, err = call(capsys, "ledger", "show", str(tmp_path / "text"))
        assert code == 1
        assert "damaged" in err
        study = bytearray(100)
        study[68:72] = b"DPar"
        (tmp_path / "study").write_bytes(study)
        code, _, err = call(capsys, "ledger", "show", str(tmp_path / "study"))
        assert code == 1
        assert "is a study; `botorch-dp report" in err


class TestCalibrate:
    def test_gaussian(self, capsys) -> None:
        arguments = ("--sensitivity", "2", "--epsilon", "1", "--delta", "1e-5", "--json")
        code, out, _ = call(capsys, "calibrate", "gaussian", *arguments)
        report = json.loads(out)
        assert code == 0
        assert gaussian_epsilon(2 / report["noise"], 1e-5) == pytest.approx(1.0, rel=1e-6)

    def test_laplace(self, capsys) -> None:
        code, out, _ = call(capsys, "calibrate", "laplace", "--sensitivity", "2", "--epsilon", "4")
        assert code == 0
        assert "0.5" in out
        assert "replaced" in out

    def test_dp_sgd_names_both_relations(self, capsys) -> None:
        arguments = ("--epsilon", "2", "--delta", "1e-5", "--records", "500", "--batch", "100")
        code, out, _ = call(capsys, "calibrate", "dp-sgd", *arguments, "--epochs", "2")
        assert code == 0
        assert "replace one record" in out
        assert "add or remove one record" in out
        code, out, _ = call(capsys, "calibrate", "dp-sgd", *arguments, "--epochs", "2", "--json")
        replaced, added, fixed = json.loads(out)["calibrations"]
        assert (replaced["sampling"], fixed["sampling"]) == ("poisson", "without_replacement")
        noise = [row["noise_multiplier"] for row in (added, replaced, fixed)]
        assert noise[0] < noise[1] < noise[2]

    @pytest.mark.parametrize(
        "arguments",
        [
            ("gaussian", "--sensitivity", "nan", "--epsilon", "1", "--delta", "1e-5"),
            ("gaussian", "--sensitivity", "1", "--epsilon", "1", "--delta", "2"),
            ("laplace", "--sensitivity", "1", "--epsilon", "-1"),
            ("dp-sgd", "--epsilon", "1", "--delta", "1e-5", "--records", "10", "--batch", "0"),
        ],
    )
    def test_wrong_numbers(self, capsys, arguments: tuple[str, ...]) -> None:
        with pytest.raises(SystemExit, match="2"):
            main(["calibrate", *arguments])
        out, err = capsys.readouterr()
        assert out == ""
        assert "error: argument --" in err and "must be" in err

    def test_a_batch_of_more_than_all_records(self, capsys) -> None:
        arguments = ("--records", "10", "--batch", "11", "--epochs", "1")
        code, out, err = call(
            capsys, "calibrate", "dp-sgd", "--epsilon", "1", "--delta", "1e-5", *arguments
        )
        assert (code, out) == (1, "")
        assert err.startswith("botorch-dp: error: --batch 11")


class TestEpsilon:
    RUN = ("--records", "32561", "--batch", "256", "--epochs", "8", "--delta", "1e-5")

    def test_dp_sgd_side_by_side(self, capsys) -> None:
        code, out, _ = call(capsys, "epsilon", "dp-sgd", "--noise", "2", *self.RUN)
        assert code == 0
        assert "1016 steps" in out
        assert out.count("replace one record") == 2
        assert "add or remove one record" in out
        assert "If your data loader shuffles" in out

    def test_all_lines_are_of_the_same_noise(self, capsys) -> None:
        code, out, _ = call(capsys, "epsilon", "dp-sgd", "--noise", "2", *self.RUN, "--json")
        report = json.loads(out)
        replaced, added, fixed = report["epsilons"]
        assert code == 0
        for row, sampling in ((replaced, "poisson"), (fixed, "without_replacement")):
            assert row["epsilon"] == dp_sgd_epsilon(
                noise_multiplier=2.0,
                batch_size=256,
                num_records=32561,
                steps=report["steps"],
                delta=1e-5,
                sampling=sampling,
            )
        assert added["epsilon"] < replaced["epsilon"] < fixed["epsilon"]

    @pytest.mark.parametrize("noise", ["0", "-1", "nan"])
    def test_wrong_noise(self, capsys, noise: str) -> None:
        with pytest.raises(SystemExit, match="2"):
            main(["epsilon", "dp-sgd", "--noise", noise, *self.RUN])
        assert "argument --noise" in capsys.readouterr().err
