"""fit, suggest: train and publish one model for one epsilon; the settings for it, and why."""

from __future__ import annotations

import argparse
import json
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from botorch_dp.cli.arguments import check_folder, count, positive, probability
from botorch_dp.cli.fronts import TASK_HELP, check_task, load_problem
from botorch_dp.cli.receipts import write_receipt

if TYPE_CHECKING:
    from botorch_dp.training import DPTrainer, TrainingSettings
    from botorch_dp.tuning import PrivateFit

#: Options of a selection among several trainings.
_OF_SELECTION = {
    "method": "--method",
    "test_epsilon": "--test-epsilon",
    "test_records": "--test-records",
    "workers": "--workers",
    "at_least": "--at-least",
}


def add_commands(commands: Any) -> None:
    """Add the commands of this module to the command line."""
    _add_suggest(commands)
    fit = commands.add_parser(
        "fit",
        help="train and publish one model for one epsilon",
        description="Train one model with settings that follow from public numbers, and publish "
        "it for EPSILON. With --trials: train a secret random number of configurations with real "
        "noise and publish the best model, its configuration and its score, all for EPSILON. How "
        "many trainings there were must then stay secret, too.",
    )
    fit.add_argument("task", metavar="TASK", help=TASK_HELP)
    fit.add_argument("--data", help="data set of a ready task, such as breast_cancer or digits")
    fit.add_argument("--epsilon", type=positive, required=True, help="of all that is published")
    fit.add_argument("--delta", type=probability, required=True, help="of all that is published")
    fit.add_argument(
        "--feature-norm",
        type=positive,
        metavar="R",
        help="root mean square norm of a record's features, public (without --trials)",
    )
    fit.add_argument(
        "--trials", type=count, help="select among so many expected trainings, such as 20"
    )
    fit.add_argument(
        "--method",
        choices=["auto", "random", "single"],
        help="with --trials: select among random configurations, or train a single one "
        "(default: auto, random)",
    )
    fit.add_argument(
        "--test-records",
        choices=["sensitive", "public", "training"],
        help="with --trials, what scores the models: test records that are protected too, public "
        "ones, or the training records (default: sensitive)",
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
    fit.add_argument("--workers", type=count, help="trainings at a time (default: 1)")
    fit.add_argument(
        "--at-least",
        type=positive,
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
    if options.trials is None:
        return _fit_untuned(options)
    if options.feature_norm is not None:
        raise ValueError("--feature-norm belongs to a training without --trials.")
    if options.test_epsilon is not None and options.test_records not in (None, "sensitive"):
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
        if (options.workers or 1) > 1:
            executor = stack.enter_context(ProcessPoolExecutor(options.workers))
        result = fit.run(
            progress=not options.quiet,
            executor=executor,
            checkpoint=options.checkpoint,
            ledger=ledger,
            at_least=options.at_least or 0.0,
        )
        with atomic_write(options.model, binary=True) as file:
            torch.save(result.model.value.state_dict(), file)
        receipts = [write_receipt(result.receipt(ledger=ledger), beside=options.model)]
        if result.test_guarantee is not None:
            receipt = result.receipt("test", ledger=ledger)
            receipts.append(write_receipt(receipt, options.model, "test.receipt"))
    published = {
        "config": result.config.value,
        "score": None if result.score is None else result.score.value,
        "model": str(options.model),
        "receipts": list(map(str, receipts)),
    }
    guarantees = {"training records": result.guarantee, "test records": result.test_guarantee}
    if options.json:
        dictionaries = {k: g and g.to_dict() for k, g in guarantees.items()}
        print(json.dumps({**published, "guarantees": dictionaries}, indent=1))
        return 0
    print(f"Model: {options.model}", f"Receipt: {receipts[0]}", result, sep="\n")
    return 0


def _fit_untuned(options: argparse.Namespace) -> int:
    """One training with nothing tuned, published."""
    for name, option in _OF_SELECTION.items():
        if getattr(options, name) is not None:
            raise ValueError(f"{option} belongs to a selection: give --trials, such as 20.")
    problem = load_problem(options)
    if problem.promise is None or problem.promise.trainer is None:
        raise ValueError(f"The problem {problem.name!r} has no trainer that could publish a model.")
    trainer: DPTrainer = problem.promise.trainer().untuned()
    settings: TrainingSettings = {"target_epsilon": options.epsilon, "delta": options.delta}
    if options.feature_norm is not None:
        settings["feature_norm"] = options.feature_norm
    plan = trainer.plan(**settings)
    if options.plan:
        print(json.dumps(plan.to_dict(), indent=1) if options.json else plan)
        return 0
    import torch

    from botorch_dp._files import atomic_write
    from botorch_dp.privacy import PrivacyLedger

    with ExitStack() as stack:
        ledger = None
        if options.ledger is not None:
            ledger = stack.enter_context(PrivacyLedger(options.ledger))
        trained = trainer.fit(
            publish=True,
            ledger=ledger,
            checkpoint=options.checkpoint,
            progress=not options.quiet,
            on_interrupt="raise",
            **settings,
        )
    with atomic_write(options.model, binary=True) as file:
        torch.save(trained.model.state_dict(), file)
    if options.json:
        print(
            json.dumps(
                {
                    "plan": plan.to_dict(),
                    "model": str(options.model),
                    "guarantees": {"training records": trained.guarantee.to_dict()},
                },
                indent=1,
            )
        )
        return 0
    print(f"Model: {options.model}", plan, trained.guarantee, sep="\n")
    return 0


def _add_suggest(commands: Any) -> None:
    suggest = commands.add_parser(
        "suggest",
        help="settings of a training for one epsilon, and why",
        description="Say which settings one training gets from public numbers alone, and why. No "
        "record is read.",
    )
    suggest.add_argument("--records", type=count, required=True, help="training records")
    suggest.add_argument("--features", type=count, required=True, help="numbers in a record")
    suggest.add_argument("--epsilon", type=positive, required=True, help="of the training")
    suggest.add_argument("--delta", type=probability, default=1e-5, help="default: 1e-5")
    suggest.add_argument(
        "--outputs", type=count, default=1, help="scores of a record, such as classes (default: 1)"
    )
    suggest.add_argument(
        "--hidden", type=count, nargs="+", default=[], metavar="WIDTH", help="of hidden layers"
    )
    suggest.add_argument(
        "--feature-norm",
        type=positive,
        metavar="R",
        help="root mean square norm of a record's features, public",
    )
    suggest.add_argument(
        "--regression", action="store_true", help="targets are numbers of about unit size"
    )
    suggest.add_argument("--json", action="store_true", help="for programs")
    suggest.set_defaults(run=_suggest)


def _suggest(options: argparse.Namespace) -> int:
    from botorch_dp.privacy import dp_sgd_noise_multiplier, rounded_up
    from botorch_dp.training import suggest_settings

    widths = [options.features, *options.hidden, options.outputs]
    found = suggest_settings(
        num_records=options.records,
        num_features=options.features,
        epsilon=options.epsilon,
        delta=options.delta,
        num_outputs=options.outputs,
        num_parameters=sum((a + 1) * b for a, b in pairwise(widths)),
        layers=len(widths) - 1,
        feature_norm=options.feature_norm,
        regression=options.regression,
    )
    noise = dp_sgd_noise_multiplier(
        epsilon=options.epsilon,
        delta=options.delta,
        batch_size=found.batch_size,
        num_records=options.records,
        steps=found.epochs * (options.records // found.batch_size),
    )
    settings = {**found.settings, "noise_multiplier": noise}
    if options.json:
        notes = {"reasons": found.reasons, "warnings": found.warnings}
        print(json.dumps({"optimizer": "scale_free", **settings, **notes}, indent=1))
        return 0
    print(
        "optimizer='scale_free', "
        f"learning_rate={found.learning_rate:.4g}, clip_norm={found.clip_norm:.4g},\n"
        f"batch_size={found.batch_size}, epochs={found.epochs}, "
        f"noise_multiplier={rounded_up(noise)}  (Poisson batches, one record replaced)\n"
    )
    print(found)
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
        method=options.method or "auto",
        test_records=options.test_records or "sensitive",
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
