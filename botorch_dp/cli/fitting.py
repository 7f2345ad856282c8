"""``fit``: tune, train and publish one model for one epsilon."""

from __future__ import annotations

import argparse
import json
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from botorch_dp.cli.arguments import check_folder, count, positive, probability
from botorch_dp.cli.fronts import TASK_HELP, check_task, load_problem

if TYPE_CHECKING:
    from botorch_dp.tuning import PrivateFit


def add_commands(commands: Any) -> None:
    """Add the command of this module to the command line."""
    fit = commands.add_parser(
        "fit",
        help="tune, train and publish one model for one epsilon",
        description="Train a secret random number of configurations with real noise and publish "
        "the best model, its configuration and its score, all for EPSILON. How many trainings "
        "there were must stay secret, too.",
    )
    fit.add_argument("task", metavar="TASK", help=TASK_HELP)
    fit.add_argument("--data", help="data set of a ready task, such as breast_cancer or digits")
    fit.add_argument("--epsilon", type=positive, required=True, help="of all that is published")
    fit.add_argument("--delta", type=probability, required=True, help="of all that is published")
    fit.add_argument(
        "--trials", type=count, default=20, help="expected number of trainings (default: 20)"
    )
    fit.add_argument(
        "--method",
        default="auto",
        choices=["auto", "random", "single"],
        help="select among random configurations, or train a single one (default: auto, random)",
    )
    fit.add_argument(
        "--test-records",
        default="sensitive",
        choices=["sensitive", "public", "training"],
        help="what scores the models: test records that are protected too, public ones, or the "
        "training records (default: sensitive)",
    )
    fit.add_argument(
        "--test-epsilon", type=positive, help="for sensitive test records (default: EPSILON)"
    )
    fit.add_argument(
        "--plan", action="store_true", help="only say what would be done; reads no record"
    )
    fit.add_argument("--model", type=Path, metavar="FILE", help="where the weights are written to")
    fit.add_argument(
        "--checkpoint", type=Path, help="file that keeps the run; an existing one is continued"
    )
    fit.add_argument("--ledger", type=Path, help="privacy ledger to charge; it must exist")
    fit.add_argument("--workers", type=count, default=1, help="trainings at a time (default: 1)")
    fit.add_argument(
        "--at-least",
        type=positive,
        default=0.0,
        metavar="SECONDS",
        help="hand the model out no earlier, so that time does not tell how many trainings ran",
    )
    fit.add_argument("--quiet", action="store_true", help="no progress line")
    fit.add_argument("--json", action="store_true", help="for programs")
    fit.set_defaults(run=_fit, replicates=None, curves=False, engine=None)


def _fit(options: argparse.Namespace) -> int:
    check_task(options)
    check_folder("--model", options.model)
    check_folder("--checkpoint", options.checkpoint)
    if options.ledger is not None and not options.ledger.exists():
        raise ValueError(f"--ledger: there is no ledger at {options.ledger}.")
    if options.model is None and not options.plan:
        raise ValueError("--model: name a file for the weights, or ask for the --plan only.")
    if options.test_epsilon is not None and options.test_records != "sensitive":
        raise ValueError("--test-epsilon belongs to --test-records sensitive.")
    fit = _private_fit(options)
    if options.plan:
        plan = fit.plan()
        print(json.dumps(_planned(plan), indent=1) if options.json else plan)
        return 0
    import torch

    from botorch_dp._files import atomic_write
    from botorch_dp.privacy import PrivacyLedger

    with ExitStack() as stack:
        ledger = executor = None
        if options.ledger is not None:
            ledger = stack.enter_context(PrivacyLedger(options.ledger))
        if options.workers > 1:
            executor = stack.enter_context(ProcessPoolExecutor(options.workers))
        result = fit.run(
            progress=not options.quiet,
            executor=executor,
            checkpoint=options.checkpoint,
            ledger=ledger,
            at_least=options.at_least,
        )
    with atomic_write(options.model, binary=True) as file:
        torch.save(result.model.value.state_dict(), file)
    published = {
        "config": result.config.value,
        "score": None if result.score is None else result.score.value,
        "model": str(options.model),
    }
    guarantees = {"training records": result.guarantee, "test records": result.test_guarantee}
    if options.json:
        dictionaries = {k: g and g.to_dict() for k, g in guarantees.items()}
        print(json.dumps({**published, "guarantees": dictionaries}, indent=1))
        return 0
    print(f"Model: {options.model}", result, sep="\n")
    return 0


def _private_fit(options: argparse.Namespace) -> PrivateFit:
    problem = load_problem(options)
    from botorch_dp.privacy import PrivacyBudget
    from botorch_dp.tuning import PrivateFit

    test_budget = None
    if options.test_epsilon is not None:
        test_budget = PrivacyBudget(options.test_epsilon, options.delta)
    return PrivateFit(
        problem,
        budget=PrivacyBudget(options.epsilon, options.delta),
        trials=options.trials,
        method=options.method,
        test_records=options.test_records,
        test_budget=test_budget,
    )


def _planned(plan: Any) -> dict[str, Any]:
    return {
        "reason": plan.reason,
        "expected_trainings": plan.expected_trainings,
        "expected_hours": plan.expected_hours,
        "noise_multipliers": plan.noise_multipliers,
        "score_std": plan.score_std,
        "guarantee": plan.guarantee.to_dict(),
        "test_guarantee": plan.test_guarantee and plan.test_guarantee.to_dict(),
    }
