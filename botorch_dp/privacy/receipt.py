"""One JSON document for one release, from which a stranger can check what is promised.

A receipt names what was released by a digest (:mod:`.digests`), whom it protects against what and
on which conditions, the mechanism as an event of dp-accounting (:mod:`.events`), epsilon and delta,
how the settings came about, the line of the ledger, and the versions of the software. It holds no
record, no hash of records, and no score that was not released. Its date is a day: the hour at which
a run ended could tell how many trainings it made.

:meth:`Receipt.verify` derives everything that follows from the losses and the conditions once more
(status, statement, event, proof, price, what a ledger charges) and compares it with the document.
It also recomputes epsilon with dp-accounting alone. What nobody can derive, such as whom it
protects, is shown as the sender's words. A receipt holds a digest of itself, which shows accidents;
whoever alters a receipt on purpose can write a new digest. What contradicts itself is found even
then; a consistent lie, such as a condition dropped everywhere, is found by a signature only.

``docs/guides/reviewer.md`` explains every field.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import platform
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, fields
from datetime import UTC, date, datetime, timedelta
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Literal

from botorch_dp._checks import check_choice, check_path, needs_extra, printable
from botorch_dp._files import atomic_write
from botorch_dp.errors import PrivacyError
from botorch_dp.privacy.accounting import DPSGD
from botorch_dp.privacy.audit import AuditReport
from botorch_dp.privacy.budget import Compartments, PrivacyBudget, stated_cost
from botorch_dp.privacy.digests import digest_of, digests_of, kind_of
from botorch_dp.privacy.events import (
    MOST_PARTS,
    Recomputed,
    event_of,
    leaves,
    recomputed,
)
from botorch_dp.privacy.guarantee import Guarantee, Release
from botorch_dp.privacy.ledger import LedgerSnapshot, PrivacyLedger
from botorch_dp.privacy.losses import Cost, NeighboringRelation, SampledSGDLoss, SelectionLoss
from botorch_dp.privacy.pld.gaussian import gaussian_mu, pure_dp_mu
from botorch_dp.privacy.rounding import rounded_down, rounded_up
from botorch_dp.privacy.selection import BaseProfile, Selection, TrialNumber

SCHEMA, VERSION = "botorch_dp receipt", 1

#: How the settings of a mechanism came about.
Origin = Literal[
    "not stated",
    "fixed beforehand",
    "default rule",
    "paid selection",
    "public copy",
    "seeded trials",
]
_ORIGINS: dict[str, str] = {
    "not stated": "nobody stated how the settings were chosen: ask, because choosing settings "
    "on the same records is not covered by epsilon",
    "fixed beforehand": "the settings were chosen without the protected records",
    "default rule": "the settings follow from public numbers by the default rule of this package",
    "paid selection": "the settings were chosen among random ones by the mechanism itself, and "
    "epsilon includes that",
    "public copy": "the settings were tuned on public records",
    "seeded trials": "the settings were tuned on the protected records by trials that promise "
    "nothing: what the settings reveal is not counted",
}

#: Sections and the types of their fields. `charge` is a section of `ledger`.
_FORMS: dict[str, dict[str, Any]] = {
    "released": {"kind": str, "digest": str | None, "date": str, "noise_scale": int | float | None},
    "promise": {
        "status": str,
        "epsilon": int | float,
        "delta": int | float,
        "protects": str,
        "relation": str,
        "neighbours": str,
        "conditions": list,
        "assumptions": list,
        "statement": str,
    },
    "mechanism": {"name": str, "losses": list, "event": dict, "noise_unit": str},
    "settings": {"origin": str, "note": str},
    "ledger": {
        "epsilon": int | float,
        "delta": int | float,
        "relation": str | None,
        "charge": dict | None,
    },
    "charge": {
        "number": int,
        "date": str,
        "label": str,
        "epsilon": int | float,
        "delta": int | float,
        "mu": int | float,
    },
    "audit": {
        "lower_bound": int | float,
        "delta": int | float,
        "confidence": int | float,
        "samples": int,
    },
    "accounting": {"accountant": str, "proof": str},
    "signature": {"algorithm": str, "public_key": str, "value": str},
}
_SECTIONS = {"schema", "version", "training", "software", "digest", *_FORMS} - {"charge"}
#: Fields that another version of this package may word differently.
_WORDS = {"statement", "noise_unit", "accountant", "proof"}
#: Facts of a training that epsilon follows from.
_OF_THE_PRICE = tuple(field.name for field in fields(DPSGD))
_SOFTWARE = ("torch", "numpy", "scipy", "opendp", "opacus", "dp-accounting")

_NOISE_UNITS = {
    NeighboringRelation.REPLACE_ONE: "noise_multiplier is over C, the largest norm of one record's "
    "contribution, which a replaced record moves by 2 C, as in dp-accounting's PLDAccountant under "
    "REPLACE_ONE; inside SampledWithoutReplacementDpEvent and RepeatAndSelectDpEvent it is over "
    "2 C, as in its RdpAccountant; in `losses` it is over the clipping norm C",
    NeighboringRelation.ADD_OR_REMOVE_ONE: "noise_multiplier is over C, the largest norm of one "
    "record's contribution, which an added or removed record moves by C",
    NeighboringRelation.BOUNDED_ROW: "noise_multiplier is over the distance by which the row moves",
}
_PROOFS = {
    "poisson_sgd": "botorch_dp/privacy/pld/distributions.py: the pair that dominates a step on a "
    "Poisson-sampled batch; Zhu, Dong and Wang (2022) for composition",
    "fixed_batch_sgd": "botorch_dp/privacy/pld/distributions.py: the profile of a step on a batch "
    "of fixed size; Balle, Barthe and Gaboardi (2018), Zhu, Dong and Wang (2022)",
    "selection": "botorch_dp/privacy/selection.py: profile bound for the best of a secret number "
    "of outcomes; Papernot and Steinke (2022) for an upper bound",
    "gaussian": "Gaussian differential privacy; Dong, Roth and Su (2022)",
    "laplace": "the Laplace mechanism; Dwork, McSherry, Nissim and Smith (2006)",
    "pure": "the mechanism's own proof of a pure epsilon, in the documentation of botorch_dp",
    "approximate": "the mechanism's own proof of (epsilon, delta), in the documentation of "
    "botorch_dp",
}

#: Two epsilons agree within this, relatively; rounding alone makes up the smaller one.
TOLERANCE, _ROUNDING = 0.01, 1e-6
_LARGEST_FILE = 2**22
#: What is recomputed: beyond these numbers nothing is hidden, or all is, and it would take minutes.
_MOST_STEPS, _LEAST_NOISE, _MOST_NOISE = 10**7, 1e-3, 1e9

Outcome = Literal["agrees", "within tolerance", "condition", "not recomputed", "contradicts"]


@dataclass(frozen=True)
class Finding:
    """One line of what verifying a receipt found.

    Args:
        outcome: ``"agrees"``, ``"within tolerance"``, ``"condition"`` (the reader must believe it),
            ``"not recomputed"`` or ``"contradicts"``.
        subject: What was looked at, in a word.
        text: What was found, in a sentence.
    """

    outcome: Outcome
    subject: str
    text: str

    def __str__(self) -> str:
        return printable(f"{self.outcome:>16}  {self.subject}: {self.text}")


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


@dataclass(frozen=True)
class Receipt:
    """What one release promises, in a document that a stranger can check.

    Made by ``release.receipt()``, :meth:`of` or :meth:`load`. Receipts compare and pickle.

    Args:
        text: The document as canonical JSON; use :meth:`of` or :meth:`load`.

    Example:
        >>> release = laplace_mechanism(0.25, sensitivity=0.01, epsilon=1.0)
        >>> receipt = release.receipt(settings="fixed beforehand")
        >>> receipt.epsilon, receipt.verify(artifact=release.value).passes
        (1.0, True)
    """

    text: str

    def __post_init__(self) -> None:
        document = _parsed(self.text)
        _check_document(document)
        if _canonical(document) != self.text:
            raise ValueError("A receipt's text is canonical JSON: use `Receipt.load` for a file.")

    @classmethod
    def of(
        cls,
        released: Release[Any] | Guarantee,
        *,
        artifact: object = None,
        training: Mapping[str, Any] | None = None,
        settings: Origin = "not stated",
        note: str = "",
        ledger: PrivacyLedger | LedgerSnapshot | None = None,
        audit: AuditReport | None = None,
    ) -> Receipt:
        """The receipt of a release, or of a guarantee alone.

        Args:
            released: What was released; of a guarantee give the ``artifact``, too.
            artifact: What was released, where it is not the release's value as it stands: see
                :mod:`.digests` for what has a canonical form.
            training: Public parameters of a training.
            settings: How the settings came about; ``"fixed beforehand"`` only if you know it.
            note: More about that, in public words.
            ledger: What the release was charged to: the receipt has its budget, and the last line
                with this guarantee, or of this mechanism and for no less.
            audit: Of the mechanism, if one was run.

        Raises:
            PrivacyError: If nothing is promised, because the noise was simulated or for any other
                reason.
        """
        if isinstance(released, Release):
            guarantee, scale = released.guarantee, released.scale
            made = released.digest
            if made is not None and digest_of(released.value) != made:
                raise PrivacyError(
                    f"This {kind_of(released.value)} was changed since it was made, such as by "
                    "further training or a merge of its layers, and nothing is promised for what "
                    "it is now. Make the receipt before you change it, or change a copy."
                )
            artifact = released.value if artifact is None else artifact
        else:
            guarantee, scale = released, None
        check_choice("settings", settings, tuple(_ORIGINS))
        if guarantee.void is not None:
            raise PrivacyError(
                f"A receipt is for what is promised, and here nothing is ({guarantee.void}): run "
                "it with secret noise first."
            )
        epsilon, delta = guarantee.quoted
        if not math.isfinite(epsilon):
            raise PrivacyError(
                f"No epsilon holds at delta = {delta:g}: quote the guarantee at a larger delta "
                "with `quoted_at`."
            )
        document: dict[str, Any] = {
            "schema": SCHEMA,
            "version": VERSION,
            "released": {
                "kind": "not stated" if artifact is None else kind_of(artifact),
                "digest": None if artifact is None else digest_of(artifact),
                "date": datetime.now(UTC).date().isoformat(),
                "noise_scale": scale,
            },
            "promise": _promise(guarantee),
            "mechanism": _mechanism(guarantee),
            "training": None if training is None else dict(training),
            "settings": {"origin": settings, "note": note},
            "ledger": None if ledger is None else _ledger(ledger, guarantee),
            "audit": None
            if audit is None
            else {name: getattr(audit, name) for name in _FORMS["audit"]},
            "accounting": _accounting(guarantee),
            "software": {
                "python": platform.python_version(),
                **{name: _version(name) for name in ("botorch_dp", *_SOFTWARE)},
            },
            "signature": None,
        }
        return cls(_canonical({**document, "digest": _digest(document)}))

    @property
    def document(self) -> dict[str, Any]:
        """The document, as a copy."""
        return _parsed(self.text)

    @property
    def guarantee(self) -> Guarantee:
        """The guarantee that the receipt states."""
        return _guarantee(self.document)

    @property
    def epsilon(self) -> float:
        """The epsilon that the receipt states."""
        return float(self.document["promise"]["epsilon"])

    @property
    def delta(self) -> float:
        """The delta that the receipt states."""
        return float(self.document["promise"]["delta"])

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the document, laid out to be read; it is public."""
        with atomic_write(check_path("path", path)) as file:
            file.write(json.dumps(self.document, indent=1, sort_keys=True) + "\n")

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Receipt:
        """Read a document; nothing in it is executed.

        Raises:
            ValueError: If it is no receipt of this version.
        """
        file = Path(check_path("path", path))
        if not file.is_file():
            raise ValueError(f"There is no file {file}.")
        if file.stat().st_size > _LARGEST_FILE:
            raise ValueError(f"{file} is too large to be a receipt.")
        try:
            return cls(_canonical(_parsed(file.read_bytes().decode())))
        except (ValueError, RecursionError) as error:
            reason = " ".join(str(error).split())[:300]
            raise ValueError(f"{file} is no receipt that can be checked: {reason}") from None

    def signed(self, key: str | os.PathLike[str], *, password: bytes | None = None) -> Receipt:
        """The same receipt with a signature (Ed25519).

        Args:
            key: A PEM file with a private key of your own, as made by ``openssl genpkey -algorithm
                ed25519 -out key.pem``.
            password: Of the file, if it has one.
        """
        with needs_extra("signing", "Signing a receipt"):
            from cryptography.hazmat.primitives import serialization
            from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
        try:
            content = Path(check_path("key", key)).read_bytes()
            private = serialization.load_pem_private_key(content, password)
        except (OSError, ValueError, TypeError) as error:
            raise ValueError(f"`key` cannot be read as a PEM private key: {error}") from error
        if not isinstance(private, Ed25519PrivateKey):
            raise ValueError("`key` must be an Ed25519 key.")
        document = {**self.document, "signature": None}
        signature = {
            "algorithm": "Ed25519",
            "public_key": private.public_key().public_bytes_raw().hex(),
            "value": private.sign(_canonical(document).encode("ascii")).hex(),
        }
        return Receipt(_canonical({**document, "signature": signature}))

    def verify(
        self, artifact: object = None, *, public_key: str | os.PathLike[str] | None = None
    ) -> Verification:
        """Check everything that can be checked, with dp-accounting and without our accounting.

        Args:
            artifact: What was released: the value, or a ``pathlib.Path`` to a file.
            public_key: A PEM file with the public key of whoever must have signed.

        Raises:
            ValueError: If the artifact is not the one that the receipt is of.
        """
        document, guarantee = self.document, self.guarantee
        findings = [*_check_artifact(document, artifact), _check_digest(document)]
        findings.append(_check_signature(document, public_key))
        for check in (_check_derived, _check_training, _check_epsilon, _check_ledger, _check_audit):
            findings += check(document, guarantee)
        return Verification((*findings, *_check_dates(document), *_words(document)))

    def registry(self) -> dict[str, Any]:
        """An entry for the `registry of deployments
        <https://registry.opendp.org/deployments-registry>`_, JSON-ready; what is empty, no receipt
        knows.
        """
        document, guarantee = self.document, self.guarantee
        promise, mechanism = document["promise"], document["mechanism"]
        parameters = {"epsilon": self.epsilon, "delta": self.delta, "mu": guarantee.mu}
        accountant, ledger = document["accounting"]["accountant"], document["ledger"]
        budget = ledger and f"; all releases: epsilon {ledger['epsilon']}, delta {ledger['delta']}"
        return {
            "basic": {
                **dict.fromkeys(("name", "intended_use", "description"), ""),
                "data_curators": [],
                "data_product_type": document["released"]["kind"],
                **dict.fromkeys(("data_product_region", "data_product_sector"), ""),
                "publication_date": document["released"]["date"],
            },
            "dp_variant": {
                "variant_name": "Approximate DP" if self.delta else "Pure DP",
                "data_domain": "",
                "unprotected_quantities": "; ".join(guarantee.conditions),
            },
            "privacy_loss": {
                "privacy_unit": promise["protects"],
                "privacy_unit_details": f"{promise['relation']}: {promise['neighbours']}",
                "privacy_parameters": {k: v for k, v in parameters.items() if v is not None},
                "privacy_parameters_details": promise["statement"],
            },
            "deployment_model": {"model_name": "Central", "actors": "", "release_type": ""},
            "accounting": {
                "post_processing": "",
                "composition": f"{accountant}{budget or ''}",
            },
            "implementation": {
                "preprocessing_and_hyperparameter_tuning": _ORIGINS[document["settings"]["origin"]],
                "mechanisms": f"{mechanism['name']}: {json.dumps(mechanism['event'])}",
                "justification": document["accounting"]["proof"],
            },
        }

    def __str__(self) -> str:
        document = self.document
        released = document["released"]
        digest = released["digest"] or "no digest"
        lines = f"Receipt of a {released['kind']} ({digest}).", document["promise"]["statement"]
        return "\n".join(map(printable, lines))


# --- Making a document. ---


def _promise(guarantee: Guarantee) -> dict[str, Any]:
    epsilon, delta = guarantee.quoted
    return {
        "status": guarantee.status,
        "epsilon": epsilon,
        "delta": delta,
        "protects": guarantee.protects,
        "relation": guarantee.relation.name,
        "neighbours": guarantee.relation.value,
        "conditions": list(guarantee.unit.conditions),
        "assumptions": list(guarantee.assumptions),
        "statement": guarantee.paragraph(),
    }


def _mechanism(guarantee: Guarantee) -> dict[str, Any]:
    return {
        "name": guarantee.mechanism,
        "losses": [loss.to_dict() for loss in guarantee.losses],
        "event": event_of(guarantee),
        "noise_unit": _NOISE_UNITS[guarantee.relation],
    }


def _accounting(guarantee: Guarantee) -> dict[str, str]:
    return {
        "accountant": "botorch_dp, privacy-loss distributions and closed forms",
        "proof": "; ".join(dict.fromkeys(_PROOFS[loss.kind] for loss in guarantee.losses)),
    }


def _ledger(ledger: PrivacyLedger | LedgerSnapshot, guarantee: Guarantee) -> dict[str, Any]:
    entries, budget, relation = ledger.entries(), ledger.budget, ledger.relation
    same = [entry for entry in entries if entry.guarantee == guarantee]
    alike = [
        entry
        for entry in entries
        if entry.guarantee.mechanism == guarantee.mechanism
        and _pays((entry.epsilon, entry.delta, entry.mu), guarantee, budget)
    ]
    charge = None
    for entry in (same or alike)[-1:]:
        charge = {
            "number": entry.number,
            "date": entry.charged_at[:10],
            "label": entry.label,
            "epsilon": entry.epsilon,
            "delta": entry.delta,
            "mu": entry.mu,
        }
    return {
        "epsilon": budget.epsilon,
        "delta": budget.delta,
        "relation": None if relation is None else relation.name,
        "charge": charge,
    }


def _version(name: str) -> str | None:
    if name == "botorch_dp":
        from botorch_dp import __version__

        return __version__
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _canonical(document: Mapping[str, Any]) -> str:
    return json.dumps(document, sort_keys=True, separators=(",", ":"), allow_nan=False)


def _digest(document: Mapping[str, Any]) -> str:
    """Of everything but the digest itself and the signature."""
    content = {k: v for k, v in document.items() if k not in ("digest", "signature")}
    return f"sha256:{hashlib.sha256(_canonical(content).encode('ascii')).hexdigest()}"


# --- Reading one. ---


def _parsed(text: str) -> dict[str, Any]:
    """JSON without names that come twice, and without whole numbers that no double holds."""

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        if len(dict(pairs)) < len(pairs):
            raise ValueError("a name comes twice in one object")
        return dict(pairs)

    def whole(digits: str) -> int:
        if len(digits) > 16:
            raise ValueError(f"the number {digits[:30]} is too large")
        return int(digits)

    document = json.loads(text, object_pairs_hook=unique, parse_int=whole)
    if not isinstance(document, dict):
        raise ValueError("it is no JSON object")
    return document


def _check_document(document: dict[str, Any]) -> None:
    """Raise ``ValueError`` unless the document has the form of a receipt of this version.

    What the fields say is compared by :meth:`Receipt.verify`.
    """
    if (document.get("schema"), document.get("version")) != (SCHEMA, VERSION):
        raise ValueError(f"its `schema` and `version` are not {SCHEMA!r} and {VERSION}")
    if set(document) != _SECTIONS:
        raise ValueError(f"it must have exactly the sections {', '.join(sorted(_SECTIONS))}")
    ledger = document["ledger"]
    for name, form in _FORMS.items():
        section = ledger and ledger["charge"] if name == "charge" else document[name]
        if section is None and name in ("ledger", "charge", "audit", "signature"):
            continue
        if not isinstance(section, dict) or set(section) != set(form):
            raise ValueError(f"`{name}` must have exactly the fields {', '.join(form)}")
        wrong = [field for field, kind in form.items() if not isinstance(section[field], kind)]
        if wrong:
            raise ValueError(f"`{wrong[0]}` of `{name}` has the wrong type")
    for name in ("training", "software"):
        facts = {} if document["training"] is None and name == "training" else document[name]
        if not isinstance(facts, dict) or any(isinstance(x, dict | list) for x in facts.values()):
            raise ValueError(f"`{name}` must have plain values")
    promise = document["promise"]
    if not all(isinstance(x, str) for x in promise["conditions"] + promise["assumptions"]):
        raise ValueError("`conditions` and `assumptions` must be lists of text")
    if document["settings"]["origin"] not in _ORIGINS:
        raise ValueError(f"`origin` must be one of {sorted(_ORIGINS)}")
    for part, count in leaves(event_of(_guarantee(document))):
        noise = part.get("event", part).get("noise_multiplier", 1.0)
        if count > _MOST_STEPS or not _LEAST_NOISE <= noise <= _MOST_NOISE:
            raise ValueError("its steps or its noise are out of range")


def _guarantee(document: Mapping[str, Any]) -> Guarantee:
    promise, mechanism = document["promise"], document["mechanism"]
    state = {
        "mechanism": mechanism["name"],
        "relation": promise["relation"],
        "protects": promise["protects"],
        "conditions": promise["conditions"],
        "losses": mechanism["losses"],
        "assumptions": promise["assumptions"],
        "void": None,
        "quoted_delta": promise["delta"] or None,
    }
    return Guarantee.from_dict(state)


# --- Checking one. ---


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
    if document["digest"] != _digest(document):
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
        content = _canonical({**document, "signature": None}).encode("ascii")
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
    expected = {"mechanism": _mechanism(guarantee), "accounting": _accounting(guarantee)}
    if len(set(guarantee.losses)) > MOST_PARTS:
        text = "the mechanism has more parts than are recomputed here"
        findings.append(Finding("not recomputed", "statement", text))
    else:
        expected["promise"] = _promise(guarantee)
    ours = document["software"].get("botorch_dp") == _version("botorch_dp")
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
    """What a statement in other words must have and lacks."""
    numbers = [f"= {rounded_up(number)}" for number in guarantee.quoted[:1]]
    numbers += [rounded_up(number) for number in guarantee.quoted[1:] if number]
    needed = (*numbers, guarantee.protects, *guarantee.conditions)
    return next((each for each in needed if each not in statement), None)


def _short(value: object) -> str:
    words = str(value)
    return words if len(words) <= 80 else f"{words[:80]}..."


def _check_training(document: Mapping[str, Any], guarantee: Guarantee) -> list[Finding]:
    """Price the training that is described; of a selection it is one of many."""
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
        return f"{rounded_up(guarantee.mu)}-Gaussian differential privacy is promised"
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
    gap = abs(found - claim)
    if gap <= _ROUNDING * claim:
        return Finding("agrees", "epsilon", text)
    if gap <= TOLERANCE * claim:
        return Finding("within tolerance", "epsilon", f"{text} ({gap / claim:.2%} apart)")
    return Finding("contradicts", "epsilon", text)


def _check_selection(loss: SelectionLoss) -> Finding:
    """Our own price: the only one that is as small as what is stated."""
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
    """Whether the budget bears the promise, and the line was charged for it."""
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
        wrong.append(f"the budget for all releases ({budget}) is smaller than this promise")
    if charge is not None:
        over = charge["epsilon"] > budget.epsilon * (1 + _ROUNDING)
        if over or charge["delta"] > budget.delta * (1 + _ROUNDING):
            wrong.append("the charge exceeds the budget")
        cost = charge["epsilon"], charge["delta"], charge["mu"]
        if not many and not _pays(cost, guarantee, budget):
            wrong.append(f"line {charge['number']} was charged less than this promise costs")
    line = "no single line" if charge is None else f"line {charge['number']}"
    text = f"{line} of a ledger whose budget for all releases together is {budget}; ask to see it"
    return [Finding("contradicts", "ledger", each) for each in wrong] or [
        Finding("condition", "ledger", text)
    ]


def _pays(charged: Cost, guarantee: Guarantee, budget: PrivacyBudget) -> bool:
    """Whether a ledger with this budget may have charged this, whatever its shares are."""
    costs = []
    for renyi in (False, True):
        whole = PrivacyBudget(budget.epsilon, budget.delta, renyi=renyi)
        for is_gaussian in (False, True):
            shares = Compartments.by_first_charge(whole, is_gaussian=is_gaussian)
            with suppress(PrivacyError):  # it has no cost of this form
                costs.append(shares.cost_of(guarantee))
    with suppress(ValueError):
        costs.append(stated_cost(guarantee, charged[1]))
    return any(
        all(paid * (1 + TOLERANCE) >= due for paid, due in zip(charged, cost, strict=True))
        for cost in costs
    )


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
        return [Finding("contradicts", "audit", f"{text}, above the promised {epsilon:.4g} there")]
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
    """What is the sender's word, and follows from nothing."""
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
        ("settings", f"{said}{_ORIGINS[origin]}{note}"),
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
