"""What every command's arguments have in common: their types, and help with a misspelt name.

Nothing here, and nothing that is done before a command runs, loads torch: a wrong argument is
answered at once.
"""

from __future__ import annotations

import argparse
import importlib.util
import math
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

from botorch_dp._checks import did_you_mean

#: The environment variable that holds a shared token.
TOKEN_VARIABLE = "BOTORCH_DP_TOKEN"
#: Where SQLite keeps a file's application id, and the ids of our files.
_ID_PLACE = 68
_KINDS = {b"DPar": "study", b"DPBL": "ledger"}


class Parser(argparse.ArgumentParser):
    """An argument parser that says in two lines what is wrong, and what may have been meant."""

    def error(self, message: str) -> NoReturn:
        """Print the message, with the nearest choice, and where there is help; exit with 2."""
        guess = ""
        wrong = re.search(r"invalid choice: '([^']*)' \(choose from (.*)\)$", message)
        if wrong:
            guess = did_you_mean(wrong[1], re.findall(r"[\w-]+", wrong[2]))
        unknown = re.match(r"unrecognized arguments: (-\S+)", message)
        if unknown:
            guess = did_you_mean(unknown[1].partition("=")[0], self._options())
        help_ = f"`{self.prog} --help` says what there is."
        self.exit(2, f"{self.prog}: error: {message}.{guess}\n{help_}\n")

    def _options(self) -> set[str]:
        """The options of this parser and of its commands."""
        found = set(self._option_string_actions)
        for action in self._actions:
            if isinstance(action, argparse._SubParsersAction):
                found.update(*(part._options() for part in action.choices.values()))
        return found


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


def _whole(text: str) -> int:
    """A whole number, also one that is written as 1e3."""
    value = float(text)
    if not value.is_integer():
        raise ValueError
    return int(text) if text.lstrip("+-").isdigit() else int(value)


count = _number(_whole, lambda value: value >= 1, "a whole number of at least 1")
whole = _number(_whole, lambda value: value >= 0, "a whole number of at least 0")
positive = _number(float, lambda value: 0 < value < math.inf, "a finite number above 0")
nonnegative = _number(float, lambda value: 0 <= value < math.inf, "a finite number of at least 0")
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
    check_extra("plots", "matplotlib")
    from matplotlib.backend_bases import FigureCanvasBase

    kinds = FigureCanvasBase.get_supported_filetypes()
    if path.suffix.lstrip(".").lower() not in kinds:
        raise ValueError(f"{name} must end in one of {', '.join(sorted(kinds))}, got {path.name}.")


def file_kind(path: Path) -> str:
    """Whether a file is a "study", a "ledger" or neither (""), without loading anything."""
    if path.is_dir():
        raise ValueError(f"{path} is a folder, and not a file.")
    if not path.exists():
        raise ValueError(f"There is no file {path}.")
    with path.open("rb") as file:
        file.seek(_ID_PLACE)
        return _KINDS.get(file.read(4), "")


def check_extra(extra: str, *modules: str) -> None:
    """Notice a missing extra before anything is loaded."""
    missing = [module for module in modules if importlib.util.find_spec(module) is None]
    if missing:
        raise ValueError(
            f"This needs {' and '.join(missing)}: run `pip install '.[{extra}]'` in a clone of "
            "botorch_dp."
        )
