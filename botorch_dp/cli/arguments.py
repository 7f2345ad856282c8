"""What every command's arguments have in common: their types, and help with a misspelt name.

Nothing here, and nothing that is done before a command runs, loads torch: a wrong argument is
answered at once.
"""

from __future__ import annotations

import argparse
import difflib
import importlib.util
import math
import os
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NoReturn


class Parser(argparse.ArgumentParser):
    """An argument parser that guesses which command or choice was meant."""

    def error(self, message: str) -> NoReturn:
        """Print the usage and the message, with the nearest choice, and exit with status 2."""
        wrong = re.search(r"invalid choice: '([^']*)' \(choose from (.*)\)$", message)
        if wrong:
            message += did_you_mean(wrong[1], re.findall(r"[\w-]+", wrong[2]))
        super().error(message)


def did_you_mean(word: str, choices: Iterable[str]) -> str:
    """`` Did you mean 'pareto'?``, or nothing where no choice is near.

    Example:
        >>> did_you_mean("pareot", ["tasks", "pareto"])
        " Did you mean 'pareto'?"
    """
    near = difflib.get_close_matches(word, list(choices), n=1)
    return f" Did you mean {near[0]!r}?" if near else ""


def _number(
    kind: Callable[[str], Any], condition: Callable[[Any], bool], wanted: str
) -> Callable[[str], Any]:
    def convert(text: str) -> Any:
        try:
            value = kind(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"must be {wanted}, got {text!r}") from None
        if not condition(value):
            raise argparse.ArgumentTypeError(f"must be {wanted}, got {text}")
        return value

    return convert


count = _number(int, lambda value: value >= 1, "a whole number of at least 1")
positive = _number(float, lambda value: 0 < value < math.inf, "a finite number above 0")
probability = _number(float, lambda value: 0 < value < 1, "a probability between 0 and 1")


def check_folder(name: str, path: Path | None) -> None:
    """Notice a folder that is missing or locked before hours of work, not after."""
    if path is None:
        return
    folder = path.absolute().parent
    if not folder.is_dir():
        raise ValueError(f"{name}: there is no folder {folder}.")
    if not os.access(folder, os.W_OK):
        raise ValueError(f"{name}: no permission to write to {folder}.")


def check_figure(name: str, path: Path | None) -> None:
    """The same for a figure, whose suffix must name a format that can be drawn."""
    check_folder(name, path)
    if path is None:
        return
    from matplotlib.backend_bases import FigureCanvasBase

    kinds = FigureCanvasBase.get_supported_filetypes()
    if path.suffix.lstrip(".").lower() not in kinds:
        raise ValueError(f"{name} must end in one of {', '.join(sorted(kinds))}, got {path.name}.")


def check_extra(extra: str, *modules: str) -> None:
    """Notice a missing extra before anything is loaded."""
    missing = [module for module in modules if importlib.util.find_spec(module) is None]
    if missing:
        raise ValueError(f"This needs {' and '.join(missing)}: pip install 'botorch_dp[{extra}]'.")
