"""What trainings make: kept while it may yet be published, and handed out once it is.

An artifact is a value that can be pickled, or a ``pathlib.Path`` to a file or folder that a
training wrote. Files are *handed over*: they are moved into a folder of the run's own as soon as
their training ends, so that a later training may write to the same path. Only the best one is kept.
"""

from __future__ import annotations

import pickle
import secrets
import shutil
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch

_PLAIN = (bool, int, float, str, type(None))


class Artifacts:
    """The artifacts of one run.

    Args:
        checkpoint: The run's file; files are kept beside it, in ``<checkpoint>.artifacts``. Without
            one they are kept in a new temporary folder, and removed if the run does not end.
    """

    def __init__(self, checkpoint: str | None) -> None:
        self._lasting = checkpoint is not None
        self._folder = None if checkpoint is None else Path(f"{checkpoint}.artifacts")

    def keep(self, artifact: Any) -> dict[str, Any]:
        """What a checkpoint stores of an artifact; a file is moved.

        Raises:
            TypeError: If it is neither a file nor can be pickled.
        """
        if isinstance(artifact, Path):
            return {"path": str(self._taken(artifact))}
        if _is_plain(artifact):
            return {"plain": artifact}
        try:
            content = pickle.dumps(artifact)
        except Exception as error:
            raise TypeError(
                f"`train` returned a {type(artifact).__name__} that cannot be pickled "
                f"({type(error).__name__}: {error}). Return something that can, such as weights, "
                "or the pathlib.Path of a file that `train` wrote."
            ) from error
        return {"pickle": np.frombuffer(content, dtype=np.uint8)}

    def discard(self, artifact: Any) -> None:
        """Delete what lost."""
        if isinstance(artifact, Path):
            _delete(artifact)

    def keep_only(self, kept: dict[str, Any] | None) -> None:
        """Delete all files but those of one artifact: what lost, and what a killed run left."""
        if self._folder is None or not self._folder.is_dir():
            return
        best = None if kept is None or "path" not in kept else Path(kept["path"]).parent
        for each in self._folder.iterdir():
            if each != best:
                _delete(each)

    def abandon(self) -> None:
        """Delete what nobody could continue from."""
        if not self._lasting and self._folder is not None:
            _delete(self._folder)

    def _taken(self, path: Path) -> Path:
        if not path.exists():
            raise TypeError(
                f"`train` returned {path!r}, where there is no file or folder: write it first, "
                "each training to a path of its own."
            )
        if self._folder is None:
            self._folder = Path(tempfile.mkdtemp(prefix="botorch_dp_"))
        self._folder.mkdir(mode=0o700, exist_ok=True)
        # The name of the folder says nothing about how many trainings there were.
        own = self._folder.resolve() / secrets.token_hex(8)
        own.mkdir(mode=0o700)
        return Path(shutil.move(path, own / path.name))


def restored(stored: dict[str, Any]) -> Any:
    """The artifact that :meth:`Artifacts.keep` stored."""
    ((kind, content),) = stored.items()
    if kind == "path":
        return Path(content)
    return pickle.loads(content.tobytes()) if kind == "pickle" else content


def _is_plain(value: Any) -> bool:
    """Whether a checkpoint stores it without a pickle, and gives it back as it was."""
    if type(value) is dict:
        return all(type(k) is str and _is_plain(v) for k, v in value.items())
    if type(value) in (list, tuple):
        return all(map(_is_plain, value))
    if type(value) is np.ndarray:
        return value.dtype.kind in "biuf" and value.dtype.isnative
    if type(value) is torch.Tensor:
        plain = value.layout == torch.strided and value.device.type == "cpu"
        known = value.dtype not in (torch.bfloat16,) and not value.dtype.is_complex
        return plain and known and not value.requires_grad and not value.is_quantized
    return type(value) in _PLAIN


def _delete(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)
