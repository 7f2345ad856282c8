"""``verify`` and ``sign``: receipts that a stranger can check."""

from __future__ import annotations

import argparse
import getpass
import sys
from pathlib import Path
from typing import Any

from botorch_dp._checks import printable
from botorch_dp.cli.arguments import check_extra, check_folder


def add_commands(commands: Any) -> None:
    """Add the commands of this module to the command line."""
    verify = commands.add_parser(
        "verify",
        help="check a receipt",
        description="Recompute epsilon with dp-accounting alone and say line by line what agrees, "
        "what is within 1%, what rests on a condition, and what could not be recomputed. Exit "
        "code 0 if nothing contradicts, 1 if something does, and 2 if the file cannot be read, is "
        "no receipt, or is the receipt of another artifact.",
    )
    verify.add_argument("receipt", type=Path, metavar="RECEIPT", help="a JSON file")
    verify.add_argument(
        "--artifact",
        type=Path,
        metavar="FILE",
        help="what was released: weights (.pt), a configuration or number (.json), an array "
        "(.npy), or any other file",
    )
    verify.add_argument(
        "--public-key", type=Path, metavar="PEM", help="of whoever must have signed the receipt"
    )
    verify.set_defaults(run=_verify)

    sign = commands.add_parser(
        "sign",
        help="sign a receipt",
        description="Sign a receipt with a key of your own (Ed25519), as made by `openssl genpkey "
        "-algorithm ed25519 -out key.pem`; `openssl pkey -in key.pem -pubout` gives the public "
        "key.",
    )
    sign.add_argument("receipt", type=Path, metavar="RECEIPT", help="a JSON file")
    sign.add_argument("--key", type=Path, required=True, metavar="PEM", help="a private key")
    sign.add_argument("--out", type=Path, metavar="FILE", help="default: the receipt itself")
    sign.add_argument("--password", action="store_true", help="ask for the key's password")
    sign.set_defaults(run=_sign)


def _verify(options: argparse.Namespace) -> int:
    check_extra("accounting", "dp_accounting")
    from botorch_dp.privacy import Receipt

    try:
        receipt = Receipt.load(options.receipt)
        verification = receipt.verify(options.artifact, public_key=options.public_key)
    except (OSError, ValueError) as error:
        reason = " ".join(printable(error).split())
        print(f"botorch-dp: error: {reason}", file=sys.stderr)
        return 2
    print(receipt, verification, sep="\n\n")
    return 0 if verification.passes else 1


def _sign(options: argparse.Namespace) -> int:
    check_extra("signing", "cryptography")
    check_folder("--out", options.out)
    from botorch_dp.privacy import Receipt

    password = getpass.getpass().encode() if options.password else None
    signed = Receipt.load(options.receipt).signed(options.key, password=password)
    out = options.out or options.receipt
    signed.save(out)
    print(f"{out}: signed by the key {signed.document['signature']['public_key']}")
    return 0


def write_receipt(receipt: Any, beside: Path, name: str = "receipt") -> Path:
    """Write a receipt beside what it is of: ``model.pt`` gets ``model.receipt.json``."""
    path = beside.with_suffix(f".{name}.json")
    receipt.save(path)
    return path
