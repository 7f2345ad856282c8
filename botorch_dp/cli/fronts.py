"""``tasks``, ``pareto`` and ``recommend``: fronts of ready or own problems."""

from __future__ import annotations

import argparse
import ast
import importlib
import importlib.util
import inspect
import json
import multiprocessing
import os
import sys
import warnings
from concurrent.futures import Executor, ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

from botorch_dp._checks import did_you_mean
from botorch_dp.cli.arguments import (
    check_extra,
    check_figure,
    check_folder,
    count,
    positive,
    whole,
)

if TYPE_CHECKING:
    from botorch_dp.pareto import DPareto, ParetoFront, PrivacyUtilityProblem
    from botorch_dp.privacy import PrivacyBudget, PrivacyLedger

#: How long a Dask scheduler may take to answer.
_DASK_SECONDS = 20

TASK_HELP = """a ready task (`botorch-dp tasks` lists them), or MODULE:NAME of your own
PrivacyUtilityProblem, or of a function that returns one; MODULE is looked up from here"""


def add_commands(commands: Any) -> None:
    """Add the commands of this module to the command line."""
    tasks = commands.add_parser("tasks", help="list the ready problems")
    tasks.add_argument("--json", action="store_true", help="for programs")
    tasks.set_defaults(run=_tasks)

    pareto = commands.add_parser(
        "pareto",
        help="find the privacy-utility front of a problem",
        description="Train with well-chosen hyper-parameters and print the Pareto front of "
        "epsilon and error. The front is computed from the records: it is sensitive.",
    )
    add_problem_arguments(pareto)
    pareto.add_argument(
        "--trials", type=count, default=40, help="trials of the whole study (default: 40)"
    )
    pareto.add_argument(
        "--initial", type=count, help="of them drawn at random (default: 16; 4 with --curves)"
    )
    pareto.add_argument("--workers", type=count, default=1, help="trainings at a time (default: 1)")
    places = pareto.add_mutually_exclusive_group()
    places.add_argument(
        "--threads", action="store_true", help="workers are threads instead of processes"
    )
    places.add_argument(
        "--dask",
        metavar="ADDRESS",
        help="train on a Dask cluster, such as tcp://10.0.0.1:8786; --workers trainings at a time",
    )
    places.add_argument(
        "--ray",
        metavar="ADDRESS",
        help="train on a Ray cluster: auto, or such as ray://10.0.0.1:10001",
    )
    pareto.add_argument(
        "--storage",
        type=Path,
        help="file that keeps the study; an existing one is continued",
    )
    pareto.add_argument(
        "--training-timeout",
        type=positive,
        metavar="SECONDS",
        help="after which one training is ended and its trial has failed (not with --threads)",
    )
    pareto.add_argument(
        "--budget",
        type=positive,
        nargs=2,
        metavar=("EPSILON", "DELTA"),
        help="train with secret noise and charge every training, kept beside --storage, so that "
        "the front may be published at this price",
    )
    pareto.add_argument("--seed", type=whole, help="makes the study repeatable")
    pareto.add_argument(
        "--acquisition",
        default="ehvi",
        choices=["ehvi", "hvpoi", "log_hvpoi", "qlogehvi", "random", "grid"],
        help="how configurations are chosen (default: ehvi)",
    )
    pareto.add_argument(
        "--privacy-model",
        default="exact",
        choices=["exact", "gp"],
        help="whether epsilon is computed for every candidate or modelled (default: exact)",
    )
    pareto.add_argument(
        "--epsilon-scale",
        default="linear",
        choices=["linear", "log"],
        help="whether hypervolume is improved in epsilon or in its logarithm (default: linear)",
    )
    pareto.add_argument(
        "--candidates",
        type=count,
        default=2048,
        help="space-filling candidates for each proposal (default: 2048)",
    )
    pareto.add_argument(
        "--retries",
        type=whole,
        default=1,
        help="how often a trial that failed is trained again (default: 1)",
    )
    pareto.add_argument(
        "--timeout",
        type=positive,
        metavar="SECONDS",
        help="start no more trainings after so many seconds; run again to go on",
    )
    pareto.add_argument(
        "--reevaluate",
        type=count,
        metavar="K",
        help="train the front's configurations K times again with fresh seeds: the honest front",
    )
    pareto.add_argument(
        "--expected",
        action="store_true",
        help="the front that models expect of the trials, without the luck of those observed; with "
        "--reevaluate, this one is trained again",
    )
    pareto.add_argument("--plot", type=Path, metavar="PNG", help="draw the front into a file")
    pareto.add_argument("--csv", type=Path, metavar="CSV", help="write all trials into a file")
    pareto.add_argument("--quiet", action="store_true", help="no progress bar")
    pareto.add_argument("--json", action="store_true", help="print the front for programs")
    pareto.set_defaults(run=_pareto)

    recommend = commands.add_parser(
        "recommend",
        help="the configuration to deploy within an epsilon",
        description="The configuration of a finished study's problem that is expected to be most "
        "accurate within EPSILON, tried or not. Epsilon is exact; the error is a prediction and "
        "sensitive.",
    )
    add_problem_arguments(recommend)
    recommend.add_argument("--storage", type=Path, required=True, help="file of the study")
    recommend.add_argument(
        "--epsilon", type=positive, required=True, help="largest epsilon allowed"
    )
    recommend.add_argument("--json", action="store_true", help="for programs")
    recommend.set_defaults(run=_recommend)


def add_problem_arguments(parser: argparse.ArgumentParser) -> None:
    """The problem, and the settings of a ready one."""
    parser.add_argument("task", metavar="TASK", help=TASK_HELP)
    add_problem_options(parser)


def add_problem_options(parser: argparse.ArgumentParser) -> None:
    """The settings of a ready task."""
    parser.add_argument("--data", help="data set of a ready task, such as breast_cancer or digits")
    parser.add_argument(
        "--replicates", type=count, help="trainings that one trial averages, for a ready task"
    )
    parser.add_argument(
        "--curves",
        action="store_true",
        help="measure utility along each training, where a ready task can: more points for less",
    )
    parser.add_argument(
        "--engine",
        choices=["auto", "fused", "ghost", "per_record", "opacus"],
        help="what computes clipped gradients, where a ready task trains by DP-SGD or DP-Adam "
        "(default: auto, the fastest of ours; opacus is Opacus)",
    )


def ready_tasks() -> dict[str, Any]:
    """Functions of :mod:`botorch_dp.tasks` that make a problem, by name."""
    from botorch_dp import tasks

    return {name: getattr(tasks, name) for name in tasks.READY}


def _tasks(options: argparse.Namespace) -> int:
    from botorch_dp import tasks

    # Their docstrings are read rather than imported, so that the list appears at once.
    files = [ast.parse(file.read_text()) for file in Path(tasks.__file__).parent.glob("*.py")]
    functions = [node for file in files for node in file.body if isinstance(node, ast.FunctionDef)]
    about = {node.name: (ast.get_docstring(node) or "").split("\n")[0] for node in functions}
    rows = [
        {"name": name, "data": list(data), "about": about[name]}
        for name, data in tasks.READY.items()
    ]
    if options.json:
        print(json.dumps(rows, indent=1))
        return 0
    for row in rows:
        choices = f" (--data {'|'.join(row['data'])})" if row["data"] else ""
        print(f"{row['name']}{choices}\n    {row['about']}")
    return 0


def check_task(options: argparse.Namespace) -> None:
    """Refuse a misspelt task, module or data set before anything heavy is loaded."""
    from botorch_dp.tasks import READY

    module, colon, _ = options.task.partition(":")
    if colon:
        if os.getcwd() not in sys.path:
            sys.path.insert(0, os.getcwd())
        if importlib.util.find_spec(module.partition(".")[0] or "?") is None:
            raise ValueError(f"Cannot load {options.task!r}: there is no module {module!r} here.")
    elif options.task not in READY:
        raise ValueError(
            f"There is no task {options.task!r}.{did_you_mean(options.task, READY)} Ready are "
            f"{', '.join(READY)}; your own is named MODULE:NAME."
        )
    elif (
        options.curves and "curves" not in inspect.signature(ready_tasks()[options.task]).parameters
    ):
        raise ValueError(f"Task {options.task!r} has no --curves: it is measured at the end only.")
    elif (
        options.engine is not None
        and "engine" not in inspect.signature(ready_tasks()[options.task]).parameters
    ):
        raise ValueError(f"Task {options.task!r} has no --engine: it clips no gradients.")
    elif options.data is not None:
        choices = READY[options.task]
        if not choices:
            raise ValueError(f"Task {options.task!r} has no --data.")
        if options.data not in choices:
            raise ValueError(
                f"--data of {options.task} must be {' or '.join(choices)}, got {options.data!r}."
                f"{did_you_mean(options.data, choices)}"
            )


def load_problem(options: argparse.Namespace) -> PrivacyUtilityProblem:
    """The ready or own problem that the arguments name."""
    check_task(options)
    settings = {
        key: value
        for key, value in (
            ("data", options.data),
            ("replicates", options.replicates),
            ("engine", options.engine),
        )
        if value is not None
    }
    if options.curves:
        settings["curves"] = True
    if _has_budget(options):
        settings["publish"] = True
    if ":" not in options.task:
        task = ready_tasks()[options.task]
        if "publish" in settings and "publish" not in inspect.signature(task).parameters:
            raise ValueError(f"Task {options.task!r} has only seeded trainings, so no --budget.")
        return task(**settings)
    module, _, name = options.task.partition(":")
    try:
        problem = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise ValueError(f"Cannot load {options.task!r}: {error}.") from error
    from botorch_dp.pareto import PrivacyUtilityProblem

    if callable(problem) and not isinstance(problem, PrivacyUtilityProblem):
        problem = problem(**settings)
    if not isinstance(problem, PrivacyUtilityProblem):
        raise ValueError(
            f"{options.task!r} is a {type(problem).__name__}, not a PrivacyUtilityProblem."
        )
    return problem


def _has_budget(options: argparse.Namespace) -> bool:
    """Whether a study's trainings are charged: it has a budget, or began with one."""
    if getattr(options, "budget", None) is not None:
        return True
    storage = getattr(options, "storage", None)
    return storage is not None and Path(f"{storage}.ledger").exists()


def _budget(options: argparse.Namespace) -> PrivacyBudget | PrivacyLedger | None:
    """The budget that was asked for, or the ledger of a study that began with one."""
    from botorch_dp.privacy import PrivacyBudget, PrivacyLedger

    if getattr(options, "budget", None) is not None:
        return PrivacyBudget(*options.budget)
    return PrivacyLedger(f"{options.storage}.ledger") if _has_budget(options) else None


def _pareto(options: argparse.Namespace) -> int:
    check_folder("--storage", options.storage)
    check_figure("--plot", options.plot)
    check_folder("--csv", options.csv)
    if options.dask is not None:
        check_extra("dask", "distributed")
    if options.ray is not None:
        check_extra("ray", "ray")
    problem = load_problem(options)
    from botorch_dp.pareto import DPareto

    with (
        warnings.catch_warnings(record=True) as caught,
        DPareto(
            problem,
            acquisition=options.acquisition,
            storage=options.storage,
            seed=options.seed,
            privacy_model=options.privacy_model,
            epsilon_scale=options.epsilon_scale,
            retries=options.retries,
            candidates=options.candidates,
            budget=_budget(options),
        ) as study,
    ):
        warnings.simplefilter("once", UserWarning)
        front = _run(study, options)
        if options.expected:
            front = front.shrunken or front
        interrupted = study.last_run == "interrupted"
        if options.reevaluate and not interrupted:
            front = front.reevaluate(options.reevaluate, progress=not options.quiet)
        _report(front, options, len(study.trials))
        if options.csv is not None:
            from botorch_dp.report import StudyView, trials_csv

            trials_csv(StudyView(problem, study.trials, study.seed), options.csv)
    for warning in caught:
        print(f"botorch-dp: warning: {warning.message}", file=sys.stderr)
    return 130 if interrupted else 0


def _run(study: DPareto, options: argparse.Namespace) -> ParetoFront:
    executor: Any = None
    client: Any = nullcontext()
    if options.dask is not None:
        from distributed import Client

        client = Client(options.dask, timeout=_DASK_SECONDS)
        # A second attempt is not answered by what came of the first one; the study counts retries.
        executor = client.get_executor(pure=False, retries=0)
    elif options.ray is not None:
        from botorch_dp.integrations.ray import RayExecutor

        executor = RayExecutor(options.ray)
    elif options.workers > 1:

        def executor() -> Executor:
            if options.threads:
                return ThreadPoolExecutor(options.workers)
            # Started afresh rather than forked: this process has threads by now.
            context = multiprocessing.get_context("spawn")
            return ProcessPoolExecutor(options.workers, mp_context=context)

    with client:
        return study.run(
            options.trials,
            initial=options.initial,
            batch_size=options.workers,
            executor=executor,
            progress=not options.quiet,
            timeout=options.timeout,
            training_timeout=options.training_timeout,
        )


def _report(front: ParetoFront, options: argparse.Namespace, trials: int) -> None:
    if options.plot is not None:
        from botorch_dp.plots import save_figure

        save_figure(front.plot(), options.plot)
    if options.json:
        report = {
            "problem": front.problem.name,
            "trials": trials,
            "hypervolume": front.hypervolume(),
            "front": front.table(),
            "guarantee": None if front.problem.promise is None else front.guarantee.to_dict(),
            "caption": front.caption,
        }
        print(json.dumps(report, indent=1, default=str))
        return
    print(front)
    print(f"\nHypervolume {front.hypervolume():.4f} at {front.problem.ref_point}, {trials} trials.")
    if options.plot is not None:
        print(f"Figure: {options.plot}")
    if options.storage is not None:
        print(f"Study: {options.storage} (run again with more --trials to go on)")


def _recommend(options: argparse.Namespace) -> int:
    if not options.storage.exists():
        raise ValueError(f"There is no study at {options.storage}; `botorch-dp pareto` makes one.")
    problem = load_problem(options)
    from dataclasses import asdict

    from botorch_dp.report import StudyView

    # Of a copy, so that it may be asked while the study runs.
    view = StudyView.of_file(options.storage, problem)
    assert view.recommend is not None
    point = view.recommend(options.epsilon)
    print(json.dumps(asdict(point), indent=1) if options.json else point)
    return 0
