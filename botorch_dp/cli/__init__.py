"""The command line: ``botorch-dp``, or ``python -m botorch_dp``."""

from botorch_dp.cli.main import main

__all__ = ["main"]
