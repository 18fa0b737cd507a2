"""Where tests write: to memory, on a machine that has enough of it.

Most tests flush each of their commits, and half of the time of a run went by waiting for the disk. What a flush is good for is proven
with stores that lose what was not flushed; a memory file system takes the same calls. ``TMPDIR`` chooses another place.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path
from typing import Final

MEMORY: Final = Path("/dev/shm")
ROOM: Final = 8 * 2**30
"""Bytes that must be free there: four workers with their servers and Sparks leave less than half of it."""


def write_to_memory() -> None:
    """Has this process and those it starts put temporary files in memory."""
    if "TMPDIR" in os.environ or not MEMORY.is_dir() or shutil.disk_usage(MEMORY).free < ROOM:
        return
    if not os.access(MEMORY, os.W_OK | os.X_OK) or _available() < 2 * ROOM:
        return
    os.environ["TMPDIR"] = str(MEMORY)  # and nothing longer: messages that name a path have an end
    tempfile.tempdir = None


def _available() -> int:
    """Bytes of memory that programs can still have."""
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")), 0)
