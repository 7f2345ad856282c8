"""The command line, ``botorch-dp`` or ``python -m botorch_dp``: exit codes and one-line errors.

0: done. 1: could not be done, or a receipt contradicts itself. 2: wrong arguments, or a file to
verify that is no receipt. 130: interrupted (Ctrl-C).
"""

from __future__ import annotations

import argparse
import getpass
import json
import math
import sys
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from botorch_dp import __version__

_WAYS = (
    ("poisson", "REPLACE_ONE"),
    ("poisson", "ADD_OR_REMOVE_ONE"),
    ("without_replacement", "REPLACE_ONE"),
)


def parser() -> argparse.ArgumentParser:
    """The complete command line."""
    top = argparse.ArgumentParser(
        prog="botorch-dp", description="Differentially private tuning and training."
    )
    top.add_argument("--version", action="version", version=f"%(prog)s {__version__}")
    commands = top.add_subparsers(dest="command", metavar="COMMAND", required=True)

    epsilon = commands.add_parser("epsilon", help="compute the epsilon, or the noise, of DP-SGD")
    given = epsilon.add_mutually_exclusive_group(required=True)
    given.add_argument("--noise-multiplier", type=float, help="noise over the clipping norm")
    given.add_argument("--epsilon", type=float, help="find the noise multiplier for this epsilon")
    epsilon.add_argument(
        "--num-records", type=int, required=True, help="number of training records"
    )
    epsilon.add_argument("--batch-size", type=int, required=True, help="expected batch size")
    epsilon.add_argument("--epochs", type=int, required=True, help="passes over the records")
    epsilon.add_argument("--delta", type=float, default=1e-5, help="delta (default: 1e-5)")
    epsilon.add_argument("--json", action="store_true", help="print JSON")
    epsilon.set_defaults(run=_epsilon)

    suggest = commands.add_parser("suggest", help="show default settings for an epsilon, and why")
    suggest.add_argument(
        "--num-records", type=int, required=True, help="number of training records"
    )
    suggest.add_argument("--num-features", type=int, required=True, help="number of features")
    suggest.add_argument("--epsilon", type=float, required=True, help="target epsilon")
    suggest.add_argument("--delta", type=float, default=1e-5, help="delta (default: 1e-5)")
    suggest.add_argument(
        "--num-outputs", type=int, default=1, help="classes or outputs (default: 1)"
    )
    suggest.add_argument("--hidden", type=int, nargs="+", default=[], help="hidden layer widths")
    suggest.add_argument(
        "--feature-norm",
        type=lambda given: given if given == "private" else float(given),
        metavar="R",
        help="public root mean square norm of a record's features; or 'private', to find it "
        "within epsilon (tables only)",
    )
    suggest.add_argument("--regression", action="store_true", help="targets of about unit size")
    suggest.set_defaults(run=_suggest)

    verify = commands.add_parser(
        "verify", help="check a receipt; the exit code is 0 if nothing contradicts"
    )
    verify.add_argument("receipt", type=Path, help="a JSON file")
    verify.add_argument("--artifact", type=Path, help="released file: .pt, .json, .npy or other")
    verify.add_argument("--public-key", type=Path, help="PEM file of the signer's public key")
    verify.add_argument("--registry", action="store_true", help="print an entry for the registry")
    verify.set_defaults(run=_verify)

    sign = commands.add_parser("sign", help="sign a receipt with an Ed25519 key of your own")
    sign.add_argument("receipt", type=Path, help="a JSON file")
    sign.add_argument("--key", type=Path, required=True, help="PEM file of your private key")
    sign.add_argument("--out", type=Path, help="file to write (default: overwrite the receipt)")
    sign.add_argument("--password", action="store_true", help="ask for the key's password")
    sign.set_defaults(run=_sign)

    ledger = commands.add_parser("ledger", help="create or show a privacy ledger")
    actions = ledger.add_subparsers(dest="action", metavar="ACTION", required=True)
    create = actions.add_parser("create", help="create a ledger with this budget")
    create.add_argument("path", type=Path, metavar="FILE")
    create.add_argument("--epsilon", type=float, required=True, help="total epsilon")
    create.add_argument("--delta", type=float, default=0.0, help="total delta (default: 0)")
    create.add_argument("--summed", type=float, help="share without Gaussian noise, 0 to 1")
    create.add_argument("--renyi", action="store_true", help="Rényi accounting, for DP-SGD")
    create.set_defaults(run=_ledger_create)
    show = actions.add_parser("show", help="show what is spent, what is left, and all charges")
    show.add_argument("path", type=Path, metavar="FILE")
    show.set_defaults(run=_ledger_show)

    report = commands.add_parser("report", help="write a stored study as one HTML page, sensitive")
    report.add_argument("path", type=Path, metavar="FILE", help="the study's file")
    report.add_argument("--out", type=Path, metavar="HTML", help="default: its name with .html")
    report.add_argument("--ledger", type=Path, help="its ledger (default: the one beside it)")
    report.set_defaults(run=_report)
    return top


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code."""
    options = parser().parse_args(arguments)
    try:
        return int(options.run(options))
    except KeyboardInterrupt:
        print("botorch-dp: interrupted", file=sys.stderr)
        return 130
    except (ValueError, RuntimeError, OSError, ImportError) as error:
        from botorch_dp._checks import printable

        print(f"botorch-dp: error: {' '.join(printable(error).split())}", file=sys.stderr)
        return 2 if options.command == "verify" and not isinstance(error, ImportError) else 1


def _epsilon(options: argparse.Namespace) -> int:
    import botorch_dp.privacy as privacy
    from botorch_dp.privacy.rounding import rounded_up

    steps = options.epochs * (options.num_records // options.batch_size)
    run = {"batch_size": options.batch_size, "num_records": options.num_records, "steps": steps}
    column = "epsilon" if options.epsilon is None else "noise_multiplier"
    rows: list[dict[str, Any]] = []
    for sampling, name in _WAYS:
        relation = privacy.NeighboringRelation[name]
        how = {**run, "delta": options.delta, "sampling": sampling, "relation": relation}
        if options.epsilon is None:
            found = privacy.dp_sgd_epsilon(noise_multiplier=options.noise_multiplier, **how)
        else:
            found = privacy.dp_sgd_noise_multiplier(epsilon=options.epsilon, **how)
        rows.append({"sampling": sampling, "relation": name, column: found})
    if options.json:
        print(json.dumps({"steps": steps, "delta": options.delta, f"{column}s": rows}, indent=1))
        return 0
    asked = f"epsilon {options.epsilon}" if options.epsilon else f"noise {options.noise_multiplier}"
    print(f"{steps} steps, {asked}, delta {options.delta}\n")
    print(f"{'batches':<21}{'protected against':<19}{column:>16}")
    for row in rows:
        print(f"{row['sampling']:<21}{row['relation']:<19}{rounded_up(row[column]):>16}")
    print(
        "\nThe noise multiplier is over the clipping norm, as in Opacus. Epsilons of different "
        "relations are\nnot comparable. If your data loader shuffles and then goes through all "
        "records, no line applies."
    )
    return 0


def _suggest(options: argparse.Namespace) -> int:
    from botorch_dp.training import suggest_settings
    from botorch_dp.training.ranges import RangesPlan

    widths = [options.num_features, *options.hidden, options.num_outputs]
    norm = options.feature_norm
    if norm == "private":
        if options.epsilon is None:
            raise ValueError("`--feature-norm private` needs `--epsilon`: it is found within it.")
        norm = math.sqrt(options.num_features)
        found = RangesPlan.within(options.num_records, 1, options.epsilon, options.delta)
        print(f"The norm of a record, by fit(feature_norm='private'). {found}")
        print(
            f"Until then a norm of {norm:.3g} is assumed; the settings that depend on it will "
            "change."
        )
    print(
        suggest_settings(
            num_records=options.num_records,
            num_features=options.num_features,
            epsilon=options.epsilon,
            delta=options.delta,
            num_outputs=options.num_outputs,
            num_parameters=sum((a + 1) * b for a, b in pairwise(widths)),
            layers=len(widths) - 1,
            feature_norm=norm,
            regression=options.regression,
        )
    )
    return 0


def _verify(options: argparse.Namespace) -> int:
    from botorch_dp.privacy import Receipt

    receipt = Receipt.load(options.receipt)
    verification = receipt.verify(options.artifact, public_key=options.public_key)
    if options.registry and verification.passes:
        print(json.dumps(receipt.registry(), indent=1))
    else:
        print(receipt, verification, sep="\n\n")
    return 0 if verification.passes else 1


def _sign(options: argparse.Namespace) -> int:
    from botorch_dp.privacy import Receipt

    password = getpass.getpass().encode() if options.password else None
    Receipt.load(options.receipt).signed(options.key, password=password).save(
        options.out or options.receipt
    )
    return 0


def _ledger_create(options: argparse.Namespace) -> int:
    from botorch_dp.privacy import PrivacyBudget, PrivacyLedger

    if options.path.exists():
        raise ValueError(f"{options.path} exists already.")
    budget = PrivacyBudget(
        options.epsilon, options.delta, summed=options.summed, renyi=options.renyi
    )
    PrivacyLedger(options.path, budget).close()
    return 0


def _ledger_show(options: argparse.Namespace) -> int:
    from botorch_dp.privacy import PrivacyLedger

    with PrivacyLedger(options.path) as ledger:
        print(ledger)
    return 0


def _report(options: argparse.Namespace) -> int:
    from botorch_dp.report import study_report

    out = options.out or Path(options.path.name).with_suffix(".html")
    print(study_report(options.path, out, ledger=options.ledger))
    return 0
