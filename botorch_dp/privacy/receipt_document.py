"""The JSON document of a receipt: its sections, what follows from a guarantee, its canonical form.

``docs/guides/reviewer.md`` explains every field.
"""

from __future__ import annotations

import hashlib
import json
import platform
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Literal

from botorch_dp.errors import PrivacyError
from botorch_dp.privacy.audit import AuditReport
from botorch_dp.privacy.budget import Compartments, PrivacyBudget, stated_cost
from botorch_dp.privacy.digests import digest_of, kind_of
from botorch_dp.privacy.events import event_of, leaves
from botorch_dp.privacy.guarantee import Guarantee
from botorch_dp.privacy.ledger import LedgerSnapshot, PrivacyLedger
from botorch_dp.privacy.losses import Cost, NeighboringRelation

SCHEMA, VERSION = "botorch_dp receipt", 1

#: How the settings of a mechanism came about.
Origin = Literal[
    "not stated",
    "fixed beforehand",
    "default rule",
    "private selection",
    "public copy",
    "seeded trials",
]
ORIGINS: dict[str, str] = {
    "not stated": "nobody stated how the settings were chosen: ask, because choosing settings "
    "on the same records is not covered by epsilon",
    "fixed beforehand": "the settings were chosen without the protected records",
    "default rule": "the settings follow from public numbers by the default rule of this package",
    "private selection": "the settings were chosen among random ones by the mechanism itself, and "
    "epsilon includes that",
    "public copy": "the settings were tuned on public records",
    "seeded trials": "the settings were tuned on the protected records by trials without a "
    "guarantee: epsilon does not include what the settings reveal",
}

#: Sections and the types of their fields. `charge` is a section of `ledger`.
_NUMBER = int | float
_CHARGED = dict.fromkeys(("epsilon", "delta"), _NUMBER)
FORMS: dict[str, dict[str, Any]] = {
    "released": {"kind": str, "digest": str | None, "date": str, "noise_scale": _NUMBER | None},
    "promise": {
        **_CHARGED,
        **dict.fromkeys(("status", "protects", "relation", "neighbours", "statement"), str),
        **dict.fromkeys(("conditions", "assumptions"), list),
    },
    "mechanism": {"name": str, "losses": list, "event": dict, "noise_unit": str},
    "settings": {"origin": str, "note": str},
    "ledger": {**_CHARGED, "relation": str | None, "charge": dict | None},
    "charge": {"number": int, "date": str, "label": str, **_CHARGED, "mu": _NUMBER},
    "audit": {"samples": int, **dict.fromkeys(("lower_bound", "delta", "confidence"), _NUMBER)},
    "accounting": {"accountant": str, "proof": str},
    "signature": dict.fromkeys(("algorithm", "public_key", "value"), str),
}
SECTIONS = {"schema", "version", "training", "software", "digest", *FORMS} - {"charge"}
NOISE_UNITS = {
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

#: Two epsilons agree within this, relatively.
TOLERANCE = 0.01
#: What is recomputed: beyond these numbers nothing is hidden, or all is, and it would take minutes.
_MOST_STEPS, _LEAST_NOISE, _MOST_NOISE = 10**7, 1e-3, 1e9


_SOFTWARE = ("botorch_dp", "torch", "numpy", "scipy", "opendp", "opacus", "dp-accounting")


# --- Making a document. ---


def new_document(
    guarantee: Guarantee,
    *,
    artifact: object,
    noise_scale: float | None,
    training: Mapping[str, Any] | None,
    settings: Mapping[str, str],
    ledger: PrivacyLedger | LedgerSnapshot | None,
    audit: AuditReport | None,
) -> dict[str, Any]:
    """The document of a release that is made today, unsigned; see :meth:`Receipt.of`."""
    stated = artifact is not None
    document: dict[str, Any] = {
        "schema": SCHEMA,
        "version": VERSION,
        "released": {
            "kind": kind_of(artifact) if stated else "not stated",
            "digest": digest_of(artifact) if stated else None,
            "date": datetime.now(UTC).date().isoformat(),
            "noise_scale": noise_scale,
        },
        "promise": promise_section(guarantee),
        "mechanism": mechanism_section(guarantee),
        "training": None if training is None else dict(training),
        "settings": dict(settings),
        "ledger": None if ledger is None else _ledger_section(ledger, guarantee),
        "audit": audit and {name: getattr(audit, name) for name in FORMS["audit"]},
        "accounting": accounting_section(guarantee),
        "software": {
            "python": platform.python_version(),
            **{name: installed_version(name) for name in _SOFTWARE},
        },
        "signature": None,
    }
    return {**document, "digest": document_digest(document)}


def promise_section(guarantee: Guarantee) -> dict[str, Any]:
    """The guarantee in numbers and in words."""
    epsilon, delta = guarantee.quoted
    return {
        "status": guarantee.status,
        "epsilon": epsilon,
        "delta": delta,
        "protects": guarantee.protects,
        "relation": guarantee.relation.name,
        "neighbours": guarantee.unit.neighbours,
        "conditions": list(guarantee.unit.conditions),
        "assumptions": list(guarantee.assumptions),
        "statement": guarantee.paragraph(),
    }


def mechanism_section(guarantee: Guarantee) -> dict[str, Any]:
    """What made the value: its losses, and the same as an event of dp-accounting."""
    return {
        "name": guarantee.mechanism,
        "losses": [loss.to_dict() for loss in guarantee.losses],
        "event": event_of(guarantee),
        "noise_unit": NOISE_UNITS[guarantee.relation],
    }


def accounting_section(guarantee: Guarantee) -> dict[str, str]:
    """By what epsilon was computed, and where the proofs are."""
    return {
        "accountant": "botorch_dp, privacy-loss distributions and closed forms",
        "proof": "; ".join(dict.fromkeys(_PROOFS[loss.kind] for loss in guarantee.losses)),
    }


def _ledger_section(ledger: PrivacyLedger | LedgerSnapshot, guarantee: Guarantee) -> dict[str, Any]:
    """The budget, and the last charge with this guarantee, or of this mechanism and for no less."""
    entries, budget, relation = ledger.entries(), ledger.budget, ledger.relation
    same = [entry for entry in entries if entry.guarantee == guarantee]
    alike = [
        entry
        for entry in entries
        if entry.guarantee.mechanism == guarantee.mechanism and pays(entry.cost, guarantee, budget)
    ]
    charge = None
    for entry in (same or alike)[-1:]:
        charge = {name: getattr(entry, name) for name in FORMS["charge"]}
    return {
        "epsilon": budget.epsilon,
        "delta": budget.delta,
        "relation": None if relation is None else relation.name,
        "charge": charge,
    }


def installed_version(name: str) -> str | None:
    """The version of an installed package; None if there is none."""
    if name == "botorch_dp":
        from botorch_dp import __version__

        return __version__
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def canonical(document: Mapping[str, Any]) -> str:
    """The one text that stands for a document, and is signed."""
    return json.dumps(document, sort_keys=True, separators=(",", ":"), allow_nan=False)


def document_digest(document: Mapping[str, Any]) -> str:
    """Of everything but the digest itself and the signature."""
    content = {k: v for k, v in document.items() if k not in ("digest", "signature")}
    return f"sha256:{hashlib.sha256(canonical(content).encode('ascii')).hexdigest()}"


def pays(charged: Cost, guarantee: Guarantee, budget: PrivacyBudget) -> bool:
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


# --- Reading one. ---


def parse(text: str) -> dict[str, Any]:
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


def check_document(document: dict[str, Any]) -> None:
    """Raise ``ValueError`` unless the document has the form of a receipt of this version.

    What the fields say is compared by :meth:`Receipt.verify`.
    """
    if (document.get("schema"), document.get("version")) != (SCHEMA, VERSION):
        raise ValueError(f"its `schema` and `version` are not {SCHEMA!r} and {VERSION}")
    if set(document) != SECTIONS:
        raise ValueError(f"it must have exactly the sections {', '.join(sorted(SECTIONS))}")
    ledger = document["ledger"]
    for name, form in FORMS.items():
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
    if document["settings"]["origin"] not in ORIGINS:
        raise ValueError(f"`origin` must be one of {sorted(ORIGINS)}")
    for part, count in leaves(event_of(guarantee_of(document))):
        noise = part.get("event", part).get("noise_multiplier", 1.0)
        if count > _MOST_STEPS or not _LEAST_NOISE <= noise <= _MOST_NOISE:
            raise ValueError("its steps or its noise are out of range")


def guarantee_of(document: Mapping[str, Any]) -> Guarantee:
    """The guarantee that a document states."""
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
