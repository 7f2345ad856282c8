"""Files that are whole or absent, and files that only their owner may read."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

#: Only the owner reads and writes.
OWNER_ONLY = 0o600


def create_private(path: str | os.PathLike[str]) -> bool:
    """Create an empty file that only its owner can open, before anybody writes to it.

    Returns:
        Whether the file was created; False if it was there already (its mode is left alone).
    """
    try:
        descriptor = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, OWNER_ONLY)
    except FileExistsError:
        return False
    os.close(descriptor)
    return True


@contextmanager
def atomic_write(
    path: str | os.PathLike[str], *, binary: bool = False, private: bool = False
) -> Iterator[IO[Any]]:
    """Open a file that appears under ``path`` only once it is complete and on disk.

    An interruption leaves the old file, or none; never half of the new one.

    Args:
        path: Where the file shall appear; its folder must exist.
        binary: Whether to write bytes instead of text.
        private: Whether only the owner may read it (mode 0600).
    """
    target = Path(path)
    descriptor, temporary = tempfile.mkstemp(
        dir=target.parent, prefix=f".{target.name}.", suffix=".part"
    )
    try:
        with os.fdopen(descriptor, "wb" if binary else "w") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        if not private:
            # mkstemp is private by default: give a public file the mode that `open` would.
            umask = os.umask(0)
            os.umask(umask)
            os.chmod(temporary, 0o666 & ~umask)
        os.replace(temporary, target)
    except BaseException:
        os.unlink(temporary)
        raise
