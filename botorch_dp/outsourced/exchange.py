"""Outsourcing through files: the data set as ``.npz``, questions and answers as JSON lines."""

from __future__ import annotations

import hashlib
import io
import json
import logging
import os
import time
import uuid
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from botorch_dp._checks import check_integer, check_positive, printable
from botorch_dp._files import atomic_write, sync_folder
from botorch_dp.errors import BudgetExhausted
from botorch_dp.outsourced.curator import Curator, QuestionRefused, check_request_id
from botorch_dp.privacy import Guarantee, Release

logger = logging.getLogger(__name__)

FORMAT = "botorch_dp outsourced data set 1"
#: The names that may stand in a line of an exchange.
_LINE = {"request_id", "index", "y", "error", "digest"}
_LARGEST = float(np.finfo(np.float64).max)
_DTYPES = ("float16", "float32", "float64")


def save_dataset(path: str | os.PathLike[str], dataset: Release[Tensor]) -> None:
    """Write the released rows and their guarantee to an ``.npz`` archive without pickles.

    If writing fails, there is no file.
    """
    with atomic_write(path, binary=True) as file:
        np.savez_compressed(
            file,
            format=FORMAT,
            Z=dataset.value.detach().cpu().numpy(),
            guarantee=json.dumps(dataset.guarantee.to_dict()),
            noise_std=np.nan if dataset.scale is None else dataset.scale,
        )


def load_dataset(path: str | os.PathLike[str]) -> Release[Tensor]:
    """Read what :func:`save_dataset` wrote; anything else is refused with one ``ValueError``."""
    data = Path(path).read_bytes()
    try:
        with np.load(io.BytesIO(data), allow_pickle=False) as archive:
            if str(archive["format"]) != FORMAT:
                raise ValueError("it has another format")
            rows, scale = archive["Z"], float(archive["noise_std"])
            if rows.dtype not in _DTYPES or rows.ndim != 2 or 0 in rows.shape:
                raise ValueError("its rows are no matrix of floating-point numbers")
            if not np.isfinite(rows).all() or scale < 0 or np.isinf(scale):
                raise ValueError("its numbers are not finite")
            guarantee = Guarantee.from_dict(json.loads(str(archive["guarantee"])))
    except Exception as error:
        # A damaged archive raises whatever the layers below happen to stumble on.
        raise ValueError(
            f"`path` {os.fspath(path)} is no released data set ({FORMAT!r}): {error}."
        ) from error
    return Release(
        torch.from_numpy(rows.copy()), guarantee, scale=None if np.isnan(scale) else scale
    )


def answer_questions(
    curator: Curator, questions: str | os.PathLike[str], answers: str | os.PathLike[str]
) -> int:
    """The curator's half of an exchange by files.

    Reads JSON lines ``{"request_id": ..., "index": ...}``, and appends one line for each question
    that has no answer yet: ``{"request_id": ..., "y": ...}``, or ``"error"`` with a reason that
    quotes no sensitive value. Called again, it answers the questions that are new.

    Returns:
        How many lines were appended.

    Raises:
        FileNotFoundError: No question was asked yet.
    """
    if not os.path.exists(questions):
        raise FileNotFoundError(
            f"`questions`: there is no file {os.fspath(questions)}. The modeler's first question "
            "creates it (`FileCurator.query`): let the modeler ask first, or copy its file here."
        )
    target = Path(answers)
    done = {entry["request_id"] for entry in _read_lines(target)} if target.exists() else set()
    count = 0
    for question in _read_lines(Path(questions)):
        request = question["request_id"]
        if request in done:
            continue
        answer = answer_to(curator, question.get("index"), request)
        _append_line(target, {"request_id": request, **answer})
        done.add(request)
        count += 1
    return count


class FileCurator:
    """The modeler's half of an exchange by files, to be given to :meth:`Modeler.run`.

    Args:
        questions: Where to append questions.
        answers: Where the curator appends answers.
        timeout: Seconds to wait for an answer.
        interval: Seconds between two looks.

    Example:
        >>> remote = FileCurator("questions.jsonl", "answers.jsonl", timeout=3600)
        >>> history = modeler.run(remote.query, steps=50)
    """

    def __init__(
        self,
        questions: str | os.PathLike[str],
        answers: str | os.PathLike[str],
        *,
        timeout: float = 3600.0,
        interval: float = 0.5,
    ) -> None:
        self._questions = Path(questions)
        self._answers = Path(answers)
        self._timeout = check_positive("timeout", timeout)
        self._interval = check_positive("interval", interval)

    def query(self, index: int, *, request_id: str | None = None) -> float:
        """Append the question and wait for its answer."""
        check_integer("index", index, at_least=0)
        request = uuid.uuid4().hex if request_id is None else check_request_id(request_id)
        asked = self._questions.exists() and any(
            entry["request_id"] == request for entry in _read_lines(self._questions)
        )
        if not asked:
            _append_line(self._questions, {"request_id": request, "index": index})
        deadline = time.monotonic() + self._timeout
        while True:
            for entry in _read_lines(self._answers) if self._answers.exists() else ():
                if entry["request_id"] == request:
                    if "y" not in entry:
                        reason = printable(str(entry.get("error"))[:200])
                        raise LookupError(f"The curator refused: {reason}")
                    return check_answer(entry["y"])
            if time.monotonic() > deadline:
                raise TimeoutError(
                    f"No answer in {self._answers} within {self._timeout:g} s. The question stays "
                    f"in the file {self._questions}: let the curator answer it by "
                    "`answer_questions`, then run again with the same checkpoint."
                )
            time.sleep(self._interval)


def answer_to(curator: Curator, index: Any, request_id: Any) -> dict[str, Any]:
    """``{"y": ...}``, or ``{"error": ...}`` with a reason that quotes no sensitive value."""
    try:
        y = curator.query(index, request_id="" if request_id is None else request_id)
    except QuestionRefused as error:
        return {"error": str(error)}
    except BudgetExhausted:
        return {"error": "The privacy budget is exhausted."}
    except Exception as error:
        # The type only: a message may quote sensitive values.
        logger.error("row %s: measurement failed (%s)", index, type(error).__name__)
        return {"error": "The row could not be measured."}
    logger.info("row %d: answered, %d queries so far", index, curator.num_queries)
    return {"y": y}


def check_answer(y: object) -> float:
    """The other party's answer as a float; refuse anything but a finite number."""
    if isinstance(y, bool) or not isinstance(y, int | float) or not -_LARGEST <= y <= _LARGEST:
        raise ValueError("The curator's answer is no finite number.")
    return float(y)


def _read_lines(path: Path) -> list[dict[str, Any]]:
    """The entries of all whole and undamaged lines; the others are asked or answered again."""
    entries = []
    for line in path.read_bytes().split(b"\n")[:-1]:
        try:
            entry = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if not isinstance(entry, dict) or not entry.keys() <= _LINE:
            continue
        if not isinstance(entry.get("request_id"), str):
            continue
        digest = entry.pop("digest", None)  # a line that was written by hand has none
        if digest in (None, _digest(entry)):
            entries.append(entry)
    return entries


def _append_line(path: Path, entry: dict[str, Any]) -> None:
    line = json.dumps({**entry, "digest": _digest(entry)}).encode() + b"\n"
    with path.open("ab+") as file:
        if file.seek(0, os.SEEK_END):
            file.seek(-1, os.SEEK_END)
            if file.read(1) != b"\n":  # the writer of the last line was interrupted
                line = b"\n" + line
        file.write(line)
        file.flush()
        os.fsync(file.fileno())
    sync_folder(path.absolute().parent)


def _digest(entry: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(entry, sort_keys=True).encode()).hexdigest()[:16]
