"""Checkpoints of a private descent: a folder that only its owner can read.

The folder holds sensitive values: the losses of all records at all points still in use, one file
 for each step, because later gradients are conditioned on them. Everything else (the released
iterates, the optimizer's state, the points and their factor) is public and lies in one small file
that is replaced as a whole after each step. A crash therefore leaves the state of the last
complete step; a losses file without a place in that state is ignored and overwritten.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from botorch_dp._files import atomic_write

_FORMAT = 1
_STATE = "state.pt"
_HEADER = """\
This folder is a checkpoint of a differentially private optimization (botorch_dp, DP-GIBO).
The files losses-*.pt hold SENSITIVE values: the losses of single records. They are not protected by
noise. Keep them readable by their owner only (mode 0600) and delete the folder when the run is
over. The other files are functions of released values.
Continue from the newest checkpoint only: a second run from an older copy would release a step
twice while its budget is charged once.
"""


class Checkpoint:
    """A folder with the state of one run.

    Args:
        folder: Created with mode 0700 if it does not exist; its parent must.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = Path(folder)
        self.folder.mkdir(mode=0o700, exist_ok=True)

    @property
    def exists(self) -> bool:
        """Whether a run was saved here."""
        return (self.folder / _STATE).exists()

    def save(self, state: dict[str, Any], new_losses: tuple[int, Tensor] | None = None) -> None:
        """Write the losses of a step (its number and a ``b x n`` tensor), then the state.

        ``state["blocks"]`` lists the numbers of the steps whose losses are still in use.
        """
        if not (self.folder / "README").exists():
            with atomic_write(self.folder / "README", private=True) as file:
                file.write(_HEADER)
        if new_losses is not None:
            step, losses = new_losses
            self._write(self._losses_file(step), losses.contiguous())
        self._write(self.folder / _STATE, {"format": _FORMAT, **state})
        in_use = {self._losses_file(step) for step in state["blocks"]}
        for path in self.folder.glob("losses-*.pt"):
            if path not in in_use:
                path.unlink()

    def load(self, device: torch.device) -> tuple[dict[str, Any], list[Tensor]]:
        """The state and the losses it refers to, oldest first."""
        state = torch.load(self.folder / _STATE, map_location=device, weights_only=True)
        if state["format"] != _FORMAT:
            raise ValueError(
                f"`checkpoint` {self.folder} has format {state['format']}, this version reads "
                f"{_FORMAT}; finish the run with the version that began it."
            )
        blocks = [
            torch.load(self._losses_file(step), map_location=device, weights_only=True)
            for step in state["blocks"]
        ]
        return state, blocks

    def _losses_file(self, step: int) -> Path:
        return self.folder / f"losses-{step:06d}.pt"

    @staticmethod
    def _write(path: Path, content: Any) -> None:
        with atomic_write(path, binary=True, private=True) as file:
            torch.save(content, file)


def check_same_run(
    state: dict[str, Any], settings: dict[str, Any], num_records: int | None, folder: Path
) -> None:
    """Raise unless the run that was saved has the present settings and number of records.

    Either number of records may be None, when nobody has asked the records yet.
    """
    saved = state["settings"]
    differing = sorted(
        name for name in saved.keys() | settings.keys() if saved.get(name) != settings.get(name)
    )
    if differing:
        details = "; ".join(
            f"`{name}` was {saved.get(name)!r}, is {settings.get(name)!r}" for name in differing
        )
        raise ValueError(
            f"`checkpoint` {folder} belongs to a run with other settings ({details}). Use the same "
            "settings to continue it, or another folder for a new run."
        )
    saved_records = state["num_records"]
    if None not in (saved_records, num_records) and saved_records != num_records:
        raise ValueError(
            f"`checkpoint` {folder} is of {saved_records} records, `num_records` is {num_records}."
        )
