"""Progress bars for which no process waits.

Those of tqdm hold a lock that forked processes share. If one of them is killed while it holds the
lock, all others wait for ever, also those that show no bar.
"""

from __future__ import annotations

import os
import threading

from tqdm.auto import tqdm


class ProgressBar(tqdm):
    """A bar of tqdm's whose lock is for the threads of one process."""

    _lock = threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=lambda: ProgressBar.set_lock(threading.RLock()))
