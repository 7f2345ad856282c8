"""``ledger``, ``calibrate``, ``epsilon``: what was spent and what it costs."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from botorch_dp.cli.arguments import count, file_kind, positive, probability


def add_commands(commands: Any) -> None:
    """Add the commands of this module to the command line."""
    ledger = commands.add_parser("ledger", help="look into a privacy ledger")
    actions = ledger.add_subparsers(dest="action", metavar="ACTION", required=True)
    show = actions.add_parser("show", help="budget, spendings and all charges")
    show.add_argument("path", type=Path, metavar="FILE")
    show.add_argument("--json", action="store_true", help="for programs")
    show.set_defaults(run=_show)

    calibrate = commands.add_parser(
        "calibrate",
        help="the noise for a target epsilon",
        description="How much noise a mechanism needs for a target epsilon, under the neighbouring "
        "relation that is named beside it.",
    )
    kinds = calibrate.add_subparsers(dest="kind", metavar="MECHANISM", required=True)
    for kind, about in (
        ("laplace", "l1 sensitivity, pure epsilon"),
        ("gaussian", "l2 sensitivity, exact (epsilon, delta)"),
    ):
        one = kinds.add_parser(kind, help=about)
        one.add_argument("--sensitivity", type=positive, required=True)
        one.add_argument("--epsilon", type=positive, required=True)
        if kind == "gaussian":
            one.add_argument("--delta", type=probability, required=True)
        one.add_argument("--json", action="store_true", help="for programs")
        one.set_defaults(run=_calibrate_additive)
    dp_sgd = kinds.add_parser("dp-sgd", help="noise multiplier of DP-SGD and DP-Adam")
    dp_sgd.add_argument("--epsilon", type=positive, required=True)
    dp_sgd.add_argument("--delta", type=probability, required=True)
    dp_sgd.add_argument("--records", type=count, required=True, help="training records")
    dp_sgd.add_argument("--batch", type=count, required=True, help="records in a batch")
    dp_sgd.add_argument("--epochs", type=count, required=True)
    dp_sgd.add_argument("--json", action="store_true", help="for programs")
    dp_sgd.set_defaults(run=_calibrate_dp_sgd)

    epsilon = commands.add_parser(
        "epsilon",
        help="the epsilon of a run",
        description="What a run costs, for every way to draw batches and every relation.",
    )
    kinds = epsilon.add_subparsers(dest="kind", metavar="MECHANISM", required=True)
    dp_sgd = kinds.add_parser("dp-sgd", help="epsilon of DP-SGD and DP-Adam")
    dp_sgd.add_argument(
        "--noise",
        type=positive,
        required=True,
        help="standard deviation of the noise on a batch's summed gradients over the clipping norm "
        "(Opacus's noise_multiplier)",
    )
    dp_sgd.add_argument("--records", type=count, required=True, help="training records")
    dp_sgd.add_argument("--batch", type=count, required=True, help="records in a batch")
    dp_sgd.add_argument("--epochs", type=count, required=True)
    dp_sgd.add_argument("--delta", type=probability, default=1e-5, help="default: 1e-5")
    dp_sgd.add_argument("--json", action="store_true", help="for programs")
    dp_sgd.set_defaults(run=_epsilon_dp_sgd)


def _show(options: argparse.Namespace) -> int:
    if not options.path.exists():
        raise ValueError(f"There is no ledger at {options.path}.")
    if file_kind(options.path) == "study":
        raise ValueError(f"{options.path} is a study; `botorch-dp report {options.path}` shows it.")
    from botorch_dp.privacy import PrivacyLedger, rounded_up

    with PrivacyLedger(options.path) as ledger:
        budget, entries, summary = ledger.budget, ledger.entries(), ledger.summary()
        balance, relation = ledger.balance(), ledger.relation
        spent, remaining = ledger.spent(), ledger.remaining()
    if options.json:
        report = {
            "budget": {"epsilon": budget.epsilon, "delta": budget.delta, "summed": budget.share},
            "relation": None if relation is None else relation.name,
            "spent": spent,
            "remaining": remaining,
            "balance": None if balance is None else asdict(balance),
            "entries": [
                {**asdict(entry), "guarantee": entry.guarantee.to_dict()} for entry in entries
            ],
        }
        print(json.dumps(report, indent=1))
        return 0
    print(f"{relation.name if relation else 'The first charge fixes the relation.'}")
    print("\n".join(summary))
    print(f"\n{'no.':>4}  {'charged at (UTC)':<24}  {'cost':<28}  what")
    for entry in entries:
        cost = [f"epsilon {rounded_up(entry.epsilon)}"] if entry.epsilon else []
        cost += [f"delta {rounded_up(entry.delta, 2)}"] if entry.delta else []
        cost += [f"mu {rounded_up(entry.mu)}"] if entry.mu else []
        what = entry.label or entry.guarantee.mechanism
        print(f"{entry.number:>4}  {entry.charged_at[:23]:<24}  {', '.join(cost):<28}  {what}")
    return 0


def _calibrate_additive(options: argparse.Namespace) -> int:
    from botorch_dp.privacy import gaussian_mechanism, laplace_mechanism, rounded_up

    level = {"sensitivity": options.sensitivity, "epsilon": options.epsilon}
    if options.kind == "laplace":
        release, name = laplace_mechanism(0.0, **level), "scale of the Laplace noise"
    else:
        release = gaussian_mechanism(0.0, **level, delta=options.delta)
        name = "standard deviation of the Gaussian noise"
    guarantee, noise = release.guarantee, release.scale
    assert noise is not None  # additive noise has one
    if options.json:
        report = {"noise": noise, "mu": guarantee.mu, "guarantee": guarantee.to_dict()}
        print(json.dumps(report))
        return 0
    print(f"{name}: {rounded_up(noise, 6)}")
    print(guarantee)
    print(
        "The sensitivity must be the one under this relation: what one replaced record can change "
        "is up to twice what one added record can."
    )
    return 0


def _ways(options: argparse.Namespace) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """Each way to draw batches with each relation: in words, and as arguments of the accounting."""
    steps = options.epochs * (options.records // options.batch)
    if steps < 1:
        raise ValueError(f"--batch {options.batch} is more than the {options.records} records.")
    from botorch_dp.privacy import NeighboringRelation

    replace, add = NeighboringRelation.REPLACE_ONE, NeighboringRelation.ADD_OR_REMOVE_ONE
    run = {"batch_size": options.batch, "num_records": options.records, "steps": steps}
    return [
        (
            {"sampling": sampling, "relation": words},
            {**run, "delta": options.delta, "sampling": sampling, "relation": relation},
        )
        for sampling, relation, words in (
            ("poisson", replace, "replace one record"),
            ("poisson", add, "add or remove one record"),
            ("without_replacement", replace, "replace one record"),
        )
    ]


_BATCHES = {"poisson": "Poisson (a coin each)", "without_replacement": "of fixed size"}


def _print_ways(rows: list[dict[str, Any]], column: str, numbers: list[str]) -> None:
    """One line for each way to draw batches and each relation, with a number of its own."""
    print(f"{'batches':<23}{'protected against':<26}{column:>17}")
    for row, number in zip(rows, numbers, strict=True):
        batches, relation = _BATCHES[row["sampling"]], row["relation"]
        print(f"{batches:<23}{relation:<26}{number:>17}")


def _calibrate_dp_sgd(options: argparse.Namespace) -> int:
    ways = _ways(options)
    from botorch_dp.privacy import dp_sgd_noise_multiplier, rounded_up

    steps, rows = ways[0][1]["steps"], []
    for words, run in ways:
        multiplier = dp_sgd_noise_multiplier(epsilon=options.epsilon, **run)
        rows.append({**words, "noise_multiplier": multiplier})
    if options.json:
        print(json.dumps({"steps": steps, "calibrations": rows}, indent=1))
        return 0
    print(f"{steps} steps, (epsilon, delta) = ({options.epsilon!r}, {options.delta!r})\n")
    _print_ways(rows, "noise_multiplier", [rounded_up(row["noise_multiplier"]) for row in rows])
    print(
        "\nnoise_multiplier is the standard deviation of the noise on the summed gradients over "
        "the\nclipping norm, as in Opacus. Epsilons of different relations are not comparable."
    )
    return 0


def _epsilon_dp_sgd(options: argparse.Namespace) -> int:
    ways = _ways(options)
    from botorch_dp.privacy import dp_sgd_epsilon, rounded_up

    steps, rows = ways[0][1]["steps"], []
    for words, run in ways:
        epsilon = dp_sgd_epsilon(noise_multiplier=options.noise, **run)
        rows.append({**words, "epsilon": epsilon})
    if options.json:
        print(json.dumps({"steps": steps, "delta": options.delta, "epsilons": rows}, indent=1))
        return 0
    print(f"{steps} steps, noise of {options.noise!r} x clip, delta = {options.delta!r}\n")
    _print_ways(rows, "epsilon", [rounded_up(row["epsilon"]) for row in rows])
    print(
        "\nEpsilons of different relations are not comparable. If your data loader shuffles and "
        "then goes\nthrough all records, none of these values applies."
    )
    return 0
