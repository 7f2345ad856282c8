"""`verify` and `sign`: exit codes, one sentence, and what is written beside a model."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from botorch_dp.privacy import PrivacyBudget, PrivacyLedger, TrialNumber, laplace_mechanism
from tests.cli.calling import call
from tests.cli.test_fitting import FIT
from tests.privacy.test_receipt import keys


@pytest.fixture(autouse=True)
def folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(TrialNumber, "draw", lambda self: 1)
    monkeypatch.chdir(tmp_path)
    release = laplace_mechanism(0.25, sensitivity=0.01, epsilon=1.0)
    release.receipt().save("receipt.json")
    Path("value.json").write_text(json.dumps(release.value))


def test_nothing_contradicts(capsys) -> None:
    code, out, _ = call(capsys, "verify", "receipt.json", "--artifact", "value.json")
    assert code == 0
    assert "agrees  artifact" in out and "agrees  epsilon" in out
    assert "This promise protects one record of the data set." in out
    assert out.rstrip().endswith("Nothing contradicts.")


def test_something_contradicts(capsys) -> None:
    document = json.loads(Path("receipt.json").read_text())
    document["promise"]["epsilon"] = 0.5
    Path("receipt.json").write_text(json.dumps(document))
    code, out, _ = call(capsys, "verify", "receipt.json")
    assert code == 1
    assert "Do not rely on this receipt: it contradicts (digest" in out


@pytest.mark.parametrize("content", ["", "{}", '{"version":1,"version":1}', "[1e999]"])
def test_bad_input_has_one_sentence_and_code_2(content: str, capsys) -> None:
    Path("bad.json").write_text(content)
    code, out, err = call(capsys, "verify", "bad.json")
    assert code == 2 and not out and err.count("\n") == 1
    assert err.startswith("botorch-dp: error: bad.json is no receipt")


def test_a_file_that_cannot_be_read_has_code_2(capsys, monkeypatch: pytest.MonkeyPatch) -> None:
    def locked(self: Path) -> bytes:
        raise PermissionError(13, "Permission denied", str(self))

    monkeypatch.setattr(Path, "read_bytes", locked)
    code, out, err = call(capsys, "verify", "receipt.json")
    assert code == 2 and not out and "Permission denied" in err


def test_another_artifact_has_code_2(capsys) -> None:
    Path("value.json").write_text("0.5")
    code, out, err = call(capsys, "verify", "receipt.json", "--artifact", "value.json")
    assert code == 2 and not out
    assert "for another artifact" in err


def test_signing(capsys, tmp_path: Path) -> None:
    keys(tmp_path)
    code, out, _ = call(capsys, "sign", "receipt.json", "--key", "key.pem", "--out", "signed.json")
    assert code == 0 and "signed by the key" in out
    code, out, _ = call(capsys, "verify", "signed.json", "--public-key", "public.pem")
    assert code == 0 and "it is signed by the named key" in out
    code, out, _ = call(capsys, "verify", "receipt.json", "--public-key", "public.pem")
    assert code == 1 and "it is not signed" in out


def test_a_published_model_has_receipts_beside_it(capsys) -> None:
    PrivacyLedger("a.ledger", PrivacyBudget(8.0, 1e-3)).close()
    code, out, err = call(capsys, *FIT, "--model", "m.pt", "--quiet", "--ledger", "a.ledger")
    assert code == 0, err
    assert "Receipt: m.receipt.json" in out
    for name, whom in (("m.receipt.json", "training"), ("m.test.receipt.json", "test")):
        code, out, _ = call(capsys, "verify", name, "--artifact", "m.pt")
        assert code == 0, out
        assert f"This promise protects one {whom} record" in out
        assert "of a ledger whose budget for all releases together is epsilon 8" in out
