"""Checkpoints of a training run: numbers only, written whole or not at all, for the owner's eyes.

A checkpoint holds the state of the noise generator; whoever reads it can subtract the noise. Such
a file is as private as the records, has mode 0600 and says so.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np

from botorch_dp._files import atomic_write

FORMAT = 1
NOTICE = "SENSITIVE: this checkpoint can reveal the training records. Do not publish or share it."

Arrays = dict[str, np.ndarray]


def save_checkpoint(path: str | os.PathLike[str], header: dict[str, Any], arrays: Arrays) -> None:
    """Replace the file by one with this header (JSON-ready) and these arrays."""
    text = json.dumps({"notice": NOTICE, "format": FORMAT, **header})
    with atomic_write(path, binary=True, private=True) as file:
        np.savez(file, allow_pickle=False, header=np.array(text), **arrays)


def load_checkpoint(path: str | os.PathLike[str]) -> tuple[dict[str, Any], Arrays] | None:
    """The header and the arrays of a checkpoint, or None if there is no such file."""
    if not Path(path).exists():
        return None
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
        header = json.loads(str(arrays.pop("header")))
    except (ValueError, KeyError, EOFError, BadZipFile) as error:
        raise ValueError(
            f"`checkpoint` {os.fspath(path)!r} is not a training checkpoint. Choose another path, "
            "or remove the file."
        ) from error
    if header.get("format") != FORMAT:
        raise ValueError(
            f"`checkpoint` {os.fspath(path)!r} has format {header.get('format')}, this version "
            f"reads format {FORMAT}. Finish the run with the version that started it."
        )
    return header, arrays


def check_same_run(
    path: str | os.PathLike[str], stored: dict[str, Any], run: dict[str, Any]
) -> None:
    """Raise unless a checkpoint belongs to the run that wants to continue from it."""
    different = sorted(
        name for name in stored.keys() | run.keys() if stored.get(name) != run.get(name)
    )
    if different:
        details = ", ".join(f"{n} {stored.get(n)!r} (now {run.get(n)!r})" for n in different)
        raise ValueError(
            f"`checkpoint` {os.fspath(path)!r} belongs to another run, with {details}. Repeat its "
            "arguments to resume it, or choose another path."
        )
