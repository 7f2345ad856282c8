"""The record of one private search on disk, so that an interrupted run is continued, not repeated.

Evaluations are dear and the budget is charged before the first of them: neither may be lost with
the process. Both releases are written down before they are returned, so that a run is released
once, however often it is continued.
"""

from __future__ import annotations

import hashlib
import json
import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from gpytorch.kernels import Kernel
from torch import Tensor

from botorch_dp._files import atomic_write, create_private
from botorch_dp.errors import PrivacyError

_FORMAT = 1
_HASHED_CHOICES = 50
_HEADER = (
    "SENSITIVE: `seen` holds values computed from the records, without noise. Keep this file to "
    "its owner (mode 0600) and delete it when the run is over. Continue from the newest copy only: "
    "an older one would release a run twice that was charged once."
)


class RunJournal:
    """What a run has seen and released so far; in memory only when it has no path.

    Attributes:
        key: Names the run in the ledger, so that continuing it is not charged again; None without
            a path.
        seen: ``(index, value, implausible)`` for each evaluation. **Sensitive.**
        released: The two released values, or None before the end.
    """

    def __init__(self, path: Path | None, settings: dict[str, Any]) -> None:
        self._path = path
        self._settings = settings
        self.key = None if path is None else uuid.uuid4().hex
        self.seen: list[tuple[int, float, bool]] = []
        self.released: dict[str, Any] | None = None

    @classmethod
    @contextmanager
    def open(
        cls, path: str | os.PathLike[str] | None, settings: dict[str, Any]
    ) -> Iterator[RunJournal]:
        """Begin a run, or continue the one at ``path``; no other process may do so meanwhile.

        Args:
            path: The file; its folder must exist. None keeps everything in memory.
            settings: All that the run depends on, JSON-ready and public.
        """
        if path is None:
            yield cls(None, settings)
            return
        target = Path(path)
        with _exclusive(target):
            journal = cls(target, settings)
            if target.exists():
                journal._load()
            else:
                journal._save()
            yield journal

    def record(self, index: int, value: float, implausible: bool) -> None:
        """Write down one evaluation."""
        self.seen.append((index, value, implausible))
        self._save()

    def finish(self, released: dict[str, Any]) -> None:
        """Write down what is released, before anybody sees it."""
        self.released = released
        self._save()

    def _save(self) -> None:
        if self._path is None:
            return
        state = {
            "warning": _HEADER,
            "format": _FORMAT,
            "key": self.key,
            "settings": self._settings,
            "seen": self.seen,
            "released": self.released,
        }
        with atomic_write(self._path, private=True) as file:
            json.dump(state, file, indent=1)

    def _load(self) -> None:
        assert self._path is not None
        with open(self._path) as file:
            state = json.load(file)
        if not isinstance(state, dict) or state.get("format") != _FORMAT:
            raise ValueError(f"`checkpoint` {self._path} is no run journal of format {_FORMAT}.")
        saved, present = state["settings"], json.loads(json.dumps(self._settings))
        differing = sorted(
            name for name in saved.keys() | present.keys() if saved.get(name) != present.get(name)
        )
        if differing:
            raise PrivacyError(
                f"`checkpoint` {self._path} belongs to a run with other settings "
                f"({', '.join(differing)}): its values would be released under a promise that was "
                "not made for them. Continue it with its own settings, or choose another path."
            )
        self.key = state["key"]
        self.seen = [(index, value, implausible) for index, value, implausible in state["seen"]]
        self.released = state["released"]


def fingerprint(choices: Tensor, kernel: Kernel) -> str:
    """A hash of the prior: the choices, and the kernel's values on some of them."""
    some = choices[:_HASHED_CHOICES]
    with torch.no_grad():
        gram = kernel(some).to_dense().double().round(decimals=6)
    digest = hashlib.sha256(str(choices.dtype).encode())
    for tensor in (choices, gram + 0.0):  # the sum makes one zero of -0. and 0.
        digest.update(tensor.detach().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()


@contextmanager
def _exclusive(path: Path) -> Iterator[None]:
    """Hold the run's lock; the system drops it when the process ends, however it ends."""
    import fcntl  # here, because only checkpoints need it and not every system has it

    lock = path.with_name(path.name + ".lock")
    create_private(lock)
    with open(lock) as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise PrivacyError(
                f"`checkpoint` {path} is in use by another run: two of them would release twice "
                "what is charged once. Wait for it to end, or choose another path."
            ) from None
        yield
