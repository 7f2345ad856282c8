"""Verification of a receipt: what follows from it is derived again, epsilon by dp-accounting."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, fields
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any, Literal

from botorch_dp._checks import check_path, needs_extra, printable
from botorch_dp.privacy.accounting import DPSGD
from botorch_dp.privacy.budget import PrivacyBudget
from botorch_dp.privacy.digests import digests_of, kind_of
from botorch_dp.privacy.events import MOST_PARTS, Recomputed, event_of, recomputed
from botorch_dp.privacy.guarantee import Guarantee
from botorch_dp.privacy.losses import NeighboringRelation, SampledSGDLoss, SelectionLoss
from botorch_dp.privacy.pld.gaussian import gaussian_mu, pure_dp_mu
from botorch_dp.privacy.receipt_document import (
    ORIGINS,
    TOLERANCE,
    accounting_section,
    canonical,
    document_digest,
    installed_version,
    mechanism_section,
    pays,
    promise_section,
)
from botorch_dp.privacy.rounding import rounded_down, rounded_up
from botorch_dp.privacy.selection import BaseProfile, Selection, TrialNumber

#: Fields that another version of this package may word differently.
_WORDS = {"statement", "noise_unit", "accountant", "proof"}
#: Facts of a training that epsilon follows from.
_OF_THE_PRICE = tuple(field.name for field in fields(DPSGD))
#: What rounding alone may make of an epsilon, relatively.
_ROUNDING = 1e-6

Outcome = Literal["agrees", "condition", "not recomputed", "contradicts"]


@dataclass(frozen=True)
class Finding:
    """One line of what verifying a receipt found.

    Args:
        outcome: ``"agrees"``, ``"condition"`` (the reader must believe it), ``"not recomputed"`` or
            ``"contradicts"``.
        subject: What was looked at, in a word.
        text: What was found, in a sentence.
    """

    outcome: Outcome
    subject: str
    text: str

    def __str__(self) -> str:
        return printable(f"{self.outcome:>14}  {self.subject}: {self.text}")


@dataclass(frozen=True)
class Verification:
    """What verifying a receipt found; ``print`` it."""

    findings: tuple[Finding, ...]

    @property
    def contradictions(self) -> tuple[Finding, ...]:
        """What cannot be true."""
        return tuple(each for each in self.findings if each.outcome == "contradicts")

    @property
    def passes(self) -> bool:
        """Whether nothing contradicts."""
        return not self.contradictions

    def __str__(self) -> str:
        signed = [each.outcome for each in self.findings if each.subject == "signature"]
        last = "No contradiction found; not signed, so this is the sender's word."
        if not self.passes:
            subjects = ", ".join(dict.fromkeys(each.subject for each in self.contradictions))
            last = f"Do not rely on this receipt: it contradicts itself ({subjects})."
        elif signed != ["not recomputed"]:
            last = "No contradiction found; the rest is the signer's word."
        return "\n".join([*map(str, self.findings), last])


def verify(
    document: Mapping[str, Any],
    guarantee: Guarantee,
    artifact: object,
    public_key: str | os.PathLike[str] | None,
) -> Verification:
    """Check a document and the guarantee that it states; see :meth:`Receipt.verify`."""
    findings = [*_check_artifact(document, artifact), _check_digest(document)]
    findings.append(_check_signature(document, public_key))
    for check in (_check_derived, _check_training, _check_epsilon, _check_ledger, _check_audit):
        findings += check(document, guarantee)
    return Verification((*findings, *_check_dates(document), *_words(document)))


def _check_artifact(document: Mapping[str, Any], artifact: object) -> list[Finding]:
    named = document["released"]["digest"]
    if artifact is None:
        text = "no artifact was given, so nobody checked that this receipt belongs to one"
        return [Finding("not recomputed", "artifact", text)]
    if named is None:
        raise ValueError("This receipt names no artifact, so it cannot be one for this artifact.")
    if named not in digests_of(artifact):
        raise ValueError(
            "This receipt is for another artifact: the digest of what was given is not the one "
            f"that it names ({named})."
        )
    kind, text = document["released"]["kind"], f"its digest is {named}"
    if not isinstance(artifact, Path) and kind != kind_of(artifact):
        return [Finding("contradicts", "artifact", f"{text}, and it is no {_short(kind)}")]
    return [Finding("agrees", "artifact", text)]


def _check_digest(document: Mapping[str, Any]) -> Finding:
    if document["digest"] != document_digest(document):
        return Finding(
            "contradicts", "digest", "the document was altered after its digest was computed"
        )
    text = "file intact (detects corruption, not deliberate changes)"
    return Finding("agrees", "digest", text)


def _check_signature(
    document: Mapping[str, Any], public_key: str | os.PathLike[str] | None
) -> Finding:
    signature, wanted = document["signature"], None
    if public_key is not None:
        wanted = _public_key(public_key)
    if signature is None:
        if wanted is not None:
            return Finding("contradicts", "signature", "it is not signed, and a key was named")
        text = "none. Anyone could have written this receipt."
        return Finding("not recomputed", "signature", text)
    with needs_extra("signing", "Verifying a signed receipt"):
        from cryptography.exceptions import InvalidSignature
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
    try:
        if signature["algorithm"] != "Ed25519":
            raise ValueError
        content = canonical({**document, "signature": None}).encode("ascii")
        key = Ed25519PublicKey.from_public_bytes(bytes.fromhex(signature["public_key"]))
        key.verify(bytes.fromhex(signature["value"]), content)
    except (InvalidSignature, ValueError):
        return Finding("contradicts", "signature", "the signature is not one of this document")
    if wanted is None:
        text = f"it is signed by the key {signature['public_key']}: ask whether it is theirs"
        return Finding("condition", "signature", text)
    if wanted != signature["public_key"]:
        return Finding("contradicts", "signature", "it is signed by another key than the named one")
    return Finding("agrees", "signature", "it is signed by the named key")


def _public_key(path: str | os.PathLike[str]) -> str:
    with needs_extra("signing", "Verifying a signed receipt"):
        from cryptography.hazmat.primitives import serialization
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
    try:
        key = serialization.load_pem_public_key(Path(check_path("public_key", path)).read_bytes())
    except (OSError, ValueError) as error:
        raise ValueError(f"`public_key` cannot be read as a PEM public key: {error}") from error
    if not isinstance(key, Ed25519PublicKey):
        raise ValueError("`public_key` must be an Ed25519 key.")
    return key.public_bytes_raw().hex()


def _check_derived(document: Mapping[str, Any], guarantee: Guarantee) -> list[Finding]:
    """Compare all that follows from the losses, the unit and the assumptions."""
    findings = []
    expected = {
        "mechanism": mechanism_section(guarantee),
        "accounting": accounting_section(guarantee),
    }
    if len(set(guarantee.losses)) > MOST_PARTS:
        text = "the mechanism has more parts than are recomputed here"
        findings.append(Finding("not recomputed", "statement", text))
    else:
        expected["promise"] = promise_section(guarantee)
    ours = document["software"].get("botorch_dp") == installed_version("botorch_dp")
    for section, derived in expected.items():
        for name, value in derived.items():
            stated = document[section][name]
            if stated == value or name == "epsilon":  # see `_check_epsilon`
                continue
            missing = _missing(stated, guarantee) if name == "statement" else None
            if name not in _WORDS or ours:
                text = f"`{section}` says {_short(stated)}, and {_short(value)} follows from the "
                text += "losses and conditions"
            elif missing is not None:
                text = f"its words lack {_short(missing)}"
            else:
                text = f"in the words of another version: {stated}"
                findings.append(Finding("condition", name, text))
                continue
            findings.append(Finding("contradicts", name, text))
    text = "status, statement, event and proof are those of the losses and conditions"
    return findings or [Finding("agrees", "mechanism", text)]


def _missing(statement: str, guarantee: Guarantee) -> str | None:
    """The first number or condition that a statement in other words lacks."""
    numbers = [f"= {rounded_up(number)}" for number in guarantee.quoted[:1]]
    numbers += [rounded_up(number) for number in guarantee.quoted[1:] if number]
    needed = (*numbers, guarantee.protects, *guarantee.conditions)
    return next((each for each in needed if each not in statement), None)


def _short(value: object) -> str:
    words = str(value)
    return words if len(words) <= 80 else f"{words[:80]}..."


def _check_training(document: Mapping[str, Any], guarantee: Guarantee) -> list[Finding]:
    """The epsilon of the training that is described; of a selection it is one of many."""
    training = document["training"]
    if training is None:
        return []
    try:
        loss = DPSGD(
            **{name: training[name] for name in _OF_THE_PRICE if name != "relation"},
            relation=NeighboringRelation[training.get("relation", guarantee.relation.name)],
        ).loss()
        fits = training["clip_norm"] is None or training["clip_norm"] > 0
    except (KeyError, TypeError, ValueError) as error:
        text = f"its parameters are none of a training ({_short(error)})"
        return [Finding("contradicts", "training", text)]
    if not fits or loss.relation is not guarantee.relation:
        text = "its clipping norm or its relation is none of this mechanism"
        return [Finding("contradicts", "training", text)]
    if loss in guarantee.losses:
        return [Finding("agrees", "training", "its parameters are those of the mechanism")]
    if any(isinstance(each, SampledSGDLoss) for each in guarantee.losses):
        text = f"it is a {_short(loss)}, and the mechanism has no such part"
        return [Finding("contradicts", "training", text)]
    claim, delta = document["promise"]["epsilon"], document["promise"]["delta"]
    event = event_of(Guarantee("one training", guarantee.unit, (loss,)))
    found = recomputed(event, loss.relation, delta, claim)[0]
    text = (
        f"one training with these parameters costs epsilon {found.epsilon:.6g} at delta = "
        f"{delta:g} by {found.how}, and {claim:.6g} is stated for the whole"
    )
    above = found.epsilon > claim * (1 + TOLERANCE)
    below: Outcome = "agrees" if found.bound == "none" else "not recomputed"
    return [Finding("contradicts" if above else below, "training", text)]


def _check_epsilon(document: Mapping[str, Any], guarantee: Guarantee) -> list[Finding]:
    promise = document["promise"]
    claim, delta = promise["epsilon"], promise["delta"]
    findings = [
        _compared(found, claim, delta)
        for found in recomputed(event_of(guarantee), guarantee.relation, delta, claim)
    ]
    if not findings:
        text = "there are more steps than are recomputed here"
        findings.append(Finding("not recomputed", "epsilon", text))
    losses = dict.fromkeys(guarantee.losses)
    if findings and 0 < claim < 1e9:
        findings.append(Finding("agrees", "mu", _in_mu(guarantee, claim, delta)))
    selections = [each for each in losses if isinstance(each, SelectionLoss)]
    findings += [_check_selection(loss) for loss in selections[:MOST_PARTS]]
    if len(losses) <= MOST_PARTS and claim < guarantee.quoted[0] * (1 - TOLERANCE):
        text = f"{claim:.6g} is stated, and this package has {guarantee.quoted[0]:.6g}"
        findings.append(Finding("contradicts", "epsilon", text))
    return findings


def _in_mu(guarantee: Guarantee, epsilon: float, delta: float) -> str:
    if guarantee.mu is not None:
        return f"{rounded_up(guarantee.mu)}-Gaussian differential privacy is stated"
    if delta == 0:
        return f"{rounded_up(pure_dp_mu(epsilon))}-Gaussian differential privacy follows"
    mu = rounded_up(gaussian_mu(epsilon, delta))
    return f"a Gaussian mechanism with this epsilon at this delta has mu = {mu}"


def _compared(result: Recomputed, claim: float, delta: float) -> Finding:
    at, found = f"at delta = {delta:g}", result.epsilon
    text = f"{claim:.6g} is stated {at}; recomputed {found:.6g} by {result.how}"
    if result.bound == "lower" and claim >= found * (1 - TOLERANCE):
        return Finding("not recomputed", "epsilon", f"{text}, and all of them cost more")
    if result.bound == "upper":
        if claim > found * (1 + TOLERANCE):
            return Finding("contradicts", "epsilon", f"{text}, which it may not exceed")
        if claim >= found * (1 - TOLERANCE):
            return Finding("agrees", "epsilon", text)
        return Finding("not recomputed", "epsilon", f"{text}, which cannot confirm a smaller one")
    outcome: Outcome = "agrees" if abs(found - claim) <= TOLERANCE * claim else "contradicts"
    return Finding(outcome, "epsilon", text)


def _check_selection(loss: SelectionLoss) -> Finding:
    """Recompute a selection's epsilon by this package; no other bound is as small."""
    selection = Selection(TrialNumber(loss.mean, loss.shape))
    base: BaseProfile = selection.profile(loss.mu, loss.delta)
    found = selection.epsilon(base, loss.delta)
    how = (
        f"this package for the best of {loss.mean:g} trials expected (shape {loss.shape:g}); the "
        "proof is in botorch_dp/privacy/selection.py"
    )
    finding = _compared(Recomputed(found, "none", how), loss.epsilon, loss.delta)
    return Finding(finding.outcome, "selection", finding.text)


def _check_ledger(document: Mapping[str, Any], guarantee: Guarantee) -> list[Finding]:
    """Whether the budget covers the promise, and the line was charged for it."""
    ledger = document["ledger"]
    if ledger is None:
        text = "no ledger is named, so other releases from the same records are not bounded here"
        return [Finding("condition", "ledger", text)]
    try:
        budget = PrivacyBudget(ledger["epsilon"], ledger["delta"])
    except ValueError as error:
        return [Finding("contradicts", "ledger", f"its budget is none ({_short(error)})")]
    charge, wrong = ledger["charge"], []
    if ledger["relation"] not in (None, guarantee.relation.name):
        wrong.append("it is under another relation")
    many = len(set(guarantee.losses)) > MOST_PARTS
    if not many and guarantee.epsilon(budget.delta) > budget.epsilon * (1 + _ROUNDING):
        wrong.append(f"the budget for all releases {budget} is smaller than this guarantee")
    if charge is not None:
        over = charge["epsilon"] > budget.epsilon * (1 + _ROUNDING)
        if over or charge["delta"] > budget.delta * (1 + _ROUNDING):
            wrong.append("the charge exceeds the budget")
        cost = charge["epsilon"], charge["delta"], charge["mu"]
        if not many and not pays(cost, guarantee, budget):
            wrong.append(f"line {charge['number']} was charged less than this guarantee costs")
    line = "no single line" if charge is None else f"line {charge['number']}"
    text = f"{line} of a ledger whose budget for all releases together is {budget}; ask to see it"
    return [Finding("contradicts", "ledger", each) for each in wrong] or [
        Finding("condition", "ledger", text)
    ]


def _check_audit(document: Mapping[str, Any], guarantee: Guarantee) -> list[Finding]:
    audit = document["audit"]
    if audit is None:
        return []
    bound, delta = audit["lower_bound"], audit["delta"]
    text = (
        f"an audit with {audit['samples']:,} draws found epsilon >= {rounded_down(bound)} at "
        f"delta = {delta:g}"
    )
    if not (0 <= delta < 1 and 0 < audit["confidence"] < 1 <= audit["samples"] and bound >= 0):
        return [Finding("contradicts", "audit", f"{text}, which no audit can")]
    if len(set(guarantee.losses)) > MOST_PARTS:
        return [Finding("not recomputed", "audit", text)]
    epsilon = guarantee.epsilon(delta)
    if bound > epsilon:
        return [Finding("contradicts", "audit", f"{text}, above the stated {epsilon:.4g} there")]
    return [Finding("agrees", "audit", f"{text}, not above {rounded_up(epsilon)}, as it says")]


def _check_dates(document: Mapping[str, Any]) -> list[Finding]:
    """Days are days, none of them to come, and the charge is made before the receipt."""
    charge = (document["ledger"] or {}).get("charge") or {}
    released = document["released"]["date"]
    try:
        days = [date.fromisoformat(each) for each in (charge.get("date", released), released)]
    except ValueError:
        return [Finding("contradicts", "date", "it is no date such as 2026-01-31")]
    if days != sorted(days) or days[-1] > datetime.now(UTC).date() + timedelta(days=1):
        text = f"{days[-1]} is to come, or before the day of the charge"
        return [Finding("contradicts", "date", text)]
    return [Finding("condition", "date", f"written on {released}, as the sender says")]


def _words(document: Mapping[str, Any]) -> list[Finding]:
    """The statements of the sender that nothing in the receipt confirms."""
    promise, settings = document["promise"], document["settings"]
    says = "as the sender words it"
    note = f" ({settings['note']})" if settings["note"] else ""
    origin = settings["origin"]
    said = "" if origin == "not stated" else "as the sender says, "
    scale = document["released"]["noise_scale"]
    facts = {k: v for k, v in (document["training"] or {}).items() if k not in _OF_THE_PRICE}
    told = [
        ("who is protected", f"{promise['protects']}, {says}"),
        ("name", f"{document['mechanism']['name']}, {says}"),
        ("settings", f"{said}{ORIGINS[origin]}{note}"),
        *(
            []
            if scale is None
            else [("noise", f"of scale {rounded_up(scale)}, as the sender says")]
        ),
        *((f"training: {name}", f"{value}, as the sender says") for name, value in facts.items()),
        *(("condition", each) for each in promise["conditions"]),
        *(("assumption", each) for each in promise["assumptions"]),
    ]
    return [Finding("condition", subject, text) for subject, text in told]
