"""``report`` and ``dashboard``: a study or a ledger to look at in a browser."""

from __future__ import annotations

import argparse
import os
import secrets
from pathlib import Path
from typing import Any

from botorch_dp.cli.arguments import (
    TOKEN_VARIABLE,
    check_extra,
    check_folder,
    count,
    file_kind,
)
from botorch_dp.cli.fronts import add_problem_options, check_task, load_problem


def add_commands(commands: Any) -> None:
    """Add the commands of this module to the command line."""
    report = commands.add_parser(
        "report",
        help="a study or a ledger as one HTML file",
        description="Write one HTML file that needs no network: of a study its front, what to "
        "deploy within each epsilon, and what publishing it costs; of a ledger what was spent on "
        "what, and what is left. It is sensitive and readable by its owner only. The study may be "
        "running.",
    )
    report.add_argument("path", type=Path, metavar="FILE", help="of a study or a ledger")
    report.add_argument("--out", type=Path, metavar="HTML", help="default: its name with .html")
    report.add_argument(
        "--csv", type=Path, metavar="CSV", help="write a study's trials into this file instead"
    )
    report.add_argument(
        "--ledger",
        type=Path,
        metavar="FILE",
        help="what a study with a budget was charged to; default: the one beside its file",
    )
    report.add_argument(
        "--task",
        metavar="TASK",
        help="the study's problem, as for `pareto`: recommendations may then be configurations "
        "that were never tried",
    )
    add_problem_options(report)
    report.set_defaults(run=_report)

    dashboard = commands.add_parser(
        "dashboard",
        help="the report of a running study, live",
        description="Serve the report of a study on the loopback interface while it runs; the "
        "page follows the study. The study's file is only read. The token is read from "
        f"{TOKEN_VARIABLE}, or drawn and printed.",
    )
    dashboard.add_argument("path", type=Path, metavar="FILE", help="of a study")
    dashboard.add_argument("--port", type=count, default=8766, help="default: 8766")
    dashboard.set_defaults(run=_dashboard)


def _kind(path: Path) -> str:
    """Whether it is a study or a ledger, without loading anything."""
    kind = file_kind(path)
    if not kind:
        raise ValueError(f"{path} is neither a study nor a ledger.")
    return kind


def _report(options: argparse.Namespace) -> int:
    if options.out is not None and options.out.suffix.lower() not in (".html", ".htm"):
        raise ValueError(f"--out must end in .html, got {options.out.name}.")
    kind = _kind(options.path)
    out: Path = options.out or Path(options.path.name).with_suffix(".html")
    check_folder("--out", out)
    check_folder("--csv", options.csv)
    if options.csv is not None:
        if kind == "ledger" or options.out or options.task or options.ledger:
            raise ValueError("--csv goes with a study, without --out, --task and --ledger.")
        from botorch_dp.report import StudyView, trials_csv

        print(trials_csv(StudyView.of_file(options.path), options.csv))
        return 0
    check_extra("report", "bokeh")
    if options.task is None and (options.data or options.replicates):
        raise ValueError("--data and --replicates belong to a --task.")
    if options.ledger is not None and _kind(options.ledger) != "ledger":
        raise ValueError(f"--ledger: {options.ledger} is a study.")
    if kind == "ledger":
        if options.task is not None or options.ledger is not None:
            raise ValueError(f"{options.path} is a ledger, which has no --task and no --ledger.")
        from botorch_dp.report import ledger_report

        print(ledger_report(options.path, out))
        return 0
    if options.task is not None:
        check_task(options)
    from botorch_dp.report import StudyView, study_report

    problem = None if options.task is None else load_problem(options)
    print(study_report(StudyView.of_file(options.path, problem, ledger=options.ledger), out))
    return 0


def _dashboard(options: argparse.Namespace) -> int:
    if _kind(options.path) != "study":
        raise ValueError(f"{options.path} is a ledger; `botorch-dp report` shows one.")
    check_extra("report", "bokeh")
    check_extra("service", "starlette", "uvicorn")
    from botorch_dp.report import serve_dashboard

    token = os.environ.get(TOKEN_VARIABLE) or secrets.token_urlsafe(24)
    print(f"http://127.0.0.1:{options.port}/?token={token} (Ctrl-C ends it)", flush=True)
    serve_dashboard(options.path, token=token, port=options.port)
    return 0
