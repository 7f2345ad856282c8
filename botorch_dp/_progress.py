"""Progress bars for which no process waits.

Those of tqdm hold a lock that forked processes share. If one of them is killed while it holds the
lock, all others wait for ever, also those that show no bar.
"""

from __future__ import annotations

import os
import threading

from tqdm.auto import tqdm


class _LockOfProcess:
    """A lock for the threads of one process: a forked child finds another one."""

    def __init__(self) -> None:
        self._locks: dict[int, threading.RLock] = {}

    def __get__(self, *_: object) -> threading.RLock:
        return self._locks.setdefault(os.getpid(), threading.RLock())


class ProgressBar(tqdm):
    """A bar of tqdm's whose lock is for the threads of one process."""

    _lock = _LockOfProcess()
