"""The command line, ``botorch-dp`` or ``python -m botorch_dp``: exit codes and one-line errors.

===  =============================================================================
0    done
1    could not be done; one line on standard error says why (``--debug``: everything)
2    wrong arguments; for ``verify`` also a file that is no receipt
130  interrupted (Ctrl-C); what was finished is kept
===  =============================================================================
"""

from __future__ import annotations

import argparse
import os
import sys
import warnings
from collections.abc import Generator, Sequence

from botorch_dp import __version__
from botorch_dp.cli import fitting, fronts, outsourcing, pricing, receipts, report
from botorch_dp.cli.arguments import Parser

_EPILOG = """examples:
  # what is ready to run
  botorch-dp tasks
  # a front, what to deploy within epsilon = 1, and a page to look at
  botorch-dp pareto adult_logistic_sgd --data breast_cancer --storage study.sqlite
  botorch-dp recommend adult_logistic_sgd --data breast_cancer \\
      --storage study.sqlite --epsilon 1
  botorch-dp report study.sqlite
  # the settings of a training, and why, without reading a record
  botorch-dp suggest --records 50000 --features 120 --epsilon 1
  # the model itself, for epsilon = 1
  botorch-dp fit adult_logistic_adam --data breast_cancer \\
      --epsilon 1 --delta 1e-5 --model model.pt
  # the noise that an epsilon asks for
  botorch-dp calibrate dp-sgd --epsilon 1 --delta 1e-5 --records 50000 \\
      --batch 256 --epochs 10
  # check what somebody else published
  botorch-dp verify model.receipt.json --artifact model.pt
  # what was spent, on what
  botorch-dp ledger show budget.sqlite
"""


class _Help(argparse.RawDescriptionHelpFormatter):
    """Commands and what they do in two columns."""

    def _iter_indented_subactions(
        self, action: argparse.Action
    ) -> Generator[argparse.Action, None, None]:
        # The indentation of commands is not counted where the columns are measured.
        yield from getattr(action, "_choices_actions", ())


def parser() -> Parser:
    """The complete command line."""
    top = Parser(
        prog="botorch-dp",
        description="Differentially private tuning and training.",
        epilog=_EPILOG,
        formatter_class=_Help,
    )
    top.add_argument("--version", action="version", version=f"%(prog)s {__version__}")
    top.add_argument("--debug", action="store_true", help="show tracebacks of errors")
    commands = top.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for module in (fronts, fitting, report, pricing, receipts, outsourcing):
        module.add_commands(commands)
    return top


def _warn(message: Warning | str, *_: object, **__: object) -> None:
    """A warning as people read it: without a file, a line number and a line of code."""
    print(f"botorch-dp: warning: {message}", file=sys.stderr)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code."""
    options = parser().parse_args(arguments)
    try:
        with warnings.catch_warnings():
            warnings.showwarning = _warn
            return int(options.run(options))
    except KeyboardInterrupt:
        print(
            "botorch-dp: interrupted; the same command goes on with what is kept in its file",
            file=sys.stderr,
        )
        return 130
    except BrokenPipeError:
        # The reader went away (`botorch-dp ... | head`): no error, and nothing more to say.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except Exception as error:
        if options.debug:
            raise
        reason = " ".join(str(error).split()) or type(error).__name__
        print(f"botorch-dp: error: {reason}", file=sys.stderr)
        return 1
