"""One JSON document for one release, from which a stranger can check its guarantee.

A receipt names what was released by a digest (:mod:`.digests`), whom it protects against what and
on which conditions, the mechanism as an event of dp-accounting (:mod:`.events`), epsilon and delta,
how the settings came about, the line of the ledger, and the versions of the software. It holds no
record, no hash of records, and no score that was not released. Its date is a day: the hour at which
a run ended could tell how many trainings it made.

:meth:`Receipt.verify` derives everything that follows from the losses and the conditions once more
(status, statement, event, proof, epsilon, what a ledger charges) and compares it with the document.
It also recomputes epsilon with dp-accounting alone. What nobody can derive, such as whom it
protects, is shown as the sender's words. A receipt holds a digest of itself, which shows accidents;
whoever alters a receipt on purpose can write a new digest. What contradicts itself is found even
then; a consistent lie, such as a condition dropped everywhere, is found by a signature only.

``docs/guides/reviewer.md`` explains every field.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from botorch_dp._checks import check_choice, check_path, needs_extra, printable
from botorch_dp._files import atomic_write
from botorch_dp.errors import PrivacyError
from botorch_dp.privacy.audit import AuditReport
from botorch_dp.privacy.digests import digest_of, kind_of
from botorch_dp.privacy.guarantee import Guarantee, Release
from botorch_dp.privacy.ledger import LedgerSnapshot, PrivacyLedger
from botorch_dp.privacy.receipt_document import (
    ORIGINS,
    Origin,
    canonical,
    check_document,
    guarantee_of,
    new_document,
    parse,
)
from botorch_dp.privacy.verification import Verification, verify

_LARGEST_FILE = 2**22


@dataclass(frozen=True)
class Receipt:
    """The guarantee of one release, in a document that a stranger can check.

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
        document = parse(self.text)
        check_document(document)
        if canonical(document) != self.text:
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
            PrivacyError: If nothing is guaranteed, because the noise was simulated or for any other
                reason.
        """
        value = scale = made = None
        if isinstance(released, Release):
            guarantee, value = released.guarantee, released.value
            scale, made = released.scale, released.digest
        else:
            guarantee = released
        if made is not None and digest_of(value) != made:
            raise PrivacyError(
                f"This {kind_of(value)} was changed since it was made, such as by further "
                "training or a merge of its layers, so the guarantee no longer covers it. Make "
                "the receipt before you change it, or change a copy."
            )
        check_choice("settings", settings, tuple(ORIGINS))
        if guarantee.void is not None:
            raise PrivacyError(
                f"A receipt needs a guarantee, and this release has none ({guarantee.void}): run "
                "it with secret noise first."
            )
        epsilon, delta = guarantee.quoted
        if not math.isfinite(epsilon):
            raise PrivacyError(
                f"No epsilon holds at delta = {delta:g}: quote the guarantee at a larger delta "
                "with `quoted_at`."
            )
        document = new_document(
            guarantee,
            artifact=value if artifact is None else artifact,
            noise_scale=scale,
            training=training,
            settings={"origin": settings, "note": note},
            ledger=ledger,
            audit=audit,
        )
        return cls(canonical(document))

    @property
    def document(self) -> dict[str, Any]:
        """The document, as a copy."""
        return parse(self.text)

    @property
    def guarantee(self) -> Guarantee:
        """The guarantee that the receipt states."""
        return guarantee_of(self.document)

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
            return cls(canonical(parse(file.read_bytes().decode())))
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
            "value": private.sign(canonical(document).encode("ascii")).hex(),
        }
        return Receipt(canonical({**document, "signature": signature}))

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
        return verify(self.document, self.guarantee, artifact, public_key)

    def registry(self) -> dict[str, Any]:
        """An entry for the `registry of deployments
        <https://registry.opendp.org/deployments-registry>`_, JSON-ready, as far as a receipt goes.
        """
        document, guarantee = self.document, self.guarantee
        promise, mechanism = document["promise"], document["mechanism"]
        parameters = {"epsilon": self.epsilon, "delta": self.delta, "mu": guarantee.mu}
        accountant, ledger = document["accounting"]["accountant"], document["ledger"]
        budget = ledger and f"; all releases: epsilon {ledger['epsilon']}, delta {ledger['delta']}"
        return {
            "basic": {
                "data_product_type": document["released"]["kind"],
                "publication_date": document["released"]["date"],
            },
            "dp_variant": {
                "variant_name": "Approximate DP" if self.delta else "Pure DP",
                "unprotected_quantities": "; ".join(guarantee.conditions),
            },
            "privacy_loss": {
                "privacy_unit": promise["protects"],
                "privacy_unit_details": f"{promise['relation']}: {promise['neighbours']}",
                "privacy_parameters": {k: v for k, v in parameters.items() if v is not None},
                "privacy_parameters_details": promise["statement"],
            },
            "deployment_model": {"model_name": "Central"},
            "accounting": {"composition": f"{accountant}{budget or ''}"},
            "implementation": {
                "preprocessing_and_hyperparameter_tuning": ORIGINS[document["settings"]["origin"]],
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
