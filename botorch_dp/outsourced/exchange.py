"""Outsourcing through files: the data set as ``.npz``, questions and answers as JSON lines."""

from __future__ import annotations

import io
import json
import logging
import os
import time
import uuid
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from botorch_dp._checks import check_positive
from botorch_dp._files import atomic_write
from botorch_dp.errors import BudgetExhausted
from botorch_dp.outsourced.curator import Curator, InvalidIndex
from botorch_dp.outsourced.query_log import QueryLimitReached, RequestConflict
from botorch_dp.privacy import Guarantee, Release

logger = logging.getLogger(__name__)

FORMAT = "botorch_dp outsourced data set 1"


def dataset_to_bytes(dataset: Release[Tensor]) -> bytes:
    """The released rows with their guarantee, as an ``.npz`` archive without pickles."""
    buffer = io.BytesIO()
    np.savez_compressed(
        buffer,
        format=FORMAT,
        Z=dataset.value.detach().cpu().numpy(),
        guarantee=json.dumps(dataset.guarantee.to_dict()),
        noise_std=np.nan if dataset.scale is None else dataset.scale,
    )
    return buffer.getvalue()


def dataset_from_bytes(data: bytes) -> Release[Tensor]:
    """Inverse of :func:`dataset_to_bytes`; anything else is refused."""
    try:
        with np.load(io.BytesIO(data), allow_pickle=False) as archive:
            if str(archive["format"]) != FORMAT:
                raise ValueError("unknown format")
            scale = float(archive["noise_std"])
            return Release(
                torch.from_numpy(archive["Z"].copy()),
                Guarantee.from_dict(json.loads(str(archive["guarantee"]))),
                scale=None if np.isnan(scale) else scale,
            )
    except (ValueError, KeyError, OSError, EOFError, zipfile.BadZipFile) as error:
        raise ValueError(f"This is no released data set ({FORMAT!r}).") from error


def save_dataset(path: str | os.PathLike[str], dataset: Release[Tensor]) -> None:
    """Write the released rows to a file that is whole or absent."""
    with atomic_write(path, binary=True) as file:
        file.write(dataset_to_bytes(dataset))


def load_dataset(path: str | os.PathLike[str]) -> Release[Tensor]:
    """Read released rows written by :func:`save_dataset`."""
    return dataset_from_bytes(Path(path).read_bytes())


def answer_questions(
    curator: Curator, questions: str | os.PathLike[str], answers: str | os.PathLike[str]
) -> int:
    """The curator's half of an exchange by files.

    Reads JSON lines ``{"request_id": ..., "index": ...}``, and appends one line for each question
    that has no answer yet: ``{"request_id": ..., "y": ...}``, or ``"error"`` with a reason that
    quotes no sensitive value. Called again, it goes on with what is new.

    Returns:
        How many lines were appended.
    """
    target = Path(answers)
    done = {entry.get("request_id") for entry in _read_lines(target)} if target.exists() else set()
    count = 0
    for question in _read_lines(Path(questions)):
        request = question.get("request_id")
        if not isinstance(request, str) or request in done:
            continue
        _append_line(target, {"request_id": request, **_answered(curator, question, request)})
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
        request = uuid.uuid4().hex if request_id is None else request_id
        asked = self._questions.exists() and any(
            entry.get("request_id") == request for entry in _read_lines(self._questions)
        )
        if not asked:
            _append_line(self._questions, {"request_id": request, "index": index})
        deadline = time.monotonic() + self._timeout
        while True:
            for entry in _read_lines(self._answers) if self._answers.exists() else ():
                if entry.get("request_id") == request:
                    if "y" not in entry:
                        raise LookupError(f"The curator refused: {entry.get('error')}")
                    return float(entry["y"])
            if time.monotonic() > deadline:
                raise TimeoutError(
                    f"No answer in {self._timeout:g} s. The question stays in the file; run again "
                    "with the same checkpoint to wait for its answer."
                )
            time.sleep(self._interval)


def _answered(curator: Curator, question: dict[str, Any], request: str) -> dict[str, Any]:
    """What may be said to the other party; the reason of a failed measurement may not."""
    try:
        index = curator.check_index(question.get("index"))
        return {"y": curator.query(index, request_id=request)}
    except (QueryLimitReached, RequestConflict, InvalidIndex) as refusal:
        return {"error": str(refusal)}
    except BudgetExhausted:
        return {"error": "The privacy budget is exhausted."}
    except Exception as error:
        logger.error("A measurement failed: %s", type(error).__name__)
        return {"error": "The row could not be measured."}


def _read_lines(path: Path) -> list[dict[str, Any]]:
    """All complete lines that hold JSON objects; a line still being written is left for later."""
    entries = []
    for line in path.read_text().split("\n")[:-1]:
        try:
            entry = json.loads(line)
        except json.JSONDecodeError:
            continue
        if isinstance(entry, dict):
            entries.append(entry)
    return entries


def _append_line(path: Path, entry: dict[str, Any]) -> None:
    with path.open("a") as file:
        file.write(json.dumps(entry) + "\n")
        file.flush()
        os.fsync(file.fileno())
