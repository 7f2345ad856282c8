"""Altered receipts are refused, each for its own reason; bad input is one sentence."""

from __future__ import annotations

import json
import math
import pickle
import random
import re
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from botorch_dp.errors import PrivacyError
from botorch_dp.privacy import (
    DPSGD,
    ApproximateLoss,
    AuditReport,
    GaussianLoss,
    Guarantee,
    LaplaceLoss,
    NeighboringRelation,
    PrivacyBudget,
    PrivacyLedger,
    PrivacyUnit,
    PureLoss,
    Receipt,
    gaussian_mechanism,
    receipt_document,
    verification,
)
from botorch_dp.privacy import receipt as module
from botorch_dp.privacy.digests import digest_of, digests_of
from botorch_dp.privacy.events import event_of, recomputed
from botorch_dp.privacy.losses import FixedBatchSGDLoss, PoissonSGDLoss, PrivacyLoss, SelectionLoss
from botorch_dp.privacy.rounding import rounded_up
from botorch_dp.privacy.selection import Selection, TrialNumber
from botorch_dp.privacy.verification import (
    _check_audit,
    _check_dates,
    _check_derived,
    _check_digest,
    _check_ledger,
    _words,
)

REPLACED, ADDED, MOVED = NeighboringRelation
PARAMETERS = {
    "batch_size": 8,
    "num_records": 80,
    "steps": 20,
    "noise_multiplier": 4.0,
    "clip_norm": 1.0,
    "sampling": "poisson",
    "relation": "REPLACE_ONE",
}
WEIGHTS = {"weight": torch.arange(6.0).reshape(2, 3), "bias": torch.zeros(2)}


def guarantee(*losses: PrivacyLoss, relation: Any = REPLACED, **more: Any) -> Guarantee:
    unit = PrivacyUnit("one patient", relation, ("a patient has one record", "n is public"))
    return Guarantee("a mechanism", unit, losses, **{"assumptions": ("a prior",), **more})


def selected(shape: float = 3.0) -> SelectionLoss:
    selection = Selection(TrialNumber(20, shape))
    epsilon = selection.epsilon(selection.profile(0.2, 1e-5), 1e-5)
    return SelectionLoss(epsilon=epsilon, delta=1e-5, mu=0.2, mean=20, shape=shape)


def training_receipt() -> Receipt:
    training = DPSGD(noise_multiplier=4.0, batch_size=8, num_records=80, steps=20)
    ledger = PrivacyLedger(budget=PrivacyBudget(50.0, 1e-3))
    promise = guarantee(training.loss(), quoted_delta=1e-5)
    ledger.charge(promise, delta=1e-5, label="the model")
    audit = AuditReport(0.1, "an event", "data", (5, 1), 100, 200, 1e-5, 0.99)
    return Receipt.of(
        promise,
        artifact=WEIGHTS,
        training=PARAMETERS,
        settings="fixed beforehand",
        ledger=ledger,
        audit=audit,
    )


RECEIPT = training_receipt()


@pytest.fixture(scope="module", autouse=True)
def _priced_once() -> Iterator[None]:
    """The same event has the same price in all receipts that are altered elsewhere."""
    known: dict[str, Any] = {}

    def priced(event: Any, *how: Any) -> Any:
        key = json.dumps([event, *map(str, how)])
        if key not in known:
            known[key] = recomputed(event, *how)
        return known[key]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(verification, "recomputed", priced)
        yield


def with_new_digest(document: dict[str, Any]) -> Receipt:
    """What somebody writes who knows how digests are made, but has no key."""
    return Receipt(
        receipt_document.canonical(
            {**document, "digest": receipt_document.document_digest(document)}
        )
    )


# --- What agrees. ---


LOSSES: dict[str, tuple[Any, ...]] = {
    "pure": (PureLoss(0.5),),
    "pure, many": (PureLoss(0.1),) * 20,
    "Laplace and Gaussian": (LaplaceLoss(0.3), GaussianLoss(0.4)),
    "Gaussian, tiny": (GaussianLoss(1e-3),),
    "Gaussian, large": (GaussianLoss(9.0),),
    "nothing": (GaussianLoss(0.0), PureLoss(0.0)),
    "approximate": (ApproximateLoss(1.0, 1e-6),),
    "approximate, many": (ApproximateLoss(0.25, 1e-7),) * 4,
    "Poisson": (PoissonSGDLoss(2.0, 0.1, 50, REPLACED),),
    "Poisson and Gaussian": (PoissonSGDLoss(2.0, 0.01, 100, REPLACED), GaussianLoss(0.3)),
    "fixed": (FixedBatchSGDLoss(4.0, 100, 1000, 50),),
    "fixed and Gaussian": (FixedBatchSGDLoss(4.0, 32, 569, 100), GaussianLoss(0.3)),
    "full batches": (FixedBatchSGDLoss(8.0, 50, 50, 10),),
    "selection": (selected(),),
}
RELATIONS = {name: (REPLACED, ADDED, MOVED) for name in LOSSES} | {
    name: (REPLACED,)
    for name in LOSSES
    if "Poisson" in name or "fixed" in name or "full" in name or name == "selection"
}


@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    ("name", "relation"), [(n, r) for n in LOSSES for r in RELATIONS[n]], ids=str
)
def test_every_kind_of_loss_is_recomputed_within_1_percent(name: str, relation: Any) -> None:
    promise = guarantee(*LOSSES[name], relation=relation)
    verification = Receipt.of(promise).verify()
    assert verification.passes, str(verification)
    subject = "selection" if name == "selection" else "epsilon"
    found = [f.outcome for f in verification.findings if f.subject == subject]
    assert found[0] == "agrees", str(verification)


def test_fixed_batches_have_an_upper_bound_in_other_units() -> None:
    loss = FixedBatchSGDLoss(2.0, 256, 32561, 1000)
    exact, upper = recomputed(event_of(guarantee(loss)), REPLACED, 1e-5, 1.7)
    assert exact.bound == "none" and upper.bound == "upper"
    assert exact.epsilon == pytest.approx(1.692, abs=2e-3)
    assert upper.epsilon == pytest.approx(2.751, abs=2e-3)


def test_what_is_said_of_an_intact_receipt(tmp_path: Path) -> None:
    file = tmp_path / "receipt.json"
    RECEIPT.save(file)
    loaded = Receipt.load(file)
    assert loaded == RECEIPT and pickle.loads(pickle.dumps(loaded)) == RECEIPT
    verification = loaded.verify(WEIGHTS)
    assert verification.passes and str(verification).endswith(
        "No contradiction found; not signed, so this is the sender's word."
    )
    outcomes = {f.subject: f.outcome for f in verification.findings}
    assert outcomes["artifact"] == outcomes["training"] == outcomes["mechanism"] == "agrees"
    assert outcomes["signature"] == "not recomputed"
    believed = [f.text for f in verification.findings if f.outcome == "condition"]
    assert {"a patient has one record", "n is public", "a prior"} <= set(believed)
    assert RECEIPT.guarantee.losses == (PoissonSGDLoss(4.0, 0.1, 20, REPLACED),)


# --- In sentences. ---


@pytest.mark.one_in(4)
@pytest.mark.parametrize(
    ("name", "relation"), [(n, r) for n in LOSSES for r in RELATIONS[n]], ids=str
)
def test_a_paragraph_says_all_of_it(name: str, relation: Any) -> None:
    promise = guarantee(*LOSSES[name], relation=relation)
    epsilon, delta = promise.quoted
    said = promise.paragraph()
    for part in (
        "This guarantee protects one patient.",
        "the output of: a mechanism.",
        relation.value,
        f"(epsilon = {rounded_up(epsilon)})",
        "(1) a patient has one record; (2) n is public.",
        "assumptions that nobody has proven: a prior.",
    ):
        assert part in said
    assert (f"{rounded_up(delta)} (delta)" in said) == (delta > 0)
    (guess,) = re.findall(r"a probability of at most ([\d.]+)%", said)
    assert 50 <= float(guess) <= 100
    assert float(guess) == pytest.approx(50 * (1 + promise.delta(0.0)), rel=0.01)
    (caught,) = re.findall(r"at most ([\d.]+)% of the time", said)
    assert float(caught) == pytest.approx(100 * (1 - promise.tradeoff(0.05)), rel=0.01)


def test_a_paragraph_about_no_promise_says_so() -> None:
    assert "no privacy guarantee" in guarantee(PureLoss(1.0)).simulated().paragraph()
    endless = guarantee(ApproximateLoss(1.0, 1e-3), GaussianLoss(0.1))
    assert "guarantees nothing at delta = 1e-06" in endless.paragraph()
    huge = Guarantee("m", PrivacyUnit(), (PureLoss(1000.0),)).paragraph()
    assert "more than 1e300" in huge and "no condition beyond the software" in huge
    group = guarantee(GaussianLoss(0.1)).for_group(3).paragraph()
    assert "a group of 3, each of them one patient" in group


# --- What was altered. ---

Alteration = Callable[[dict[str, Any]], object]


def put(value: Any, *path: str | int) -> Alteration:
    def alter(document: dict[str, Any]) -> None:
        for name in path[:-1]:
            document = document[name]  # type: ignore[index]
        document[path[-1]] = value  # type: ignore[index]

    return alter


def both(*alterations: Alteration) -> Alteration:
    return lambda document: [alter(document) for alter in alterations]


def in_other_words(statement: str) -> Alteration:
    return both(put("9.9", "software", "botorch_dp"), put(statement, "promise", "statement"))


LOSS, EVENT = ("mechanism", "losses", 0), ("mechanism", "event")
STATEMENT = RECEIPT.document["promise"]["statement"]
#: What is altered, how, and what must be found; the digest is made anew.
ALTERED: dict[str, tuple[Alteration, str]] = {
    "noise in the event": (put(5.0, *EVENT, "event", "event", "noise_multiplier"), "event"),
    "noise wherever the mechanism says it": (
        both(
            put(5.0, *LOSS, "noise_multiplier"),
            put(5.0, *EVENT, "event", "event", "noise_multiplier"),
        ),
        "training",
    ),
    "noise everywhere": (
        both(
            put(5.0, *LOSS, "noise_multiplier"),
            put(5.0, *EVENT, "event", "event", "noise_multiplier"),
            put(5.0, "training", "noise_multiplier"),
        ),
        "epsilon",
    ),
    "records": (put(800, "training", "num_records"), "training"),
    "steps everywhere": (
        both(put(10, *EVENT, "count"), put(10, *LOSS, "steps"), put(10, "training", "steps")),
        "epsilon",
    ),
    "sampling": (put("without_replacement", "training", "sampling"), "training"),
    "clipping norm": (put(-1.0, "training", "clip_norm"), "training"),
    "words of the relation": (put(ADDED.value, "promise", "neighbours"), "neighbours"),
    "relation everywhere": (
        both(
            put("ADD_OR_REMOVE_ONE", "promise", "relation"),
            put(ADDED.value, "promise", "neighbours"),
            put("ADD_OR_REMOVE_ONE", *LOSS, "relation"),
            put("ADD_OR_REMOVE_ONE", "training", "relation"),
            put(receipt_document.NOISE_UNITS[ADDED], "mechanism", "noise_unit"),
        ),
        "epsilon",
    ),
    "unit of noise": (put("over the sensitivity", "mechanism", "noise_unit"), "noise_unit"),
    "epsilon": (put(0.5, "promise", "epsilon"), "epsilon"),
    "delta": (put(1e-9, "promise", "delta"), "epsilon"),
    "a condition dropped": (put(["n is public"], "promise", "conditions"), "statement"),
    "assumptions dropped": (
        both(put([], "promise", "assumptions"), put("proven", "promise", "status")),
        "statement",
    ),
    "status": (put("proven", "promise", "status"), "status"),
    "statement": (put("Everybody is safe.", "promise", "statement"), "statement"),
    "whom it protects": (put("all patients together", "promise", "protects"), "statement"),
    "charge": (put(0.5, "ledger", "charge", "epsilon"), "ledger"),
    "budget": (put(0.1, "ledger", "epsilon"), "ledger"),
    "relation of the ledger": (put("BOUNDED_ROW", "ledger", "relation"), "ledger"),
    "audit": (put(30.0, "audit", "lower_bound"), "audit"),
    "proof": (put("checked by an authority", "accounting", "proof"), "proof"),
    "accountant": (put("an authority", "accounting", "accountant"), "accountant"),
    "proven, with nothing assumed": (
        both(
            put([], "promise", "assumptions"),
            put("proven", "promise", "status"),
            lambda d: d["promise"].update(statement=STATEMENT.split(" It also rests on")[0]),
        ),
        "status",
    ),
    "another epsilon in the words of another version": (
        in_other_words(STATEMENT.replace("epsilon = 0.8219", "epsilon = 0.1")),
        "statement",
    ),
    "a condition less in the words of another version": (
        in_other_words(STATEMENT.replace("n is public", "all is well")),
        "statement",
    ),
    "a budget below the promise": (
        both(put(0.5, "ledger", "epsilon"), put(0.5, "ledger", "charge", "epsilon")),
        "ledger",
    ),
    "a small budget and no line": (
        both(put(0.5, "ledger", "epsilon"), put(None, "ledger", "charge")),
        "ledger",
    ),
    "a charge at a smaller delta": (put(1e-9, "ledger", "charge", "delta"), "ledger"),
    "a charge of nothing": (
        lambda d: d["ledger"]["charge"].update(epsilon=0.0, delta=0.0, mu=0.0),
        "ledger",
    ),
    "a charge that is to come": (put("2999-01-01", "ledger", "charge", "date"), "date"),
    "a word for a day": (put("yesterday", "released", "date"), "date"),
    "an audit at a smaller delta": (
        both(put(1000.0, "audit", "lower_bound"), put(0.99e-5, "audit", "delta")),
        "audit",
    ),
    "an audit without draws": (put(0, "audit", "samples"), "audit"),
    "a kind of its own": (put("certified product", "released", "kind"), "artifact"),
}


def everywhere(old: str, new: str) -> Alteration:
    return lambda document: document.update(json.loads(json.dumps(document).replace(old, new)))


#: What follows from nothing: it is shown as the sender's word. What is altered, and the line.
SHOWN: dict[str, tuple[Alteration, str]] = {
    "a person": (
        everywhere("one patient", "one person with all records"),
        "who is protected: one person with all records, as the sender words it",
    ),
    "name of the mechanism": (
        everywhere("a mechanism", "perfectly anonymous training"),
        "name: perfectly anonymous training, as the sender words it",
    ),
    "origin": (
        lambda d: d["settings"].update(origin="public copy", note="approved"),
        "settings: as the sender says, the settings were tuned on public records (approved)",
    ),
    "an earlier day": (
        both(put("2020-01-01", "released", "date"), put("2020-01-01", "ledger", "charge", "date")),
        "date: written on 2020-01-01, as the sender says",
    ),
    "a proof of another version": (
        both(put("9.9", "software", "botorch_dp"), put("QED", "accounting", "proof")),
        "proof: in the words of another version: QED",
    ),
}


@pytest.mark.parametrize("name", SHOWN)
def test_what_nobody_can_derive_is_shown_as_the_senders_word(name: str) -> None:
    alter, line = SHOWN[name]
    document = RECEIPT.document
    alter(document)
    verification = with_new_digest(document).verify(WEIGHTS)
    assert f"     condition  {line}" in str(verification).splitlines()
    assert verification.passes and str(verification).endswith("so this is the sender's word.")


@pytest.mark.parametrize("name", ALTERED)
def test_an_altered_receipt_is_refused_for_its_own_reason(name: str) -> None:
    alter, reason = ALTERED[name]
    document = RECEIPT.document
    alter(document)
    verification = with_new_digest(document).verify(WEIGHTS)
    subjects = {f.subject for f in verification.contradictions}
    assert not verification.passes and reason in subjects, str(verification)
    # Somebody who forgets the digest is told that, too.
    assert _check_digest(document).outcome == "contradicts"


@pytest.mark.parametrize(("name", "value"), [("mean", 5.0), ("mu", 0.1)])
def test_another_law_of_the_trials_is_refused(name: str, value: float) -> None:
    document = Receipt.of(guarantee(selected())).document
    document["mechanism"]["losses"][0][name] = value
    promise = receipt_document.guarantee_of(document)
    honest = Receipt.of(promise).document  # event, statement and all: consistent, and not true
    assert "selection" in {f.subject for f in Receipt.of(promise).verify().contradictions}
    document["mechanism"]["event"] = honest["mechanism"]["event"]
    assert not with_new_digest(document).verify().passes


def test_the_epsilon_of_a_selection_with_something_else_is_compared() -> None:
    document = Receipt.of(guarantee(selected(), GaussianLoss(0.5), quoted_delta=1e-4)).document
    document["promise"]["epsilon"] = 0.001
    assert {f.subject for f in with_new_digest(document).verify().contradictions} == {"epsilon"}


@pytest.mark.parametrize("character", ["\x1b", "\n", "\ud800"])
def test_nothing_in_a_receipt_moves_the_cursor(character: str) -> None:
    document = RECEIPT.document
    document["settings"]["note"] = f"{character}          agrees  epsilon: all is well"
    document["promise"]["statement"] = f"Everybody is safe.{character}"
    forged = with_new_digest(document)
    assert all(line.isprintable() for line in str(forged.verify()).splitlines())
    assert len(str(forged.verify()).splitlines()) == len(forged.verify().findings) + 1
    assert len(str(forged).splitlines()) == 2 and character not in str(forged).replace("\n", "", 1)


def test_no_receipt_stumbles() -> None:
    document = RECEIPT.document
    nested: Any = {"name": "os.system"}
    for _ in range(60):
        nested = {"name": "SelfComposedDpEvent", "event": nested, "count": 10**7}
    document["mechanism"]["event"] = nested
    assert outcome(with_new_digest(document), "event") == "contradicts"
    document = RECEIPT.document
    document["promise"]["epsilon"] = 1e300
    assert outcome(with_new_digest(document), "epsilon") == "contradicts"


def outcome(receipt: Receipt, subject: str) -> str:
    return next(f.outcome for f in receipt.verify().findings if f.subject == subject)


@pytest.mark.slow
def test_of_very_many_steps_the_first_million_are_a_lower_bound() -> None:
    honest = Receipt.of(guarantee(PoissonSGDLoss(50.0, 1e-3, 2 * 10**6, REPLACED)))
    assert outcome(honest, "epsilon") == "not recomputed" and honest.verify().passes
    document = honest.document
    document["promise"]["epsilon"] = honest.epsilon / 3
    assert outcome(with_new_digest(document), "epsilon") == "contradicts"


def test_a_law_that_dp_accounting_does_not_know() -> None:
    receipt = Receipt.of(guarantee(selected(shape=-0.5)))
    assert receipt.verify().passes and outcome(receipt, "selection") != "not recomputed"


def test_a_consistent_lie_is_found_by_a_signature_only(tmp_path: Path) -> None:
    key, public = keys(tmp_path)
    lie = replace(RECEIPT.guarantee, assumptions=())
    document = RECEIPT.document
    document["promise"] = Receipt.of(lie).document["promise"]
    forged = with_new_digest(document)
    assert forged.verify().passes  # the guide says so
    signed = RECEIPT.signed(key)
    forged = with_new_digest({**document, "signature": signed.document["signature"]})
    assert {f.subject for f in forged.verify().contradictions} == {"signature"}
    assert {f.subject for f in with_new_digest(document).verify(public_key=public).contradictions}
    (tmp_path / "other").mkdir()
    other_key, other_public = keys(tmp_path / "other")
    again = with_new_digest(document).signed(other_key)
    assert again.verify().passes  # by somebody: the line says by which key
    assert not again.verify(public_key=public).passes
    assert again.verify(public_key=other_public).passes


# --- Signatures. ---


def keys(folder: Path, kind: str = "ed25519", password: bytes | None = None) -> tuple[Path, Path]:
    from cryptography.hazmat.primitives import serialization as form
    from cryptography.hazmat.primitives.asymmetric import ed25519, x25519

    made: Any = ed25519.Ed25519PrivateKey if kind == "ed25519" else x25519.X25519PrivateKey
    private = made.generate()
    hidden = form.BestAvailableEncryption(password) if password else form.NoEncryption()
    (folder / "key.pem").write_bytes(
        private.private_bytes(form.Encoding.PEM, form.PrivateFormat.PKCS8, hidden)
    )
    (folder / "public.pem").write_bytes(
        private.public_key().public_bytes(form.Encoding.PEM, form.PublicFormat.SubjectPublicKeyInfo)
    )
    return folder / "key.pem", folder / "public.pem"


def test_a_signed_receipt(tmp_path: Path) -> None:
    key, public = keys(tmp_path)
    signed = RECEIPT.signed(key)
    assert signed.verify().passes
    (line,) = (f for f in signed.verify(public_key=public).findings if f.subject == "signature")
    assert line.outcome == "agrees"
    assert {f.subject for f in RECEIPT.verify(public_key=public).contradictions} == {"signature"}
    for name, value in (("value", "00" * 64), ("public_key", "zz"), ("algorithm", "RSA")):
        document = signed.document
        document["signature"][name] = value
        altered = Receipt(receipt_document.canonical(document)).verify()
        assert {f.subject for f in altered.contradictions} == {"signature"}


def test_keys_that_cannot_be_used(tmp_path: Path) -> None:
    key, public = keys(tmp_path, "x25519")
    with pytest.raises(ValueError, match="Ed25519"):
        RECEIPT.signed(key)
    with pytest.raises(ValueError, match="Ed25519"):
        RECEIPT.verify(public_key=public)
    with pytest.raises(ValueError, match="`public_key`"):
        RECEIPT.verify(public_key=key)
    (tmp_path / "locked").mkdir()
    key, _ = keys(tmp_path / "locked", password=b"open")
    with pytest.raises(ValueError, match="`key`"):
        RECEIPT.signed(key)
    assert RECEIPT.signed(key, password=b"open").verify().passes


# --- Bad input. ---

TEXT = RECEIPT.text
BAD: dict[str, tuple[str, str]] = {
    "empty": ("", "Expecting"),
    "truncated": (TEXT[:-200], "Unterminated|Expecting"),
    "no object": ("[1, 2]", "no JSON object"),
    "another version": (TEXT.replace('"version":1', '"version":2'), "version"),
    "a name twice": (TEXT.replace('"version":1', '"version":1,"version":1'), "twice"),
    "no number": (TEXT.replace('"steps":20', '"steps":NaN'), "JSON compliant"),
    "an unknown loss": (TEXT.replace('"kind":"poisson_sgd"', '"kind":"magic"'), "kind"),
    "a field more": (TEXT.replace('"version":1', '"version":1,"more":1'), "exactly the sections"),
    "a negative delta": (TEXT.replace('"delta":1e-05,"epsilon"', '"delta":-1,"epsilon"'), "delta"),
    "deep": ("[" * 100_000, "no receipt"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_refused_in_one_sentence(name: str, tmp_path: Path) -> None:
    content, reason = BAD[name]
    assert content != TEXT
    file = tmp_path / "receipt.json"
    file.write_text(content)
    with pytest.raises(ValueError, match=reason) as caught:
        Receipt.load(file)
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 600


def test_files_that_are_none(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no file"):
        Receipt.load(tmp_path / "none.json")
    (tmp_path / "large.json").write_bytes(b" " * (module._LARGEST_FILE + 1))
    with pytest.raises(ValueError, match="too large"):
        Receipt.load(tmp_path / "large.json")
    (tmp_path / "pickle.json").write_bytes(pickle.dumps({"a": 1}))
    with pytest.raises(ValueError, match="no receipt"):
        Receipt.load(tmp_path / "pickle.json")


#: The same documents in each run, however slow the machine is.
FUZZED = settings(
    max_examples=100, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=6,
)


@FUZZED
@given(seed=st.integers(0, 2**32), value=JSON)
def test_whatever_stands_in_a_receipt_is_read_or_refused(seed: int, value: Any) -> None:
    """Anything in any place: a receipt, or a ValueError; never another error."""
    document, draw = RECEIPT.document, random.Random(seed)
    place: Any = document
    while True:
        name = draw.choice(list(place) if isinstance(place, dict) else range(len(place)))
        if not isinstance(place[name], dict | list) or not place[name] or draw.random() < 0.2:
            break
        place = place[name]
    place[name] = value
    try:
        text = receipt_document.canonical(document)
    except ValueError:
        return  # NaN
    try:
        receipt = Receipt(text)
    except ValueError:
        return
    for check in (_check_derived, _check_ledger, _check_audit):
        check(receipt.document, receipt.guarantee)
    _check_dates(receipt.document), _words(receipt.document)


def test_what_no_receipt_is_written_for() -> None:
    with pytest.raises(PrivacyError, match="nothing is"):
        Receipt.of(guarantee(PureLoss(1.0)).simulated())
    with pytest.raises(PrivacyError, match="No epsilon"):
        Receipt.of(guarantee(ApproximateLoss(1.0, 1e-3), GaussianLoss(0.1)))
    with pytest.raises(ValueError, match="names no artifact"):
        Receipt.of(guarantee(PureLoss(1.0))).verify(0.5)


# --- What was released. ---


def test_digests_do_not_depend_on_how_a_value_is_held(tmp_path: Path) -> None:
    model = torch.nn.Linear(3, 2)
    state = model.state_dict()
    assert digest_of(model) == digest_of(dict(reversed(state.items())))
    turned = {**state, "weight": state["weight"].T.contiguous().T}
    assert digest_of(turned) == digest_of(model)
    assert digest_of(state["weight"].double()) != digest_of(state["weight"])
    assert digest_of(state["weight"].flatten()) != digest_of(state["weight"])
    array = state["weight"].numpy()
    assert digest_of(array) == digest_of(array.astype(">f4")) == digest_of(state["weight"])
    assert digest_of(np.float64(0.1)) == digest_of(0.1) != digest_of(0.1 + 1e-17 + 1e-16)
    assert digest_of((1, 2)) == digest_of([1, 2])
    half = torch.ones(3, dtype=torch.bfloat16)
    assert digest_of(half) != digest_of(half.view(torch.int16))
    assert digest_of(math.nan) == digest_of(math.nan)
    for other in (object(), {1: 2}, torch.eye(2).to_sparse(), np.array(["a"])):
        with pytest.raises(TypeError, match=r"canonical form|text"):
            digest_of(other)


def test_digests_of_files(tmp_path: Path) -> None:
    (tmp_path / "c.json").write_text('{"b": 1, "a": 0.5}')
    assert digest_of({"a": 0.5, "b": 1}) in digests_of(tmp_path / "c.json")
    np.save(tmp_path / "a.npy", np.arange(3.0))
    assert digest_of(np.arange(3.0)) in digests_of(tmp_path / "a.npy")
    torch.save(WEIGHTS, tmp_path / "m.pt")
    assert digest_of(WEIGHTS) in digests_of(tmp_path / "m.pt")
    assert len(digests_of(tmp_path)) == 1
    (tmp_path / "x.bin").write_bytes(b"abc")
    assert digests_of(tmp_path / "x.bin") == [digest_of(tmp_path / "x.bin")]
    (tmp_path / "bad.json").write_text("{")
    with pytest.raises(ValueError, match="cannot be read"):
        digests_of(tmp_path / "bad.json")
    with pytest.raises(ValueError, match="no file"):
        digests_of(tmp_path / "none.bin")


def test_nothing_in_an_artifact_is_executed(tmp_path: Path) -> None:
    class Harmful:
        def __reduce__(self) -> tuple[Any, ...]:
            return subprocess.call, (["touch", str(tmp_path / "harmed")],)

    torch.save({"weight": Harmful()}, tmp_path / "m.pt")
    np.save(tmp_path / "a.npy", np.array([Harmful()]), allow_pickle=True)
    for name in ("m.pt", "a.npy"):
        with pytest.raises(ValueError, match="cannot be read"):
            RECEIPT.verify(tmp_path / name)
    assert not (tmp_path / "harmed").exists()


# --- The ledger. ---


def test_the_line_of_the_ledger() -> None:
    ledger = PrivacyLedger(budget=PrivacyBudget(1.0, 1e-5))
    value = gaussian_mechanism(0.5, sensitivity=1.0, mu=0.05, ledger=ledger, label="a mean")
    charge = value.receipt(ledger=ledger).document["ledger"]["charge"]
    assert (charge["number"], charge["mu"], charge["label"]) == (1, 0.05, "a mean")
    assert len(charge["date"]) == len("2026-01-01")
    other = Receipt.of(guarantee(PureLoss(0.1)), ledger=ledger)
    assert other.document["ledger"]["charge"] is None
