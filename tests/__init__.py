"""The tests; and, before any library reads it, where they work: on one thread and in memory."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

# Workers share the cores: of several threads each, most would wait for the others.
os.environ.setdefault("OMP_NUM_THREADS", "1")

#: Commits to a disk are most of what some tests wait for. Whether each is synced shows on a disk
#: that is simulated (``tests/disk.py``), not on this one. A container's 64 MB would be too few.
_MEMORY = Path("/dev/shm")
_HAS_ROOM = os.access(_MEMORY, os.W_OK) and shutil.disk_usage(_MEMORY).free > 2**31
if _HAS_ROOM and "TMPDIR" not in os.environ:
    os.environ["TMPDIR"] = tempfile.tempdir = str(_MEMORY)
